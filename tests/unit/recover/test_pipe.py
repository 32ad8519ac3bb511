"""Text to a client: the session's law, where a line comes from, where text may be cut."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import RecoveryError
from binlog2s3.recover import pipe as pipe_module
from binlog2s3.recover.client import Client, ClientEndedError, ClientTool, find_client
from binlog2s3.recover.decoder import DELIMITER, Decoder
from binlog2s3.recover.model import Checked, Piece, Progress
from binlog2s3.recover.trace import Offsets, Trace
from binlog2s3.server.mysqlbinlog import Tool
from tests.binlog_writer import BinlogWriter
from tests.login import ROOT
from tests.waiting import wait_until

NAME = BinlogName.parse("mysql-bin.000007")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LOGIN = replace(ROOT, host="db", port=3306, user="me", password="secret", connect_timeout=5.0)
Program = Callable[..., Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program of Python lines, that can be asked who it is."""

    def make(
        lines: str = "",
        *,
        name: str = "mysql",
        version: str = "mysql  Ver 9.7.4-2 for Linux on x86_64 ((Debian))",
        help_: str = "--binary-mode --load-data-local-dir",
    ) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!{sys.executable} -S\n"
            "import sys\n"
            f"if '--version' in sys.argv: sys.exit(print({version!r}))\n"
            f"if '--help' in sys.argv: sys.exit(print({help_!r}))\n"
            f"{lines}\n"
        )
        path.chmod(0o755)
        return path

    return make


def client_tool(path: Path) -> ClientTool:
    return ClientTool(
        path=str(path), flavour="mysql", version="9", load_directory=True, all_or_nothing=False
    )


def decoder_tool(path: Path) -> Tool:
    return Tool(path=str(path), flavour="mysql", version="9", connection_server_id=True)


# Finding the client


def test_the_client_on_path(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flavour's own, also where MariaDB's is called mysql."""
    path = program()
    monkeypatch.setenv("PATH", f"{path.parent}:/bin:/usr/bin")
    assert find_client("mysql") == replace(client_tool(path), version="9.7.4-2")
    with pytest.raises(RecoveryError, match="is MySQL's, the target is MariaDB") as caught:
        find_client("mariadb")
    assert "mariadb-client" in caught.value.hint
    old = "mysql  Ver 15.1 Distrib 10.11.18-MariaDB, for debian-linux-gnu"
    program(version=old, help_="--binary-mode")
    found = find_client("mariadb")
    assert (found.version, found.load_directory) == ("10.11.18-MariaDB", False)
    with pytest.raises(RecoveryError, match="is MariaDB's, the target is MySQL"):
        find_client("mysql")
    new = "mariadb from 11.8.6-MariaDB, client 15.2 for debian-linux-gnu"
    program(name="mariadb", version=new, help_="--binary-mode --ssl-fp")
    assert find_client("mariadb").version == "11.8.6-MariaDB"
    assert find_client("mariadb").all_or_nothing


def test_no_client(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecoveryError, match="no mysql on PATH") as caught:
        find_client("mysql")
    assert "--mysql-client" in caught.value.hint
    with pytest.raises(RecoveryError, match="is no program that can be run"):
        find_client("mysql", tmp_path / "nothing")
    with pytest.raises(RecoveryError, match="no mysql client that can take binlogs"):
        find_client("mysql", program(help_="nothing"))


# The session


REPLIES = """\
import re, time
for line in sys.stdin:
    if found := re.match(r"SELECT '(.*)', (.*);", line):
        print(found[1] + '\\t' + found[2], flush=True)
    if line.startswith("FAIL"):
        sys.exit("ERROR 1062 (23000) at line 3: Duplicate entry '1'\\nof a key")
print("it came to the end")
"""


@pytest.fixture
def client(program: Program, tmp_path: Path) -> Iterator[Client]:
    """A client that answers marks, and fails at FAIL."""
    made = Client(client_tool(program(REPLIES)), LOGIN, load_directory=tmp_path)
    yield made
    made.kill()


def _pipes(pid: int) -> dict[int, str]:
    return {
        int(path.name): str(path.readlink())
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if path.name.isdigit()
    }


def test_the_client_holds_the_writing_end_of_its_own_input(client: Client) -> None:
    """So it never sees an end of its input, however we end; and so do its settings."""
    client.write(client.mark(1))
    assert client.wait(1) == "1"
    held = _pipes(client.pid)
    mine = [number for number, where in held.items() if where == held[0] and number]
    assert mine
    flags = Path(f"/proc/{client.pid}/fdinfo/{mine[0]}").read_text()
    assert int(flags.split("flags:")[1].split()[0], 8) & os.O_ACCMODE == os.O_WRONLY


def test_what_was_executed_is_known(client: Client) -> None:
    """A mark is answered when all before it was; not before."""
    client.write(b"something\n")
    assert not client.answered(1)
    client.write(client.mark(1) + client.mark(2, "'more'"))
    assert client.wait(2) == "'more'"
    assert client.answered(1)
    assert not client.answered(3)


def test_what_the_client_says_when_it_fails(client: Client) -> None:
    """The server's number, the line, the text, over all its lines."""
    client.write(b"\n\nFAIL\n" + client.mark(1))
    with pytest.raises(ClientEndedError):
        client.wait(1)
    threads = client._threads
    wait_until(lambda: not any(one.is_alive() for one in threads), what="all that it said is read")
    failure = client.failure()
    assert (failure.code, failure.line) == (1062, 3)
    assert failure.text == "Duplicate entry '1'\nof a key (1062)"
    with pytest.raises(ClientEndedError):
        client.write(b"x" * (1 << 20))


def test_how_the_client_is_started(program: Program, tmp_path: Path) -> None:
    """Options that nothing can do without; the password only in the file of options."""
    told = tmp_path / "told"
    lines = (
        "import os\n"
        f"file = open({str(told)!r} + '.tmp', 'w')\n"
        "options = open(sys.argv[1].partition('=')[2]).read()\n"
        "print(sys.argv[1:], options, dict(os.environ), os.getsid(0) == os.getpid(), file=file)\n"
        f"file.close(); os.rename({str(told)!r} + '.tmp', {str(told)!r})\n"
    )
    client = Client(client_tool(program(lines)), LOGIN, load_directory=Path("/load"))
    wait_until(told.exists, what="it was started")
    client.kill()
    text = told.read_text()
    for option in (
        "--batch", "--binary-mode", "--unbuffered", "--comments", "--skip-reconnect",
        "--skip-column-names", "--max-allowed-packet=1G", "--load-data-local-dir=/load",
    ):  # fmt: skip
        assert f"'{option}'" in text
    assert re.match(r"\['--defaults-file=/dev/fd/\d+', ", text)
    assert text.count("secret") == 1
    assert 'password="secret"' in text
    assert "'TZ': 'UTC'" in text
    assert text.endswith(" True\n")  # Ctrl-C reaches only us


# mysqlbinlog


ECHO = "sys.stdout.write(sys.stdin.read())\n"


def test_text_and_bytes_do_not_block_each_other(program: Program, tmp_path: Path) -> None:
    """Much more of both than pipes hold, in any cut."""
    lines = "while part := sys.stdin.buffer.read(10): sys.stdout.buffer.write(part * 3)\n"
    tool = decoder_tool(program(lines + "print('# End of log file')\n", name="mysqlbinlog"))
    with Decoder(tool, load_directory=tmp_path) as decoder:
        text = b"".join(decoder.text(iter([b"0123456789" * 100_000] * 3)))
    assert len(text) == 9_000_000 + len("# End of log file\n")


def test_the_end_of_input_is_told(program: Program, tmp_path: Path) -> None:
    """mysqlbinlog sees the end of its input, prints its last lines, and that is all."""
    tool = decoder_tool(program(ECHO + "print('# End of log file')", name="mysqlbinlog"))
    with Decoder(tool, load_directory=tmp_path) as decoder:
        assert b"".join(decoder.text(iter([b"a\n", b"", b"b\n"]))) == b"a\nb\n# End of log file\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("sys.exit()", "before it had read|middle of its text"),
        ("sys.stdin.read()", "ended in the middle of its text"),
        ("sys.stdin.read(); sys.exit('ERROR: could not read')", "failed: ERROR: could not read"),
        (
            ECHO + "print('# End of log file'); sys.stderr.write('odd\\n')",
            "mysqlbinlog failed: odd",
        ),
        (ECHO + "print('# End of log file'); sys.exit(3)", "failed: exit status 3"),
    ],
)
def test_mysqlbinlog_fails(program: Program, tmp_path: Path, lines: str, said: str) -> None:
    """Its exit status, its standard error or its missing last lines say so."""
    tool = decoder_tool(program(lines, name="mysqlbinlog"))
    with (
        Decoder(tool, load_directory=tmp_path) as decoder,
        pytest.raises(RecoveryError, match=said),
    ):
        for _ in decoder.text(iter([b"x" * 1000] * 100)):
            pass


def test_what_is_deprecated_is_no_failure(program: Program, tmp_path: Path) -> None:
    """MariaDB's program warns when it is called by its old name."""
    lines = ECHO + "print('# End of log file'); sys.stderr.write('Deprecated program name\\n')"
    tool = decoder_tool(program(lines, name="mysqlbinlog"))
    with Decoder(tool, load_directory=tmp_path) as decoder:
        assert b"".join(decoder.text(iter([b"x\n"]))) == b"x\n# End of log file\n"


def test_a_source_that_fails_ends_mysqlbinlog(program: Program, tmp_path: Path) -> None:
    """What was handed in ends with the block, and mysqlbinlog sees no end of its input."""
    told = tmp_path / "ended"
    lines = f"sys.stdin.read(); open({str(told)!r}, 'w')"
    tool = decoder_tool(program(lines, name="mysqlbinlog"))

    def data() -> Iterator[bytes]:
        yield b"x"
        raise ValueError("rotten")

    with (
        pytest.raises(ValueError, match="rotten"),
        Decoder(tool, load_directory=tmp_path) as decoder,
    ):
        list(decoder.text(data()))
    assert decoder._process.returncode == -9
    assert not told.exists()


# Where a line comes from


def piece(**changes: Any) -> Piece:
    return replace(
        Piece(
            lineage="one",
            binlog=NAME,
            begin=1000,
            end=2000,
            transactions=4,
            gtids=GtidSet.parse(f"{UUID}:1-4"),
        ),
        **changes,
    )


def transaction(begin: int, end: int, number: int | None = None) -> Transaction:
    return Transaction(
        begin=begin,
        end=end,
        gtid=f"{UUID}:{number}" if number else None,
        commit_us=number or 0,
        commit_exact=True,
        original_commit_us=None,
    )


def event(at: int, end: int, text: str = "") -> bytes:
    return (
        f"# at {at}\n#260101  0:00:00 server id 1  end_log_pos {end} CRC32 0x0 \tX\n{text}".encode()
    )


def test_offsets_over_what_was_left_out() -> None:
    """Ranges that were left out shift what comes behind them, at both of their ends."""
    offsets = Offsets(piece(left_out=((1100, 1200), (1200, 1250), (1500, 1600))), 127)
    given = {126: 1000, 127: 1000, 226: 1099, 227: 1250, 476: 1499, 477: 1600, 877: 2000}
    assert {at: offsets.of(at) for at in given} == given
    assert [offsets.given(at) for at in (0, 1000, 1100, 1150, 1250, 1499, 1600, 2000)] == [
        0, 0, 100, 100, 100, 349, 350, 750,
    ]  # fmt: skip
    whole = Offsets(piece(begin=0), 127)
    assert [whole.of(at) for at in (4, 127, 500)] == [127, 127, 500]
    high = Offsets(piece(begin=(1 << 32) + 500, end=(2 << 32) + 500), 127)
    assert high.of_compressed(600) == (1 << 32) + 600
    assert high.of_compressed(400) == (2 << 32) + 400


@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
@pytest.mark.parametrize("gtids", [True, False])
def test_a_line_is_placed(cut: int, gtids: bool) -> None:
    """However the text is cut: the transaction that a statement is of, in every line of it."""
    shifted = piece(left_out=((1100, 1200),))
    ones = [
        transaction(a, b, n if gtids else None)
        for n, (a, b) in enumerate([(1000, 1100), (1200, 1400), (1400, 1500), (1500, 2000)], 1)
    ]
    text = (
        b"preamble\nDELIMITER /*!*/;\n"
        + event(4, 127, "BINLOG 'format'/*!*/;\n")
        + event(127, 1050, "FIRST a\n/*!*/;\n")
        + event(227, 1300, "SECOND\nof two lines\n/*!*/;\n")
        + event(327, 1400, "STILL second\n/*!*/;\n")
        + event(427, 1500, "THIRD\n/*!*/;\n")
        + event(527, 1700)
        + b"# Start of compressed events.\n"
        + event(1500, 1500, "NEVER\n")  # inside of a compressed one: the end, as the server has it
        + b"# End of compressed events.\n"
        + event(527, 1700, "FOURTH\n/*!*/;\n")
        + b"DELIMITER ;\n# End of log file\n"
    )
    trace = Trace()
    trace.hand(b"ours\nand ours\n")
    trace.begin(shifted, 127)
    trace.read(tuple(ones))
    for at in range(0, len(text), cut):
        trace.hand(text[at : at + cut])
    assert trace.end()
    lines = (b"ours\nand ours\n" + text).split(b"\n")

    def found(word: bytes) -> Any:
        at = next(n for n, line in enumerate(lines, 1) if line.startswith(word))
        return trace.find(at)

    assert found(b"ours") is None
    assert found(b"preamble") is None
    for word, one, offset in (
        (b"FIRST", ones[0], 1000),
        (b"SECOND", ones[1], 1200),
        (b"STILL", ones[1], 1300),
        (b"THIRD", ones[2], 1400),
        (b"NEVER", ones[2], 1500),
        (b"FOURTH", ones[3], 1500),
    ):
        spot = found(word)
        assert (spot.transaction, spot.gtid, spot.offset) == (one, one.gtid, offset), word
    assert trace.transactions == 4
    assert trace.size == shifted.size
    assert trace.commit_us == (4 if gtids else 0)


def test_a_transaction_that_has_not_ended_is_named_by_its_text() -> None:
    """Its GTID is in the text before the statement; it is not known where it ends."""
    trace = Trace()
    trace.begin(piece(), 127)
    trace.hand(
        b"\n" + event(127, 1050, f"SET @@SESSION.GTID_NEXT= '{UUID}:blue:9'/*!*/;\n")
        + event(177, 1060) + b"\nBINLOG '\nabc\n"
    )  # fmt: skip
    spot = trace.find(8)
    assert spot is not None
    assert (spot.gtid, spot.offset, spot.transaction) == (f"{UUID}:blue:9", 1050, None)


def test_a_statement_longer_than_what_is_kept() -> None:
    """Of older text one mark in each part is enough; memory stays bounded."""
    trace = Trace()
    trace.begin(piece(), 127)
    trace.hand(b"x\n" + event(127, 1050, "DONE\n/*!*/;\n"))
    trace.hand(b"\n" + event(227, 1200, f"SET @@SESSION.GTID_NEXT= '{UUID}:2'/*!*/;\n"))
    trace.hand(b"\n" + event(277, 1900) + b"\nBINLOG '\n")
    line = trace.line - 1
    for _ in range(200):
        trace.hand(b"A" * 76 * 1000 + b"\n")
    assert sum(len(part.text) for part in trace._parts) < 5 << 20
    spot = trace.find(line)
    assert spot is not None
    assert (spot.gtid, spot.offset) == (f"{UUID}:2", 1150)


def test_text_that_ends_too_early() -> None:
    """It does not reach the last transaction that was read: that must not pass for applied."""
    trace = Trace()
    trace.begin(piece(), 127)
    trace.read((transaction(1000, 1100, 1), transaction(1100, 1200, 2)))
    trace.hand(b"\n" + event(127, 1050) + event(150, 1100))
    assert not trace.end()


def test_what_is_handed_on_is_not_kept_for_ever() -> None:
    """A million transactions leave no more than those of the text that is kept."""
    trace = Trace()
    whole = piece(end=1000 + 20_000 * 100)
    trace.begin(whole, 127)
    for n in range(20_000):
        trace.read((transaction(1000 + n * 100, 1100 + n * 100, n + 1),))
        trace.hand(event(127 + n * 100, 1100 + n * 100, "BINLOG '\n" + "A" * 900 + "\n'/*!*/;\n"))
        if not n:
            trace.hand(b"\n")
    assert trace.transactions > 19_000
    assert len(trace._handed) + len(trace._read) < 6_000


# Where text may be cut


@pytest.mark.parametrize("cut", [1, 2, 5, 6, 7, 8, 50, 1000])
def test_text_is_cut_behind_statements(cut: int) -> None:
    """However it comes: the same text, and each part but the last ends a statement."""
    text = (
        b"a\nb/*!*/;\nBINLOG '\nxyz\n'/*!*/;\n\n/*!*/;\nDROP TABLE a, b\n/*!*/;\nDELIMITER ;\nend\n"
    )
    parts = list(pipe_module._statements(text[at : at + cut] for at in range(0, len(text), cut)))
    assert b"".join(parts) == text
    assert all(part.endswith(DELIMITER) for part in parts[:-1])
    assert parts[-1] == b"DELIMITER ;\nend\n"


def test_rows_that_are_too_much_to_hold_pass() -> None:
    """They are in quotes; a statement as text is held, however long it is."""
    row = b"A" * (1 << 20)
    texts = [b"x/*!*/;\n", b"\n\nBINLOG '\n", *[row] * 40, b"\n'/*!*/;\n", b"y/*!*/;\n"]
    parts = list(pipe_module._statements(iter(texts)))
    assert b"".join(parts) == b"".join(texts)
    assert max(map(len, parts)) < 20 << 20
    texts[1] = b"\nINSERT INTO a VALUES ('\n"
    assert max(map(len, pipe_module._statements(iter(texts)))) > 40 << 20


# What a stream needs


def test_progress_is_told_seldom() -> None:
    """Not at every piece of text; but always at the end."""
    told: list[Progress] = []
    meter = pipe_module._Meter(10, 2)
    meter.report = told.append
    for _ in range(1000):
        meter.tell(Trace())
    assert len(told) < 10
    meter.tell(Trace(), always=True)
    assert told[-1] == Progress(
        size=0, of_size=10, transactions=0, of_transactions=2, commit_us=None
    )


def test_when_sessions_are_new() -> None:
    """At a start of the server, on another server; not where the same binlog goes on."""
    started = bytes(75) + b"\1\0\0\0" + bytes(40)
    rotated = bytes(127)
    first, second = piece(), piece(binlog=NAME.next())
    another = pipe_module._is_another_start
    assert another(first, second, started)
    assert not another(first, second, rotated)
    assert not another(first, piece(begin=2000), started)
    assert another(first, piece(lineage="two"), rotated)


def test_nothing_of_a_server_commands_a_terminal() -> None:
    """Its words come on one line, without anything that is not to be seen."""
    assert pipe_module.clean("a\x1b[31m\nb\0" + "c" * 900) == "a?[31m b?" + "c" * 591


def test_checked_bytes_are_traced() -> None:
    """The head is told apart from the piece; what was handed on counts."""
    trace = Trace()
    one = transaction(1000, 1100, 1)
    head = bytes(BinlogWriter().data)
    data = [Checked(data=head), Checked(data=b"x" * 100, done=(one,))]
    assert list(pipe_module._traced(trace, piece(end=1100), iter(data))) == [head, b"x" * 100]
    assert list(trace._read) == [(piece(end=1100), one)]


def test_the_child_of_a_dead_parent_ends(program: Program, tmp_path: Path) -> None:
    """The client goes with us, whatever ends us."""
    path = program("import time\nprint('up', flush=True)\ntime.sleep(1000)")
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from binlog2s3.recover.client import Client, ClientTool\n"
        "from binlog2s3.server.login import Login\n"
        f"tool = ClientTool(path={str(path)!r}, flavour='mysql', version='', "
        "load_directory=True, all_or_nothing=False)\n"
        "login = Login(host='h', port=1, socket=None, user='u', password='', ssl_mode='DISABLED', "
        "ssl_ca=None, ssl_cert=None, ssl_key=None, connect_timeout=1.0)\n"
        f"client = Client(tool, login, load_directory=Path({str(tmp_path)!r}))\n"
        "print(client.pid, flush=True)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: b"mysql" in _argv(pid), what="it was started")
        parent.kill()
    wait_until(lambda: _argv(pid) == b"", what="the client is gone")


def _argv(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
