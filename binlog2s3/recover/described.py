"""What an entry says of a binlog, as a plan needs it. Pure.

Place in the flow: beneath `snapshot`, for entries and for the rows of pages.

Law: an entry that contradicts itself is an ArchiveError that names it.
"""

from binlog2s3.archive.blocks import Found, layout_problems
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.known import known_from
from binlog2s3.archive.reader import Readable
from binlog2s3.binlog.gtid import Flavour, parse
from binlog2s3.errors import ArchiveError


def found_from(entry: Entry, lineage: Lineage, readable: Readable) -> Found:
    """As an entry describes it. Raises ArchiveError where that cannot be."""
    try:
        _check(entry, lineage.flavour)
        return Found(
            lineage=lineage,
            known=known_from(entry, lineage.flavour),
            formats=tuple(int(form["offset"]) for form in entry.formats),
            readable=readable,
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"the entry of {entry.name} in lineage {lineage.id} is damaged: {error}",
            hint="`binlog2s3 verify` says more; once it is deleted, `verify --repair` makes it "
            "again from the binlog",
        ) from error


def _check(entry: Entry, flavour: Flavour) -> None:
    for problem in layout_problems(entry):
        raise ValueError(problem)
    for block in entry.blocks:
        if block.first_gtid is not None:
            parse(block.first_gtid, flavour)
            if flavour == "mysql" and not block.first_gtid.rpartition(":")[2].isdecimal():
                raise ValueError(f"{block.first_gtid!r} is no GTID")
