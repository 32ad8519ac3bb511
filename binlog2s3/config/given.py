"""What a command was given, and how that becomes its config: all problems are reported at once.

Each command has a `CommandOptions`: its options, what is wrong with a combination of values, and
how to make its frozen config. It may look at files, and does nothing else. Every problem is one
line that names the option as it was given.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from binlog2s3.config.options import Option

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Given:
    """The parsed values by option name, of the options that were given: all, or those of a file.

    `places` says what a message calls an option, if not `--name`. `problems`: what is wrong with
    single values, or with the file. `wrong` are the options whose value is not usable or unknown,
    as that says, or that an unknown table or key may mean: they are not missing.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    wrong: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Whether the option has a value."""
        return self.values.get(name) is not None

    def wants(self, name: str) -> bool:
        """Whether the option has a value, and is not a flag that says no."""
        value = self.values.get(name)
        return value is not None and value is not False and value != ()

    def is_missing(self, name: str) -> bool:
        """Whether the option was not given, not even with a wrong value."""
        return not self.has(name) and name not in self.wrong

    def called(self, name: str) -> str:
        """The option as the user gave it."""
        return self.places.get(name, f"--{name}")

    def on_command_line(self, name: str) -> bool:
        """Whether the option was given on the command line."""
        return self.has(name) and self.called(name) == f"--{name}"


@dataclass(frozen=True, slots=True)
class CommandOptions(Generic[Made]):
    """The options of one command, and how their values become its config.

    `options` are in the order of the help. `problems` yields what is wrong with the values taken
    together; a missing required option is reported before that. `make` gets the values only if
    there are no problems.
    """

    options: tuple[Option, ...]
    problems: Callable[[Given], Iterable[str]]
    make: Callable[[Mapping[str, Any]], Made]

    def build(self, given: Given) -> tuple[Made | None, list[str]]:
        """Judge all values together: (config, problems); no config if anything is wrong."""
        required = (option.name for option in self.options if option.required)
        missing = (f"--{name} is missing" for name in required if given.is_missing(name))
        problems = [*given.problems, *missing, *self.problems(given)]
        if problems or given.wrong:
            return None, problems
        return self.make(given.values), []


def contradiction(given: Given, name: str, other: str, advice: str) -> str:
    """The message for two options that exclude each other."""
    return f"{given.called(name)} and {given.called(other)} contradict each other: {advice}"


def exclusive(
    given: Given, names: Iterable[str], advice: str = "give one of them"
) -> Iterable[str]:
    """Of these options, each one that was given besides the first that was."""
    given_names = [name for name in names if given.wants(name)]
    for other in given_names[1:]:
        yield contradiction(given, given_names[0], other, advice)


def excludes(given: Given, name: str, others: Iterable[str], advice: str) -> Iterable[str]:
    """Those of the others that were given, although this one was."""
    for other in others:
        if given.wants(name) and given.wants(other):
            yield contradiction(given, name, other, advice)


def needs(given: Given, name: str, *others: str, why: str = "") -> Iterable[str]:
    """Whether an option was given without one of those that it needs; `why` goes on about it."""
    if given.wants(name) and all(given.is_missing(other) for other in others):
        yield f"{given.called(name)} needs {' or '.join(f'--{other}' for other in others)}{why}"


def pair(given: Given, name: str, other: str, why: str = "") -> Iterable[str]:
    """Whether one of two options was given that need each other."""
    yield from needs(given, name, other, why=why)
    yield from needs(given, other, name, why=why)


def file_problems(given: Given, options: Iterable[Option]) -> Iterable[str]:
    """The options whose file must be readable and is not."""
    for option in options:
        if option.kind == "file" and given.has(option.name):
            path = given.values[option.name]
            if reason := _unreadable(path):
                yield f"{given.called(option.name)}: {path}: {reason}"


def path_problems(given: Given, name: str) -> Iterable[str]:
    """Whether the option names a path that does not exist."""
    if given.has(name) and not given.values[name].exists():
        yield f"{given.called(name)}: {given.values[name]}: no such file or directory"


def _unreadable(path: Path) -> str:
    """Why a file cannot be read repeatedly; "" if it can. A pipe gives its bytes only once."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        return "is a directory" if stat.S_ISDIR(mode) else "cannot be read twice (a pipe or socket)"
    return "" if os.access(path, os.R_OK) else "permission denied"
