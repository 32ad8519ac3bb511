"""The command line: options, environment and TOML file, merged by click; errors, printed.

Place in the flow: the outermost module and the only one that imports click. It turns what was
given into a `Config`, configures the log, calls the daemon, and turns every Binlog2s3Error into
its message, hint and exit code.
"""

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from binlog2s3 import __version__
from binlog2s3.config import BY_NAME, OPTIONS, Config, Option, build, parse, read_file
from binlog2s3.daemon import stream as run_stream
from binlog2s3.errors import Binlog2s3Error, ConfigError
from binlog2s3.log import LEVELS, Log, configure

F = TypeVar("F", bound=Callable[..., Any])
_PREFIX = "BINLOG2S3"
_PROBLEMS = "binlog2s3.problems"
_WRONG = "binlog2s3.wrong"
_log = Log("cli")


class _Value(click.ParamType[Any]):
    """An option's value; what is wrong with it is collected, so that all is reported at once."""

    def __init__(self, option: Option) -> None:
        self._option = option
        self.name = option.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse(self._option, value)
        except ValueError as error:
            assert ctx is not None  # noqa: S101 - only click calls this, while it parses
            place = f"--{self._option.name}"
            if param is not None and ctx.get_parameter_source(param.name or "") is None:
                source = _environment_name(self._option)
                place = f"{place} ({source})" if os.environ.get(source) == value else place
            ctx.meta.setdefault(_PROBLEMS, []).append(f"{place}: {error}")
            ctx.meta.setdefault(_WRONG, set()).add(self._option.name)
            return None


def _environment_name(option: Option) -> str:
    return f"{_PREFIX}_{option.parameter.upper()}"


def _load_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001
    if value is not None:
        found = read_file(value)
        ctx.default_map = {BY_NAME[name].parameter: v for name, v in found.values.items()}
        ctx.meta.setdefault(_PROBLEMS, []).extend(found.problems)
        ctx.meta.setdefault(_WRONG, set()).update(found.wrong)
    return value


def _options(tables: Sequence[str]) -> Callable[[F], F]:
    """The options of these tables, and --config."""

    def decorate(function: F) -> F:
        for option in reversed([option for option in OPTIONS if option.table in tables]):
            function = click.option(
                f"--{option.name}",
                option.parameter,
                type=_Value(option),
                default=option.default,
                show_default=_shown_default(option),
                metavar="|".join(option.choices) or option.metavar,
                help=option.help,
            )(function)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            is_eager=True,
            callback=_load_file,
            expose_value=False,
            help="TOML file with the same options in the tables [mysql] [s3] [spool] [stream].",
        )(function)

    return decorate


def _shown_default(option: Option) -> str | bool:
    if option.kind == "size" and isinstance(option.default, int):
        return f"{option.default >> 20} MiB"
    if isinstance(option.default, float):
        return f"{option.default:g}"
    return option.default is not None


def _config(ctx: click.Context, given: dict[str, Any]) -> Config:
    values = {option.name: given.get(option.parameter) for option in OPTIONS}
    config, problems = build(values, ctx.meta.get(_WRONG, ()))
    problems = [*ctx.meta.get(_PROBLEMS, []), *problems]
    if config is None or problems:
        raise ConfigError(problems, hint=f"see {ctx.command_path} -h")
    return config


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


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": _PREFIX},
)
@click.version_option(__version__, "-V", "--version", prog_name="binlog2s3")
def binlog2s3() -> None:
    r"""Stream MySQL and MariaDB binary logs into S3 as they are written.

    Every option can also be set as BINLOG2S3_<OPTION> in the environment or in the file of
    --config; the command line wins over the environment, the environment over the file.

    \b
    Exit codes: 0 done, 1 defect, 2 usage, 3 configuration, 4 MySQL, 5 spool,
    6 store, 7 archive, 9 another writer has taken over, 130 interrupted.
    """


_EXAMPLES = """\b
Examples:
  # a server on this host, to AWS (keys from boto3's own chain)
  binlog2s3 stream --source orders-primary --mysql-user repl \\
      --mysql-password-file /etc/binlog2s3/password \\
      --s3-url s3://acme-binlogs/prod --region eu-central-1

\b
  # another store, another host, TLS checked
  binlog2s3 stream --source orders-primary --mysql-host db1 --mysql-user repl \\
      --mysql-password-file pw --mysql-ssl-mode VERIFY_IDENTITY --mysql-ssl-ca ca.pem \\
      --s3-url s3://binlogs --endpoint-url https://minio:9000 --addressing-style path

\b
  # everything from a file
  binlog2s3 stream --config /etc/binlog2s3/orders-primary.toml
"""


@binlog2s3.command(
    epilog=_EXAMPLES,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": _PREFIX,
        "max_content_width": 100,
    },
)
@_options(("stream", "mysql", "spool", "s3"))
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="auto: text on a terminal, JSON lines elsewhere.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="From there."
)
@click.pass_context
def stream(ctx: click.Context, /, log_format: str, log_level: str, **given: Any) -> None:
    """Stream a server's binary logs into S3 until it is told to stop (SIGTERM, Ctrl-C).

    A binlog is archived under its own name when the server has closed it; big ones are sent in
    parts while they grow. Start it again with the same options and it goes on where it was.
    """
    config = _config(ctx, given)
    configure(log_format, log_level)
    try:
        ctx.exit(run_stream(config))
    except Binlog2s3Error as error:
        _log.error("ended", error, exit_code=error.exit_code)
        ctx.exit(error.exit_code)


def main() -> None:
    """The console script: runs a command and exits with its code."""
    try:
        binlog2s3.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Binlog2s3Error as error:
        for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
            click.echo(f"error: {problem}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
