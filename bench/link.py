"""A slow link before a TCP port: round trip time, and a bandwidth that all connections share.

    with SlowLink(proxy.url, round_trip_seconds=0.09, bytes_per_second=2_000_000) as link:
        ... a client with endpoint_url=link.url ...

Upstream bytes leave one after the other at the link's rate, whichever connection they are of, and
arrive half a round trip later; downstream only the time is added. A new connection waits a round
trip, as for its handshake. toxiproxy is not used: its bandwidth is each connection's own, so eight
connections would have eight times the link.
"""

import asyncio
import contextlib
import threading
from typing import Self
from urllib.parse import urlsplit

PIECE_BYTES = 16 * 1024
_IN_FLIGHT = 32
"""Pieces of a connection on their way; reading waits for more room, as a TCP window does."""

_LATE_SECONDS = 0.1


class SlowLink:
    """The link; `with` starts and ends it."""

    def __init__(
        self, upstream_url: str, *, round_trip_seconds: float, bytes_per_second: float
    ) -> None:
        upstream = urlsplit(upstream_url)
        self._upstream = (upstream.hostname or "127.0.0.1", upstream.port or 80)
        self._delay = round_trip_seconds / 2
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        if self._server is None:
            raise RuntimeError("the link has not been started")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.sleep(2 * self._delay)
            there = await asyncio.open_connection(*self._upstream, limit=PIECE_BYTES)
            up = asyncio.create_task(self._pump(reader, there[1], shared=True))
            down = asyncio.create_task(self._pump(there[0], writer, shared=False))
            try:
                await asyncio.gather(up, down)
            finally:
                up.cancel()
                down.cancel()
                there[1].close()
        writer.close()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, shared: bool
    ) -> None:
        """Carry bytes until the source ends, then say so to the target."""
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        delivery = asyncio.create_task(self._deliver(on_way, target))
        try:
            while not delivery.done():
                piece = await source.read(PIECE_BYTES)
                leaves = self._loop.time()
                if shared and piece:
                    # not what the link was idle: that this process woke up late
                    began = max(leaves - _LATE_SECONDS, self._free_at)
                    leaves = self._free_at = began + len(piece) / self._rate
                    await asyncio.sleep(leaves - self._loop.time())
                await on_way.put((leaves + self._delay, piece))
                if not piece:
                    break
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(
        self, on_way: "asyncio.Queue[tuple[float, bytes]]", target: asyncio.StreamWriter
    ) -> None:
        while True:
            arrives, piece = await on_way.get()
            await asyncio.sleep(max(0.0, arrives - self._loop.time()))
            if not piece:
                with contextlib.suppress(OSError):
                    target.write_eof()
                return
            target.write(piece)
            await target.drain()
