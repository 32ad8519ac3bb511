"""The keys of format 1. Pure.

Law: no other module builds a key or takes one apart. A key that could not have come from here is
not of this format: nothing under it is read, changed or deleted.
"""

import re
from dataclasses import dataclass
from typing import Literal

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.codec import BACKUP_ID, LINEAGE_ID
from binlog2s3.archive.documents import floor_name
from binlog2s3.archive.pages import SPAN, first_in, page_name
from binlog2s3.binlog.names import BinlogName

GENERATION_MOST = 10**18 - 1
"""The greatest generation that a key may have, and the greatest number of a turn."""
_PROBE = re.compile(r"check-[0-9a-f]{8}/.*")
_PROBE_UPLOAD = re.compile(r"check-[0-9a-f]{8}/upload")
_WRITER = re.compile(r"([0-9]{6,18})-([0-9a-f]{8,32})\.json")
_STANDBY = re.compile(r"([0-9a-f]{8,32})\.json")
_TURN = re.compile(r"([0-9]{8,18})\.json")
_FLOOR = re.compile(r"([0-9]{10,18})\.json")
_STORED = re.compile(rf"({BACKUP_ID.pattern})/([0-9]{{4}})")


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one source under a prefix (which may be empty).

    It has a method for each kind of key, because no other module builds keys.
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

    def is_standby(self, key: str) -> bool:
        """Whether a key is that of a standby's object."""
        at = key.removeprefix(self.standbys)
        return key.startswith(self.standbys) and bool(_STANDBY.fullmatch(at))

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

    def backup_id(self, key: str) -> str | None:
        """The id of the backup whose document this key is; None if of none."""
        id_ = key.removeprefix(self.backups).removesuffix(".json")
        return id_ if BACKUP_ID.fullmatch(id_) and self.backup(id_) == key else None

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

    def stored_place(self, key: str) -> tuple[str, int] | None:
        """The id of the backup, and the number of the object, that this key is of."""
        match = _STORED.fullmatch(key.removeprefix(self.stored_backups))
        place = (match[1], int(match[2])) if match else None
        return place if place is not None and self.stored(*place) == key else None

    @property
    def backup_runs(self) -> str:
        """Prefix of the objects of `backup run`: one that works, or the last one if it failed."""
        return f"{self.live}backups/"

    def backup_run(self, id_: str) -> str:
        """Key of the object of a `backup run`."""
        return f"{self.backup_runs}{id_}.json"

    def backup_run_id(self, key: str) -> str | None:
        """The id of the run whose object this key is; None if of none."""
        id_ = key.removeprefix(self.backup_runs).removesuffix(".json")
        return id_ if BACKUP_ID.fullmatch(id_) and self.backup_run(id_) == key else None

    @property
    def drills(self) -> str:
        """Prefix of the results of drills."""
        return f"{self.archive}drills/"

    def drill(self, id_: str) -> str:
        """Key of a drill's result."""
        return f"{self.drills}{id_}.json"

    def drill_id(self, key: str) -> str | None:
        """The id of the drill whose result this key is; None if of none."""
        id_ = key.removeprefix(self.drills).removesuffix(".json")
        return id_ if BACKUP_ID.fullmatch(id_) and self.drill(id_) == key else None

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

    def floor_number(self, lineage: str, key: str) -> int | None:
        """The number of the binlog of the floor that this key is of; None if of none."""
        match = _FLOOR.fullmatch(key.removeprefix(self.floors(lineage)))
        number = int(match[1]) if match else None
        return number if number is not None and self.floor(lineage, number) == key else None

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

    def writer_rank(self, key: str) -> tuple[int, str] | None:
        """The generation and token of the writer whose object this key is; None if of none."""
        match = _WRITER.fullmatch(key.removeprefix(self.writers))
        rank = (int(match[1]), match[2]) if match else None
        return rank if rank is not None and self.writer(*rank) == key else None

    def turn_number(self, key: str) -> int | None:
        """The number of the turn that this key is of; None if of none."""
        match = _TURN.fullmatch(key.removeprefix(self.turns))
        number = int(match[1]) if match else None
        return number if number is not None and self.turn(number) == key else None

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

    def is_probe(self, key: str) -> bool:
        """Whether a key is that of an object of `check`, which is deleted soon."""
        found = key.startswith(self.live) and _PROBE.fullmatch(key.removeprefix(self.live))
        return bool(found)

    def place_of(self, key: str) -> "Place | None":
        """What an object of the source is, by its key; None if it is of no format of ours."""
        if key.startswith(self.live):
            return self._live_place(key)
        first, _, rest = key.removeprefix(self.archive).partition("/")
        if not key.startswith(self.archive):
            return None
        if LINEAGE_ID.fullmatch(first):
            return self._lineage_place(key, first, *rest.partition("/")[::2])
        if key == self.retired:
            return Place("retired")
        if self.turn_number(key) is not None:
            return Place("turn")
        if self.backup_id(key) is not None:
            return Place("backup")
        if self.drill_id(key) is not None:
            return Place("drill")
        stored = self.stored_place(key)
        return Place("stored", backup=stored[0]) if stored is not None else None

    def _lineage_place(self, key: str, lineage: str, folder: str, last: str) -> "Place | None":
        name = _name(last.removesuffix(".json") if folder == "entries" else last)
        match folder:
            case "binlogs" if name is not None:
                return Place("binlog", lineage=lineage, binlog=name)
            case "entries" if name is not None and key == self.entry(lineage, name):
                return Place("entry", lineage=lineage, binlog=name)
            case "pages" if first_in(last) is not None:
                return Place("page", lineage=lineage)
            case "floors" if self.floor_number(lineage, key) is not None:
                return Place("floor", lineage=lineage)
        return Place("lineage", lineage=lineage) if key == self.lineage(lineage) else None

    def _live_place(self, key: str) -> "Place | None":
        lineage, _, rest = key.removeprefix(self.live).partition("/")
        if LINEAGE_ID.fullmatch(lineage):
            text, _, last = rest.partition("/")
            name, chunk = _name(text), _chunk(last)
            if name is None or chunk is None:
                return None
            return Place("chunk", lineage=lineage, binlog=name, chunk=chunk)
        if self.writer_rank(key) is not None:
            return Place("writer")
        if self.is_standby(key):
            return Place("standby")
        if self.backup_run_id(key) is not None:
            return Place("backup-run")
        return Place("probe") if self.is_probe(key) else None

    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""


@dataclass(frozen=True, slots=True)
class Place:
    """What an object is: of which lineage, binlog and chunk, or of which stored backup."""

    kind: Literal[
        "turn",
        "backup",
        "stored",
        "drill",
        "retired",
        "lineage",
        "floor",
        "page",
        "entry",
        "binlog",
        "chunk",
        "writer",
        "standby",
        "backup-run",
        "probe",
    ]
    lineage: str = ""
    binlog: BinlogName | None = None
    chunk: Chunk | None = None
    backup: str = ""


def _name(text: str) -> BinlogName | None:
    try:
        name = BinlogName.parse(text)
    except ValueError:
        return None
    return name if str(name) == text else None


def _chunk(text: str) -> Chunk | None:
    try:
        return Chunk.parse(text)
    except ValueError:
        return None
