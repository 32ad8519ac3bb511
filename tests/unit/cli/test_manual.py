"""The manual pages, as the help has them."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from binlog2s3 import __version__
from binlog2s3.cli import commands as cli
from binlog2s3.cli.manual import Program

COMMANDS = {name: one for name, one in cli.binlog2s3.commands.items() if not one.hidden}
PROGRAM = Program(name="binlog2s3", version=__version__, itself=cli.binlog2s3, commands=COMMANDS)
PAGES = dict(PROGRAM.pages())


def shown(text: str, mandoc: Path) -> str:
    """A page as a terminal shows it, without bold and underlined."""
    done = subprocess.run(
        [str(mandoc), "-man", "-Tutf8", "-Owidth=200"],
        capture_output=True,
        check=True,
        input=text,
        text=True,
    )
    return re.sub(r".\x08", "", done.stdout)


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_command_has_a_page() -> None:
    """And the program itself; `man` is for those who make packages."""
    assert set(PAGES) == {"binlog2s3.1", *(f"binlog2s3-{name}.1" for name in COMMANDS)}
    assert {"stream", "pitr", "config", "completion"} <= set(COMMANDS)
    assert "man" not in COMMANDS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_good_roff(name: str, mandoc: Path) -> None:
    """Nothing in it that mandoc warns of, but for the date, which a page without one lacks."""
    done = subprocess.run(
        [str(mandoc), "-man", "-Tlint", "-Wwarning"],
        capture_output=True,
        check=False,
        input=PAGES[name],
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert found == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_what_the_help_says(name: str, mandoc: Path) -> None:
    """Its text, every option with its meaning, every line of the examples as it can be copied."""
    command: Any = COMMANDS[name]
    page = shown(PAGES[f"binlog2s3-{name}.1"], mandoc)
    assert words(command.help) in words(page)
    options = [param for param in command.params if isinstance(param, click.Option)]
    for option in options:
        assert words(f"{option.opts[0]} {option.metavar or ''} {option.help}") in words(page)
    for line in command.epilog.replace("\b\n", "").splitlines():
        if line.startswith("  "):
            assert f"{line.strip()}\n" in page
    if "Examples" in command.epilog:
        assert "\nEXAMPLES\n" in page
    assert f"binlog2s3 {__version__}" in page


def test_the_programs_own_page_names_the_commands(mandoc: Path) -> None:
    """Each with the page to go on with."""
    page = shown(PAGES["binlog2s3.1"], mandoc)
    for name in COMMANDS:
        assert f"binlog2s3-{name}(1)\n" in page
    assert "EXIT STATUS\n" in page


def test_text_that_would_be_a_request(mandoc: Path) -> None:
    """A line that begins with a dot or a quote, and backslashes, are shown as they are."""
    text = ".so /etc/passwd 'a' \\fB `b` ~ ^ -- \\"
    command = SimpleNamespace(
        help=text, epilog=f"\b\nExamples:\n  {text}\n  .TH x\n  'br\n", params=[]
    )
    program = Program(name="p", version="1", itself=command, commands={"c": command})
    page = shown(program.page("c"), mandoc)
    assert page.count(f"{text}\n") >= 2
    assert "  .TH x\n" in page
    assert "  'br\n" in page
