"""Where a plan begins, from what a base backup or an operator says. Pure.

Place in the flow: `pitr` and `verify` both ask here, so that both give the same answer; `backup`
reads the backup, `plan` begins at the `Start`.

Law: GTIDs name transactions on every server. The name of a binlog and a position do so only on the
server that wrote that binlog: without GTIDs the start carries the server that was dumped.
"""

from pathlib import Path

from binlog2s3.binlog.gtid import Flavour, Gtids, parse
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.backup_format import BackupPoint
from binlog2s3.recover.model import Base, Start


def gtids_of(text: str, flavour: Flavour) -> Gtids:
    """GTIDs as text; raises RecoveryError if they are not of the history's flavour."""
    try:
        return parse(text, flavour)
    except ValueError as error:
        raise RecoveryError(
            f"GTIDs of {flavour} are wanted, for that is the history: {error}",
            hint="is --source the right one?",
        ) from None


def start_of(point: BackupPoint, flavour: Flavour, path: Path) -> Start:
    """The start that the backup at `path` stands for, in a history of this flavour.

    Raises RecoveryError if it is of the other flavour, or tells neither GTIDs nor a position.
    """
    if point.flavour not in (None, flavour):
        raise RecoveryError(
            f"the backup is of a {point.flavour} server, the history is {flavour}'s",
            hint="is --source the right one?",
        )
    gtids = gtids_of(point.gtid_set, flavour) if point.gtid_set is not None else None
    place = None
    if point.binlog is not None and point.position is not None:
        place = (point.binlog, point.position)
    base = Base(gtids=gtids, place=place)
    if gtids is not None:
        return Start(gtids=gtids, base=base)
    if place is None:
        raise RecoveryError(
            f"{path} tells neither GTIDs nor a position",
            hint="--from-gtid-set says what it has, or, for pitr, --from-binlog and "
            "--from-position where it stands",
        )
    server = (point.server_uuid or "") if flavour == "mysql" else ""  # MariaDB has no server_uuid
    return Start(place=place, server=server, base=base)


def words_of(point: BackupPoint, path: Path) -> str:
    """The backup in words, with the server it is of, if it names that."""
    server = f" of server {point.server_uuid}" if point.server_uuid else ""
    return f"the {point.tool} backup {path}{server}"
