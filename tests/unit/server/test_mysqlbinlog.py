"""The streaming child, with programs of our own in mysqlbinlog's place."""

import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.rows import LINE_MOST
from binlog2s3.errors import ArchiveError, SourceError, SpoolError
from binlog2s3.server.login import Login, parse_options
from binlog2s3.server.mysqlbinlog import Child, Tool, explain, find, printed, server_id_of
from tests.streamer import config
from tests.waiting import wait_until

FIRST = BinlogName.parse("mysql-bin.000001")
READING = "Got error reading packet from server: "
CONNECT = "Failed on connect: "
MYSQL_HELP = "  --stop-never\n  --connection-server-id=#\n"
MARIADB_HELP = "MariaDB Corporation Ab\n  --stop-never\n  --stop-never-slave-server-id=#\n"

Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program that runs this shell script; `answers` makes one that can be asked."""

    def make(name: str, script: str = "", *, version: str = "", help_: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = ""
        if version or help_:
            asked = (
                f"case \"$2\" in --version) echo '{version}'; exit;; --help) cat <<'EOT'\n"
                f"{help_}EOT\nexit;; esac\n"
            )
        text = f"#!/bin/sh\n{asked}{script}\n"
        if not path.exists() or path.read_text() != text:  # a child before may hold it, forked
            path.write_text(text)
            path.chmod(0o755)
        return path

    return make


def mysqls(program: Program, name: str = "bin/mysqlbinlog") -> Path:
    """A program that says it is MySQL's."""
    version = "mysqlbinlog  Ver 9.7.4-2 for debian-linux-gnu on x86_64 ((Debian))"
    return program(name, version=version, help_=MYSQL_HELP)


def mariadbs(program: Program, name: str = "bin/mariadb-binlog") -> Path:
    """A program that says it is MariaDB's."""
    version = "mysqlbinlog Ver 3.5 for debian-linux-gnu at x86_64"
    return program(name, version=version, help_=MARIADB_HELP)


# Finding it


def test_found_on_path(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flavour's own program, with its version and the option for the server id it knows."""
    mysql, mariadb = mysqls(program), mariadbs(program)
    monkeypatch.setenv("PATH", f"{mysql.parent}:/bin:/usr/bin")
    assert find("mysql") == Tool(
        path=str(mysql), flavour="mysql", version="9.7.4-2", connection_server_id=True
    )
    assert find("mariadb") == Tool(
        path=str(mariadb), flavour="mariadb", version="3.5", connection_server_id=False
    )


def test_mariadb_under_the_old_name(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MariaDB's is called mysqlbinlog it is found, and refused for a MySQL server."""
    path = mariadbs(program, "bin/mysqlbinlog")
    monkeypatch.setenv("PATH", f"{path.parent}:/bin:/usr/bin")
    assert find("mariadb").path == str(path)
    with pytest.raises(SourceError, match=r"is of MariaDB, but the server is MySQL") as caught:
        find("mysql")
    assert "mysql-client" in caught.value.hint


def test_mariadb_11(program: Program) -> None:
    """Its version is worded otherwise, and it verifies all or nothing."""
    version = "mariadb-binlog from 11.8.6-MariaDB, client 3.5 for debian-linux-gnu (x86_64)"
    tool = find("mariadb", program("t", version=version, help_=f"{MARIADB_HELP}  --ssl-fp=name\n"))
    assert (tool.version, tool.all_or_nothing) == ("11.8.6-MariaDB", True)


def test_given(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is given is taken, a relative one too, and nothing else is looked for."""
    path = mysqls(program, "here/tool")
    monkeypatch.chdir(path.parent)
    assert find("mysql", path).path == str(path)
    assert find("mysql", Path("./tool")).path == str(path)
    with pytest.raises(
        SourceError, match=re.escape(f"{path} is of MySQL, but the server is MariaDB")
    ):
        find("mariadb", path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p("t", version="true (GNU coreutils) 9.1", help_="no\n"), "no --stop-never"),
        (lambda p: p("t", version="mysqlbinlog Ver 3.3", help_="--raw\n"), "no --stop-never"),
        (lambda p: p("t", version="mysqlbinlog Ver 3.4", help_=MYSQL_HELP), "5.7 or earlier"),
        (lambda p: p("t", "exit 127"), "no --stop-never"),
        (lambda p: p("t").with_name("nothing"), "is not an executable program"),
    ],
    ids=["another program", "too old for --stop-never", "5.7", "fails", "not there"],
)
def test_what_is_no_usable_mysqlbinlog(
    program: Program, make: Callable[[Program], Path], says: str
) -> None:
    """It is named, with why, and with what would do."""
    path = make(program)
    with pytest.raises(SourceError, match=says) as caught:
        find("mysql", path)
    assert str(path) in str(caught.value)
    assert "--mysqlbinlog" in caught.value.hint


def test_a_file_that_cannot_be_run(tmp_path: Path) -> None:
    """A program of another machine, or a file that is none, is an error with its own word."""
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(SourceError, match=f"cannot run {path}: .*[Ee]xec format error"):
        find("mysql", path)


def test_nothing_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names that were looked for, and the packages that bring them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="no mariadb-binlog or mysqlbinlog on PATH") as caught:
        find("mariadb")
    assert "mariadb-client" in caught.value.hint


def test_server_id_is_always_the_same() -> None:
    """Derived from source and host, in the upper half of the range; never the same for two."""
    made = config(Path("spool"), 1)
    orders = replace(made, stream=replace(made.stream, source="orders"))
    assert server_id_of(orders, "db1") == server_id_of(orders, "db1") == 3619013902
    streams = [replace(made, stream=replace(made.stream, source=source)) for source in "abc"]
    ids = {server_id_of(stream, host) for stream in streams for host in "xyz"}
    assert len(ids) == 9
    assert all(0x8000_0000 <= number <= 0xFFFF_FFFF for number in ids)
    assert server_id_of(orders) == server_id_of(orders, os.uname().nodename)
    chosen = replace(orders, mysql=replace(orders.mysql, server_id=7))
    assert server_id_of(chosen) == 7


# Running it


MYSQL = Tool(path="", flavour="mysql", version="9.7", connection_server_id=True)
MARIADB = Tool(path="", flavour="mariadb", version="3.5", connection_server_id=False)
MARIADB_11 = replace(MARIADB, version="11.8", all_or_nothing=True)
LOGIN = Login(
    host="db1",
    port=3307,
    socket=None,
    user="repl",
    password="a#\"b'\\ €",
    ssl_mode="VERIFY_IDENTITY",
    ssl_ca="/ca.pem",
    ssl_cert="/cert.pem",
    ssl_key="/key.pem",
    connect_timeout=10,
)


@pytest.fixture
def start(program: Program, tmp_path: Path) -> Any:
    """Starts a child that runs this script, in a directory of its own; ended at the end."""
    children: list[Child] = []

    def begin(script: str, tool: Tool = MYSQL, **changes: Any) -> Child:
        path = program("child", script)
        directory = tmp_path / "run"
        directory.mkdir(exist_ok=True)
        fields = {name: getattr(LOGIN, name) for name in LOGIN.__slots__} | changes.pop("login", {})
        lines: list[str] = []
        given = {"server_id": 99, "directory": directory, "binlog": FIRST, "on_line": lines.append}
        own = {name: getattr(tool, name) for name in tool.__slots__} | {"path": str(path)}
        child = Child(Tool(**own), Login(**fields), **(given | changes))
        children.append(child)
        return child

    yield begin
    for child in children:
        child.stop(0.1)


TELL = (
    'cat "${1#*=}" >options; printf "%s\\n" "$@" >arguments; env >environment; '
    'sed -n "s/^server-public-key-path=//p" options | xargs -r cat >key'
)


@pytest.fixture
def told(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a child is told: its options, its further arguments, its environment."""

    def ask(tool: Tool = MYSQL, **changes: Any) -> tuple[str, list[str], dict[str, str]]:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Hidden-Key")
        monkeypatch.setenv("BINLOG2S3_SOURCE", "x")
        monkeypatch.chdir(tmp_path)
        child = start(TELL, tool, **changes)
        assert wait_until(lambda: child.poll() is not None, what="the child's end")
        assert child.poll() == 0, child.lines
        arguments = (tmp_path / "arguments").read_text().splitlines()
        environment = (tmp_path / "environment").read_text().splitlines()
        pairs = dict(line.split("=", 1) for line in environment)
        return (tmp_path / "options").read_text(), arguments[1:], pairs

    return ask


def test_what_the_child_is_told(told: Any, tmp_path: Path) -> None:
    """Endless raw reading into its directory, under its server id; the password in the file."""
    options, arguments, environment = told()
    assert arguments == [
        "--read-from-remote-server",
        "--raw",
        f"--result-file={tmp_path}/run/",
        "--stop-never",
        "--connection-server-id=99",
        "mysql-bin.000001",
    ]
    assert parse_options(options, "f") == {
        "user": "repl",
        "password": LOGIN.password,
        "host": "db1",
        "port": "3307",
        "protocol": "TCP",
        "ssl-mode": "VERIFY_IDENTITY",
        "ssl-ca": "/ca.pem",
        "ssl-cert": "/cert.pem",
        "ssl-key": "/key.pem",
    }
    assert not [name for name in environment if name.startswith(("AWS", "BINLOG2S3", "MYSQL"))]
    assert (environment["TZ"], environment["LC_ALL"]) == ("UTC", "C")
    _, arguments, _ = told(MARIADB, position=1234)
    assert {"--start-position=1234", "--stop-never-slave-server-id=99"} <= {*arguments}


@pytest.mark.parametrize("position", [0, 3, 1 << 32])
def test_positions_it_cannot_start_at(start: Any, position: int) -> None:
    """mysqlbinlog takes those below 4 for 4 and refuses those past 4 GiB: neither is tried."""
    with pytest.raises(ValueError, match=str(position)):
        start("exit 0", position=position)


@pytest.mark.parametrize(
    ("tool", "mode", "has", "lacks"),
    [
        (MYSQL, "DISABLED", ['ssl-mode="DISABLED"', "get-server-public-key"], ["ssl-ca", "cert"]),
        (MYSQL, "PREFERRED", ['ssl-mode="PREFERRED"', "get-server-public-key"], ["ssl-ca"]),
        (MYSQL, "REQUIRED", ['ssl-mode="REQUIRED"'], ["get-server-public-key", "ssl-ca"]),
        (MYSQL, "VERIFY_CA", ['ssl-mode="VERIFY_CA"', 'ssl-ca="/ca.pem"'], ["public-key"]),
        (MARIADB, "DISABLED", ["skip-ssl"], ["ssl-mode", "ssl-ca", "cert", "ssl-verify"]),
        (MARIADB, "PREFERRED", ["ssl", "skip-ssl-verify-server-cert"], ["ssl-mode", "ssl-ca"]),
        (MARIADB, "REQUIRED", ["ssl", "skip-ssl-verify-server-cert"], ["ssl-mode", "ssl-ca"]),
        (MARIADB, "VERIFY_CA", ["ssl", 'ssl-ca="/ca.pem"', "skip-ssl-verify-server-cert"], []),
        (MARIADB_11, "REQUIRED", ["ssl", "skip-ssl-verify-server-cert"], ["ssl-mode", "ssl-ca"]),
        (MARIADB_11, "VERIFY_CA", ["ssl", 'ssl-ca="/ca.pem"', "ssl-verify-server-cert"], []),
        (MARIADB, "VERIFY_IDENTITY", ["ssl", 'ssl-ca="/ca.pem"', "ssl-verify-server-cert"], []),
    ],
)
def test_tls_options(told: Any, tool: Tool, mode: str, has: list[str], lacks: list[str]) -> None:
    """Each flavour in its own words; a CA is named only where it is to be believed."""
    options, _, _ = told(tool, login={"ssl_mode": mode, "accepted": True})
    lines = options.splitlines()
    assert set(has) <= set(lines)
    for word in lacks:
        assert word not in options


@pytest.mark.parametrize("mode", ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA"])
def test_mariadbs_client_has_no_plugin_that_sends_the_password(
    told: Any, tmp_path: Path, mode: str
) -> None:
    """Unless it verifies who asks, or asks by a socket; others that are there it can load."""
    accepted = {"ssl_mode": mode, "accepted": True}
    options, _, _ = told(MARIADB, login=accepted)
    assert 'plugin-dir="/dev/null"' in options.splitlines()
    plugin = tmp_path / "client_ed25519.so"
    plugin.touch()
    options, _, _ = told(replace(MARIADB, plugins=(plugin,)), login=accepted)
    place = Path(parse_options(options, "f")["plugin-dir"])
    assert [path.resolve() for path in place.iterdir()] == [plugin]


@pytest.mark.parametrize(
    ("login", "allowed"),
    [
        ({"ssl_mode": "VERIFY_IDENTITY"}, True),
        ({"ssl_mode": "VERIFY_CA"}, True),
        ({"ssl_mode": "PREFERRED", "socket": "/s"}, True),
        ({"ssl_mode": "REQUIRED"}, False),
        ({"ssl_mode": "PREFERRED"}, False),
    ],
)
def test_mysqls_client_sends_a_token_to_a_proved_server_only(
    told: Any, login: dict[str, Any], *, allowed: bool
) -> None:
    """A token of IAM goes in clear text; its client asks the environment whether it may."""
    _, _, environment = told(login=login)
    assert (environment.get("LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN") == "1") is allowed


def test_a_server_that_is_proved_may_ask_for_anything(told: Any) -> None:
    """PAM's accounts are for those: by a socket, or with the certificate and its name verified."""
    for login in ({"ssl_mode": "VERIFY_IDENTITY"}, {"ssl_mode": "PREFERRED", "socket": "/s"}):
        assert "plugin-dir" not in told(MARIADB, login=login)[0]


def test_the_known_key(told: Any, tmp_path: Path) -> None:
    """MySQL's client gets it, as it was read and checked, and does not ask the server for one."""
    known = {"ssl_mode": "DISABLED", "public_key": "the key\n"}
    options, _, _ = told(login=known)
    assert "get-server-public-key" not in options
    assert re.fullmatch(r"/dev/fd/\d+", parse_options(options, "f")["server-public-key-path"])
    assert (tmp_path / "key").read_text() == "the key\n"


def test_with_a_known_key_no_plugin_sends_the_password(told: Any, tmp_path: Path) -> None:
    """MySQL's client has one for accounts of an old plugin; else it loads what it is used to."""
    known = {"ssl_mode": "DISABLED", "public_key": "the key\n"}
    options, _, _ = told(login=known)
    assert parse_options(options, "f")["plugin-dir"] == "/dev/null"
    plugin = tmp_path / "mysql_native_password.so"
    plugin.touch()
    options, _, _ = told(replace(MYSQL, plugins=(plugin,)), login=known)
    place = Path(parse_options(options, "f")["plugin-dir"])
    assert [path.resolve() for path in place.iterdir()] == [plugin]
    assert "plugin-dir" not in told(login={"ssl_mode": "DISABLED", "host": "::1"})[0]


@pytest.mark.parametrize(
    ("login", "says", "hint"),
    [
        ({"ssl_mode": "DISABLED", "public_key": "k"}, "cannot use an RSA key", "--mysql-ssl-ca"),
        ({"ssl_mode": "VERIFY_CA"}, "does not insist on TLS", "VERIFY_IDENTITY"),
    ],
)
def test_what_mariadbs_client_does_not_guard(
    start: Any, login: dict[str, Any], says: str, hint: str
) -> None:
    """Its servers have no key; before 11.4 it insists on TLS only to check a name, too."""
    with pytest.raises(SourceError, match=says) as caught:
        start("exit 0", MARIADB, login=login)
    assert hint in caught.value.hint
    assert caught.value.refused
    start("exit 0", MARIADB, login=login | {"accepted": True})
    start("exit 0", MARIADB, login=login | {"host": "127.0.0.1"})
    start("exit 0", MYSQL, login=login)
    if "public_key" not in login:
        start("exit 0", MARIADB_11, login=login)


@pytest.mark.parametrize(
    ("tls", "socket", "mode"),
    [(True, "/s", "REQUIRED"), (False, "/s", "PREFERRED"), (True, None, "PREFERRED")],
)
def test_tls_through_a_socket(told: Any, *, tls: bool, socket: str | None, mode: str) -> None:
    """MySQL's client prefers none there: it must have it, if the server has that."""
    options, _, _ = told(login={"ssl_mode": "PREFERRED", "socket": socket, "host": "::1"}, tls=tls)
    assert parse_options(options, "f")["ssl-mode"] == mode


def test_socket_options(told: Any) -> None:
    """A socket stands instead of host and port."""
    options, _, _ = told(login={"socket": "/run/my.sock"})
    assert 'socket="/run/my.sock"' in options
    assert "host" not in options
    assert "port" not in options


def ended(child: Child) -> bool:
    """Whether it has ended, and all that it said has been read."""
    return child.poll() is not None and not child._errors._drain.is_alive()


def test_stderr_is_always_drained(start: Any) -> None:
    """A child that says very much is not held up by it; the last lines are kept."""
    child = start("i=0; while [ $i -lt 20000 ]; do echo line-$i >&2; i=$((i+1)); done; exit 1")
    wait_until(lambda: ended(child), what="the child's end")
    assert "line-19999" in str(child.failure())
    assert len(child.lines) == 50


def test_stop_ends_a_child_that_will_not(start: Any, tmp_path: Path) -> None:
    """SIGTERM first; SIGKILL where that is not heard."""
    child = start(f"trap '' TERM; touch {tmp_path}/deaf; while :; do read x <&2 || sleep 1; done")
    wait_until((tmp_path / "deaf").exists, what="the child no longer hears SIGTERM")
    assert child.stop(0.2) == -signal.SIGKILL


def test_stop_asks_first(start: Any, tmp_path: Path) -> None:
    """A child that hears SIGTERM ends by it, and stopping it again changes nothing."""
    child = start(f"touch {tmp_path}/ready; exec sleep 100")
    wait_until((tmp_path / "ready").exists, what="the child runs")
    assert child.stop(60) == child.stop() == -signal.SIGTERM


def test_a_program_that_is_gone(program: Program, tmp_path: Path) -> None:
    """It was there when it was found and is not now: said as such, without a traceback."""
    path = program("child", "exit 0")
    path.chmod(0o600)
    tool = Tool(path=str(path), flavour="mysql", version="9", connection_server_id=True)
    child = Child(
        tool,
        LOGIN,
        server_id=1,
        directory=tmp_path,
        binlog=FIRST,
        on_line=lambda _line: None,
    )
    wait_until(lambda: ended(child), what="the child's end")
    assert str(child.failure()) == f"mysqlbinlog ended: cannot run {path}: Permission denied"


# What its last words mean


# Each line as a real mysqlbinlog said it, and a word of what its hint must say.
SAID = {
    f"{READING}Could not find first log file name in binary log index file": "SHOW BINARY LOGS",
    f"{CONNECT}Access denied for user 'repl'@'localhost' (using password: YES)": "password file",
    f"{READING}Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s) "
    "for this operation": "GRANT REPLICATION SLAVE",
    f"{CONNECT}Authentication plugin 'caching_sha2_password' reported error: Authentication "
    "requires secure connection.": "--mysql-ssl-mode",
    f"{CONNECT}Authentication plugin 'mysql_native_password' cannot be loaded: /usr/lib/mysql/"
    "plugin/mysql_native_password.so: cannot open shared object file": "sha256_password",
    f"{READING}A replica with the same server_uuid/server_id as this replica has connected to "
    "the source; the first event '' at 4": "--mysql-server-id",
    f"{READING}A slave with the same server_uuid/server_id is already connected; the first "
    "event 'mysql-bin.000001' at 4": "--mysql-server-id",
    "Could not find server version: Server reported unrecognized MySQL version '10.11'.": "flavour",
    "Could not find server version: Master reported unrecognized MariaDB version '9'.": "flavour",
    f"{CONNECT}SSL connection error: error:0A000086:SSL routines::certificate verify "
    "failed": "--mysql-ssl-ca",
    "unknown variable 'ssl-mode=DISABLED', an ERROR": "newer",
    f"{READING}Binary log is not open": "log_bin",
    f"{READING}Client requested source to start replication from position > file size": "not the",
    f"{READING}Client requested master to start replication from impossible position": "not the",
    f"{READING}bogus data in log event; the first event 'mysql-bin.000008' at 251601": "not the",
}
SAID_FOR_NOW = {
    f"{CONNECT}Too many connections": "limit",
    f"{READING}Cannot replicate anonymous transaction when @@GLOBAL.GTID_MODE = ON, at file "
    "./mysql-bin.000003, position 198.": "ON_PERMISSIVE",
    f"{CONNECT}Can't connect to MySQL server on '127.0.0.1:13449' (111)": "down",
    f"{CONNECT}Can't connect to local MySQL server through socket '/s.sock' (111)": "127.0.0.1",
    f"{CONNECT}Unknown MySQL server host 'no.such.host.invalid' (-2)": "down",
    f"{READING}Lost connection to MySQL server during query": "KILL",
    "Could not write into log file '/spool/mysql-bin.000007'": "full",
    f"{READING}something quite new": "it is restarted where it stopped",
}


@pytest.mark.parametrize(
    ("said", "hint", "transient"),
    [
        *((said, hint, False) for said, hint in SAID.items()),
        *((said, hint, True) for said, hint in SAID_FOR_NOW.items()),
    ],
)
def test_what_it_says(said: str, hint: str, transient: bool) -> None:
    """The line is passed on, the hint says what to do, and whether waiting can help is known."""
    lines = ["WARNING: deprecated, an error one day", f"ERROR: {said}", "ERROR: what follows"]
    error = explain(1, lines)
    assert str(error) == f"mysqlbinlog ended: {said}"
    assert hint in error.hint
    assert error.transient is transient
    assert isinstance(error, SpoolError) is said.startswith("Could not write into log file")


@pytest.mark.parametrize(
    ("status", "says", "hint"),
    [
        (0, "mysqlbinlog exited with status 0 and no error message", "the server shuts down"),
        (1, "mysqlbinlog exited with status 1 and no error message", "the server shuts down"),
        (-9, "mysqlbinlog was killed by signal 9", "out of memory"),
    ],
)
def test_without_a_word(status: int, says: str, hint: str) -> None:
    """Silence is told by how it ended."""
    error = explain(status, [])
    assert str(error) == says
    assert hint in error.hint
    assert error.transient


# Printing


def test_what_it_prints_comes_line_by_line(program: Program) -> None:
    """A long line has its beginning, its end and its size; the options are those of -vv."""
    script = 'echo "$@" | tail -c +15; cat; head -c 300000 /dev/zero | tr "\\0" x; echo " end"'
    tool = replace(MYSQL, path=str(program("printer", script)))
    lines = [*printed(tool, lambda write: write(b"a\nb"))]
    options, first, long = lines
    assert options.data == b"-v -v --base64-output=decode-rows -\n"
    assert first == (b"a\n", b"", 2)
    assert (long.data[:2], long.end[-6:], long.size) == (b"bx", b"x end\n", 300_006)
    assert max(len(long.data), len(long.end)) == LINE_MOST


def test_the_error_of_what_feeds_it_is_raised(program: Program) -> None:
    """After the lines of what was written, and before the program's own error."""

    def feed(write: Callable[[bytes], object]) -> None:
        write(b"a\n")
        raise ArchiveError("no more")

    tool = replace(MYSQL, path=str(program("printer", "cat; echo ERROR: cut >&2; exit 1")))
    lines = printed(tool, feed)
    assert next(lines).data == b"a\n"
    with pytest.raises(ArchiveError, match="no more"):
        next(lines)


def test_it_ends_as_soon_as_nobody_reads(program: Program, tmp_path: Path) -> None:
    """Also what feeds it, wherever that is."""
    ended = threading.Event()

    def feed(write: Callable[[bytes], object]) -> None:
        try:
            while True:
                write(bytes(1 << 16) + b"\n")
        finally:
            ended.set()

    tool = replace(MYSQL, path=str(program("printer", f"echo $$ > {tmp_path}/pid; exec cat")))
    lines = printed(tool, feed)
    next(lines)
    lines.close()
    assert ended.wait(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
