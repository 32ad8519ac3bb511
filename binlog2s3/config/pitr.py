"""The options of `pitr`, and one frozen `PitrConfig` of them.

How to reach the target may be in the configuration file, in the table `[target]`. What to do to it
may not: the operator says that each time. There is no default target: a server that nobody named is
never changed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import BACKUP_FORMS, AsJson, DryRun, FromLineage, of_source, reading
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    excludes,
    exclusive,
    file_problems,
    needs,
    path_problems,
)
from binlog2s3.config.goal import (
    GOAL_OPTIONS,
    AcceptTimeZone,
    Goal,
    OnlyTables,
    flavour_problems,
    goal_of,
    goal_problems,
    times_problems,
)
from binlog2s3.config.options import Option, fill, options_of
from binlog2s3.config.stream import (
    BY_NAME,
    MysqlConfig,
    S3Config,
    login_problems,
    target_of,
    target_options,
)

_FROM = ("from-gtid-set", "from-binlog", "from-backup", "from-backup-id")
_IN_A_FILTER = re.compile(r"[\w$-](?:[\w$ -]*[\w$-])?")
_GTIDS = ("from-gtid-set", "to-gtid", "before-gtid", "skip-gtid", "allow-holes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PitrConfig:
    """What to bring where, from where on, and what is allowed on the way.

    `lineage`: the one that the history ends in, None: the last writer's. At most one of the starts
    (`from_...`) is set. GTIDs are texts, because their flavour is the history's. `target` is None
    if none was named; `source_address` has where the source answers, as far as the streamer's file
    says so. With `output_dir` nothing is
    applied; the target is then only asked what it has.
    """

    s3: S3Config
    source: str
    goal: Goal
    lineage: str | None = None
    target: MysqlConfig | None = None
    source_address: MysqlConfig | None = None
    serve_address: Annotated[
        str | None,
        Option(
            "HOST[:PORT]",
            "Address of this machine from which the target replicates. Required if the target is "
            "on another machine; the target then connects with TLS.",
            "serve address",
            table="target",
            otherwise="127.0.0.1 and a free port",
        ),
    ] = None
    serve_tls_cert: Annotated[
        Path | None,
        Option(
            "FILE",
            "Certificate (PEM) of this process for a target on another machine, valid for the host "
            "of --serve-address.",
            "file",
            table="target",
        ),
    ] = None
    serve_tls_key: Annotated[
        Path | None, Option("FILE", "Its key (PEM).", "file", table="target")
    ] = None
    serve_tls_ca: Annotated[
        str | None,
        Option(
            "PATH",
            "Path on the target's machine of the file with which it verifies that certificate: its "
            "authorities, or the certificate itself.",
            table="target",
        ),
    ] = None
    skip_gtid: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "Skip these transactions; may be given several times. At the end they are committed "
            "as empty transactions, so that no replica fetches them again.",
            "gtid set",
        ),
    ] = ()
    skip_leaves_hole: Annotated[
        bool,
        Option(
            "",
            "Do not commit empty transactions for --skip-gtid: their GTIDs stay unused, and each "
            "later run needs the same --skip-gtid.",
        ),
    ] = False
    allow_holes: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "Apply these transactions first, although the target has later ones; may be given "
            "several times. It must name exactly what is missing there, as the refusal does.",
            "gtid set",
        ),
    ] = ()
    from_gtid_set: Annotated[
        str | None,
        Option(
            "SET",
            "The GTIDs that the base backup contains.",
            "gtid set",
            otherwise="the target's own @@gtid_executed",
        ),
    ] = None
    from_binlog: Annotated[
        BinlogName | None, Option("NAME", "Binlog in which the base backup ends.")
    ] = None
    from_position: Annotated[
        int | None, Option("N", "Offset in that binlog at which the base backup ends.", least=4)
    ] = None
    from_lineage: FromLineage = None
    from_backup: Annotated[
        Path | None,
        Option(
            "PATH",
            f"The base backup itself, which contains its position: {BACKUP_FORMS}",
        ),
    ] = None
    accept_backup: Annotated[
        bool,
        Option(
            "",
            "Go on although the base backup of --from-backup is cut off, or does not have the "
            "whole server: data will be missing.",
        ),
    ] = False
    from_backup_id: Annotated[
        str | None,
        Option(
            "ID",
            "A base backup that is registered: its id, the first characters of it, or its label. "
            "Without a target, the newest one that can reach the goal.",
        ),
    ] = None
    allow_gap: Annotated[
        bool, Option("", "Continue across known gaps and damage: data will be missing.")
    ] = False
    accept_time_zone: AcceptTimeZone = False
    allow_source: Annotated[
        bool,
        Option("", "Allow a target that is the streamed server, or has its server_uuid."),
    ] = False
    allow_extra_gtids: Annotated[
        bool, Option("", "Allow a target that has GTIDs which are not in the history.")
    ] = False
    stop_target_threads: Annotated[
        bool,
        Option(
            "",
            "Stop the target's event scheduler (in MySQL it is on by default) and replication, and "
            "leave them off. Without this option, a target on which they run is refused.",
        ),
    ] = False
    workers: Annotated[
        int | None,
        Option(
            "N",
            "Number of applier workers of the target, if its settings let several workers keep "
            "the order of commits.",
            least=1,
            most=1024,
            otherwise="as the target is set",
        ),
    ] = None
    allow_non_transactional: Annotated[
        bool,
        Option(
            "",
            "Continue after a crash of the target although it has non-transactional tables "
            "(MyISAM, Aria): rows in them may be duplicated or missing.",
        ),
    ] = False
    tables: OnlyTables = ()
    output_dir: Annotated[
        Path | None,
        Option(
            "DIR",
            "Write the parts of the binlogs to this directory, ready for mysqlbinlog, instead of "
            "applying them.",
        ),
    ] = None
    dry_run: DryRun = False
    as_json: AsJson = False
    yes: Annotated[bool, Option("", "Do not ask before applying.")] = False

    @property
    def applies(self) -> bool:
        """Whether a server is to be changed."""
        return self.target is not None and not self.dry_run and not self.output_dir

    @property
    def chooses_backup(self) -> bool:
        """Whether to choose a registered backup: there is neither a target nor another start."""
        return self.target is None and self.output_dir is None and not self.tells_start

    @property
    def tells_start(self) -> bool:
        """Whether the operator says where the base backup ends."""
        given = (self.from_gtid_set, self.from_binlog, self.from_backup, self.from_backup_id)
        return given != (None,) * len(given)


_HELP = {
    "target-host": "Server to bring forward; it was restored from a base backup.",
    "target-user": "User that may make the target a replica: docs/guides/permissions.md",
    "target-accept-unverified-server": "Accept, for a target on another host, that nothing proves "
    "which server answers there, or to the target that it replicates from this process: whoever is "
    "on the way can get the password, and read and change what is applied.",
}
_SERVER = target_options(_HELP)
_OWN = options_of(PitrConfig)
PITR_OPTIONS = (*GOAL_OPTIONS, *(option for option in _OWN if not option.table))
"""Those of a recovery, which cannot be in a file."""
TARGET_OPTIONS = (*_SERVER, *(option for option in _OWN if option.table))
"""Those of the table [target]."""
_SOURCE = "The source, if the file has it: it is refused as the target."
_ADDRESS = (
    replace(BY_NAME["mysql-host"], help=_SOURCE, otherwise=""),
    replace(BY_NAME["mysql-port"], otherwise=""),
    replace(BY_NAME["mysql-socket"], help="Its socket."),
)
_SHARED = (*reading("Server in the bucket whose history is applied."), *_ADDRESS)


def _target(values: Mapping[str, Any]) -> MysqlConfig | None:
    target = target_of(values, _SERVER)
    return target if target.host or target.socket or target.defaults_file else None


def _source_address(values: Mapping[str, Any]) -> MysqlConfig | None:
    address = fill(MysqlConfig, _ADDRESS, values)
    return address if address.host or address.port or address.socket else None


def _start_problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, _FROM)
    yield from needs(given, "from-binlog", "from-position", why=" (4: its beginning)")
    yield from needs(given, "from-position", "from-binlog")
    yield from path_problems(given, "from-backup")
    yield from needs(given, "accept-backup", "from-backup")
    yield from needs(given, "skip-leaves-hole", "skip-gtid")


def table_problems(given: Given) -> Iterable[str]:
    """What is wrong with the names that --table gives: a replication filter must take them."""
    for database, name in given.values.get("table") or ():
        if name == "*":
            yield f"{given.called('table')} takes single tables, not {database}.*: name each one"
        elif not (_IN_A_FILTER.fullmatch(database) and _IN_A_FILTER.fullmatch(name)):
            yield (
                f"{given.called('table')} {database}.{name}: a replication filter cannot have a "
                "name with other characters than letters, digits, _ $ - and spaces within"
            )


def _serve_problems(given: Given) -> Iterable[str]:
    """A target that verifies needs all of it."""
    needed = ("serve-tls-cert", "serve-tls-key", "serve-tls-ca", "serve-address")
    for name in needed[:3]:
        for other in needed:
            if given.has(name) and given.is_missing(other):
                yield f"{given.called(name)} needs --{other}"
                return


_WRITES = (
    "serve-address",
    "serve-tls-cert",
    "stop-target-threads",
    "workers",
    "allow-non-transactional",
    "accept-time-zone",
)
"""Options of a run that changes its target."""
_IN_PLACE = ("output-dir", "allow-source", "allow-extra-gtids")


def _target_problems(given: Given) -> Iterable[str]:
    addressed = [
        n
        for n in ("target-host", "target-socket", "target-defaults-file")
        if not given.is_missing(n)
    ]
    others = [
        option
        for option in TARGET_OPTIONS
        if given.has(option.name) and option.name not in addressed and option not in _OWN
    ]
    if addressed:
        yield from login_problems(given, "target")
    elif others:
        yield f"{given.called(others[0].name)} needs --target-host or --target-socket"
    elif not (given.wants("output-dir") or "output-dir" in given.wrong):
        has_start = any(not given.is_missing(name) for name in _FROM)
        if (has_start or given.wants("yes")) and not given.wants("dry-run"):
            yield (
                "no target: --target-host or --target-socket is missing (or --output-dir instead "
                "of a target, or --dry-run)"
            )


def _problems(given: Given) -> Iterable[str]:
    yield from goal_problems(given)
    yield from _start_problems(given)
    yield from times_problems(given)
    yield from flavour_problems(given, _GTIDS)
    yield from _serve_problems(given)
    for name in _WRITES:
        yield from exclusive(given, (name, "output-dir"), "no target is written to")
    yield from table_problems(given)
    yield from excludes(given, "table", _IN_PLACE, "--table is for a scratch server")
    yield from _target_problems(given)
    yield from file_problems(given, TARGET_OPTIONS)


PITR = CommandOptions(
    (*PITR_OPTIONS, *TARGET_OPTIONS, *_SHARED),
    _problems,
    of_source(
        PitrConfig,
        _OWN,
        goal=goal_of,
        lineage=lambda values: values.get("lineage"),
        target=_target,
        source_address=_source_address,
    ),
)
