"""The console script: runs a command, prints its error and hint, and exits with its code."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from binlog2s3.cli.group import CLOSED_PIPE, binlog2s3, unknown
from binlog2s3.cli.monitor import is_check
from binlog2s3.cli.stream import stream
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.errors import Binlog2s3Error, ConfigError

# Where it is set, prometheus_client keeps metrics in files of that directory, to be summed up over
# processes; with a directory that is not there it ends the process.
_OF_MANY_PROCESSES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


def _show(error: click.ClickException) -> None:
    """Print it as click does, but cleaned: it may contain foreign text."""
    from binlog2s3.output import clean

    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is our own help
        error.show()
        return
    message = clean(error.format_message().replace("\n\t", " "))  # how click lists choices
    if isinstance(error, click.UsageError):
        click.UsageError(message, error.ctx).show()
    else:
        click.ClickException(message).show()


def main(arguments: Sequence[str] | None = None, outside: Outside = OUTSIDE) -> NoReturn:
    """The console script: runs a command and exits with its code."""
    for variable in _OF_MANY_PROCESSES:
        os.environ.pop(variable, None)
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] != [stream.name] or unknown(os.environ):
        from binlog2s3.cli import commands  # noqa: F401 - a start of the streamer does without

    try:
        # without standalone mode click raises usage errors, and returns the code of ctx.exit
        name = "binlog2s3" if arguments is not None else None  # then sys.argv is somebody else's
        code = binlog2s3.main(arguments, name, standalone_mode=False, obj=outside)
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except Binlog2s3Error as error:
        from binlog2s3.output import say

        for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
            say("error", problem)
        if error.hint:
            say("hint", error.hint)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EPIPE):
            raise
        # all other files and sockets have their own errors: this one is of standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left at the end
        if error.errno == errno.EPIPE:
            sys.exit(CLOSED_PIPE)
        click.echo(f"error: standard output: {(error.strerror or '').lower()}", err=True)
        sys.exit(3 if is_check(sys.argv if arguments is None else arguments) else 1)


if __name__ == "__main__":
    main()
