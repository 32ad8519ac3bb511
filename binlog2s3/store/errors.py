"""What a failure of the store means: one table from answers to errors with a hint. Pure.

Law: the table is the whole policy: which failures may pass by themselves (transient), which ones an
operator can fix while the streamer waits (`MendableError`), and which ones no retry changes. No
secret is ever in a `Failure`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
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
    """Permissions, credentials, bucket, clock or endpoint: wrong until an operator fixes it.

    Not transient: `check` and the startup fail with it. A running streamer waits until it is fixed.
    """


class UploadDeniedError(MendableError):
    """A request within an upload is denied; some stores also answer this if the upload is gone.

    It is never repeated: the caller looks for the upload again.
    """


class SignatureError(MendableError):
    """The signature is refused: a wrong secret, or a header of it that something changed."""


class FullError(MendableError):
    """The store has no space left: nothing can be put, but objects can be deleted."""


class UnsetError(StoreError):
    """The bucket does not have this configuration: it was never set."""


class RefusedError(StoreError):
    """The store calls the request itself wrong (InvalidArgument): repeating it does not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed request, without anything of botocore.

    `code` is the store's error code (`NoSuchKey`), the status if it has none (`404`), or the name
    of the exception if there was no answer (`ReadTimeoutError`); `status` is then None. `region` is
    the bucket's region as the store says, `at` our own clock when the answer came.
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
class _Translation:
    error: type[StoreError]
    says: str
    hint: str = ""
    transient: bool = False


# The S3 action that a policy must allow, by operation as botocore names it.
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
    "get_object_retention": "s3:GetObjectRetention",
    "get_object_legal_hold": "s3:GetObjectLegalHold",
}

_CHAIN = (
    "botocore looks in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE), ~/.aws/credentials,"
    " ~/.aws/config and the machine's role; `aws sts get-caller-identity` shows what it finds"
)
_NO_BUCKET = _Translation(
    MendableError,
    "there is no bucket {bucket!r} at {endpoint}",
    "create it, or give another one with --s3-url; check --endpoint-url and --region",
)
_DENIED = _Translation(
    MendableError,
    "access denied: {operation} on {where}{answer}",
    "allow {action} on it for these credentials, in their policy and the bucket's",
)
_DENIED_UPLOAD = replace(_DENIED, error=UploadDeniedError)
_BAD_KEY = _Translation(
    MendableError, "the store does not know this access key id ({code}) at {endpoint}", _CHAIN
)
_BAD_SECRET = _Translation(
    SignatureError,
    "the store refuses the signature ({code}) at {endpoint}",
    "the secret access key does not belong to the access key id, or a proxy or the store changes"
    " signed headers (if only writes are refused, try --checksum md5); " + _CHAIN,
)
_EXPIRED = _Translation(
    MendableError,
    "the session's credentials have expired, or its token is invalid ({code})",
    "renew them (`aws sso login`, a new session token); the next attempt reads them again",
)
_NO_CREDENTIALS = _Translation(MendableError, "no usable AWS credentials: {message}", _CHAIN)
_SKEW = _Translation(
    MendableError,
    "the clocks of this host and of the store differ too much{skew}",
    "set the clock: `timedatectl` shows whether NTP is active",
)
_REGION = _Translation(
    MendableError,
    "bucket {bucket!r} is in another region{region}{answer}",
    "give the bucket's region with --region",
)
_MISSING = _Translation(ObjectMissingError, "there is no object {key!r} in bucket {bucket!r}")
_UNSET = _Translation(UnsetError, "bucket {bucket!r} has no such configuration ({code})")
_UPLOAD_GONE = _Translation(
    UploadMissingError, "the multipart upload of {key!r} is gone: completed, aborted or expired"
)
_EXISTS = _Translation(PreconditionError, "{key!r} exists already in bucket {bucket!r} ({code})")
_UNSUPPORTED = _Translation(
    UnsupportedError, "the store at {endpoint} does not support {operation} as requested{answer}"
)
_BUSY = _Translation(
    StoreError,
    "the store at {endpoint} failed {operation} on {where}{answer}",
    "if this continues, see the store's own logs",
    transient=True,
)
_UNREACHABLE = _Translation(
    StoreError,
    "cannot reach the store at {endpoint}: {message}",
    "check --endpoint-url, name resolution, routes and firewalls",
    transient=True,
)
_PROXY = _Translation(
    StoreError,
    "cannot reach the store at {endpoint} through the proxy: {message}",
    "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY, and that the proxy runs",
    transient=True,
)
_CUT = _Translation(
    StoreError,
    "the connection to {endpoint} broke during {operation} of {where}: {message}",
    "if this continues, check that --endpoint-url is the store's S3 address (https:// if it uses"
    " TLS), the network, proxies and load balancers",
    transient=True,
)
_TIMEOUT = _Translation(
    StoreError,
    "the store at {endpoint} did not answer {operation} in time: {message}",
    "check --endpoint-url, the network, and firewalls that drop packets",
    transient=True,
)
_TLS = _Translation(
    MendableError,
    "cannot set up TLS with {endpoint}: {message}",
    "trust its CA with AWS_CA_BUNDLE=/path/ca.pem;"
    " if the store uses plain HTTP, write http:// in --endpoint-url",
)
_FOREIGN = _Translation(
    MendableError,
    "{endpoint} answers, but not like an S3 store: {message}",
    "--endpoint-url must be the store's S3 address and port, not its console or a web server,"
    " and https:// if it uses TLS",
)
_NOT_HTTP = _Translation(
    MendableError,
    "{endpoint} does not speak plain HTTP: {message}",
    "if the store uses TLS there, write https:// in --endpoint-url; else give its S3 port",
)
_SETTINGS = _Translation(
    MendableError,
    "cannot make a request with these settings: {message}",
    "check --s3-url, --endpoint-url and --region",
)
_WRONG_BYTES = _Translation(
    StoreError,
    "the store refused {operation} of {where}: the bytes do not match their checksum{answer}",
    "they changed on the network, or on disk; check the host's disk and memory",
)
_FULL = _Translation(
    FullError,
    "the store has no space left for {where}{answer}",
    "raise the bucket's quota or add disks; `binlog2s3 prune` frees what is past its retention",
)
_TOO_LARGE = _Translation(
    StoreError,
    "the store at {endpoint} refuses the size of this body: {operation} on {where}{answer}",
    "a proxy or the store limits bodies (nginx: client_max_body_size): raise the limit, or set a"
    " smaller --part-size",
)
_PARTS = _Translation(
    RefusedError,
    "the store refused {operation} on {where}{answer}",
    "this store limits the number of parts, or wants parts of equal size: set a greater"
    " --part-size, at least the binlog's size / the number of parts that it allows",
)
_SLOW_BODY = _Translation(
    StoreError,
    "{operation} on {where} reached the store too late after it was signed{skew}",
    "the body takes too long to send: set a smaller --part-size or a lower --concurrency; if small"
    " requests fail, too, set the clock (`timedatectl` shows whether NTP is active)",
    transient=True,
)
_UNEXPECTED = _Translation(
    MendableError,
    "{operation} on {where} failed in the S3 client ({code}): {message}",
    "check the credentials and the settings of the SDK (~/.aws/config, AWS_ variables); if they are"
    " right, this is a defect: please report it",
)
_REFUSED = _Translation(
    RefusedError,
    "the store refused {operation} on {where}{answer}",
    "`binlog2s3 check` makes each kind of request by itself, and says what this store refuses",
)
_CLASS = _Translation(
    StoreSettingError,
    "the store does not have the storage class for {key!r}{answer}",
    "set storage_class to another class, or remove it",
)
_NO_LOCK = _Translation(
    MendableError,
    "bucket {bucket!r} has no Object Lock, and {key!r} asks for it{answer}",
    "set object_lock only for a bucket that was made with Object Lock, or remove it",
)
_FROZEN = _Translation(
    RefusedError,
    "{where} is in a storage class that answers no GET{answer}",
    "`aws s3api restore-object` brings a copy back, in hours; delete the lifecycle rule that moved"
    " it",
)
_KMS = _Translation(
    MendableError,
    "the store cannot use the KMS key for {key!r}{answer}",
    "check sse_kms_key_id, that the key is enabled, and that these credentials may use it"
    " (kms:GenerateDataKey and kms:Decrypt)",
)

_SKEW_SECONDS = 300
"""S3 refuses a difference of 900 s."""
_BODIES = ("put_object", "upload_part")
_WRITES = ("put_object", "complete_multipart_upload")
_WITHIN_UPLOADS = ("upload_part", "upload_part_copy", "complete_multipart_upload", "list_parts")
_BODYLESS = ("304", "405", "412", "429", "501")

_BY_CODE: dict[str, _Translation] = {
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
            "InvalidConfigError",
            "InfiniteLoopConfigError",
            "UnknownCredentialError",
            "NoAuthTokenError",
            "TokenRetrievalError",
            "SSOError",
            "SSOTokenLoadError",
            "UnauthorizedSSOTokenError",
            "MetadataRetrievalError",
            "LoginError",
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
            "NoSuchObjectLockConfiguration",
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
    "EndpointConnectionError": _UNREACHABLE,
    "ProxyConnectionError": _PROXY,
    **dict.fromkeys(("ConnectTimeoutError", "ReadTimeoutError"), _TIMEOUT),
    **dict.fromkeys(
        (
            "ConnectionClosedError",
            "HTTPClientError",
            "ResponseStreamingError",
            "IncompleteReadError",
            "ConnectionError",
            "OSError",
            "HTTPError",  # the root of urllib3
            "HTTPException",  # the root of http.client
        ),
        _CUT,
    ),
    "SSLError": _TLS,
    **dict.fromkeys(
        (
            "ValueError",
            "ParamValidationError",
            "InvalidRegionError",
            "BotoCoreError",
            "Boto3Error",
        ),
        _SETTINGS,
    ),
    "Exception": _UNEXPECTED,
    **dict.fromkeys(
        (
            "QuotaExceeded",
            "QuotaExceededException",
            "ServiceQuotaExceeded",
            "InsufficientStorage",
            "InsufficientCapacity",
            "XMinioStorageFull",
            "XMinioAdminBucketQuotaExceeded",
            "507",
        ),
        _FULL,
    ),
    **dict.fromkeys(("EntityTooLarge", "MaxMessageLengthExceeded", "413"), _TOO_LARGE),
    **dict.fromkeys(("ResponseParserError", "NotS3"), _FOREIGN),
    "NotHTTP": _NOT_HTTP,
    **dict.fromkeys(
        ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
        _WRONG_BYTES,
    ),
    **dict.fromkeys(("InvalidPart", "InvalidPartOrder", "EntityTooSmall"), _PARTS),
    "InvalidStorageClass": _CLASS,
    "InvalidObjectState": _FROZEN,
}

_BY_TEXT = {
    "refreshed credentials are still expired": _EXPIRED,  # botocore's RuntimeError
    "functionality that is not implemented": _UNSUPPORTED,
    "Bucket is missing Object Lock Configuration": _NO_LOCK,  # AWS
    "Bucket is missing ObjectLockConfiguration": _NO_LOCK,  # MinIO
}
"""Answers whose code does not say enough."""


def translate(failure: Failure) -> StoreError:
    """The error for this failure: class, message with the values, hint, transient or not."""
    found = _translation(failure)
    values = _values(failure)
    return found.error(
        found.says.format_map(values),
        hint=found.hint.format_map(values),
        transient=found.transient,
    )


def knows(code: str) -> bool:
    """Whether the table has an entry for this code or exception."""
    return code in _BY_CODE


def is_web_page(headers: Mapping[str, str]) -> bool:
    """Whether a web server or proxy answered; empty answers of moto are text/html, too."""
    html = headers.get("content-type", "").lower().startswith("text/html")
    return html and not _signed_by_s3(headers)


def _signed_by_s3(headers: Mapping[str, str]) -> bool:
    return any(name.startswith("x-amz") for name in headers)


def _translation(failure: Failure) -> _Translation:
    if failure.status == 507 or _BY_CODE.get(failure.code) is _FULL:
        return _FULL
    if (failure.status or 0) >= 500 and failure.code not in ("NotImplemented", "501"):
        return _BUSY  # also for the HTML page of a load balancer
    if failure.status == 413:
        return _TOO_LARGE  # also for the HTML page of nginx
    if is_web_page(failure.headers) or _bare_status(failure):
        return _FOREIGN
    for text, found in _BY_TEXT.items():
        if text in failure.message:
            return found
    if failure.code.lower().startswith("kms"):
        return _KMS
    known = _BY_CODE.get(failure.code, _REFUSED)
    if known is _SKEW and failure.operation in _BODIES and _is_close(failure):
        return _SLOW_BODY
    if known is _REFUSED and "part number" in failure.message.lower():
        return _PARTS
    if known is _DENIED and failure.operation in _WITHIN_UPLOADS:
        return _DENIED_UPLOAD
    return _REFUSED if known is _EXISTS and failure.operation not in _WRITES else known


def _is_close(failure: Failure) -> bool:
    """Whether the clocks agree now, so that the time went by while the body was sent.

    Where the store does not show its clock, that is likely for a part: small requests pass.
    """
    ahead = _seconds_ahead(failure)
    return failure.operation == "upload_part" if ahead is None else abs(ahead) < _SKEW_SECONDS


def _bare_status(failure: Failure) -> bool:
    """S3 has its code in a body; only an answer to HEAD, and a few statuses, have no body."""
    bodyless = failure.operation.startswith("head_") or failure.code in _BODYLESS
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
    seconds = _seconds_ahead(failure)
    if seconds is None:
        return ""
    return f": ours is {abs(seconds)} s {'ahead' if seconds > 0 else 'behind'}"


def _seconds_ahead(failure: Failure) -> int | None:
    """How far our clock is ahead of the store's, by its Date header; None if it has none."""
    try:
        theirs = parsedate_to_datetime(failure.headers["date"])
    except (KeyError, ValueError):
        return None
    if failure.at is None:
        return None
    if theirs.tzinfo is None:  # without a zone, or several dates in one
        theirs = theirs.replace(tzinfo=UTC)
    return round((failure.at - theirs).total_seconds())
