"""Clean Debian systems in a directory, in which packages are installed for real.

mmdebstrap makes one from the machine's own mirror, once; it is kept in the cache as an archive, and
each `system` is a fresh copy of it that is gone afterwards. Commands run in it by chroot, so root
is needed. Nothing of it is mounted, and no service is started.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import apt, get
from lab.cache import Unavailable, kept, say
from lab.disk import temporary_directory

BUILD_TIMEOUT_SECONDS = 900
RUN_TIMEOUT_SECONDS = 300
# no daemon is to be started from a package's script: there is nobody to start it
_NO_DAEMONS = "#!/bin/sh\nexit 101\n"


@dataclass(frozen=True, slots=True)
class System:
    """A root directory; absolute paths inside it are looked up by `path`."""

    root: Path

    def path(self, inside: str | Path) -> Path:
        """Where a path of the system is on this machine."""
        return self.root / str(inside).lstrip("/")

    def run(self, *argv: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in it, to its end, as root, with a small environment and `more` in it."""
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        chroot = shutil.which("chroot") or "/usr/sbin/chroot"
        return subprocess.run(
            [chroot, str(self.root), *argv],
            capture_output=True,
            check=False,
            env={**plain, "DEBIAN_FRONTEND": "noninteractive", **more},
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
        )


@contextmanager
def system(suite: str, packages: Sequence[str] = ()) -> Iterator[System]:
    """A fresh minimal Debian with these packages. Raises Unavailable where there can be none."""
    if os.geteuid() != 0:
        raise Unavailable(f"a Debian {suite}", "chroot needs root", "run this as root")
    name = f"debian-{suite}"

    def make(into: Path) -> str:
        say(f"making a Debian {suite} with mmdebstrap (about 100 MB), 1 to 3 minutes")
        wanted = ",".join(packages)
        source = f"deb [signed-by={apt.KEYRING}] {apt.mirror(name)} {suite} main"
        flags = ["--quiet", "--variant=minbase", *(f"--aptopt={line}" for line in apt.ways())]
        flags += [f"--include={wanted}"] if wanted else []
        argv = ["perl", str(get.mmdebstrap()), *flags, suite, str(into / "root.tar"), source]
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_SECONDS,
        )
        if done.returncode != 0:
            said = " ".join(done.stdout.splitlines()[-5:])
            raise Unavailable(name, f"mmdebstrap fails: {said}", "a way to the Debian mirror")
        return wanted

    archive = kept(f"{name}-{'-'.join(packages) or 'minimal'}", make) / "root.tar"
    with temporary_directory() as directory:
        root = directory / "root"
        root.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(root)], check=True)
        found = System(root)
        found.path("/usr/sbin/policy-rc.d").write_text(_NO_DAEMONS)
        found.path("/usr/sbin/policy-rc.d").chmod(0o755)
        yield found
