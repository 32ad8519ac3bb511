"""Takes binlogs in: decides which lineage they belong to; has closed ones known (`Track.judge`).

The uploader gets them, lineage by lineage.

Law: no byte is uploaded before its lineage is known and described in the bucket. When a history
ends, everything of it that was read is still uploaded. A lineage ends where the source has left
rows out: no binlog is handed on beyond that place.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import as_fields
from binlog2s3.archive.documents import UNLOGGED, Lineage, Parent, SourceServer, lineage_id
from binlog2s3.archive.history import is_unlogged_between
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Unlogged
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone, differs
from binlog2s3.errors import (
    AbortedError,
    ElsewhereError,
    ForkError,
    LeftOutError,
    SpoolError,
)
from binlog2s3.formatting import moment_text
from binlog2s3.log import Log
from binlog2s3.server.connection import ServerBinlog, ServerPosition
from binlog2s3.server.omissions import IGNORES
from binlog2s3.stream.continuation import KnownEnd, known_end_of
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.remote import put_once
from binlog2s3.stream.resume import NextRun
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.tail import Track, TrackState
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.writer import Writer
from binlog2s3.workers import both

_log = Log("tracking")

_ABORTED = "the source ended itself in a rotation, as MySQL does by default: nothing is missing"
_Lacks = Literal["document", "turn", ""]
"""What the bucket lacks of a lineage before its next byte: document and turn, turn, or nothing."""
_HINTS = {
    "gap": "the transactions in between are not in the archive: take a new base backup",
    "unknown": "nothing proves that it follows: take a new base backup of this server",
}


class Tracking:
    """Follows binlogs until they are closed.

    `unlogged`: the lineage's source was seen without a binlog. `known` is where the known history
    ended when the source was asked last, or with the lineage that was left: see `end`. None before
    the first lineage.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        spool: Spool,
        writer: Writer,
        uploads: Uploader,
    ) -> None:
        self._catalog = catalog
        self._spool = spool
        self._writer = writer
        self._uploads = uploads
        self._lacks: _Lacks = "document"
        self._waiting: list[Track] = []  # until their lineage is known
        self._open: list[Track] = []  # not closed yet
        self._handed: Track | None = None  # the last one whose lineage is known
        self._unsure: set[BinlogName] = set()
        self._past: Mapping[BinlogName, int] = {}
        self._parent: Parent | None = None
        self._flavour: Flavour = "mysql"
        self._server_uuid = ""
        self._left: Coverage | None = None  # of the lineage that grew before
        self._resumed: KnownEnd | None = None  # as `known` was then: it moves on with what is read
        self._witnessed = ""  # the lineage that `unlogged` is of
        self.unlogged: Unlogged | None = None
        self.known: KnownEnd | None = None
        self._run: NextRun | None = None  # the last one, and what the server said before it
        self._left_out_before: tuple[str, ...] | None = (
            None  # to the writer before, of the first binlog
        )
        self._zone_before: tuple[SystemZone, BinlogName | None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether a binlog waits for its lineage, or an older lineage is not uploaded yet."""
        return bool(self._waiting or self._uploads.is_behind(self.coverage))

    @property
    def coverage(self) -> Coverage | None:
        """Of the lineage that grows; None until one is known. Called by any thread."""
        return self._uploads.coverage

    @property
    def lineage(self) -> Lineage | None:
        """The lineage that grows; None until one is known. Called by any thread."""
        coverage = self.coverage
        return coverage.lineage if coverage is not None else None

    @property
    def server_uuid(self) -> str:
        """The UUID of the server whose binlogs these are. Called by any thread."""
        lineage = self.lineage
        return lineage.server_uuid if lineage is not None else self._server_uuid

    @property
    def done(self) -> bool:
        """Whether everything that was taken in and can be uploaded is in the bucket."""
        return not self._waiting and self._uploads.done

    @property
    def last(self) -> Track | None:
        """The last binlog that was taken in and still belongs to the history.

        Called by any thread, too: a binlog is handed on before it no longer waits.
        """
        waiting = self._waiting[-1:]
        return waiting[0] if waiting else self._handed

    @property
    def end(self) -> KnownEnd | None:
        """Where the known history ends; None if nothing is known of any."""
        return _end(self.lineage, self.last, self.known)

    @property
    def newest(self) -> Coverage | None:
        """Of the lineage that grows; while a new one has no binlog yet, of the one that was left.

        None until one was taken in: a claim names none, as it may come after a later one's. Called
        by any thread.
        """
        return self.coverage or self._left

    def resume(self, known_end: KnownEnd, *, lacks: _Lacks = "turn") -> None:
        """Continue a lineage after its end in the bucket, which lacks this before the next byte.

        The document and the turn, if only the spool has anything of it; nothing, if only the rest
        of it is uploaded: then it is not the lineage that grows.
        """
        lineage = known_end.lineage
        self._leave_server(lineage.server_uuid)
        self._leave()
        self._lacks = lacks
        self._resumed = replace(known_end, track=None)
        before = self._writer.before(lineage.id)
        self._left_out_before = before.leaves_out if before else None
        if lineage.id != self._witnessed:
            self._witnessed, self.unlogged = lineage.id, before.unlogged if before else None
            if before is not None and before.time_zone is not None:
                seen = [
                    at.file_position.binlog
                    for at in (before.server, before.durable)
                    if at is not None
                ]
                self._zone_before = before.time_zone, max(seen, default=None)
        if self._left is not None and self._left.lineage.id == lineage.id:
            coverage = self._left  # not all that is known of it need be in the bucket
        else:
            is_proved = known_end.closed or known_end.track is not None
            durable = known_end.position if is_proved else None
            coverage = Coverage(lineage, durable, known_end.incomplete)
        self._uploads.open(coverage)
        if known_end.track is not None:
            self.admit(known_end.track)
        self.known = known_end

    def begin(self, server_uuid: str, flavour: Flavour, parent: Parent | None) -> None:
        """Begin a new lineage with the next binlog that is taken in."""
        self.known = self.end
        self._leave_server(server_uuid)
        self._leave()
        self._lacks = "document"
        self._server_uuid, self._flavour, self._parent = server_uuid, flavour, parent
        self._resumed = self._left_out_before = None

    def _leave_server(self, server_uuid: str) -> None:
        """Forget what the server said of itself, if the history goes on at another one."""
        if server_uuid != self.server_uuid:
            self._zone_before = None

    def _leave(self) -> None:
        """End the history that was taken in so far: no open binlog of it will be closed."""
        for track in [*self._open]:
            self.abandon(track)
        self._left = self.newest
        for track in self._waiting:
            _log.warning("left in the spool: nothing proves its history", binlog=track.name)
        self._waiting.clear()
        self._unsure.clear()
        self._handed = None
        self._uploads.end_history()

    def abandon(self, track: Track) -> None:
        """Give up a binlog that the source cannot finish: its bytes stay as chunks.

        What has not begun is forgotten: nothing says which history it is of.
        """
        if track not in self._open:
            return
        _log.warning("the binlog cannot be completed", binlog=track.name, size=track.size)
        if not track.begun:
            self.forget(track)
            return
        self._open.remove(track)
        self._uploads.abandon(track)

    def forget(self, track: Track) -> None:
        """Upload nothing more of a binlog: it is of another history, or is read again."""
        self._open = [other for other in self._open if other is not track]
        self._waiting = [other for other in self._waiting if other is not track]
        self._uploads.drop(track)
        if self._handed is track:
            self._handed = None

    def forget_from(self, name: BinlogName) -> None:
        """Forget a binlog and all after it: they are of another history than the bucket's."""
        handed = [self._handed] if self._handed is not None else []
        for track in {*self._waiting, *self._open, *handed}:
            if track.name >= name:
                self.forget(track)

    def go_back(self) -> None:
        """End the history where it is proved. Forget the binlogs after it, in the spool, too."""
        for track in [*self._waiting]:
            self.forget(track)
            if self.lineage is not None:
                self._spool.release(track.name, self.lineage.id)
        for track in [*self._open]:
            self.abandon(track)

    def covered_until(self, newest: Coverage | None) -> datetime | None:
        """The time up to which every commit of `newest` is in the bucket.

        None while an older lineage is not uploaded yet. Called by any thread.
        """
        if newest is None or self._uploads.is_behind(newest):
            return None
        return newest.until

    def seen(self, position: ServerPosition, *, is_read: bool) -> None:
        """Note the source's position, if it is the lineage's own server. Called by the watch."""
        coverage = self.coverage
        if position.uuid != self.server_uuid:
            return
        self._writer.told_time(position.asked_at)
        if coverage is not None and coverage.lineage.server_uuid == position.uuid:
            coverage.seen(position, is_read=is_read)
        unlogged = self.unlogged
        if unlogged is not None and unlogged.last is None:
            if unlogged.is_renamed(position.place.binlog):
                return
            last = replace(unlogged, last=position.place.binlog)
            self.unlogged = last if unlogged.covers(position.place.binlog) else None

    def saw_no_binlog(self, uuid: str, newest: BinlogName | None) -> None:
        """Note that the lineage's server answers and writes no binlog. Called by any thread.

        `newest` is the newest binlog that it was seen to write. What it leaves out lies before the
        next one that a start of the server begins.
        """
        coverage, last = self.newest, self.last
        if coverage is None or uuid != coverage.lineage.server_uuid:
            return
        lineage, resumed = coverage.lineage, self._resumed
        known = [name for name in (last and last.name.next(), newest and newest.next()) if name]
        begin = resumed.incomplete if resumed is not None else lineage.begin
        first = max([*known, begin], key=lambda binlog: binlog.number)
        before = self.unlogged if self._witnessed == lineage.id else None
        if before is not None:  # the binlogs from there on are not read yet
            self.unlogged = replace(before, last=None)
            return
        self._witnessed = lineage.id
        self.unlogged = Unlogged(since=datetime.now(UTC), first=first, last=None)
        _log.warning("the source writes no binlog: a gap will be recorded", lineage=lineage.id)

    @property
    def time_zone(self) -> SystemZone | None:
        """The time zone of the server when the last run began. Called by any thread."""
        run = self._run
        return run.time_zone if run is not None and run.facts.uuid == self.server_uuid else None

    @property
    def leaves_out(self) -> tuple[str, ...] | None:
        """What the source said its binlogs do not have; None if it was not asked yet."""
        return self._run.leaves_out if self._run is not None else None

    def follow(self, run: NextRun) -> None:
        """Note what the server said before the run that begins now.

        An open binlog has what was said before, too.
        """
        before, zone, newest = self._run, self.time_zone, max(row.name for row in run.listed)
        if before is not None and zone is not None and before.started_at != run.started_at:
            self._zone_before = zone, max(row.name for row in before.listed)
        self._run = run
        self._past = {row.name: row.size for row in run.listed if row.name != newest}
        for track in self._open:  # of an earlier process
            track.leaves_out = _all_of(track.leaves_out, run.leaves_out)
            track.time_zone = track.time_zone or self._zone_of(track)
            track.gtids_outside = run.gtids_outside

    def _zone_of(self, track: Track) -> SystemZone | None:
        """The server's time zone while it wrote a binlog; None if nobody has asked it then.

        A binlog from before the server's start was written in the zone of then. What the server
        said before counts for the binlog that it wrote then, and for all if it says the same now.
        """
        run, before, now = self._run, self._zone_before, self.time_zone
        if not track.begun:
            return None
        if run is None or run.started_at is None or before is None:
            return now
        # one that is as old as the start, to the second, is its first one, or from before it
        if (track.created_at, track.started) >= (run.started_at, True):
            return now
        zone, newest = before
        if now is not None and not differs(zone, now):
            return now
        return zone if track.name == newest else None

    def admit(self, track: Track) -> None:
        """Take a binlog in. It goes to the uploader once its lineage is known."""
        track.source_size = self._past.get(track.name)
        track.time_zone = self._zone_of(track)
        resumed = self._resumed
        is_first = resumed is not None and track.name == resumed.incomplete
        before = self._left_out_before if is_first else None
        track.leaves_out = _all_of(before, self.leaves_out)
        track.gtids_outside = self._run.gtids_outside if self._run is not None else ""
        self._open.append(track)
        self._waiting.append(track)

    def judge(self, listed: dict[BinlogName, ServerBinlog], *, streaming: bool = False) -> bool:
        """Close the binlogs that are complete, and hand on those whose lineage is known.

        Returns whether only a newer list of the server can tell if a binlog is closed.

        While `streaming`, a binlog without an end event is compared with the server's list: after
        a RESET, the same GTIDs can have been used again. Raises ElsewhereError if the server has
        gone on to the next binlog, and this one ends elsewhere there, LeftOutError if rows are
        missing before the next one, and AbortedError if only the binlogs look like that.
        """
        unsure = self._close(listed, streaming=streaming)
        while self._waiting and self._waiting[0].begun and not self._unproved(self._waiting[0]):
            if (error := self._left_out(self._waiting[0])) is not None:
                if streaming:
                    raise error
                break
            self._hand_on(self._waiting[0])
            self._handed = self._waiting[0]
            del self._waiting[0]
        return unsure

    def _unproved(self, track: Track) -> bool:
        """Whether it follows a binlog that has no end event and is not known to be complete.

        After a crash this lasts a moment. After a RESET the names continue and the history does
        not.
        """
        return any(other.passed for other in self._open if other is not track)

    def _left_out(self, track: Track) -> LeftOutError | AbortedError | None:
        """Why rows are missing before this binlog, which is the next of its lineage; None if none.

        Or why it only looks like that: a MySQL ends itself if a rotation fails, unless it is told
        to ignore that. It must have said before and afterwards that it is not, and this process
        must have been there in between, and have seen no server without a binlog.
        """
        before, lineage, resumed = self._handed, self.lineage, self._resumed
        if lineage is None or track.name == lineage.first_binlog:
            return None
        if before is not None:
            expected, rotates_to = before.name.next(), before.next_binlog
        elif resumed is not None:
            expected, rotates_to = resumed.incomplete, resumed.rotated_to
        else:
            return None
        if track.name != expected:
            return None
        rotated, started = rotates_to == track.name, track.started
        unlogged = self.unlogged if self._witnessed == lineage.id else None
        seen = unlogged is not None and started and unlogged.covers(track.name)
        if not seen and not is_unlogged_between(rotated=rotated, started=started):
            return None
        answers = (before.leaves_out, self.leaves_out) if before is not None else (None,)
        aborts = all(texts is not None and IGNORES not in texts for texts in answers)
        if aborts and not seen and lineage.flavour == "mysql":
            return AbortedError(f"before {track.name}: {_ABORTED}")
        return LeftOutError(f"before {track.name}: {UNLOGGED}")

    def _close(self, listed: dict[BinlogName, ServerBinlog], *, streaming: bool) -> bool:
        """Close the binlogs that are complete: see `judge`."""
        unsure = False
        candidates = [t for t in self._open if t.scanner.ended or t.passed]
        for track in candidates:
            row = listed.get(track.name)
            endless = not (track.closed or track.scanner.ended)
            finished = any(name > track.name for name in listed)
            same = row.size == track.size if row else track.state is TrackState.FOLLOWED
            if endless and finished and not same:
                how = f"has {row.size} bytes" if row else "is gone"
                raise ElsewhereError(
                    f"{track.name} was read up to {track.size}, the server has newer binlogs, and "
                    f"its own {how}"
                )
            if endless and streaming and finished and row and not self._was_past(track):
                raise ElsewhereError(
                    f"{track.name} was read up to {track.size} and has no end, and the server has "
                    "newer binlogs: it is compared with the server's own"
                )
            if not (endless and streaming and not finished) and track.judge(listed):
                self._open.remove(track)
                continue
            unsure = True
            if track.name not in self._unsure:
                self._unsure.add(track.name)
                _log.info(
                    "waiting for proof that the binlog is closed",
                    binlog=track.name,
                    size=track.size,
                )
        return unsure

    def _was_past(self, track: Track) -> bool:
        """Whether the server had already finished it when the run began that read its end.

        That is so after a crash. After a RESET, another binlog can have the same name, size and
        GTIDs.
        """
        return self._past.get(track.name) == track.size

    def _hand_on(self, track: Track) -> None:
        track.time_zone = track.time_zone or self._zone_of(track)
        lineage = self.lineage or self._new(track)
        if self._lacks:
            ask = partial(self._in_the_bucket, lineage, track)
            lineage, is_ours = self._uploads.wait_for(ask)
            if self.lineage is None:
                coverage = Coverage(lineage, None, track.name)
                self._uploads.open(coverage, track.name if is_ours else None)
            self._lacks = ""
        _check_first(track, lineage)
        self._pass_on_witness(lineage, track)
        self._note(lineage, track)
        self._uploads.add(track)

    def _pass_on_witness(self, lineage: Lineage, track: Track) -> None:
        """A source that was started twice may have left rows out before the second start."""
        unlogged, parent, left = self.unlogged, lineage.parent, self.known
        if unlogged is None or lineage.id == self._witnessed:
            return
        is_ours = (
            parent is not None
            and (parent.lineage, parent.join != "unknown") == (self._witnessed, True)
            and left is not None
            and left.lineage.server_uuid == lineage.server_uuid
        )
        self._witnessed = lineage.id
        if unlogged.covers(track.name):
            unlogged = replace(unlogged, first=track.name.next())
        is_over = unlogged.is_renamed(track.name) or (
            unlogged.last is not None and not unlogged.covers(unlogged.last)
        )
        self.unlogged = unlogged if is_ours and not is_over else None

    def _in_the_bucket(self, lineage: Lineage, first: Track) -> tuple[Lineage, bool]:
        """Describe it, or take the same one of another writer, and take the turn for it.

        Also returns whether nobody else can have written there: the store has taken its document
        from this call, and refuses to replace one.
        """
        describe: Callable[[], bool] | None = None
        if self._lacks == "document":
            describe = partial(self._put, lineage)
        if self.lineage is None:
            lineage, describe = self._decided(lineage)
        _check_first(first, lineage)
        is_ours = self._writer.take_turn(lineage.id, describe)
        return lineage, is_ours and self._catalog.store.refuses_replacing

    def _new(self, first: Track) -> Lineage:
        parent = self._joined(first)
        return describe(self._spool.source, self._server_uuid, self._flavour, first, parent)

    def _joined(self, first: Track) -> Parent | None:
        """The parent of the lineage that begins; with the gap that only a witness knows.

        A server that wrote no binlog, and then others of another name: GTIDs show no gap.
        """
        parent, unlogged, left = self._parent, self.unlogged, self.known
        if parent is None or unlogged is None or left is None:
            return parent
        is_ours = (
            parent.lineage == self._witnessed and left.lineage.server_uuid == self._server_uuid
        )
        if not is_ours or not unlogged.is_renamed(first.name):
            return parent
        return replace(parent, join="unknown" if parent.join == "unknown" else "gap", unlogged=True)

    def _note(self, lineage: Lineage, track: Track) -> None:
        """Note the lineage in the runs that have bytes of this binlog."""
        directories = {segment.path.parent for segment in track.segments}
        for run in self._spool.runs():
            if run.facts.lineage is None and run.directory in directories:
                noted = replace(run, facts=replace(run.facts, lineage=lineage.id))
                try:
                    self._spool.note(noted)
                except SpoolError as error:  # a full disk; a start sees whose the run is
                    if not error.transient:
                        raise
                    _log.recurring("the lineage is not noted in the spool", error=error)

    def _decided(self, lineage: Lineage) -> tuple[Lineage, Callable[[], bool] | None]:
        """The lineage that begins, and what describes it in the bucket.

        It is that of another writer which has described the same one meanwhile; it needs nothing.
        """
        (_, others), unused = both(
            partial(both, self._writer.look, self._catalog.lineages), partial(self._unused, lineage)
        )
        for other in others:
            if _same_beginning(other, lineage):
                return other, None
        return unused, partial(self._put, unused)

    def _unused(self, lineage: Lineage) -> Lineage:
        """The same lineage under an id that nobody has written under."""
        while self._uploads.plants.in_lineage(lineage.id):
            lineage = renamed(lineage)
        return lineage

    def _put(self, lineage: Lineage) -> bool:
        """Describe it in the bucket; False if its document was there already."""
        key = self._catalog.layout.lineage(lineage.id)
        is_new = put_once(self._catalog.store, key, lineage)
        parent = as_fields(lineage.parent) if lineage.parent else {}
        fields = {
            f"parent_{key}": value for key, value in parent.items() if value not in (None, "")
        }
        say = _log.info
        if hint := _HINTS.get(str(parent.get("join")), ""):
            say, fields = _log.warning, {**fields, "hint": hint}
        say("new lineage", lineage=lineage.id, first_binlog=lineage.first_binlog, **fields)
        return is_new


def describe(
    source: str,
    server_uuid: str,
    flavour: Flavour,
    first: BinlogReading,
    parent: Parent | None = None,
) -> Lineage:
    """A new lineage of this server, which begins with this binlog."""
    begun, before = first.created_at, first.gtids_before()
    return Lineage(
        lineage=lineage_id(begun, server_uuid, secrets.token_hex(2)),
        source=source,
        server=SourceServer(
            uuid=server_uuid,
            flavour=flavour,
            version=first.scanner.formats[0].server_version,
        ),
        first_binlog=first.name,
        first_binlog_time=begun,
        gtid_set=str(before) if before is not None else "",
        parent=parent,
        time_zone=first.time_zone,
        gtids_outside=first.gtids_outside,
    )


def renamed(lineage: Lineage) -> Lineage:
    """The same new lineage with another id."""
    id_ = lineage_id(lineage.first_binlog_time, lineage.server_uuid, secrets.token_hex(2))
    return replace(lineage, lineage=id_)


def _end(lineage: Lineage | None, last: Track | None, known: KnownEnd | None) -> KnownEnd | None:
    """Where the known history ends: with what was taken in, else where it ended before, `known`.

    While a binlog is read again, more of it is known: the bucket has it.
    """
    if lineage is None or last is None:
        return known
    read_end = known_end_of(lineage, last, closed=last.closed)
    if known is None or (known.lineage.id, known.last) != (lineage.id, last.name):
        return read_end
    if last.closed or known.closed or known.size <= read_end.size:
        return read_end
    return replace(known, overlap=read_end.overlap, track=None)  # a run continues what was read


def _all_of(before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What was said at either time; None if it was never asked."""
    if before is None or now is None:
        return now if before is None else before
    return tuple(dict.fromkeys((*before, *now)))


def _same_beginning(known: Lineage, other: Lineage) -> bool:
    def begins(lineage: Lineage) -> tuple[object, ...]:
        parent = lineage.parent
        return (
            lineage.server_uuid,
            lineage.first_binlog,
            lineage.first_binlog_time,
            (parent.lineage, parent.binlog, parent.offset) if parent else None,
        )

    return begins(known) == begins(other)


def _check_first(track: Track, lineage: Lineage) -> None:
    """Raise ForkError if a lineage's first binlog is not the one that it began with."""
    if track.name != lineage.first_binlog:
        return
    begun = track.created_at
    if begun != lineage.first_binlog_time:
        raise ForkError(
            f"the server's {track.name} was created at {moment_text(begun)}, the one of "
            f"lineage {lineage.id} at {moment_text(lineage.first_binlog_time)}",
            binlog=str(track.name),
        )
