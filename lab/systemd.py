"""A real systemd in a container of its own, on a throw-away overlay of this machine's root.

    with Machine(directory) as machine:
        machine.put("/etc/systemd/system/x.service", text)
        machine.boot()
        machine.run("systemctl", "start", "x")

systemd-nspawn boots it; what this machine lacks of systemd is unpacked from Debian's packages into
the cache. The network is the machine's own. Root only.

Law: nothing outside `directory` is changed but one cgroup in each hierarchy, two mounts below
`directory`, and all are gone in the end; systemd never runs outside the container's namespaces and
those cgroups.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Self

from lab import apt
from lab.cache import Unavailable, kept, remove, say
from lab.child import ServerFailedError, end, spawn, tail

PACKAGES = ("systemd", "systemd-sysv", "systemd-container", "dbus")
LAYER_SIZE = "1g"
BOOT_SECONDS = 60
RUN_SECONDS = 120
_HIERARCHIES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
_NEEDED = ("usr/lib/systemd/systemd", "usr/bin/dbus-daemon", "usr/bin/systemctl")
_REMEDY = "root on a Debian machine"


def tree() -> Path:
    """What this machine may lack of systemd and nspawn, of its own release, unpacked."""

    def make(into: Path) -> str:
        release = _release()
        say(f"getting systemd (Debian {release}'s packages), 10 to 30 s")
        apt.unpack("systemd", release, PACKAGES, into, deep=True)
        for name in ("bin", "sbin", "lib", "lib64"):  # packages from before the /usr merge
            if (into / name).is_dir() and not (into / name).is_symlink():
                shutil.copytree(into / name, into / "usr" / name, symlinks=True, dirs_exist_ok=True)
                remove(into / name)
        for name in ("etc", "var", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            remove(into / name)
        return release

    return kept("systemd", make)


def analyze() -> list[str]:
    """The words that start systemd-analyze: the one on PATH, else the unpacked one."""
    on_path = shutil.which("systemd-analyze")
    return [on_path] if on_path else _unpacked("systemd-analyze")


def _nspawn() -> list[str]:
    on_path = shutil.which("systemd-nspawn")
    return [on_path] if on_path else _unpacked("systemd-nspawn")


def _unpacked(program: str) -> list[str]:
    """A program of the tree, with the tree's own loader and libraries."""
    root = tree()
    try:
        loader, triplet = apt.architecture()
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        raise Unavailable("systemd", f"not on this architecture ({error})", _REMEDY) from None
    libraries = root / "usr/lib" / triplet
    path = f"{libraries}:{libraries}/systemd:{root}/usr/lib/systemd"
    exe = str(root / "usr/bin" / program)
    return [str(root / loader), "--library-path", path, "--argv0", program, exe]


def _release() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME" and value:
            return value.strip('"')
    raise Unavailable("systemd", "/etc/os-release names no release", _REMEDY)


class Machine:
    """A machine that boots, is asked, and is switched off; `binds` are host paths by inner path.

    `root` is its root directory as the host sees it, without what it mounts itself (/run, /tmp); in
    memory, as an overlay must not lie on what it overlays. `state` is its /var/lib/private, where
    services with DynamicUser have their state; on disk.
    """

    def __init__(self, directory: Path, binds: Mapping[str, Path] | None = None) -> None:
        self.root = directory / "layers" / "root"
        self.state = directory / "state"
        self.console = directory / "console.log"
        self._directory = directory
        self._binds = dict(binds or {})
        self._name = f"lab{os.getpid()}-{abs(hash(directory)) % 100_000}"
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise Unavailable("systemd", "only root can boot one", _REMEDY)
        for program in ("mount", "umount", "nsenter"):
            if shutil.which(program) is None:
                raise Unavailable("systemd", f"there is no {program}", _REMEDY)
        self._cgroups = [
            Path(path) / self._name for path in _HIERARCHIES if Path(path, "cgroup.procs").exists()
        ]
        if not self._cgroups:
            raise Unavailable("systemd", "there are no cgroups to be seen", _REMEDY)
        layers = self._directory / "layers"
        layers.mkdir(parents=True)
        self.state.mkdir(mode=0o700)
        self._mount("tmpfs", layers, f"size={LAYER_SIZE}")
        for name in ("upper", "work", "root"):
            (layers / name).mkdir()
        if not all(Path("/", path).exists() for path in _NEEDED):
            shutil.copytree(tree(), layers / "upper", symlinks=True, dirs_exist_ok=True)
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        self._mount("overlay", self.root, options)
        self._clean()
        return self

    def __exit__(self, *_error: object) -> None:
        self.power_off(grace_seconds=10)
        for mounted in (self.root, self.root.parent):
            subprocess.run(["umount", str(mounted)], check=False, capture_output=True)
        for cgroup in self._cgroups:
            for folder, _, _ in os.walk(cgroup, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        with contextlib.suppress(OSError):
            Path("/run/systemd/nspawn/propagate", self._name).rmdir()
        remove(self._directory)

    def _mount(self, kind: str, place: Path, options: str) -> None:
        mount = ["mount", "-t", kind, "-o", options, self._name, str(place)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.__exit__(None, None, None)
            raise Unavailable("systemd", done.stderr.strip(), f"rights to mount {kind}")

    def _clean(self) -> None:
        """None of the machine's own services, no first-boot questions, a journal on disk."""
        for wants in (self.root / "etc/systemd/system").glob("*.wants"):
            for link in wants.iterdir():
                link.unlink()
        (self.root / "etc/machine-id").unlink(missing_ok=True)
        (self.root / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        journal = self.root / "var/log/journal"
        remove(journal)
        journal.mkdir(parents=True)

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file, as root's."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def boot(self) -> None:
        """Switch it on, and wait until systemd says that it is up."""
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
        binds = [f"--bind-ro={outer}:{inner}" for inner, outer in self._binds.items()]
        boot = [*_nspawn(), "-q", "-D", str(self.root), "--boot", f"--machine={self._name}"]
        boot += ["--register=no", "--keep-unit", "--console=pipe", "--link-journal=no", *binds]
        boot += [f"--bind={self.state}:/var/lib/private"]
        moves = "; ".join(f"echo $$ > {cgroup}/cgroup.procs" for cgroup in self._cgroups)
        self._process = spawn(["sh", "-ec", f"{moves}; exec {shlex.join(boot)}"], self.console)
        self._leader, deadline, pause = 0, monotonic() + BOOT_SECONDS, Event()
        while True:
            if self._process.poll() is not None or monotonic() > deadline:
                raise ServerFailedError(f"systemd does not come up\n{tail(self.console, 40)}")
            if self._found_leader():
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
                if state in {"running", "degraded"}:
                    return
            pause.wait(0.1)

    def _found_leader(self) -> bool:
        assert self._process is not None, "not booted"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            found = children.read_text().split()
            if found:
                self._leader = int(found[0])
        return self._leader > 0

    def run(
        self, *argv: str, check: bool = True, timeout: float = RUN_SECONDS
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command inside. Raises ServerFailedError where it fails and `check` is set."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader), "-a", *argv],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL": "C.UTF-8"},
        )
        if check and done.returncode != 0:
            said = f"{done.stdout}{done.stderr}".strip()
            raise ServerFailedError(f"{shlex.join(argv)} ends with {done.returncode}: {said}")
        return done

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def power_off(self, grace_seconds: float = 60) -> None:
        """Shut it down as its owner would; the root stays."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None and self._leader:
            with contextlib.suppress(ServerFailedError, subprocess.TimeoutExpired):
                self.run("systemctl", "poweroff", check=False, timeout=20)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
        if process.poll() is None and self._leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
        end(process, grace_seconds=5)
        self._leader = 0
