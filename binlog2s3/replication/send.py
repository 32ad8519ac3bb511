"""Sends the binlogs of a source to one client, and heartbeats while nothing comes.

A source of binlogs is an iterable of `SentBinlog`s: a recovery's plan is one that ends, an archive
is one that grows. It waits for more by `Sender.wait`.

Law: only whole events of the source are sent, as `Feed` decides. The client gets the error that
the source raises, after everything that came before it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from binlog2s3.binlog.walk import EventPart, EventSplitter
from binlog2s3.errors import ArchiveError
from binlog2s3.replication.events import WHOLE_MOST, heartbeat_event
from binlog2s3.replication.feed import Feed, pass_on
from binlog2s3.replication.packets import Buffer
from binlog2s3.replication.protocol import Dump
from binlog2s3.replication.source import Client

_LOOK_SECONDS = 1.0  # between two checks whether the client has left
_HEARTBEAT_LEAST = 0.5


class ClientLeftError(OSError):
    """The client has left, or this process ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBinlog:
    """A binlog of a source, or a part of one.

    `name` is the one that the client is told. `begin` and `head`: see `Feed.begin`. `blocks` are
    the bytes after that, checked and cut anywhere, which end with an event. `successor`: how the
    rotate event of the binlog before has to name it so that it is sent; "" for `name`. `end`: where
    the part ends, if the client has to be told although the last events of it were left out.
    """

    name: str
    begin: int
    head: bytes
    blocks: Iterator[Buffer]
    successor: str = ""
    end: int | None = None


class Sender:
    """One dump of one client, in the client's own thread.

    `ended` waits so many seconds for the end of this process, and says whether it is there.
    `has_room`: whether a transaction may be sent after so many bytes of `Feed.sent`; it waits so
    many seconds for it.
    """

    def __init__(
        self,
        client: Client,
        dump: Dump,
        feed: Feed,
        *,
        ended: Callable[[float], bool],
        has_room: Callable[[int, float], bool] | None = None,
    ) -> None:
        self.feed = feed
        self._client = client
        self._dump = dump
        self._ended = ended
        self._has_room = has_room
        self._splitter = EventSplitter(most=WHOLE_MOST)
        self._beat = max(dump.heartbeat, _HEARTBEAT_LEAST) if dump.heartbeat else 0.0
        self._spoke = time.monotonic()
        self._seen = 0

    def send(self, binlogs: Iterable[SentBinlog]) -> None:
        """Send all of them.

        Raises what the source raises, ArchiveError for bytes that are no events, and OSError if the
        client has left.
        """
        last: SentBinlog | None = None
        for binlog in binlogs:
            if last is not None:
                self._put(self.feed.end(binlog.successor or binlog.name))
            self._put(self.feed.begin(binlog.name, binlog.begin, binlog.head))
            self._splitter = EventSplitter(most=WHOLE_MOST)
            for data in binlog.blocks:
                self._pass_on(binlog, data)
                self._keep_alive()
            if not self._splitter.is_between:
                raise ArchiveError(f"{binlog.name}: the bytes end within an event")
            last = binlog
        if last is not None and last.end is not None:
            self.feed.position = max(self.feed.position, last.end)
            self._put(self.feed.settled())
        self._client.flush()

    def finish(self) -> None:
        """End the dump: the client wanted only what there is now."""
        self._put(self.feed.end(None))
        if not self._is_over():
            self._client.finish()

    def wait(self, is_ready: Callable[[float], object]) -> None:
        """Wait until `is_ready`, which waits so many seconds for it; the client gets heartbeats.

        Raises ClientLeftError.
        """
        if is_ready(0):
            return
        self._client.flush()
        while not is_ready(min(self._beat or _LOOK_SECONDS, _LOOK_SECONDS)):
            self.pause(0)

    def pause(self, seconds: float) -> None:
        """Wait so long, then send a heartbeat if one is due. Raises ClientLeftError."""
        self._client.flush()
        if self._ended(seconds) or self._is_over():
            raise ClientLeftError("the client has left")
        self._keep_alive()

    def _pass_on(self, binlog: SentBinlog, data: Buffer) -> None:
        before = self._wait_for_room if self._has_room is not None else None
        try:
            pass_on(memoryview(data), self._splitter, self.feed, self._client, before=before)
        except ValueError as error:
            raise ArchiveError(f"{binlog.name}: {error}") from error

    def _wait_for_room(self) -> None:
        has_room = self._has_room
        if has_room is not None:
            self.wait(lambda seconds: has_room(self.feed.sent, seconds))

    def _put(self, parts: Iterable[EventPart]) -> None:
        for part in parts:
            self._client.send_event(part.data, part.size)

    def _is_over(self) -> bool:
        return self._ended(0) or self._client.has_left()

    def _keep_alive(self) -> None:
        """Send a heartbeat if nothing was sent during the interval that the client wants."""
        now = time.monotonic()
        if self._client.sent != self._seen:
            self._seen, self._spoke = self._client.sent, now
        is_due = self._beat and self.feed.name and now - self._spoke >= self._beat
        if not is_due or self._splitter.is_inside:
            return
        position = self.feed.position
        if self.feed.at is not None:
            position = max(position, self.feed.at[1])
        else:
            self._put(self.feed.settled())
        event = heartbeat_event(
            self.feed.name,
            position,
            server_id=self.feed.server_id,
            checksum=self.feed.checksum,
            version_2=self._dump.heartbeat_v2,
        )
        self._client.send_event(event)
        self._client.flush()
