"""What `pip` and `pipx` install: the wheel and the sdist, as they are built from this checkout."""

import ast
import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import binlog2s3
from lab.share import COMPLETIONS, MANUAL
from tests.installed import build, run, started

PACKAGE = Path(binlog2s3.__file__).parent
HOMEPAGE = "https://git.example.com/binlog2s3"
# What a distribution is called is not always what is imported of it.
IMPORTED = {"botocore": {"botocore", "awscrt"}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of this checkout; nothing is downloaded for them."""
    folder = tmp_path_factory.mktemp("built")
    return build(folder, homepage=HOMEPAGE)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (one for one in file.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(file.read(name).decode())


def test_the_wheel_is_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module, the page's template, licence, manual pages, completions; no tests, no lab."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    info = {name for name in names if ".dist-info/" in name}
    shared = {name for name in names if f"-{binlog2s3.__version__}.data/data/share/" in name}
    ours = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")}
    ours |= {"binlog2s3/py.typed", "binlog2s3/report/page.html"}
    assert names - info - shared == ours
    assert shared
    assert any(name.endswith("/licenses/LICENSE") for name in info)


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    """The distributions that are required are those that are imported, and no other ones."""
    found = metadata(wheel)
    assert found["Version"] == binlog2s3.__version__
    assert found["Requires-Python"] == ">=3.11"
    required = set()
    for line in found.get_all("Requires-Dist") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("-", "_")
        required |= IMPORTED.get(name, {name})
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names - {"binlog2s3"} == required


def test_the_description_has_links_that_work_elsewhere(wheel: Path) -> None:
    """All of them lead out of the page, to files that are there at the tag of this version."""
    text = metadata(wheel).get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^()\s]+)\)", text)
    tag = rf"{HOMEPAGE}/(?:blob|raw)/v{binlog2s3.__version__}/([^#]+)"
    ours = [found[1] for link in links if (found := re.match(tag, link))]
    assert len(ours) > 20
    assert [name for name in ours if not (PACKAGE.parent / name).is_file()] == []
    assert [link for link in links if not link.startswith("https://")] == []
    assert metadata(wheel)["Project-URL"] == f"Repository, {HOMEPAGE}"


def test_the_sdist_has_what_belongs_to_it(sdist: Path) -> None:
    """Sources, tests, documents, what is deployed; nothing that was downloaded or made here."""
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for wanted in (
        "LICENSE",
        "README.md",
        "Makefile",
        "pyproject.toml",
        "docs/reference/options.md",
        "packaging/nfpm.yaml",
        "systemd/binlog2s3@.service",
        "tests/conftest.py",
        "lab/get.py",
        "hatch_build.py",
        "build/share/man/man1/binlog2s3.1",
    ):
        assert wanted in names
    strange = re.compile(
        r"\.cache|\.venv|__pycache__|\.git/|\.hypothesis|(^|/)dist/|(^|/)build/(?!share/)"
    )
    assert [name for name in names if strange.search(name)] == []


def test_the_wheel_starts_where_nothing_else_is(wheel: Path, tmp_path: Path) -> None:
    """In a new environment, with only the run-time dependencies; it brings its manual pages."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run(*pip, "--no-index", wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    needed = closure({"binlog2s3"}) - {"binlog2s3"}
    for path in needed_files(needed):
        (site / path.name).symlink_to(path)
    program = environment / "bin" / "binlog2s3"
    started(program, tmp_path)
    share = environment / "share"
    for shell, name in COMPLETIONS.items():
        assert (share / name).read_text() == run(program, "completion", shell), shell
    assert (share / MANUAL / "binlog2s3.1").read_text() == run(program, "man")
    assert (share / MANUAL / "binlog2s3-pitr.1").read_text() == run(program, "man", "pitr")


def closure(names: set[str]) -> set[str]:
    """All distributions that these need here, themselves included."""
    asked = (
        "import re,sys\nfrom importlib.metadata import requires\n"
        "from packaging.requirements import Requirement as R\n"
        "todo,seen=[(n,'') for n in sys.argv[1:]],set()\n"
        "while todo:\n"
        "    n,e=todo.pop()\n"
        "    if (n,e) in seen: continue\n"
        "    seen.add((n,e))\n"
        "    for r in map(R, requires(n) or []):\n"
        "        if r.marker is None or r.marker.evaluate({'extra': e}):\n"
        "            todo += [(r.name, x) for x in ['', *r.extras]]\n"
        "print(*{n for n,_ in seen})\n"
    )
    return set(run(sys.executable, "-c", asked, *sorted(names)).split())


def needed_files(names: set[str]) -> set[Path]:
    """What lies at the top of site-packages for these distributions."""
    asked = (
        "import sys\nfrom importlib.metadata import files, distribution\n"
        "for n in sys.argv[1:]:\n"
        "    d=distribution(n)\n"
        "    for f in d.files or []:\n"
        "        if f.parts[0] not in ('..','__pycache__'):\n"
        "            print(d.locate_file(f.parts[0]))\n"
    )
    return {Path(line) for line in run(sys.executable, "-c", asked, *sorted(names)).splitlines()}
