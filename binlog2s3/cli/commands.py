"""The commands but `stream`: their options, help and examples, and what each one calls.

What a command needs is imported when it is called, so that help and complaints about options come
at once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from binlog2s3 import __version__
from binlog2s3.cli.group import binlog2s3, command
from binlog2s3.cli.monitor import ForMonitors, is_check
from binlog2s3.cli.options import config_of, declared, given_of, judged, outside_of, words_of
from binlog2s3.cli.retention import backup, drill, prune, restore
from binlog2s3.cli.stream import serve_with, stream
from binlog2s3.config.bucket import LIST
from binlog2s3.config.file import FILE_OPTIONS, in_force
from binlog2s3.config.file import example as example_file
from binlog2s3.config.find import FIND, SHARED_OPTIONS
from binlog2s3.config.pitr import PITR
from binlog2s3.config.report import REPORT
from binlog2s3.config.rows import ROWS
from binlog2s3.config.serve import SERVE
from binlog2s3.config.status import HEALTH, STATUS
from binlog2s3.config.stream import OPTIONS, STREAM
from binlog2s3.config.undo import UNDO
from binlog2s3.config.verify import VERIFY
from binlog2s3.errors import ConfigError

__all__ = ["backup", "binlog2s3", "drill", "prune", "restore", "stream"]  # with all commands


@command(
    examples="""
    Examples:
      # for replicas and tools on this machine (reading the bucket is enough)
      binlog2s3 serve --source orders-primary --s3-url s3://acme-binlogs/prod \\
          --region eu-central-1 --listen 127.0.0.1:3307 --user replica --password-file pw

      # for replicas elsewhere: with TLS
      binlog2s3 serve --config /etc/binlog2s3/orders-primary.toml --listen 0.0.0.0:3307 \\
          --user replica --password-file pw --tls-cert cert.pem --tls-key key.pem \\
          --status-listen 127.0.0.1:9276

      # a replica of it, MySQL
      CHANGE REPLICATION SOURCE TO SOURCE_HOST='archive', SOURCE_PORT=3307,
          SOURCE_AUTO_POSITION=1, SOURCE_SSL=1;
      START REPLICA USER='replica' PASSWORD='...';

      # what pitr --output-dir wrote
      binlog2s3 serve --dir recovered --listen 127.0.0.1:3307 --user replica --password-file pw

      # copies of a server's own binlogs
      binlog2s3 serve --binlog-dir copies --listen 127.0.0.1:3307 --user replica \\
          --password-file pw
    """,
)
@declared(SERVE.options)
@click.pass_context
def serve(ctx: click.Context, /, **given: Any) -> None:
    """Serve the archive as a replication source.

    Replicas, change-data-capture tools and mysqlbinlog connect to it as to a server, by GTIDs or by
    position, and follow the open binlog. It only reads the bucket, and runs until it is stopped
    (SIGTERM, Ctrl-C).
    """
    from binlog2s3.serve.command import run

    config = config_of(ctx, given, SERVE)
    serve_with(ctx, config.log, lambda: run(config))


@command(
    "list",
    examples="""
    Examples:
      # all sources below a prefix (keys from the AWS SDK's own chain; reading is enough)
      binlog2s3 list --s3-url s3://acme-binlogs/prod --region eu-central-1

      # one source, with the streamer's own file
      binlog2s3 list --config /etc/binlog2s3/orders-primary.toml

      # one lineage, for a program: the names of its archived binlogs
      binlog2s3 list --s3-url s3://acme-binlogs/prod --source orders-primary \\
          --lineage 20260102T030405Z-3e11fa47-a1b2 --json |
          jq -r '.sources[].lineages[].binlogs[] | select(.state == "archived").name'
    """,
)
@declared(LIST.options)
@click.pass_context
def list_(ctx: click.Context, /, **given: Any) -> None:
    """Show what is in the bucket, and what is missing.

    It lists lineages, their binlogs, and what is missing between them. It only reads the bucket,
    from any machine, and changes nothing. A lineage is one unbroken history of one server. Times
    are UTC.
    """
    from binlog2s3.inspect.list import show as show_list

    show_list(config_of(ctx, given, LIST), outside_of(ctx))


@command(
    examples="""
    Examples:
      # everything that the streamer of this file needs, as the user that it runs as
      # (for the systemd unit: as root, with the unit's file of AWS keys, if there is one)
      export AWS_SHARED_CREDENTIALS_FILE=/etc/binlog2s3/orders-primary.aws
      binlog2s3 check --config /etc/binlog2s3/orders-primary.toml

      # for a program: what fails, and what to do
      binlog2s3 check --config /etc/binlog2s3/orders-primary.toml --json |
          jq -r '.parts[] | select(.result == "fail") | .name + ": " + .hint'
    """,
)
@declared(OPTIONS)
@click.option("--all", "all_rows", is_flag=True, help="Show each row, also what is well.")
@click.option("--json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def check(ctx: click.Context, /, *, all_rows: bool, json: bool, **given: Any) -> None:
    """Check everything that `stream` needs.

    It takes the options of `stream`, and checks the server and its settings, the user's privileges,
    mysqlbinlog, the clocks, the permissions and settings of the bucket, and the spool's disk. Each
    part is OK, WARN or FAIL, with what to do; what fails is shown first, and only --all shows what
    is well. It streams nothing, and deletes its test objects in the bucket again. The exit code is
    that of the first part that fails.
    """
    from binlog2s3.inspect.check.command import refuse, run

    try:
        config = config_of(ctx, given, STREAM)
    except ConfigError as error:
        ctx.exit(refuse(error, as_json=json, all_rows=all_rows))
    ctx.exit(run(config, as_json=json, all_rows=all_rows, outside=outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file; the server is the streamed one):
      # what would be undone, and whether it can be; changes nothing
      binlog2s3 undo --config /etc/binlog2s3/orders-primary.toml --dry-run \\
          --target-host db1 --target-user undo --target-password-file pw \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # undo it: every row as it was before, or nothing
      binlog2s3 undo --config /etc/binlog2s3/orders-primary.toml \\
          --target-host db1 --target-user undo --target-password-file pw \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # only the changes of one table, but for the rows that were changed since
      binlog2s3 undo --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
          --target-host db1 --target-user undo --target-password-file pw \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213 --skip-conflicts
    """,
)
@declared(UNDO.options)
@click.pass_context
def undo(ctx: click.Context, /, **given: Any) -> None:
    """Take back transactions on the live server.

    It reads the transactions from the bucket, shows the plan, asks, and executes the changes of
    their rows in reverse, as one transaction. Each row is compared first, byte by byte: if one was
    changed since, nothing is changed at all. What cannot be undone exactly is refused with the
    reason.
    """
    config = config_of(ctx, given, UNDO)
    from binlog2s3.undo.command import run as take_back

    config = replace(config, given=words_of(ctx, given, SHARED_OPTIONS))
    ctx.exit(take_back(config, outside_of(ctx)))


@command(
    cls=ForMonitors,
    when=is_check,
    begin="BINLOG2S3 UNKNOWN - ",
    code=3,
    examples="""
    Examples:
      # the streamer of this host, with its own file; the bucket if it does not run
      binlog2s3 status --config /etc/binlog2s3/orders-primary.toml

      # from anywhere (keys from the AWS SDK's own chain; reading is enough)
      binlog2s3 status --s3-url s3://acme-binlogs/prod --source orders-primary

      # every source of a bucket, the worst first, updated continuously
      binlog2s3 status --s3-url s3://acme-binlogs/prod --all --watch --interval 10

      # for Nagios and similar: exit 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (and every error)
      binlog2s3 status --s3-url s3://acme-binlogs/prod --all --expect sources.txt --check

      # the replicas and other clients of `serve`, by its --status-listen
      binlog2s3 status --serve-url http://127.0.0.1:9276

      # for a program: what may be deleted on the server
      binlog2s3 status --config /etc/binlog2s3/orders-primary.toml --json | jq -r .purge.statement
    """,
)
@declared(STATUS.options)
@click.pass_context
def status(ctx: click.Context, /, **given: Any) -> None:
    """Show what is not in the bucket yet, and what is wrong.

    It asks the streamer through the socket in its spool. If no streamer answers, it reads the
    bucket, from any machine, and says so. --serve-url lists the clients of `serve`. It changes
    nothing. Times are UTC. The exit code is 0 if the status can be shown, whatever it is; --check
    has its own exit codes.
    """
    from binlog2s3.cli.status import show as show_status

    ctx.exit(show_status(config_of(ctx, given, STATUS), outside_of(ctx)))


@command(
    examples="""
    Examples:
      # one source, with the streamer's own file (reading the bucket is enough)
      binlog2s3 report --config /etc/binlog2s3/orders-primary.toml --html orders-primary.html

      # all sources below a prefix, those that must exist among them; old proofs are wrong
      binlog2s3 report --s3-url s3://acme-binlogs/prod --region eu-central-1 --html report.html \\
          --expect sources.txt --backup-max-age 2d --drill-max-age 7d

      # for a program that takes it from there
      binlog2s3 report --config /etc/binlog2s3/orders-primary.toml --html - | gzip > report.html.gz
    """,
)
@declared(REPORT.options)
@click.pass_context
def report(ctx: click.Context, /, **given: Any) -> None:
    """Write a page that shows what can be recovered.

    One HTML file without scripts, and without anything from elsewhere: the recovery window, the
    lineages, base backups and drills on a timeline, what was proved last, and what is wrong now, as
    `status` judges it from the bucket. It only reads the bucket, from any machine. Times are UTC.
    The exit code is 0 if the page was written, whatever it says.
    """
    from binlog2s3.report.command import run

    run(config_of(ctx, given, REPORT), outside_of(ctx))


@command(
    examples="""
    Examples:
      # all sources below a prefix, by names, sizes, entries and the store's checksums
      binlog2s3 verify --s3-url s3://acme-binlogs/prod --region eu-central-1

      # every byte of the last days, with the streamer's own file
      binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --deep --since 2026-01-02T00:00Z

      # can Monday's backup still be brought to now?
      binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --from-backup /backup/monday

      # before PURGE BINARY LOGS: is everything that the server has in the bucket?
      binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --against-source

      # rebuild missing entries (needs s3:PutObject below archive/)
      binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --repair
    """,
)
@declared(VERIFY.options)
@click.pass_context
def verify(ctx: click.Context, /, **given: Any) -> None:
    """Verify the archive, also against its server or a backup.

    It shows what can be recovered, from when to when, and each defect with its consequence and what
    to do; the exit code is 7 if there is a defect. It reads names, sizes, entries and the store's
    checksums, with --deep every byte. It changes nothing; only --repair rebuilds entries.
    """
    config = config_of(ctx, given, VERIFY)
    from binlog2s3.inspect.verify.command import run as prove

    ctx.exit(prove(config, outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file; from any machine, reading the bucket is enough):
      # who dropped orders at about half past three?
      binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
          --type ddl --between 2026-01-02T15:00Z/2026-01-02T16:00Z

      # transactions since midnight that deleted many rows of it
      binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
          --type delete --min-rows 1000 --between 2026-01-02T00:00+01:00/

      # the last 10 that changed anything in a database
      binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table 'shop.*' --limit 10

      # what is in one transaction, for a program
      binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --json \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213 | jq '.transactions[0].changes'

      # the GTID of the newest DROP of it, for a script
      BAD=$(binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
          --type drop --limit 1 --print gtid)
    """,
)
@declared(FIND.options)
@click.pass_context
def find(ctx: click.Context, /, **given: Any) -> None:
    """Find transactions: by table, type, time, GTID, size.

    For each transaction it shows the time of its commit, its GTID and position, what it does to
    which tables, its statements, and the commands that take it back: `undo` on the live server,
    or `restore` to immediately before it. It only reads the bucket, with the binlog that is still
    open, and changes nothing. An uncertain match is shown and marked. Times are UTC.
    """
    config = config_of(ctx, given, FIND)
    from binlog2s3.inspect.find.command import run as search

    config = replace(config, given=words_of(ctx, given, SHARED_OPTIONS))
    ctx.exit(search(config, outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file; mysqlbinlog or mariadb-binlog must be installed):
      # what did this transaction change? Each row, before and after
      binlog2s3 rows --config /etc/binlog2s3/orders-primary.toml \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # without GTIDs: by the position that `find` shows
      binlog2s3 rows --config /etc/binlog2s3/orders-primary.toml --at mysql-bin.000042:1234

      # all rows of one table, for a program: the ids of what was deleted
      binlog2s3 rows --config /etc/binlog2s3/orders-primary.toml --table shop.orders --limit 0 \\
          --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213 --json |
          jq -r '.transactions[0].rows[] | select(.kind == "delete").before.id'
    """,
)
@declared(ROWS.options)
@click.pass_context
def rows(ctx: click.Context, /, **given: Any) -> None:
    """Show what a transaction changed, row by row.

    Each row is shown before and after the change, in the form of `mysqlbinlog -vv`: that program
    prints it, and columns have their names if the binlog has them (binlog_row_metadata = FULL). It
    only reads the bucket, with the binlog that is still open, and changes nothing. The exit code is
    7 if the transaction is not found, or not all of its rows can be shown.
    """
    config = config_of(ctx, given, ROWS)
    from binlog2s3.inspect.find.command import run as search

    config = replace(config, given=words_of(ctx, given, SHARED_OPTIONS))
    ctx.exit(search(config, outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file; the target was restored and has its GTIDs):
      # show the plan, up to the newest commit in the bucket; changes nothing
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml \\
          --target-socket /run/mysqld/mysqld.sock --target-user root --latest --dry-run

      # apply it
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml \\
          --target-socket /run/mysqld/mysqld.sock --target-user root --latest --stop-target-threads

      # up to immediately before a DROP TABLE (the plan shows the transactions around it)
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
          --target-user root --target-password-file pw --stop-target-threads \\
          --before-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # up to a time, by the source's clock
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
          --target-user root --target-password-file pw --stop-target-threads \\
          --to-time "2026-01-02 14:59:59.5+01:00"

      # everything except one transaction
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
          --target-user root --target-password-file pw --stop-target-threads \\
          --latest --skip-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # only one table, on a scratch server that has the base backup and nothing else
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host scratch \\
          --target-user root --target-password-file pw --table shop.orders \\
          --before-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # without a server: the files, and a README with the command that applies them
      binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --from-backup /backup/monday \\
          --latest --output-dir /restore/binlogs
    """,
)
@declared(PITR.options)
@click.pass_context
def pitr(ctx: click.Context, /, **given: Any) -> None:
    """Bring a restored server forward to a point in time.

    The server was restored from a base backup. It reads the bucket, shows the plan (which binlogs,
    the last transactions that are applied, the first that are not), asks, and lets the server
    replicate from it up to the goal; the server's GTIDs prove the result. The bucket is never
    changed. With GTIDs, the same command continues after an interruption. Times are UTC.
    """
    config = config_of(ctx, given, PITR)
    from binlog2s3.recover.pitr import run as recover

    ctx.exit(recover(config, outside=outside_of(ctx)))


@command(
    cls=ForMonitors,
    when=lambda _: True,
    begin="unhealthy: ",
    code=1,
    examples="""
    Examples:
      # in a Dockerfile
      HEALTHCHECK CMD ["binlog2s3", "health", "--config", "/etc/binlog2s3/orders-primary.toml"]

      # for a systemd unit, as root
      binlog2s3 health --spool /var/lib/binlog2s3/orders-primary ||
          systemctl status binlog2s3@orders-primary
    """,
    codes="""
    Exit codes:
      0 healthy, 1 everything else
    """,
)
@declared(HEALTH.options)
@click.pass_context
def health(ctx: click.Context, /, **given: Any) -> None:
    """Ask the streamer of this host whether it is healthy.

    The answer is one line, and the exit code is 0 or 1. A streamer is healthy if nothing is
    critical: committed transactions become durable, or will soon.
    """
    from binlog2s3.cli.status import health as show_health

    ctx.exit(show_health(config_of(ctx, given, HEALTH)))


@command(
    "config",
    examples="""
    Examples:
      # a file to start with: every option, its default and its meaning
      binlog2s3 config --example > /etc/binlog2s3/orders-primary.toml

      # the values that apply, with the environment and this file, and where each comes from
      binlog2s3 config --show --config /etc/binlog2s3/orders-primary.toml
    """,
)
@declared(FILE_OPTIONS)
@click.option("--example", is_flag=True, help="Print a file with every option and its meaning.")
@click.option(
    "--show", is_flag=True, help="Print the values that apply, and where each comes from."
)
@click.pass_context
def config_(ctx: click.Context, /, *, example: bool, show: bool, **given: Any) -> None:
    """Print a configuration file: an example, or what applies.

    --show checks all values as `stream` does, and exits with 3 if something is wrong. It connects
    to nothing. It prints no secrets: a file has only the paths of files with secrets.
    """
    if example == show:
        raise click.UsageError("give --example or --show", ctx)
    if example:
        click.echo(example_file(), nl=False)
        return

    parsed = given_of(ctx, given, FILE_OPTIONS)
    judged(ctx, parsed, STREAM)
    click.echo(in_force(parsed, FILE_OPTIONS), nl=False)


@command(
    examples="""
    Examples:
      # in ~/.bashrc
      eval "$(binlog2s3 completion bash)"

      # in ~/.zshrc, after compinit
      eval "$(binlog2s3 completion zsh)"

      # once
      binlog2s3 completion fish > ~/.config/fish/completions/binlog2s3.fish
    """,
    codes="",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script for a shell to complete commands.

    It also completes options and their choices.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click has all three
    click.echo(made(binlog2s3, {}, "binlog2s3", "_BINLOG2S3_COMPLETE").source())


@command(codes="", hidden=True)
@click.argument("command", required=False)
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Write all pages to this directory, instead of printing one.",
)
@click.pass_context
def man(ctx: click.Context, /, *, command: str | None, output_dir: Path | None) -> None:
    """Print a manual page, of a command or of binlog2s3 itself; see it with `| man -l -`."""
    from binlog2s3.cli.manual import Program

    shown = {name: itself for name, itself in binlog2s3.commands.items() if not itself.hidden}
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
