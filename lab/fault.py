"""What `lab.proxy` remembers of a request, and what it can be told to do to one.

Values only: a rule is a callable that looks at a request and returns an action or None; `on`
makes the usual ones, a `Gate` is one that holds requests until it is opened.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a rule may look at; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that ended; `status` is what the client was told, None if it was told nothing.

    `begin` and `end` are monotonic seconds.
    """

    request: Request
    begin: float
    end: float
    request_bytes: int
    status: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer in the store's place; the store never sees the request."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection; the store never sees the request."""


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """Let the store do it, then close the connection without a word: the reply is lost.

    `done` is called between the two.
    """

    done: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait, then go on with `then`, or as if there were no rule."""

    seconds: float
    then: "Action | None" = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Change the head of the store's answer: names to strip (any case), headers to set."""

    strip: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None


Action = Answer | Drop | DropAnswer | Delay | Rewrite
Rule = Callable[[Request], Action | None]


def on(
    action: Action,
    *,
    method: str | None = None,
    path: str | None = None,
    query: str | None = None,
    times: int | None = None,
) -> Rule:
    """A rule for requests whose method, path and query match (regular expressions, anywhere).

    After `times` hits it is spent; None is for ever.
    """
    lock = threading.Lock()
    left = [times]

    def rule(request: Request) -> Action | None:
        wanted = ((method, request.method), (path, request.path), (query, request.query))
        if any(pattern is not None and not re.search(pattern, text) for pattern, text in wanted):
            return None
        with lock:
            if left[0] is not None:
                if left[0] == 0:
                    return None
                left[0] -= 1
        return action

    return rule


class Gate:
    """A rule that holds each request that matches, before the store sees it, until `open`.

    Never longer than `longest_seconds`, so that no test hangs.
    """

    def __init__(self, *, method: str = "", path: str = "", longest_seconds: float = 600) -> None:
        self._pattern = (method, path)
        self._longest_seconds = longest_seconds
        self._opened = threading.Event()
        self.held = threading.Event()

    def open(self) -> None:
        """Let go what is held, and hold nothing any more."""
        self._opened.set()

    def __call__(self, request: Request) -> Action | None:
        """No action, but perhaps only after a while."""
        method, path = self._pattern
        if re.search(method, request.method) and re.search(path, request.path):
            self.held.set()
            self._opened.wait(self._longest_seconds)
        return None


def in_flight(records: Iterable[Record]) -> int:
    """The greatest number of these requests that were under way at one moment."""
    steps = [step for each in records for step in ((each.begin, 1), (each.end, -1))]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most
