"""Applies what was extracted: mysqlbinlog's text into one session at the target.

Place in the flow: `pitr` hands in the stream of checked bytes; `decoder` makes text of each piece,
`client` is the session, `trace` knows where a line comes from.

Law: no part of a statement is ever executed (see `client`), an error of any kind ends the client at
once, and `apply` returns only when the server has executed all that the stream brought.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from binlog2s3.binlog.content import NotForClients
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.client import Client, ClientEndedError, ClientTool, Failure
from binlog2s3.recover.decoder import DELIMITER, Decoder
from binlog2s3.recover.hints import advised, clean, look
from binlog2s3.recover.model import Checked, OnProgress, Piece, Progress, Stream
from binlog2s3.recover.trace import Spot, Trace
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import Tool

_GREATEST_PACKET = 1 << 30
_SLACK = 4096  # comments before a statement, which the client leaves out
_HELD_BYTES = 16 << 20
_EVERY_SECONDS = 0.2
_LOST = (1053, 1927, 2006, 2013, 2055)
_CREATED = slice(75, 79)  # of the format event behind the magic: not 0 in a start's first binlog
_SAME_SERVER = {
    "mysql": "CONCAT_WS(' ', @@server_id, @@port, @@hostname, @@server_uuid)",
    "mariadb": "CONCAT_WS(' ', @@server_id, @@port, @@hostname, @@datadir)",
}


class Pipe:
    """One apply to one target. `server` asks the target, `login` is the client's.

    `skip_gtids`: the target does not keep these transactions' GTIDs. `binlog_off`: it does not log
    them. `size` and `transactions` are what the stream will bring. `silent_seconds`: so long the
    session may sleep at the end. As long as it has not `touched` the target, nothing was changed
    there.
    """

    def __init__(
        self,
        server: Server,
        login: Login,
        client: ClientTool,
        mysqlbinlog: Tool,
        *,
        size: int,
        transactions: int,
        skip_gtids: bool = False,
        binlog_off: bool = False,
        silent_seconds: float = 60.0,
    ) -> None:
        self._server = server
        self._silent_seconds = silent_seconds
        self._session = 0
        self._login = login
        self._tool = client
        self._mysqlbinlog = mysqlbinlog
        self._skip_gtids = skip_gtids
        self._binlog_off = binlog_off
        self._trace = Trace()
        self._progress = _Meter(size, transactions)
        self._limit = _GREATEST_PACKET
        self._open = 0  # bytes of the statement that is being handed on
        self._tail = b""
        self.touched = False  # whether the target was given anything of the stream

    def apply(self, stream: Stream, on_progress: OnProgress) -> None:
        """Execute all that the stream brings, in its order.

        Raises RecoveryError that says at which transaction it stopped and what to do.
        """
        self._progress.report = on_progress
        with _private_directory() as directory:
            client = self._connect(directory)
            number, before = 0, None
            try:
                for number, (piece, data) in enumerate(stream, 1):
                    checked = iter(data)
                    head = next(checked)
                    if before is not None and _is_another_start(before, piece, head.data):
                        self._end(client, number - 1)
                        self._trace.restart()
                        client = self._connect(directory)
                    self._apply(
                        client, piece, chain([head], checked), _made(directory / str(number))
                    )
                    self._give(client, b"\n" + client.mark(number))
                    _remove_executed(client, directory)
                    before = piece
                self._end(client, number)
            except ClientEndedError:
                raise self._explained(client.failure()) from None
            finally:
                client.kill()
        self._progress.tell(self._trace, always=True)

    def _connect(self, directory: Path) -> Client:
        """A session at the same server that was asked, with the greatest packets there can be."""
        who = _SAME_SERVER[self._tool.flavour]
        expected = str(self._server.rows(f"SELECT {who} AS it")[0]["it"])
        with self._greatest_packets():
            client = Client(self._tool, self._login, load_directory=directory)
            try:
                asked = client.mark(0, f"@@session.max_allowed_packet, CONNECTION_ID(), {who}")
                self._give(client, client.preamble + asked)
                packet, session, found = client.wait(0).split("\t", 2)
            except ClientEndedError:
                raise self._shut_out(client.failure()) from None
            except BaseException:
                client.kill()
                raise
        if found != expected:
            client.kill()
            raise RecoveryError(
                f"{self._login.address} leads to one server ({expected}) and then to "
                f"another ({found})",
                hint="name the target itself, not a proxy in front of several",
            )
        self._limit, self._session = int(packet), int(session)
        return client

    def _shut_out(self, failure: Failure) -> RecoveryError:
        return RecoveryError(
            f"{self._tool.path} has no session at the target, {self._login.address}: "
            f"{clean(failure.text)}",
            hint="the same account was let in to look at it: does this client know the account's "
            "authentication plugin, and TLS?",
        )

    @contextmanager
    def _greatest_packets(self) -> Iterator[None]:
        """A session that begins meanwhile may send a gigabyte at once; where we may say so."""
        before = int(self._server.rows("SELECT @@global.max_allowed_packet AS it")[0]["it"])
        raised = False
        if before < _GREATEST_PACKET:
            with suppress(SourceError):
                self._server.rows(f"SET GLOBAL max_allowed_packet = {_GREATEST_PACKET}")
                raised = True
        try:
            yield
        finally:
            if raised:
                self._server.rows(f"SET GLOBAL max_allowed_packet = {before}")

    def _apply(self, client: Client, piece: Piece, data: Iterator[Checked], load: Path) -> None:
        decoder = Decoder(
            self._mysqlbinlog,
            load_directory=load,
            skip_gtids=self._skip_gtids,
            binlog_off=self._binlog_off,
        )
        with decoder:
            for text in decoder.text(_traced(self._trace, piece, data)):
                self._guard(text)
                self.touched = True
                self._give(client, text)
                self._progress.tell(self._trace)
        if not self._trace.end():
            raise _cut_short(piece)

    def _end(self, client: Client, number: int) -> None:
        """Wait until all was executed; temporary tables that are left go without a transaction."""
        client.wait(number, self._see_it_work)
        self._give(client, b"SET SESSION sql_log_bin = 0;\n" + client.mark(number + 1))
        client.wait(number + 1, self._see_it_work)
        client.kill()

    def _see_it_work(self) -> None:
        """Raises RecoveryError where the client has been given all, and its session sleeps."""
        rows = self._server.rows(
            "SELECT command AS it, time AS seconds FROM information_schema.processlist "
            "WHERE id = %s",
            (self._session,),
        )
        if rows and rows[0]["it"] == "Sleep" and int(rows[0]["seconds"]) >= self._silent_seconds:
            raise RecoveryError(
                f"the client at the target, {self._login.address}, has been given everything and "
                f"does nothing since {rows[0]['seconds']} s: it takes the last statement for one "
                "that goes on",
                hint="what it had executed until then stays; see by the target's binlog or GTIDs "
                "what is missing",
            )

    def _give(self, client: Client, text: bytes) -> None:
        self._trace.hand(text)
        client.write(text)

    def _guard(self, text: bytes) -> None:
        """Stop before a statement that the server would not take: none of it was executed.

        And its transaction neither, as far as its tables are transactional: the session ends.
        """
        joined = self._tail + text
        first = joined.find(DELIMITER)
        if first < 0:
            self._open += len(text)
        else:
            self._refuse_greater(self._open + first)
            self._open = len(joined) - joined.rfind(DELIMITER) - len(DELIMITER)
        self._tail = joined[-(len(DELIMITER) - 1) :]
        self._refuse_greater(self._open)

    def _refuse_greater(self, size: int) -> None:
        if size - _SLACK <= self._limit:
            return
        spot = self._trace.find(self._trace.line)
        raise RecoveryError(
            f"stopped before {_named(spot)}: it needs a statement of more than "
            f"{self._limit} bytes, the session's max_allowed_packet",
            hint=f"SET GLOBAL max_allowed_packet = {_GREATEST_PACKET} at the target (or let the "
            "account do so: SYSTEM_VARIABLES_ADMIN) and run the same command again"
            if self._limit < _GREATEST_PACKET
            else "no client can send more: bring this transaction by --output-dir and a replica's "
            "own applier",
        )

    def _explained(self, failure: Failure) -> RecoveryError:
        """Which transaction failed, and what to do."""
        said = clean(failure.text)
        spot = self._trace.find(failure.line) if failure.line is not None else None
        where = self._login.address
        if failure.code in _LOST or failure.code == 0:
            return RecoveryError(
                f"the session at the target, {where}, was lost: {said}",
                hint=f"is the server up? {self._again()}",
                transient=True,
            )
        hint = advised(
            failure.code,
            self._tool.flavour,
            look=_look(spot),
            gtid=spot.gtid if spot is not None else None,
            again=self._again(),
        )
        return RecoveryError(
            f"the target, {where}, refused {_named(spot)}: {said}; all before it was applied",
            hint=hint,
        )

    def _again(self) -> str:
        if self._skip_gtids or self._tool.flavour == "mariadb":
            return (
                "then go on from there: say with --from-binlog and --from-position where the "
                "target stands"
            )
        return "run the same command again: it goes on from there"


class _Meter:
    """Tells how far it is, not too often."""

    def __init__(self, size: int, transactions: int) -> None:
        self.report: OnProgress = lambda _progress: None
        self._size = size
        self._transactions = transactions
        self._told_at = -1.0

    def tell(self, trace: Trace, *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._told_at < _EVERY_SECONDS:
            return
        self._told_at = now
        self.report(
            Progress(
                size=trace.size,
                of_size=self._size,
                transactions=trace.transactions,
                of_transactions=self._transactions,
                commit_us=trace.commit_us,
            )
        )


def decode(
    stream: Stream,
    write: Callable[[bytes], object],
    mysqlbinlog: Tool,
    *,
    size: int,
    transactions: int,
    skip_gtids: bool = False,
    binlog_off: bool = False,
    on_progress: OnProgress = lambda _progress: None,
) -> Path | None:
    """Hand the stream's text to `write`, only up to ends of statements until a piece is whole.

    So that a client which reads it comes to no half of a statement where this breaks off. The
    files of LOAD DATA, if there were any, are left in the directory that is returned: the text
    names them.
    """
    trace, meter = Trace(), _Meter(size, transactions)
    meter.report = on_progress
    directory = Path(tempfile.mkdtemp(prefix="binlog2s3-load-"))

    def one(piece: Piece, data: Iterator[Checked]) -> None:
        with Decoder(
            mysqlbinlog, load_directory=directory, skip_gtids=skip_gtids, binlog_off=binlog_off
        ) as decoder:
            for text in _statements(decoder.text(_traced(trace, piece, data))):
                trace.hand(text)
                write(text)
                meter.tell(trace)
        if not trace.end():
            raise _cut_short(piece)

    try:
        for piece, data in stream:
            one(piece, data)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    meter.tell(trace, always=True)
    with suppress(OSError):
        directory.rmdir()
        return None
    return directory


def _statements(texts: Iterator[bytes]) -> Iterator[bytes]:
    """The same text, cut behind ends of statements, but for rows that are too much to hold.

    Those are in quotes: the half of such a statement is none.
    """
    held: list[bytes] = []
    size, last, passing = 0, b"", False
    for text in texts:
        joined = last + text
        cut = joined.rfind(DELIMITER)
        last = text[-(len(DELIMITER) - 1) :] if len(text) >= len(DELIMITER) else joined[-6:]
        if cut < 0:
            held.append(text)
            size += len(text)
            if size > _HELD_BYTES and (passing or _in_rows(b"".join(held))):
                passing = True
                yield b"".join(held)
                held, size = [], 0
            continue
        at = cut + len(DELIMITER) - (len(joined) - len(text))
        yield b"".join([*held, text[:at]])
        held, size, passing = [text[at:]], len(text) - at, False
    yield b"".join(held)


def _in_rows(text: bytes) -> bool:
    return b"\nBINLOG '\n" in text


def _is_another_start(before: Piece, piece: Piece, head: bytes) -> bool:
    """Whether the sessions of the server that wrote this were all new.

    It was started in between, or is another one: its temporary tables were gone, and its threads
    are numbered anew, so that ours would be taken for theirs.
    """
    created = int.from_bytes(head[_CREATED], "little")
    return piece.lineage != before.lineage or (piece.binlog != before.binlog and created != 0)


def _traced(trace: Trace, piece: Piece, data: Iterator[Checked]) -> Iterator[bytes]:
    """The bytes; the trace is told of the transactions that were handed on with them.

    Raises RecoveryError before bytes whose text would not be what they say.
    """
    texts: NotForClients | None = None
    is_head = True
    for checked in data:
        if is_head:
            trace.begin(piece, len(checked.data))
            is_head = False
            texts = NotForClients(decode_format(checked.data[len(MAGIC) :], offset=len(MAGIC)))
        elif texts is not None:
            texts.feed(checked.data)
            if texts.found:
                raise _unprintable(piece, texts.found[0])
        yield checked.data
        trace.read(checked.done)


def _unprintable(piece: Piece, what: str) -> RecoveryError:
    return RecoveryError(
        f"stopped in {piece.binlog} (lineage {piece.lineage}) before {what}: in mysqlbinlog's text "
        "it may end elsewhere for the client than for the server, and what follows would be "
        "executed as a statement of its own",
        hint="apply as relay logs, on the target's own host: --apply relay-log; beware of every "
        "other way that reads mysqlbinlog's text",
    )


def _named(spot: Spot | None) -> str:
    """The transaction, for messages."""
    if spot is None:
        return "what comes before the first transaction"
    begin = spot.transaction.begin if spot.transaction is not None else spot.offset
    gtid = f"transaction {spot.gtid}" if spot.gtid else "the transaction"
    event = "" if begin == spot.offset else f", event at {spot.offset}"
    return f"{gtid} at {spot.piece.binlog}:{begin}{event} (lineage {spot.piece.lineage})"


def _look(spot: Spot | None) -> str:
    if spot is None:
        return ""
    one = spot.transaction
    begin, end = (one.begin, one.end) if one is not None else (spot.offset, None)
    return look(str(spot.piece.binlog), begin, end)


def _cut_short(piece: Piece) -> RecoveryError:
    return RecoveryError(
        f"mysqlbinlog printed less of {piece.binlog} than it was given",
        hint="name one of the archived server's version or a newer one with --mysqlbinlog",
    )


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700)
    return directory


def _remove_executed(client: Client, directory: Path) -> None:
    """The files of LOAD DATA of pieces that were executed are not needed any more."""
    for path in directory.iterdir():
        if client.answered(int(path.name)):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _private_directory() -> Iterator[Path]:
    """A directory that only this user can look into, gone with the block."""
    try:
        made = tempfile.mkdtemp(prefix="binlog2s3-load-")  # mode 0700
    except OSError as error:
        raise RecoveryError(
            f"cannot make a directory for LOAD DATA: {error}", hint="set TMPDIR to another one"
        ) from error
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)
