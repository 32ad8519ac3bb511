"""Where a run that was cut off left a target: what it had applied by then, and what it left there.

Place in the flow: `apply` asks here before it begins, and notes here how far it comes.

Law: the target says itself how far it is, by its GTIDs, by the relay log's position, or by a marker
that admits that nobody knows; what may have been applied already is not applied again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.recover import relay, replicate, target
from binlog2s3.recover.config import PitrConfig
from binlog2s3.recover.model import Place, Plan, Start
from binlog2s3.recover.target import Marker, TargetFacts
from binlog2s3.server.connection import Server

_BY_GTIDS = "gtid_slave_pos"
"""In place of a place: a MariaDB's gtid_slave_pos tells what was applied."""


class Standing:
    """Of one target. Nothing is changed by questions."""

    def __init__(self, config: PitrConfig, server: Server, facts: TargetFacts) -> None:
        self._server = server
        self._facts = facts
        self._directory = config.target_relay_log_dir
        self._marker = Marker(server)

    def place(self, asked: str) -> Place | None:
        """Where a run that was cut off left the target, if it was the same and that is known.

        Only without GTIDs, which tell it by themselves. `asked` is what the operator said of the
        beginning, then and now.
        """
        if self._facts.keeps_gtids:
            return None
        mark = self._marker.find()
        if mark is None or mark.asked != asked:
            return None
        return self._reached(mark)

    def gtids(self, asked: str) -> Gtids | None:
        """The same of a MariaDB that was a replica then: what it has of the history."""
        mark = None if self._facts.keeps_gtids else self._marker.find()
        if mark is None or mark.asked != asked or mark.reached != _BY_GTIDS:
            return None
        return self._slave_pos()

    def _slave_pos(self) -> Gtids:
        row = self._server.rows("SELECT @@global.gtid_slave_pos AS it")[0]
        return MariadbGtidList.parse(str(row["it"]))

    def follow_gtids(self) -> None:
        """Note that from now on gtid_slave_pos tells what was applied."""
        self._marker.reach(_BY_GTIDS)

    def _reached(self, mark: target.Mark) -> Place | None:
        replica = replicate.left_over(self._server, self._facts)
        if replica is not None and replica.place is not None:
            return replica.place
        left = relay.left_over(self._server, self._facts)
        if left is not None and left.place is not None:
            return left.place
        return _place(mark.reached)

    def check(self, plan: Plan, asked: Start) -> None:
        """Refuse what a run that was cut off may have applied already. Raises RecoveryError."""
        if self._facts.keeps_gtids or not plan.pieces:
            return
        mark = self._marker.find()
        if mark is None:
            return
        if mark.reached == _BY_GTIDS:
            if asked.gtids != self._slave_pos() or asked.place is not None:
                raise RecoveryError(
                    f"the target stands at gtid_slave_pos {self._slave_pos()}, where a run that "
                    f"began at {mark.begun} was cut off, and not where this one is to begin",
                    hint="the same command as then goes on from there; if the base backup was "
                    f"restored again since: DROP DATABASE {target.DATABASE}",
                )
            return
        start, reached = plan.begin, self._reached(mark)
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

    @contextmanager
    def noted(
        self, plan: Plan, asked: str, *, reached: Place | None, is_untouched: Callable[[], bool]
    ) -> Iterator[None]:
        """As long as this lasts the target says that somebody is at work on it, as far as it must.

        What an earlier run left is put away first. `reached`: all before that was applied; None
        where nobody will know. After an error it stays, unless `is_untouched()`: then it is as if
        this had never begun.
        """
        if self._facts.keeps_gtids:
            self.put_away()
            yield
            return
        before = self._marker.find()
        self._marker.write(
            start=_text(plan.begin),
            stop=_text(plan.stop),
            asked=asked,
            reached="" if reached is None else _text(reached),
        )
        try:
            self._remove_channel()  # the note says by now how far it came, if there is one
            yield
        except BaseException:
            if before is None and is_untouched():
                with suppress(Binlog2s3Error):
                    self._marker.remove()
            raise
        self._marker.remove()

    def reach(self, place: Place) -> None:
        """Note that all before it was applied, and nothing behind: the channel goes now."""
        if not self._facts.keeps_gtids:
            self._marker.reach(_text(place))

    def put_away(self) -> None:
        """What a run left that was cut off, where all that it had to do is done."""
        mark = None if self._facts.keeps_gtids else self._marker.find()
        if mark is not None and mark.reached == _BY_GTIDS:
            self._remove_channel()
            self._marker.remove()
        elif mark is not None and (reached := self._reached(mark)) is not None:
            self._marker.reach(_text(reached))
            self._remove_channel()
            self._marker.remove()
        elif mark is None:
            self._remove_channel()

    def _remove_channel(self) -> None:
        relay.settle(self._server, self._facts, directory=self._directory)
        replicate.settle(self._server, self._facts)


def _stands_elsewhere(mark: target.Mark, reached: Place) -> RecoveryError:
    return RecoveryError(
        f"the target stands at {_text(reached)}, where a run that began at {mark.begun} was cut "
        "off, and not where this one is to begin",
        hint=f"the same command as then goes on from there, or --from-binlog {reached.binlog} and "
        f"--from-position {reached.offset}; if the base backup was restored again since: DROP "
        f"DATABASE {target.DATABASE}",
    )


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
