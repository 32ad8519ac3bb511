"""The replica channel of a MariaDB target: what it is told, what it says, and its files.

Place in the flow: `relay_mariadb` drives it. Its receiver is never started: the host that it names
does not exist, which also tells it from a channel of somebody else's.

Law: a relay log gets into the index only when it is whole and the applier waits in one of the
server's own. Where the server starts again after a crash it knows nothing of the channel. Else it
would go on by itself, from a position that is not kept with the transactions: too far back. And
where it crashed while it removed the channel it would not start at all.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.relay_files import Beside, RelayFiles
from binlog2s3.recover.target import CHANNEL, CHANNEL_HOST, DATABASE
from binlog2s3.server.connection import Server

STEM = "binlog2s3-pitr"
"""What our relay logs are called, before their number."""

_FILTERS = (
    "Replicate_Do_DB",
    "Replicate_Ignore_DB",
    "Replicate_Do_Table",
    "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table",
    "Replicate_Wild_Ignore_Table",
    "Replicate_Rewrite_DB",
    "Replicate_Ignore_Server_Ids",
    "Replicate_Do_Domain_Ids",
    "Replicate_Ignore_Domain_Ids",
)
_LIST = "multi-master.info"
"""Of all channels; the server reads it when it starts, and writes it when one comes or goes."""
_HOME = "aria_log_control"
"""Lies in each data directory."""
_OWN_NOTE = f"\n{CHANNEL_HOST}\n\n".encode()
"""In the server's note on the channel: its host, and no user."""
_ANNOUNCED = (
    f"33\n\n4\n{CHANNEL_HOST}\nannounced\n\n3306\n60\n0\n\n\n\n\n\n0\n30.000\n\n0\n\n0"
    f"{14 * chr(10)}using_gtid=0\ndo_domain_ids=0\nignore_domain_ids=0\nEND_MARKER\n"
).encode()
"""A note that the server can read: of the 33 lines that it says to have, most are empty."""
_RUNNING = 1198
_STOP_SECONDS = 120.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What SHOW ALL SLAVES STATUS says of the channel.

    `log` and `offset`: how far the applier is in its relay logs. `leaves_out`: filters, and such.
    """

    ours: bool
    host: str
    running: bool
    log: str
    offset: int
    code: int
    text: str
    leaves_out: tuple[str, ...]


class Channel:
    """The channel at one target, whether it is there or not."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def state(self) -> State | None:
        """What it is; None where there is no channel of that name."""
        for row in self._server.rows("SHOW ALL SLAVES STATUS"):
            if str(row["Connection_name"]).lower() == CHANNEL:
                return _state(row)
        return None

    def create(self, reach: "Reach") -> State:
        """Make it. The server makes a relay log of its own for it, and an index."""
        with reach.announced() as note:
            try:
                self._make()
            except SourceError as error:
                # raises if it went away: it may need the note when it starts again
                if (other := self.state()) is not None and not other.ours:
                    raise  # somebody else's, made meanwhile
                if f"({_RUNNING})" in str(error):  # without a host it is not shown
                    self.stop()
                    self.remove()
                elif note is not None:
                    note.unlink(missing_ok=True)  # it may be that this version reads it otherwise
                self._make()
        state = self.state()
        if state is None:
            raise RecoveryError(f"the target has not made the replica channel {CHANNEL!r}")
        return state

    def _make(self) -> None:
        self._server.rows(
            f"CHANGE MASTER '{CHANNEL}' TO master_host = '{CHANNEL_HOST}', master_user = '', "
            "master_use_gtid = no"
        )

    def start(self) -> None:
        """Start the applier, and nothing else."""
        self._server.rows(f"START SLAVE '{CHANNEL}' SQL_THREAD")

    def rotate(self) -> None:
        """Have the server begin a relay log of its own, behind what the index names."""
        self._server.rows(f"FLUSH LOCAL RELAY LOGS '{CHANNEL}'")

    def stop(self) -> None:
        """Stop the applier, between two transactions. RecoveryError where one takes too long."""
        deadline = time.monotonic() + _STOP_SECONDS
        with suppress(SourceError):  # it may wait for longer than the connection does
            self._server.rows(f"STOP SLAVE '{CHANNEL}'")
        while (state := self.state()) is not None and state.running:
            if time.monotonic() > deadline:
                raise RecoveryError(
                    "the target's applier is within a long transaction, and stops only behind it",
                    hint="it stops by itself then; run the same command again later",
                    transient=True,
                )
            time.sleep(_POLL_SECONDS)

    def remove(self) -> None:
        """Remove it, stopped, and the files of which it knows."""
        self._server.rows(f"RESET SLAVE '{CHANNEL}' ALL")


def _state(row: Mapping[str, Any]) -> State:
    found = [f"{name} {row[name]}" for name in _FILTERS if row.get(name)]
    if int(row["Skip_Counter"]):
        found.append(f"sql_slave_skip_counter {row['Skip_Counter']}")
    host = str(row["Master_Host"])
    return State(
        ours=host == CHANNEL_HOST,
        host=host,
        running=any(row[name] != "No" for name in ("Slave_SQL_Running", "Slave_IO_Running")),
        log=str(row["Relay_Log_File"]),
        offset=int(row["Relay_Log_Pos"]),
        code=int(row["Last_SQL_Errno"]),
        text=str(row["Last_SQL_Error"]),
        leaves_out=tuple(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The directories of a server that are needed here: of its relay logs, of its own notes.

    `stem`: what the channel's relay logs are called before their number, those of the server's own.
    """

    files: RelayFiles
    notes: tuple[Path, ...]
    stem: str

    @classmethod
    def of(cls, server: Server, directory: Path | None) -> Self:
        """Ask the server. `directory`: where that of its relay logs is, as it is seen from here."""
        row = server.rows(
            "SELECT @@global.relay_log_basename AS base, @@global.datadir AS data, "
            "@@global.pid_file AS pid"
        )[0]
        base, data = str(row["base"] or ""), str(row["data"])
        name = PurePosixPath(base).name or f"{PurePosixPath(str(row['pid'])).stem}-relay-bin"
        seen_as = str(PurePosixPath(data, base).parent if base else PurePosixPath(data))
        path = directory or Path(seen_as)
        files = RelayFiles(path=path, stem=STEM, index_name="", seen_as=seen_as)
        return cls(files=files, notes=(path, Path(data)), stem=f"{name}-{CHANNEL}")

    def unreachable(self) -> str:
        """Why nothing can be put there, as far as it shows before there is a channel; or ""."""
        return self.files.unreachable()

    def missing(self, state: State) -> str:
        """Why an existing channel cannot be used; "" where its files are here, and all is well."""
        if state.leaves_out:
            return f"its applier leaves something out: {'; '.join(state.leaves_out)}"
        if self.index(state) is None:
            return (
                f"{self.files.path} is not its relay log directory as it is seen from here "
                f"(--target-relay-log-dir): no index there names {state.log}"
            )
        if self._list() is None:
            return (
                f"the list of its replica channels, {_LIST} in {self.notes[-1]}, is not within "
                "reach: after a crash it would apply again what it has applied"
            )
        return ""

    def found(self, state: State) -> "Index":
        """The index of a new channel. Raises RecoveryError where something is out of reach."""
        if why := self.missing(state):
            raise RecoveryError(f"the target cannot take the binlogs as relay logs: {why}")
        index = self.index(state)
        assert index is not None  # noqa: S101 - it is not missing
        return index

    def index(self, state: State) -> "Index | None":
        """The channel's index, as long as it names the relay log in which the applier is."""
        line = re.compile(rf"(?m)^(?:.*/)?{re.escape(state.log)}$")
        with suppress(OSError):
            for path in self.files.path.glob(f"*-{CHANNEL}.index"):
                if line.search(path.read_text(errors="replace")):
                    return Index(path, self.files)
        return None

    def _list(self) -> Path | None:
        """The server's list of channels: beside it lies the note on ours."""
        for directory in self.notes:
            path, note = directory / _LIST, directory / f"master-{CHANNEL}.info"
            with suppress(OSError):
                if _OWN_NOTE in note.read_bytes() and os.access(path, os.W_OK):
                    return path
        return None

    @contextmanager
    def announced(self) -> Iterator[Path | None]:
        """While a channel is made there is a whole note on it from the beginning.

        The server names the channel in its list, then makes a note that is empty for a moment; with
        such a one it would not start again.
        """
        home = next((path for path in self.notes if (path / _HOME).is_file()), None)
        note = None if home is None else home / f"master-{CHANNEL}.info"
        if home is None or note is None or note.exists():
            yield None
            return
        with suppress(RecoveryError):
            out = Beside(note, home)
            try:
                out.write(_ANNOUNCED)
            except RecoveryError:
                out.drop()  # an empty one is what must not be
                raise
            out.done()
        yield note
        with suppress(OSError):
            if note.read_bytes() == _ANNOUNCED:  # this is not where the server keeps its notes
                note.unlink()

    def hide(self) -> None:
        """Take the channel from the list, in which nothing looks as long as the server runs."""
        path = self._list()
        if path is None:
            return
        try:
            lines = path.read_bytes().splitlines(keepends=True)
            with path.open("r+b") as out:
                out.write(b"".join(line for line in lines if line.strip() != CHANNEL.encode()))
                out.truncate()
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise self.files.failed(error) from error

    def begin(self, number: int) -> Beside:
        """A relay log of ours that the server does not know of yet."""
        return Beside(self.files.path / f"{STEM}.{number:08d}", self.files.path)

    def clear(self) -> None:
        """Remove what is left of a channel that the server does not know, any more or after all.

        Only where this is the directory of a server that is being recovered: the target may be on
        another machine, and another server here.
        """
        if not any((directory / DATABASE).is_dir() for directory in self.notes):
            return
        with suppress(OSError):
            for path in self.files.path.iterdir():
                name, _, number = path.name.rpartition(".")
                is_log = number.isdecimal() and name in (STEM, self.stem)
                if is_log or path.name == f"{self.stem}.index":
                    path.unlink(missing_ok=True)
        for directory in self.notes:
            for name in (f"master-{CHANNEL}.info", f"relay-log-{CHANNEL}.info"):
                with suppress(OSError):
                    (directory / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Index:
    """The list of a channel's relay logs, which the server reads in their order."""

    path: Path
    files: RelayFiles

    def append(self, logs: Sequence[Path]) -> None:
        """Name these, behind the server's own, in which the applier waits."""
        before = self._lines()[-1]
        text = "".join(f"{before[: before.rfind('/') + 1]}{path.name}\n" for path in logs)
        try:
            with self.path.open("ab", buffering=0) as out:
                out.write(text.encode())
        except OSError as error:
            raise self.files.failed(error) from error

    def has_only(self, log: str) -> bool:
        """Whether it names this one and nothing else: the server has tidied up behind the applier.

        Before that it rewrites the index, and would lose what is put there.
        """
        return [PurePosixPath(line).name for line in self._lines()] == [log]

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text().splitlines() or [""]
        except OSError as error:
            raise self.files.failed(error) from error
