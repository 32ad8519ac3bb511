"""The keys of format 1. Pure.

Law: no other module builds a key or takes one apart. A key that could not have come from here is
not of this format: nothing under it is read, changed or deleted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.codec import BACKUP_ID, LINEAGE_ID
from binlog2s3.archive.documents import floor_name
from binlog2s3.archive.pages import SPAN, first_in, page_name
from binlog2s3.binlog.names import BinlogName

GENERATION_MOST = 10**18 - 1
"""The greatest generation that a key may have, and the greatest number of a turn."""
_PROBE_UPLOAD = re.compile(r"check-[0-9a-f]{8}/upload")
_LINEAGE = rf"(?P<lineage>{LINEAGE_ID.pattern})/"
_ID = rf"(?P<id>{BACKUP_ID.pattern})"
_TOKEN = r"(?P<id>[0-9a-f]{8,32})"  # noqa: S105 - a writer's, and no secret


def _number(digits: int) -> str:
    """A number with leading zeros up to so many digits, and at most 18 digits."""
    return rf"(?P<number>[0-9]{{{digits}}}|[1-9][0-9]{{{digits},17}})"


Kind = Literal[
    "binlog",
    "entry",
    "page",
    "floor",
    "lineage",
    "turn",
    "backup",
    "stored",
    "drill",
    "retired",
    "chunk",
    "writer",
    "standby",
    "backup-run",
    "probe",
]


def _patterns(kinds: Mapping[Kind, str]) -> "Mapping[Kind, re.Pattern[str]]":
    return {kind: re.compile(pattern) for kind, pattern in kinds.items()}


_ARCHIVE = _patterns(
    {
        "binlog": rf"{_LINEAGE}binlogs/(?P<binlog>[^/]+)",
        "entry": rf"{_LINEAGE}entries/(?P<binlog>[^/]+)\.json",
        "page": rf"{_LINEAGE}pages/(?P<page>[^/]+)",
        "floor": rf"{_LINEAGE}floors/{_number(10)}\.json",
        "lineage": rf"{_LINEAGE}lineage\.json",
        "turn": rf"turns/{_number(8)}\.json",
        "backup": rf"backups/{_ID}\.json",
        "stored": rf"base/{_ID}/(?P<number>[0-9]{{4}})",
        "drill": rf"drills/{_ID}\.json",
        "retired": r"retired\.json",
    }
)
"""The keys below a source's archive, without the prefix."""
_LIVE = _patterns(
    {
        "chunk": rf"{_LINEAGE}(?P<binlog>[^/]+)/(?P<chunk>[^/]+)",
        "writer": rf"writers/{_number(6)}-{_TOKEN}\.json",
        "standby": rf"standbys/{_TOKEN}\.json",
        "backup-run": rf"backups/{_ID}\.json",
        "probe": r"check-[0-9a-f]{8}/.*",
    }
)
"""The keys below a source's `live/`, without the prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """What an object is, by its key.

    `number`: that of a turn, of a floor's binlog, of an object of a stored backup; a writer's
    generation. `id`: that of a backup, a run or a drill; the token of a writer or a standby.
    """

    kind: Kind
    lineage: str = ""
    binlog: BinlogName | None = None
    chunk: Chunk | None = None
    number: int = 0
    id: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """A writer's rank."""
        return self.number, self.id


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one source under a prefix (which may be empty).

    It has a method for each kind of key, because no other module builds keys; `parsed` reads all.
    """

    prefix: str
    source: str

    @property
    def sources(self) -> str:
        """Prefix of the archives of all sources."""
        return f"{self._root()}archive/"

    @property
    def archive(self) -> str:
        """Prefix of the objects that are written once and never changed."""
        return f"{self.sources}{self.source}/"

    @property
    def writers(self) -> str:
        """Prefix of the writers' objects."""
        return f"{self.live}writers/"

    @property
    def standbys(self) -> str:
        """Prefix of the objects of standbys."""
        return f"{self.live}standbys/"

    def standby(self, token: str) -> str:
        """Key of a standby's object."""
        return f"{self.standbys}{token}.json"

    def lineage(self, lineage: str) -> str:
        """Key of a lineage's description."""
        return f"{self.archive}{lineage}/lineage.json"

    @property
    def turns(self) -> str:
        """Prefix of the turns, which say which lineage is written."""
        return f"{self.archive}turns/"

    def turn(self, number: int) -> str:
        """Key of a turn. The turn with the greatest number is valid."""
        return f"{self.turns}{number:08d}.json"

    @property
    def backups(self) -> str:
        """Prefix of the registered base backups."""
        return f"{self.archive}backups/"

    def backup(self, id_: str) -> str:
        """Key of a registered base backup."""
        return f"{self.backups}{id_}.json"

    @property
    def stored_backups(self) -> str:
        """Prefix of the streams of the base backups that are stored here."""
        return f"{self.archive}base/"

    def stored(self, id_: str, number: int) -> str:
        """Key of an object of a stored backup: the first one has number 1."""
        return f"{self.stored_folder(id_)}{number:04d}"

    def stored_folder(self, id_: str) -> str:
        """Prefix of the objects of a stored backup."""
        return f"{self.stored_backups}{id_}/"

    @property
    def backup_runs(self) -> str:
        """Prefix of the objects of `backup run`: one that works, or the last one if it failed."""
        return f"{self.live}backups/"

    def backup_run(self, id_: str) -> str:
        """Key of the object of a `backup run`."""
        return f"{self.backup_runs}{id_}.json"

    @property
    def drills(self) -> str:
        """Prefix of the results of drills."""
        return f"{self.archive}drills/"

    def drill(self, id_: str) -> str:
        """Key of a drill's result."""
        return f"{self.drills}{id_}.json"

    @property
    def retired(self) -> str:
        """Key of the document that says that the source has ended."""
        return f"{self.archive}retired.json"

    def floors(self, lineage: str) -> str:
        """Prefix of a lineage's floors. The floor with the greatest number is valid."""
        return f"{self.archive}{lineage}/floors/"

    def floor(self, lineage: str, number: int) -> str:
        """Key of the floor at the binlog of this number."""
        return f"{self.floors(lineage)}{floor_name(number)}"

    def binlogs(self, lineage: str) -> str:
        """Prefix of a lineage's archived binlogs."""
        return f"{self.archive}{lineage}/binlogs/"

    def entries(self, lineage: str) -> str:
        """Prefix of a lineage's entries."""
        return f"{self.archive}{lineage}/entries/"

    def binlog(self, lineage: str, name: BinlogName) -> str:
        """Key of an archived binlog: the server's own file."""
        return f"{self.binlogs(lineage)}{name}"

    def entry(self, lineage: str, name: BinlogName) -> str:
        """Key of an archived binlog's entry."""
        return f"{self.entries(lineage)}{name}.json"

    def pages(self, lineage: str) -> str:
        """Prefix of a lineage's pages."""
        return f"{self.archive}{lineage}/pages/"

    def page(self, lineage: str, first: int, span: int = SPAN) -> str:
        """Key of the page that begins with the binlog number `first`; see `pages.first_of`."""
        return f"{self.pages(lineage)}{page_name(first, span)}"

    @property
    def live(self) -> str:
        """Prefix of the objects that are deleted again: writers, standbys, and all chunks."""
        return f"{self._root()}live/{self.source}/"

    def chunks(self, lineage: str, name: BinlogName) -> str:
        """Prefix of the chunks of a binlog that is not archived yet."""
        return f"{self.live}{lineage}/{name}/"

    def chunk(self, lineage: str, name: BinlogName, chunk: Chunk) -> str:
        """Key of a chunk."""
        return f"{self.chunks(lineage, name)}{chunk}"

    def writer(self, generation: int, token: str) -> str:
        """Key of a writer's object."""
        return f"{self.writers}{generation:06d}-{token}.json"

    def probes(self, token: str) -> str:
        """Prefix of the objects that `check` puts to test its permissions, and deletes again."""
        return f"{self.live}check-{token}/"

    def probe_upload(self, token: str) -> str:
        """Key of the upload that `check` starts to test its permissions, and aborts."""
        return f"{self.archive}check-{token}/upload"

    def probe_objects(self, token: str) -> dict[str, str]:
        """A key for each kind of object: `check` tests whether it may put one there, and puts none.

        A policy may treat the kinds differently. The keys belong to no lineage and no writer.
        """
        folder = f"{self.archive}check-{token}/"
        return {
            "lineage": f"{folder}lineage.json",
            "turn": f"{self.turns}check-{token}.json",
            "binlog": f"{folder}binlogs/probe.000001",
            "entry": f"{folder}entries/probe.json",
            "writer": f"{self.writers}check-{token}.json",
        }

    def is_probe_upload(self, key: str) -> bool:
        """Whether a key is that of an upload of `check`."""
        at = key.removeprefix(self.archive)
        return key.startswith(self.archive) and bool(_PROBE_UPLOAD.fullmatch(at))

    def parsed(self, key: str) -> ParsedKey | None:
        """What an object of the source is, by its key; None if it is of no format of ours."""
        for prefix, patterns in ((self.archive, _ARCHIVE), (self.live, _LIVE)):
            if key.startswith(prefix):
                return _parsed(key.removeprefix(prefix), patterns)
        return None

    def is_of(self, kind: Kind, key: str) -> bool:
        """Whether a key is that of an object of this kind."""
        found = self.parsed(key)
        return found is not None and found.kind == kind

    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""


def _parsed(text: str, patterns: "Mapping[Kind, re.Pattern[str]]") -> ParsedKey | None:
    """A key without its prefix. What is of one kind is of no other."""
    for kind, pattern in patterns.items():
        if (match := pattern.fullmatch(text)) is None:
            continue
        part = match.groupdict()
        if "page" in part and first_in(part["page"]) is None:
            return None
        try:
            return ParsedKey(
                kind=kind,
                lineage=part.get("lineage", ""),
                binlog=BinlogName.parse(part["binlog"]) if "binlog" in part else None,
                chunk=Chunk.parse(part["chunk"]) if "chunk" in part else None,
                number=int(part.get("number", 0)),
                id=part.get("id", ""),
            )
        except ValueError:
            return None
    return None
