"""Settings of a server on which depends what another one makes of its binlogs, without an error.

No event has them: names in statements are folded or not, a CREATE TABLE without ENGINE takes the
server's own. Stored generated columns are computed anew while rows are applied, and so is all that
a statement in statement format has: GROUP_CONCAT() is cut there, and gives a column of CREATE TABLE
... SELECT its type. Texts are `setting=value`; one of a bucket becomes an option only in the form
of `_VALUES`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server

FOLDS = "lower_case_table_names"
_LOWER = (FOLDS, "1")
_VALUES: Mapping[str, str] = {
    FOLDS: "[01]",
    "default_storage_engine": "(?i:innodb|myisam|aria|memory|archive|csv)",
    "explicit_defaults_for_timestamp": "ON|OFF",
    "div_precision_increment": "[0-9]{1,2}",
    "default_week_format": "[0-7]",
    "group_concat_max_len": "[0-9]{1,20}",
    "block_encryption_mode": "[a-z0-9-]{1,40}",
    "old_mode": "|UTF8_IS_UTF8MB3",  # others may not be known to the server of a restore
}


def applied_settings(server: Server) -> tuple[str, ...]:
    """The settings of a server; none if it refuses to tell. Raises SourceError if it is gone."""
    named = ", ".join(f"'{name}'" for name in _VALUES)
    try:
        rows = server.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})")
    except SourceError as error:
        if error.transient:
            raise
        return ()
    variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    return tuple(f"{name}={value}" for name, value in _usable(variables))


def server_options(settings: Sequence[str]) -> tuple[str, ...]:
    """The same settings as options of a server program."""
    return tuple(f"--loose-{name.replace('_', '-')}={value}" for name, value in _told(settings))


def folding(settings: Sequence[str]) -> tuple[str, ...]:
    """What a server that keeps names in lower case needs in its option file, as lines of that."""
    return tuple(f"{name} = {value}" for name, value in _told(settings) if (name, value) == _LOWER)


def differing(source: Sequence[str], target: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The settings of which both are known, and differ: by name, the source's and the target's."""
    theirs = dict(_told(target))
    return {
        name: (value, theirs[name])
        for name, value in _told(source)
        if name in theirs and theirs[name].lower() != value.lower()
    }


def _told(settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    pairs = (setting.partition("=") for setting in settings)
    return _usable({name: value for name, _, value in pairs})


def _usable(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, form in _VALUES.items():
        if name in settings and re.fullmatch(form, settings[name]):
            yield name, settings[name]
