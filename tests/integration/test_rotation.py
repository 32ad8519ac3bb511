"""Credentials changed under a running stream as the guide says: nothing is lost."""

import re
from collections.abc import Mapping
from pathlib import Path

import pymysql
from pymysql.constants import ER

from lab.fault import Action, Answer, Request
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, allow
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/credentials.md").read_text(encoding="utf-8")


class Revoked:
    """A rule: the store no longer knows this key, once it is set."""

    def __init__(self) -> None:
        self.key: str | None = None

    def __call__(self, request: Request) -> Action | None:
        if self.key is None or self.key not in request.headers.get("authorization", ""):
            return None
        text = "The Access Key Id you provided does not exist in our records."
        body = f"<Error><Code>InvalidAccessKeyId</Code><Message>{text}</Message></Error>"
        return Answer(403, body=body.encode(), headers={"Content-Type": "application/xml"})


def put(file: Path, text: str) -> None:
    """A new file, renamed over the old one."""
    new = file.with_suffix(".new")
    new.touch(0o600)
    new.write_text(text)
    new.replace(file)


def credentials(keys: Mapping[str, str]) -> str:
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    values = (keys["access_key"], keys["secret_key"], keys["session_token"])
    return "[default]\n" + "".join(f"{n} = {v}\n" for n, v in zip(names, values, strict=True))


def archived_whole(server: MysqlServer, bucket: Bucket) -> None:
    """All that the server has closed comes into the archive as the server has it."""
    server.query("FLUSH BINARY LOGS")
    names = [name for name, _ in server.binlogs()][:-1]
    wait_until(lambda: bucket.archived() == names, what="all closed binlogs are archived")
    found = bucket.binlogs()
    for name in names:
        assert found[name] == (server.datadir / name).read_bytes()


def test_keys_of_the_store(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """The second key lies in the file when the first is refused: it goes on with that one."""
    first, second = (minio.restricted(allow("s3:*")) for _ in range(2))
    file = disk_tmp_path / "credentials"
    put(file, credentials(first))
    revoked = Revoked()
    environment = {
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
        "AWS_SHARED_CREDENTIALS_FILE": str(file),
    }
    with (
        RecordingProxy(minio.endpoint_url, [revoked]) as proxy,
        StreamProcess(
            disk_tmp_path,
            mysql,
            minio,
            bucket,
            options={"endpoint-url": proxy.url},
            environment=environment,
        ) as stream,
    ):
        stream.wait_for_event("new lineage")
        mysql.query("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
        put(file, credentials(second))
        mysql.query("INSERT INTO shop.a VALUES (1)")
        revoked.key = first["access_key"]
        mysql.query("INSERT INTO shop.a VALUES (2)")
        archived_whole(mysql, Bucket(minio, bucket))
        assert stream.terminate() == 0
        refused = [one for one in proxy.records if one.status == 403]
        assert refused
        used = [one.request.headers["authorization"] for one in proxy.records]
    assert first["access_key"] in used[0]
    assert second["access_key"] in used[-1]


def test_the_password_at_the_source(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """MySQL's two passwords at a time, by the page's statements: nobody is ever refused."""
    add, discard = (
        re.search(rf"<!-- rotation: {name} -->\n\n```sql\n(.*?);\n```", PAGE, re.DOTALL)
        for name in ("add", "discard")
    )
    assert add
    assert discard
    account = ("'binlog2s3'@'%'", f"'{mysql.repl_user}'@'%'")

    def reconnected() -> None:
        """Every connection of the streamer's is ended; then it is back."""
        ours = f"FROM information_schema.processlist WHERE user = '{mysql.repl_user}'"
        old = {int(row[0]) for row in mysql.query(f"SELECT id {ours}")}
        assert old
        for number in old:
            try:
                mysql.query(f"KILL {number}")
            except pymysql.OperationalError as error:
                if error.args[0] != ER.NO_SUCH_THREAD:  # it has ended by itself
                    raise
        dumps = f"SELECT id {ours} AND command LIKE 'Binlog Dump%'"
        wait_until(
            lambda: {int(row[0]) for row in mysql.query(dumps)} - old, what="it streams again"
        )

    with StreamProcess(disk_tmp_path, mysql, minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        mysql.query("SET sql_log_bin = 0", add[1].replace(*account))
        mysql.query("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY)")
        reconnected()  # with the old one, which still is good
        put(mysql.password_file, "the new one")
        reconnected()
        mysql.query("SET sql_log_bin = 0", discard[1].replace(*account))
        mysql.query("INSERT INTO shop.a VALUES (1)")
        archived_whole(mysql, Bucket(minio, bucket))
        assert stream.terminate() == 0
        assert "denied" not in stream.stderr()
