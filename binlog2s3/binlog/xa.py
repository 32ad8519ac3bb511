"""The two phases of XA transactions, as events tell of them. Pure.

Place: `content` asks for each XA_PREPARE event and each statement that begins with XA.

Law: the first phase is a transaction with the rows, and changes nothing yet; the second is another
one, XA COMMIT or XA ROLLBACK, that has nothing but the name of the first. In between may lie any
number of transactions, binlogs, and days. A one-phase commit is a transaction like others.
"""

import re
import struct
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prepare", "commit", "rollback"]

_PREPARE = struct.Struct("<?III")
_END = re.compile(
    r"XA\s+(COMMIT|ROLLBACK)\s+X'([0-9A-F]*)'\s*,\s*X'([0-9A-F]*)'\s*,\s*(\d{1,10})\s*;?\s*",
    re.IGNORECASE,
)
_BEGINNING = re.compile(r"\s*XA\s+(START|BEGIN|COMMIT|ROLLBACK)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of an XA transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


@dataclass(frozen=True, slots=True)
class Xa:
    """One phase of an XA transaction; `xid` is None where its name cannot be told."""

    phase: Phase
    xid: Xid | None


def decode_xa_prepare(body: bytes) -> Xa | None:
    """The body of an XA_PREPARE event; None: it commits in one phase.

    One byte that says so, format, two lengths, and the names (libbinlogevents `XA_prepare_event`).
    Raises struct.error or ValueError.
    """
    one_phase, format_id, gtrid_size, bqual_size = _PREPARE.unpack_from(body)
    if one_phase:
        return None
    names = body[_PREPARE.size :]
    if gtrid_size + bqual_size > len(names):
        raise ValueError("XA_PREPARE event too short")
    bqual = names[gtrid_size : gtrid_size + bqual_size]
    return Xa("prepare", Xid(format_id, names[:gtrid_size], bqual))


def xa_word(text: str) -> str:
    """START, COMMIT or ROLLBACK if that is what an XA statement does, else ""."""
    found = _BEGINNING.match(text)
    return found[1].upper().replace("BEGIN", "START") if found else ""


def xa_end(text: str) -> Xa:
    """Of an XA COMMIT or XA ROLLBACK, as servers write it."""
    phase: Phase = "commit" if xa_word(text) == "COMMIT" else "rollback"
    found = _END.fullmatch(text.strip())
    if found is None or len(found[2]) % 2 or len(found[3]) % 2:
        return Xa(phase, None)
    return Xa(phase, Xid(int(found[4]), bytes.fromhex(found[2]), bytes.fromhex(found[3])))
