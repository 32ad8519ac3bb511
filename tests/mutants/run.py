"""Takes each safeguard out, one at a time, and shows the test that goes red.

    python -m tests.mutants.run              all of them
    python -m tests.mutants.run NAME...      those whose name begins so

`mutants`, beside this file, names for each mutant the safeguard, the tests that miss it, and what
is changed in which function. Each mutant is made in a copy of the tree; its tests are run there, as
the gate runs them.

Law: only a test's own failure is red. A change that does not apply, a test that is not there, is
skipped, cannot be set up, or is red without the change as well, is broken, and so is a name or an
import that the change spoiled.
"""

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Literal

from lab.cache import cache_folder
from lab.disk import temporary_directory
from tests.mutants.edits import definition, source_of
from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("binlog2s3", "tests", "lab", "docs/policies", "docs/format.md", "pyproject.toml")
SECONDS = 240
_SPOILED = frozenset({"NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError",
                      "SyntaxError", "IndentationError"})  # fmt: skip

Result = Literal["caught", "survives", "broken"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant, and why: for one that was caught, what the first red test said."""

    result: Result
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """What pytest came to: `tests` by node id, with `outcome`, and `kind` and `why` if not passed.

    `problem`: why it did not come to an end of its own.
    """

    tests: Mapping[str, Mapping[str, str]]
    problem: str = ""

    def of(self, test: str) -> list[Mapping[str, str]]:
        """The outcomes of one node id, one for each of its parameters."""
        return [
            found
            for name, found in self.tests.items()
            if name == test or (name.startswith(f"{test}[") and "[" not in test)
        ]


def changed(mutant: Mutant, root: Path) -> dict[Path, str]:
    """The changed files, by their place below `root`. Raises DoesNotApplyError."""
    trees: dict[Path, ast.Module] = {}
    for thing, edit in mutant.changes:
        path = source_of(thing)
        if path not in trees:
            trees[path] = ast.parse((root / path).read_text(encoding="utf-8"))
        edit(definition(trees[path], thing))
    return {path: ast.unparse(ast.fix_missing_locations(tree)) for path, tree in trees.items()}


def exists(test: str, root: Path) -> bool:
    """Whether there is a test function of this node id."""
    path, _, function = test.partition("::")
    return function.partition("[")[0] in _functions(root / path)


@cache
def _functions(path: Path) -> frozenset[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def judge(mutant: Mutant, run: Run, plain: Run) -> Verdict:
    """Whether every test that a mutant names is red with it, by its own failure, and green without.

    `run` is with the change, `plain` without.
    """
    first = ""
    for test in mutant.tests:
        before = plain.of(test)
        if not before or any(found["outcome"] != "passed" for found in before):
            words = ", ".join(sorted({found["outcome"] for found in before}))
            return Verdict("broken", f"without the change {test}: {words or 'not run'}")
        if run.problem:
            return Verdict("broken", run.problem)
        red = [found for found in run.of(test) if found["outcome"] == "failed"]
        if not red:
            others = {found["outcome"] for found in run.of(test)} - {"passed"}
            if others or not run.of(test):
                return Verdict("broken", f"{test}: {', '.join(sorted(others)) or 'not run'}")
            return Verdict("survives", f"{test} stays green")
        if red[0].get("kind") in _SPOILED:
            return Verdict("broken", f"{test}: {red[0]['kind']}: {red[0]['why']}")
        first = first or ": ".join(w for w in (red[0].get("kind"), red[0].get("why")) if w)
    return Verdict("caught", first)


def copy(root: Path, target: Path, files: Mapping[Path, str]) -> None:
    """A copy of what tests need of the tree, with these files instead of its own."""
    target.mkdir(parents=True)
    for name in COPIED:
        if (root / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, target / name, ignore=leave)
        elif (root / name).exists():
            shutil.copy2(root / name, target / name)
    for path, text in files.items():
        if path.suffix == ".py":
            ast.parse(text)
        (target / path).write_text(text, encoding="utf-8")


def run_tests(tree: Path, tests: Sequence[str], seconds: float) -> Run:
    """Run these tests in a copy of the tree, with the copy's package; all of them, in order."""
    record = tree / "record.json"
    record.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BINLOG2S3_CACHE": str(cache_folder()),
        "MUTANTS_RECORD": str(record),
    }
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    with (tree / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, "-p", "tests.mutants.record", *tests],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Run({}, f"no end within {seconds:g} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if not record.exists() or status not in (0, 1):
        said = (tree / "output").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "nothing")
        return Run({}, f"pytest ended with {status}: {last}")
    document = json.loads(record.read_text(encoding="utf-8"))
    if Path(document["package"]) != tree / "binlog2s3":
        return Run({}, f"not the copy's package was tested: {document['package']}")
    return Run(document["tests"])


def check(root: Path, chosen: Sequence[Mutant], *, jobs: int, seconds: float) -> list[Verdict]:
    """Each mutant's verdict, in order; they are told as they come."""

    def unchanged(tests: Sequence[str]) -> Run:
        with temporary_directory("binlog2s3-mutant-") as directory:
            copy(root, directory / "tree", {})
            # one test after the other: together they may take as long as all mutants do
            return run_tests(directory / "tree", tests, seconds * len(tests))

    def one(mutant: Mutant, plain: Run) -> Verdict:
        if missing := [test for test in mutant.tests if not exists(test, root)]:
            return Verdict("broken", f"there is no {missing[0]}")
        try:
            files = changed(mutant, root)
            with temporary_directory("binlog2s3-mutant-") as directory:
                copy(root, directory / "tree", files)
                run = run_tests(directory / "tree", mutant.tests, seconds)
        except (ValueError, SyntaxError) as error:
            return Verdict("broken", str(error))
        return judge(mutant, run, plain)

    named = sorted({test for mutant in chosen for test in mutant.tests})
    tests = [test for test in named if exists(test, root)]
    shares = [share for number in range(jobs) if (share := tests[number::jobs])]
    with ThreadPoolExecutor(jobs) as pool:
        print(f"first: {len(tests)} tests, which must be green without any change", flush=True)
        plain: dict[str, Mapping[str, str]] = {}
        for run in pool.map(unchanged, shares):
            plain |= run.tests
            if run.problem:
                print(run.problem, flush=True)
        verdicts = []
        for mutant, verdict in zip(chosen, pool.map(one, chosen, repeat(Run(plain))), strict=False):
            print(f"{verdict.result:8}  {mutant.name}  {verdict.why[:200]}", flush=True)
            verdicts.append(verdict)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every mutant was caught, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.run", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="those whose name begins so")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the longest for one run")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error("--jobs must be at least 1")
    chosen = [m for m in MUTANTS if not given.names or m.name.startswith(tuple(given.names))]
    if not chosen:
        parser.error(f"no mutant begins with {' or '.join(given.names)}")
    begun = time.monotonic()
    verdicts = check(ROOT, chosen, jobs=given.jobs, seconds=given.seconds)
    caught = sum(verdict.result == "caught" for verdict in verdicts)
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    print(f"{len(chosen)} mutants, {caught} caught, in {minutes} min {seconds} s")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
