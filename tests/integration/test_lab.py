"""The lab itself: servers start, do what they are there for, and are really gone afterwards."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from rich.console import Console

from lab.apt import _uris_of_sources
from lab.cache import MARKER, Unavailable, cache_folder, kept
from lab.child import free_port
from lab.get import ServerBinaries
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer, faketime
from lab.s3 import MinioServer, MotoServer, Store, allow, client_for
from lab.verify import closed_binlogs, compare, digest, file_pieces
from lab.view import Look, Row, shown, size_text
from tests.waiting import PATIENCE, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_mysql_of_ones_own(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """It has GTIDs, a streamer's user over TCP, and nothing in its binlog yet; then it is gone."""
    with MysqlServer(mysql_binaries, disk_tmp_path) as server:
        pid = server.pid
        assert server.query("SELECT @@gtid_mode, @@gtid_executed") == [("ON", "")]
        with server.connect("repl", host="127.0.0.1") as connection:
            assert connection.get_server_info() == server.query("SELECT VERSION()")[0][0]
        assert server.password_file.read_text() == server.password
        assert server.password_file.stat().st_mode & 0o777 == 0o600
        assert _alive(pid)
    assert not _alive(pid)
    assert not server.datadir.exists()


def test_no_gtids_and_options_of_the_caller(
    mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """GTIDs can be off, and the caller's options win over the lab's."""
    options = ["--max-connections=7", "--server-id=42"]
    with MysqlServer(mysql_binaries, disk_tmp_path, gtid=False, options=options) as server:
        found = server.query("SELECT @@gtid_mode, @@max_connections, @@server_id")
    assert found == [("OFF", 7, 42)]


def test_stop_kill_restart_keep_the_data(
    mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """Port and data stay over a clean stop (the binlog ends in a stop event) and over a crash."""
    with MysqlServer(mysql_binaries, disk_tmp_path) as server:
        port = server.port
        server.query("CREATE DATABASE one")
        server.restart()
        first = server.datadir / "mysql-bin.000001"
        assert first.read_bytes()[-19] == 3  # the type of the last event: STOP
        server.query("CREATE DATABASE two")
        server.kill()
        server.start()
        assert server.port == port
        names = server.query("SHOW DATABASES WHERE `Database` RLIKE 'one|two'")
        assert names == [("one",), ("two",)]


def test_a_server_whose_clock_is_wrong(
    mysql_binaries: ServerBinaries, faketime_library: Path, disk_tmp_path: Path
) -> None:
    """A clock that is a day behind, for the server alone."""
    environment = faketime(faketime_library, "-1d")
    with MysqlServer(mysql_binaries, disk_tmp_path, environment=environment) as server:
        ((told,),) = server.query("SELECT UTC_TIMESTAMP()")
    behind = datetime.now(UTC).replace(tzinfo=None) - told
    assert timedelta(hours=23) < behind < timedelta(hours=25)


def test_copies_of_the_template_are_different_servers(
    mysql: MysqlServer, mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """Each has a server uuid of its own."""
    with MysqlServer(mysql_binaries, disk_tmp_path) as other:
        ask = "SELECT @@server_uuid"
        assert mysql.query(ask) != other.query(ask)


@pytest.mark.own_server("it is frozen")
def test_a_frozen_server_is_silent_until_it_thaws(mysql: MysqlServer) -> None:
    """Connections stay open and nothing answers, as with a host that hangs."""
    with (
        ThreadPoolExecutor(1) as pool,
        mysql.connect() as connection,
        connection.cursor() as cursor,
    ):
        mysql.freeze()
        try:
            asked = pool.submit(cursor.execute, "SELECT 1")
            with pytest.raises(TimeoutError):
                asked.result(0.5)
        finally:
            mysql.thaw()
        assert asked.result(PATIENCE) == 1
        assert cursor.fetchall() == ((1,),)


def test_a_taken_port_leads_to_another(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """A collision costs another try, not the test."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proposed = iter([taken.getsockname()[1], free_port()])
        with MysqlServer(mysql_binaries, disk_tmp_path, ports=lambda: next(proposed)) as server:
            assert server.port != taken.getsockname()[1]
            assert server.query("SELECT 1") == [(1,)]


def test_its_certificates_verify(mysql: MysqlServer) -> None:
    """The CA it made for itself proves the server, and no other CA does."""
    with (
        mysql.connect(
            "repl", host="127.0.0.1", ssl_ca=str(mysql.ca), ssl_verify_cert=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchone()[1]  # type: ignore[index]


def test_encrypted_binlogs(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """The server's file is encrypted; the plain copy that tests compare with begins as any does."""
    with MysqlServer(mysql_binaries, disk_tmp_path, encrypted=True) as server:
        server.query("CREATE DATABASE one")
        (binlog,) = closed_binlogs(server)
        encrypted = server.datadir / binlog.name
        assert encrypted.read_bytes()[:4] == b"\xfdbin"
        assert binlog.path.read_bytes()[:4] == b"\xfebin"
        assert binlog.size == encrypted.stat().st_size - 512


@pytest.mark.own_server("it is killed")
def test_a_mariadb_of_ones_own(mariadb: MariadbServer) -> None:
    """The same interface, the other flavour."""
    assert "MariaDB" in mariadb.query("SELECT VERSION()")[0][0]
    mariadb.connect("repl", host="127.0.0.1").close()
    mariadb.query("CREATE DATABASE one")
    mariadb.restart()
    assert [name for name, _ in mariadb.binlogs()] == ["mysql-bin.000001", "mysql-bin.000002"]


def test_minio_stores_and_encrypts(minio: MinioServer, bucket: str) -> None:
    """Objects come back, SSE with its key is confirmed, and strangers are refused."""
    with closing(minio.client()) as client:
        answer = client.put_object(
            Bucket=bucket,
            Key="a",
            Body=b"1",
            ServerSideEncryption="aws:kms",
            SSEKMSKeyId=minio.kms_key_id,
        )
        assert answer["ServerSideEncryption"] == "aws:kms"
        assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"
    with (
        closing(client_for(minio.endpoint_url, minio.access_key, "wrong")) as stranger,
        pytest.raises(ClientError, match="SignatureDoesNotMatch"),
    ):
        stranger.list_objects_v2(Bucket=bucket)


def test_minio_with_restricted_rights(minio: MinioServer, bucket: str) -> None:
    """Credentials that may only list may not put."""
    rights = minio.restricted(allow("s3:ListBucket", resource=bucket))
    with closing(client_for(minio.endpoint_url, **rights)) as client:
        assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket=bucket, Key="a", Body=b"1")


def test_minio_keeps_its_data_over_a_crash(minio_binary: Path, disk_tmp_path: Path) -> None:
    """The endpoint and what was acknowledged stay."""
    with MinioServer(minio_binary, disk_tmp_path, kms=False) as store:
        bucket = store.make_bucket()
        endpoint = store.endpoint_url
        with closing(store.client()) as client:
            client.put_object(Bucket=bucket, Key="a", Body=b"1")
            store.kill()
            store.start()
            assert store.endpoint_url == endpoint
            assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"


def test_moto_in_a_process_of_its_own(moto: MotoServer) -> None:
    """The fallback speaks the same interface."""
    bucket = moto.make_bucket()
    with closing(moto.client()) as client:
        client.put_object(Bucket=bucket, Key="a", Body=b"1")
        assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"


@pytest.mark.stores("minio", "versitygw", "nanio", "s3s-fs")
def test_a_store_lacks_what_it_says_and_nothing_else(store: Store, bucket: str) -> None:
    """Tests that need a feature are skipped on a store without it: so that must be true."""
    lacking = set()
    with closing(store.client()) as client:
        client.put_object(Bucket=bucket, Key="a", Body=b"1", StorageClass="REDUCED_REDUNDANCY")
        if client.head_object(Bucket=bucket, Key="a").get("StorageClass") != "REDUCED_REDUNDANCY":
            lacking.add("storage classes")
        with suppress(ClientError):
            client.put_object(Bucket=bucket, Key="a", Body=b"2", IfNoneMatch="*")
            lacking.add("conditions")
        answer = client.put_object(Bucket=bucket, Key="b", Body=b"1", ServerSideEncryption="AES256")
        if answer.get("ServerSideEncryption") != "AES256":
            lacking.add("encryption")
        with suppress(ClientError):
            client.put_object(
                Bucket=bucket, Key="rotten", Body=b"1", ChecksumCRC64NVME="AAAAAAAAAAA="
            )
        with suppress(ClientError):
            client.head_object(Bucket=bucket, Key="rotten")
            lacking.add("checksums")
        upload_id = client.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
        copied = client.upload_part_copy(
            Bucket=bucket, Key="c", UploadId=upload_id, PartNumber=1, CopySource=f"{bucket}/b"
        )
        if "ETag" not in copied["CopyPartResult"]:
            lacking.add("part copies")
        try:
            (found,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
        except ClientError:
            lacking.add("upload listing")
        else:
            assert found["UploadId"] == upload_id
    assert lacking == set(store.lacks)


def test_the_same_seed_writes_the_same_rows(mysql: MysqlServer) -> None:
    """A load of a fixed length depends on its seed alone, rotations or not."""
    shape = Shape(large_chance=0.05, large_bytes=(50_000, 100_000))
    checksums = []
    for seed, flush in ((1, None), (1, 0.05), (2, None)):
        mysql.query("DROP DATABASE IF EXISTS lab_load")
        with Load(
            mysql, seed=seed, seconds=3600, transactions_each=40, flush_seconds=flush, shape=shape
        ) as load:
            wait_until(
                lambda load=load, flush=flush: flush is None or load.flushes, what="rotations"
            )
            load.join()
        assert load.transactions == 160
        assert load.row_bytes > 10_000
        assert (load.flushes > 0) == (flush is not None)
        checksums.append(mysql.query("CHECKSUM TABLE lab_load.record"))
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.own_server("it is killed")
def test_a_load_that_fails_says_so(mysql: MysqlServer) -> None:
    """A writer that dies is never taken for a quiet one."""
    with Load(mysql, seconds=3600) as load:
        wait_until(lambda: load.transactions > 10, what="some transactions")
        mysql.kill()
        with pytest.raises(RuntimeError, match="write load failed"):
            load.join()


@pytest.mark.own_server("it is killed")
def test_a_load_can_outlive_crashes(mysql: MysqlServer) -> None:
    """With `reconnects` it goes on, and what was acknowledged is there."""
    with Load(mysql, seconds=3600, reconnects=True) as load:
        wait_until(lambda: load.transactions > 10, what="some transactions")
        mysql.kill()
        before = load.transactions
        mysql.start()
        wait_until(lambda: load.transactions > before + 10, what="more transactions")
    rows = mysql.query("SELECT writer, MAX(sequence) FROM lab_load.record GROUP BY writer")
    assert all(last >= load.acknowledged[writer] for writer, last in rows)


@pytest.fixture
def uploaded(mysql: MysqlServer, minio: MinioServer, bucket: str) -> list[str]:
    """Three closed binlogs put into the bucket by hand, by name."""
    for number in range(3):
        mysql.query(f"CREATE DATABASE d{number}", "FLUSH BINARY LOGS")
    names = []
    with closing(minio.client()) as client:
        for binlog in closed_binlogs(mysql):
            key = f"p/archive/s/lineage/binlogs/{binlog.name}"
            client.put_object(Bucket=bucket, Key=key, Body=binlog.path.read_bytes())
            names.append(binlog.name)
    return names


def test_compare_finds_what_is_missing_or_different(
    mysql: MysqlServer, minio: MinioServer, bucket: str, uploaded: list[str]
) -> None:
    """Equal is equal byte for byte; anything else is named."""
    with closing(minio.client()) as client:
        result = compare(mysql, client, bucket, "p", "s")
        assert result.equal == tuple(uploaded)
        assert result.missing == (f"mysql-bin.{len(uploaded) + 1:06}",)
        spoilt = f"p/archive/s/lineage/binlogs/{uploaded[1]}"
        body = bytearray(client.get_object(Bucket=bucket, Key=spoilt)["Body"].read())
        body[-1] ^= 1
        client.put_object(Bucket=bucket, Key=spoilt, Body=bytes(body))
        result = compare(mysql, client, bucket, "p", "s")
    assert result.different == (uploaded[1],)
    assert not result.ok


def test_the_in_use_flag_can_be_left_out() -> None:
    """Masked digests of files that differ in that bit alone are equal, however they are cut."""
    clean = bytes(40)
    in_use = bytes(21) + b"\x01" + bytes(18)
    assert digest([clean]) != digest([in_use])
    assert digest([clean], masked=True) == digest([in_use[:21], in_use[21:]], masked=True)


@pytest.mark.usefixtures("mysql_binaries", "minio_binary")
def test_kill_9_of_the_parent_leaves_no_server(disk_tmp_path: Path) -> None:
    """No `finally` runs then; the kernel ends the servers."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(disk_tmp_path)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    assert all(map(_alive, pids))
    parent.kill()
    parent.wait(PATIENCE)
    parent.stdout.close()
    wait_until(lambda: not any(map(_alive, pids)), what="all servers are gone")


@pytest.mark.usefixtures("mysql_binaries", "minio_binary")
def test_ctrl_c_leaves_no_server_and_no_data(disk_tmp_path: Path) -> None:
    """An interrupted run ends its servers itself and deletes what they kept."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(disk_tmp_path)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGINT)
    parent.wait(PATIENCE)
    parent.stdout.close()
    assert not any(map(_alive, pids))
    assert not (disk_tmp_path / "mysql" / "data").exists()
    assert not (disk_tmp_path / "minio" / "store").exists()


_PARENT = """
import signal, sys, threading
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
from lab import get
from lab.mysql import MysqlServer
from lab.s3 import MinioServer, MotoServer
folder = Path(sys.argv[1])
with (
    MysqlServer(get.mysql(), folder / "mysql") as mysql,
    MinioServer(get.minio(), folder / "minio") as minio,
    MotoServer(folder / "moto") as moto,
):
    print(mysql.pid, minio.pid, moto.pid, flush=True)
    threading.Event().wait(600)
"""


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    """Without go, apt and cargo, the message says what is missing and what would help."""
    environment = {**os.environ, "PATH": str(tmp_path), "BINLOG2S3_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "lab.get", "minio", "mysql", "s3s-fs"],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    first, second, third = done.stderr.splitlines()
    assert first.startswith("lab: minio cannot be had: there is no go on PATH; what would help: ")
    assert second.startswith("lab: mysql cannot be had: ")
    assert third.startswith("lab: s3s-fs cannot be had: there is no cargo on PATH; what would help")
    assert not list((tmp_path / "cache").glob("[a-z]*"))


CARGO = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --version) [ $# -eq 1 ] && echo "cargo 1.95.0" && exit 0; wanted=$2 ;;
        --root) root=$2 ;;
    esac
    shift
done
if [ "$wanted" != 0.14.1 ]; then
    echo 'error: cannot install package `s3s-fs 0.17.0`, it requires rustc 1.96.0 or newer'
    echo '`s3s-fs 0.14.1` supports rustc 1.92.0'
    exit 101
fi
/bin/mkdir "$root/bin"
echo "#!/bin/sh" > "$root/bin/s3s-fs"
/bin/chmod +x "$root/bin/s3s-fs"
"""


def test_the_newest_s3s_fs_that_this_rust_can_build(tmp_path: Path) -> None:
    """Where the newest one wants a newer Rust, it is the one that cargo names."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cargo").write_text(CARGO)
    (tools / "cargo").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "lab.get", "s3s-fs"],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": str(tools), "BINLOG2S3_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"s3s-fs\t{tmp_path}/cache/s3s-fs/s3s-fs\n")
    assert sorted(p.name for p in (tmp_path / "cache/s3s-fs").iterdir()) == [MARKER, "s3s-fs"]


def test_what_was_had_once_needs_nothing_more(mysql_binaries: ServerBinaries) -> None:
    """The second time neither apt nor go nor network is asked."""
    if mysql_binaries.plugins is None:
        pytest.skip("MySQL is on PATH here")
    done = subprocess.run(
        [sys.executable, "-m", "lab.get", "mysql"],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == f"mysql\t{mysql_binaries.server}\n"
    assert done.stderr == ""


def test_the_cache_never_holds_half_of_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails while it is made leaves nothing; what succeeds is made once."""
    monkeypatch.setenv("BINLOG2S3_CACHE", str(tmp_path))
    made: list[str] = []

    def fail(into: Path) -> str:
        (into / "half").touch()
        raise Unavailable("it", "no network", "a network")

    def make(into: Path) -> str:
        (into / "whole").touch()
        made.append("made")
        return "1.0"

    with pytest.raises(Unavailable, match="no network"):
        kept("it", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".it.lock"]
    for _ in range(2):
        assert sorted(path.name for path in kept("it", make).iterdir()) == [MARKER, "whole"]
    assert made == ["made"]


def test_digest_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    """Pieces or whole, the same."""
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    assert digest(file_pieces(tmp_path / "f")) == digest([b"x" * 3_000_000])


def test_concurrent_makers_make_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes second waits for the first and takes what it made."""
    monkeypatch.setenv("BINLOG2S3_CACHE", str(tmp_path))
    first_is_in = threading.Event()
    made: list[str] = []

    def make(_into: Path) -> str:
        first_is_in.set()
        threading.Event().wait(0.2)
        made.append("made")
        return "1.0"

    makers = [threading.Thread(target=kept, args=("it", make)) for _ in range(4)]
    for maker in makers:
        maker.start()
    assert first_is_in.wait(PATIENCE)
    for maker in makers:
        maker.join(PATIENCE)
    assert made == ["made"]


def test_the_mirror_is_found_without_apts_lists(tmp_path: Path) -> None:
    """On a fresh machine apt names no targets: then its sources are read, in both styles."""
    (tmp_path / "sources.list").write_text(
        "# deb http://commented/debian x main\n"
        "deb [signed-by=/a/b.gpg arch=amd64] http://one/debian/ bookworm main\n"
    )
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "d.sources").write_text(
        "Types: deb\nURIs: http://two/debian http://three/debian-security\nSuites: x\n"
    )
    assert _uris_of_sources(tmp_path) == [
        "http://one/debian/",
        "http://two/debian",
        "http://three/debian-security",
    ]


@pytest.mark.parametrize("fallback", [False, True], ids=["minio", "moto"])
def test_the_demo_ends_in_one_clear_line(
    mysql_binaries: ServerBinaries, minio_binary: Path, tmp_path: Path, fallback: bool
) -> None:
    """`make demo` compares every object, recovers from a DROP, says so, exits 0, also on moto."""
    environment = dict(os.environ)
    if fallback:
        if mysql_binaries.plugins is None:
            pytest.skip("MySQL is on PATH here")
        cache = tmp_path / "cache"
        cache.mkdir()
        for name in ("mysql", "templates"):
            (cache / name).symlink_to(cache_folder() / name)
        tools = tmp_path / "bin"
        tools.mkdir()
        for tool in ("sh", "cp", "dirname", "readlink", "setpriv"):
            (tools / tool).symlink_to(shutil.which(tool) or "/bin/false")
        environment |= {"PATH": str(tools), "BINLOG2S3_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "lab.demo", "--seconds", "5"],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last[:3]) == (0, "OK:"), done.stdout + done.stderr
    assert "every object equals the server's file (SHA-256)" in last
    assert last.endswith("holds what the source held then (CHECKSUM TABLE)")
    assert "DROP TABLE `demo`.`orders`" in done.stdout
    assert ("falling back to moto" in done.stderr) == fallback
    assert minio_binary.is_file()


def test_sizes_for_people() -> None:
    """Decimal units, two digits at least."""
    texts = [size_text(size) for size in (0, 999, 1_500, 9_999_999, 212_400_000, 3_000_000_000)]
    assert texts == ["0 B", "999 B", "1.5 kB", "10.0 MB", "212 MB", "3.0 GB"]


def test_the_view_names_what_is_under_way() -> None:
    """A line tells totals and the binlogs with parts sent; long tables keep their end."""
    rows = [Row(name=f"b.{number:06}", size=1_000_000, state="archived") for number in range(20)]
    rows.append(Row(name="b.000020", size=7_000_000, state="writing", parts=1))
    look = Look(
        phase="writing",
        seconds=12.3,
        rows=tuple(rows),
        transactions=1234,
        rate=56.7,
        spool_bytes=2_000_000,
    )
    written = io.StringIO()
    with shown(Console(file=written, width=200)) as show:
        show(look)
        show(look)
    assert written.getvalue() == (
        " 12 s  writing: 1,234 commits (57/s); archived 20 of 21 binlogs, 20 MB; spool 2.0 MB;"
        " b.000020 writing, 1 part sent\n"
    )
    written = io.StringIO()
    with shown(Console(file=written, width=100, force_terminal=True, color_system=None)) as show:
        show(look)
    assert "(7 earlier ones)" in written.getvalue()
    assert "b.000006" not in written.getvalue()
    assert "writing, 1 part sent" in written.getvalue()
