"""Transactions that are left out by wish: --skip-gtid. Pure.

Place in the flow: `plan` asks for each transaction, and at the end what was never met.
"""

from binlog2s3.binlog.executed import gathered
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.errors import RecoveryError


class Skip:
    """What is to be left out by wish, and what of it was found."""

    def __init__(self, texts: tuple[str, ...], flavour: Flavour) -> None:
        self._flavour: Flavour = flavour
        self._set = GtidSet()
        self._single: set[str] = set()
        self._found: list[str] = []
        for text in texts:
            try:
                if self._flavour == "mysql":
                    self._set |= GtidSet.parse(text)
                else:
                    gtids = MariadbGtidList.parse(text).gtids()
                    self._single |= {f"{d}-{s}-{n}" for d, s, n in gtids}
            except ValueError as error:
                raise RecoveryError(f"--skip-gtid: {error}", hint="see --help") from None

    def has(self, gtid: str | None) -> bool:
        """Whether to leave this one out; it is noted."""
        if gtid is None or not self.names(gtid):
            return False
        self._found.append(gtid)
        return True

    def names(self, gtid: str) -> bool:
        """Whether this one is named."""
        if self._single:
            return gtid in self._single
        uuid, *tag, gno = gtid.split(":") if self._set else ["", "0"]
        return (uuid, tag[0] if tag else "", int(gno)) in self._set

    def touches(self, gtids: Gtids) -> bool:
        """Whether any of these may be among those."""
        if isinstance(gtids, GtidSet):
            return bool(self._set & gtids)
        return bool(self._single)

    def found(self) -> Gtids | None:
        """Those that are left out; None where none were named."""
        if not (self._set or self._single):
            return None
        return gathered(self._found, self._flavour)

    def not_found(self) -> str:
        """Those that were named and never came, as text."""
        if self._single:
            return ",".join(sorted(self._single - set(self._found)))
        seen = gathered(self._found, "mysql")
        return str(self._set - seen) if isinstance(seen, GtidSet) else ""


def both(gtids: Gtids, others: Gtids) -> Gtids:
    """What is in both."""
    if isinstance(gtids, GtidSet) and isinstance(others, GtidSet):
        return gtids & others
    if isinstance(gtids, MariadbGtidList) and isinstance(others, MariadbGtidList):
        last = {(d, s): n for d, s, n in others.gtids()}
        return MariadbGtidList(
            {(d, s): n for d, s, n in gtids.gtids() if n <= last.get((d, s), -1)}
        )
    raise TypeError
