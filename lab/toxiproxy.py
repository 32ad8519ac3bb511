"""toxiproxy: TCP doors before servers, which can be shut, slowed and broken.

    with Toxiproxy(get.toxiproxy(), directory) as toxiproxy:
        door = toxiproxy.door("store", store.port)
        ... a client at 127.0.0.1, door.port ...
        door.shut()    # connections end, new ones are refused
        door.slow(milliseconds=500)
        door.mend()

A door that was shut or spoilt stays so until `mend`.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lab.child import ServerFailedError, end, free_port, spawn, wait_ready

if TYPE_CHECKING:
    import subprocess


class Toxiproxy:
    """The server; `with` starts and ends it."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._binary = binary
        self._log = directory / "toxiproxy.log"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._port = free_port()
        argv = [str(self._binary), "-host", "127.0.0.1", "-port", str(self._port)]
        self._process = spawn(argv, self._log, environment={"LOG_LEVEL": "error"})
        wait_ready(self._process, self._answers, self._log, what="toxiproxy")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process)

    def door(self, name: str, upstream_port: int) -> "Door":
        """A new door that leads to a port of 127.0.0.1."""
        port = free_port()
        wanted = {"listen": f"127.0.0.1:{port}", "upstream": f"127.0.0.1:{upstream_port}"}
        self.ask("POST", "/proxies", {"name": name, "enabled": True, **wanted})
        return Door(self, name, port)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """One request to its HTTP interface; ServerFailedError if it refuses."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise ServerFailedError(f"toxiproxy refuses {method} {path}: {said}")

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/version")
        except (OSError, http.client.HTTPException):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Door:
    """One proxied port."""

    toxiproxy: Toxiproxy
    name: str
    port: int

    @property
    def url(self) -> str:
        """The door as an HTTP endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def shut(self) -> None:
        """End all connections and refuse new ones, until `mend`."""
        self.toxiproxy.ask("POST", f"/proxies/{self.name}", {"enabled": False})

    def slow(self, *, milliseconds: int, jitter: int = 0) -> None:
        """Delay what the server says."""
        self._poison("latency", {"latency": milliseconds, "jitter": jitter})

    def swallow(self) -> None:
        """Let nothing through, and tell nobody: a network that is gone."""
        self._poison("timeout", {"timeout": 0})

    def mend(self) -> None:
        """All as it was at first, for every door."""
        self.toxiproxy.ask("POST", "/reset")

    def _poison(self, kind: str, attributes: Mapping[str, int]) -> None:
        toxic = {"name": kind, "type": kind, "stream": "downstream", "attributes": attributes}
        self.toxiproxy.ask("POST", f"/proxies/{self.name}/toxics", toxic)
