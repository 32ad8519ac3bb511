"""Options on the command line: declared to click, merged with environment and file, judged.

To click all values are plain text: `config` parses and judges them, so that all problems are
reported at once.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from binlog2s3.config.given import CommandOptions, Given
from binlog2s3.config.options import Option, parse
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
Made = TypeVar("Made")
_FILE = "binlog2s3.file"
_PATH = "binlog2s3.path"


class _Flag(click.Option):
    """A flag whose variable is parsed by us: click ignores a value that it does not know."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        return self.resolve_envvar_value(ctx)


def declared(options: Sequence[Option]) -> Callable[[F], F]:
    """A decorator that gives a command these options, and --config."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            shape: dict[str, Any] = {"metavar": option.metavar}
            if option.kind == "flag":
                shape = {"cls": _Flag, "is_flag": True, "flag_value": True, "default": None}
            if option.repeatable:
                shape["multiple"] = True
            if option.choices or option.kind in ("path", "file"):
                shape["shell_complete"] = _completed(option)
            function = click.option(
                f"--{option.name}",
                option.parameter,
                type=click.UNPROCESSED,
                help=_help(option),
                **shape,
            )(function)
        tables = dict.fromkeys(option.table for option in options if option.table)
        shown = " ".join(f"[{table}]" for table in tables)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            is_eager=True,
            callback=_load_file,
            expose_value=False,
            help=f"TOML file with the same options in the tables {shown}.",
        )(function)

    return decorate


def _load_file(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    """Make the file of --config click's map of defaults. The option is eager, so it comes first."""
    if value is not None:
        # a start without a file does without TOML, and without the options of a recovery
        from binlog2s3.config.file import read_file

        ctx.meta[_PATH] = str(value)
        parsed = ctx.meta[_FILE] = read_file(value)
        ctx.default_map = {name.replace("-", "_"): v for name, v in parsed.values.items()}


def _completed(option: Option) -> Callable[..., Any]:
    """What a shell offers after an option: its choices, or the shell's own files."""

    def offer(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if not option.choices:
            return [CompletionItem(incomplete, type="dir" if option.metavar == "DIR" else "file")]
        return [word for word in option.choices if word.lower().startswith(incomplete.lower())]

    return offer


def _help(option: Option) -> str:
    parts = [option.help]
    if option.choices:
        parts.append(f"One of {', '.join(option.choices)}.")
    if option.required:
        parts.append("[required]")
    elif option.default_text:
        parts.append(f"[default: {option.default_text}]")
    return " ".join(parts)


def outside_of(ctx: click.Context) -> Outside:
    """What `main` was given; the real one where click was called without `main`."""
    return ctx.find_object(Outside) or OUTSIDE


def config_of(ctx: click.Context, raw: dict[str, Any], command: CommandOptions[Made]) -> Made:
    """The config of what click merged. Raises ConfigError with all problems."""
    return judged(ctx, given_of(ctx, raw, command.options), command)


def given_of(ctx: click.Context, raw: dict[str, Any], options: Sequence[Option]) -> Given:
    """What click merged, parsed; with what is wrong with the file and with single values."""
    file: Given = ctx.meta.get(_FILE, Given())
    problems, wrong = list(file.problems), set(file.wrong)
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for option in options:
        value = raw.get(option.parameter)
        if value is None or value == ():
            continue
        source = ctx.get_parameter_source(option.parameter)
        if source is ParameterSource.DEFAULT_MAP:  # `read_file` has parsed it
            places[option.name], values[option.name] = file.places[option.name], value
            continue
        if source is ParameterSource.ENVIRONMENT:
            places[option.name] = option.environment
        try:
            if option.repeatable:
                values[option.name] = tuple(parse(option, text) for text in value)
            else:
                values[option.name] = parse(option, value)
        except ValueError as error:
            problems.append(f"{places.get(option.name, f'--{option.name}')}: {error}")
            wrong.add(option.name)
    return Given(values, places, tuple(problems), frozenset(wrong))


def judged(ctx: click.Context, given: Given, command: CommandOptions[Made]) -> Made:
    """The config of these values. Raises ConfigError with all problems."""
    config, problems = command.build(given)
    if config is None:
        file: Given = ctx.meta.get(_FILE, Given())
        hint = f"see {ctx.command_path} -h"
        if file.problems:
            hint = f"`binlog2s3 config --example` has every table and key of a file; {hint}"
        raise ConfigError(problems, hint=hint)
    return config


def words_of(ctx: click.Context, raw: dict[str, Any], options: Sequence[Option]) -> tuple[str, ...]:
    """Those of these options that were on the command line, and --config, as words."""
    words: list[str] = []
    if ctx.get_parameter_source("config") is ParameterSource.COMMANDLINE:
        words += ["--config", ctx.meta[_PATH]]
    for option in options:
        if ctx.get_parameter_source(option.parameter) is ParameterSource.COMMANDLINE:
            value = raw[option.parameter]
            for each in value if option.repeatable else (value,):
                words += [f"--{option.name}", str(each)]
    return tuple(words)
