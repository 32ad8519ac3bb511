"""How to log in to a server: what the operator gave, an option file and a password file, merged.

Place in the flow: `config.values` holds paths and names, this module turns them into a `Login` each
time a connection is made, so that a password changed on disk is used from the next connection on;
`connection` hands it to pymysql and `mysqlbinlog` renders it as an option file for the child.

Law: the password lives in `Login.password` alone, which no repr shows. The option file's language
is the manual's: https://dev.mysql.com/doc/refman/9.7/en/option-files.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from binlog2s3.config.values import SSL_MODES, MysqlConfig, Prefix
from binlog2s3.errors import SourceError

_GROUPS = ("client", "binlog2s3")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}
_UNESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPACES = " \t\n\v\f\r"  # what C calls space; a password may well end in another one


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
    prefix: Prefix = "mysql"
    doubt: str = ""
    """What looks wrong with the password, which is not quoted; "" if nothing does."""

    @property
    def address(self) -> str:
        """Where, for messages."""
        return self.socket or f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether the way there does not leave this host: a socket, or a loopback address."""
        return bool(self.socket) or is_loopback(self.host)

    @property
    def proved(self) -> bool:
        """Whether it is sure that it is the server that gets the password."""
        return bool(self.socket) or self.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY")

    def advised(self, hint: str) -> str:
        """A hint that speaks of --mysql-..., with the options that this server is given by."""
        return _advised(hint, self.prefix)


def resolve(config: MysqlConfig) -> Login:
    """Merge options, the password file and the option file; options win.

    The option file's ssl-mode counts where the option is not given; the default is REQUIRED, and
    PREFERRED on this host. Raises SourceError if a file cannot be read or says what cannot be
    meant.
    """
    try:
        return _resolve(config)
    except SourceError as error:
        error.hint = _advised(error.hint, config.prefix)
        raise


def is_loopback(host: str) -> bool:
    """Whether this is `localhost` or a loopback address. No name is looked up."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _advised(hint: str, prefix: Prefix) -> str:
    return hint.replace("--mysql-", f"--{prefix}-")


def _resolve(config: MysqlConfig) -> Login:
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
    host = config.host or options.get("host")
    if config.prefix == "target" and not socket and not host:  # never one that nobody named
        raise SourceError(
            f"no target: neither an option nor {config.defaults_file} names its host",
            hint="give --mysql-host or --mysql-socket",
        )
    host = host or "127.0.0.1"
    login = Login(
        host=host,
        port=config.port or _port(options.get("port", "3306"), config.defaults_file),
        socket=str(socket) if socket else None,
        user=user,
        password=password,
        ssl_mode=_ssl_mode(config, options, local=bool(socket) or is_loopback(host)),
        ssl_ca=_path(config.ssl_ca, options.get("ssl-ca")),
        ssl_cert=_path(config.ssl_cert, options.get("ssl-cert")),
        ssl_key=_path(config.ssl_key, options.get("ssl-key")),
        connect_timeout=config.connect_timeout,
        prefix=config.prefix,
        doubt=_doubt(config.password_file, password),
    )
    if login.ssl_mode.startswith("VERIFY") and not login.ssl_ca:
        raise SourceError(
            f"{config.defaults_file}: ssl-mode {login.ssl_mode} without ssl-ca",
            hint="name the authorities that signed the server's certificate: --mysql-ssl-ca",
        )
    if bool(login.ssl_cert) != bool(login.ssl_key):
        raise SourceError(
            f"{config.defaults_file}: ssl-cert and ssl-key go together",
            hint="give both or none, there or as --mysql-ssl-cert and --mysql-ssl-key",
        )
    return login


def _ssl_mode(config: MysqlConfig, options: Mapping[str, str], *, local: bool) -> str:
    if config.ssl_mode is not None:
        return config.ssl_mode
    if "ssl-mode" not in options:
        if config.ssl_ca or "ssl-ca" in options:
            return "VERIFY_CA"
        return "PREFERRED" if local else "REQUIRED"
    mode = options["ssl-mode"].upper()
    if mode not in SSL_MODES:
        raise SourceError(
            f"{config.defaults_file}: ssl-mode {options['ssl-mode']!r} is none",
            hint=f"one of {', '.join(SSL_MODES)}",
        )
    return mode


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


def _doubt(path: Path | None, password: str) -> str:
    """A blank at an end of a password in a file of its own, where nobody sees it."""
    if path is None or password == password.strip():
        return ""
    where = "ends in" if password != password.rstrip() else "begins with"
    return f"the password in {path} {where} a blank, which counts as a part of it"


def _read_options(path: Path) -> Mapping[str, str]:
    return parse_options(_read_text(path), str(path))


def parse_options(text: str, name: str) -> dict[str, str]:
    """The options of the groups [client] and [binlog2s3] of a MySQL option file, the later wins.

    Names come with dashes. Raises SourceError at a line that is none of the language's; `name` is
    the file's, for messages, which never quote a line: it may hold the password.
    """
    groups: dict[str, dict[str, str]] = {group: {} for group in _GROUPS}
    current: dict[str, str] | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(_SPACES)
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
        if current is None:
            continue
        key, equals, value = _without_comment(line).partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_ .-]+", key.strip()):
            raise SourceError(f"{name}, line {number}: not an option", hint="name = value")
        if equals:
            current[key.strip().lower().replace("_", "-")] = _unquote(value.strip(_SPACES))
    return groups["client"] | groups["binlog2s3"]


def _without_comment(line: str) -> str:
    """The line up to the first # outside of quotes; a quote opens anywhere, as MySQL has it."""
    quote, escaped = "", False
    for index, letter in enumerate(line):
        if letter in "'\"" and not escaped:
            quote = letter if not quote else "" if quote == letter else quote
        if letter == "#" and not quote:
            return line[:index]
        escaped = bool(quote) and letter == "\\" and not escaped
    return line


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]:
        value = value[1:-1]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), value)


def render_options(options: Mapping[str, str | int | None]) -> str:
    """An option file's [client] group for a child; values are quoted, None is left out."""
    lines = ["[client]"]
    for key, value in options.items():
        if value is not None:
            escaped = "".join(_UNESCAPES.get(letter, letter) for letter in str(value))
            lines.append(f'{key}="{escaped}"')
    return "\n".join(lines) + "\n"
