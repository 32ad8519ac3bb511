"""A throwaway S3 store in a directory of its own, on 127.0.0.1: MinIO, versitygw and others.

    with MinioServer(get.minio(), directory) as store:
        store.make_bucket("binlogs")

Law: moto stands in only where nothing depends on integrity, races or access rights, which it does
not check. versitygw is the second opinion. nanio is the store without conditional writes,
`If-None-Match` does not stop it; s3s-fs is the one that cannot list uploads. What a store lacks
stands in its `lacks`, and tests/integration/test_lab.py holds it to that.
"""

import base64
import http
import http.client
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config

from lab.cache import remove
from lab.child import ServerFailedError, end, free_port, spawn, tail, wait_ready

if TYPE_CHECKING:
    import subprocess

    from mypy_boto3_s3 import S3Client

PORT_TRIES = 5
REGION = "us-east-1"
_LOADER = botocore.loaders.create_loader()  # reads what S3 is once, and not for each client


class Store(Protocol):
    """What tests and the demo need of a store, whichever it is."""

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]]

    @property
    def endpoint_url(self) -> str:
        """Where it listens."""

    def client(self, **settings: Any) -> "S3Client":
        """A client with the root rights."""

    @property
    def asking(self) -> "S3Client":
        """The client of all who only ask, with the root rights; it is the store's to close."""

    def make_bucket(self, name: str = "", **settings: Any) -> str:
        """Make a bucket and return its name."""

    def env(self) -> dict[str, str]:
        """What a child process needs in its environment to log in."""


def client_for(
    endpoint_url: str,
    access_key: str,
    secret_key: str,
    *,
    session_token: str | None = None,
    **settings: Any,
) -> "S3Client":
    """A boto3 client with path addressing, no retries and short timeouts; `settings` are Config's.

    Close it when you are done with it, or its connections warn when they are collected.
    """
    chosen: dict[str, Any] = {
        "s3": {"addressing_style": "path"},
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": 5,
        "read_timeout": 60,
        **settings,
    }
    session = _session(access_key, secret_key, session_token)
    return session.client("s3", endpoint_url=endpoint_url, config=Config(**chosen))


def _session(access_key: str, secret_key: str, session_token: str | None = None) -> boto3.Session:
    core = botocore.session.get_session()
    core.register_component("data_loader", _LOADER)
    return boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=session_token,
        region_name=REGION,
    )


class _Server:
    """What the stores have in common: a child on a free port, a root user, buckets.

    `lacks` names what this store does not have of S3, and how that shows.
    """

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    _health: ClassVar[str]
    _healthy_status: ClassVar[http.HTTPStatus] = http.HTTPStatus.OK

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "store"
        self.log = directory / "store.log"
        self._temporary = directory / "tmp"
        self.port = 0
        self.access_key = f"lab{secrets.token_hex(6)}"
        self.secret_key = secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None
        self._asking: S3Client | None = None

    def __enter__(self) -> Self:
        for folder in (self.data, self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        remove(self.data)
        remove(self._temporary)

    @property
    def endpoint_url(self) -> str:
        """Where the store listens; the same over restarts."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's own process id."""
        if self._process is None:
            raise ServerFailedError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; a port that is taken leads to another."""
        fixed = self.port != 0
        for attempt in range(1, PORT_TRIES + 1):
            self.port = self.port if fixed else free_port()
            process = self._process = spawn(
                self._argv(),
                self.log,
                environment={"TMPDIR": str(self._temporary), **self._environment()},
            )
            try:
                wait_ready(process, self._healthy, self.log, what=self.name)
            except BaseException as failure:
                end(process)
                taken = "in use" in tail(self.log) and isinstance(failure, ServerFailedError)
                if attempt == PORT_TRIES or not taken:
                    raise
            else:
                return

    def kill(self) -> None:
        """End it at once; the data stay until the `with` block ends."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None
        if self._process is not None:
            end(self._process)
            self._process = None

    def client(self, **settings: Any) -> "S3Client":
        """A client with the root rights; `settings` are botocore's Config."""
        return client_for(self.endpoint_url, self.access_key, self.secret_key, **settings)

    @property
    def asking(self) -> "S3Client":
        """The client of all who only ask: to make one takes longer than to ask.

        It asks again where the store has just closed the connection.
        """
        if self._asking is None:
            self._asking = self.client(retries={"total_max_attempts": 3, "mode": "standard"})
        return self._asking

    def make_bucket(self, name: str = "", **settings: Any) -> str:
        """Make a bucket (a fresh name unless given) and return its name."""
        name = name or f"bucket-{secrets.token_hex(6)}"
        client = self.client()
        client.create_bucket(Bucket=name, **settings)
        client.close()
        return name

    def env(self) -> dict[str, str]:
        """Credentials for a child process, with whatever else it might find switched off."""
        return environment_for(self.access_key, self.secret_key)

    def _argv(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        raise NotImplementedError

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", self._health)
            return connection.getresponse().status == self._healthy_status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def environment_for(
    access_key: str, secret_key: str, session_token: str | None = None
) -> dict[str, str]:
    """AWS variables of a child process that must not see this machine's own AWS files."""
    token = {} if session_token is None else {"AWS_SESSION_TOKEN": session_token}
    return {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        **token,
    }


class MinioServer(_Server):
    """MinIO; with `kms` it can do SSE-S3 and SSE-KMS (key id `lab-key`)."""

    name = "MinIO"
    kms_key_id = "lab-key"
    _health = "/minio/health/cluster"  # "ready" comes before it answers

    def __init__(self, binary: Path, directory: Path, *, kms: bool = True) -> None:
        super().__init__(directory)
        self.binary = binary
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._kms = {"MINIO_KMS_SECRET_KEY": f"{self.kms_key_id}:{key}"} if kms else {}

    def restricted(self, policy: Mapping[str, Any]) -> dict[str, str]:
        """Temporary credentials that may do only what the policy allows, for `client_for`.

        The policy is an IAM document, `{"Statement": [...]}`; see `allow`. The keys of the answer
        are `access_key`, `secret_key` and `session_token`.
        """
        session: Any = _session(self.access_key, self.secret_key)
        sts = session.client("sts", endpoint_url=self.endpoint_url)
        answer = sts.assume_role(
            RoleArn="arn:aws:iam::000000000000:role/lab",
            RoleSessionName="lab",
            Policy=json.dumps({"Version": "2012-10-17", **policy}),
            DurationSeconds=3600,
        )
        sts.close()
        given = answer["Credentials"]
        return {
            "access_key": given["AccessKeyId"],
            "secret_key": given["SecretAccessKey"],
            "session_token": given["SessionToken"],
        }

    def _argv(self) -> list[str]:
        listen = ["--address", f"127.0.0.1:{self.port}"]
        return [str(self.binary), "server", str(self.data), "--quiet", *listen]

    def _environment(self) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CALLHOME_ENABLE": "off",
            "MINIO_SCANNER_SPEED": "slowest",
            "HOME": str(self.directory),
            **self._kms,
        }


class MotoServer(_Server):
    """moto's server in a process of its own; it keeps everything in its memory."""

    name = "moto"
    _health = "/moto-api/data.json"

    def _argv(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _environment(self) -> dict[str, str]:
        return {"PYTHONWARNINGS": "ignore"}


class VersitygwServer(_Server):
    """versitygw over a directory: S3 to the letter where MinIO has ways of its own."""

    name = "versitygw"
    lacks: ClassVar[Mapping[str, str]] = {
        "encryption": "takes the header and stores in clear",
        "storage classes": "takes any class and keeps everything in STANDARD",
    }
    _health = "/healthy"

    def __init__(self, binary: Path, directory: Path) -> None:
        super().__init__(directory)
        self.binary = binary

    def _argv(self) -> list[str]:
        listen = ["--port", f"127.0.0.1:{self.port}", "--health", self._health, "--quiet"]
        return [str(self.binary), *listen, "posix", str(self.data)]

    def _environment(self) -> dict[str, str]:
        return {
            "ROOT_ACCESS_KEY": self.access_key,
            "ROOT_SECRET_KEY": self.secret_key,
            "HOME": str(self.directory),
        }


class S3sFsServer(_Server):
    """s3s-fs over a directory: no list of unfinished uploads, and no ETags in listings."""

    name = "s3s-fs"
    lacks: ClassVar[Mapping[str, str]] = {
        "upload listing": "answers ListMultipartUploads with 501",
        "checksums": "keeps what it refuses for a wrong checksum, and has none of uploads",
        "encryption": "takes the header and stores in clear",
        "storage classes": "takes any class and keeps everything in STANDARD",
    }
    _health = "/"
    _healthy_status = http.HTTPStatus.FORBIDDEN  # it answers, and wants a signature

    def __init__(self, binary: Path, directory: Path) -> None:
        super().__init__(directory)
        self.binary = binary

    def _argv(self) -> list[str]:
        listen = ["--host", "127.0.0.1", "--port", str(self.port)]
        keys = [f"--access-key={self.access_key}", f"--secret-key={self.secret_key}"]
        return [str(self.binary), *listen, *keys, str(self.data)]

    def _environment(self) -> dict[str, str]:
        return {"RUST_LOG": "warn"}


class NanioServer(_Server):
    """nanio in a process of its own: no conditional writes, no checksums; objects are files."""

    name = "nanio"
    lacks: ClassVar[Mapping[str, str]] = {
        "conditions": "ignores If-None-Match and overwrites",
        "checksums": "takes a wrong CRC64NVME, and confirms none",
        "part copies": "makes an empty part where one is to be copied",
        "encryption": "takes the header and stores in clear",
        "storage classes": "takes any class and keeps everything in STANDARD",
    }
    _health = "/"
    _healthy_status = http.HTTPStatus.FORBIDDEN  # it answers, and wants a signature

    def _argv(self) -> list[str]:
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--no-access-log"]
        data = ["--data-dir", str(self.data), "--log-level", "warning"]
        return [sys.executable, "-m", "nanio", "serve", *listen, *data]

    def _environment(self) -> dict[str, str]:
        return {
            "NANIO_ACCESS_KEY": self.access_key,
            "NANIO_SECRET_KEY": self.secret_key,
            "PYTHONWARNINGS": "ignore",
        }


def allow(*actions: str, resource: str = "*") -> dict[str, Any]:
    """A policy that allows only these actions, such as `s3:GetObject`, on these resources."""
    arn = f"arn:aws:s3:::{resource}"
    return {"Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": [arn]}]}
