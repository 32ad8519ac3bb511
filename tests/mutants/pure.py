"""Runs mutmut over the pure packages, and compares what survives with what was judged.

    python -m tests.mutants.pure

A survivor that judged.toml does not have fails; it is printed as an entry, without its reason.

`[tool.mutmut]` in pyproject.toml says which modules and which tests, `operators` which mutations.
judged.toml has for each function its survivors, each with the reason why no test has to miss it.

Law: a survivor is named by its function, by what became of what, and by the number of that in the
function: `And>Or 2` is the second `and`, `And>Or 2.2` the same at another of its operands. So a
renamed variable changes nothing.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.cache import cache_folder
from lab.disk import temporary_directory
from tests.mutants.run import ROOT, copy

JUDGED = Path("tests/mutants/judged.toml")
PACKAGE = "binlog2s3"
KILLED, SURVIVED, NO_TESTS = "killed", "survived", "without a test"
_FORMED_NAME = "__mutmut_"  # x_function__mutmut_orig, xǁClassǁmethod__mutmut_1

Judged = Mapping[str, Mapping[str, str]]


def judged(path: Path) -> Judged:
    """The reasons, by function and by mutation; `*` stands for each of a function."""
    with path.open("rb") as file:
        document: Judged = tomllib.load(file)
    return document


def kind(before: ast.AST, after: ast.AST) -> str:
    """What became of what, and the number of that one in the function: `Gt>GtE 1`."""
    old, new = list(_words(before)), list(_words(after))
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
    if at is None:
        at = min(len(old), len(new)) - 1
    return f"{old[at]}>{new[at]} {old[: at + 1].count(old[at])}"


def _words(node: ast.AST) -> Iterator[str]:
    """The kinds of all nodes, in order; of a constant its value. No names but True and False."""
    yield repr(node.value) if isinstance(node, ast.Constant) else type(node).__name__
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in ("annotation", "returns", "ctx"):
                yield from _words(child)


def results(mutated: Path) -> Iterator[tuple[str, str, str]]:
    """Function, mutation and what became of it, of each that mutmut made below this folder."""
    for meta in sorted(mutated.rglob("*.py.meta")):
        codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        if not codes:
            continue
        tree = ast.parse(meta.with_suffix("").read_text(encoding="utf-8"))
        functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        alike: Counter[tuple[str, str]] = Counter()
        for key, code in codes.items():
            module, _, name = key.rpartition(".")
            formed = name.partition(_FORMED_NAME)[0]
            function = formed.removeprefix("xǁ").removeprefix("x_").replace("ǁ", ".")
            where = f"{module.removeprefix(f'{PACKAGE}.')}:{function}"
            what = kind(functions[f"{formed}{_FORMED_NAME}orig"], functions[name])
            alike[where, what] += 1
            if alike[where, what] > 1:
                what += f".{alike[where, what]}"
            if code is None:
                raise ValueError(f"mutmut did not come to {where}, {what}")
            yield where, what, {0: SURVIVED, 33: NO_TESTS, 34: NO_TESTS}.get(code, KILLED)


def mutate(tree: Path, children: int) -> None:
    """Run mutmut in a copy of the tree. Raises ValueError with its last words if it fails."""
    said = tree / "output"
    with said.open("wb") as output:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.mutants.operators",
                "run",
                "--max-children",
                str(children),
            ],
            cwd=tree,
            env=os.environ
            | {"PYTHONPATH": str(tree), "BINLOG2S3_CACHE": str(cache_folder().resolve())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        last = said.read_text(errors="replace").splitlines()[-25:]
        raise ValueError("\n".join([*last, f"mutmut ended with {done.returncode}"]))


def new_survivors(
    found: Sequence[tuple[str, str, str]], known: Judged
) -> dict[str, dict[str, str]]:
    """The survivors that nobody has judged, as entries of judged.toml."""
    new: dict[str, dict[str, str]] = {}
    for where, what, result in found:
        reasons = known.get(where, {})
        if result == SURVIVED and what not in reasons and "*" not in reasons:
            new.setdefault(where, {})[what] = ""
    return new


def stale(found: Sequence[tuple[str, str, str]], known: Judged) -> list[str]:
    """The entries of judged.toml for what is not there, or does not survive any more."""
    there: dict[str, set[str]] = {}
    for where, what, result in found:
        if result == SURVIVED:
            there.setdefault(where, {"*"}).add(what)
    return [
        f"{where} {what}"
        for where, reasons in known.items()
        for what in reasons
        if what not in there.get(where, ())
    ]


def entries(new: Mapping[str, Mapping[str, str]]) -> str:
    """As they stand in judged.toml, with a reason to be written."""
    lines = []
    for where, reasons in new.items():
        lines += [f'["{where}"]', *(f'"{what}" = "{why}"' for what, why in reasons.items()), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every survivor was judged, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.pure", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    begun, known = time.monotonic(), judged(ROOT / JUDGED)
    print("mutmut over the pure packages", flush=True)
    try:
        with temporary_directory("binlog2s3-mutmut-") as directory:
            tree = directory / "tree"
            copy(ROOT, tree, {})
            mutate(tree, given.jobs)
            found = list(results(tree / "mutants" / PACKAGE))
    except ValueError as error:
        print(f"{error}\nmutmut: failed")
        return 1
    new = new_survivors(found, known)
    print(*(f"judged, but no survivor: {one}" for one in stale(found, known)), sep="\n")
    print(entries(new))
    counts = Counter(result for _, _, result in found)
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    count = sum(map(len, new.values()))
    print(
        f"mutmut: {len(found)} mutants, {counts[KILLED]} caught, {counts[SURVIVED]} survive, "
        f"{count} of them not judged, {counts[NO_TESTS]} {NO_TESTS}, "
        f"in {minutes} min {seconds} s"
    )
    return 1 if count or not found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
