"""Commands that a monitor calls: every error is one line, with the exit code that it expects."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from binlog2s3.config.options import ENVIRONMENT_PREFIX
from binlog2s3.errors import Binlog2s3Error

_MONITORED = "binlog2s3.monitored"


def is_check(arguments: Sequence[str]) -> bool:
    """Whether `status --check` is called."""
    return "--check" in arguments or bool(os.environ.get(f"{ENVIRONMENT_PREFIX}_CHECK"))


class ForMonitors(click.Command):
    """Ends every error with one line and the exit code that a monitor expects.

    `when` decides by the arguments whether a monitor calls.
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
        """As click does; but an error in the arguments is one line, too."""
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
        """As click does; but an error is one line."""
        if not ctx.meta[_MONITORED]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Binlog2s3Error as error:
            self._end(f"{error} ({error.hint})" if error.hint else str(error))
        except OSError:
            raise  # standard output cannot be written: `main` reports it
        except Exception as error:  # noqa: BLE001 - 1 would be a warning, 2 critical
            self._end(f"defect: {type(error).__name__}: {error}")

    def _end(self, text: str) -> NoReturn:
        from binlog2s3.output import clean

        # a monitor takes what follows a "|" for numbers
        click.echo(f"{self._begin}{clean(text).replace('|', '/')}")
        raise click.exceptions.Exit(self._code)
