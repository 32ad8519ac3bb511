"""What an entry says of a binlog, as a plan needs it. Pure.

Place in the flow: beneath `snapshot`, for entries and for the rows of pages.

Law: an entry that contradicts itself is an ArchiveError that names it.
"""

from binlog2s3.archive.blocks import Found, layout_problems
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.known import Known
from binlog2s3.archive.reader import Readable
from binlog2s3.binlog.gtid import Flavour, Gtids, parse
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import us_of


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


def known_from(entry: Entry, flavour: Flavour) -> Known:
    """What is known of an archived binlog by its entry."""
    return Known(
        name=entry.name,
        size=entry.size,
        state="archived",
        ended=True,
        first_us=us_of(entry.first_time),
        transaction_end=entry.size,
        least_commit_us=entry.least_commit_us,
        greatest_commit_us=entry.greatest_commit_us,
        commit_exact=entry.commit_exact,
        gtids_before=_gtids_before(entry, flavour),
        gtids_added=_gtids(entry, entry.gtid_set_added, flavour),
        transactions=entry.transactions,
        anonymous=entry.anonymous_transactions,
        blocks=entry.blocks,
        damaged=tuple((int(one["begin"]), int(one["end"])) for one in entry.damaged),
        server_id=entry.server_id,
    )


def _gtids_before(entry: Entry, flavour: Flavour) -> Gtids | None:
    """An entry does not tell an empty set from none at all: servers that know GTIDs have one."""
    if not entry.gtid_set_before:
        version = str(entry.formats[0]["server_version"]) if entry.formats else ""
        major, _, rest = version.partition(".")
        minor = rest.partition(".")[0]
        if not (major.isdecimal() and minor.isdecimal()):
            return None
        if (int(major), int(minor)) < ((5, 6) if flavour == "mysql" else (10, 0)):
            return None
    return _gtids(entry, entry.gtid_set_before, flavour)


def _gtids(entry: Entry, text: str, flavour: Flavour) -> Gtids:
    try:
        return parse(text, flavour)
    except ValueError as error:
        raise ArchiveError(
            f"the entry of {entry.name}: {error}", hint="was it changed by hand?"
        ) from error
