"""A plan, brought into a target: which way it goes, that nothing is done twice, the proof.

Place in the flow: under `pitr`, which planned and asked; `relay` and `pipe` are the two ways.

Law: the target says itself how far it is, by its GTIDs, by the relay log's position, or by a marker
that admits that nobody knows; what may have been applied already is not applied again.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from binlog2s3 import mysqlbinlog, relay, target
from binlog2s3.binlog import BinlogName
from binlog2s3.client import find_client
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    RecoveryError,
    SourceError,
    StoreError,
)
from binlog2s3.executed import executed
from binlog2s3.gtid import Gtids, GtidSet, parse
from binlog2s3.login import Login
from binlog2s3.pipe import Pipe
from binlog2s3.pitr_config import PitrConfig
from binlog2s3.pitr_view import Result, Way
from binlog2s3.recovery import OnProgress, Place, Plan, Start, Stream
from binlog2s3.server import Server
from binlog2s3.target import Marker, TargetFacts


@dataclass(frozen=True, slots=True)
class At:
    """A target: a way to ask it, and how to log in."""

    server: Server
    login: Callable[[], Login]

    @property
    def address(self) -> str:
        """As messages name it."""
        return self.login().address


@dataclass(frozen=True, slots=True)
class Chosen:
    """How it is applied; `why` it is the slower way, "" where nothing speaks against the other."""

    way: Way
    why: str = ""


class Apply:
    """Brings plans into one target. `facts` were asked before; nothing is changed until `run`."""

    def __init__(self, config: PitrConfig, at: At, facts: TargetFacts) -> None:
        self._config = config
        self._at = at
        self._facts = facts
        self._marker = Marker(at.server)

    @property
    def by_gtid(self) -> bool:
        """Whether the target keeps GTIDs that tell what it has, at any moment."""
        return self._facts.flavour == "mysql" and self._facts.gtid_mode

    def choose(self, server_ids: Collection[int], *, with_gtids: bool) -> Chosen:
        """By relay log where that can be, else through the pipe.

        `server_ids`: of the servers that wrote these binlogs, as far as they are known;
        `with_gtids`: their transactions have such. Raises RecoveryError where --apply relay-log was
        given and cannot be.
        """
        if self._config.apply == "pipe":
            return Chosen("pipe")
        why = relay.obstacle(
            self._at.server,
            self._facts,
            directory=self._config.target_relay_log_dir,
            binlog_off=self._config.no_target_binlog,
            server_ids=server_ids,
            with_gtids=with_gtids,
        )
        if why is None:
            return Chosen("relay-log")
        if self._config.apply == "relay-log":
            raise RecoveryError(
                f"the target cannot take the binlogs as relay logs: {why}",
                hint="--apply pipe goes through mysqlbinlog and mysql, more slowly",
            )
        return Chosen("pipe", why)

    # Where it stands

    def stands(self, asked: str) -> Place | None:
        """Where a run that was cut off left the target, if it was the same and that is known.

        Only without GTIDs, which tell it by themselves. `asked` is what the operator said of the
        beginning, then and now.
        """
        if self.by_gtid:
            return None
        mark = self._marker.find()
        if mark is None or mark.asked != asked:
            return None
        return self._reached(mark)

    def _reached(self, mark: target.Mark) -> Place | None:
        left = relay.left_over(self._at.server, self._facts)
        if left is not None and left.place is not None:
            return left.place
        return _place(mark.reached)

    def check(self, plan: Plan, asked: Start) -> None:
        """Refuse what a run that was cut off may have applied already. Raises RecoveryError."""
        if self.by_gtid or not plan.pieces:
            return
        mark = self._marker.find()
        if mark is None:
            return
        start, reached = _begin(plan), self._reached(mark)
        if reached is not None:
            if asked.place != (reached.binlog, reached.offset):
                raise _stands_elsewhere(mark, reached)
            return
        if mark.start == _text(start):
            raise RecoveryError(
                f"a run from {mark.start} to {mark.stop} began at {mark.begun} (host {mark.host}, "
                f"process {mark.pid}) and was cut off: without GTIDs nobody knows how far it came",
                hint="if it ended with an error that named a place, all before that was applied: "
                "give that place as --from-binlog and --from-position; else restore the base "
                f"backup again and DROP DATABASE {target.DATABASE}",
            )
        before = _place(mark.start)
        if before is None or not _is_later(start, before):
            raise RecoveryError(
                f"a run from {mark.start} to {mark.stop} began at {mark.begun} and was cut off: "
                f"{_text(start)} may have been applied by it",
                hint=f"restore the base backup again and DROP DATABASE {target.DATABASE}, or say "
                "where the target stands with a later --from-binlog and --from-position",
            )

    # Doing it

    def run(
        self, plan: Plan, chosen: Chosen, stream: Stream, on_progress: OnProgress, *, asked: str
    ) -> Result:
        """Apply it all, and prove it. Raises RecoveryError, and what reading the bucket raises."""
        began = monotonic()
        if not plan.pieces:
            self._put_away()
        else:
            if self._config.stop_target_threads:
                target.stop_threads(self._at.server, self._facts)
            with self._told(chosen):
                self._bring(plan, chosen, stream, on_progress, asked)
        committed = self._commit_empty(plan)
        gtids, proved = self._prove(plan, committed)
        return Result(
            how=chosen.way if plan.pieces else "nothing",
            where=self._at.address,
            transactions=plan.transactions,
            size=plan.size,
            seconds=monotonic() - began,
            gtids=gtids,
            committed_empty=committed,
            proved=proved,
        )

    def _bring(
        self, plan: Plan, chosen: Chosen, stream: Stream, on_progress: OnProgress, asked: str
    ) -> None:
        if chosen.way == "relay-log":
            way: relay.Way | Pipe = self._relay(plan)
            reached: Place | None = _begin(plan)
        else:
            way, reached = self._pipe(plan), None
        if self.by_gtid:
            self._put_away()
            way.apply(stream, on_progress)
            return
        before = self._marker.find()
        self._marker.write(
            start=_text(_begin(plan)),
            stop=_text(plan.stop),
            asked=asked,
            reached="" if reached is None else _text(reached),
        )
        try:
            self._remove_channel()  # the note says by now how far it came, if there is one
            way.apply(stream, on_progress)
        except BaseException:
            if not way.touched and before is None:  # as if it had never begun
                with suppress(Binlog2s3Error):
                    self._marker.remove()
            raise
        self._marker.remove()

    def _put_away(self) -> None:
        """What a run left that was cut off, where all that it had to do is done."""
        mark = None if self.by_gtid else self._marker.find()
        if mark is not None and (reached := self._reached(mark)) is not None:
            self._marker.reach(_text(reached))
            self._remove_channel()
            self._marker.remove()
        elif mark is None:
            self._remove_channel()

    def _remove_channel(self) -> None:
        relay.settle(self._at.server, self._facts, directory=self._config.target_relay_log_dir)

    def _pipe(self, plan: Plan) -> Pipe:
        return Pipe(
            self._at.server,
            self._at.login(),
            find_client(plan.flavour, self._config.mysql_client),
            mysqlbinlog.find(plan.flavour, self._config.mysqlbinlog),
            size=plan.size,
            transactions=plan.transactions,
            skip_gtids=plan.flavour == "mysql" and not self._facts.gtid_mode,
            binlog_off=self._config.no_target_binlog,
        )

    def _relay(self, plan: Plan) -> relay.Way:
        return relay.way(
            self._at.server,
            self._at.login(),
            self._facts,
            directory=self._config.target_relay_log_dir,
            size=plan.size,
            transactions=plan.transactions,
            on_place=self._reach,
        )

    def _reach(self, place: Place) -> None:
        """Note that all before it was applied, and nothing behind: the channel goes now."""
        if not self.by_gtid:
            self._marker.reach(_text(place))

    def again(self, chosen: Chosen) -> str:
        """What the next run does where this one did not come to its end, for people."""
        if self.by_gtid or chosen.way == "relay-log":
            return "the same command again goes on from there"
        return "what was applied stays, and without GTIDs nobody knows how far that is"

    @contextmanager
    def _told(self, chosen: Chosen) -> Iterator[None]:
        """Errors from elsewhere say what has become of the target, and what to do next."""
        again = self.again(chosen)
        try:
            yield
        except ArchiveError as error:
            raise RecoveryError(
                f"{error}; what comes before it was applied",
                hint=f"{error.hint}; a goal before it, or once it is mended {again}",
            ) from error
        except (StoreError, SourceError) as error:
            error.hint = f"{error.hint}; {again}" if error.hint else again
            raise
        except RecoveryError as error:
            error.hint = error.hint or again
            raise

    def _commit_empty(self, plan: Plan) -> str:
        if (
            not isinstance(plan.skipped, GtidSet)
            or not self.by_gtid
            or self._config.skip_leaves_hole
        ):
            return ""
        target.commit_empty(self._at.server, plan.skipped, binlog_off=self._config.no_target_binlog)
        return str(plan.skipped)

    def _prove(self, plan: Plan, committed: str) -> tuple[Gtids | None, str]:
        if not self.by_gtid or self._facts.executed is None:
            return None, ""
        expected = executed(self._facts.executed)
        for more in (plan.adds, parse(committed, "mysql") if committed else None):
            expected = expected.plus(more) if more is not None else expected
        found = target.executed(self._at.server)
        target.prove(found, expected.gtids, own_uuid=self._facts.uuid)
        return found, "its GTIDs are those of the plan, no more and no less"


def _stands_elsewhere(mark: target.Mark, reached: Place) -> RecoveryError:
    return RecoveryError(
        f"the target stands at {_text(reached)}, where a run that began at {mark.begun} was cut "
        "off, and not where this one is to begin",
        hint=f"the same command as then goes on from there, or --from-binlog {reached.binlog} and "
        f"--from-position {reached.offset}; if the base backup was restored again since: DROP "
        f"DATABASE {target.DATABASE}",
    )


def _begin(plan: Plan) -> Place:
    first = plan.pieces[0]
    return Place(lineage=first.lineage, binlog=first.binlog, offset=first.begin)


def _text(place: Place) -> str:
    """A place, for a marker in the target."""
    return f"{place.lineage}/{place}"


def _place(text: str) -> Place | None:
    """The place that a marker names; None where it names none."""
    lineage, _, rest = text.partition("/")
    name, _, offset = rest.rpartition(":")
    try:
        return Place(lineage=lineage, binlog=BinlogName.parse(name), offset=int(offset))
    except ValueError:
        return None


def _is_later(place: Place, other: Place) -> bool:
    """Whether it is behind the other; not where they cannot be compared."""
    return place.lineage == other.lineage and (place.binlog, place.offset) > (
        other.binlog,
        other.offset,
    )
