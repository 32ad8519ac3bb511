"""Makes the virtual environment with everything from pyproject.toml: `python3 -m lab.venv .venv`.

It runs with the machine's plain Python before anything is installed: standard library only. On
Debian that Python may come without ensurepip; pip then comes from Debian's own package, unpacked
into the cache. pip is brought up to date first, for dependency groups need 25.1.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

LEAST = (3, 11)


def main(arguments: "list[str]") -> int:
    """Make or mend the environment and install the project into it; 0 when all is there."""
    if len(arguments) != 1:
        print("usage: python3 -m lab.venv DIRECTORY", file=sys.stderr)
        return 2
    if sys.version_info < LEAST:
        found, least = (".".join(map(str, version[:2])) for version in (sys.version_info, LEAST))
        print(f"lab: Python {found} is too old: {least} or later is needed", file=sys.stderr)
        print("lab: name one with `make PYTHON=python3.12 ...`", file=sys.stderr)
        return 1
    from lab.cache import Unavailable, say  # noqa: PLC0415 - an old Python could not read it

    directory = Path(arguments[0])
    python = directory / "bin" / "python"
    try:
        if not _works(python, "import sys"):
            say(f"making the virtual environment {directory}")
            shutil.rmtree(directory, ignore_errors=True)
            _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
        if not _works(python, "import pip"):
            _bring_pip(python)
        say("installing what pyproject.toml needs; the first time about a minute")
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        _run(*pip, "--upgrade", "pip>=25.1")
        _run(*pip, "--group", "dev", "--editable", ".")
    except Unavailable as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"lab: `{' '.join(error.cmd)}` ends with {error.returncode}", file=sys.stderr)
        return 1
    return 0


def _works(python: Path, code: str) -> bool:
    """Whether an interpreter is there and can run the code."""
    if not python.exists():
        return False
    return (
        subprocess.run([str(python), "-c", code], check=False, capture_output=True).returncode == 0
    )


def _bring_pip(python: Path) -> None:
    """Bring pip into the environment: from ensurepip, else from Debian's python3-pip-whl."""
    if importlib.util.find_spec("ensurepip") is not None:
        subprocess.run([str(python), "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
        return
    from lab import apt  # noqa: PLC0415 - see main
    from lab.cache import kept, say  # noqa: PLC0415

    def make(into: Path) -> str:
        say("this Python has no ensurepip: getting pip from Debian's package, a few seconds")
        apt.unpack("pip", _release(), ["python3-pip-whl"], into, deep=False)
        return "python3-pip-whl"

    wheels = kept("pip", make) / "usr" / "share" / "python-wheels"
    wheel = max(wheels.glob("pip-*.whl"))
    _run(str(python), f"{wheel}/pip", "--disable-pip-version-check", "install", "--quiet", "pip")


def _release() -> str:
    """The code name of this Debian: its pip suits its Python."""
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME" and value:
            return value.strip('"')
    return "bookworm"


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
