"""Suggests tables with names similar to one that was not found. Pure.

Place in the flow: `one_binlog` feeds it spans until something is found, `scan` asks at the end.

Law: it must stay cheap: only the first spans are read, and of those only what names tables.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches

from binlog2s3.binlog.compression import Sink, Zstd, decode_payload
from binlog2s3.binlog.content import statement_in
from binlog2s3.binlog.events import CHECKSUM_SIZE, EventType, FormatEvent
from binlog2s3.binlog.tables import database_name, decode_table_map
from binlog2s3.binlog.walk import EventWalk, Inside, wanted_types
from binlog2s3.config.points import parse_table
from binlog2s3.inspect.find.match import Tables

_WANTED = wanted_types(
    EventType.TABLE_MAP,
    EventType.QUERY,
    EventType.QUERY_COMPRESSED,
    EventType.EXECUTE_LOAD_QUERY,
    EventType.TRANSACTION_PAYLOAD,
)
_SPANS_MOST = 16
_NAMES_MOST = 20_000
_SHOWN_MOST = 3
_ALIKE = 0.8


class SimilarTables:
    """Collects table names; `names` are those similar to one of `tables`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._left = _SPANS_MOST
        self._names: set[str] = set()
        self._seen: set[bytes] = set()

    def look(self, form: FormatEvent, pieces: Iterable[bytes]) -> None:
        """Read the names in a span's bytes, which begin with a transaction."""
        if not self._left:
            return
        self._left -= 1

        def begin(event_type: int, head: bytes) -> Sink | None:
            if event_type == EventType.TABLE_MAP:
                if head[6:] not in self._seen and len(self._seen) < _NAMES_MOST:
                    self._seen.add(head[6:])
                    self._names.add(decode_table_map(head, form.flavour).name)
            elif event_type == EventType.TRANSACTION_PAYLOAD:
                compressed, at, size = decode_payload(head)
                inside = Inside(begin, lambda _: None, wanted=_WANTED)
                sink: Sink = Zstd(inside, size) if compressed else inside
                sink.feed(head[at:])
                return sink
            elif len(self._names) < _NAMES_MOST:
                found = statement_in(event_type, head)
                self._names.update(filter(None, found.tables if found is not None else ()))
            return None

        trailer = CHECKSUM_SIZE if form.checksum == "crc32" else 0
        walk = EventWalk(trailer, begin, wanted=_WANTED)
        for piece in pieces:
            walk.feed(piece)

    def names(self) -> tuple[str, ...]:
        """The most similar names, at most three; case is ignored."""
        found: dict[str, None] = {}
        wanted_names = self._tables.names
        tables = {one.casefold(): one for one in sorted(self._names) if not self._is_wanted(one)}
        databases = {one.casefold(): one for one in sorted(_databases(self._names))}
        for wanted in wanted_names:
            names = databases if wanted.endswith(".*") else tables
            close = get_close_matches(wanted.casefold(), names, _SHOWN_MOST, _ALIKE)
            found |= dict.fromkeys(names[one] for one in close)
        return tuple(one for one in found if one not in wanted_names)[:_SHOWN_MOST]

    def _is_wanted(self, name: str) -> bool:
        return name.endswith(".*") or self._tables.has(name)


def _databases(names: Iterable[str]) -> Iterator[str]:
    """The databases of these tables, each as "db.*"."""
    for name in names:
        with suppress(ValueError):
            yield database_name(parse_table(name)[0])
