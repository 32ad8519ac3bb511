"""A process of its own that has a server replicate another one's binlogs from it: to be killed.

python -m tests.replicate_process '{"directory": ..., "names": [...], "note": ..., ...}'

What a run that was cut off has left is settled first, as `pitr` does it. GTIDs tell where to go on;
without them the place in the channel, or else the one in the file `note`.
"""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from binlog2s3.binlog.executed import domain_of, is_in
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.recover import target
from binlog2s3.recover.channel import left_over, settle
from binlog2s3.recover.listen import Listen
from binlog2s3.recover.model import BinlogPosition, ProgressReport
from binlog2s3.recover.replicate import Replication, Work
from binlog2s3.recover.seam import after, is_executed
from binlog2s3.recover.target import Target
from binlog2s3.server.connection import Server
from tests.login import ROOT
from tests.own_files import Own, own, planned
from tests.world.pair import Noted


def main(told: dict[str, Any]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    login = replace(ROOT, socket=told["socket"])
    note = Path(told["note"])
    with Server(lambda: login) as server:
        try:
            found = target.ask(server)
            left = left_over(found)
            if left is not None:
                left.stop()
                place = None if found.facts.keeps_gtids else left.reached(())
                if place is not None:
                    _write(note, place)
            settle(found)
            found = target.ask(server)
            files, state = _rest(told, found, note)
            if state is not None and files.count and (done := _half_way(found, files, state)):
                server.rows("SET GLOBAL gtid_slave_pos = %s", (str(done),))
                files, state = _rest(told, found, note)
            if not files.count:
                return 0
            if not found.facts.keeps_gtids:
                _write(note, planned(files).begin)
            Replication(
                found,
                Work(
                    plan=replace(planned(files, told["version"]), begins_behind=state),
                    open_stream=files.opened,
                ),
                _InFile(note),
                listen=Listen(),
            ).apply(_tell)
        except Binlog2s3Error as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n{error.hint}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


def _rest(told: dict[str, Any], found: Target, note: Path) -> tuple[Own, MariadbGtidList | None]:
    names, begin = told["names"], 0
    state = None
    has = found.facts.executed
    if found.facts.flavour == "mariadb":
        text = str(found.server.rows("SELECT @@global.gtid_slave_pos AS it")[0]["it"])
        has = state = MariadbGtidList.parse(text)
    elif not found.facts.keeps_gtids and note.exists():
        name, _, offset = note.read_text().rpartition(":")
        names = names[names.index(name) :]
        begin = int(offset)
    files = own(Path(told["directory"]), names, begin=begin, cut=told.get("cut", 1 << 16))
    if has is None:
        return files, state
    every = [one.gtid for _, one in files.transactions if one.gtid]
    if isinstance(has, GtidSet):
        skip = [gtid for gtid in every if is_in(has, gtid)]
    else:
        ends = {
            d: every.index(f"{d}-{s}-{n}") for d, s, n in has.gtids() if f"{d}-{s}-{n}" in every
        }
        skip = [one for at, one in enumerate(every) if at <= ends.get(domain_of(one), -1)]
    return own(Path(told["directory"]), names, skip=skip, cut=told.get("cut", 1 << 16)), state


def _half_way(found: Target, files: Own, state: MariadbGtidList) -> MariadbGtidList | None:
    """The place after the first transaction, if the target has executed it all the same."""
    following = files.next(0)
    if is_executed(found, following, state, crashed=True):
        assert following.gtid is not None
        return after(state, following.gtid)
    return None


class _InFile(Noted):
    """Keeps the place in a file."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self._note = note

    def reach(self, place: BinlogPosition) -> None:
        _write(self._note, place)


def _write(note: Path, place: BinlogPosition) -> None:
    beside = note.with_name("beside")
    beside.write_text(str(place))
    beside.rename(note)


def _tell(at: ProgressReport) -> None:
    sys.stdout.write(f"{at.transactions}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
