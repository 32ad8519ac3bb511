"""The commands around base backups: `backup`, `restore`, `drill` and `prune`."""

from typing import Any, get_args

import click

from binlog2s3.cli.group import command
from binlog2s3.cli.options import config_of, declared, outside_of
from binlog2s3.config.backup import BACKUP, Action
from binlog2s3.config.drill import DRILL
from binlog2s3.config.prune import PRUNE
from binlog2s3.config.restore import RESTORE


@command(
    examples="""
    Examples (with the streamer's own file):
      # after each base backup: register it, with where it is
      binlog2s3 backup add --config /etc/binlog2s3/orders-primary.toml \\
          --from-backup /backup/monday --location s3://acme-backups/monday --label monday

      # a snapshot of a disk: where the server was then
      binlog2s3 backup add --config /etc/binlog2s3/orders-primary.toml \\
          --gtid-set 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-48213 --label snapshot-17

      # what each one can be brought to
      binlog2s3 backup list --config /etc/binlog2s3/orders-primary.toml

      # make one, and store it in the bucket while it is made
      binlog2s3 backup run --config /etc/binlog2s3/orders-primary.toml --tool mysqldump

      # read it back, checked
      binlog2s3 backup get --config /etc/binlog2s3/orders-primary.toml monday | mysql

      # the backup was deleted
      binlog2s3 backup remove --config /etc/binlog2s3/orders-primary.toml 20260102T030405Z-1f2e3d4c
    """,
)
@click.argument("action", type=click.Choice(get_args(Action)), metavar="|".join(get_args(Action)))
@click.argument("backup_id", required=False, metavar="[ID|LABEL]")
@declared(BACKUP["add"].options)
@click.pass_context
def backup(ctx: click.Context, /, *, action: Action, backup_id: str | None, **given: Any) -> None:
    """Make and register base backups; show what each reaches.

    `run` makes one and stores it in the bucket while it is made; `get` writes it to standard
    output, checked. `add` registers one that is elsewhere: a small document says where it ends and
    where it is. `list` shows for each one whether it can be brought to now, without a gap. `remove`
    asks, and forgets one, or deletes one that is stored here. `pitr` chooses among the registered
    backups, and `prune` keeps what they need.
    """
    takes_id = action in ("remove", "get")
    if takes_id != (backup_id is not None):
        needs = "needs the id or the label of the backup" if takes_id else "takes no id"
        raise click.UsageError(f"backup {action} {needs}", ctx)
    config = config_of(ctx, given, BACKUP[action])
    if action == "run":
        from binlog2s3.retain.run import run as run_backup

        ctx.exit(run_backup(config, outside_of(ctx)))
    from binlog2s3.retain.backup import run

    ctx.exit(run(config, action, backup_id, outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file, and credentials that may delete):
      # what would be given up, if any moment of the last 30 days is to stay reachable
      binlog2s3 prune --config /etc/binlog2s3/orders-primary.toml --keep 30d --dry-run

      # each night; what is given up is deleted a day later
      binlog2s3 prune --config /etc/binlog2s3/orders-primary.toml --keep 30d --yes

      # without registered base backups: by age alone
      binlog2s3 prune --config /etc/binlog2s3/orders-primary.toml --keep-binlogs-for 90d

      # the server is gone: no more alarms
      binlog2s3 prune --config /etc/binlog2s3/orders-primary.toml --retire --yes
    """,
)
@declared(PRUNE.options)
@click.pass_context
def prune(ctx: click.Context, /, **given: Any) -> None:
    """Delete what no base backup needs.

    It shows which binlogs are given up and what can be reached afterwards, and asks. First it
    writes into the archive up to where binlogs are given up; a run after --grace deletes them. It
    keeps what the registered base backups need, the newest archived binlog, and the open one.
    """
    config = config_of(ctx, given, PRUNE)
    from binlog2s3.retain.prune import run

    ctx.exit(run(config, outside_of(ctx)))


@command(
    examples="""
    Examples (with the streamer's own file):
      # a dump: it goes into an empty server; the scratch server is of the source's version
      binlog2s3 drill --config /etc/binlog2s3/orders-primary.toml --mysqld /usr/sbin/mysqld \\
          --work-dir /var/lib/drill --restore-command \\
          'sh -c "zstd -dc \\"$DRILL_LOCATION\\" | mysql -u root -S \\"$DRILL_SOCKET\\""'

      # a physical backup: it goes into the empty data directory
      binlog2s3 drill --config /etc/binlog2s3/orders-primary.toml --mysqld /usr/sbin/mysqld \\
          --work-dir /var/lib/drill --restore-command 'cp -a {location}/. {datadir}' \\
          --check-sql /etc/binlog2s3/orders-primary.check.sql --max-disk 500G --timeout 6h
    """,
)
@declared(DRILL.options)
@click.pass_context
def drill(ctx: click.Context, /, **given: Any) -> None:
    """Prove that the archive can be restored, by doing it.

    It restores the newest registered base backup that reaches the goal, starts a scratch server
    that only this machine's user reaches, applies the binlogs, checks the tables, and removes
    everything again. The result is written into the archive, and `status` shows it.
    """
    config = config_of(ctx, given, DRILL)
    from binlog2s3.drill.command import run

    ctx.exit(run(config))


@command(
    examples="""
    Examples (with the streamer's own file; on the machine of the new server, as its user):
      # what would be done, up to the newest commit in the bucket
      binlog2s3 restore --config /etc/binlog2s3/orders-primary.toml --mysqld /usr/sbin/mysqld \\
          --data-dir /var/lib/mysql-restored --latest --dry-run

      # to immediately before a DROP TABLE, with the server running on a socket at the end
      binlog2s3 restore --config /etc/binlog2s3/orders-primary.toml --mysqld /usr/sbin/mysqld \\
          --data-dir /var/lib/mysql-restored --keep-running --yes \\
          --before-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

      # a backup that is elsewhere: a physical copy
      binlog2s3 restore --config /etc/binlog2s3/orders-primary.toml --mysqld /usr/sbin/mysqld \\
          --data-dir /var/lib/mysql-restored --to-time 2026-01-02T14:59:59Z --yes \\
          --restore-command 'cp -a {location}/. {datadir}'
    """,
)
@declared(RESTORE.options)
@click.pass_context
def restore(ctx: click.Context, /, **given: Any) -> None:
    """Restore a server: base backup and binlogs, in one command.

    It chooses the newest registered base backup that reaches the goal, says what it will do, asks,
    restores the backup into an empty data directory, starts a private server on it, applies the
    binlogs up to the goal, and says what is proved. Killed anywhere, the same command continues.
    The bucket is only read.
    """
    config = config_of(ctx, given, RESTORE)
    from binlog2s3.restore.command import run

    ctx.exit(run(config, outside_of(ctx)))
