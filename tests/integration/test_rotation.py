"""Credentials changed under a running stream as the guide says: nothing is lost."""

import re
from pathlib import Path

import pymysql
from pymysql.constants import ER

from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/credentials.md").read_text(encoding="utf-8")


def archived_whole(server: MysqlServer, bucket: Bucket) -> None:
    """All that the server has closed comes into the archive as the server has it."""
    server.query("FLUSH BINARY LOGS")
    names = [name for name, _ in server.binlogs()][:-1]
    wait_until(lambda: bucket.archived() == names, what="all closed binlogs are archived")
    found = bucket.binlogs()
    for name in names:
        assert found[name] == (server.datadir / name).read_bytes()


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
        new = mysql.password_file.with_suffix(".new")
        new.touch(0o600)
        new.write_text("the new one")
        new.replace(mysql.password_file)
        reconnected()
        mysql.query("SET sql_log_bin = 0", discard[1].replace(*account))
        mysql.query("INSERT INTO shop.a VALUES (1)")
        archived_whole(mysql, Bucket(minio, bucket))
        assert stream.terminate() == 0
        assert "denied" not in stream.stderr()
