"""Takes binlogs in: which history they are of, and which of them are closed.

Place in the flow: between the tailer, whose tracks it is given, and the uploaders, which it opens:
one for each lineage that still has something to bring in.

Law: no byte is uploaded before it is known which lineage it belongs to, and that lineage is
described in the bucket. What is left behind when a history ends is brought in as far as it goes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime

from binlog2s3.archive.catalog import Catalog, fetch
from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ElsewhereError, ForkError, PreconditionError
from binlog2s3.log import Log
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.s3 import Store
from binlog2s3.stream.remote import where_absent
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.start import describe
from binlog2s3.stream.tail import Track
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.watermark import Coverage

_log = Log("intake")

_HINTS = {
    "gap": "what lies between is lost to the archive: take a new base backup",
    "unknown": "nothing proves that it follows: take a new base backup of this server",
}

OpenUploader = Callable[[Lineage, Coverage], Uploader]


class Intake:
    """Follows binlogs until they are closed.

    `lineage` and `uploader` are None until the first is known; `coverage` is of the lineage that
    grows. `last` is the last binlog that was taken in, while it is the history's end; `left` the
    lineage that was left last.
    """

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        spool: Spool,
        look: Callable[[], object],
        take_turn: Callable[[str], object],
        open_uploader: OpenUploader,
    ) -> None:
        self._store = store
        self._layout = layout
        self._spool = spool
        self._look = look
        self._take_turn = take_turn
        self._has_turn = False
        self._open_uploader = open_uploader
        self._waiting: list[Track] = []  # until it is known which history they are of
        self._open: list[Track] = []  # not closed yet
        self._handed: Track | None = None  # the last whose history is known
        self._unsure: set[BinlogName] = set()
        self._past: Mapping[BinlogName, int] = {}
        self._older: list[Uploader] = []
        self._parent: Parent | None = None
        self._flavour: Flavour = "mysql"
        self._server_uuid = ""
        self._described = False
        self._covered_before: datetime | None = None
        self.left: Lineage | None = None
        self.lineage: Lineage | None = None
        self.uploader: Uploader | None = None
        self.coverage: Coverage | None = None
        self.last: Track | None = None
        self.wants_list = False

    @property
    def is_behind(self) -> bool:
        """Whether something is not handed on yet, or an older history is still on its way."""
        return bool(self._waiting or self._older)

    def uploaders(self) -> Iterator[Uploader]:
        """All that have something to do, the oldest history first."""
        yield from self._older
        if self.uploader is not None:
            yield self.uploader

    @property
    def server_uuid(self) -> str:
        """Whose binlogs these are. Asked by any thread."""
        lineage = self.lineage
        return lineage.server_uuid if lineage is not None else self._server_uuid

    @property
    def done(self) -> bool:
        """Whether all that was taken in is in the bucket, as far as it can be by now."""
        return not self._waiting and all(uploader.done for uploader in self.uploaders())

    def resume(
        self,
        lineage: Lineage,
        durable: Position | None,
        following: BinlogName,
        *,
        described: bool,
        ended: bool = False,
    ) -> None:
        """Go on with a lineage that the bucket has, or (not `described`) that the spool begins.

        `ended`: only what is left of it is brought in, it is not the one that is written.
        """
        self._leave()
        self._has_turn = ended
        self.lineage, self._described = lineage, described
        self.coverage = Coverage(durable, following)
        self.uploader = self._open_uploader(lineage, self.coverage)

    def begin(self, server_uuid: str, flavour: Flavour, parent: Parent | None) -> None:
        """A new lineage begins with the next binlog that is taken in."""
        self._leave()
        self._has_turn = False
        self._server_uuid, self._flavour, self._parent = server_uuid, flavour, parent

    def _leave(self) -> None:
        """What is taken in so far goes no further: no binlog that is open will be closed."""
        for track in [*self._open]:
            self.abandon(track)
        if self.uploader is not None and not self.uploader.empty:
            self.uploader.end_history()
            self._older.append(self.uploader)
        if self.coverage is not None:
            self._covered_before = self.coverage.until
        for track in self._waiting:
            _log.warning("left in the spool: nothing proves its history", binlog=track.name)
        self._waiting.clear()
        self._unsure.clear()
        self._handed = None
        self.left = self.lineage or self.left
        self.lineage = self.uploader = self.coverage = self.last = None

    def abandon(self, track: Track) -> None:
        """The source will not finish this binlog: what there is of it becomes chunks."""
        if track not in self._open:
            return
        self._open.remove(track)
        for uploader in self.uploaders():
            uploader.abandon(track)
        _log.warning("cannot be finished", binlog=track.name, size=track.size)

    def forget(self, track: Track) -> None:
        """Of another history, or to be read anew: nothing more of it is uploaded."""
        self._open = [other for other in self._open if other is not track]
        self._waiting = [other for other in self._waiting if other is not track]
        for uploader in self.uploaders():
            uploader.drop(track)
        if self._handed is track:
            self._handed = None
        if self.last is track:
            self.last = self._handed

    def go_back(self) -> None:
        """The history ends where it is proved: forget the binlogs after it, in the spool, too."""
        for track in [*self._waiting]:
            self.forget(track)
            if self.lineage is not None:
                self._spool.release(track.name, self.lineage.id)
        for track in [*self._open]:
            self.abandon(track)
        self.last = self.last or self._handed

    def covered_until(self) -> datetime | None:
        """Up to when every commit of the lineage is in the bucket; of the one left, while none is.

        Of a new one not while an older history is on its way. Asked by any thread.
        """
        coverage = self.coverage
        if coverage is None:
            return self._covered_before
        return coverage.until if not self._older else None

    def follow(self, listed: Iterable[ServerBinlog]) -> None:
        """A run begins; this is what the server listed before, oldest first."""
        sizes = {row.name: row.size for row in listed}
        self._past = {name: size for name, size in sizes.items() if name != max(sizes)}

    def admit(self, track: Track) -> None:
        """Follow a binlog; it goes to the uploader when it is known which history it is of."""
        self.last = track
        self._open.append(track)
        self._waiting.append(track)

    def judge(self, listed: dict[BinlogName, ServerBinlog], *, streaming: bool = False) -> None:
        """Hand on what is known by now, and see which binlogs are closed.

        While `streaming`, the server is asked about a binlog without an end of its own: after a
        RESET the same GTIDs can have been used again. Raises ElsewhereError where the source went
        on behind another end of a binlog than was read.
        """
        self._close(listed, streaming=streaming)
        while self._waiting and self._waiting[0].begun and not self._unproved(self._waiting[0]):
            self._hand_on(self._waiting[0])
            self._handed = self._waiting.pop(0)
        self._older = [uploader for uploader in self._older if not uploader.empty]

    def _unproved(self, track: Track) -> bool:
        """Whether it follows a binlog that has no end of its own and was not seen to be whole.

        After a crash that is so for a moment; after a RESET the names go on, the history does not.
        """
        return any(other.next_in_run for other in self._open if other is not track)

    def _close(self, listed: dict[BinlogName, ServerBinlog], *, streaming: bool) -> None:
        """See which binlogs are closed, and which never will be."""
        candidates = [t for t in self._open if t.closed or t.scanner.ended or t.next_in_run]
        for track in candidates:
            row = listed.get(track.name)
            endless = not (track.closed or track.scanner.ended)
            finished = any(name > track.name for name in listed)
            same = row.size == track.size if row else track.history_goes_on
            if endless and finished and not same:
                there = f"has {row.size} bytes" if row else "is gone"
                raise ElsewhereError(
                    f"the server went on behind {track.name} at {track.size}, and its own {there}"
                )
            if endless and streaming and finished and row and not self._was_past(track):
                raise ElsewhereError(
                    f"the server went on behind {track.name} at {track.size}, which has no end: "
                    "whether its own is still the same is compared"
                )
            if not (endless and streaming and not finished) and track.judge(listed):
                self._open.remove(track)
                continue
            self.wants_list = True
            if track.name not in self._unsure:
                self._unsure.add(track.name)
                _log.info("waiting to know that it is closed", binlog=track.name, size=track.size)

    def _was_past(self, track: Track) -> bool:
        """Whether the server was past it when the run began that has compared, or read, its end.

        So it is after a crash. After a RESET another binlog can have the same name, size and GTIDs.
        """
        return self._past.get(track.name) == track.size

    def _hand_on(self, track: Track) -> None:
        if self.lineage is None:
            new = self._new(track)
            lineage = self._decided_already(new) or self._put(new)
            self.resume_new(lineage, track)
        elif not self._described:
            self._put(self.lineage)
        self._described = True
        assert self.lineage is not None and self.uploader is not None  # noqa: S101, PT018
        _check_first(track, self.lineage)
        if not self._has_turn:
            self._take_turn(self.lineage.id)
            self._has_turn = True
        self._note(self.lineage, track)
        self.uploader.add(track)

    def resume_new(self, lineage: Lineage, first: Track) -> None:
        """The lineage that begins with this binlog is described: its uploader can begin."""
        self.lineage = lineage
        self.coverage = Coverage(None, first.name)
        self.uploader = self._open_uploader(lineage, self.coverage)

    def _new(self, first: Track) -> Lineage:
        return describe(self._layout.source, self._server_uuid, self._flavour, first, self._parent)

    def _note(self, lineage: Lineage, track: Track) -> None:
        """Let the runs that this binlog lies in say of which lineage they are."""
        directories = {segment.path.parent for segment in track.segments}
        for run in self._spool.runs():
            if run.facts.lineage is None and run.directory in directories:
                self._spool.note(replace(run, facts=replace(run.facts, lineage=lineage.id)))

    def _decided_already(self, lineage: Lineage) -> Lineage | None:
        """The same lineage, if another writer has described it since we looked."""
        self._look()
        for other in Catalog(self._store, self._layout).lineages():
            if _same_beginning(other, lineage):
                return other
        return None

    def _put(self, lineage: Lineage) -> Lineage:
        key, document = self._layout.lineage(lineage.id), lineage.to_json()
        Lineage.from_json(document, key)  # nothing is put that could not be read again
        try:
            where_absent(lambda absent: self._store.put(key, document, if_absent=absent))
        except PreconditionError:  # ours, where an answer was lost
            if fetch(self._store, key, Lineage.MOST) != document:
                raise
        parent = asdict(lineage.parent) if lineage.parent else {}
        told = {f"parent_{key}": value for key, value in parent.items() if value not in (None, "")}
        say = _log.info
        if hint := _HINTS.get(str(parent.get("join")), ""):
            say, told = _log.warning, {**told, "hint": hint}
        say("new lineage", lineage=lineage.id, first_binlog=lineage.first_binlog, **told)
        return lineage


def _same_beginning(one: Lineage, other: Lineage) -> bool:
    def begins(lineage: Lineage) -> tuple[object, ...]:
        parent = lineage.parent
        return (
            lineage.server_uuid,
            lineage.first_binlog,
            lineage.first_binlog_time,
            (parent.lineage, parent.binlog, parent.offset) if parent else None,
        )

    return begins(one) == begins(other)


def _check_first(track: Track, lineage: Lineage) -> None:
    """A lineage's first binlog, met again before it was archived, must still be the same."""
    if track.name != lineage.first_binlog:
        return
    begun = track.created_at
    if begun != lineage.first_binlog_time:
        raise ForkError(
            f"the server's {track.name} was begun at {begun:%Y-%m-%d %H:%M:%SZ}, the one of "
            f"lineage {lineage.id} at {lineage.first_binlog_time:%Y-%m-%d %H:%M:%SZ}"
        )
