"""Finds where the next run of mysqlbinlog begins: asks the source who it is and what it has.

`continuation` decides. If the source contradicts the archive, `compare` compares bytes.

Law: all answers are of one server: its UUID is asked before and after. What is answered here is
proved again by the bytes of the run itself.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.gtid import Gtids, GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.config.stream import Config, StreamConfig
from binlog2s3.errors import GapError, SourceError, UncomparedError, UnloggedError
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerBinlog, ServerFacts, started_at
from binlog2s3.server.mysqlbinlog import Tool, find, refuse_unguarded
from binlog2s3.server.omissions import came_in, omissions
from binlog2s3.stream.archive_end import archive_end, known_end_of_archive
from binlog2s3.stream.compare import Common, Finder, cut
from binlog2s3.stream.continuation import (
    Begin,
    Contradicts,
    Course,
    GoOn,
    KnownEnd,
    acceptable,
    left_out,
    parent,
    same_server,
    successor,
    unservable,
)
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.tail import Overlap

_log = Log("resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """Where the next run begins, on this server.

    `course`: after which end a lineage continues, or with which binlog a new one begins.
    `leaves_out`: what the server says its binlogs do not have. `time_zone`: the server's since it
    was `started_at`, None if it does not tell. `gtids_outside`: see `Lineage`.
    """

    facts: ServerFacts
    tool: Tool
    listed: tuple[ServerBinlog, ...]
    course: GoOn | Begin
    leaves_out: tuple[str, ...] | None = None
    time_zone: SystemZone | None = None
    gtids_outside: str = ""
    started_at: datetime | None = None

    @property
    def begin(self) -> BinlogName:
        """The first binlog that the run sends."""
        return self.course.begin

    @property
    def overlap(self) -> Overlap | None:
        """The known bytes that the run sends again; None if there is nothing to compare."""
        return self.course.overlap if isinstance(self.course, GoOn) else None

    @property
    def position(self) -> int:
        """The start position to ask for."""
        return self.overlap.position if self.overlap else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why the next run does not simply continue: the bytes are compared first.

    | kind | meaning |
    |---|---|
    | other | the source may have another history |
    | refused | the source does not give what comes next; `unreadable` is its binlog, if its first \
event is damaged |
    | taken | somebody wrote under the next entry's key: the history goes on in another lineage |
    | left out | what comes next follows, but rows before it are in no binlog |
    | aborted | it only looks like that: what comes next follows exactly |
    """

    why: str
    kind: Literal["other", "refused", "taken", "left out", "aborted"] = "other"
    unreadable: BinlogName | None = None


class Resumption:
    """Finds where the next run begins.

    Its probes run in the spool, in directories that are discarded; without one, it compares nothing
    and raises UncomparedError.

    It may take long, as whole binlogs may be compared: `stop` ends that.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        spool: Spool | None,
        stop: threading.Event,
    ) -> None:
        self.config = config.stream
        self._mysqlbinlog = config.mysql.mysqlbinlog
        self.grid = Grid(config.s3.part_size)
        self.catalog = catalog
        self.spool = spool
        self.stop = stop
        self._checked: set[str] = set()

    def next_run(
        self, server: Server, known_end: KnownEnd | None, doubt: Doubt | None = None
    ) -> NextRun:
        """Where to continue after `known_end`.

        Raises SourceError if the source cannot be asked, refuses, or is refused, and GapError if
        there is a gap and --on-gap is stop.
        """
        facts = server.facts()
        tool = find(facts.flavour, self._mysqlbinlog)
        refuse_unguarded(tool, server.login())
        try:
            listed = server.binlogs()
        except UnloggedError as error:
            error.uuid = facts.uuid
            raise
        if not listed:
            raise SourceError("the server lists no binary logs", hint="is log_bin set?")
        if facts.uuid not in self._checked:
            server.check_privileges(listed[0].name)
            self._checked.add(facts.uuid)
        zone, started = _time_zone(server)
        plain = NextRun(
            facts=facts,
            tool=tool,
            listed=listed,
            course=Begin(begin=listed[0].name),
            leaves_out=omissions(server),
            time_zone=zone,
            started_at=started,
            gtids_outside=server.gtids_outside(listed[0].name),
        )
        if known_end is None:
            return replace(plain, course=Begin(begin=self._first(listed, doubt)))
        if facts.flavour != known_end.lineage.flavour:
            raise _refused(known_end, facts, "it is of another flavour")
        course = self._continuation(server, plain, known_end, doubt).course()
        if (after := server.facts().uuid) != facts.uuid:
            raise SourceError(
                f"the server changed while it was asked: {facts.uuid}, then {after}",
                hint="a proxy or a fail-over; it is asked again",
                transient=True,
            )
        return self._steered(plain, course, anew=doubt is not None)

    def _continuation(
        self, server: Server, plain: NextRun, known_end: KnownEnd, doubt: Doubt | None
    ) -> "Continuation":
        return Continuation(
            resumption=self, server=server, plain=plain, known_end=known_end, doubt=doubt
        )

    def _first(self, listed: tuple[ServerBinlog, ...], doubt: Doubt | None) -> BinlogName:
        """The first binlog of an empty archive; the one after it if that cannot be read."""
        begin = first_binlog(self.config, listed)
        if doubt is None or doubt.unreadable is None or doubt.unreadable < begin:
            return begin
        later = [row.name for row in listed if row.name > doubt.unreadable]
        if not later:
            raise _unreadable(doubt)
        if self.config.on_gap == "stop":
            raise GapError(
                f"gap: the source cannot give {doubt.unreadable}: {doubt.why}",
                hint="--on-gap continue begins the archive with the next binlog",
            )
        _log.warning("the archive begins after a binlog that cannot be read",
                     binlog=doubt.unreadable, why=doubt.why, begin=later[0])  # fmt: skip
        return later[0]

    def _steered(self, plain: NextRun, course: Course, *, anew: bool) -> NextRun:
        """Go that way; `anew`: an open binlog is read from its first byte."""
        if isinstance(course, GoOn):
            known_end = course.known_end
            if anew and not known_end.closed:
                course = replace(course, known_end=replace(known_end, overlap=None))
            return replace(plain, course=course, leaves_out=_with_grown(plain, known_end.lineage))
        assert isinstance(course, Begin)  # noqa: S101 - contradictions were looked into
        origin = course.parent
        if origin is not None and origin.join == "gap" and self.config.on_gap == "stop":
            what = origin.cause if origin.unlogged else f"the source no longer has {origin.missing}"
            raise GapError(
                f"gap: {what}; its history continues with {course.begin}",
                hint="what is missing is lost to the archive: take a new base backup; --on-gap "
                "continue begins a new lineage after the gap",
            )
        return replace(plain, course=course)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What comes after `known_end` on this server, which is in the state that `plain` says.

    `doubt`: why it is not simply continued; None if nothing speaks against that.
    """

    resumption: Resumption
    server: Server
    plain: NextRun
    known_end: KnownEnd
    doubt: Doubt | None

    def course(self) -> Course:
        """Where the history goes on. Raises SourceError."""
        if self.plain.facts.uuid != self.known_end.lineage.server_uuid:
            return self._another()
        if self.doubt is not None and self.doubt.kind == "taken":
            return self._beside()
        return self._same()

    def _beside(self) -> Begin:
        """Go on in a new lineage, from the first binlog on that has no entry in this one."""
        plain, lineage, catalog = self.plain, self.known_end.lineage, self.resumption.catalog
        end = replace(archive_end(catalog, lineage), next_size=0)
        known_end = known_end_of_archive(catalog, end)
        later = [row for row in plain.listed if row.name >= end.following]
        course = same_server(known_end, later or plain.listed, self.server.gtids_before)
        if isinstance(course, GoOn):
            origin = parent(known_end, "exact") if known_end.last is not None else lineage.parent
            return Begin(begin=course.begin, parent=origin)
        if isinstance(course, Contradicts):
            return Begin(begin=(later or plain.listed)[0].name, parent=parent(known_end, "unknown"))
        return course

    def _same(self) -> Course:
        plain, known_end, doubt = self.plain, self.known_end, self.doubt
        if doubt is not None and doubt.unreadable == known_end.following:
            behind = unservable(known_end, plain.listed, self.server.gtids_before, doubt.unreadable)
            if behind is None:
                raise _unreadable(doubt)
            return behind
        if doubt is not None and doubt.kind in ("left out", "aborted"):
            behind = left_out(
                known_end,
                plain.listed,
                self.server.gtids_before,
                aborted=doubt.kind == "aborted",
            )
            if behind is not None:
                return behind
        course = same_server(known_end, plain.listed, self.server.gtids_before)
        if doubt is None and not isinstance(course, Contradicts):
            return course
        why = course.why if isinstance(course, Contradicts) else doubt.why if doubt else ""
        spool = self.resumption.spool
        if spool is None:
            raise UncomparedError(f"the server contradicts the archive: {why}")
        _log.warning("the server contradicts the archive", server=plain.facts.uuid, why=why,
                     lineage=known_end.lineage.id)  # fmt: skip
        finder = self._finder(spool)
        try:
            common = finder.last_common([row.name for row in plain.listed])
        except SourceError as error:
            behind = unservable(known_end, plain.listed, self.server.gtids_before)
            if not error.unservable or behind is None:
                raise
            _log.warning(
                "the server cannot send the rest of the binlog", binlog=known_end.last, error=error
            )
            return behind
        if common is None and (node := self._another_node(finder)) is not None:
            return node
        return self._apart(common)

    def _another_node(self, finder: Finder) -> Begin | None:
        """How the history continues if this is another server with the same ids; None if not.

        A MariaDB is known by its server_id and gtid_domain_id, which the nodes of a Galera cluster
        have in common unless somebody sets them. Equal GTIDs alone prove nothing: a server that was
        reset uses them again.
        """
        plain, known_end = self.plain, self.known_end
        executed = self.server.executed() if plain.facts.flavour == "mariadb" else None
        if not acceptable(known_end, executed):
            return None  # as after a reset; no binlog needs to be read for that
        successor = self._successor(executed)
        origin, names = successor.parent, [row.name for row in plain.listed]
        if origin is None or origin.join != "exact":
            return None
        if not finder.has_end(origin, names, successor.begin):
            return None
        _log.warning(
            "another server with the same server_id and gtid_domain_id: it has the archive's "
            "transactions",
            server=plain.facts.uuid,
            lineage=known_end.lineage.id,
            hint="give each node of a cluster a gtid_domain_id of its own",
        )
        return successor

    def _apart(self, common: Common | None) -> Course:
        plain, known_end = self.plain, self.known_end
        if common is None:
            return Begin(begin=plain.listed[0].name, parent=parent(known_end, "unknown"))
        rows = {row.name: row for row in plain.listed}
        begin, offset = common.position.file_position
        size = rows[begin].size
        if common.whole and begin == known_end.last and size >= known_end.size and not (
            known_end.closed and size != known_end.size
        ):  # fmt: skip
            behind = None
            if self.doubt is not None and self.doubt.kind == "refused":
                behind = unservable(known_end, plain.listed, self.server.gtids_before)
            return behind or GoOn(known_end=known_end, again=True)
        if common.whole and size == offset and begin.next() in rows:
            begin = begin.next()
        return Begin(begin=begin, parent=parent(known_end, "exact", at=common.position))

    def _another(self) -> GoOn | Begin:
        plain, known_end = self.plain, self.known_end
        executed, uuid = self.server.executed(), plain.facts.uuid
        allowed = (self.resumption.config.accept_new_server or "").lower()
        if uuid.lower() != allowed and not acceptable(known_end, executed):
            raise _refused(known_end, plain.facts, "it does not have the archive's transactions")
        if self.doubt is None:
            for other in self._others(uuid):
                course = same_server(other, plain.listed, self.server.gtids_before)
                if isinstance(course, GoOn):
                    _log.warning("back at a server that was streamed before", server=uuid,
                                 lineage=other.lineage.id, left=known_end.lineage.id)  # fmt: skip
                    return course
        _log.warning(
            "another server has taken over", server=uuid, before=known_end.lineage.server_uuid
        )
        return self._successor(executed)

    def _successor(self, executed: Gtids | None) -> Begin:
        return successor(
            self.known_end,
            executed,
            self.plain.listed,
            self.server.gtids_before,
            cut=self._cut,
        )

    def _finder(self, spool: Spool) -> Finder:
        """Compares this server with the lineage."""
        return Finder(
            self.resumption.catalog,
            self.known_end.lineage,
            server=self.server,
            facts=self.plain.facts,
            tool=self.plain.tool,
            spool=spool,
            stop=self.resumption.stop,
        )

    def _others(self, uuid: str) -> Sequence[KnownEnd]:
        """Where the lineages of this server end, the newest first."""
        catalog, grid = self.resumption.catalog, self.resumption.grid
        ours = [other for other in catalog.lineages() if other.server_uuid == uuid]
        return [
            known_end_of_archive(catalog, archive_end(catalog, lineage), grid)
            for lineage in reversed(ours)
        ]

    def _cut(self, executed: Gtids) -> Parent | None:
        position = cut(self.resumption.catalog, self.known_end.lineage, executed)
        return parent(self.known_end, "exact", at=position) if position is not None else None


def _with_grown(plain: NextRun, lineage: Lineage) -> tuple[str, ...] | None:
    """What the source leaves out, with the GTIDs that came in without a binlog since it began."""
    known = GtidSet.parse(lineage.gtids_outside)
    grown = GtidSet.parse(plain.gtids_outside) - known
    return (*(plain.leaves_out or ()), came_in(grown)) if grown else plain.leaves_out


def _time_zone(server: Server) -> tuple[SystemZone | None, datetime | None]:
    """The server's time zone this year, and when it was started.

    A proxy that refuses the questions does not end the run.
    """
    try:
        return server.time_zone(datetime.now(UTC).year), started_at(server)
    except SourceError as error:
        if not error.answered:
            raise
        _log.warning("the server does not tell its time zone", error=error)
        return None, None


def _unreadable(doubt: Doubt) -> SourceError:
    return SourceError(
        f"{doubt.unreadable} cannot be read, and is the newest: {doubt.why}",
        hint="it is read again; after FLUSH BINARY LOGS the stream continues with the next one",
        transient=True,
    )


def _refused(known_end: KnownEnd, facts: ServerFacts, why: str) -> SourceError:
    source = known_end.lineage.source
    return SourceError(
        f"the bucket holds source {source} of server {known_end.lineage.server_uuid}; "
        f"this server is {facts.uuid}, and {why}",
        hint="was --source copied from another machine? each server needs a name of its own; if it "
        f"is the successor: --accept-new-server {facts.uuid}",
        refused=True,
    )


def first_binlog(config: StreamConfig, listed: tuple[ServerBinlog, ...]) -> BinlogName:
    """The first binlog of an empty archive. Raises SourceError if the server does not have it."""
    names = [row.name for row in listed]
    if config.start_binlog is None:
        return names[-1] if config.start_at == "now" else names[0]
    if config.start_binlog not in names:
        raise SourceError(
            f"the server has no binlog {config.start_binlog}: it has {names[0]} to {names[-1]}",
            hint="give --start-binlog one of SHOW BINARY LOGS, or leave it out",
        )
    return config.start_binlog
