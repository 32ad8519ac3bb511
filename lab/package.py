"""Builds the Debian package and the RPM: `python -m lab.package dist`.

Both hold one tree: Debian's CPython with the libraries that it needs, the C library and its loader
too, and the Python packages of the project. Nothing of the machine that they are installed on is
needed but a kernel and /bin/sh. packaging/README.md says why, packaging/nfpm.yaml what goes where.
What was downloaded of Debian stays in the cache; the Python packages are fetched at each build.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from binlog2s3 import __version__
from lab import apt, get
from lab.cache import Unavailable, kept, say
from lab.disk import temporary_directory

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = Path("/usr/lib/binlog2s3")
"""Where the interpreter and all libraries are installed; it cannot be moved from there."""

SUITE = "trixie"
PYTHON = "python3.13"
_DEBIAN = (f"{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "libgcc-s1")
# Never used, and large, or for programs that have a terminal.
_LEFT_OUT = re.compile(
    r"(__pycache__|idlelib|tkinter|turtledemo|ensurepip|sitecustomize\.py|EXTERNALLY-MANAGED"
    r"|config-.*|(_test|_ctypes_test|_xxtest|xx|_curses|_dbm|_gdbm|_tkinter|readline).*\.so)"
)
_TIMEOUT_SECONDS = 900
_MAINTAINER = "The binlog2s3 authors <binlog2s3@localhost>"
KINDS = ("deb", "rpm")


def main(arguments: Sequence[str]) -> int:
    """Build both into the named directory and print where they are; 1 if something is missing."""
    if len(arguments) != 1:
        print("usage: python -m lab.package DIRECTORY", file=sys.stderr)
        return 2
    try:
        with temporary_directory() as directory:
            fill(directory)
            for package in pack(directory, Path(arguments[0]), __version__):
                print(f"{package}\t{package.stat().st_size / 1e6:.1f} MB")
    except Unavailable as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def fill(stage: Path) -> None:
    """Put everything that nfpm.yaml names into a directory, which must be empty."""
    debian = _interpreter()
    private = stage / "private"
    _take_interpreter(debian, private)
    _take_packages(debian, private)
    say("compiling the modules, some seconds")
    # the times of installed files say nothing: never compared
    flags = ["-q", "--invalidation-mode", "unchecked-hash", f"-s{private}", f"-p{PRIVATE}"]
    _run("the interpreter", [str(_runnable(debian)), "-m", "compileall", *flags, str(private)])
    _take_own(stage, _command(debian, private))
    _take_licences(debian, private, stage / "doc")
    for path in stage.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def pack(stage: Path, into: Path, version: str, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Make the packages from what `fill` put there."""
    nfpm = get.nfpm()
    into.mkdir(parents=True, exist_ok=True)
    about = {
        "ARCH": _architecture(),
        "VERSION": package_version(version),
        "MAINTAINER": os.environ.get("PACKAGE_MAINTAINER", _MAINTAINER),
        "HOMEPAGE": os.environ.get("PACKAGE_HOMEPAGE", ""),
    }
    made = []
    for kind in kinds:
        say(f"packing the {kind}, some seconds")
        flags = [f"--config={ROOT / 'packaging/nfpm.yaml'}", f"--target={into.resolve()}"]
        argv = [str(nfpm), "package", *flags, f"--packager={kind}"]
        said = _run("nfpm", argv, cwd=stage, more=about)
        made.append(Path(said.strip().rpartition("created package: ")[2]))
    return made


def package_version(version: str) -> str:
    """A version of Python's as dpkg and rpm sort it: what comes before a release has a tilde.

    >>> package_version("1.2.0"), package_version("1.2.0rc1"), package_version("1.2.0.dev3")
    ('1.2.0', '1.2.0~rc1', '1.2.0~dev3')
    """
    return re.sub(r"\.?(dev|a|b|rc)(?=\d)", r"~\1", version)


def _architecture() -> str:
    return _run("dpkg", ["dpkg", "--print-architecture"]).strip()


def _interpreter() -> Path:
    """Debian's CPython with all that it depends on, unpacked into the cache."""
    try:
        apt.architecture()
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        reason = f"this machine is no Debian on amd64 or arm64 ({error})"
        raise Unavailable("packages", reason, "a Debian machine") from None

    def make(into: Path) -> str:
        say(f"getting {PYTHON} from Debian {SUITE}'s packages (about 25 MB), a few seconds")
        apt.unpack("interpreter", SUITE, _DEBIAN, into, deep=True)
        return SUITE

    return kept(f"interpreter-{SUITE}", make)


def _loader(debian: Path) -> tuple[Path, Path]:
    """The dynamic loader and the folder of libraries."""
    loader, triplet = apt.architecture()
    libraries = debian / "usr/lib" / triplet
    return libraries / Path(loader).name, libraries


def _runnable(debian: Path) -> Path:
    """A script that runs the interpreter where it was unpacked, with its own C library."""
    loader, libraries = _loader(debian)
    program = debian / "usr/bin" / PYTHON
    script = debian / "python"
    words = f'exec {loader} --library-path {libraries} --argv0 {program} {program} "$@"'
    script.write_text(f"#!/bin/sh\n{words}\n")
    script.chmod(0o755)
    return script


def _take_interpreter(debian: Path, private: Path) -> None:
    """The program, tied to its own loader and libraries, and the standard library."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        paths = [Path(folder) / name for name in names]
        dangling = {path.name for path in paths if path.is_symlink() and not path.exists()}
        return dangling | {name for name in names if _LEFT_OUT.fullmatch(name)}

    loader, libraries = _loader(debian)
    program = private / "bin" / PYTHON
    program.parent.mkdir(parents=True)
    shutil.copy(debian / "usr/bin" / PYTHON, program)
    (program.parent / "python3").symlink_to(PYTHON)
    modules = private / "lib" / PYTHON
    shutil.copytree(debian / "usr/lib" / PYTHON, modules, ignore=left_out)
    patchelf = get.patchelf()
    # DT_RPATH, unlike RUNPATH, holds for the libraries of libraries and for what is loaded later
    tied = ["--set-interpreter", f"{PRIVATE}/lib/{loader.name}"]
    tied += ["--force-rpath", "--set-rpath", f"{PRIVATE}/lib"]
    _run("patchelf", [patchelf, *tied, program])
    objects = [program, *modules.rglob("*.so")]
    # what wheels are allowed to need of the system, see PEP 600
    allowed = ("libpthread.so.0", "librt.so.1", "libdl.so.2", "libutil.so.1", "libgcc_s.so.1")
    needed = {*allowed, "libresolv.so.2", "libm.so.6", loader.name}
    found: set[str] = set()
    while True:
        for path in objects:
            needed |= set(_run("patchelf", [patchelf, "--print-needed", path]).split())
        if not (new := needed - found):
            return
        found |= new
        objects = [Path(shutil.copy(libraries / name, private / "lib" / name)) for name in new]


def _take_packages(debian: Path, private: Path) -> None:
    """The project's own wheel, and what it depends on."""
    folder = private / "lib/python3/dist-packages"  # where Debian's interpreter looks
    say("fetching the Python packages (about 40 MB), 10 to 60 s")
    with temporary_directory() as built:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
        _run("hatchling", build, cwd=ROOT)
        (wheel,) = built.glob("*.whl")
        pip = [sys.executable, "-m", "pip", f"--python={_runnable(debian)}", "install", "--quiet"]
        flags = ["--no-compile", "--root-user-action=ignore", "--only-binary=:all:"]
        _run("pip", [*pip, *flags, f"--target={folder}", wheel])
    shutil.rmtree(folder / "bin")  # programs that name the interpreter's place in the cache


def _command(debian: Path, private: Path) -> list[str | Path]:
    """The words that run binlog2s3 before it is installed."""
    begin = f"import sys; sys.path.insert(0, {str(private / 'lib/python3/dist-packages')!r}); "
    run = "from binlog2s3.cli.main import main; sys.argv[0] = 'binlog2s3'; main()"
    return [_runnable(debian), "-I", "-B", "-c", begin + run]


def _take_own(stage: Path, command: Sequence[str | Path]) -> None:
    """What comes from this checkout, and what the command prints of itself."""
    packaging = ROOT / "packaging"
    shutil.copy(packaging / "launcher.py", stage / "binlog2s3")
    (stage / "binlog2s3").chmod(0o755)
    for name in ("scripts", "units", "man", "doc"):
        (stage / name).mkdir()
    for script in packaging.glob("*.sh"):
        shutil.copy(script, stage / "scripts" / script.name)
    for unit in sorted((ROOT / "systemd").glob("binlog2s3*")):
        shutil.copy(unit, stage / "units" / unit.name)
    for shell in ("bash", "zsh", "fish"):
        text = _run("binlog2s3", [*command, "completion", shell])
        (stage / f"completion.{shell}").write_text(text)
    (stage / "example.toml").write_text(_run("binlog2s3", [*command, "config", "--example"]))
    _run("binlog2s3", [*command, "man", "--output-dir", stage / "man"])
    for page in list((stage / "man").iterdir()):
        page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    for name in ("LICENSE", "CHANGELOG.md", "README.md", "systemd/restart-254.conf"):
        shutil.copy(ROOT / name, stage / "doc" / Path(name).name)


def _take_licences(debian: Path, private: Path, into: Path) -> None:
    """What else is inside: versions, and the licences of Debian's packages."""
    lines = ["# Debian's packages"]
    for folder in sorted((debian / "usr/share/doc").iterdir()):
        if (folder / "copyright").is_file():
            shutil.copy(folder / "copyright", into / f"copyright.{folder.name}")
            lines.append(f"{folder.name} {_debian_version(folder)}".strip())
    # licences of the Python packages lie in these folders
    lines.append("# Python packages")
    lines += sorted(
        " ".join(folder.name.removesuffix(".dist-info").rsplit("-", 1))
        for folder in (private / "lib/python3/dist-packages").glob("*.dist-info")
    )
    (into / "bundled.txt").write_text("\n".join(lines) + "\n")
    copyright_ = (ROOT / "LICENSE").read_text()
    (into / "copyright").write_text(f"binlog2s3\n\n{copyright_}")


def _debian_version(folder: Path) -> str:
    """The version that stands first in a package's changelog."""
    changelogs: Iterator[Path] = folder.glob("changelog*.gz")
    for path in sorted(changelogs):
        if found := re.match(rb"\S+ \((\S+)\)", gzip.decompress(path.read_bytes())[:200]):
            return found[1].decode()
    return ""


def _run(
    what: str,
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    more: dict[str, str] | None = None,
) -> str:
    """What a program prints. Raises Unavailable with its last lines where it fails."""
    done = subprocess.run(
        argv,
        check=False,
        cwd=cwd,
        env={**os.environ, **(more or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        said = " ".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-5:])
        raise Unavailable("packages", f"{what} fails: {said}", "a way to the package indexes")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
