"""The streaming child: `mysqlbinlog --read-from-remote-server --raw --stop-never`.

The child writes the server's binlogs under their own names into a directory of its run. Another one
prints a binlog that it is given (`printed`).

Law: the child never outlives the process that started it (the kernel kills it: PR_SET_PDEATHSIG).
Its standard error is always read. It gets the password through an anonymous file in memory, never
through argv, the environment or the disk. Its environment has no keys.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.rows import LINE_MOST, Line
from binlog2s3.config.stream import Config
from binlog2s3.errors import SourceError, SpoolError
from binlog2s3.server.child import said_by, start
from binlog2s3.server.login import Login, render_options

_NAMES: dict[Flavour, tuple[str, ...]] = {
    "mysql": ("mysqlbinlog",),
    "mariadb": ("mariadb-binlog", "mysqlbinlog"),
}
_INSTALL: dict[Flavour, str] = {
    "mysql": "install MySQL's client programs (mysqlbinlog 8.0 or later; packages mysql-client, "
    "mysql-community-client or mysql-client-core) or give its path with --mysqlbinlog",
    "mariadb": "install MariaDB's client programs (package mariadb-client) "
    "or give the path of mariadb-binlog with --mysqlbinlog",
}
_MODERN = "give mysqlbinlog 8.0 or later, or mariadb-binlog, with --mysqlbinlog"
_TITLE = {"mysql": "MySQL", "mariadb": "MariaDB"}
_MAX_START_POSITION = 1 << 32
_SAFE_PLUGINS: dict[Flavour, tuple[str, ...]] = {
    "mysql": ("mysql_native_password.so",),  # built in before 9
    "mariadb": ("client_ed25519.so", "parsec.so", "auth_gssapi_client.so"),
}
"""Plugins that prove the knowledge of the password without sending it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """An installed mysqlbinlog. `version` as it prints it.

    `all_or_nothing`: it is MariaDB's 11.4 or later, which verifies authority and host name together
    or neither. `plugins`: its authentication plugins that never send the password itself.
    """

    path: str
    flavour: Flavour
    version: str
    connection_server_id: bool
    all_or_nothing: bool = False
    plugins: tuple[Path, ...] = ()


def find(flavour: Flavour, given: Path | None = None) -> Tool:
    """The mysqlbinlog for a server of this flavour: the given one, else the first on PATH.

    MySQL's refuses a MariaDB server, and vice versa. Raises SourceError if there is none, or only
    the other flavour's.
    """
    if given is not None:
        path = str(shutil.which(given) or shutil.which(given.absolute()) or "")
        if not path:
            raise SourceError(f"{given} is not an executable program", hint=_INSTALL[flavour])
        tool = _ask(path)
        if tool.flavour != flavour:
            raise _wrong(tool, flavour)
        return tool
    other: Tool | None = None
    for name in _NAMES[flavour]:
        if path := shutil.which(name) or "":
            tool = _ask(path)
            if tool.flavour == flavour:
                return tool
            other = tool
    if other is not None:
        raise _wrong(other, flavour)
    raise SourceError(
        f"no {' or '.join(_NAMES[flavour])} on PATH, for a {_TITLE[flavour]} server",
        hint=_INSTALL[flavour],
    )


def _wrong(tool: Tool, flavour: Flavour) -> SourceError:
    return SourceError(
        f"{tool.path} is of {_TITLE[tool.flavour]}, but the server is {_TITLE[flavour]}: "
        "they are not compatible",
        hint=_INSTALL[flavour],
    )


def _ask(path: str) -> Tool:
    hint = "check that it is mysqlbinlog"
    version, help_ = (said_by(path, option, hint).stdout for option in ("--version", "--help"))
    # "mysqlbinlog  Ver 9.7.4 for ...", MariaDB 11: "mariadb-binlog from 11.8.6-MariaDB, client 3.5"
    match = re.search(r"\b(?:Ver|from) ([\w.+~-]+)", version)
    if match is None or "--stop-never" not in help_:
        raise SourceError(
            f"{path} is not a mysqlbinlog that can stream (it has no --stop-never)", hint=_MODERN
        )
    flavour: Flavour = "mariadb" if "MariaDB" in version + help_ else "mysql"
    number = match[1]
    if flavour == "mysql" and number.startswith("3."):  # 5.6 and 5.7 say 3.4
        raise SourceError(
            f"{path} is of MySQL 5.7 or earlier (its version is {number}), which may keep "
            "events in memory",
            hint=_MODERN + "; it can stream from older servers",
        )
    return Tool(
        path=path,
        flavour=flavour,
        version=number,
        connection_server_id="--connection-server-id" in help_,
        all_or_nothing="--ssl-fp" in help_,
        plugins=safe_plugins(path, flavour),
    )


def safe_plugins(program: str, flavour: Flavour) -> tuple[Path, ...]:
    """Those of `_SAFE_PLUGINS` that are installed with this program."""
    installed = Path(program).resolve().parent.parent
    folders = ("lib*/plugin", "lib*/*/plugin", "lib*/*/*/plugin")
    plugins = {path.name: path for folder in folders for path in installed.glob(f"{folder}/*.so")}
    return tuple(plugins[name] for name in _SAFE_PLUGINS[flavour] if name in plugins)


def refuse_unguarded(tool: Tool, login: Login) -> None:
    """Raise SourceError if this program does not guard a password as the login means it to.

    Before 11.4 MariaDB's client continues without TLS if the server offers none, unless it checks
    the name: it answers a challenge then, and reads what it is sent.
    """
    if tool.flavour == "mysql" or login.local or login.accepted:
        return
    if login.public_key:
        raise SourceError(
            f"{tool.path} cannot use an RSA key: MariaDB's servers have none",
            hint="verify its certificate: --mysql-ssl-ca instead of --mysql-server-public-key; "
            "without TLS nothing proves which MariaDB answers: set up TLS there, or accept this "
            "risk: --mysql-ssl-mode DISABLED --mysql-accept-unverified-server",
            refused=True,
        )
    if login.ssl_mode == "VERIFY_CA" and not tool.all_or_nothing:
        raise SourceError(
            f"{tool.path}, version {tool.version}, would read without TLS from a server in the "
            f"place of {login.address}: with VERIFY_CA it does not insist on TLS",
            hint=f"pass --mysql-ssl-mode VERIFY_IDENTITY, if the certificate has the name "
            f"{login.host}, or --mysqlbinlog of MariaDB 11.4 or later; or accept this risk: "
            "--mysql-accept-unverified-server",
            refused=True,
        )


def server_id_of(config: Config, host: str | None = None) -> int:
    """The server id of the stream on this host: the configured one, or the same at every start.

    With the same id, a restart evicts the half-open connection of the run before it. People rarely
    number their servers in the upper half of the 32-bit range.
    """
    if config.mysql.server_id:
        return config.mysql.server_id
    name = f"{config.stream.source} {config.target}@{host or socket.gethostname()}"
    return 0x8000_0000 | (zlib.crc32(name.encode()) & 0x7FFF_FFFF)


class Child:
    """One run of mysqlbinlog, from a position of a binlog on, without end.

    It writes into `directory`, which must be empty: mysqlbinlog truncates existing files. A
    subdirectory there may have links to authentication plugins. With `one_binlog` it reads only
    that binlog, up to its current end, and exits. `tls`: the connection for questions has it.
    """

    def __init__(
        self,
        tool: Tool,
        login: Login,
        *,
        server_id: int,
        directory: Path,
        binlog: BinlogName,
        position: int = 4,
        one_binlog: bool = False,
        tls: bool = False,
        on_line: Callable[[str], None],
    ) -> None:
        if not 4 <= position < _MAX_START_POSITION:
            raise ValueError(f"mysqlbinlog cannot start at {position}")
        refuse_unguarded(tool, login)
        if tls and login.socket and login.ssl_mode == "PREFERRED":
            login = replace(login, ssl_mode="REQUIRED")  # MySQL's client prefers none there
        plugins = plugins_for(tool, login, directory)
        with login_file(tool, login, plugins) as (descriptor, key):
            arguments = [
                tool.path,
                f"--defaults-file=/dev/fd/{descriptor}",  # must come first
                "--read-from-remote-server",
                "--raw",
                f"--result-file={directory}/",
            ]
            if not one_binlog:
                arguments += ["--stop-never", _server_id_option(tool, server_id)]
            if position > 4:
                arguments.append(f"--start-position={position}")
            arguments.append(str(binlog))
            self._process = start(
                arguments, descriptors=(descriptor, key), added=clear_text(tool, login)
            )
        self._errors = _Errors(self._process, on_line)

    @property
    def lines(self) -> deque[str]:
        """The last lines of its standard error."""
        return self._errors.lines

    @property
    def pid(self) -> int:
        """Process id of mysqlbinlog."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs; negative: ended by that signal."""
        return self._process.poll()

    def hold(self, *, held: bool) -> None:
        """Suspend or resume it; while it is suspended, the server waits."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)

    def stop(self, grace_seconds: float = 2.0) -> int:
        """Stop it (SIGTERM, then SIGKILL) and return its status. Its last event may be partial."""
        if self._process.poll() is None:
            self._process.terminate()
            self.hold(held=False)
            try:
                self._process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._errors.end(grace_seconds)
        return self._process.returncode

    def failure(self) -> SourceError | SpoolError:
        """Why it exited by itself, from its exit status and standard error."""
        self._errors.end(2.0)
        return explain(self._process.returncode, list(self.lines))


class _Errors:
    """Reads the standard error of a child; `lines` are the last ones."""

    def __init__(
        self, process: subprocess.Popen[bytes], on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        self.lines: deque[str] = deque(maxlen=50)
        assert process.stderr is not None  # noqa: S101 - PIPE was asked for
        self._drain = threading.Thread(
            target=self._read,
            args=(process.stderr, on_line),
            name="mysqlbinlog-stderr",
            daemon=True,
        )
        self._drain.start()

    def end(self, grace_seconds: float) -> None:
        """Wait for the last line."""
        self._drain.join(grace_seconds)

    def _read(self, pipe: IO[bytes], on_line: Callable[[str], None]) -> None:
        with pipe:
            for raw in pipe:
                if line := raw.decode("utf-8", "replace").strip():
                    self.lines.append(line)
                    on_line(line)


Feed = Callable[[Callable[[bytes], object]], None]
"""Called with what writes to mysqlbinlog's standard input."""


def printed(tool: Tool, feed: Feed) -> Generator[Line, None, None]:
    """The lines that mysqlbinlog prints of a binlog, with its rows, as they come.

    `feed` writes the binlog, in a thread of its own; its error is raised here, after the lines of
    what it has written. Close the generator to end mysqlbinlog early. Raises SourceError if
    mysqlbinlog cannot read the binlog.
    """
    process = start(
        [tool.path, "--no-defaults", "-v", "-v", "--base64-output=decode-rows", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    errors = _Errors(process)
    feeder = _Feeder(process, feed)
    assert process.stdout is not None  # noqa: S101 - PIPE was asked for
    try:
        with process.stdout as out:
            yield from _lines_of(out)
        status = process.wait()
        feeder.end()
    finally:
        process.kill()
        process.wait()
    if status:
        errors.end(2.0)
        why = explain(status, list(errors.lines))
        raise SourceError(
            str(why),
            hint=f"its version is {tool.version}: rows of a newer server need a newer one, "
            "--mysqlbinlog names it",
        )


class _Feeder:
    """Calls `feed` in a thread of its own. If mysqlbinlog has ended, nobody needs the rest."""

    def __init__(self, process: subprocess.Popen[bytes], feed: Feed) -> None:
        self._feed = feed
        assert process.stdin is not None  # noqa: S101 - PIPE was asked for
        self._pipe = process.stdin
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mysqlbinlog-stdin", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for it, and raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._pipe as pipe:
                self._feed(pipe.write)
        except BrokenPipeError:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised by `end`
            self._error = error


def _lines_of(out: IO[bytes]) -> Iterator[Line]:
    """Lines of any length, in bounded memory."""
    while data := out.readline(LINE_MOST):
        end, size, last = b"", len(data), data
        while not last.endswith(b"\n") and (last := out.readline(LINE_MOST)):
            end, size = (end + last)[-LINE_MOST:], size + len(last)
        yield Line(data, end, size)


def _server_id_option(tool: Tool, server_id: int) -> str:
    name = "connection-server-id" if tool.connection_server_id else "stop-never-slave-server-id"
    return f"--{name}={server_id}"


@contextmanager
def login_file(
    tool: Tool, login: Login, plugins: str | None, group: str = "client"
) -> Iterator[tuple[int, int]]:
    """The descriptors of an option file with the login, and of the file of the key that it names.

    `plugins`: the directory of the only plugins that the program may load; None: any. `group`: the
    group of option files that it reads.
    """
    with ExitStack() as files:
        key = files.enter_context(_memory_file("key", login.public_key or ""))
        options = _options(tool, login, plugins, f"/dev/fd/{key}")
        options = options.replace("[client]", f"[{group}]", 1)
        yield files.enter_context(_memory_file("options", options)), key


@contextmanager
def _memory_file(name: str, text: str) -> Iterator[int]:
    """The descriptor of an anonymous file in memory with this text; only this user can open it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)  # MySQL's programs ignore a world-writable option file
        os.write(descriptor, text.encode())
        yield descriptor
    finally:
        os.close(descriptor)


def clear_text(tool: Tool, login: Login) -> dict[str, str]:
    """Lets MySQL's client send the password in clear text (tokens of IAM) to a proved server."""
    sends = tool.flavour == "mysql" and login.proved
    return {"LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN": "1"} if sends else {}


def _checks_name(tool: Tool, login: Login) -> bool:
    """Whether MariaDB's client verifies the server, and insists on TLS for that."""
    return login.ssl_mode == "VERIFY_IDENTITY" or (
        login.ssl_mode == "VERIFY_CA" and tool.all_or_nothing
    )


def _is_limited(tool: Tool, login: Login) -> bool:
    """Whether the client may load safe plugins only.

    A client loads the plugin that a server names, and some send the password to any server
    (`dialog`, of MariaDB and Percona). MySQL's loads what it is used to where only its caller
    accepts the risk, not where a key is to keep the password from other servers.
    """
    if tool.flavour == "mysql":
        return login.public_key is not None
    return not login.socket and not _checks_name(tool, login)


def plugins_for(tool: Tool, login: Login, directory: Path) -> str | None:
    """A directory with only the tool's safe plugins; None if it may load any."""
    if not _is_limited(tool, login):
        return None
    if not tool.plugins:
        return os.devnull
    try:
        folder = directory / "plugins"
        folder.mkdir(mode=0o700)
        for plugin in tool.plugins:
            (folder / plugin.name).symlink_to(plugin)
    except OSError as error:
        raise SpoolError(f"cannot write {folder}: {error.strerror}") from error
    return str(folder)


def _options(tool: Tool, login: Login, plugins: str | None, key: str) -> str:
    """The child's option file. Each TLS mode means the same as in `connection`.

    `key`: the file with the login's public key. If MySQL's client could not read one there, it
    would take the key that a server sends.

    MariaDB's client has no way to require TLS without checking the name: it continues without TLS
    if the server offers none. `connection` has already refused such a server. From 11.4 on
    (`all_or_nothing`) the client checks the name for VERIFY_CA, too, because it can only check both
    or nothing.

    `plugins`: the directory of the only plugins that it may load. MySQL's client by itself refuses
    to send a password in clear text unless its environment allows it, see `clear_text`.
    """
    options: dict[str, str | int | None] = {
        "user": login.user,
        "password": login.password,
        "plugin-dir": plugins,
    }
    if login.socket:
        options["socket"] = login.socket
    else:
        options.update(host=login.host, port=login.port, protocol="TCP")
    verify = login.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY")
    if login.ssl_mode != "DISABLED":
        options.update({"ssl-cert": login.ssl_cert, "ssl-key": login.ssl_key})
    if verify:  # MariaDB's client verifies if a CA is given
        options["ssl-ca"] = login.ssl_ca
    if tool.flavour == "mysql":
        options["ssl-mode"] = login.ssl_mode
        if login.public_key:
            return render_options(options | {"server-public-key-path": key})
        asks = login.ssl_mode in ("DISABLED", "PREFERRED")
        return render_options(options) + ("get-server-public-key\n" if asks else "")
    name = _checks_name(tool, login)
    if login.ssl_mode == "DISABLED":
        return render_options(options) + "skip-ssl\n"
    return render_options(options) + f"ssl\n{'' if name else 'skip-'}ssl-verify-server-cert\n"


@dataclass(frozen=True, slots=True)
class _KnownError:
    """A pattern of mysqlbinlog's message, what to do about it, whether it may pass by itself.

    `of_spool`: it could not write there; the server is not to blame.
    """

    pattern: str
    hint: str
    transient: bool = False
    unservable: bool = False
    of_spool: bool = False


_AGAIN = "it is restarted where it stopped"
# The first match wins. Seen with MySQL 9.7 and MariaDB 10.11.
_KNOWN_ERRORS = (
    _KnownError(
        r"Cannot replicate anonymous transaction",
        "the server's binlogs have transactions without a GTID, and with gtid_mode = ON it sends "
        "none of these: SET GLOBAL gtid_mode = ON_PERMISSIVE there, until `binlog2s3 status` shows "
        "that all is durable; before that it must purge nothing",
        transient=True,
    ),
    _KnownError(
        r"Could not find first log file name",
        "the server does not have this binlog: it was purged, or the name is wrong; "
        "SHOW BINARY LOGS lists what it has",
    ),
    _KnownError(
        r"Access denied; you need.*REPLICATION SLAVE",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user of --mysql-user",
    ),
    _KnownError(
        r"Access denied",
        "check --mysql-user, the password file and the account's host part; an account with "
        "REQUIRE SSL or X509 also answers this to a connection without TLS or client certificate; "
        "so does a server of which --mysql-server-public-key is not the key",
    ),
    _KnownError(
        r"plugin 'mysql_native_password' cannot be loaded",
        "MySQL 9 does not know this plugin: ALTER USER ... IDENTIFIED WITH caching_sha2_password "
        "(5.7: sha256_password), or give --mysqlbinlog of MySQL 8",
    ),
    _KnownError(
        r"Plugin \S+ could not be loaded",
        "the account's authentication plugin sends the password in clear text, or is not "
        "installed: use --mysql-ssl-mode VERIFY_IDENTITY with --mysql-ssl-ca, or another plugin",
    ),
    _KnownError(
        r"requires secure connection|insecure transport",
        "allow TLS: --mysql-ssl-mode VERIFY_CA with --mysql-ssl-ca (PREFERRED will do for a server "
        "on this host)",
    ),
    _KnownError(
        r"same server_uuid/server_id|same server_id",
        "another streamer or replica uses the same server id: stop it, or give one of them "
        "another --mysql-server-id",
    ),
    _KnownError(
        r"unrecognized (MySQL|MariaDB) version",
        "name one of the server's own flavour, and not older, with --mysqlbinlog",
    ),
    _KnownError(
        r"unknown (variable|option)",
        "this mysqlbinlog does not have an option: give a newer one with --mysqlbinlog",
    ),
    _KnownError(
        r"\b(SSL|TLS)\b|certificate",
        "check --mysql-ssl-mode and --mysql-ssl-ca against the server's certificate (MariaDB's "
        "client from 11.4 on checks its name for VERIFY_CA, too)",
    ),
    _KnownError(
        r"Binary log is not open", "set log_bin in the server's configuration and restart it"
    ),
    _KnownError(
        r"could not find next log", "the server's binary logs were reset while they were being read"
    ),
    _KnownError(
        r"position > file size|impossible position|bogus data in log event|max_allowed_packet"
        r"|I/O error reading log event|truncated in the middle of event|did not pass crc|corrupt",
        "the server's binlog is not the one that was read before, or it is damaged",
        unservable=True,
    ),
    _KnownError(
        r"Could not write into log file|Can't create/write|Could not create log file",
        "is the spool's file system full? never delete run-* there: it may be the only copy",
        transient=True,
        of_spool=True,
    ),
    _KnownError(
        r"Too many connections|max_user_connections",
        "the server has reached a connection limit",
        transient=True,
    ),
    _KnownError(
        r"Can't connect to local (MySQL )?server through socket",
        "the server is down, or is reached by its port alone: --mysql-host 127.0.0.1",
        transient=True,
    ),
    _KnownError(
        r"Can't connect|Unknown MySQL server host",
        "the server or the network is down",
        transient=True,
    ),
    _KnownError(
        r"Lost connection|gone away",
        "the server closed the connection: it went down, KILL ended the dump, or the network "
        f"failed; {_AGAIN}",
        transient=True,
    ),
)


def explain(status: int | None, lines: list[str]) -> SourceError | SpoolError:
    """What mysqlbinlog's exit status and standard error mean; SpoolError if it could not write."""
    spoken = [line for line in lines if "WARNING" not in line.upper()[:40]]
    errors = [line for line in spoken if re.search(r"\berror\b", line, re.IGNORECASE)]
    text = errors[0] if errors else spoken[-1] if spoken else ""
    if not text:
        return _silent(status)
    text = text.removeprefix("ERROR: ")
    unknown = _KnownError("", _AGAIN, transient=True)
    matching = (error for error in _KNOWN_ERRORS if re.search(error.pattern, text, re.IGNORECASE))
    known = next(matching, unknown)
    message = f"mysqlbinlog ended: {text}"
    if known.of_spool:
        return SpoolError(message, hint=known.hint, transient=known.transient)
    return SourceError(
        message, hint=known.hint, transient=known.transient, unservable=known.unservable
    )


def _silent(status: int | None) -> SourceError:
    if status is not None and status < 0:
        return SourceError(
            f"mysqlbinlog was killed by signal {-status}",
            hint="someone killed it, or the kernel ran out of memory (see the kernel's log)",
            transient=True,
        )
    return SourceError(
        f"mysqlbinlog exited with status {status} and no error message",
        hint=f"this happens when the server shuts down; when it is up again, {_AGAIN}",
        transient=True,
    )
