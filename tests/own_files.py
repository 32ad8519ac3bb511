"""A recovery's stream made from a server's own files, as `extract` makes it from a bucket."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from binlog2s3.binlog import gtid
from binlog2s3.binlog.content import ContentReader
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.binlog.statements import Statement
from binlog2s3.config.goal import Latest
from binlog2s3.recover.model import BinlogPosition, Checked, Plan, PlanPiece, Reachable, Stream
from binlog2s3.recover.seam import Next


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Pieces of a server's binlogs, and what is in them."""

    pieces: tuple[PlanPiece, ...]
    transactions: tuple[tuple[PlanPiece, Transaction], ...]
    directory: Path
    cut: int

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def count(self) -> int:
        return len(self.transactions)

    def stream(self) -> Stream:
        """As `Extract.stream`."""
        for piece in self.pieces:
            yield piece, self._checked(piece)

    def opened(
        self, pieces: Sequence[PlanPiece]
    ) -> Generator[tuple[PlanPiece, Iterator[Checked]], None, None]:
        """As `Extract.stream`, of these pieces."""
        yield from replace(self, pieces=tuple(pieces)).stream()

    def those_of(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """As `BucketHistory.transactions`."""
        for piece, one in self.transactions:
            is_in = begin <= one.begin and (end is None or one.begin < end)
            if is_in and (piece.lineage, piece.binlog) == (lineage, name):
                yield one

    def next(self, number: int) -> Next:
        """That transaction, for `seam`."""
        piece, one = self.transactions[number]
        data = (self.directory / str(piece.binlog)).read_bytes()
        form, statements = decode_format(data[len(MAGIC) :], offset=len(MAGIC)), list[Statement]()
        reader = ContentReader(form, on_statement=statements.append)
        reader.feed(data[one.begin : one.end])
        return Next(one.gtid, reader.content(), tuple(statements))

    def _checked(self, piece: PlanPiece) -> Iterator[Checked]:
        data = (self.directory / str(piece.binlog)).read_bytes()
        scanner = Scanner()
        scanner.feed(data[: 1 << 16] if len(data) > 1 << 16 else data)
        form = scanner.formats[0]
        yield Checked(data=data[: form.offset + form.size])
        left = [(0, piece.begin), *piece.left_out, (piece.end, len(data))]
        mine = [one for where, one in self.transactions if where is piece]
        for (_, begin), (end, _) in pairwise(left):
            for at in range(begin, end, self.cut):
                upto = min(at + self.cut, end)
                done = tuple(one for one in mine if at < one.end <= upto)
                yield Checked(data=data[at:upto], done=done)


def own(
    directory: Path,
    names: Sequence[str],
    *,
    begin: int = 0,
    end: int | None = None,
    skip: Sequence[str] = (),
    cut: int = 1 << 20,
) -> Own:
    """Pieces of these binlogs, from `begin` of the first to `end` of the last, without `skip`."""
    pieces, found = [], []
    for name in names:
        scanner = Scanner()
        all_of_it = scanner.feed((directory / name).read_bytes())
        form = scanner.formats[0]
        first = max(begin if name == names[0] else 0, form.offset + form.size)
        last = end if end is not None and name == names[-1] else scanner.transaction_end
        mine = [t for t in all_of_it if first <= t.begin and t.end <= last]
        out = tuple((t.begin, t.end) for t in mine if t.gtid in skip)
        kept = [t for t in mine if t.gtid not in skip]
        flavour = scanner.flavour or "mysql"
        piece = PlanPiece(
            lineage="own",
            binlog=BinlogName.parse(name),
            begin=first,
            end=last,
            left_out=out,
            transactions=len(kept),
            gtids=gtid.parse(",".join(t.gtid for t in kept if t.gtid), flavour),
        )
        pieces.append(piece)
        found += [(piece, one) for one in kept]
    return Own(pieces=tuple(pieces), transactions=tuple(found), directory=directory, cut=cut)


def without(files: Own, numbers: Sequence[int]) -> Own:
    """The same, these transactions left out."""
    pieces: dict[int, PlanPiece] = {}
    for piece in files.pieces:
        mine = [(n, one) for n, (where, one) in enumerate(files.transactions) if where is piece]
        out = [one for n, one in mine if n in numbers]
        pieces[id(piece)] = replace(
            piece,
            left_out=tuple((one.begin, one.end) for one in out),
            transactions=len(mine) - len(out),
        )
    kept = [pair for n, pair in enumerate(files.transactions) if n not in numbers]
    return replace(
        files,
        pieces=tuple(pieces.values()),
        transactions=tuple((pieces[id(where)], one) for where, one in kept),
    )


def planned(files: Own, server_version: str = "9.7.4") -> Plan:
    """A plan of these pieces: as much of it as whoever carries it out looks at."""
    last = files.pieces[-1]
    stop = BinlogPosition(lineage=last.lineage, binlog=last.binlog, offset=last.end)
    flavour: gtid.Flavour = "mariadb" if "mariadb" in server_version.lower() else "mysql"
    return Plan(
        flavour=flavour,
        server_version=server_version,
        lineage=last.lineage,
        goal=Latest(),
        stop=stop,
        pieces=files.pieces,
        before=None,
        adds=None,
        skipped=None,
        kept=(),
        left_out=(),
        commit_exact=True,
        reach=Reachable(first=stop, last=stop, earliest_us=0, latest_us=None, gtids=None),
    )
