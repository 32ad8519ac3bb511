"""Table maps and rows events: the table, and the number of rows. No value is decoded. No I/O.

Law: a number of rows is right or None. A column's type says how to skip its values, and the rows
must end where the event ends. The rows of a table are not counted if the type of a column is
unknown, or if the table map does not have the size of its values.

The layouts are those of libbinlogevents (`Table_map_event`, `Rows_event`), the sizes of values
those of `calc_field_size` and `log_event_print_value` in the server's source. MariaDB writes
version 1 of rows events, and compresses only the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from binlog2s3.binlog.events import Buffer, EventType, length_encoded
from binlog2s3.binlog.gtid import Flavour

RowsKind = Literal["insert", "update", "delete"]

_TABLE_ID_SIZE = 6
_POST_HEADER = 8
"""Table id and flags."""
_STATEMENT_END = 0x01
_COLUMN_NAMES = 4
"""A field of a table map's optional metadata."""
_PROGRAMS_MOST = 1024

Column = tuple[int, int]
"""How to skip a value: its bytes, and the bytes of a length in front of it."""

_Size = Callable[[int], Column | None]


# Sizes of values


_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4)
_ENUM, _SET, _STRING = 247, 248, 254


def _fixed(size: int) -> _Size:
    return lambda _: (size, 0)


def _own_length(meta: int) -> Column | None:
    """FLOAT and DOUBLE."""
    return (meta, 0) if meta in (4, 8) else None


def _fractional(size: int) -> _Size:
    """TIME, DATETIME, TIMESTAMP of MySQL 5.6 and later."""
    return lambda decimals: (size + (decimals + 1) // 2, 0) if decimals <= 6 else None


def _blob(meta: int) -> Column | None:
    return (0, meta) if 1 <= meta <= 4 else None


def _varchar(most: int) -> Column:
    return (0, 1 if most < 256 else 2)


def _bit(meta: int) -> Column | None:
    bits, whole = meta & 0xFF, meta >> 8
    return (whole + (bits > 0), 0) if bits < 8 and whole <= 8 else None


def _decimal(meta: int) -> Column | None:
    precision, scale = meta & 0xFF, meta >> 8
    if not scale <= precision <= 65:
        return None
    parts = (divmod(precision - scale, 9), divmod(scale, 9))
    return sum(4 * whole + _DIGITS[rest] for whole, rest in parts), 0


def _string(meta: int) -> Column | None:
    """CHAR, ENUM, SET: the first byte has the real type and, for a CHAR, two bits of its length."""
    real, length = meta & 0xFF, meta >> 8
    if real in (_ENUM, _SET):
        return (length, 0) if 1 <= length <= 8 else None
    if real | 0x30 != _STRING:
        return None
    return _varchar(length | ((real & 0x30) ^ 0x30) << 4)


_SIZES: dict[int, tuple[int, _Size]] = {
    1: (0, _fixed(1)),  # TINYINT
    2: (0, _fixed(2)),  # SMALLINT
    3: (0, _fixed(4)),  # INT
    4: (1, _own_length),  # FLOAT
    5: (1, _own_length),  # DOUBLE
    6: (0, _fixed(0)),  # NULL
    7: (0, _fixed(4)),  # TIMESTAMP before 5.6
    8: (0, _fixed(8)),  # BIGINT
    9: (0, _fixed(3)),  # MEDIUMINT
    10: (0, _fixed(3)),  # DATE
    11: (0, _fixed(3)),  # TIME before 5.6
    12: (0, _fixed(8)),  # DATETIME before 5.6
    13: (0, _fixed(1)),  # YEAR
    14: (0, _fixed(3)),  # DATE, newer
    15: (2, _varchar),
    16: (2, _bit),
    17: (1, _fractional(4)),  # TIMESTAMP
    18: (1, _fractional(5)),  # DATETIME
    19: (1, _fractional(3)),  # TIME
    140: (1, _blob),  # MariaDB's COMPRESSED
    141: (2, _varchar),  # MariaDB's COMPRESSED
    242: (1, _blob),  # VECTOR
    245: (1, _blob),  # JSON
    246: (2, _decimal),
    249: (1, _blob),
    250: (1, _blob),
    251: (1, _blob),
    252: (1, _blob),
    254: (2, _string),
    255: (1, _blob),  # GEOMETRY
}
"""By type: the bytes of its metadata, and what they mean as a little-endian number."""

_AMBIGUOUS = {"mysql": frozenset[int](), "mariadb": frozenset({7, 11, 12})}
"""MariaDB with mysql56_temporal_format off may have fractions there, without saying so."""
_JSON, _BLOB, _GEOMETRY = 245, 252, 255


def _columns(types: bytes, metadata: bytes, flavour: Flavour) -> tuple[Column, ...] | None:
    """How to skip the values of each column; None if one is unknown."""
    if not _AMBIGUOUS[flavour].isdisjoint(types):
        return None
    columns: list[Column] = []
    at = 0
    for column_type in types:
        meta_size, size_of = _SIZES.get(column_type, (0, None))
        column = (
            size_of(int.from_bytes(metadata[at : at + meta_size], "little")) if size_of else None
        )
        at += meta_size
        if column is None:
            return None
        columns.append(column)
    return tuple(columns) if at == len(metadata) else None


# Row images


class Image:
    """The layout of one row in an event, with the columns that are present."""

    __slots__ = ("_programs", "columns", "null_size", "partial_size")

    def __init__(self, columns: tuple[Column, ...], partial_size: int | None = None) -> None:
        """`partial_size`: bytes of the bitmap of JSON columns, if there may be one."""
        self.columns = columns
        self.null_size = (len(columns) + 7) // 8
        self.partial_size = partial_size
        self._programs: dict[bytes, tuple[Column, ...]] = {}

    def program(self, nulls: bytes) -> tuple[Column, ...]:
        """The steps over a row with these NULLs: skip bytes, then read a length and skip that."""
        found = self._programs.get(nulls)
        if found is None:
            if len(self._programs) >= _PROGRAMS_MOST:
                self._programs.clear()
            found = self._programs[nulls] = self._steps(nulls)
        return found

    def _steps(self, nulls: bytes) -> tuple[Column, ...]:
        bits = int.from_bytes(nulls, "little")
        steps: list[Column] = []
        skip = 0
        for number, (size, prefix) in enumerate(self.columns):
            if bits >> number & 1:
                continue
            skip += size
            if prefix:
                steps.append((skip, prefix))
                skip = 0
        return (*steps, (skip, 0)) if skip else tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table map: its name in the form of `table_name`, its columns if all are known."""

    name: str
    columns: tuple[Column, ...] | None
    json_columns: int = 0
    _images: dict[tuple[bytes, bool], Image] = field(default_factory=dict, compare=False)

    def image(self, present: bytes, *, partial: bool = False) -> Image:
        """The layout of rows with these columns; `partial`: JSON values may be differences."""
        if self.columns is None:
            raise ValueError(f"the columns of {self.name} are not known")
        found = self._images.get((present, partial))
        if found is None:
            if len(self._images) >= _PROGRAMS_MOST:
                self._images.clear()
            bits = int.from_bytes(present, "little")
            chosen = tuple(c for number, c in enumerate(self.columns) if bits >> number & 1)
            found = Image(chosen, (self.json_columns + 7) // 8 if partial else None)
            self._images[present, partial] = found
        return found


def table_name(database: str, table: str) -> str:
    """The name of a table as text: "db.table". No other table has the same text.

    A name with a dot or a backquote, or "*", is in backquotes, as in SQL: the table `y.t` of `x`
    and the table `t` of `x.y` are different.
    """
    return f"{_quoted(database)}.{_quoted(table)}"


def database_name(database: str) -> str:
    """The text for every table of a database: "db.*"."""
    return f"{_quoted(database)}.*"


def _quoted(name: str) -> str:
    if "." not in name and "`" not in name and name != "*":
        return name
    return f"`{name.replace('`', '``')}`"


def decode_table_map(body: bytes, flavour: Flavour) -> Table:
    """Decode the body of a TABLE_MAP event. It has no columns if they cannot be decoded."""
    name, at = _name_in(body)
    try:
        count, at = length_encoded(body, at)
        types = body[at : at + count]
        size, at = length_encoded(body, at + count)
        metadata = body[at : at + size]
    except (ValueError, IndexError):
        return Table(name=name, columns=None)
    if len(types) != count or len(metadata) != size:
        return Table(name=name, columns=None)
    return Table(
        name=name,
        columns=_columns(types, metadata, flavour),
        json_columns=types.count(_JSON),
    )


def _name_in(body: bytes) -> tuple[str, int]:
    """The name of a TABLE_MAP event's table, and where its columns begin. Raises ValueError."""
    names, at = _names_in(body)
    return table_name(*(name.decode(errors="replace") for name in names)), at


def _names_in(body: bytes) -> tuple[list[bytes], int]:
    """Database and table of a TABLE_MAP event, and where its columns begin. Raises ValueError."""
    names: list[bytes] = []
    at = _POST_HEADER
    for _ in range(2):
        size, at = length_encoded(body, at)
        if at + size >= len(body):
            raise ValueError("table map event too short")
        names.append(body[at : at + size])
        at += size + 1
    return names, at


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBody:
    """The body of a TABLE_MAP event: types, metadata, and names of columns if it has them.

    `packed_count`: the number of columns, length-encoded. `nullable`: a bitmap of the columns.
    """

    database: str
    table: str
    packed_count: bytes
    types: bytes
    metadata: bytes
    nullable: bytes
    columns: tuple[str, ...]

    @property
    def type_metadata(self) -> tuple[tuple[int, int], ...]:
        """Type and metadata of each column, as numbers. Raises KeyError for unknown types."""
        found, at = list[tuple[int, int]](), 0
        for column_type in self.types:
            size = _SIZES[column_type][0]
            found.append((column_type, int.from_bytes(self.metadata[at : at + size], "little")))
            at += size
        return tuple(found)


def decode_map(body: bytes, flavour: Flavour) -> tuple[MapBody, Table]:
    """Decode the whole body of a TABLE_MAP event. Raises ValueError if something is missing."""
    names, begin = _names_in(body)
    count, at = length_encoded(body, begin)
    packed = body[begin:at]
    types, at = body[at : at + count], at + count
    size, at = length_encoded(body, at)
    metadata, at = body[at : at + size], at + size
    nullable = body[at : at + (count + 7) // 8]
    if len(types) != count or len(metadata) != size or len(nullable) != (count + 7) // 8:
        raise ValueError("table map event too short")
    database, table = (name.decode() for name in names)
    found = MapBody(
        database=database,
        table=table,
        packed_count=packed,
        types=types,
        metadata=metadata,
        nullable=nullable,
        columns=column_names(body),
    )
    return found, decode_table_map(body, flavour)


def renamed_map(body: bytes, database: str, table: str) -> bytes:
    """The body of a TABLE_MAP event for another table. Raises ValueError."""
    _, begin = _names_in(body)
    names = (name.encode() for name in (database, table))
    packed = b"".join(bytes([len(name)]) + name + b"\0" for name in names)
    return body[:_POST_HEADER] + packed + body[begin:]


def numbered_map(body: bytes, number: int, flavour: Flavour, *, whole: bool = True) -> bytes:
    """The body of a TABLE_MAP event for mysqlbinlog, with a number as the name of its table.

    A GEOMETRY of MySQL is a BLOB there, which is stored in the same way: MySQL's mysqlbinlog cannot
    print it, and skips the rest of the event. The optional metadata is left out then, and if the
    body is not `whole`. Raises ValueError.
    """
    _, begin = _name_in(body)
    count, at = length_encoded(body, begin)
    types = body[at : at + count]
    size, end = length_encoded(body, at + count)
    end += size + (count + 7) // 8
    if flavour == "mysql" and _GEOMETRY in types:
        types, whole = types.replace(bytes([_GEOMETRY]), bytes([_BLOB])), False
    rest = body[at + count :] if whole else body[at + count : end]
    name = b"%d" % number
    name = bytes([len(name)]) + name + b"\0"
    return body[:_POST_HEADER] + b"\1t\0" + name + body[begin:at] + types + rest


def column_names(body: bytes) -> tuple[str, ...]:
    """The names of the columns in the body of a TABLE_MAP event; none if it does not have them all.

    Servers write them if binlog_row_metadata is FULL: fields of a type, a length and a value follow
    the bitmap of nullable columns (`Table_map_event::Optional_metadata_fields`).
    """
    try:
        _, at = _name_in(body)
        count, at = length_encoded(body, at)
        size, at = length_encoded(body, at + count)
        at += size + (count + 7) // 8
        while at < len(body):
            field = body[at]
            size, at = length_encoded(body, at + 1)
            if field == _COLUMN_NAMES:
                names = _texts(body[at : at + size])
                return names if len(names) == len(set(names)) == count else ()
            at += size
    except (ValueError, IndexError):
        pass
    return ()


def _texts(data: bytes) -> tuple[str, ...]:
    """Texts, each after its length."""
    found, at = [], 0
    while at < len(data):
        size, at = length_encoded(data, at)
        if at + size > len(data):
            raise ValueError("a name is too short")
        found.append(data[at : at + size].decode(errors="replace"))
        at += size
    return tuple(found)


def table_id(body: Buffer) -> int:
    """The number that ties rows events to their table map."""
    return int.from_bytes(body[:_TABLE_ID_SIZE], "little")


# Rows events


_E = EventType
_KINDS: dict[int, RowsKind] = {
    **dict.fromkeys((_E.WRITE_ROWS_V0, _E.WRITE_ROWS_V1, _E.WRITE_ROWS), "insert"),
    **dict.fromkeys((_E.WRITE_ROWS_COMPRESSED_V1, _E.WRITE_ROWS_COMPRESSED), "insert"),
    **dict.fromkeys((_E.UPDATE_ROWS_V0, _E.UPDATE_ROWS_V1, _E.UPDATE_ROWS), "update"),
    **dict.fromkeys((_E.UPDATE_ROWS_COMPRESSED_V1, _E.UPDATE_ROWS_COMPRESSED), "update"),
    _E.PARTIAL_UPDATE_ROWS: "update",
    **dict.fromkeys((_E.DELETE_ROWS_V0, _E.DELETE_ROWS_V1, _E.DELETE_ROWS), "delete"),
    **dict.fromkeys((_E.DELETE_ROWS_COMPRESSED_V1, _E.DELETE_ROWS_COMPRESSED), "delete"),
}
KIND_OF_ROWS: dict[int, RowsKind] = {int(event_type): kind for event_type, kind in _KINDS.items()}
"""By type of event."""
ROWS_EVENTS = frozenset(_KINDS)
_OLD = frozenset({_E.WRITE_ROWS_V0, _E.UPDATE_ROWS_V0, _E.DELETE_ROWS_V0})
"""Of early versions of 5.1: rows have the layout of memory, and are not counted."""
PRINTABLE_ROWS = ROWS_EVENTS - _OLD
"""Those that mysqlbinlog prints."""
_WITH_EXTRA = frozenset(
    {
        _E.WRITE_ROWS,
        _E.UPDATE_ROWS,
        _E.DELETE_ROWS,
        _E.PARTIAL_UPDATE_ROWS,
        _E.WRITE_ROWS_COMPRESSED,
        _E.UPDATE_ROWS_COMPRESSED,
        _E.DELETE_ROWS_COMPRESSED,
    }
)
COMPRESSED_ROWS = range(_E.WRITE_ROWS_COMPRESSED_V1, _E.DELETE_ROWS_COMPRESSED + 1)
"""MariaDB's with log_bin_compress: their size says nothing about how many rows they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEvent:
    """The head of a rows event.

    `width`: the number of columns. `present`: a bitmap of the columns of each image; a row has one
    image or two. The rows begin at `rows_at` of the body. All are empty if they cannot be decoded.
    """

    kind: RowsKind
    table_id: int
    statement_end: bool
    compressed: bool
    partial: bool = False
    width: int = 0
    present: tuple[bytes, ...] = ()
    rows_at: int = 0

    @property
    def image_widths(self) -> tuple[int, ...]:
        """How many columns each image has."""
        whole = (1 << self.width) - 1  # the bits after the last column may be set
        images = (int.from_bytes(image, "little") & whole for image in self.present)
        return tuple(image.bit_count() for image in images)

    @property
    def is_full(self) -> bool:
        """Whether each image has every column, as a whole."""
        return not self.partial and set(self.image_widths) == {self.width}

    def is_empty(self, body_size: int) -> bool:
        """Whether it has no rows, and only ends a statement."""
        return bool(self.present) and self.rows_at == body_size

    def counter(self, table: Table) -> "RowCounter | None":
        """A counter of its rows; None if they cannot be counted."""
        if not self.present or table.columns is None or len(table.columns) != self.width:
            return None
        after = len(self.present) - 1
        images = [
            table.image(present, partial=self.partial and number == after)
            for number, present in enumerate(self.present)
        ]
        # rows that have no bytes cannot be counted
        has_bytes = any(image.null_size or image.partial_size is not None for image in images)
        return RowCounter(*images) if has_bytes else None


def as_statement_end(body: bytes) -> bytes:
    """The body of a rows event, or its beginning, as that of the last one of its statement."""
    flags = body[_TABLE_ID_SIZE] | _STATEMENT_END
    return body[:_TABLE_ID_SIZE] + bytes([flags]) + body[_TABLE_ID_SIZE + 1 :]


def decode_rows(event_type: int, body: bytes) -> RowsEvent:
    """Decode the beginning of the body of a rows event."""
    if len(body) < _POST_HEADER:
        raise ValueError("rows event too short")
    kind = _KINDS[event_type]
    number = table_id(body)
    flags = body[_TABLE_ID_SIZE]
    compressed = event_type in COMPRESSED_ROWS
    partial = event_type == _E.PARTIAL_UPDATE_ROWS
    width, present, at = 0, list[bytes](), _POST_HEADER
    if event_type not in _OLD:
        try:
            if event_type in _WITH_EXTRA:
                at += int.from_bytes(body[at : at + 2], "little")
            width, at = length_encoded(body, at)
            size = (width + 7) // 8
            for _ in range(2 if kind == "update" else 1):
                present.append(body[at : at + size])
                at += size
        except (ValueError, IndexError):
            present = []
        if at > len(body):
            present = []
    return RowsEvent(
        kind=kind,
        table_id=number,
        statement_end=bool(flags & _STATEMENT_END),
        compressed=compressed,
        partial=partial,
        width=width,
        present=tuple(present),
        rows_at=at,
    )


class RowCounter:
    """Counts rows as their bytes come, cut anywhere. It keeps no values."""

    __slots__ = ("_failed", "_image", "_images", "_program", "_rest", "_rows", "_skip", "_step")

    def __init__(self, *images: Image) -> None:
        """Each row consists of these images, in this order."""
        self._images = images
        self._image = 0  # which one is read, and its program once its NULLs are known
        self._program: tuple[Column, ...] | None = None
        self._step = 0
        self._rows = 0
        self._skip = 0
        self._rest = b""
        self._failed = False

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of a row, in their order."""
        return self._images

    @property
    def rows(self) -> int | None:
        """The number of rows; None if the last one is not complete."""
        at_end = self._image == 0 and self._program is None and not self._skip and not self._rest
        return self._rows if at_end and not self._failed else None

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._failed or not data:
            return
        if self._skip > len(data):
            self._skip -= len(data)
            return
        at = self._walk(self._rest + data if self._rest else data, self._skip)
        size = len(self._rest) + len(data)
        self._rest = (self._rest + data)[at:] if at < size else b""
        self._skip = max(at - size, 0)

    def _walk(self, data: bytes, at: int) -> int:
        """Step as far as these bytes go; returns where more are needed, maybe after their end."""
        size, program = len(data), self._program
        while not self._failed:
            if program is None:
                program, at = self._begin(data, at)
                if program is None:
                    return at
            for step in range(self._step, len(program)):
                skip, prefix = program[step]
                begin = at + skip
                end = begin + prefix
                if prefix:
                    if end > size:
                        self._program, self._step = program, step
                        return at
                    length = (
                        data[begin] if prefix == 1 else int.from_bytes(data[begin:end], "little")
                    )
                    at = end + length
                else:
                    at = end
            program, self._program, self._step = None, None, 0
            self._image += 1
            if self._image == len(self._images):
                self._image = 0
                self._rows += 1
                if at >= size:
                    return at
        return size

    def _begin(self, data: bytes, at: int) -> tuple[tuple[Column, ...] | None, int]:
        """The program of the image that begins here, and where its values begin.

        None: more bytes are needed.
        """
        image = self._images[self._image]
        begin = at
        if image.partial_size is not None:
            if at >= len(data):
                return None, at
            if data[at] > 1:
                self._failed = True  # options of a newer server
                return None, len(data)
            begin += 1 + image.partial_size * data[at]
        end = begin + image.null_size
        if end > len(data):
            return None, at
        return image.program(data[begin:end]), end
