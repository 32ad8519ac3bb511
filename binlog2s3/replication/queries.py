"""The answers of a replication source to the queries of replicas. Pure: packets' payloads, no I/O.

Law: a query is compared with those that replicas send. It is never interpreted.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.server.version import Plugin

UTF8MB4 = 45
AUTOCOMMIT = 2
OK = b"\0\0\0" + struct.pack("<HH", AUTOCOMMIT, 0)
"""The payload of an OK packet."""
_EOF = b"\xfe\0\0" + struct.pack("<H", AUTOCOMMIT)
_QUERY_MOST = 1 << 16
_SEMI_SYNC = ("RPL_SEMI_SYNC_MASTER_ENABLED", "RPL_SEMI_SYNC_SOURCE_ENABLED")
_VARIABLES = {
    "master_heartbeat_period": "heartbeat_period",
    "source_heartbeat_period": "heartbeat_period",
    "master_binlog_checksum": "binlog_checksum",
    "source_binlog_checksum": "binlog_checksum",
    "slave_uuid": "uuid",
    "replica_uuid": "uuid",
    "mariadb_slave_capability": "capability",
    "slave_connect_state": "slave_connect_state",
    "slave_gtid_strict_mode": "strict",
    "slave_gtid_ignore_duplicates": "ignore_duplicates",
    "rpl_semi_sync_slave": "semi_sync",
    "rpl_semi_sync_replica": "semi_sync",
}
"""The variables that replicas set; the old and the new name are one variable."""
_ASSIGNMENT = re.compile(
    r"\s*@(?P<name>\w+)\s*:?=\s*(?:(?P<system>@@global\.binlog_checksum)|'(?P<text>[^'\\]*)'"
    r"|(?P<number>\d{1,20})|NULL)\s*(?:,|\Z)",
    re.IGNORECASE,
)


_WITHOUT_EFFECT = re.compile(
    r"(?:SET (?:(?:SESSION |@@SESSION\.|@@)?(?:NAMES|AUTOCOMMIT|SQL_MODE|TIME_ZONE|WAIT_TIMEOUT"
    r"|NET_READ_TIMEOUT|NET_WRITE_TIMEOUT|CHARACTER_SET_RESULTS)\b[ =:]*"
    r"(?:[\w+:,-]{1,64}|'[\w+:, -]{0,256}')(?: COLLATE '?\w{1,64}'?)?)|COMMIT|ROLLBACK)",
    re.IGNORECASE,
)
"""Statements that clients send first, and that have no effect here."""
_SHOW_VARIABLES = re.compile(
    r"SHOW (?:GLOBAL |SESSION )?VARIABLES (?:LIKE|WHERE VARIABLE_NAME =) "
    r"(?P<quote>['\"])(?P<name>[\w%]{1,64})(?P=quote)",
    re.IGNORECASE,
)
_STATUS = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the source tells clients of itself. `version` decides how MariaDB's replicas talk to it.

    `gtid_mode` is MySQL's. `checksum`: whether events carry a CRC32 from the first one on.
    `newest`: name and end of the newest binlog, and `gtids` those executed there, for clients that
    want only what comes next; "" if it is unknown.
    """

    version: str
    flavour: Flavour
    server_id: int
    server_uuid: str
    gtid_mode: str = "ON"
    checksum: bool = True
    plugin: Plugin = "caching_sha2_password"
    newest: tuple[str, int] = ("", 0)
    gtids: str = ""


class Queries:
    """Answers one client's queries, and keeps what it sets."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._variables: dict[str, str | None] = {}

    @property
    def heartbeat_seconds(self) -> float:
        """The interval of heartbeats that it wants; 0: none."""
        text = self._variables.get("heartbeat_period") or "0"
        return min(int(text), 1 << 62) / 1e9 if text.isdecimal() else 0.0

    @property
    def gtid_position(self) -> str | None:
        """MariaDB's GTIDs to begin after; None if it has not set them."""
        return self._variables.get("slave_connect_state")

    @property
    def uuid(self) -> str:
        """The replica's own server_uuid; "" if it has not set it."""
        return self._variables.get("uuid") or ""

    @property
    def takes_checksums(self) -> bool:
        """Whether it has said that it can handle events with checksums."""
        return "binlog_checksum" in self._variables

    @property
    def wants_checksum(self) -> bool:
        """Whether it wants a checksum in events that are not in a binlog."""
        return self._variables.get("binlog_checksum") not in (None, "NONE", "OFF")

    def answer(self, raw: bytes, now: int) -> list[bytes]:
        """The payloads that answer a query; `now` is the Unix time."""
        if len(raw) > _QUERY_MOST:
            return [error(1153, "this source answers short queries only")]
        text = " ".join(raw.decode("utf-8", "replace").split()).rstrip("; ")
        if _WITHOUT_EFFECT.fullmatch(text):
            return [OK]
        if text[:4].upper() == "SET ":
            return [self._set(text[4:])]
        found = self._value(text.upper(), now)
        if found is not None:
            return _rows(tuple(found), [tuple(found.values())])
        return self._show(text) or [
            error(1235, f"this source answers only the queries of replicas: {text[:200]!r}")
        ]

    def _show(self, text: str) -> list[bytes]:
        """The answer to a SHOW; empty if the query is unknown."""
        if text.upper() in _STATUS:
            return self._status()
        if text.upper() == "SHOW WARNINGS":
            return _rows(("Level", "Code", "Message"), [])
        match = _SHOW_VARIABLES.fullmatch(text)
        if match is None:
            return []
        wanted = match["name"].lower()
        rows = [(name, value) for name, value in self._shown().items() if name == wanted]
        return _rows(("Variable_name", "Value"), rows)

    def _status(self) -> list[bytes]:
        """SHOW BINARY LOG STATUS."""
        name, position = self._identity.newest
        found = {"File": name, "Position": str(position), "Binlog_Do_DB": ""}
        found |= {"Binlog_Ignore_DB": ""}
        if self._identity.flavour == "mysql":
            found |= {"Executed_Gtid_Set": self._identity.gtids}
        return _rows(tuple(found), [tuple(found.values())] if name else [])

    def _shown(self) -> dict[str, str]:
        """The variables that SHOW VARIABLES finds; for other names the result is empty."""
        who = self._identity
        found = {
            "server_id": str(who.server_id),
            "version": who.version,
            "version_comment": "binlog2s3 serve",
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_checksum": "CRC32" if who.checksum else "NONE",
        }
        if who.flavour == "mysql":
            return found | {"server_uuid": who.server_uuid, "gtid_mode": who.gtid_mode}
        return found | {"gtid_domain_id": "0", "gtid_binlog_pos": who.gtids}

    def _value(self, asked: str, now: int) -> dict[str, str | None] | None:
        """The one row that answers, by column; None if the query is unknown."""
        who = self._identity
        if asked == "SELECT UNIX_TIMESTAMP()":
            return {"UNIX_TIMESTAMP()": str(now)}
        if asked == "SELECT VERSION()":
            return {"VERSION()": who.version}
        match = re.fullmatch(r"SELECT (@@?[A-Z_.]+)", asked)
        if match is None:
            return None
        name = match[1]
        if name in ("@MASTER_BINLOG_CHECKSUM", "@SOURCE_BINLOG_CHECKSUM"):
            return {name.lower(): self._variables.get("binlog_checksum")}
        values: dict[str, str] = {"SERVER_ID": str(who.server_id)}
        values |= dict.fromkeys(_SEMI_SYNC, "0")
        if who.flavour == "mysql":
            values |= {"SERVER_UUID": who.server_uuid, "GTID_MODE": who.gtid_mode}
        else:
            values |= {"GTID_DOMAIN_ID": "0"}
        value = values.get(name.removeprefix("@@").removeprefix("GLOBAL."))
        return None if value is None or not name.startswith("@@") else {name: value}

    def _set(self, text: str) -> bytes:
        """Take `@name = value, ...`, with the names that replicas set; nothing is evaluated."""
        at, found = 0, dict[str, str | None]()
        while match := _ASSIGNMENT.match(text, at):
            name, at = match["name"].lower(), match.end()
            known = _VARIABLES.get(name)
            if known is None:
                return error(1193, f"this archive's source has no variable @{name[:64]}")
            found[known] = self._assigned(match)
        if at != len(text) or text.endswith(","):
            return error(1235, f"this archive's source does not accept: SET {text[:200]!r}")
        self._variables |= found
        return OK

    def _assigned(self, match: "re.Match[str]") -> str | None:
        if match["system"]:
            return "CRC32" if self._identity.checksum else "NONE"
        return match["text"] if match["text"] is not None else match["number"]


def error(code: int, text: str) -> bytes:
    """The payload of an ERR packet."""
    return b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode("utf-8", "replace")[:500]


def lenenc(data: bytes) -> bytes:
    """A length-encoded text of up to 64 KiB."""
    if len(data) < 0xFB:
        return bytes([len(data)]) + data
    return b"\xfc" + struct.pack("<H", len(data)) + data


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> list[bytes]:
    """A text resultset, with EOF packets (CLIENT_DEPRECATE_EOF is not offered)."""
    fixed = struct.pack("<HIBHB", UTF8MB4, 1024, 253, 0, 0) + b"\0\0"
    shown = [
        b"".join(map(lenenc, (b"def", b"", b"", b"", name.encode(), b""))) + b"\x0c" + fixed
        for name in columns
    ]
    values = [b"".join(b"\xfb" if v is None else lenenc(v.encode()) for v in row) for row in rows]
    return [bytes([len(columns)]), *shown, _EOF, *values, _EOF]
