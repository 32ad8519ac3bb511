"""The Debian package and the RPM, installed for real in clean systems, upgraded and removed.

Each system is a root directory of its own (`lab.debian`). Debian 11 stands for every distribution
whose Python and C library are too old, such as RHEL 8 and 9, of which none can be had from Debian's
mirror; the RPM is installed there by rpm itself.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from binlog2s3 import __version__
from binlog2s3.cli.commands import binlog2s3
from binlog2s3.config import file as sample
from lab import debian, package
from lab.cache import Unavailable
from lab.debian import System
from lab.disk import temporary_directory
from tests.conftest import _had, _missing

pytestmark = pytest.mark.deploy

LATER = f"{__version__}.post1"
# what packages are looked at with; none of it is needed by ours
TOOLS = ("bash-completion", "man-db", "rpm", "zsh", "fish")
SPOOLED = "/var/lib/binlog2s3/orders-primary/bytes"
EXAMPLE = "/etc/binlog2s3/example.toml"
OWN = "/etc/binlog2s3/orders-primary.toml"
COMMANDS = [name for name, one in binlog2s3.commands.items() if not one.hidden]
# Every module, with all that it imports lazily, and what those import lazily themselves.
IMPORTS = """
import importlib, pkgutil, ssl, sqlite3, ctypes, cryptography.hazmat.bindings._rust, binlog2s3
for module in pkgutil.walk_packages(binlog2s3.__path__, "binlog2s3."):
    if not module.name.endswith("__main__"): importlib.import_module(module.name)
"""


@dataclass(frozen=True, slots=True)
class Built:
    """The packages of this checkout, and of a later version whose example differs."""

    now: dict[str, Path]
    later: dict[str, Path]


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Both packages in both versions."""
    with temporary_directory() as stage, temporary_directory() as into:
        _had(lambda: package.fill(stage))
        now = _had(lambda: package.pack(stage, into, __version__))
        with (stage / "example.toml").open("a") as file:
            file.write("\n# of a later version\n")
        later = _had(lambda: package.pack(stage, into, LATER))
        kinds = package.KINDS
        yield Built(dict(zip(kinds, now, strict=True)), dict(zip(kinds, later, strict=True)))


@pytest.fixture(params=["bookworm", "bullseye"])
def root(request: pytest.FixtureRequest) -> Iterator[System]:
    """A fresh Debian 12, and 11."""
    yield from fresh(request.param)


@pytest.fixture
def old() -> Iterator[System]:
    """A fresh Debian 11."""
    yield from fresh("bullseye")


def fresh(suite: str) -> Iterator[System]:
    try:
        with debian.system(suite, TOOLS) as found:
            yield found
    except Unavailable as error:
        _missing(error, promised=True)


def said(system: System, *argv: str, **more: str) -> str:
    """What a program prints, which must succeed."""
    done = system.run(*argv, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


UNITS = {
    "binlog2s3.service": "stream",
    "binlog2s3@.service": "stream",
    "binlog2s3-serve@.service": "serve",
    "binlog2s3-drill@.service": "drill",
    "binlog2s3-backup@.service": "backup run",
    "binlog2s3-prune@.service": "prune",
}
SERVICES = "binlog2s3.service binlog2s3@*.service binlog2s3-serve@*.service"
RESTART = ["daemon-reload", f"try-restart {SERVICES}"]  # a drill is not begun again
TIMERS = ("drill", "backup", "prune")
TIMED = " ".join(f"binlog2s3-{n}@*.timer binlog2s3-{n}@*.service" for n in TIMERS)
STOP = [
    f"stop {SERVICES} {TIMED}",
    "disable binlog2s3@orders.service",
    "disable binlog2s3-drill@orders.timer",
    "daemon-reload",
]


def put(system: System, path: Path) -> str:
    """The package's name in the system, where it now is, too."""
    shutil.copy(path, system.path("/root"))
    return f"/root/{path.name}"


def used(system: System) -> None:
    """What an operator and a streamer leave behind."""
    for name, text in ((SPOOLED, "not in any bucket yet"), (OWN, "[stream]\n")):
        system.path(name).parent.mkdir(parents=True, exist_ok=True)
        system.path(name).write_text(text)
    with system.path(EXAMPLE).open("a") as file:
        file.write("# edited\n")


def kept(system: System) -> None:
    """All of that is still there."""
    assert system.path(SPOOLED).read_text() == "not in any bucket yet"
    assert system.path(OWN).read_text() == "[stream]\n"


def works(system: System) -> None:
    """The command starts, and what it prints of itself is what was installed beside it."""
    assert said(system, "binlog2s3", "--version") == f"binlog2s3, version {__version__}\n"
    assert "--flush-interval" in said(system, "binlog2s3", "stream", "-h")
    example = system.path(EXAMPLE).read_text()
    assert example.startswith(sample.example())
    show = ("config", "--show", "--config", EXAMPLE, "--mysql-password-file=/dev/null")
    assert "[s3]" in said(system, "binlog2s3", *show)
    for unit, command in UNITS.items():
        text = system.path(f"/usr/lib/systemd/system/{unit}").read_text()
        assert re.search(rf"^ExecStart=(/usr/bin/)?binlog2s3 {command} ", text, re.MULTILINE)
    for name in TIMERS:
        timer = system.path(f"/usr/lib/systemd/system/binlog2s3-{name}@.timer").read_text()
        assert "OnCalendar=" in timer
    inside = system.path("/usr/share/doc/binlog2s3/bundled.txt").read_text().splitlines()
    assert f"binlog2s3 {__version__}" in inside
    assert system.path("/usr/share/doc/binlog2s3/restart-254.conf").exists()


def with_systemd(system: System) -> None:
    """It looks as if systemd ran, with an instance that is enabled; what it is asked is noted."""
    system.path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
    wants = system.path("/etc/systemd/system/multi-user.target.wants")
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "binlog2s3@orders.service").symlink_to("/usr/lib/systemd/system/binlog2s3@.service")
    timers = system.path("/etc/systemd/system/timers.target.wants")
    timers.mkdir(parents=True, exist_ok=True)
    drill = "/usr/lib/systemd/system/binlog2s3-drill@.timer"
    (timers / "binlog2s3-drill@orders.timer").symlink_to(drill)
    system.path("/usr/bin/systemctl").unlink(missing_ok=True)
    system.path("/usr/bin/systemctl").write_text('#!/bin/sh\necho "$@" >> /root/asked\n')
    system.path("/usr/bin/systemctl").chmod(0o755)


def asked(system: System) -> list[str]:
    """What systemd was asked since this was called before."""
    note = system.path("/root/asked")
    lines = note.read_text().splitlines() if note.exists() else []
    note.write_text("")
    return lines


def gone(system: System) -> None:
    """Nothing of the program is left."""
    for path in ("/usr/bin/binlog2s3", "/usr/lib/binlog2s3", "/usr/share/doc/binlog2s3"):
        assert not system.path(path).exists(), path
    assert list(system.path("/usr/share/man").rglob("binlog2s3*")) == []
    assert list(system.path("/usr/lib/systemd/system").glob("binlog2s3*")) == []


def documented(system: System) -> None:
    """Every manual page renders, without a complaint."""
    for page in ("binlog2s3", *(f"binlog2s3-{name}" for name in COMMANDS)):
        done = system.run("man", "--warnings", page, MANWIDTH="80")
        assert (done.returncode, done.stderr) == (0, "")
        assert "SYNOPSIS" in done.stdout
    assert "--flush-interval" in said(system, "man", "binlog2s3-stream")


def completes(system: System) -> None:
    """A new bash, zsh and fish complete it, by the files that the package put there."""
    bash = (
        "source /usr/share/bash-completion/bash_completion; _completion_loader binlog2s3; "
        "COMP_WORDS=(binlog2s3 stre); COMP_CWORD=1; _binlog2s3_completion binlog2s3; "
        "echo ${COMPREPLY[@]}; complete -p binlog2s3"
    )
    found = said(system, "bash", "--norc", "-c", bash)
    assert found.splitlines()[0] == "stream"
    assert "_binlog2s3_completion" in found
    zsh = (
        "autoload -U compinit; compinit -u -D; print -r -- $_comps[binlog2s3]; "
        "autoload +X _binlog2s3 && print loaded; "
        "COMP_WORDS='binlog2s3 stre' COMP_CWORD=1 _BINLOG2S3_COMPLETE=zsh_complete binlog2s3"
    )
    folders = [
        path
        for path in ("/usr/share/zsh/vendor-completions", "/usr/share/zsh/site-functions")
        if system.path(f"{path}/_binlog2s3").exists()
    ]
    found = said(system, "zsh", "-f", "-c", f"fpath=({' '.join(folders)} $fpath); {zsh}")
    assert found.splitlines()[:4] == ["_binlog2s3", "loaded", "plain", "stream"]
    found = said(system, "fish", "-c", "complete -C 'binlog2s3 stre'")
    assert found.split()[0] == "stream"


def test_the_debian_package(root: System, built: Built) -> None:
    """It needs no other package and works; upgrade, removal and purge keep spool and own files.

    What was edited of the example outlives all but the purge.
    """
    with_systemd(root)
    installing = ["apt-get", "-y", "-o", "Dpkg::Options::=--force-confold", "install"]
    out = said(root, *installing, put(root, built.now["deb"]))
    assert "1 newly installed" in out
    assert asked(root) == RESTART
    works(root)
    documented(root)
    completes(root)
    assert said(root, "dpkg", "--verify", "binlog2s3") == ""
    used(root)

    said(root, *installing, put(root, built.later["deb"]))
    version = said(root, "dpkg-query", "-W", "-f", "${Version}", "binlog2s3")
    assert version == package.package_version(LATER)
    assert asked(root) == RESTART
    works(root)
    kept(root)
    assert root.path(EXAMPLE).read_text().endswith("# edited\n")
    assert root.path(f"{EXAMPLE}.dpkg-dist").read_text().endswith("# of a later version\n")

    out = said(root, "apt-get", "-y", "remove", "binlog2s3")
    assert "/var/lib/binlog2s3 is kept" in out
    assert asked(root) == STOP
    kept(root)
    assert root.path(EXAMPLE).exists()
    gone(root)
    said(root, "apt-get", "-y", "purge", "binlog2s3")
    kept(root)
    assert not root.path(EXAMPLE).exists()


def test_the_rpm(old: System, built: Built) -> None:
    """rpm installs it with nothing but a shell; it works; upgrade and removal keep the same."""
    first, second = put(old, built.now["rpm"]), put(old, built.later["rpm"])
    with_systemd(old)
    said(old, "rpm", "--initdb")
    files = said(old, "rpm", "-qpl", first).split()
    for path in (
        "/usr/bin/binlog2s3",
        "/usr/lib/binlog2s3/bin/python3.13",
        "/usr/lib/systemd/system/binlog2s3@.service",
        "/usr/share/man/man1/binlog2s3.1.gz",
        "/usr/share/zsh/site-functions/_binlog2s3",
    ):
        assert path in files
    # no directory of the system's is claimed, and none with the spool in it
    assert not {"/usr", "/usr/bin", "/usr/lib", "/etc", "/var/lib/binlog2s3"} & set(files)
    assert said(old, "rpm", "-qpc", first).split() == [EXAMPLE]
    needed = said(old, "rpm", "-qpR", first).split("\n")
    assert [one for one in needed if one and not one.startswith(("rpmlib(", "/bin/sh"))] == []
    said(old, "rpm", "-i", first)
    assert asked(old) == RESTART
    works(old)
    documented(old)
    completes(old)
    assert said(old, "rpm", "-V", "binlog2s3") == ""
    used(old)

    said(old, "rpm", "-U", second)
    assert LATER in said(old, "rpm", "-q", "binlog2s3")
    assert asked(old) == RESTART
    works(old)
    kept(old)
    assert old.path(EXAMPLE).read_text().endswith("# edited\n")
    assert old.path(f"{EXAMPLE}.rpmnew").read_text().endswith("# of a later version\n")

    assert "/var/lib/binlog2s3 is kept" in said(old, "rpm", "-e", "binlog2s3")
    assert asked(old) == STOP
    kept(old)
    gone(old)
    assert old.path(f"{EXAMPLE}.rpmsave").read_text().endswith("# edited\n")


def test_it_needs_no_library_of_the_system(built: Built, old: System) -> None:
    """It runs with nothing there but its own files, and where there are others it loads none."""
    python = f"{package.PRIVATE}/bin/python3"
    with temporary_directory() as empty:
        unpack(built, empty)
        found = said(System(empty), python, "-I", "/usr/bin/binlog2s3", "--version")
        assert found == f"binlog2s3, version {__version__}\n"
        said(System(empty), python, "-I", "-c", IMPORTS)
    unpack(built, old.root)
    said(old, python, "-I", "-c", IMPORTS, LD_DEBUG="files", LD_DEBUG_OUTPUT="/root/loaded")
    (trace,) = old.path("/root").glob("loaded.*")
    loaded = set(re.findall(r"calling init: (\S+)", trace.read_text()))
    assert len(loaded) > 20
    assert [path for path in loaded if not path.startswith(f"{package.PRIVATE}/")] == []


def unpack(built: Built, into: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(built.now["deb"]), str(into)], check=True)
