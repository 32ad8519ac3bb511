"""Statements that use a temporary table which its session had made before a recovery begins.

In statement format, temporary tables are in the binlog: the applier makes them, too. No base backup
has them. A session that had made one before, and uses it later, changes the table of the same name
that is no temporary one in the target, without an error (seen on MySQL 5.7.22).
"""

from binlog2s3.binlog.content import statement_text
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import writing_of
from binlog2s3.recover.extract import StatementWatcher

_OF_SESSION = 0x4
"""Flag of an event that is right in its own session only (LOG_EVENT_THREAD_SPECIFIC_F): it uses a
temporary table, or CONNECTION_ID()."""
_CONNECTION_ID = b"CONNECTION_ID"
_SESSION_SIZE = 4
_MAKERS_MOST = 100_000
_CHANGES = frozenset({"insert", "update", "delete"})


class OlderTemporary(StatementWatcher):
    """The changes by such statements, in a stream of events.

    A session that has made a temporary table since counts for one that had made none before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers = dict[bytes, None]()  # sessions, the newest last

    @property
    def why(self) -> str:
        return (
            f"this statement{self.and_more} used a temporary table that its session had made "
            "before the recovery begins, so the target had none: if it has another table of that "
            f"name, that was changed instead: {self.first}"
        )

    def see(self, event_type: int, head: bytes, _: int, flavour: Flavour, flags: int, /) -> None:
        """See `Watcher`. The number of the session is at the beginning of the body."""
        if not flags & _OF_SESSION or _CONNECTION_ID in head.upper():
            return
        session, begun = head[:_SESSION_SIZE], statement_text(event_type, head)
        writing = writing_of(begun.status, mysql=flavour == "mysql")
        words = writing.clear(begun.text, cut=begun.cut).keywords()
        if words[:1] == ["CREATE"] and "TEMPORARY" in words[:4]:
            self._makers[session] = None
            if len(self._makers) > _MAKERS_MOST:
                del self._makers[next(iter(self._makers))]
        elif session not in self._makers:
            statement = begun.parsed(writing)
            if statement is not None and statement.kind in _CHANGES:
                self.note(begun, writing)
