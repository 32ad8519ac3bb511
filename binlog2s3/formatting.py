"""Values as people read them: times, durations, sizes, counts, GTID sets, cut texts. Pure.

Times in a document are ISO 8601 in UTC, with microseconds and Z.
"""

import math
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

UNKNOWN = "unknown"
MOST_GTIDS = 160
"""Characters of a GTID set that are shown."""
_MOST_SIZE = 1 << 90
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def moment_of(us: int) -> datetime:
    """The time of these microseconds since the epoch. Raises OverflowError after the year 9999."""
    return _EPOCH + us * _MICROSECOND


def us_of(moment: datetime) -> int:
    """The microseconds since the epoch of an aware time.

    >>> us_of(moment_of(-1)), us_of(moment_of(10**15 + 1))
    (-1, 1000000000000001)
    """
    return (moment - _EPOCH) // _MICROSECOND


def iso_text(at: datetime | int) -> str:
    """A time, or microseconds since the epoch, as ISO 8601: UTC, with microseconds and Z.

    >>> iso_text(1), iso_text(moment_of(1))
    ('1970-01-01T00:00:00.000001Z', '1970-01-01T00:00:00.000001Z')
    """
    try:
        moment = moment_of(at) if isinstance(at, int) else at.astimezone(UTC)
    except OverflowError:  # its year does not exist in UTC
        return f"{at} us" if isinstance(at, int) else at.isoformat()
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def moment_text(at: datetime | int | None, unknown: str = UNKNOWN) -> str:
    """The same to the second below.

    >>> moment_text(1), moment_text(None)
    ('1970-01-01T00:00:00Z', 'unknown')
    """
    if at is None:
        return unknown
    text = iso_text(at)
    return f"{text[:19]}Z" if text.endswith("Z") else text


def size_text(size: float, gap: str = " ") -> str:
    """Bytes for people, to the unit below.

    >>> size_text(0), size_text(1023), size_text(5 << 20), size_text(3 << 40, "")
    ('0 B', '1023 B', '5.0 MiB', '3.0TiB')
    """
    if not math.isfinite(size := min(size, _MOST_SIZE)):
        return UNKNOWN
    if size < 1024:
        return f"{size:.0f}{gap}B"
    number = float(size)
    for unit in _UNITS:
        number /= 1024
        if number < 1024 or unit == _UNITS[-1]:
            break
    return f"{number:.1f}{gap}{unit}" if number < 100 else f"{number:.0f}{gap}{unit}"


def duration_text(seconds: float, *, up: bool = False) -> str:
    """Seconds for people, in at most two units; `up`: rounded up, not down.

    >>> duration_text(2), duration_text(1.234), duration_text(1.234, up=True), duration_text(90)
    ('2 s', '1.2 s', '1.3 s', '90 s')
    >>> duration_text(3 * 86400 + 4 * 3600 + 59), duration_text(7500, up=True)
    ('3 d 4 h', '2 h 5 min')
    """
    if not math.isfinite(seconds):
        return UNKNOWN
    seconds = max(0.0, seconds)
    turn = math.ceil if up else math.floor
    if seconds < 10:
        tenths = turn(round(seconds * 10, 6))
        return f"{tenths / 10:g} s"
    if seconds < 120:
        return f"{turn(seconds)} s"
    if seconds < 2 * 3600:
        return f"{turn(seconds / 60)} min"
    if seconds < 2 * 86400:
        minutes = turn(seconds / 60)
        return _two_units(minutes // 60, "h", minutes % 60, "min")
    hours = turn(seconds / 3600)
    return _two_units(hours // 24, "d", hours % 24, "h")


def short_text(seconds: float, *, up: bool = False) -> str:
    """As `duration_text`, in one unit, for columns.

    >>> short_text(3 * 3600 + 240, up=True), short_text(3.21 * 86400), short_text(7)
    ('3.1 h', '3.2 d', '7 s')
    """
    if not math.isfinite(seconds) or seconds < 2 * 3600:
        return duration_text(seconds, up=up)
    unit, name = (3600, "h") if seconds < 2 * 86400 else (86400, "d")
    tenths = (math.ceil if up else math.floor)(round(seconds * 10 / unit, 6))
    return f"{tenths / 10:.10g} {name}"


def _two_units(great: int, unit: str, small: int, small_unit: str) -> str:
    return f"{great} {unit} {small} {small_unit}" if small else f"{great} {unit}"


def count_text(number: int, noun: str, plural: str = "") -> str:
    """So many of them.

    >>> count_text(1, "binlog"), count_text(1200, "binlog")
    ('1 binlog', '1,200 binlogs')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def gtids_text(gtid_set: object, most: int = MOST_GTIDS) -> str:
    """A GTID set, cut if it is long, with its length."""
    text = str(gtid_set)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def cut(text: object, most: int) -> str:
    """A text, cut if it is longer than `most` characters.

    >>> cut("abcdef", 6), cut("abcdefg", 6)
    ('abcdef', 'abcdef...')
    """
    found = str(text)
    return found if len(found) <= most else f"{found[:most]}..."


def some(names: Collection[object], most: int = 3) -> str:
    """The first few of them, and how many more there are.

    >>> some("abc"), some("abcde")
    ('a, b, c', 'a, b, c and 2 more')
    """
    more = len(names) - most
    return ", ".join(map(str, [*names][:most])) + (f" and {more:,} more" if more > 0 else "")


def one_line(text: str) -> str:
    r"""A foreign text as one line, without characters that control a terminal.

    >>> one_line(" a\n\x1b[31mb ")
    'a [31mb'
    """
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def brief(value: object, most: int = 160) -> str:
    """A value within a message, cut; "none" if there is none, or it is empty."""
    return ("" if value is None else cut(value, most)) or "none"


def quoted(text: str, most: int = 60) -> str:
    """A foreign text for a message: cut, in quotes, with escapes."""
    return repr(cut(text, most))
