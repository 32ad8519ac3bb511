"""Whether the server that was restored is the registered base backup, no older and no newer one.

A recovery from another backup can end with all GTIDs and without an error, and then proves nothing
of the registered one.

Law: a server is only taken for the backup if something in it says so itself: its GTIDs, a file of
the backup's tool, its own binlogs. What says nothing is unknown, never right.
"""

from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.binlog.events import HEADER, HEADER_SIZE, EventType
from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.recover.backup import read_backup
from binlog2s3.server.connection import Server

_MOST_INDEX = 1 << 20
_OTHER = "does the restore command restore {location}, and not another backup?"


def by_file(data: Path, backup: Backup) -> str:
    """The file of the backup's tool in a restored data directory that says it is this backup.

    "" if there is none. Raises RecoveryError if it is of another backup.
    """
    try:
        point = read_backup(data)
    except Binlog2s3Error:
        return ""
    if point.ends_at == backup.ends_at and (
        point.gtid_set is None or backup.gtid_set in (None, point.gtid_set)
    ):
        return f"the position file of {point.tool}"
    where = f"{point.ends_at or ''} {gtids_text(point.gtid_set or '')}".strip()
    raise RecoveryError(
        f"the restored data directory is not {backup.name}: its own position file says {where}",
        hint=_OTHER,
    )


def by_binlogs(data: Path, backup: Backup) -> str:
    """Whether the newest binlog in a data directory ends where the backup does.

    No server has opened it yet. "" if that is unknown. After the position there may only be the
    mark of an orderly shutdown. Raises RecoveryError if the binlogs end before it, or go on in that
    one.
    """
    if backup.binlog is None or backup.position is None:
        return ""
    index = data / f"{backup.binlog.prefix}.index"
    try:
        with index.open("rb") as file:
            lines = file.read(_MOST_INDEX).decode(errors="replace").split()
        newest = BinlogName.parse(lines[-1].rpartition("/")[2])
        with (data / str(newest)).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(backup.position)
            rest = file.read(1 << 16) if newest == backup.binlog else b""
    except (OSError, ValueError, IndexError):
        return ""
    if newest == backup.binlog and size >= backup.position and _is_shutdown(rest):
        return "its own binlogs"
    if newest > backup.binlog:  # perhaps only rotated
        return ""
    raise RecoveryError(
        f"the restored data directory is not {backup.name}: its binlogs end at {newest}:{size}",
        hint=_OTHER,
    )


def _is_shutdown(data: bytes) -> bool:
    """Whether the rest of a binlog is nothing, or STOP."""
    if not data:
        return True
    if len(data) < HEADER_SIZE:
        return False
    _, event_type, _, size, _, _ = HEADER.unpack_from(data)
    return bool(event_type == EventType.STOP and size == len(data))


def by_gtids(server: Server, data: Path, backup: Backup, flavour: Flavour) -> str:
    """Whether a server has exactly the GTIDs of the backup.

    "" if they say nothing: MariaDB has none of a dump that does not set them. Raises RecoveryError
    if they are others. What xtrabackup restores may say less in gtid_executed than its own file
    says; then the server gets the GTIDs.
    """
    if backup.gtid_set is None:
        return ""
    if flavour == "mariadb":
        return _by_positions(server, backup)
    (executed,) = server.rows("SELECT @@global.gtid_executed AS it")
    has, wanted = GtidSet.parse(str(executed["it"])), GtidSet.parse(backup.gtid_set)
    missing, more = wanted - has, has - wanted
    if missing and not more and _file_says(data, wanted):
        server.rows(f"SET GLOBAL gtid_purged = '+{missing}'")
        return "its GTIDs"
    differences = [f"it is missing the transactions {gtids_text(missing)}"] if missing else []
    differences += [f"it has the transactions {gtids_text(more)} in addition"] if more else []
    if differences:
        raise RecoveryError(
            f"the restored server is not {backup.name}: {' and '.join(differences)}", hint=_OTHER
        )
    return "its GTIDs"


def _by_positions(server: Server, backup: Backup) -> str:
    """MariaDB's: what a dump has set, or what its binlogs, which came along, end with."""
    wanted = MariadbGtidList.parse(backup.gtid_set or "")
    (row,) = server.rows("SELECT @@global.gtid_slave_pos AS slave, @@global.gtid_binlog_pos AS own")
    slave, own = (MariadbGtidList.parse(str(row[name])) for name in ("slave", "own"))
    if wanted == slave:
        return "its gtid_slave_pos"
    if wanted == own:
        return "its gtid_binlog_pos"
    if slave:
        raise RecoveryError(
            f"the restored server is not {backup.name}: its gtid_slave_pos is {gtids_text(slave)}, "
            f"the backup's GTIDs are {gtids_text(wanted)}",
            hint=_OTHER,
        )
    return ""


def _file_says(data: Path, wanted: object) -> bool:
    """Whether the backup tool's own file in the data directory has these GTIDs."""
    try:
        gtids = read_backup(data).gtid_set
    except Binlog2s3Error:
        return False
    return gtids is not None and parse(gtids, "mysql") == wanted


def unknown(backup: Backup, flavour: Flavour, *, is_dump: bool) -> RecoveryError:
    """The error for a server that nothing tells of."""
    how = "leave the tool's file with the position (..._binlog_info) in the data directory"
    if is_dump and flavour == "mariadb":
        how = "make the dump with --master-data=1 --gtid, whose load sets gtid_slave_pos"
    elif is_dump:
        how = "only GTIDs leave a trace of a dump (gtid_mode=ON at the source)"
    return RecoveryError(
        f"nothing in the restored server says whether it is {backup.name}, or another backup",
        hint=f"{how}; --trust-restore-command counts the recovery all the same, and the result "
        "says so",
    )
