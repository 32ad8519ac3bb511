"""What the operator asked of `find`, judged as a whole: one frozen `FindConfig`.

Place in the flow: as `config.values`, for `cli`; `find` carries it out.

Law: as `config`'s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from binlog2s3.config.find_options import DEFAULT_LIMIT
from binlog2s3.config.points import flavour_of, parse_gtids, parse_time
from binlog2s3.config.values import Given, S3Config, s3_of
from binlog2s3.inspect.find.match import Tables, Wanted, parse_table
from binlog2s3.inspect.find.model import Sought

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindConfig:
    """What is looked for, and where.

    `given` are the words of the command line that another command needs to read the same bucket.
    """

    s3: S3Config
    source: str
    sought: Sought
    as_json: bool = False
    given: tuple[str, ...] = ()


def build_find(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[FindConfig | None, list[str]]:
    """As `config.values.build`, for `find`."""
    given = Given(values, places or {}, frozenset(wrong))
    problems = [f"--{name} is missing" for name in ("source", "s3-url") if given.lacks(name)]
    problems += [*_table_problems(given), *_time_problems(given), *_gtid_problems(given)]
    if problems or given.wrong:
        return None, problems
    lineage = values.get("lineage")
    since_us, until_us = parse_between(values["between"]) if values.get("between") else (None, None)
    tables = tuple(parse_table(text) for text in values.get("table") or ())
    limit = values.get("limit")
    config = FindConfig(
        s3=s3_of(values),
        source=values["source"],
        sought=Sought(
            wanted=Wanted(
                tables=Tables(tables) if tables else None,
                kinds=frozenset(values.get("type") or ()),
                min_rows=values.get("min-rows") or 0,
            ),
            since_us=since_us,
            until_us=until_us,
            gtids=tuple(values.get("gtid") or ()),
            order=values.get("order") or "newest",
            limit=DEFAULT_LIMIT if limit is None else limit,
            lineage=None if lineage == ALL else lineage,
            everywhere=lineage == ALL,
        ),
        as_json=bool(values.get("json")),
    )
    return config, []


def parse_between(text: str) -> tuple[int | None, int | None]:
    """Both ends of an ISO 8601 interval, in microseconds; None where one is left out. ValueError.

    >>> parse_between("1970-01-01T00:00Z/1970-01-01T01:00:01+01:00")
    (0, 1000000)
    >>> parse_between("/1970-01-01T00:00Z")
    (None, 0)
    """
    since, slash, until = (part.strip() for part in text.partition("/"))
    if not slash or "/" in until:
        raise ValueError(
            f"{text[:80]!r} is not of the form FROM/TO, e.g. 2026-01-02T15:00Z/2026-01-02T16:00Z"
        )
    ends = [None if end in ("", "..") else parse_time(end) for end in (since, until)]
    if ends == [None, None]:
        raise ValueError(f"{text!r} has neither end")
    if ends[0] is not None and ends[1] is not None and ends[0] > ends[1]:
        raise ValueError(f"{text!r} ends before it begins")
    return ends[0], ends[1]


def _table_problems(given: Given) -> Iterable[str]:
    for text in given.values.get("table") or ():
        try:
            parse_table(text)
        except ValueError as error:
            yield f"{given.called('table')}: {error}"


def _time_problems(given: Given) -> Iterable[str]:
    if not given.has("between"):
        return
    try:
        parse_between(given.values["between"])
    except ValueError as error:
        yield f"{given.called('between')}: {error}"


def _gtid_problems(given: Given) -> Iterable[str]:
    flavours = {flavour_of(parse_gtids(text)) for text in given.values.get("gtid") or ()}
    if len(flavours) > 1:
        yield f"{given.called('gtid')} has GTIDs of MySQL and of MariaDB"
