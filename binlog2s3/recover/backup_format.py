"""What the files of a base backup say about where it ends: text in, `BackupPoint` out. No I/O.

Law: a point is what the tool wrote about the server that was *dumped*, complete and without
contradiction; everything else raises `RecoveryError`. Doubts are in its warnings; what makes it no
base backup of the server, though it says where it ends, is in its defects. An empty GTID set counts
as none: tools write one without GTIDs too, and it must not mean "from the very first transaction
on".
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from binlog2s3.binlog.gtid import MOST_GTIDS, Flavour, parse
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import RecoveryError
from binlog2s3.server.version import ServerVersion

Tool: TypeAlias = Literal[
    "mysqldump", "mariadb-dump", "xtrabackup", "mariabackup", "mydumper", "mysqlsh", "other"
]
"""What made a base backup; `other`: its operator says where it ends."""

HINT = (
    "say where the backup ends: its GTID set, or its binlog and position (--from-gtid-set, or "
    "--from-binlog and --from-position; of `backup add`: --gtid-set, or --binlog and --position)"
)
SOME_TABLES = "it has only some tables"
SINGLE_DATABASE = "it is of a single database"
FIRST_POSITION = 4
"""After the magic: no event begins earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupPoint:
    """Where a base backup ends: it has everything up to here.

    `gtid_set` is canonical text (see `gtid`). `server_uuid` is that of the server that was dumped.
    `sets_gtids`: a server into which it is loaded has these GTIDs then, or ends in that position.
    `defects`: why a server that is restored from it does not have all of the dumped one's data, or
    not those of this point. `is_doubtful`: it does not say enough to exclude that. `checked`:
    all of it was read, and it has neither. `innodb`: where the last transaction of InnoDB's data
    ended in the binlog, if the data files say so.
    """

    tool: Tool
    flavour: Flavour | None
    ends_at: FilePosition | None = None
    gtid_set: str | None = None
    server_uuid: str | None = None
    warnings: tuple[str, ...] = ()
    sets_gtids: bool = False
    defects: tuple[str, ...] = ()
    is_doubtful: bool = False
    checked: bool = False
    innodb: FilePosition | None = None


Coordinates: TypeAlias = tuple[str, str]
"""Name of a binlog and position, as the tool wrote them."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,19}")
_MARIADB_GTID = re.compile(r"\s*[0-9]+-[0-9]+-[0-9]+\s*(?:,|\Z)")


def refusal(where: str, why: str) -> RecoveryError:
    """The error for a file that does not say where the backup ends."""
    return RecoveryError(f"{where}: {why}", hint=HINT)


def shown(text: str) -> str:
    """A part of a file that fits into a message."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def _uuid(text: str) -> str | None:
    return text.lower() if _UUID.fullmatch(text) else None


def _position(where: str, coordinates: Coordinates | None) -> FilePosition | None:
    """Name and position, checked."""
    if coordinates is None:
        return None
    name, position = coordinates
    try:
        binlog = BinlogName.parse(name)
    except ValueError:
        raise refusal(where, f"not the name of a binlog: {shown(name)}") from None
    if not _NUMBER.fullmatch(position) or not FIRST_POSITION <= int(position) < 2**63:
        raise refusal(where, f"not a position in {name}: {shown(position)}")
    return FilePosition(binlog, int(position))


def point(
    where: str,
    tool: Tool,
    flavour: Flavour | None,
    *,
    coordinates: Coordinates | None,
    gtids: str,
    warnings: Sequence[str],
    defects: Sequence[str] = (),
    server_uuid: str | None = None,
) -> BackupPoint:
    """The point, with everything checked; raises if it has neither binlog nor GTIDs."""
    position = _position(where, coordinates)
    gtid_set = None
    if gtids.strip(" \t\r\n,"):
        looks: Flavour = "mariadb" if _MARIADB_GTID.match(gtids) else "mysql"
        flavour = flavour or looks
        if len(gtids) > MOST_GTIDS:
            raise refusal(
                where,
                f"its GTIDs have {len(gtids):,} characters; at most {MOST_GTIDS:,} can be read",
            )
        try:
            gtid_set = str(parse(gtids, flavour)) or None
        except ValueError as error:
            raise refusal(where, f"not GTIDs of {flavour}: {shown(str(error))}") from None
    if position is None and gtid_set is None:
        raise refusal(where, f"a backup by {tool} that has neither binlog nor GTIDs")
    return BackupPoint(
        tool=tool,
        flavour=flavour,
        ends_at=position,
        gtid_set=gtid_set,
        server_uuid=server_uuid,
        warnings=tuple(warnings),
        defects=tuple(defects),
    )


def only(where: str, what: str, values: Iterable[Any]) -> Any:
    """The only value, None if there is none; raises if there are two."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        several = " and ".join(shown(str(value)) for value in distinct[:2])
        raise refusal(where, f"it contradicts itself: two {what}, {several}")
    return distinct[0] if distinct else None


def of_the_source(what: str) -> str:
    """The warning for a position in the binlogs of a replica's source."""
    return (
        f"{what} are those of the source of the server that was dumped: they are right only if "
        "the archive is that source's"
    )


def set_aside(what: str) -> str:
    """The warning for a position of a replica's source beside the replica's own."""
    return (
        f"the server was a replica: {what} are its source's and are not used; the dumped server's "
        "own are used, so the archive must be that server's, or the recovery go by GTIDs"
    )


# --- xtrabackup, mariabackup

_BINLOG_INFO = re.compile(r"([^\t\n]{1,255}?)[ \t]{1,20}([0-9]+)(?:[ \t]+(\S.*))?", re.DOTALL)
_BINLOG_POS = re.compile(r"filename '([^']*)', position '([0-9]*)'")


def looks_like_binlog_info(text: str) -> bool:
    """Whether a text begins as `xtrabackup_binlog_info` does: a binlog's name and a position."""
    return re.match(r"[^\t\n /]{1,255}\.[0-9]{1,18}[ \t]+[0-9]{1,19}(\s|\Z)", text) is not None


def _setting(text: str, name: str) -> str:
    """The value after `name =`; "" if there is no such line."""
    match = re.search(rf"^{name}[ \t]*=[ \t]*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def parse_xtrabackup(
    where: str,
    binlog_info: str,
    *,
    info: str = "",
    my_cnf: str = "",
    checkpoints: str = "",
    innodb_pos: str = "",
    of_replica: bool = False,
    mariadb_names: bool = False,
) -> BackupPoint:
    """What a backup by xtrabackup or mariabackup says.

    `info` is `xtrabackup_info`, `my_cnf` is `backup-my.cnf`, `checkpoints` is
    `xtrabackup_checkpoints`, `innodb_pos` is `xtrabackup_binlog_pos_innodb`, which --prepare writes
    from the data; "" if missing. `of_replica`: `xtrabackup_slave_info` exists. The `uuid` in `info`
    names the backup; the server's own is in `my_cnf`. (Source:
    `storage/innobase/xtrabackup/src/backup_mysql.cc`; MariaDB's `extra/mariabackup`.)
    """
    if not binlog_info.strip():
        raise refusal(where, "it is empty: the server had no binary log, or it was cut off")
    match = _BINLOG_INFO.fullmatch(binlog_info.strip())
    if match is None:
        raise refusal(where, f"not a binlog's name and a position: {shown(binlog_info)}")
    name, position, gtids = match[1], match[2], match[3] or ""
    warnings: list[str] = []
    defects: list[str] = []
    if not binlog_info.endswith("\n"):
        defects.append("its position does not end with a line break: it is cut off")
    # the GTIDs of the same line can go over many lines, so only its beginning is compared
    also = _BINLOG_POS.search(_setting(info, "binlog_pos"))
    if also and (also[1], also[2]) != (name, position):
        raise refusal(
            where, f"it says {shown(name)}:{position}, the backup's info {shown(also[0])}"
        )
    if of_replica:
        warnings.append(set_aside("the coordinates in the backup's slave_info"))
    if re.search(r"(?:^|\s)--no[-_]lock\b(?!=0)", _setting(info, "tool_command")):
        defects.append("it was made with --no-lock: its position is not that of its data")
    if _setting(info, "partial") == "Y":
        defects.append(SOME_TABLES)
    if _setting(checkpoints, "backup_type") == "incremental":
        warnings.append("it is incremental: without the backup before it, it restores nothing")
    version = _setting(info, "server_version")
    flavour = ServerVersion(version).flavour if version else None
    gtids_of_mariadb = _MARIADB_GTID.match(gtids) is not None
    of_mariadb = mariadb_names or flavour == "mariadb" or gtids_of_mariadb
    tool_name = _setting(info, "tool_name")
    if tool_name:
        of_mariadb = "mariadb" in tool_name or "mariabackup" in tool_name
    ends = point(
        where,
        "mariabackup" if of_mariadb else "xtrabackup",
        flavour,
        coordinates=(name, position),
        gtids=gtids,
        warnings=warnings,
        defects=defects,
        server_uuid=_uuid(_setting(my_cnf, "server_uuid")),
    )
    return replace(ends, innodb=_innodb_position(innodb_pos))


_POSITION_IN_LOG = re.compile(
    r"\b(?:MySQL|MariaDB|Percona\S*) binlog position: filename '([^'\n]*)', position '([0-9]*)'"
    r"(?:, GTID of the last change '([^']*)')?"
)


def parse_xtrabackup_log(where: str, log: str, *, of_mariadb: bool) -> BackupPoint:
    """What xtrabackup or mariabackup printed while it made a backup; `log` is its end.

    (Source: `storage/innobase/xtrabackup/src/backup_mysql.cc`; MariaDB's `extra/mariabackup`.)
    """
    coordinates = only(
        where, "positions", [match.groups("") for match in _POSITION_IN_LOG.finditer(log)]
    )
    if coordinates is None:
        raise refusal(where, "its log has no binlog position: has the server no binary log?")
    name, position, gtids = coordinates
    ends = parse_xtrabackup(where, f"{name}\t{position}\t{gtids}\n", mariadb_names=of_mariadb)
    if "completed OK!" not in log[-1000:]:
        ends = replace(ends, defects=(*ends.defects, "its log does not end with `completed OK!`"))
    return ends


def _innodb_position(text: str) -> FilePosition | None:
    """The position in `xtrabackup_binlog_pos_innodb`; None if it says none."""
    name, _, position = text.strip().rpartition("\t")
    try:
        return FilePosition(BinlogName.parse(name.rpartition("/")[2]), int(position))
    except ValueError:
        return None


# --- mydumper

_SECTION = re.compile(
    r"^[ \t]*(?:\[(?:(?P<own>source|master)"
    r"|(?P<source>(?:replication|replica|slave)(?:\.[^\]\n]*)?)|[^\]\n]*)\]"
    r"|SHOW (?:(?P<own_status>MASTER)|(?P<source_status>SLAVE)) STATUS:)",
    re.MULTILINE | re.IGNORECASE,
)
# a value continues on the next lines while they end with a comma
_KEY = re.compile(
    r"^[ \t]*(?P<comment>#?)[ \t]*(?:(?P<name>file|log|(?:source|master)_log_file)"
    r"|(?P<position>position|pos|(?:source|master)_log_pos)"
    r"|(?P<gtids>executed_gtid_set|gtid|gtid_(?:slave|source|binlog)_pos))"
    r"[ \t]*[=:](?P<value>[^\n]*+(?:(?<=,)\n[^\n]*+)*+)",
    re.MULTILINE | re.IGNORECASE,
)
_STARTED = re.compile(r"^(?:# )?Started dump at: (.*)$", re.MULTILINE)
_FINISHED = re.compile(r"^(?:# )?Finished dump at: (.*)$", re.MULTILINE)


def looks_like_mydumper(text: str) -> bool:
    """Whether a text is mydumper's `metadata`, old style or new."""
    begin = text[:1000]
    section = _SECTION.search(begin)
    named = section is not None and section.lastgroup is not None
    return named or _STARTED.search(begin) is not None


def _sections(text: str) -> Iterator[tuple[bool, dict[str, str]]]:
    """(whether it is of the dumped server's source, its values) of each known section.

    In a section of a source the comments repeat SHOW REPLICA STATUS, so comments do not count
    there; in the server's own, comments are as true as the rest.
    """
    begins = _SECTION.finditer(text)
    section = next(begins, None)
    while section is not None:
        after = next(begins, None)
        end = after.start() if after else len(text)
        if section.lastgroup is not None:
            of_source = section.lastgroup.startswith("source")
            values: dict[str, str] = {}
            for key in _KEY.finditer(text, section.end(), end):
                if not (of_source and key["comment"]):
                    kind = next(kind for kind in ("name", "position", "gtids") if key[kind])
                    values.setdefault(kind, re.sub(r"['\"]", "", key["value"]).strip())
            yield of_source, values
        section = after


def parse_mydumper(where: str, text: str, *, whole: bool) -> BackupPoint:
    """What mydumper's `metadata` says, old style or new.

    (Source: `src/mydumper/mydumper_working_thread.c`, `write_snapshot_info` and
    `write_replica_info`; before 0.14 `mydumper.c`.)
    """
    own: list[tuple[str, str, str]] = []
    source: list[tuple[str, str, str]] = []
    for of_source, values in _sections(text):
        name, position, gtids = (values.get(kind, "") for kind in ("name", "position", "gtids"))
        if bool(name) != bool(position):
            raise refusal(where, f"half a position: {shown(name or position)}")
        if name or gtids:
            (source if of_source else own).append((name, position, gtids))
    warnings: list[str] = []
    defects: list[str] = []
    if own and source:
        warnings.append(set_aside("the coordinates in its replication section"))
    elif source:
        warnings.append(of_the_source("the coordinates"))
    if not own and not source:
        raise refusal(
            where,
            "mydumper's metadata has neither binlog nor GTIDs: make the dump with --source-data",
        )
    name, position, gtids = only(where, "positions", own or source)
    if whole and not _FINISHED.search(text):
        defects.append("the dump did not finish: it does not say when")
    return point(
        where,
        "mydumper",
        None,
        coordinates=(name, position) if name else None,
        gtids=gtids,
        warnings=warnings,
        defects=defects,
    )


# --- MySQL Shell


def _document(where: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(where, f"not JSON, or cut off: {shown(str(error))}") from None
    if not isinstance(document, dict):
        raise refusal(where, "not a JSON object")
    return document


def parse_shell(where: str, text: str, done: str | None) -> BackupPoint:
    """What MySQL Shell's `@.json` says; `done` is `@.done.json`, None if it is missing.

    (Source: `modules/util/common/dump/dump_info.cc` and `server_info.cc`.)
    """
    document = _document(where, text)
    if done is not None:  # of a dump that did not finish it may be cut off
        _document(f"{where} (@.done.json)", done)
    source = document.get("source")
    source = source if isinstance(source, dict) else {}
    binlog = source.get("binlog")
    binlog = binlog if isinstance(binlog, dict) else {}
    variables = source.get("sysvars")
    variables = variables if isinstance(variables, dict) else {}

    def told(kind: Callable[[object], bool], *holders: tuple[dict[str, Any], str]) -> Any:
        for holder, key in holders:
            value = holder.get(key)
            if value is not None and not kind(value):
                raise refusal(where, f"not a valid {key}: {shown(str(value))}")
            if value is not None:
                return value
        return None

    def is_text(value: object) -> bool:
        return isinstance(value, str)

    def is_count(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

    version = told(
        is_text, (document, "serverVersion"), (source, "version"), (variables, "version")
    )
    name = told(is_text, (binlog, "file"), (document, "binlogFile"))
    position = told(is_count, (binlog, "position"), (document, "binlogPosition"))
    gtids = told(is_text, (binlog, "gtidExecuted"), (document, "gtidExecuted"))
    uuid = told(is_text, (source, "serverUuid"), (variables, "server_uuid"))
    if "dumper" not in document and version is None:
        raise refusal(where, "JSON, but not MySQL Shell's @.json")
    return point(
        where,
        "mysqlsh",
        ServerVersion(version).flavour if version else None,
        coordinates=(name, str(position)) if name else None,
        gtids=gtids or "",
        warnings=list(_doubts_of_shell(document)),
        defects=list(_defects_of_shell(document, done)),
        server_uuid=_uuid(uuid or ""),
    )


def _doubts_of_shell(document: dict[str, Any]) -> Iterator[str]:
    if document.get("origin") == "dumpSchemas":
        yield "it was made by dumpSchemas: transactions on others cannot be applied"


def _defects_of_shell(document: dict[str, Any], done: str | None) -> Iterator[str]:
    if document.get("consistent") is False:
        yield "it was made with consistent: false: its tables are from different moments"
    if document.get("gtidExecutedInconsistent") is True:
        yield "MySQL Shell says that its GTID set may not be that of its data"
    schemas = document.get("schemas")
    is_of_one = not isinstance(schemas, list) or len(schemas) <= 1
    if document.get("origin") == "dumpTables":
        yield SOME_TABLES
    if document.get("origin") == "dumpSchemas" and is_of_one:
        yield SINGLE_DATABASE
    options = document.get("options")  # from 8.0.41 on
    for name in ("ddlOnly", "dataOnly", "where", "partitions", "dryRun"):
        if isinstance(options, dict) and options.get(name):
            yield f"it was made with {name}"
    if done is None:
        yield "there is no @.done.json: the dump did not finish, or was copied only in part"
