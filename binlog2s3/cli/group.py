"""The group of all commands, and how a command is made.

An environment variable that is nearly an option is reported, because a misspelt one would have no
effect.
"""

import difflib
import inspect
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

import click

from binlog2s3 import __version__
from binlog2s3.config.options import ENVIRONMENT_PREFIX

_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": ENVIRONMENT_PREFIX,
    "max_content_width": 100,
}
_BEGIN = f"{ENVIRONMENT_PREFIX}_"
_ALIKE = 0.85
CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit code if nobody reads the output any more, as shells show it for other programs."""
_MEANT = dict.fromkeys(("recover", "recovery", "replay"), "pitr") | {
    "search": "find",
    "test": "check",
    "delete": "prune",
    "purge": "prune",
    "backups": "backup",
    "flashback": "undo",
    "rollback": "undo",
    "revert": "undo",
}
"""What others call our commands."""
EXIT_CODES = """
    Exit codes:
      0 done, 1 defect, 2 usage, 3 configuration, 4 MySQL, 5 spool, 6 store,
      7 archive, 8 recovery, 9 another writer has taken over, 130 interrupted,
      141 nobody reads the output
    """
STREAM_EXAMPLES = """
    Examples:
      # a server on this host, to AWS (keys from the AWS SDK's own chain)
      binlog2s3 stream --source orders-primary --mysql-user repl \\
          --mysql-password-file /etc/binlog2s3/orders-primary.password \\
          --s3-url s3://acme-binlogs/prod --region eu-central-1

      # another store, another host, TLS checked
      binlog2s3 stream --source orders-primary --mysql-host db1 --mysql-user repl \\
          --mysql-password-file pw --mysql-ssl-mode VERIFY_IDENTITY --mysql-ssl-ca ca.pem \\
          --s3-url s3://binlogs --endpoint-url https://minio:9000 --addressing-style path

      # everything from a file
      binlog2s3 stream --config /etc/binlog2s3/orders-primary.toml
    """


def _epilog(*texts: str) -> str:
    """The end of a help. The backspaces keep click from wrapping the paragraphs."""
    paragraphs = [p for text in texts for p in inspect.cleandoc(text).split("\n\n") if p]
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs)


def command(
    name: str | None = None, *, examples: str = "", codes: str = EXIT_CODES, **more: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """A decorator that makes a function a command whose help ends with examples and exit codes."""
    epilog = _epilog(examples, codes)
    return binlog2s3.command(name, epilog=epilog, context_settings=_SETTINGS, **more)


class _Commands(click.Group):
    """Suggests the nearest command if there is no such command; ends when nobody reads."""

    # a BrokenPipeError is of standard output: click would end with 1, which is a defect's

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as error:  # of a help
            raise click.exceptions.Exit(CLOSED_PIPE) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise click.exceptions.Exit(CLOSED_PIPE) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = {name: name for name in self.list_commands(ctx)} | _MEANT
            near = [known[close] for close in difflib.get_close_matches(args[0], known, n=1)]
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from error


@click.group(cls=_Commands, epilog=_epilog(STREAM_EXAMPLES, EXIT_CODES), context_settings=_SETTINGS)
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
    --config. The command line wins over the environment, and the environment over the file.
    """
    known = sorted(_known())
    for name in unknown(os.environ):
        word = name.removeprefix(_BEGIN)
        if near := difflib.get_close_matches(word, known, n=1, cutoff=_ALIKE):
            from binlog2s3.output import say

            say("warning", f"unknown option {name}; did you mean {_BEGIN}{near[0]}?")


def _known() -> set[str]:
    """The options of the commands that are loaded, as variables have them."""
    options = (option for command in binlog2s3.commands.values() for option in command.params)
    return {str(option.name).upper() for option in options}


def unknown(environment: Iterable[str]) -> list[str]:
    """Variables with our prefix that are no option of a command that is loaded."""
    known = _known()
    ours = (name for name in sorted(environment) if name.startswith(_BEGIN))
    return [name for name in ours if name.removeprefix(_BEGIN) not in known]
