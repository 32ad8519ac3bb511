"""What a failed question to a server means: pymysql's errors become a SourceError with a hint.

Every error says what to do, with the names of the options of this server.
"""

import os
import re
import ssl
import struct
from collections.abc import Mapping

import pymysql

from binlog2s3.errors import SourceError, UnloggedError
from binlog2s3.server.login import Login

_TLS = "check --mysql-ssl-mode and --mysql-ssl-ca against the server's certificate"
_ACCOUNT = (
    "check --mysql-user, the password file and the account's host part; an account with "
    "REQUIRE SSL or X509 also answers this to a connection without TLS or client certificate"
)
_CUT = "the server or something in between closed the connection; is the server restarting?"
NO_LOG = "set log_bin in the server's configuration and restart it"
LOG_CLOSED = (
    "log_bin is on, but the server could not write or rotate its binlog and goes on without: see "
    "its error log and its disk, restart the server at once, and take a new base backup: what it "
    "commits until then is in no binlog"
)
IN_ENGINE = (
    "remove binlog_storage_engine from the server's configuration and restart it: then it writes "
    "binlogs as files again; then take a new base backup, because what it commits until then is in "
    "no archive"
)
# https://dev.mysql.com/doc/mysql-errors/9.7/en/server-error-reference.html
_HINTS: Mapping[int, str] = {
    1040: "raise max_connections on the server, or close idle clients",
    1044: "check the user's grants",
    1045: _ACCOUNT,
    1053: "the server is shutting down",
    1129: "the server blocked this host after too many failed connections: run FLUSH HOSTS or "
    "mysqladmin flush-hosts on it",
    1130: "create an account that may connect from this host",
    1203: "the user has reached max_user_connections",
    1226: "the user has reached one of its limits (SHOW CREATE USER shows them)",
    1236: "it was purged meanwhile, or the server cannot read it: see SHOW BINARY LOGS",
    1820: "change the account's password: it has expired",
    1862: "change the account's password: it has expired",
    2002: "check that the server runs, and the path of the socket; for one that is reached by "
    "its port alone (in a container, while the socket is of another) pass --mysql-host 127.0.0.1",
    2003: "check that the server is running, and host, port and firewall",
    2006: _CUT,
    2013: _CUT,
    2026: _TLS,
    2061: "use another authentication plugin for the account: caching_sha2_password or "
    "mysql_native_password; a plugin that gets the password in clear text (PAM, LDAP) needs "
    "--mysql-ssl-mode VERIFY_IDENTITY with --mysql-ssl-ca, or --mysql-socket",
    3032: "the server is in offline mode and accepts only administrators: SET GLOBAL "
    "offline_mode = OFF",
    3118: "unlock the account: ALTER USER ... ACCOUNT UNLOCK",
    3159: "the server requires TLS: use --mysql-ssl-mode VERIFY_CA with --mysql-ssl-ca (PREFERRED "
    "will do for a server on this host)",
    4151: "unlock the account: ALTER USER ... ACCOUNT UNLOCK",
}
_NO_BINLOG = 1381
_LOCKED = frozenset({1205, 1213})  # waited too long, or a deadlock
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})  # database, table, column, any, routine
_NO_TLS = (
    "set up TLS on the server, or accept that others can read the data: --mysql-ssl-mode DISABLED, "
    "for a MySQL on another host with --mysql-server-public-key; a MariaDB there has no such key: "
    "accept by --mysql-accept-unverified-server, too, that another server can get the password"
)
_TRANSIENT = frozenset({1040, 1053, 1203, 1205, 1226, 2002, 2003, 2006, 2013, 2014, 2055})
# What pymysql raises: its own errors, unusable TLS files (OSError), a missing package
# (RuntimeError), and other errors if what answers is not a MySQL server.
FOREIGN = (pymysql.MySQLError, OSError, RuntimeError, ValueError, LookupError, struct.error)


def privilege_error(privileges: str, login: Login) -> SourceError:
    """The error for a user without these privileges."""
    return SourceError(
        f"user {login.user!r} at {login.address} is missing the privilege {privileges}",
        hint=f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {login.user}@... on the "
        "server (SELECT CURRENT_USER() shows the whole account name)",
        needs_privilege=True,
    )


def translate(error: Exception, login: Login, what: str = "") -> SourceError:
    """The error for what pymysql raised. `what` was asked for, unless that goes without saying."""
    translated = _translated(error, login, f", asked for {what}" if what else "")
    translated.hint = login.advised(translated.hint)
    return translated


def _translated(error: Exception, login: Login, doing: str) -> SourceError:
    where = f"mysql at {login.address}{doing}"
    if not isinstance(error, pymysql.MySQLError):
        return _without_answer(error, where)
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1] if code and len(error.args) > 1 else error)
    if code == 1227 and (match := re.search(r"at least one of\)? the (.+?) privilege", text)):
        return privilege_error(_named(match[1]), login)
    if code == 2013 and "timed out" in text:
        return SourceError(
            f"{where}: no answer within {login.connect_timeout:g} s (2013)",
            hint="it accepts connections but does not answer: check whether the server hangs, or "
            "something else listens there; --mysql-connect-timeout sets how long to wait",
            transient=True,
        )
    if "Packet sequence number" in text:
        return _without_answer(error, where)
    if isinstance(getattr(error, "original_exception", None), ssl.SSLError):
        code = 2026
    if code == 1524 or "Authentication plugin" in text:
        code = 2061
    if code == _NO_BINLOG:
        return UnloggedError(f"{where} writes no binlog: {text} ({code})", hint=LOG_CLOSED)
    hint = _HINTS.get(code, "")
    if code == 2026 and "doesn't support" in text:
        hint = _NO_TLS
    if code == 1045 and os.environ.get("CREDENTIALS_DIRECTORY"):  # systemd.exec(5)
        hint += "; systemd passes the password file as it was at the start: restart after a change"
    if code == 1045 and login.public_key:
        hint += "; or --mysql-server-public-key is not the key of this server"
    if code == 1045 and login.socket:
        hint += "; an account that may only come from 127.0.0.1 needs --mysql-host 127.0.0.1"
    if code == 1045 and login.doubt:
        hint = f"{login.doubt}; check whether that is intended; {hint}"
    return SourceError(
        f"{where}: {text}" + (f" ({code})" if code else ""),
        hint=hint,
        transient=code in _TRANSIENT,
        answered=1000 <= code < 2000 or code >= 3000 or "refused" in text.lower(),
        needs_privilege=code in _DENIED,
        locked=code in _LOCKED,
    )


def _without_answer(error: Exception, where: str) -> SourceError:
    """The error for a failure before any answer of a server."""
    if isinstance(error, ssl.SSLError | OSError):
        return SourceError(
            f"{where}: cannot use the TLS files: {error}",
            hint="--mysql-ssl-ca, --mysql-ssl-cert and --mysql-ssl-key must be PEM files; the key "
            "must match the certificate and must not be encrypted",
        )
    if isinstance(error, RuntimeError):
        return SourceError(f"{where}: {error}", hint="pip install 'pymysql[rsa]'")
    return SourceError(
        f"{where}: the answer is not MySQL's protocol ({error})",
        hint="check --mysql-host and --mysql-port: usually 3306, not 33060 (the X protocol)",
    )


def _named(privileges: str) -> str:
    """Those of the sufficient privileges that a streamer should have, under both their names."""
    wanted = [name for name in privileges.split(", ") if name != "SUPER"] or [privileges]
    return ", ".join(wanted).replace("BINLOG MONITOR", "BINLOG MONITOR (REPLICATION CLIENT)")
