"""Servers to which nothing happens by itself any more."""

from lab.mysql import MysqlServer
from tests.waiting import wait_until


def open_binlog(server: MysqlServer) -> tuple[str, int]:
    """Name and size of the open binlog, to which nothing is added that nobody writes.

    MariaDB notes a checkpoint there when it comes to it.
    """

    def noted() -> bool:
        name, _ = server.binlogs()[-1]
        events = server.query(f"SHOW BINLOG EVENTS IN '{name}'")
        return any(row[2] == "Binlog_checkpoint" and row[5] == name for row in events)

    if server.binaries.flavour == "mariadb":
        wait_until(noted, what="the checkpoint in the open binlog")
    return server.binlogs()[-1]
