"""Debian's packages, unpacked into a directory without installing anything.

apt runs with sources, lists, cache and an empty dpkg status of its own, so the system's stay as
they are; the mirror is the one that the machine's own apt uses, and signatures are checked with
Debian's keyring. `dpkg -x` unpacks: no maintainer script runs, and no root is needed.
Standard library only: `lab.venv` runs it before anything is installed.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.cache import Unavailable, download, remove

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Never needed to run a server, and large, or pulled in by what runs maintainer scripts.
NOT_WANTED = re.compile(
    r"(perl|libperl|debconf|passwd_|adduser_|psmisc_|iproute2_|libdbi-perl|libdbd|galera|rsync_"
    r"|lsof_|socat_)"
)


def architecture() -> tuple[str, str]:
    """The dynamic loader below a package tree's root, and the library folder's triplet.

    Raises KeyError with dpkg's name of an architecture that this lab does not know.
    """
    known = {
        "amd64": ("usr/lib64/ld-linux-x86-64.so.2", "x86_64-linux-gnu"),
        "arm64": ("usr/lib/ld-linux-aarch64.so.1", "aarch64-linux-gnu"),
    }
    found = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    )
    return known[found.stdout.strip()]


def unpack(name: str, suite: str, packages: Sequence[str], into: Path, *, deep: bool) -> None:
    """Unpack Debian's `packages` of a `suite` into a directory.

    `deep` takes everything they depend on, so that the tree runs with its own libc whatever the
    machine's release. Raises Unavailable(name, ...) where apt, mirror or network is missing.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise Unavailable(
                name, f"there is no {program} here", f"a Debian machine, or {name} on PATH"
            )
    if not KEYRING.is_file():
        raise Unavailable(name, f"there is no {KEYRING}", "apt-get install debian-archive-keyring")
    work = Path(tempfile.mkdtemp(prefix="binlog2s3-apt-"))
    try:
        environment = _own_apt(name, work, suite)
        archives = work / "cache" / "archives"
        _apt(name, environment, archives, ["update"])
        how = ["-y", "--download-only", "install"] if deep else ["download"]
        _apt(name, environment, archives, [*how, *packages])
        into.mkdir(parents=True, exist_ok=True)
        for package in sorted(archives.glob("*.deb")):
            if not (deep and NOT_WANTED.match(package.name)):
                subprocess.run(["dpkg", "-x", str(package), str(into)], check=True)
    finally:
        remove(work)


def _own_apt(name: str, work: Path, suite: str) -> dict[str, str]:
    """The environment for an apt that knows nothing of the system's state, only its mirror."""
    for folder in ("lists/partial", "cache/archives/partial", "none"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror(name)} {suite} main\n")
    kept = ways()
    own = {
        "Dir::Etc::Parts": f"{work}/none",
        "Dir::Etc::Main": f"{work}/none/x",
        "Dir::Etc::SourceList": f"{work}/sources.list",
        "Dir::Etc::SourceParts": f"{work}/none",
        "Dir::Etc::PreferencesParts": f"{work}/none",
        "Dir::Etc::Preferences": f"{work}/none/x",
        "Dir::Etc::Trusted": f"{work}/none/x",
        "Dir::Etc::TrustedParts": f"{work}/none",
        "Dir::State": str(work),
        "Dir::State::lists": f"{work}/lists",
        "Dir::State::status": f"{work}/status",
        "Dir::Cache": f"{work}/cache",
        "Dir::Cache::archives": f"{work}/cache/archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "0",
        "APT::Update::Error-Mode": "any",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    kept += [f'{key} "{value}";' for key, value in own.items()]
    (work / "apt.conf").write_text("\n".join(kept) + "\n")
    return {**os.environ, "APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}


def _apt(name: str, environment: dict[str, str], folder: Path, arguments: list[str]) -> None:
    """Run apt-get; its last words become the reason when it fails."""
    done = download(
        name,
        ["apt-get", "-qq", *arguments],
        f"apt-get {arguments[0]}",
        remedy="a faster way to the Debian mirror",
        env=environment,
        cwd=folder,
    )
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if line.startswith(("E:", "Err:"))]
        reason = " ".join(said[:3]) or f"apt-get {arguments[0]} exits {done.returncode}"
        raise Unavailable(name, reason, f"a way to the machine's Debian mirror, or {name} on PATH")


def ways() -> list[str]:
    """How the machine's apt reaches its mirror, proxies and the like, as lines of apt.conf(5).

    Hooks, pins, extra indexes and sources are not among them.
    """
    return [
        line
        for line in _output(["apt-config", "dump"]).splitlines()
        if line.startswith("Acquire::") and not line.startswith("Acquire::IndexTargets")
    ]


def mirror(name: str) -> str:
    """The machine's own mirror of the Debian archive, from apt itself, else from its sources.

    Raises Unavailable(name, ...) where there is none.
    """
    named = os.environ.get("DEBIAN_MIRROR")
    if named:
        return named
    told = _output(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    uris = told.split() or _uris_of_sources(Path("/etc/apt"))
    for uri in uris:
        if re.fullmatch(r"https?://.*/debian/?", uri):
            return uri
    raise Unavailable(
        name,
        "no mirror of the Debian archive stands in this machine's apt sources",
        "set DEBIAN_MIRROR to the URL of one",
    )


def _uris_of_sources(folder: Path) -> list[str]:
    """The archive addresses in apt's sources files, one-line and deb822 style."""
    found: list[str] = []
    listed = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in filter(Path.is_file, listed):
        found += re.findall(r"(?m)^\s*deb\s+(?:\[[^]]*\]\s*)?(\S+)", path.read_text())
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for uris in re.findall(r"(?mi)^URIs:\s*(.+)$", path.read_text()):
            found += uris.split()
    return found


def _output(argv: list[str]) -> str:
    """What a command prints; nothing where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
