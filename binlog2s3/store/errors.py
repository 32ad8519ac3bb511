"""What a store's failure means: one table from answers to errors with a hint.

Place: beside `s3`, which boils whatever boto3 raised down to a `Failure`. Law: pure, no boto3.
The table is the whole policy: what may pass by itself (transient), what somebody can mend while
the streamer waits (`MendableError`), and what no repetition will change. Secrets never get here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import parsedate_to_datetime

from binlog2s3.errors import (
    ObjectMissingError,
    PreconditionError,
    StoreError,
    StoreSettingError,
    UnsupportedError,
    UploadMissingError,
)


class MendableError(StoreError):
    """Rights, credentials, bucket, clock, endpoint: wrong until somebody mends it.

    Not transient: a preflight fails with it. A streamer that runs waits for it to be mended.
    """


class UploadDeniedError(MendableError):
    """A request within an upload is denied; or the upload is gone, and the store says it so.

    Never repeated as it is: whoever holds the upload looks for it again.
    """


class UnsetError(StoreError):
    """The bucket has no such configuration: nothing of it was ever set."""


class RefusedError(StoreError):
    """The store finds the request itself wrong, as InvalidArgument does: the same again is vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed request, without its library.

    `code` is the store's error code (`NoSuchKey`), the status where it names none (`404`), or the
    name of the exception where there was no answer (`ReadTimeoutError`); `status` is then None.
    `region` is where the store says the bucket is, `at` our own clock when the answer came.
    """

    code: str
    operation: str
    bucket: str
    endpoint: str
    key: str = ""
    message: str = ""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Meaning:
    error: type[StoreError]
    says: str
    hint: str = ""
    transient: bool = False


# The S3 action that a policy must allow, by operation as boto3 names it.
_MOST_MESSAGE = 500
"""Characters of what a store says that are shown."""
_ACTIONS = {
    "list_objects_v2": "s3:ListBucket",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject and s3:ListBucket",
    "put_object": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:GetObject and s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_parts": "s3:ListMultipartUploadParts",
    "get_bucket_versioning": "s3:GetBucketVersioning",
    "get_bucket_lifecycle_configuration": "s3:GetLifecycleConfiguration",
    "get_object_lock_configuration": "s3:GetBucketObjectLockConfiguration",
    "list_object_versions": "s3:ListBucketVersions",
}

_CHAIN = (
    "boto3 looks in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), ~/.aws/credentials,"
    " ~/.aws/config and the machine's role; `aws sts get-caller-identity` shows what it finds"
)
_NO_BUCKET = _Meaning(
    MendableError,
    "there is no bucket {bucket!r} at {endpoint}",
    "create it, or name another one with --s3-url; --endpoint-url and --region say where it is",
)
_DENIED = _Meaning(
    MendableError,
    "access denied: {operation} on {where}{answer}",
    "allow {action} on it for these credentials, in their policy and the bucket's",
)
_DENIED_UPLOAD = replace(_DENIED, error=UploadDeniedError)
_BAD_KEY = _Meaning(
    MendableError, "the store does not know this access key id ({code}) at {endpoint}", _CHAIN
)
_BAD_SECRET = _Meaning(
    MendableError,
    "the store refuses the signature ({code}) at {endpoint}",
    "the secret access key does not belong to the access key id; " + _CHAIN,
)
_EXPIRED = _Meaning(
    MendableError,
    "the session's credentials have expired, or its token is not valid ({code})",
    "renew them (`aws sso login`, a new session token); they are read again at the next attempt",
)
_NO_CREDENTIALS = _Meaning(MendableError, "no usable AWS credentials: {message}", _CHAIN)
_SKEW = _Meaning(
    MendableError,
    "the clock of this host and the store's are too far apart{skew}",
    "set the clock: `timedatectl` shows whether NTP runs",
)
_REGION = _Meaning(
    MendableError,
    "bucket {bucket!r} is in another region{region}{answer}",
    "name the bucket's region with --region",
)
_MISSING = _Meaning(ObjectMissingError, "there is no object {key!r} in bucket {bucket!r}")
_UNSET = _Meaning(UnsetError, "bucket {bucket!r} has no such configuration ({code})")
_UPLOAD_GONE = _Meaning(
    UploadMissingError, "the multipart upload of {key!r} is gone: completed, aborted or expired"
)
_EXISTS = _Meaning(PreconditionError, "{key!r} exists already in bucket {bucket!r} ({code})")
_UNSUPPORTED = _Meaning(
    UnsupportedError, "the store at {endpoint} does not have {operation} as asked{answer}"
)
_BUSY = _Meaning(
    StoreError,
    "the store at {endpoint} failed {operation} on {where}{answer}",
    "if this stays, the store's own logs say why",
    transient=True,
)
_UNREACHABLE = _Meaning(
    StoreError,
    "cannot reach the store at {endpoint}: {message}",
    "check --endpoint-url, name resolution, routes and firewalls",
    transient=True,
)
_CUT = _Meaning(
    StoreError,
    "the connection to {endpoint} broke during {operation} of {where}: {message}",
    "if this stays, look at the network and at proxies or balancers on the way",
    transient=True,
)
_TIMEOUT = _Meaning(
    StoreError,
    "the store at {endpoint} did not answer {operation} in time: {message}",
    "a firewall that drops packets looks like this; check --endpoint-url and the network",
    transient=True,
)
_TLS = _Meaning(
    MendableError,
    "no TLS with {endpoint}: {message}",
    "trust its CA with AWS_CA_BUNDLE=/path/ca.pem;"
    " if it speaks plain HTTP, write http:// in --endpoint-url",
)
_FOREIGN = _Meaning(
    MendableError,
    "{endpoint} answers, but not as an S3 store does: {message}",
    "--endpoint-url must be the store's S3 address and port, not its console or a web server,"
    " and https:// where it speaks TLS",
)
_SETTINGS = _Meaning(
    MendableError,
    "cannot make a request of these settings: {message}",
    "check --s3-url, --endpoint-url and --region",
)
_WRONG_BYTES = _Meaning(
    StoreError,
    "the store refused {operation} of {where}: the bytes do not match their checksum{answer}",
    "they changed on the way, or on the disk since they were read; look at the host's disk, memory",
)
_REFUSED = _Meaning(RefusedError, "the store refused {operation} on {where}{answer}")
_CLASS = _Meaning(
    StoreSettingError,
    "the store has no such storage class for {key!r}{answer}",
    "name another one, or none, with storage_class",
)
_KMS = _Meaning(
    MendableError,
    "the store cannot use the KMS key for {key!r}{answer}",
    "check sse_kms_key_id, that the key is enabled, and that these credentials may use it"
    " (kms:GenerateDataKey and kms:Decrypt)",
)

_WRITES = ("put_object", "complete_multipart_upload")
_WITHIN_UPLOADS = ("upload_part", "upload_part_copy", "complete_multipart_upload", "list_parts")
_TELLING = ("304", "405", "412", "429", "501")

_BY_CODE: dict[str, _Meaning] = {
    **dict.fromkeys(("NoSuchBucket", "InvalidBucketName"), _NO_BUCKET),
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "AllAccessDisabled", "AccountProblem", "403"),
        _DENIED,
    ),
    **dict.fromkeys(("InvalidAccessKeyId", "InvalidClientTokenId", "NotSignedUp"), _BAD_KEY),
    "SignatureDoesNotMatch": _BAD_SECRET,
    **dict.fromkeys(
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "TokenRefreshRequired",
            "InvalidToken",
            "InvalidTokenId",
        ),
        _EXPIRED,
    ),
    **dict.fromkeys(
        (
            "NoCredentialsError",
            "PartialCredentialsError",
            "CredentialRetrievalError",
            "ProfileNotFound",
            "ConfigParseError",
            "NoAuthTokenError",
            "TokenRetrievalError",
            "SSOError",
            "SSOTokenLoadError",
            "UnauthorizedSSOTokenError",
            "MetadataRetrievalError",
        ),
        _NO_CREDENTIALS,
    ),
    "RequestTimeTooSkewed": _SKEW,
    **dict.fromkeys(
        (
            "PermanentRedirect",
            "TemporaryRedirect",
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "301",
        ),
        _REGION,
    ),
    **dict.fromkeys(("NoSuchKey", "404"), _MISSING),
    "NoSuchUpload": _UPLOAD_GONE,
    **dict.fromkeys(
        (
            "NoSuchLifecycleConfiguration",
            "ObjectLockConfigurationNotFoundError",
            "ObjectLockConfigurationNotFound",
        ),
        _UNSET,
    ),
    **dict.fromkeys(
        ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "412", "409"),
        _EXISTS,
    ),
    **dict.fromkeys(
        ("NotImplemented", "MethodNotAllowed", "NotSupported", "501", "405"), _UNSUPPORTED
    ),
    **dict.fromkeys(
        (
            "InternalError",
            "ServiceUnavailable",
            "SlowDown",
            "SlowDownRead",
            "SlowDownWrite",
            "RequestTimeout",
            "RequestTimeoutException",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "IncompleteBody",
            "429",
        ),
        _BUSY,
    ),
    **dict.fromkeys(("EndpointConnectionError", "ProxyConnectionError"), _UNREACHABLE),
    **dict.fromkeys(("ConnectTimeoutError", "ReadTimeoutError"), _TIMEOUT),
    **dict.fromkeys(
        (
            "ConnectionClosedError",
            "HTTPClientError",
            "ResponseStreamingError",
            "IncompleteReadError",
            "ConnectionError",
            "OSError",
        ),
        _CUT,
    ),
    "SSLError": _TLS,
    **dict.fromkeys(("ValueError", "ParamValidationError", "InvalidRegionError"), _SETTINGS),
    **dict.fromkeys(("ResponseParserError", "NotS3"), _FOREIGN),
    **dict.fromkeys(
        ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
        _WRONG_BYTES,
    ),
    "InvalidStorageClass": _CLASS,
}


def translate(failure: Failure) -> StoreError:
    """The error that this failure is: class, message with the values, hint, transient or not."""
    meaning = _meaning(failure)
    values = _values(failure)
    return meaning.error(
        meaning.says.format_map(values),
        hint=meaning.hint.format_map(values),
        transient=meaning.transient,
    )


def knows(code: str) -> bool:
    """Whether the table has a line of its own for this code or exception."""
    return code in _BY_CODE


def is_web_page(headers: Mapping[str, str]) -> bool:
    """Whether a web server or proxy answered; moto calls its empty answers text/html as well."""
    html = headers.get("content-type", "").lower().startswith("text/html")
    return html and not _signed_by_s3(headers)


def _signed_by_s3(headers: Mapping[str, str]) -> bool:
    return any(name.startswith("x-amz") for name in headers)


def _meaning(failure: Failure) -> _Meaning:
    if (failure.status or 0) >= 500 and failure.code not in ("NotImplemented", "501"):
        return _BUSY  # also a load balancer's own HTML page
    if is_web_page(failure.headers) or _bare_status(failure):
        return _FOREIGN
    if "functionality that is not implemented" in failure.message:
        return _UNSUPPORTED
    if failure.code.lower().startswith("kms"):
        return _KMS
    known = _BY_CODE.get(failure.code, _REFUSED)
    if known is _DENIED and failure.operation in _WITHIN_UPLOADS:
        return _DENIED_UPLOAD
    return _REFUSED if known is _EXISTS and failure.operation not in _WRITES else known


def _bare_status(failure: Failure) -> bool:
    """S3 puts its code into a body; only an answer to HEAD, and a few statuses, go without."""
    bodyless = failure.operation.startswith("head_") or failure.code in _TELLING
    return failure.code.isdigit() and not bodyless and not _signed_by_s3(failure.headers)


def _values(failure: Failure) -> dict[str, str]:
    message = failure.message.strip().rstrip(".")[:_MOST_MESSAGE]
    answer = ": ".join(part for part in (failure.code, message) if part)
    return {
        "bucket": failure.bucket,
        "endpoint": failure.endpoint,
        "key": failure.key,
        "where": f"{failure.bucket}/{failure.key}" if failure.key else f"bucket {failure.bucket!r}",
        "operation": failure.operation,
        "action": _ACTIONS.get(failure.operation, "s3:*"),
        "code": failure.code,
        "message": _page(failure) or message,
        "answer": f" ({answer})" if answer else "",
        "region": _region(failure),
        "skew": _skew(failure),
    }


def _page(failure: Failure) -> str:
    if failure.status is None or not (is_web_page(failure.headers) or failure.code.isdigit()):
        return ""
    kind = failure.headers.get("content-type", "no content type")
    return f"{failure.operation} got status {failure.status} with {kind}"


def _region(failure: Failure) -> str:
    region = failure.headers.get("x-amz-bucket-region") or failure.region
    return f", {region}" if region else ""


def _skew(failure: Failure) -> str:
    """By how much, as the store's own Date header shows it; nothing where it has none."""
    try:
        theirs = parsedate_to_datetime(failure.headers["date"])
    except (KeyError, ValueError):
        return ""
    if failure.at is None:
        return ""
    seconds = round((failure.at - theirs).total_seconds())
    return f": ours is {abs(seconds)} s {'ahead' if seconds > 0 else 'behind'}"
