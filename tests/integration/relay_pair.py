"""Two servers: what one has written is brought to the other as relay logs, by its own applier."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3.recover import relay, target
from binlog2s3.recover.model import Progress, Stream
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from tests.integration import apply_pair
from tests.integration.replicate_pair import LARGE_BYTES, kill_again_and_again, write_large
from tests.own_files import Own

__all__ = ["LARGE_BYTES", "Pair", "Process", "kill_again_and_again", "write_large"]


@dataclass(frozen=True, slots=True)
class Pair(apply_pair.Pair):
    """Two servers: what one has written is brought to the other as relay logs."""

    def obstacle(self, login: Login | None = None, **changes: Any) -> str | None:
        """Why it cannot be had."""
        login = login or self.login()
        asked: dict[str, Any] = {"directory": None, "binlog_off": False, "server_ids": {1}}
        with Server(lambda: login) as server:
            return relay.obstacle(server, target.facts(server, login), **(asked | changes))

    def apply(
        self,
        files: Own,
        told: Callable[[Progress], None] = lambda _: None,
        *,
        login: Login | None = None,
        stream: Stream | None = None,
        **options: Any,
    ) -> None:
        """Bring them to the target; nothing of ours is there afterwards.

        The way goes into the list `made` before it is gone.
        """
        login = login or self.login()
        made = options.pop("made", [])
        with Server(lambda: login) as server:
            way = relay.way(
                server,
                login,
                target.facts(server, login),
                directory=options.pop("directory", None),
                size=files.size,
                transactions=files.count,
                **options,
            )
            made.append(way)
            way.apply(stream or files.stream(), told)

    def settle(self) -> relay.LeftOver | None:
        """As the next run begins: what was left is stopped and removed; what that was."""
        login = self.login()
        with Server(lambda: login) as server:
            found = target.facts(server, login)
            left = relay.halt(server, found)
            relay.settle(server, found, directory=None)
            return left

    def left_files(self) -> list[str]:
        """What there is of our files."""
        return sorted(path.name for path in self.target.datadir.glob("*pitr*"))

    def left_size(self) -> int:
        """How many bytes they have."""
        size = 0
        for path in self.target.datadir.glob("*pitr*"):
            with suppress(FileNotFoundError):  # the server removes them as it goes
                size += path.stat().st_size
        return size

    def left(self) -> list[str]:
        """What there is of ours: files, notes, the channel."""
        show = "SHOW REPLICA STATUS" if self.is_mysql else "SHOW ALL SLAVES STATUS"
        rows = self.target.query(show)
        notes = [str(row[0]) for row in self.target.query("SHOW DATABASES LIKE 'binlog2s3%'")]
        return self.left_files() + notes + ["the channel" for row in rows if "pitr" in row]


class Process(apply_pair.Process):
    """An apply in a process of its own; what MariaDB has applied, the place alone tells."""

    def __init__(self, pair: Pair, note: Path, **changes: Any) -> None:
        told = {
            "socket": str(pair.target.socket),
            "directory": str(pair.source.datadir),
            "names": pair.names,
            "note": str(note),
            "by_place": not pair.is_mysql,
        }
        super().__init__("tests.relay_process", told | changes)
