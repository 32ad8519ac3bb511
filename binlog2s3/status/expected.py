"""Which sources `status --all` must find, and which it ignores: the file of `--expect`.

A source is ignored only by its own name; a line that cannot be parsed is an error.
"""

from dataclasses import dataclass
from pathlib import Path

from binlog2s3.config.options import parse
from binlog2s3.config.values import BY_NAME
from binlog2s3.errors import ConfigError

_MAX_EXPECTED_BYTES = 1 << 20
_SOURCE = BY_NAME["source"]


@dataclass(frozen=True, slots=True)
class Expected:
    """The sources that must exist, and those that are ignored."""

    names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


NOTHING_EXPECTED = Expected()


def read_expected(path: Path) -> Expected:
    """Read a file with one source or `ignore NAME` per line; `#` begins a comment.

    Raises ConfigError with every line that is wrong, and every source that is in both lists.
    """
    hint = "write one source or `ignore SOURCE` per line; a # begins a comment"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_EXPECTED_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"], hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path} is not UTF-8: {error.reason}"], hint=hint) from error
    if len(data) > _MAX_EXPECTED_BYTES:
        raise ConfigError([f"{path} has more than {_MAX_EXPECTED_BYTES} bytes"], hint=hint)
    ignores: dict[str, bool] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        ignore = len(words) == 2 and words[0] == "ignore"
        name = words[1] if ignore else " ".join(words)
        try:
            source = str(parse(_SOURCE, name)) if name else ""
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
            continue
        if source and ignores.setdefault(source, ignore) is not ignore:
            problems.append(f"{path}:{number}: {source} is both expected and ignored")
    if problems:
        raise ConfigError(problems, hint=hint)
    return Expected(
        names=tuple(name for name, ignore in ignores.items() if name and not ignore),
        ignored=tuple(name for name, ignore in ignores.items() if ignore),
    )
