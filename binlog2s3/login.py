"""How to log in to a server: what the operator gave, an option file and a password file, merged.

Place in the flow: `config` holds paths and names, this module turns them into a `Login` each time a
connection is made, so that a password changed on disk is used from the next connection on; `server`
hands it to pymysql and `mysqlbinlog` renders it as an option file for the child.

Law: the password lives in `Login.password` alone, which no repr shows. The option file's language
is the manual's: https://dev.mysql.com/doc/refman/9.7/en/option-files.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from binlog2s3.config import MysqlConfig
from binlog2s3.errors import SourceError

_GROUPS = ("client", "binlog2s3")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a client needs to connect; `socket`, where it is set, wins over host and port."""

    host: str
    port: int
    socket: str | None
    user: str
    password: str = field(repr=False)
    ssl_mode: str
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None
    connect_timeout: float

    @property
    def address(self) -> str:
        """Where, for messages."""
        return self.socket or f"{self.host}:{self.port}"


def resolve(config: MysqlConfig) -> Login:
    """Merge options, the password file and the option file; options win.

    Raises SourceError if a file cannot be read or says what cannot be meant.
    """
    options = _read_options(config.defaults_file) if config.defaults_file else {}
    if config.password_file:
        password = _read_password(config.password_file)
    else:
        password = options.get("password", "")
    user = config.user or options.get("user")
    if not user:
        raise SourceError(
            f"no user: neither an option nor {config.defaults_file} names one",
            hint="give --mysql-user",
        )
    by_address = config.host is not None or config.port is not None
    socket = config.socket or (None if by_address else options.get("socket"))
    return Login(
        host=config.host or options.get("host") or "127.0.0.1",
        port=config.port or _port(options.get("port", "3306"), config.defaults_file),
        socket=str(socket) if socket else None,
        user=user,
        password=password,
        ssl_mode=config.ssl_mode,
        ssl_ca=_path(config.ssl_ca, options.get("ssl-ca")),
        ssl_cert=_path(config.ssl_cert, options.get("ssl-cert")),
        ssl_key=_path(config.ssl_key, options.get("ssl-key")),
        connect_timeout=config.connect_timeout,
    )


def _path(given: Path | None, option: str | None) -> str | None:
    return str(given) if given else option


def _port(text: str, path: Path | None) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise SourceError(f"{path}: port {text!r} is no port", hint="a number from 1 to 65535")
    return int(text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            hint="check its owner and mode; only this program's user should be able to read it",
        ) from error


def _read_password(path: Path) -> str:
    text = _read_text(path).removesuffix("\n").removesuffix("\r")
    if "\n" in text or "\0" in text:
        raise SourceError(
            f"{path} has more than one line",
            hint="a password file holds the password and nothing else; "
            "an option file goes to --mysql-defaults-file",
        )
    return text


def _read_options(path: Path) -> Mapping[str, str]:
    return parse_options(_read_text(path), str(path))


def parse_options(text: str, name: str) -> dict[str, str]:
    """The options of the groups [client] and [binlog2s3] of a MySQL option file, the later wins.

    Names come with dashes. Raises SourceError at a line that is none of the language's; `name` is
    the file's, for messages, which never quote a line: it may hold the password.
    """
    groups: dict[str, dict[str, str]] = {group: {} for group in _GROUPS}
    current: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("!"):
            raise SourceError(
                f"{name}, line {number}: !include and !includedir are not followed",
                hint="give the file that has the [client] group itself",
            )
        if line.startswith("["):
            current = groups.get(line[1:].partition("]")[0].strip().lower())
            continue
        key, equals, value = line.partition("=")
        if current is None:
            continue
        if not re.fullmatch(r"[A-Za-z0-9_ .-]+", key.strip()):
            raise SourceError(f"{name}, line {number}: not an option", hint="name = value")
        if equals:
            current[key.strip().lower().replace("_", "-")] = _unquote(value.strip())
    return groups["client"] | groups["binlog2s3"]


def _unquote(value: str) -> str:
    if value[:1] in ("'", '"') and (end := _closing(value)):
        value = value[1:end]
    else:
        value = value.partition("#")[0].rstrip()
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), value)


def _closing(value: str) -> int:
    """Index of the quote that closes the one `value` begins with, 0 if there is none."""
    index = 1
    while index < len(value):
        if value[index] == "\\":
            index += 2
            continue
        if value[index] == value[0]:
            return index
        index += 1
    return 0


def render_options(options: Mapping[str, str | int | None]) -> str:
    """An option file's [client] group for a child; values are quoted, None is left out."""
    lines = ["[client]"]
    for key, value in options.items():
        if value is not None:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'{key}="{escaped}"')
    return "\n".join(lines) + "\n"
