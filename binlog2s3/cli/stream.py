"""The command `stream`: it starts without the options of all other commands."""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import click

from binlog2s3.cli.group import STREAM_EXAMPLES, command
from binlog2s3.cli.options import config_of, declared, outside_of
from binlog2s3.config.stream import OPTIONS, STREAM, LogConfig
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.log import Log, configure

_log = Log("cli")


@command(examples=STREAM_EXAMPLES)
@declared(OPTIONS)
@click.pass_context
def stream(ctx: click.Context, /, **given: Any) -> None:
    """Stream a server's binary logs into S3 as they are written.

    It runs until it is stopped (SIGTERM, Ctrl-C). A committed transaction is in the bucket about
    --flush-interval later; a binlog is archived under its own name after the server has closed it.
    Restart it with the same options, and it continues where it stopped.
    """
    gc.disable()  # modules stay: to look for garbage in them costs a fifth of the start
    from binlog2s3.stream.daemon import stream as run_stream

    gc.freeze()  # nor later, as long as it runs
    gc.enable()
    config = replace(config_of(ctx, given, STREAM), timing=outside_of(ctx).timing)
    serve_with(ctx, config.log, lambda: run_stream(config))


def serve_with(ctx: click.Context, log: LogConfig, run: Callable[[], int]) -> NoReturn:
    """Run what runs until it is stopped: it has a log, where the error is that ends it."""
    configure(log.format, log.level)
    try:
        ctx.exit(run())
    except Binlog2s3Error as error:
        _log.error("ended", error, exit_code=error.exit_code)
        ctx.exit(error.exit_code)
