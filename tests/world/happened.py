"""What happened on a server, by stock mysqlbinlog; a replica that the server itself stops there.

Law: nothing here is the product's. Which transactions there are, in which order, when and where:
stock mysqlbinlog's text of the servers' files. What the tables hold behind one of them: a replica
that was restored from the same dump, and that the server itself stopped there (START REPLICA ...
UNTIL).
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from tests.waiting import wait_until
from tests.witness import INSIDE_COMPRESSED, Witness
from tests.world.servers import binlog_files, has, in_its_words, is_mariadb, replica_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One transaction of the history: where it is, when it was committed, what its text shows."""

    gtid: str
    commit_us: int
    host: str
    binlog: str
    begin: int
    end: int
    tables: tuple[str, ...] = ()
    drops: bool = False


def history_of(server: MysqlServer, host: str) -> list[Happened]:
    """All transactions of a server's files, in order; it may be down."""
    found = []
    maria = is_mariadb(server)
    for path in binlog_files(server):
        if maria:
            transactions = Witness.of(server.binaries.binlog, path).mariadb_transactions()
            parts = [""] * len(transactions)
        else:
            text = decoded(server.binaries, path)
            transactions = Witness(text=text, bounds=[], headers=[]).mysql_transactions()
            parts = re.split(r"(?m)^SET @@SESSION\.GTID_NEXT= '.*?'", text)[1:]
            parts = parts[: len(transactions)]  # behind the last one it is set to AUTOMATIC
        for one, part in zip(transactions, parts, strict=True):
            found.append(
                Happened(
                    gtid=one.gtid or "",
                    commit_us=one.commit_us,
                    host=host,
                    binlog=path.name,
                    begin=one.begin,
                    end=one.end,
                    tables=tuple(sorted(set(re.findall(r"Table_map: `shop`\.`(\w+)`", part)))),
                    drops="DROP TABLE `shop`.`precious`" in part,
                )
            )
    return found


def decoded(binaries: ServerBinaries, path: Path) -> str:
    """A binlog as the stock client prints it; of compressed transactions only the outside."""
    done = subprocess.run(
        [str(binaries.binlog), "--no-defaults", "--base64-output=decode-rows", str(path)],
        env={"TZ": "UTC", "TMPDIR": str(path.parent)},
        capture_output=True,
        check=True,
        timeout=300,
    )
    return re.sub(INSIDE_COMPRESSED, "", done.stdout.decode(errors="replace"))


def _errors_of(replica: MysqlServer) -> str:
    """What each worker says of its own failure, and the end of the server's log."""
    text = "performance_schema.replication_applier_status_by_worker"
    if is_mariadb(replica):
        said = ()
    else:
        said = replica.query(f"SELECT * FROM {text} WHERE LAST_ERROR_NUMBER > 0")
    lines = replica.log.read_text(errors="replace").splitlines()[-20:]
    return "\n".join([*(str(row) for row in said), *lines])


def apply_until(witness: MysqlServer, until: str) -> None:
    """Let the server apply, and stop by itself, there: `SQL_AFTER_GTIDS = '...'`."""
    start = in_its_words(witness, f"START REPLICA SQL_THREAD UNTIL {until}")
    witness.query(start)
    again = _Again(witness, start)

    def stopped() -> bool:
        status = again.status()
        return str(status["Replica_SQL_Running"]) == "No"

    wait_until(stopped, 120, f"the replica has stopped at {until}")


class _Again:
    """An applier that fails by a lock or the like is started again, as an operator would.

    What cannot be applied fails each time: then this raises AssertionError with all that the
    server says of it.
    """

    def __init__(self, replica: MysqlServer, start: str) -> None:
        self._replica = replica
        self._start = start
        self._left = 2

    def status(self) -> dict[str, Any]:
        """Of the replica, which has no error."""
        status = replica_status(self._replica)
        while status["Last_SQL_Error"]:
            text = f"{status['Last_SQL_Error']}\n{_errors_of(self._replica)}"
            assert self._left > 0, text
            self._left -= 1
            sys.stderr.write(f"started again after: {text}\n")
            wait_until(self._has_stopped, what="the applier has stopped")
            self._replica.query(self._start)
            status = replica_status(self._replica)
        return status

    def _has_stopped(self) -> bool:
        return str(replica_status(self._replica)["Replica_SQL_Running"]) == "No"


def apply_all(witness: MysqlServer, gtids: str) -> None:
    """Let the server apply until it has these."""
    start = "START REPLICA SQL_THREAD"
    witness.query(start)
    again = _Again(witness, start)

    def done() -> bool:
        again.status()
        return has(witness, gtids)

    wait_until(done, 120, "the replica has applied all")
    witness.query("STOP REPLICA SQL_THREAD")
