"""What boto3 offers reaches binlog2s3: credentials, proxies, authorities; with a real MinIO."""

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from lab.s3 import MinioServer
from tests import command
from tests.integration.certificates import Authority
from tests.waiting import PATIENCE

BUCKET_POLICY = {
    "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}]
}


class Relay(BaseHTTPRequestHandler):
    """Passes a GET on to the store and the answer back; as a proxy or as the store's TLS front."""

    store = ("127.0.0.1", 0)
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        parts = urlsplit(self.path)
        onward = http.client.HTTPConnection(*self.store, timeout=PATIENCE)
        onward.putrequest("GET", f"{parts.path}?{parts.query}", skip_host=True,
                          skip_accept_encoding=True)  # fmt: skip
        for name, value in self.headers.items():
            onward.putheader(name, value)
        onward.endheaders()
        answer = onward.getresponse()
        body = answer.read()
        onward.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Tokens(BaseHTTPRequestHandler):
    """An STS that gives credentials of the store to a client with the web identity."""

    given: Mapping[str, str]

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert "AssumeRoleWithWebIdentity" in asked
        assert "WebIdentityToken=the-token" in asked
        body = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{self.given['access_key']}</AccessKeyId>"
            f"<SecretAccessKey>{self.given['secret_key']}</SecretAccessKey>"
            f"<SessionToken>{self.given['session_token']}</SessionToken>"
            "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None
) -> Iterator[int]:
    """A server on 127.0.0.1 with this handler; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def relay_to(minio: MinioServer) -> tuple[type[Relay], list[str]]:
    """A relay to this store, and what it saw."""
    seen: list[str] = []

    class To(Relay):
        store = ("127.0.0.1", minio.port)

    To.seen = seen
    return To, seen


def listed(endpoint: str, bucket: str, *more: str, **environment: str) -> str:
    """What `list` says, with this environment alone; "" if it has seen that the bucket is empty."""
    done = command.run(
        *("list", "--json", f"--s3-url=s3://{bucket}/pre", f"--endpoint-url={endpoint}"),
        *("--addressing-style=path", *more),
        AWS_EC2_METADATA_DISABLED="true",
        AWS_DEFAULT_REGION="us-east-1",
        **environment,
    )
    return "" if "there is nothing below" in done.stderr else done.stderr


def keys(minio: MinioServer) -> str:
    return f"aws_access_key_id={minio.access_key}\naws_secret_access_key={minio.secret_key}\n"


def files(directory: Path, config: str, credentials: str = "") -> dict[str, str]:
    """AWS' two files."""
    (directory / "config").write_text(config)
    (directory / "credentials").write_text(credentials)
    return {
        "AWS_CONFIG_FILE": str(directory / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"),
    }


def test_profiles(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """By the option and by the variable; another one has other keys."""
    both = f"[one]\naws_access_key_id=x\naws_secret_access_key=y\n[two]\n{keys(minio)}"
    given = files(tmp_path, "", both)
    assert listed(minio.endpoint_url, bucket, "--profile=two", **given) == ""
    assert listed(minio.endpoint_url, bucket, **given, AWS_PROFILE="two") == ""
    assert listed(minio.endpoint_url, bucket, "--profile=one", **given)


def test_a_role_that_is_assumed(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """By a profile with role_arn; MinIO's own STS gives the credentials."""
    config = (
        "[profile role]\nrole_arn=arn:aws:iam::000000000000:role/lab\nsource_profile=base\n"
        f"[profile base]\n{keys(minio)}"
    )
    given = files(tmp_path, config)
    sts = {"AWS_ENDPOINT_URL_STS": minio.endpoint_url}
    assert listed(minio.endpoint_url, bucket, "--profile=role", **given, **sts) == ""


def test_a_web_identity(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """As Kubernetes gives it to a service account (IRSA)."""

    class Sts(Tokens):
        given = minio.restricted(BUCKET_POLICY)

    (tmp_path / "token").write_text("the-token")
    with serving(Sts) as port:
        said = listed(
            minio.endpoint_url,
            bucket,
            **files(tmp_path, ""),
            AWS_ROLE_ARN="arn:aws:iam::000000000000:role/lab",
            AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
            AWS_ENDPOINT_URL_STS=f"http://127.0.0.1:{port}",
        )
    assert said == ""


def test_a_process_that_gives_credentials(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """credential_process, which SSO's helpers use too."""
    document = {
        "Version": 1,
        "AccessKeyId": minio.access_key,
        "SecretAccessKey": minio.secret_key,
    }
    (tmp_path / "given.json").write_text(json.dumps(document))
    config = f"[profile p]\ncredential_process = cat {tmp_path / 'given.json'}\n"
    assert listed(minio.endpoint_url, bucket, "--profile=p", **files(tmp_path, config)) == ""


@pytest.mark.parametrize("how", ["variable", "profile"])
def test_an_authority_of_ones_own(
    minio: MinioServer, bucket: str, tmp_path: Path, how: str
) -> None:
    """AWS_CA_BUNDLE, or ca_bundle of a profile; without it the store is not believed."""
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("store", x509.IPAddress(ip_address("127.0.0.1")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    handler, seen = relay_to(minio)
    bundle = {"AWS_CA_BUNDLE": str(authority.ca)} if how == "variable" else {}
    own = f"[default]\nca_bundle={authority.ca}\n" if how == "profile" else ""
    with serving(handler, context) as port:
        url = f"https://127.0.0.1:{port}"
        given = files(tmp_path, own, f"[default]\n{keys(minio)}")
        assert listed(url, bucket, **given, **bundle) == ""
        assert seen
        del seen[:]
        stranger = files(tmp_path, "", f"[default]\n{keys(minio)}")
        assert "certificate" in listed(url, bucket, **stranger).lower()
        assert not seen


def test_a_proxy(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """HTTP_PROXY (HTTPS_PROXY for https) and NO_PROXY: the store's name is for the proxy alone."""
    handler, seen = relay_to(minio)
    given = files(tmp_path, "", f"[default]\n{keys(minio)}")
    with serving(handler) as port:
        proxy = {"HTTP_PROXY": f"http://127.0.0.1:{port}", "http_proxy": f"http://127.0.0.1:{port}"}
        assert listed("http://store.invalid:9000", bucket, **given, **proxy) == ""
        assert seen[0].startswith("http://store.invalid:9000/")
        del seen[:]
        assert listed(minio.endpoint_url, bucket, **given, **proxy, NO_PROXY="127.0.0.1") == ""
        assert not seen
