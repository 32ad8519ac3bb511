"""A service manager's ear, for tests: a real datagram socket that keeps what it is told."""

import secrets
import socket
import threading
from pathlib import Path
from time import monotonic
from typing import Self

from tests.waiting import PATIENCE, wait_until


class Ear:
    """Listens on a path, or without one on an abstract name; `heard` are messages with times."""

    def __init__(self, path: Path | None = None) -> None:
        self.address = str(path) if path else f"@binlog2s3-{secrets.token_hex(8)}"
        self.heard: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._listen, name="ear")

    def __enter__(self) -> Self:
        self._socket.bind(self.address.replace("@", "\0", 1))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()

    def _listen(self) -> None:
        while said := self._socket.recv(65536):
            self.heard.append((monotonic(), said.decode()))

    def wait_until_fed(self, times: int) -> None:
        """Until the watchdog was fed so often since: so far the streamer's loop has gone round."""
        goal = len(self.lines("WATCHDOG")) + times
        wait_until(lambda: len(self.lines("WATCHDOG")) >= goal, what=f"fed {times} times")

    @property
    def messages(self) -> list[str]:
        """All that was said, in order."""
        return [said for _, said in self.heard]

    def lines(self, name: str) -> list[str]:
        """The values of one variable, in order."""
        every = "\n".join(self.messages).splitlines()
        return [line.partition("=")[2] for line in every if line.startswith(f"{name}=")]
