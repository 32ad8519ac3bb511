"""GTIDs that are looked for, compared with those in events, texts and entries. Pure.

Place in the flow: `scan` asks for binlogs, `prefilter` for the events in them.
"""

import struct
from bisect import bisect_right
from uuid import UUID

from binlog2s3.archive.known import Known
from binlog2s3.binlog.events import HEADER_SIZE, EventType
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, Interval, MariadbGtidList, parse

_MYSQL = struct.Struct("<x16sq")
_MARIADB = struct.Struct("<QI")
_SERVER = struct.Struct("<5xI")


class Named:
    """Some GTIDs of one flavour: a set, or MariaDB's one by one. ValueError if they are none."""

    def __init__(self, texts: tuple[str, ...], flavour: Flavour) -> None:
        self._set = GtidSet()
        self._single: set[tuple[int, int, int]] = set()
        self._runs: dict[bytes, tuple[Interval, ...]] = {}
        self._has_tags = False
        for text in texts:
            if flavour == "mysql":
                self._set |= GtidSet.parse(text)
            else:
                self._single |= {_mariadb(piece) for piece in text.split(",")}
        for uuid, tag, intervals in self._set.runs():
            if tag:
                self._has_tags = True
            else:
                self._runs[UUID(uuid).bytes] = intervals
        self.count = self._set.count if flavour == "mysql" else len(self._single)

    def in_event(self, event_type: int, data: bytes, at: int) -> bool:
        """Whether the GTID event that begins there may be one of them."""
        if event_type == EventType.GTID:
            uuid, gno = _MYSQL.unpack_from(data, at + HEADER_SIZE)
            return _within(self._runs.get(uuid, ()), gno)
        if event_type == EventType.GTID_TAGGED:
            return self._has_tags
        if event_type == EventType.MARIADB_GTID:
            number, domain = _MARIADB.unpack_from(data, at + HEADER_SIZE)
            return (domain, _SERVER.unpack_from(data, at)[0], number) in self._single
        return False

    def has(self, gtid: str) -> bool:
        """Whether this one, as a scanner names it, is among them."""
        if ":" not in gtid:
            return _mariadb(gtid) in self._single
        uuid, *tag, number = gtid.split(":")
        return (uuid, tag[0] if tag else "", int(number)) in self._set

    def touches(self, known: Known) -> bool:
        """Whether any of them can be in this binlog."""
        added = known.gtids_added
        if isinstance(added, GtidSet):
            return bool(added & self._set)
        return any(
            _last(added, domain, server) >= number > _last(known.gtids_before, domain, server)
            for domain, server, number in self._single
        )


def _mariadb(text: str) -> tuple[int, int, int]:
    (found,) = parse(text, "mariadb").gtids()
    return found


def _within(runs: tuple[Interval, ...], number: int) -> bool:
    at = bisect_right(runs, (number, 2**64)) - 1
    return at >= 0 and number <= runs[at][1]


def _last(gtids: Gtids | None, domain: int, server: int) -> int:
    if not isinstance(gtids, MariadbGtidList):
        return -1
    return next((n for d, s, n in gtids.gtids() if (d, s) == (domain, server)), -1)
