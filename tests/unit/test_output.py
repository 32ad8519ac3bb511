"""What is printed beside the output: one line each, with nothing that a terminal obeys."""

import io
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from binlog2s3.cli.main import main
from binlog2s3.errors import RecoveryError
from binlog2s3.output import Coloured, Column, Plain, Table, confirm, say

ROOT = Path(__file__).parents[2]
EVIL = "x\x1b[2J\x9b31m\u202e\r\nerror: forged\nhint: forged"


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", f"--config=/{EVIL}"],
        ["stream", f"--source={EVIL}", f"--mysql-host={EVIL}"],
        [f"list{EVIL}"],
        ["list", f"--{EVIL}"],
        ["status", EVIL],
        ["completion", EVIL],
    ],
)
def test_no_error_has_escapes_or_lines_of_others(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On every way out: our errors and hints, and those of the command line."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code not in (0, None)
    out, err = capsys.readouterr()
    assert not out
    lines = err.split("\n")
    assert any("forged" in line for line in lines)
    for line in lines:
        assert line.isprintable()
        assert not line.startswith(("error: forged", "hint: forged"))


def test_a_variable_that_means_nothing_is_named_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment may be somebody else's."""
    monkeypatch.setenv("BINLOG2S3_METRICS_LISTE\n", "x")
    with pytest.raises(SystemExit):
        main(["list", "--no-such"])
    (warning,) = (one for one in capsys.readouterr().err.split("\n") if one.startswith("warning"))
    assert warning.startswith("warning: unknown option BINLOG2S3_METRICS_LISTE\\n; did you mean")


def test_errors_hints_and_warnings_are_printed_in_one_place() -> None:
    """Nobody else makes such a line."""
    made = re.compile(r"""(?:print|echo|write)\(\s*f?["'](?:error|hint|warning): """)
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "binlog2s3").rglob("*.py")
        if made.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"binlog2s3/cli/main.py"}  # what the kernel says of standard output


def test_a_line_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A plain text is printed as it is."""
    say("hint", "büro: see /tmp/x")
    assert capsys.readouterr().err == "hint: büro: see /tmp/x\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def asked(answers: str) -> tuple[str, str]:
    """The questions, and the error, "" if the answer was yes."""
    out = Terminal()
    try:
        confirm("do it?", "done", hint="--yes", answers=Terminal(answers), out=out)
    except RecoveryError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), ""


QUESTION = "do it? [yes/no] "
NO = "not done: the answer was not yes"


@pytest.mark.parametrize(
    ("answers", "times", "error"),
    [
        *((f"{yes}\n", 1, "") for yes in ("yes", "y", "Y", " YES ")),
        *((no, 1, NO) for no in ("no\n", "n\n", "N\n", "")),
        ("\nja\ny\n", 3, ""),
        ("a\nyess\n\ny\n", 3, NO),
    ],
)
def test_an_answer(answers: str, times: int, error: str) -> None:
    """One letter is enough; the end of the input is a no.

    What is neither is asked again, a few times, and never taken for an answer.
    """
    assert asked(answers) == (QUESTION * times, error)


def test_a_question_needs_a_terminal() -> None:
    """Both of its ends."""
    for answers, out in ((Terminal("y\n"), io.StringIO()), (io.StringIO("y\n"), Terminal())):
        with pytest.raises(RecoveryError, match="no terminal"):
            confirm("do it?", "done", hint="--yes", answers=answers, out=out)
    with pytest.raises(RecoveryError, match="--json does not ask"):
        confirm(
            "do it?", "done", hint="--yes", as_json=True, answers=Terminal("y\n"), out=Terminal()
        )


# Tables


COLUMNS = (
    Column(name="binlog"),
    Column(name="size", right=True),
    Column(name="committed", least=len("2026-01-02")),
    Column(name="added", least=12, below=True),
)
ROWS = [
    ("b.000001", "1234", "2026-01-02T03:04:05Z", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"),
    ("b.000002", "1", "-", "-"),
    ("x\x1b[2J\n", "7", "2026-01-02T03:04:06Z", "0-1-2"),
]


def table(width: int | None) -> list[str]:
    """The lines of the table on a terminal of this width, or of a file."""
    out = io.StringIO()
    page = Plain(out) if width is None else Coloured(Console(file=out, width=width, _environ={}))
    shown = Table(page, COLUMNS, ROWS)
    for row in ROWS:
        shown.row(row)
    return out.getvalue().splitlines()


def test_a_table_in_a_file() -> None:
    """As wide as its cells are when they are printed; the last column has no end."""
    assert table(None) == [
        "  binlog      size  committed             added",
        "  b.000001    1234  2026-01-02T03:04:05Z  3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5",
        "  b.000002       1  -                     -",
        r"  x\x1b[2J\n     7  2026-01-02T03:04:06Z  0-1-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "first"),
    [
        (200, ROWS[0]),
        (70, ("b.000001", "1234", "2026-01-02T03:04:05Z", "3e11fa47-71ca-11e1-9e33-c80a")),
        (44, ("b.000001", "1234", "2026-01-02", "3e11fa47-71c")),
        (43, ("b.000001", "1234", "2026-01-02T03:04:05Z")),
        (34, ("b.000001", "1234", "2026-01-02")),
        (20, ("b.000001",)),
    ],
)
def test_a_table_on_a_terminal(width: int, first: tuple[str, ...]) -> None:
    """The widest columns give way, then the last one stands below, then all but the first do.

    Nothing is cut, and no line is too long.
    """
    lines = table(width)
    assert max(map(len, lines)) <= width
    (row,) = [line.split() for line in lines if "b.000001" in line]
    assert tuple(row) == first
    shown = Counter("".join(lines)) + Counter("TT")
    assert Counter("".join("".join(row) for row in ROWS[:2]).replace("-", "")) <= shown


@pytest.mark.parametrize("width", [1, 5, 12])
def test_a_table_on_hardly_a_terminal(width: int) -> None:
    """It ends, and no line is too long."""
    assert max(map(len, table(width))) <= width
