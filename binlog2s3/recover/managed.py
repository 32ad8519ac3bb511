"""The commands that bring a managed server (RDS, Aurora) to a plan's stop: --print-commands. Pure.

A managed server gives no account that may make it a replica, only procedures of its own. So nothing
is done here; the operator runs what is printed. No password is printed, only where it goes.
"""

from shlex import quote

from binlog2s3.config.bucket import url
from binlog2s3.config.options import split_serve_address
from binlog2s3.config.values import S3Config
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Latest, Plan

_PORT = 3307
_USER = "replica"


def commands(plan: Plan, *, s3: S3Config, source: str, serve_address: str | None) -> str:
    """What to run here, and what on the managed server, as text.

    Raises RecoveryError for a plan that cannot be carried out so: MariaDB's, one without GTIDs, or
    one that skips transactions.
    """
    if plan.flavour != "mysql" or plan.before is None:
        raise RecoveryError(
            "--print-commands needs MySQL's GTIDs: the managed server asks for what it is missing",
            hint="write the binlogs with --output-dir, and apply them with mysqlbinlog",
        )
    if plan.skipped:
        raise RecoveryError(
            "--print-commands cannot skip transactions: the managed server fetches all of them",
            hint="restore to before the first of them, or recover a server of your own first",
        )
    host, port = split_serve_address(serve_address) if serve_address else ("", None)
    port = port or _PORT
    words = ["binlog2s3", "serve", "--source", source, "--s3-url", url(s3)]
    for name, value in (
        ("endpoint-url", s3.endpoint_url),
        ("region", s3.region),
        ("profile", s3.profile),
        ("addressing-style", s3.addressing_style if s3.addressing_style != "auto" else None),
    ):
        words += [f"--{name}", value] if value else []
    listen = f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"
    words += ["--lineage", plan.lineage, "--listen", listen, "--user", _USER]
    serve = " ".join(map(quote, words))
    serve += " --password-file PASSWORD_FILE --tls-cert CERT --tls-key KEY"
    last = plan.kept[-1].transaction.gtid if plan.kept else None
    start = "CALL mysql.rds_start_replication;"
    # a plan that leaves nothing out stops, too: the source may commit before the operator is ready
    if not isinstance(plan.goal, Latest):
        if last is None:
            raise RecoveryError(
                "there is no transaction before the stop after which the managed server could stop",
                hint="the base backup is all that there is to restore",
            )
        start = f"CALL mysql.rds_start_replication_until_gtid('{last}');"
    there = f"'{host or 'THIS_MACHINE'}', {port}, '{_USER}', 'PASSWORD', 1, 0"
    lines = [
        "# On this machine. The managed server must reach it; CERT and KEY are for its TLS.",
        serve,
        "",
        "-- On the managed server, as its administrator, after the base backup was restored there.",
        "-- Replace PASSWORD with what PASSWORD_FILE has. MySQL 8.0: ..._external_master_...",
        f"CALL mysql.rds_set_external_source_with_auto_position({there});",
        start,
        "SHOW REPLICA STATUS;",
        "",
        f"-- It is there when @@global.gtid_executed contains {last or 'all of the archive'}.",
        "CALL mysql.rds_stop_replication;",
        "CALL mysql.rds_reset_external_source;",
        "-- Events that were created on the way are disabled: see information_schema.EVENTS.",
    ]
    return "\n".join(lines) + "\n"
