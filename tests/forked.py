"""A process that has imported the product, and forks for each command that is run to its end.

To import all that a command needs takes three quarters of its time, in thousands of commands. A
fork is a process of its own all the same: it has the arguments, environment, directory and outputs
that it was given, none of what another command left, and it ends as Python ends.

Law: only tests/command.py speaks to it. What Python reads before the first import is that of this
process, so a command that is given another one is started anew. The streamer, what is killed, and
tests/functional always are: they show that the command starts as users start it.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import boto3

import binlog2s3

STARTED_WITH = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "TMPDIR", "MALLOC_", "SSL_", "OPENSSL_")
"""Variables that a program or its libraries read when they are loaded."""
_REQUEST = 1 << 20


class Server:
    """The process, for one that runs commands; it ends with that one."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        self._environment = dict(os.environ)
        with theirs:
            argv = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork is the same as a start in this environment."""
        ours, theirs = (
            {name: value for name, value in one.items() if name.startswith(STARTED_WITH)}
            for one in (self._environment, environment)
        )
        return ours == theirs

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[bytes]":
        """`binlog2s3` with these arguments, to its end, and until nobody has its outputs open.

        Raises subprocess.TimeoutExpired; the command is killed then.
        """
        request = json.dumps([list(argv), dict(environment), str(Path.cwd())]).encode()
        with ExitStack() as stack:
            status, theirs = (
                stack.enter_context(one)
                for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            read, written = zip(os.pipe(), os.pipe(), strict=True)
            outputs = [stack.enter_context(os.fdopen(fd, "rb", buffering=0)) for fd in read]
            try:
                socket.send_fds(self._ours, [request], [*written, theirs.fileno()])
            finally:
                theirs.close()
                for fd in written:
                    os.close(fd)
            pid = int(status.recv(100))
            until = monotonic() + timeout
            data = {output.fileno(): b"" for output in outputs}
            wanted = select.poll()
            for fd in (*data, status.fileno()):
                wanted.register(fd, select.POLLIN)
            left, ended = {*data, status.fileno()}, 0
            while left:
                ready = wanted.poll(max(0.0, until - monotonic()) * 1000)
                if not ready:
                    os.kill(pid, signal.SIGKILL)
                    out, err = data.values()
                    raise subprocess.TimeoutExpired(argv, timeout, out, err)
                for fd, _ in ready:
                    if fd == status.fileno():
                        ended = int(status.recv(100))
                        piece = b""
                    else:
                        piece = os.read(fd, 1 << 16)
                        data[fd] += piece
                    if not piece:
                        wanted.unregister(fd)
                        left.remove(fd)
        out, err = data.values()
        return subprocess.CompletedProcess(argv, ended, out, err)

    def close(self) -> None:
        """End the process; commands that still run are left alone, as a shell leaves them."""
        self._ours.close()
        self._process.wait()


def _become(argv: list[str], environment: dict[str, str], directory: str, fds: list[int]) -> None:
    """Be as one that was just started so."""
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, *fds[:2])):
        os.dup2(fd, number)
        os.close(fd)
    os.close(fds[2])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = ["binlog2s3", *argv]


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for each request. In a fork: its arguments; here None, when nobody is left to ask."""
    running: dict[int, tuple[int, int]] = {}  # by the descriptor that tells its end: pid, answer
    wanted = select.poll()
    wanted.register(control, select.POLLIN)
    while True:
        for fd, _ in wanted.poll():
            if fd in running:
                pid, answer = running.pop(fd)
                wanted.unregister(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(answer, code)
                os.close(answer)
                os.close(fd)
                continue
            request, fds, _, _ = socket.recv_fds(control, _REQUEST, 3)
            if not request:
                return None
            argv, environment, directory = json.loads(request)
            pid = os.fork()
            if pid == 0:
                control.close()
                for ends, (_, answer) in running.items():
                    os.close(ends)
                    os.close(answer)
                _become(argv, environment, directory, fds)
                return list(argv)
            os.close(fds[0])
            os.close(fds[1])
            _tell(fds[2], pid)
            ends = os.pidfd_open(pid)
            running[ends] = pid, fds[2]
            wanted.register(ends, select.POLLIN)


def _tell(answer: int, number: int) -> None:
    """To one that may have lost its patience."""
    try:
        os.write(answer, str(number).encode())
    except BrokenPipeError:
        return


def _import_all() -> None:
    """The product's modules, and what botocore imports with the first client."""
    for module in pkgutil.walk_packages(binlog2s3.__path__, "binlog2s3."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    boto3.session.Session("x", "x", region_name="us-east-1").client("s3").close()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    control_of_ours = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    if _serve(control_of_ours) is not None:
        runpy.run_module("binlog2s3", run_name="__main__", alter_sys=True)
