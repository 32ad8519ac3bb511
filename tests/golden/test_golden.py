"""Everything that commands print of small buckets, held against files: tests/golden/BUCKET/.

A change of them is reviewed as a diff. tests/golden/buckets.py says what each bucket is.
"""

import difflib

import pytest

from tests.golden.buckets import BUCKETS
from tests.golden.outputs import ANEW, COMMANDS, FOLDER, outputs, words_of

_MOST = 60
CASES = [
    pytest.param(bucket, command, id=f"{bucket}-{command}")
    for bucket, made in BUCKETS.items()
    for golden in [made()]
    for command in COMMANDS
    if any(words_of(golden, command))
]


@pytest.mark.parametrize(("bucket", "command"), CASES)
def test_what_is_printed_is_as_it_was(bucket: str, command: str) -> None:
    """Text and JSON, standard error, and the exit code, to the letter."""
    for name, text in outputs(bucket, command).items():
        path = FOLDER / bucket / name
        kept = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text == kept:
            continue
        where = path.relative_to(FOLDER.parents[1])
        lines = [*difflib.unified_diff(
            kept.splitlines(), text.splitlines(), f"{where}", "what is printed now", "", "", 2, ""
        )]  # fmt: skip
        more = [f"... {len(lines) - _MOST} lines more"] if len(lines) > _MOST else []
        pytest.fail(
            "\n".join(
                (*lines[:_MOST], *more, f"if it is meant: `{ANEW}`, then `git diff {where}`")
            ),
            pytrace=False,
        )


def test_there_is_no_file_of_a_call_that_is_no_more() -> None:
    """Each file is held against what is printed."""
    wanted = {
        f"{b}/{c}.{kind}" for b, c in (one.values for one in CASES) for kind in ("txt", "json")
    }
    there = {
        f"{path.parent.name}/{path.name}"
        for folder in FOLDER.iterdir()
        if folder.is_dir() and folder.name != "__pycache__" and not folder.name[0].isdigit()
        for path in folder.iterdir()
    }
    assert there == wanted, f"`{ANEW}` writes what is missing, and removes what is left over"
