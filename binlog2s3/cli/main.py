"""The command line: options, environment and TOML file, merged by click; errors, printed.

Place in the flow: the outermost module and the only one that imports click. It turns what was
given into a `Config`, configures the log, calls the daemon, and turns every Binlog2s3Error into
its message, hint and exit code. What a command needs is imported when it is called: help, and
complaints about options, come at once.
"""

import difflib
import errno
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from binlog2s3 import __version__
from binlog2s3.cli import examples
from binlog2s3.config.find_options import ALL_OPTIONS as FIND_COMMAND
from binlog2s3.config.find_options import SHARED_OPTIONS as FIND_SHARED
from binlog2s3.config.options import ENVIRONMENT_PREFIX
from binlog2s3.config.pitr_options import ALL_OPTIONS as PITR_COMMAND
from binlog2s3.config.status_options import STATUS_OPTIONS
from binlog2s3.config.timing import DEFAULT, Timing
from binlog2s3.config.values import (
    BY_NAME,
    FILE_OPTIONS,
    OPTIONS,
    Config,
    FileValues,
    Option,
    Value,
    build,
    build_list,
    build_status,
    parse,
    read_file,
)
from binlog2s3.config.verify_options import ALL_OPTIONS as VERIFY_COMMAND
from binlog2s3.errors import Binlog2s3Error, ConfigError
from binlog2s3.log import Log, configure

F = TypeVar("F", bound=Callable[..., Any])
Built = TypeVar("Built")
_FILE = "binlog2s3.file"
_PATH = "binlog2s3.path"
_MONITORED = "binlog2s3.monitored"
_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": ENVIRONMENT_PREFIX,
    "max_content_width": 100,
}
_ALIKE = 0.85
_log = Log("cli")


def _load_file(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    """Make the file of --config click's map of defaults; it is eager, so it comes first."""
    if value is not None:
        ctx.meta[_PATH] = str(value)
        found = ctx.meta[_FILE] = read_file(value)
        ctx.default_map = {name.replace("-", "_"): v for name, v in found.values.items()}


class _Flag(click.Option):
    """A flag whose variable is judged like every other one: click drops what it does not know."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        return self.resolve_envvar_value(ctx)


def _options(options: Sequence[Option]) -> Callable[[F], F]:
    """These options, and --config.

    To click all values are plain: what is wrong with them is found later, so that all of it is
    reported at once.
    """

    def decorate(function: F) -> F:
        for option in reversed(options):
            shape: dict[str, Any] = {"metavar": option.metavar}
            if option.kind == "flag":
                shape = {"cls": _Flag, "is_flag": True, "flag_value": True}
            if option.repeatable:
                shape["multiple"] = True
            if option.choices or option.kind in ("path", "file"):
                shape["shell_complete"] = _completed(option)
            function = click.option(
                f"--{option.name}",
                option.parameter,
                type=click.UNPROCESSED,
                default=option.default,
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


def _completed(option: Option) -> Callable[..., Any]:
    """What a shell offers behind an option: its words, or the shell's own files."""

    def offer(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415

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


def _config(ctx: click.Context, given: dict[str, Any]) -> Config:
    return _judged(ctx, given, build)


def _judged(
    ctx: click.Context,
    given: dict[str, Any],
    judge: Callable[..., tuple[Built | None, list[str]]],
    options: Sequence[Option] = OPTIONS,
) -> Built:
    """What click merged, parsed and judged. Raises ConfigError with all problems."""
    file: FileValues = ctx.meta.get(_FILE, FileValues())
    problems, wrong = list(file.problems), set(file.wrong)
    values: dict[str, Value | tuple[Value, ...]] = {}
    places: dict[str, str] = {}
    for option in options:
        raw = given.get(option.parameter)
        if raw is None or raw == ():
            continue
        places[option.name] = _called(ctx, option, file)
        try:
            if option.repeatable:
                values[option.name] = tuple(parse(option, one) for one in raw)
            else:
                values[option.name] = parse(option, raw)
        except ValueError as error:
            problems.append(f"{places[option.name]}: {error}")
            wrong.add(option.name)
    config, contradictions = judge(values, wrong, places)
    if config is None or problems:
        raise ConfigError([*problems, *contradictions], hint=f"see {ctx.command_path} -h")
    return config


def _called(ctx: click.Context, option: Option, file: FileValues) -> str:
    """An option as the user gave it: `--mysql-port`, its variable, or its place in the file."""
    source = ctx.get_parameter_source(option.parameter)
    if source is ParameterSource.ENVIRONMENT:
        return option.environment
    if source is ParameterSource.DEFAULT_MAP:
        return file.places[option.name]
    return f"--{option.name}"


class _Commands(click.Group):
    """Suggests the command that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from error


class _ForMonitors(click.Command):
    """Ends errors with one line, and an exit code that means to a monitor what they mean.

    `when` says by its arguments whether it is a monitor that calls.
    """

    def __init__(
        self, *args: Any, when: Callable[[list[str]], bool], begin: str, code: int, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._when = when
        self._begin = begin
        self._code = code

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        monitored = self._when(args)
        try:
            ctx = super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            if not monitored:
                raise
            self._end(error.format_message())
        ctx.meta[_MONITORED] = monitored
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.meta[_MONITORED]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Binlog2s3Error as error:
            self._end(f"{error} ({error.hint})" if error.hint else str(error))
        except OSError:
            raise  # what is printed does not get there: `main` tells it
        except Exception as error:  # noqa: BLE001 - 1 would be a warning, 2 critical
            self._end(f"defect: {type(error).__name__}: {error}")

    def _end(self, text: str) -> NoReturn:
        from binlog2s3.output import clean  # noqa: PLC0415

        # what follows a "|" would be taken for numbers
        click.echo(f"{self._begin}{clean(text).replace('|', '/')}")
        raise click.exceptions.Exit(self._code)


_LISTING = ("source", "s3-url", "endpoint-url", "region", "addressing-style", "profile")
_LIST_OPTIONS = [BY_NAME[name] for name in (*_LISTING, "concurrency")]
_LIST_OPTIONS[0] = replace(
    BY_NAME["source"], required=False, help="Only this source.", otherwise="all below the prefix"
)

_STATUS = [
    replace(
        BY_NAME["source"],
        required=False,
        help="Source to show.",
        otherwise="that of the streamer that answers",
    ),
    replace(
        BY_NAME["spool"],
        default=None,
        help="Spool of the streamer to ask.",
        otherwise=BY_NAME["spool"].default_text,
    ),
    *(replace(option, required=False) for option in _LIST_OPTIONS[1:]),
    *STATUS_OPTIONS,
]


@click.group(
    cls=_Commands, epilog=f"{examples.STREAM}\n{examples.EXIT_CODES}", context_settings=_SETTINGS
)
@click.version_option(
    __version__,
    "-V",
    "--version",
    prog_name="binlog2s3",
    allow_from_autoenv=False,  # images like to set BINLOG2S3_VERSION
)
def binlog2s3() -> None:
    """Stream MySQL and MariaDB binary logs into S3 as they are written.

    Every option can also be set as BINLOG2S3_<OPTION> in the environment or in the file of
    --config; the command line wins over the environment, the environment over the file.
    """
    options = (option for command in binlog2s3.commands.values() for option in command.params)
    known = {str(option.name).upper() for option in options}
    for name, meant in _misspelt(os.environ, known):
        from binlog2s3.output import say  # noqa: PLC0415

        say("warning", f"nothing is called {name}, did you mean {meant}?")


def _misspelt(environment: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Variables that look like an option's and are none; others may be somebody else's."""
    begin = f"{ENVIRONMENT_PREFIX}_"
    for name in sorted(environment):
        word = name.removeprefix(begin)
        if word == name or word in known:
            continue
        if near := difflib.get_close_matches(word, sorted(known), n=1, cutoff=_ALIKE):
            yield name, f"{begin}{near[0]}"


@binlog2s3.command(epilog=f"{examples.STREAM}\n{examples.EXIT_CODES}", context_settings=_SETTINGS)
@_options(OPTIONS)
@click.pass_context
def stream(ctx: click.Context, /, **given: Any) -> None:
    """Stream a server's binary logs into S3 as they are written.

    It streams until it is told to stop (SIGTERM, Ctrl-C). What is committed can be read from the
    bucket about --flush-interval later; a binlog is archived under its own name when the server has
    closed it. Start it again with the same options and it goes on where it was.
    """
    from binlog2s3.stream.daemon import stream as run_stream  # noqa: PLC0415

    timing = ctx.find_object(Timing) or DEFAULT
    config = replace(_config(ctx, given), timing=timing)
    configure(config.log.format, config.log.level)
    try:
        ctx.exit(run_stream(config))
    except Binlog2s3Error as error:
        _log.error("ended", error, exit_code=error.exit_code)
        ctx.exit(error.exit_code)


@binlog2s3.command(
    "list", epilog=f"{examples.LIST}\n{examples.EXIT_CODES}", context_settings=_SETTINGS
)
@_options(_LIST_OPTIONS)
@click.option("--lineage", metavar="ID", help="Only this lineage.")
@click.option("--json", is_flag=True, help="One JSON document, for programs.")
@click.pass_context
def list_(ctx: click.Context, /, *, lineage: str | None, json: bool, **given: Any) -> None:
    """Show what the bucket has, and what is missing in it.

    It lists lineages, their binlogs, and what is missing between them. It reads the bucket alone,
    from any machine, and changes nothing. A lineage is one unbroken history of one server. Times
    are UTC.
    """
    from binlog2s3.inspect.list import show as show_list  # noqa: PLC0415

    config = _judged(ctx, given, build_list)
    show_list(replace(config, lineage=lineage or None), as_json=json)


@binlog2s3.command(epilog=f"{examples.CHECK}\n{examples.EXIT_CODES}", context_settings=_SETTINGS)
@_options(OPTIONS)
@click.option("--json", is_flag=True, help="One JSON document, for programs.")
@click.pass_context
def check(ctx: click.Context, /, *, json: bool, **given: Any) -> None:
    """Look at everything that `stream` needs, before it does.

    It takes the options of `stream`. The server with its settings, the user's privileges,
    mysqlbinlog, clocks, what may be done in the bucket, how that is set up, the spool's disk: OK,
    WARN or FAIL, and what to do. It streams nothing. What it puts into the bucket to see that it
    may is deleted again. The exit code is that of the first part that fails.
    """
    from binlog2s3.inspect.check.command import refuse, run  # noqa: PLC0415

    try:
        config = _config(ctx, given)
    except ConfigError as error:
        ctx.exit(refuse(error, as_json=json))
    ctx.exit(run(config, as_json=json))


def _is_check(arguments: Sequence[str]) -> bool:
    return "--check" in arguments or bool(os.environ.get(f"{ENVIRONMENT_PREFIX}_CHECK"))


@binlog2s3.command(
    cls=_ForMonitors,
    when=_is_check,
    begin="BINLOG2S3 UNKNOWN - ",
    code=3,
    epilog=f"{examples.STATUS}\n{examples.EXIT_CODES}",
    context_settings=_SETTINGS,
)
@_options(_STATUS)
@click.pass_context
def status(ctx: click.Context, /, **given: Any) -> None:
    """Show what is not in the bucket yet, and what is wrong.

    It asks the streamer by its spool's socket, and where none answers it reads the bucket, from any
    machine; it says which. It changes nothing. Times are UTC. That it can be shown is exit code 0,
    whatever it shows; --check has exit codes of its own.
    """
    from binlog2s3.cli.status import show as show_status  # noqa: PLC0415

    ctx.exit(show_status(_judged(ctx, given, build_status, (*OPTIONS, *STATUS_OPTIONS))))


@binlog2s3.command(epilog=f"{examples.VERIFY}\n{examples.EXIT_CODES}", context_settings=_SETTINGS)
@_options(VERIFY_COMMAND)
@click.pass_context
def verify(ctx: click.Context, /, **given: Any) -> None:
    """Prove the archive, also against its server or a backup.

    It says what can be recovered, from when to when, and each defect with what follows and what to
    do; exit 7 if there is any. It reads names, sizes, entries and the store's own checksums, with
    --deep every byte. Nothing is changed, but for entries that --repair makes again.
    """
    from binlog2s3.inspect.verify.config import build_verify  # noqa: PLC0415

    config = _judged(ctx, given, build_verify, VERIFY_COMMAND)
    from binlog2s3.inspect.verify.command import run as prove  # noqa: PLC0415

    ctx.exit(prove(config))


def _said(ctx: click.Context, given: dict[str, Any], options: Sequence[Option]) -> tuple[str, ...]:
    """Those of these options that stood on the command line, and --config, as words."""
    words: list[str] = []
    if ctx.get_parameter_source("config") is ParameterSource.COMMANDLINE:
        words += ["--config", ctx.meta[_PATH]]
    for option in options:
        if ctx.get_parameter_source(option.parameter) is ParameterSource.COMMANDLINE:
            words += [f"--{option.name}", str(given[option.parameter])]
    return tuple(words)


@binlog2s3.command(epilog=f"{examples.FIND}\n{examples.EXIT_CODES}", context_settings=_SETTINGS)
@_options(FIND_COMMAND)
@click.pass_context
def find(ctx: click.Context, /, **given: Any) -> None:
    """Find transactions: by table, type, time, GTID, size.

    It shows when each was committed, its GTID, where it is, what it does to which tables, its
    statements; and the command of `pitr` that brings a restored server to just before it. It reads
    the bucket alone, the binlog that is still open too, and changes nothing. What cannot be told
    for sure is shown rather than left out, and marked. Times are UTC.
    """
    from binlog2s3.inspect.find.config import build_find  # noqa: PLC0415

    config = _judged(ctx, given, build_find, FIND_COMMAND)
    from binlog2s3.inspect.find.command import run as search  # noqa: PLC0415

    ctx.exit(search(replace(config, given=_said(ctx, given, FIND_SHARED))))


@binlog2s3.command(epilog=f"{examples.PITR}\n{examples.EXIT_CODES}", context_settings=_SETTINGS)
@_options(PITR_COMMAND)
@click.pass_context
def pitr(ctx: click.Context, /, **given: Any) -> None:
    """Bring a restored server forward, to a point in time.

    The server was restored from a base backup. It reads the bucket, shows what it will do (which
    binlogs, the last transactions that come along, the first that do not), asks, does it through
    mysqlbinlog and mysql, and proves it by the server's GTIDs. The bucket is never changed. With
    GTIDs the same command goes on where it was interrupted. Times are UTC.
    """
    from binlog2s3.recover.config import build_pitr  # noqa: PLC0415

    config = _judged(ctx, given, build_pitr, PITR_COMMAND)
    from binlog2s3.recover.pitr import run as recover  # noqa: PLC0415

    ctx.exit(recover(config))


@binlog2s3.command(
    cls=_ForMonitors,
    when=lambda _: True,
    begin="unhealthy: ",
    code=1,
    epilog=examples.HEALTH,
    context_settings=_SETTINGS,
)
@_options([option for option in _STATUS if option.name == "spool"])
@click.pass_context
def health(ctx: click.Context, /, **given: Any) -> None:
    """Ask the streamer of this host whether it is well.

    The answer is one line, and exit code 0 or 1. It is well as long as nothing is critical: what is
    committed becomes durable, or soon will.
    """
    from binlog2s3.cli.status import health as show_health  # noqa: PLC0415

    ctx.exit(show_health(_judged(ctx, given, build_status)))


@binlog2s3.command(
    "config", epilog=f"{examples.CONFIG}\n{examples.EXIT_CODES}", context_settings=_SETTINGS
)
@_options(FILE_OPTIONS)
@click.option("--example", is_flag=True, help="Print a file with every option, explained.")
@click.option("--show", is_flag=True, help="Print what holds, and where each value comes from.")
@click.pass_context
def config_(ctx: click.Context, /, *, example: bool, show: bool, **given: Any) -> None:
    """Print a configuration file: an example, or what is in force.

    With --show everything is judged as `stream` judges it: what is wrong is reported, exit 3.
    Nothing is connected to, and no secret is printed: none can be in a file, only the paths of
    those that hold them.
    """
    from binlog2s3.config import file as config_file  # noqa: PLC0415

    if example == show:
        raise click.UsageError("give --example or --show", ctx)
    if example:
        click.echo(config_file.example(), nl=False)
        return

    def judged(
        values: dict[str, Any], wrong: set[str], places: dict[str, str]
    ) -> tuple[str | None, list[str]]:
        config, problems = build(values, wrong, places)
        if config is None:
            return None, problems
        default = ParameterSource.DEFAULT
        known = [o for o in FILE_OPTIONS if ctx.get_parameter_source(o.parameter) is not default]
        return config_file.in_force(values, places, {o.name for o in known}, FILE_OPTIONS), []

    click.echo(_judged(ctx, given, judged, FILE_OPTIONS), nl=False)


@binlog2s3.command(epilog=examples.COMPLETION, context_settings=_SETTINGS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands.

    It completes options and their words, too.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click has all three
    click.echo(made(binlog2s3, {}, "binlog2s3", "_BINLOG2S3_COMPLETE").source())


@binlog2s3.command(hidden=True, context_settings=_SETTINGS)
@click.argument("command", required=False)
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Write all pages there, instead of printing one.",
)
@click.pass_context
def man(ctx: click.Context, /, *, command: str | None, output_dir: Path | None) -> None:
    """Print a manual page, of a command or of binlog2s3 itself; see it with `| man -l -`."""
    from binlog2s3.cli.manual import Program  # noqa: PLC0415

    shown = {name: one for name, one in binlog2s3.commands.items() if not one.hidden}
    program = Program(name="binlog2s3", version=__version__, itself=binlog2s3, commands=shown)
    if output_dir is not None:
        for name, text in program.pages():
            (output_dir / name).write_text(text, encoding="utf-8")
    elif command is None:
        click.echo(program.overview(), nl=False)
    elif command in shown:
        click.echo(program.page(command), nl=False)
    else:
        raise click.UsageError(f"No such command '{command}'.", ctx)


def _show(error: click.ClickException) -> None:
    """As click shows it, but cleaned: what is wrong may have come from elsewhere."""
    from binlog2s3.output import clean  # noqa: PLC0415

    message = clean(error.format_message())
    if isinstance(error, click.UsageError):
        click.UsageError(message, error.ctx).show()
    else:
        click.ClickException(message).show()


def main(arguments: Sequence[str] | None = None, timing: Timing = DEFAULT) -> NoReturn:
    """The console script: runs a command and exits with its code. `timing` is for `stream`."""
    try:
        # without standalone mode click raises usage errors, and returns the code of ctx.exit
        code = binlog2s3.main(arguments, standalone_mode=False, obj=timing)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except Binlog2s3Error as error:
        from binlog2s3.output import say  # noqa: PLC0415

        for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
            say("error", problem)
        if error.hint:
            say("hint", error.hint)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        # all files and sockets have errors of their own: it is what was printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it, at the end
        click.echo(f"error: standard output: {(error.strerror or '').lower()}", err=True)
        sys.exit(3 if _is_check(sys.argv if arguments is None else arguments) else 1)


if __name__ == "__main__":
    main()
