"""binlog2s3 as a wheel or sdist, and installed from it: building it, and whether it starts."""

import subprocess
from pathlib import Path

import binlog2s3
from lab import release
from tests import command

EVERY_MODULE = """
import importlib, pkgutil, binlog2s3
for module in pkgutil.iter_modules(binlog2s3.__path__):
    if module.name != "__main__": importlib.import_module(f"binlog2s3.{module.name}")
"""


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """What a program prints; it must succeed, without our settings and search paths."""
    environment = command.environment()
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        argv,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(into: Path, *, homepage: str = "") -> Path:
    """A wheel and an sdist as `make release` makes them; nothing is downloaded for them."""
    release.distributions(into, homepage=homepage)
    return into


def started(program: Path, folder: Path) -> None:
    """It says its version and its help, and judges options, from any directory."""
    assert run(program, "--version", cwd=folder) == f"binlog2s3, version {binlog2s3.__version__}\n"
    assert "Examples:" in run(program, "-h", cwd=folder)
    assert "--flush-interval" in run(program, "stream", "-h", cwd=folder)
    example = folder / "example.toml"
    example.write_text(run(program, "config", "--example", cwd=folder))
    password = "--mysql-password-file=/dev/null"  # the example's own is not there
    run(program, "config", "--show", "--config", example, password, cwd=folder)
    # with all that they import, lazily or not
    run(program.parent / "python", "-I", "-c", EVERY_MODULE, cwd=folder)
