"""The settings of the server that will run on the data directory, as its option file has them.

Law: a setting that says how data are kept is used from the beginning; what would lead files out of
the data directory is not, and is named.
Source: MySQL's manual, "Using Option Files"; MariaDB's, "Configuring MariaDB with Option Files".
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.errors import RecoveryError

_USED = frozenset(
    {
        "lower-case-table-names",
        "innodb-page-size",
        "innodb-data-file-path",
        "innodb-undo-tablespaces",
        "innodb-checksum-algorithm",
        "innodb-default-row-format",
        "innodb-file-per-table",
        "innodb-buffer-pool-size",
        "default-storage-engine",
        "character-set-server",
        "collation-server",
        "explicit-defaults-for-timestamp",
        "basedir",
        "plugin-dir",
        "plugin-load",
        "plugin-load-add",
        "early-plugin-load",
        "lc-messages-dir",
    }
)
"""Those that the private server needs to make and read the same files."""
_ELSEWHERE = frozenset(
    {
        "innodb-data-home-dir",
        "innodb-undo-directory",
        "innodb-log-group-home-dir",
        "aria-log-dir-path",
    }
)
"""Those that put files of the server into other directories."""


_OF_FILES: Mapping[str, str] = {
    "innodb-page-size": r"[0-9]{4,5}",
    "innodb-data-file-path": r"[A-Za-z0-9_.:;-]{1,400}",
    "innodb-undo-tablespaces": r"[0-9]{1,3}",
    "innodb-checksum-algorithm": r"[a-z0-9_]{1,40}",
}
"""What a physical backup says of its own files, and what the values may be."""
_USUAL = ("innodb-page-size=16384", "innodb-data-file-path=ibdata1:12M:autoextend")
_MOST_FILE = 64 << 10

_GROUP = re.compile(r"server|(?:mysqld|mariadb|mariadbd)(?:-[0-9.]+)?")
_MOST_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """Options for the private server; and in words, which settings of the file it does not use."""

    options: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def settings_of(file: Path, data_dir: Path) -> Settings:
    """What an option file says to the server. Raises RecoveryError if it cannot be read.

    sql_mode, time zone and limits are for those who log in later: what is restored keeps its own.
    """
    options, unused = dict[str, str](), list[str]()
    for name, value in _pairs(file, _MOST_DEPTH):
        is_elsewhere = name in _ELSEWHERE and Path(value) not in (data_dir.absolute(), Path())
        if name in _USED and not (name == "innodb-data-file-path" and "/" in value):
            options[name if name != "plugin-load-add" else f"{name}={value}"] = value
        elif is_elsewhere or name in _USED:
            unused.append(
                f"{name.replace('-', '_')} = {value}: these files are in the data directory, so "
                "leave it out of the file, or move them"
            )
    words = (f"--{name.partition('=')[0]}={value}" for name, value in options.items())
    return Settings(tuple(words), tuple(unused))


def settings_of_backup(data: Path) -> tuple[str, ...]:
    """With what the files of a physical backup were made, as its tool says it; () if it does not.

    Only these settings, with such values: the file comes from the bucket.
    """
    file = data / "backup-my.cnf"
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _MOST_FILE:
        return ()
    settings = {
        name: value
        for name, value in _pairs(file, 0)
        if name in _OF_FILES and re.fullmatch(_OF_FILES[name], value)
    }
    return tuple(f"--loose-{name}={value}" for name, value in settings.items())


def unusual(options: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a backup without which a server does not start on its files: lines of its file."""
    words = (option.removeprefix("--loose-") for option in options)
    return tuple(
        word.partition("=")[0].replace("-", "_") + " = " + word.partition("=")[2]
        for word in words
        if word.startswith(("innodb-page-size", "innodb-data-file-path")) and word not in _USUAL
    )


def _pairs(file: Path, depth: int) -> Iterator[tuple[str, str]]:
    """The settings in the groups that a server reads, with those of included files, in order."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecoveryError(
            f"{file} cannot be read: {error.strerror}",
            hint="--defaults-file is the option file of the restored server",
        ) from error
    is_ours = False
    for line in map(str.strip, lines):
        if group := re.match(r"\[([^\]]*)\]", line):
            is_ours = _GROUP.fullmatch(group[1].strip()) is not None
        elif include := re.match(r"!include(dir)?\s+(.+)", line):
            if depth:
                path = Path(include[2])
                for included in sorted(path.glob("*.cnf")) if include[1] else [path]:
                    yield from _pairs(included, depth - 1)
        elif is_ours and line and line[0] not in "#;!":
            name, _, value = re.split(r"\s#", line, maxsplit=1)[0].partition("=")
            name = name.strip().replace("_", "-").lower().removeprefix("loose-")
            yield name, _unquoted(value.strip())


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
