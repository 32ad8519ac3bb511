"""What a release has: checksums, the list of its parts, workflows that call what there is."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from binlog2s3 import __version__
from lab import release

ROOT = release.ROOT
TARGETS = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text()))
RUNS = re.compile(r"(?m)(?:^|&& )make ([a-z-]+)")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    """In order of names, without the list itself."""
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / release.SUMS).write_text("old")
    assert release.checksums(tmp_path) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n"
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"
    )


def test_the_bill_of_materials_has_what_the_project_needs() -> None:
    """Each requirement, those of the extras, and what they need in turn; each with its version."""
    bill = release.bill_of_materials()
    names = [one["name"] for one in bill["components"]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[\[><=]", line)[0] for line in project["dependencies"]}
    required = {name.replace("_", "-") for name in required}
    assert required | {"botocore", "awscrt"} <= set(names)
    assert len(names) == len(set(names))
    assert "pytest" not in names
    assert all(one["version"] and one["purl"].startswith("pkg:pypi/") for one in bill["components"])


def test_a_full_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of an older version is published along."""
    (tmp_path / "old.whl").write_bytes(b"")
    assert release.main([str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_changelog_begins_with_this_version() -> None:
    """What is published has its notes; what is not is above them."""
    headings = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    published = [heading.rstrip(",") for heading in headings if heading != "Unreleased"]
    assert published[0] == __version__
    assert "Unreleased" not in headings[1:]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are(path: Path) -> None:
    """`make X` and .ci/run; a job may write nothing of the repository unless it says so."""
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    steps = [step for job in found["jobs"].values() for step in job["steps"]]
    called = [name for step in steps for name in re.findall(RUNS, step.get("run", ""))]
    assert set(called) <= TARGETS
    assert any(".ci/run" in step.get("run", "") for step in steps)


def test_workflows_are_what_github_takes(actionlint: Path) -> None:
    """Keys, expressions, types of values and needs of jobs."""
    # without the checkers of scripts that may be on PATH: other versions find other things
    argv = [actionlint, "-no-color", "-shellcheck=", "-pyflakes=", *WORKFLOWS]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_documents_name_targets_that_there_are() -> None:
    """`make X` in README, CONTRIBUTING and docs/."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= TARGETS, path
