"""What the packages are made from: it fits together, as far as that is seen without building."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab import package

PACKAGING = package.ROOT / "packaging"
SCRIPTS = sorted(PACKAGING.glob("*.sh"))


def test_all_that_is_named_is_made() -> None:
    """Every source in nfpm.yaml is something that lab/package.py puts there, or the tree itself."""
    described = (PACKAGING / "nfpm.yaml").read_text(encoding="utf-8")
    made = Path(package.__file__).read_text(encoding="utf-8")
    sources = set(re.findall(r"^  - src: ([\w.]+)", described, re.MULTILINE))
    shells = {f"completion.{shell}" for shell in ("bash", "zsh", "fish")}
    assert sources - shells <= set(re.findall(r'"([\w.]+)"', made))
    assert shells <= sources
    scripts = set(re.findall(r"scripts/(\w+\.sh)", described))
    assert scripts == {path.name for path in SCRIPTS}


def test_the_launcher_starts_the_interpreter_of_the_package() -> None:
    """By its full path, and apart from what the caller's environment says of Python."""
    first, *_ = (PACKAGING / "launcher.py").read_text(encoding="utf-8").splitlines()
    assert first == f"#!{package.PRIVATE}/bin/python3 -I"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_the_package(path: Path) -> None:
    """It is good sh, and deletes nothing: what is in the spool may be in no bucket yet."""
    sh = shutil.which("sh")
    assert sh is not None
    subprocess.run([sh, "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(rm|rmdir|find|mv|truncate)\b", text)


@pytest.mark.parametrize(
    ("version", "sorted_as"),
    [("1.2.0", "1.2.0"), ("1.2.0rc1", "1.2.0~rc1"), ("1.2.0.dev3", "1.2.0~dev3")],
)
def test_what_comes_before_a_release_sorts_before_it(version: str, sorted_as: str) -> None:
    """For dpkg and rpm a tilde does that; without it 1.2.0rc1 would be newer than 1.2.0."""
    assert package.package_version(version) == sorted_as
