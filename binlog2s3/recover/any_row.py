"""Whether a statement takes the values of any one of several rows, by its words. No I/O.

Of a group, it may be any that the server comes to first: columns that are not in the GROUP BY,
which sql_mode ONLY_FULL_GROUP_BY refuses. Of a join, the one that updates a row which has several.

Law: what cannot be told counts; an alias in a GROUP BY does, as a column of that name comes first.
Words are in small letters; a quoted name begins with a backquote, a string with its quote.
"""

import re
from collections.abc import Iterator, Sequence

AGGREGATES = frozenset(
    {
        *("avg", "bit_and", "bit_or", "bit_xor", "count", "group_concat", "json_arrayagg"),
        *("json_objectagg", "max", "min", "std", "stddev", "stddev_pop", "stddev_samp", "sum"),
        *("var_pop", "var_samp", "variance"),
    }
)
_BEHIND_BLOCK = frozenset({"union", "except", "intersect", ";"})
_BEHIND_LIST = frozenset(
    {"from", "where", "group", "having", "order", "limit", "into", "for", "on"}
)
_BEHIND_GROUPS = _BEHIND_LIST | {"with", "window", "fetch", "lock", "procedure"}
_BEHIND_SETS = frozenset({"where", "order", "limit", "returning", ";"})
_BEFORE_ITEMS = frozenset({"all", "distinct", "distinctrow", "straight_join", "high_priority"})
_BEFORE_TABLES = frozenset({"low_priority", "ignore"})
_JOINS = frozenset({"join", "straight_join"})
_NOW = frozenset(
    {
        *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
        *("utc_date", "utc_time", "utc_timestamp", "false", "null", "true"),
    }
)
_NOT_COLUMNS = _NOW | {
    *("all", "and", "as", "asc", "between", "binary", "by", "case", "default", "desc", "distinct"),
    *("div", "else", "in", "interval", "is", "like", "mod", "not", "or", "order", "over"),
    *("partition", "regexp", "rlike", "then", "when", "xor"),
}
_READ_MOST = 5_000_000
"""Words of queries in queries in one statement that are read; more than any server takes."""
_NUMBER = re.compile(r"[0-9]+(e[0-9]*)?|0x[0-9a-f]+|0b[01]+")

Column = tuple[str, ...]
"""A column, behind its table and database if they are named."""


def takes_any_of_group(words: Sequence[str]) -> bool:
    """Whether a query in it has a column that its groups do not tell."""
    left = _READ_MOST
    for at, word in enumerate(words):
        if word == "select":
            block = words[at + 1 : _end(words, at + 1, _BEHIND_BLOCK)]
            left -= len(block)
            if left < 0 or _takes_any(block):
                return True
    return False


def is_updated_by_any(words: Sequence[str], *, is_whole: bool) -> bool:
    """Whether it is an UPDATE of several tables that sets a column to what another one has."""
    begin = _find(words, 0, {"update"}) + 1
    end = _find(words, begin, {"set"})
    tables = words[begin:end]
    first = next((word for word in tables if word not in _BEFORE_TABLES), "")
    if first != "(" and _find(tables, 0, {","}) == len(tables) and not _JOINS & {*tables}:
        return False
    if not is_whole:
        return True
    for item in _items(words[end + 1 : _end(words, end + 1, _BEHIND_SETS)]):
        to, *more = [*_columns(item)] or [()]
        if any(one != to and (len(to) < 2 or one[:-1] != to[:-1]) for one in more):
            return True
    return False


def _takes_any(block: Sequence[str]) -> bool:
    """The same of what is behind the SELECT of one query."""
    begin = 0
    while block[begin : begin + 1] and (
        block[begin] in _BEFORE_ITEMS or block[begin].startswith("sql_")
    ):
        begin += 1
    end = _end(block, begin, _BEHIND_LIST)
    grouped = _find(block, end, {"group"})
    has_groups = grouped < len(block)
    if not has_groups and not _aggregates(block):
        return False
    groups = [*_items(block[grouped + 2 : _end(block, grouped + 2, _BEHIND_GROUPS)])]
    known = [[*_columns(group)] for group in groups]
    bare = [found[0] for group, found in zip(groups, known, strict=True) if _is_bare(group, found)]
    return any(
        str(number) not in (group[0] for group in groups if len(group) == 1)
        and item not in groups
        and not all(any(_is_same(column, one) for one in bare) for column in _columns(item))
        for number, item in enumerate(map(_expression, _items(block[begin:end])), 1)
    )


def _is_bare(group: Sequence[str], found: Sequence[Column]) -> bool:
    return len(found) == 1 and len(group) == 2 * len(found[0]) - 1


def _is_same(first: Column, second: Column) -> bool:
    least = min(len(first), len(second))
    return first[-least:] == second[-least:]


def _aggregates(block: Sequence[str]) -> bool:
    """Whether it has one group, as it calls an aggregate outside of its own subqueries."""
    at = 0
    while at < len(block):
        if block[at] == "(" and block[at + 1 : at + 2] and block[at + 1] in ("select", "with"):
            at = _closing(block, at)
        elif _is_aggregate(block, at):
            return True
        at += 1
    return False


def _is_aggregate(words: Sequence[str], at: int) -> bool:
    if words[at] not in AGGREGATES or words[at + 1 : at + 2] != ["("]:
        return False
    behind = _closing(words, at + 1) + 1
    return words[behind : behind + 1] != ["over"]


def _columns(words: Sequence[str]) -> Iterator[Column]:
    """The columns outside of aggregates; what may be one, and a subquery, too."""
    at = 0
    while at < len(words):
        word = words[at]
        if _is_aggregate(words, at):
            at = _closing(words, at + 1)
        elif word == "@":
            while words[at : at + 1] == ["@"]:
                at += 1
        elif word == "*" and not at:
            yield (word,)
        elif word in ("collate", "using"):
            at += 1
        elif word == "as":  # the type of a CAST
            at = _end(words, at, frozenset()) - 1
        elif _is_name(word):
            name = [word]
            while words[at + 1 : at + 2] == ["."]:
                name += words[at + 2 : at + 3]
                at += 2
            behind = words[at + 1] if at + 1 < len(words) else ""
            is_column = behind != "(" and not (word[0] == "_" and behind[:1] in ("'", '"'))
            is_column &= len(name) > 1 or word not in _NOT_COLUMNS
            if is_column and not (word == "end" and "case" in words):
                yield tuple(part.removeprefix("`") for part in name)
        at += 1


def _is_name(word: str) -> bool:
    first = word[0]
    return (first in "`_$" or first.isalnum()) and _NUMBER.fullmatch(word) is None


def _expression(item: Sequence[str]) -> list[str]:
    """What a column of a query is without its alias."""
    words = [*item]
    end = _find(words, 0, {"as"})
    if end < len(words):
        return words[:end]
    if len(words) < 2 or not _is_name(words[-1]):
        return words
    last = words[-2]
    is_end = (
        last == ")" or last[0] in "'\"" or last in _NOW or last[0].isalnum() or last[0] in "`_$"
    )
    is_alias = is_end and (last in _NOW or last not in _NOT_COLUMNS)
    return words[:-1] if is_alias else words


def _items(words: Sequence[str]) -> Iterator[list[str]]:
    """What is between the commas."""
    begin = 0
    while begin < len(words):
        end = _end(words, begin, {","})
        yield [*words[begin:end]]
        begin = end + 1


def _find(words: Sequence[str], at: int, wanted: frozenset[str] | set[str]) -> int:
    """Where one of these words comes first, outside of parentheses; the end if none does."""
    return _end(words, at, wanted, closes=False)


def _end(
    words: Sequence[str], at: int, wanted: frozenset[str] | set[str], *, closes: bool = True
) -> int:
    """The same, or where the parentheses around it close."""
    depth = 0
    while at < len(words):
        word = words[at]
        depth += (word == "(") - (word == ")")
        if (depth < 0 and closes) or (depth <= 0 and word in wanted):
            return at
        at += 1
    return at


def _closing(words: Sequence[str], at: int) -> int:
    """Where the parenthesis that opens here closes."""
    return _end(words, at + 1, frozenset())
