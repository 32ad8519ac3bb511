"""How to log in to a server: options, option file and password file, merged.

A `Login` is made for each connection, so that the next connection uses a password that was changed
on disk.

Law: the password is only in `Login.password`, which no repr shows. There is no login to a server on
another host that has not shown that it is the right one before it gets the password, unless the
operator accepts that. The configuration decides this: the server's plugin, and what it has cached,
may change at any time. The syntax of option files is the manual's:
https://dev.mysql.com/doc/refman/9.7/en/option-files.html
"""

import re
import socket as sockets
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from binlog2s3.config.stream import SSL_MODES, WITHOUT_TLS, MysqlConfig, Prefix
from binlog2s3.errors import SourceError
from binlog2s3.server.password_command import password_of

_GROUPS = ("client", "binlog2s3")
_PUBLIC_KEY = "server-public-key-path"
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "\\": "\\", "s": " ", '"': '"', "'": "'"}
_UNESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPACES = " \t\n\v\f\r"  # isspace() in C; a password may end in another kind of space


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a client needs to connect; if `socket` is set, host and port do not matter."""

    host: str
    port: int
    socket: str | None
    user: str
    password: str = field(repr=False)
    ssl_mode: str
    ssl_ca: str | None
    ssl_cert: str | None
    ssl_key: str | None
    public_key: str | None = None
    """The server's RSA key (PEM), that of a file and not that which a server sends."""
    accepted: bool = False
    """The operator accepts that nothing proves which server answers."""
    connect_timeout: float
    prefix: Prefix = "mysql"
    doubt: str = ""
    """What looks wrong with the password, without quoting it; "" if nothing does."""

    @property
    def address(self) -> str:
        """The socket or host:port, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.socket or f"{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether the connection stays on this host: a socket, or a loopback address."""
        return bool(self.socket) or is_loopback(self.host)

    @property
    def proved(self) -> bool:
        """Whether it is certain that the right server gets what is sent."""
        return bool(self.socket) or self.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY")

    @property
    def guarded(self) -> bool:
        """Whether no other server can get the password: it is `proved`, or has no use for it."""
        return self.proved or self.public_key is not None

    def advised(self, hint: str) -> str:
        """A hint about --mysql-... options, with the names of the options of this server."""
        return _advised(hint, self.prefix)


def resolve(config: MysqlConfig) -> Login:
    """Merge options, the password file and the option file; options win.

    Without an option, the option file's ssl-mode applies; the default is REQUIRED, on this host
    PREFERRED, and DISABLED through a socket that is given. Raises SourceError if a file cannot be
    read or contradicts itself, and if another server could get the password from another host.
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


CHMOD = "only this program's user should be able to read the file: chmod 600"


def readable_by_others(config: MysqlConfig) -> list[Path]:
    """The files with the password that every user of this host can read."""
    readable = []
    for path in (config.password_file, config.defaults_file):
        try:
            if path is not None and path.stat().st_mode & 0o004:
                readable.append(path)
        except OSError:  # who reads it says why it cannot be read
            continue
    return readable


def addresses_of(host: str) -> frozenset[str]:
    """The addresses to which a host name leads now, or the address that is given.

    Empty if the resolver does not answer, or knows no such name. May take as long as the resolver
    tries, which may be a minute.
    """
    try:
        entries = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(address[0]) for *_, address in entries)


def _advised(hint: str, prefix: Prefix) -> str:
    return hint.replace("--mysql-", f"--{prefix}-")


def _resolve(config: MysqlConfig) -> Login:
    options = _read_options(config.defaults_file) if config.defaults_file else {}
    if config.password_command:
        password = password_of(config.password_command, timeout_seconds=config.connect_timeout)
    elif config.password_file:
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
    given = config.socket or (None if by_address else options.get("socket"))
    socket = given or (None if by_address else _here(config, options))
    host = config.host or options.get("host")
    if config.prefix == "target" and not socket and not host:  # a target has no default
        raise SourceError(
            f"no target: neither an option nor {config.defaults_file} names its host",
            hint="give --mysql-host or --mysql-socket",
        )
    host = host or "127.0.0.1"
    certificate = _path(config.ssl_cert, options.get("ssl-cert"))
    login = Login(
        host=host,
        port=config.port or _port(options.get("port", "3306"), config.defaults_file),
        socket=str(socket) if socket else None,
        user=user,
        password=password,
        ssl_mode=_ssl_mode(
            config,
            options,
            is_plain=bool(given) and certificate is None,
            local=bool(socket) or is_loopback(host),
        ),
        ssl_ca=_path(config.ssl_ca, options.get("ssl-ca")),
        ssl_cert=certificate,
        ssl_key=_path(config.ssl_key, options.get("ssl-key")),
        public_key=_public_key(_path(config.server_public_key, options.get(_PUBLIC_KEY))),
        accepted=config.accept_unverified_server,
        connect_timeout=config.connect_timeout,
        prefix=config.prefix,
        doubt=_doubt(config.password_file, password),
    )
    if login.ssl_mode.startswith("VERIFY") and not login.ssl_ca:
        raise SourceError(
            f"{config.defaults_file}: ssl-mode {login.ssl_mode} without ssl-ca",
            hint="give the authorities that signed the server's certificate: --mysql-ssl-ca",
        )
    if bool(login.ssl_cert) != bool(login.ssl_key):
        raise SourceError(
            f"{config.defaults_file}: ssl-cert and ssl-key need each other",
            hint="give both or neither, there or as --mysql-ssl-cert and --mysql-ssl-key",
        )
    if login.public_key and not login.socket and login.ssl_mode != "DISABLED":
        raise SourceError(
            f"the server's RSA key with ssl-mode {login.ssl_mode}: {WITHOUT_TLS}",
            hint="give --mysql-ssl-mode DISABLED, or no --mysql-server-public-key",
        )
    if not (login.local or login.guarded or login.accepted):
        raise _unproved(login)
    return login


def _here(config: MysqlConfig, options: Mapping[str, str]) -> Path | None:
    """The socket of this host's server, where nothing says another address, or wants TLS."""
    elsewhere = ("host", "port", "ssl-mode", "ssl-ca", "ssl-cert", _PUBLIC_KEY)
    wanted = (config.ssl_mode, config.ssl_ca, config.ssl_cert, config.server_public_key)
    if config.local_socket is None or any(name in options for name in elsewhere) or any(wanted):
        return None
    return config.local_socket.find()


def _unproved(login: Login) -> SourceError:
    """The refusal, with what would prove this server, and the option that accepts the risk."""
    return SourceError(
        f"nothing proves which server answers at {login.address} (ssl-mode {login.ssl_mode}): "
        f"another one in its place, or on the way, could get the password of {login.user!r}",
        hint=f"{how_to_prove(login)}; or accept this risk: --mysql-accept-unverified-server",
        refused=True,
    )


def how_to_prove(login: Login) -> str:
    """What to do so that only the right server gets the password, as a hint."""
    if login.host == sockets.gethostname():
        return "that is this host: pass --mysql-socket FILE instead of --mysql-host"
    if login.ssl_ca:
        return f"verify it by {login.ssl_ca}: --mysql-ssl-mode VERIFY_CA"
    names = "SELECT @@datadir, @@ssl_ca names"
    by_tls = f"copy the file that {names} there, and pass --mysql-ssl-ca FILE"
    if login.ssl_mode != "DISABLED":
        return by_tls
    return (
        "copy public_key.pem from the datadir of that MySQL, and pass --mysql-server-public-key "
        f"FILE; or with TLS: {by_tls}, without --mysql-ssl-mode"
    )


def _public_key(path: str | None) -> str | None:
    """The RSA key of this file. Raises SourceError: without one, a client takes what it is sent."""
    if path is None:
        return None
    try:
        key = serialization.load_pem_public_key(_read_text(Path(path)).encode())
    except ValueError:
        key = None
    if not isinstance(key, RSAPublicKey):
        raise SourceError(
            f"{path} has no public RSA key (PEM)",
            hint="--mysql-server-public-key is for a copy of the server's public_key.pem, "
            "or for the key that SHOW STATUS LIKE 'Caching_sha2_password_rsa_public_key' shows",
        )
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def _ssl_mode(
    config: MysqlConfig, options: Mapping[str, str], *, is_plain: bool, local: bool
) -> str:
    """The mode, without which `is_plain` means no TLS, and `local` TLS where it is offered."""
    if config.ssl_mode is not None:
        return config.ssl_mode
    if "ssl-mode" not in options:
        if config.ssl_ca or "ssl-ca" in options:
            return "VERIFY_CA"
        if is_plain:
            return "DISABLED"
        return "PREFERRED" if local else "REQUIRED"
    mode = options["ssl-mode"].upper()
    if mode not in SSL_MODES:
        raise SourceError(
            f"{config.defaults_file}: unknown ssl-mode {options['ssl-mode']!r}",
            hint=f"use one of {', '.join(SSL_MODES)}",
        )
    return mode


def _path(given: Path | None, option: str | None) -> str | None:
    return str(given) if given else option


def _port(text: str, path: Path | None) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise SourceError(f"{path}: invalid port {text!r}", hint="use a number from 1 to 65535")
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
            hint="a password file contains the password and nothing else; "
            "give an option file with --mysql-defaults-file",
        )
    return text


def _doubt(path: Path | None, password: str) -> str:
    """A warning about whitespace at an end of the password in a password file."""
    if path is None or password == password.strip():
        return ""
    where = "ends in" if password != password.rstrip() else "begins with"
    return f"the password in {path} {where} whitespace, which is part of it"


def _read_options(path: Path) -> Mapping[str, str]:
    return parse_options(_read_text(path), str(path))


def parse_options(text: str, name: str) -> dict[str, str]:
    """The options of the groups [client] and [binlog2s3] of a MySQL option file; the latter wins.

    Names have dashes. Raises SourceError for a line with a syntax error. `name` is the file's, for
    messages; they never quote a line, because it may contain the password.
    """
    groups: dict[str, dict[str, str]] = {group: {} for group in _GROUPS}
    current: dict[str, str] | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(_SPACES)
        if not line or line[0] in "#;":
            continue
        if line.startswith("!"):
            raise SourceError(
                f"{name}, line {number}: !include and !includedir are not supported",
                hint="give the file that contains the [client] group",
            )
        if line.startswith("["):
            current = groups.get(line[1:].partition("]")[0].strip().lower())
            continue
        if current is None:
            continue
        key, equals, value = _without_comment(line).partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_ .-]+", key.strip()):
            raise SourceError(f"{name}, line {number}: not an option", hint="write name = value")
        if equals:
            current[key.strip().lower().replace("_", "-")] = _unquote(value.strip(_SPACES))
    return groups["client"] | groups["binlog2s3"]


def _without_comment(line: str) -> str:
    """The line up to the first # outside quotes. As in MySQL, a quote may open anywhere."""
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
    """An option file's [client] group for a child; values are quoted, None is omitted."""
    lines = ["[client]"]
    for key, value in options.items():
        if value is not None:
            escaped = "".join(_UNESCAPES.get(letter, letter) for letter in str(value))
            lines.append(f'{key}="{escaped}"')
    return "\n".join(lines) + "\n"
