"""Makes all files of a release: `python -m lab.release dist`.

Wheel and sdist, the Debian package and the RPM, a list of what is inside (an SBOM, CycloneDX), and
SHA256SUMS of all of them. The directory must be empty or not be there, so that nothing of an older
version is published with them.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from binlog2s3 import __version__
from lab import package, share
from lab.cache import say
from lab.disk import temporary_directory

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "binlog2s3"
SUMS = "SHA256SUMS"


def main(arguments: Sequence[str]) -> int:
    """Make the files in the named directory; 2 if it is not empty, 1 if something is missing."""
    if len(arguments) != 1:
        print("usage: python -m lab.release DIRECTORY", file=sys.stderr)
        return 2
    into = Path(arguments[0])
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        print(f"lab: {into} is not empty; remove what an older version left there", file=sys.stderr)
        return 2
    say("building wheel and sdist")
    distributions(into, homepage=os.environ.get("PACKAGE_HOMEPAGE", ""))
    code = package.main([str(into)])
    if code != 0:
        return code
    sbom = into / f"{PROJECT}-{__version__}.cdx.json"
    sbom.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
    (into / SUMS).write_text(checksums(into), encoding="utf-8")
    print(f"{into / SUMS}: `sha256sum -c {SUMS}` compares")
    return 0


def distributions(into: Path, *, homepage: str) -> None:
    """Wheel and sdist, with manual pages and completions, and links to the public repository.

    Without a homepage the links of README.md stay relative, which a page elsewhere cannot follow.
    """
    hatchling = Path(sys.executable).with_name("hatchling")
    with temporary_directory() as directory:
        share.fill(directory)
        subprocess.run(
            [str(hatchling), "build", "-d", str(into.resolve())],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PACKAGE_SHARE": str(directory), "PACKAGE_HOMEPAGE": homepage},
        )


def bill_of_materials() -> dict[str, Any]:
    """The project and all distributions that it needs, as they are installed here: CycloneDX."""
    names: set[str] = set()
    _add_needed(Requirement(PROJECT), names)
    components = [_component(name) for name in sorted(names - {PROJECT})]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": PROJECT, "version": __version__}},
        "components": components,
    }


def _add_needed(requirement: Requirement, names: set[str]) -> None:
    """Add a distribution and, through its extras too, those that it needs on this machine."""
    name = canonicalize_name(requirement.name)
    is_new = name not in names
    names.add(name)
    if not is_new and not requirement.extras:
        return
    for line in metadata.requires(name) or []:
        needed = Requirement(line)
        extras = requirement.extras or {""}
        if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
            _add_needed(needed, names)


def _component(name: str) -> dict[str, str]:
    version = metadata.version(name)
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }


def checksums(directory: Path) -> str:
    """A line for each file of a directory but SHA256SUMS, as `sha256sum` writes them."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
        if path.name != SUMS
    ]
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
