"""How this program's children are started: mysqlbinlog, and the client of a recovery's target.

Place in the flow: `mysqlbinlog` streams through such a child, `recover.decoder` and
`recover.client` use two more.

Law: a child never outlives the process that started it (the kernel kills it: PR_SET_PDEATHSIG), a
password reaches it through an anonymous file in memory (never argv, environment or disk), and its
environment holds no keys.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.server.login import Login, render_options

# Run before the program, in the same process: dies with the parent, from the first moment on.
_LAUNCH = """\
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) or os.getppid() != int(sys.argv[1]):
    sys.exit("ERROR: the parent is gone")
os.umask(0o077)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"ERROR: cannot run {sys.argv[2]}: {error.strerror}")
"""


# The kernel ends a child with the *thread* that made it: this one lives as long as the process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


def spawn(
    arguments: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    descriptors: Sequence[int] = (),
    own_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program that dies with this process; OSError if it cannot be tried at all.

    It inherits `descriptors`. In a session of its own, Ctrl-C reaches only us, and it is ended with
    all that it started itself.
    """
    return _starter.submit(
        subprocess.Popen,
        [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(descriptors),
        env=environment(),
        start_new_session=own_session,
    ).result()


@contextmanager
def option_file(text: str) -> Iterator[int]:
    """A descriptor of an anonymous file in memory with this text; only this user can open it."""
    descriptor = os.memfd_create("options", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)  # MySQL's programs ignore a world-writable option file
        os.write(descriptor, text.encode())
        yield descriptor
    finally:
        os.close(descriptor)


def ask(path: str) -> tuple[str, str]:
    """What a client program prints for --version and --help.

    Raises OSError and subprocess.TimeoutExpired, for whoever knows what it should be.
    """

    def printed(option: str) -> str:
        return subprocess.run(
            [path, "--no-defaults", option],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
            env=environment(),
            stdin=subprocess.DEVNULL,
        ).stdout

    return printed("--version"), printed("--help")


def environment() -> dict[str, str]:
    """What a child may know: where programs and libraries are; no keys, no settings of ours."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "TZ": "UTC",
        "LC_ALL": "C",
    }


def client_options(login: Login, flavour: Flavour, *, all_or_nothing: bool = False) -> str:
    """A child's option file; TLS means what it means to `server`, mode by mode.

    One thing cannot be said to MariaDB's client: that TLS is required, and the name not checked. It
    goes on without TLS where the server offers none; `server` has refused such a one before. And
    from 11.4 on (`all_or_nothing`) it checks the name for VERIFY_CA as well, rather than nothing.
    """
    options: dict[str, str | int | None] = {"user": login.user, "password": login.password}
    if login.socket:
        options["socket"] = login.socket
    else:
        options.update(host=login.host, port=login.port, protocol="TCP")
    verify = login.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY")
    if login.ssl_mode != "DISABLED":
        options.update({"ssl-cert": login.ssl_cert, "ssl-key": login.ssl_key})
    if verify:  # MariaDB's client takes a CA for the wish to verify
        options["ssl-ca"] = login.ssl_ca
    if flavour == "mysql":
        options["ssl-mode"] = login.ssl_mode
        key = login.ssl_mode in ("DISABLED", "PREFERRED")
        return render_options(options) + ("get-server-public-key\n" if key else "")
    if login.ssl_mode == "DISABLED" or (login.ssl_mode == "PREFERRED" and login.socket):
        return render_options(options) + "skip-ssl\n"
    name = login.ssl_mode == "VERIFY_IDENTITY" or (verify and all_or_nothing)
    return render_options(options) + f"ssl\n{'' if name else 'skip-'}ssl-verify-server-cert\n"
