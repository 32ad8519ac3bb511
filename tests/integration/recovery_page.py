"""The pages of docs/recovery/ as programs: their blocks, a shell to run them, what they must print.

Law: a block is run as it stands, by bash, in one shell from the first to the last, as by somebody
who pastes them. Only the variables of prepare.md have other values.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from lab.get import ServerBinaries
from tests.waiting import PATIENCE, wait_until

START = Path(__file__).resolve().parents[2] / "docs/recovery.md"
PAGES = [START, *sorted(START.with_suffix("").glob("*.md"))]
VARIABLES = "prepare: Variables"
BLOCK_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block to paste, and the one after it that shows what comes of it.

    `section` is `page: heading`, or `page` before its first heading. `status` is the exit code that
    is announced before it; `not_run` says why nobody runs it here.
    """

    page: Path
    section: str
    line: int
    text: str
    status: int = 0
    not_run: str = ""
    shown: str | None = None

    @property
    def name(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.name}, line {self.line} ({self.section})"


def read_pages() -> list[Block]:
    """All blocks of all pages, each page's in their order."""
    return [block for page in PAGES for block in _read(page)]


def _read(page: Path) -> list[Block]:
    blocks: list[Block] = []
    section, said = page.stem, ""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if heading := re.fullmatch(r"#{2,3} (.*)", line):
            section, said = f"{page.stem}: {heading[1]}", ""
        elif comment := re.fullmatch(r"<!-- (.*) -->", line):
            said = comment[1]
        elif line.startswith("```"):
            body = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner)
            text = "\n".join(body) + "\n"
            kind = line[3:]
            if kind == "sh":
                blocks.append(_block(page, section, number, text, said))
            elif kind == "" and blocks and blocks[-1].section == section:
                assert blocks[-1].shown is None, f"two blocks of output for {blocks[-1].name}"
                blocks[-1] = replace(blocks[-1], shown=text)
            else:
                raise AssertionError(f"{page.name}, line {number}: unknown kind of block: {line}")
            said = ""
    return blocks


def _block(page: Path, section: str, line: int, text: str, said: str) -> Block:
    """With what a comment before it says."""
    made = Block(page=page, section=section, line=line, text=text)
    if reason := re.fullmatch(r"not run: (.+)", said):
        return replace(made, not_run=reason[1])
    if status := re.fullmatch(r"exit (\d+)", said):
        return replace(made, status=int(status[1]))
    assert not said, f"{page.name}, line {line}: unknown comment {said!r}"
    return made


# What is printed


_MASKS = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"\d{8}T\d{6}Z-[0-9a-f]{8}-[0-9a-f]{4}", "LINEAGE"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    # mysqldump writes an hour before ten with a blank: "2026-11-26  0:42:37".
    (r"\d{4}-\d\d-\d\d[T ][\d ]\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "TIME"),
    (r"\d+(-\d+)?([.,]\d+)*", "N"),
    (r"\s+", " "),
)


def masked(line: str) -> str:
    """Without what is different each time: numbers, times, names; a range of numbers is one."""
    for pattern, instead in _MASKS:
        line = re.sub(pattern, instead, line)
    return line.strip()


def differs(shown: str, printed: str) -> str:
    """How what was printed is not what the page shows; "" where it is.

    `...` on a line of its own stands for any lines, elsewhere for any text; empty lines are none.
    Nor are those that tell on a slow machine, each ten seconds, how far it is.
    """
    pattern = ""
    for line in filter(str.strip, shown.splitlines()):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(masked(part)) for part in line.split("...")) + r"\n"
    lines = [line for line in printed.splitlines() if not line.startswith("progress: ")]
    text = "".join(f"{masked(line)}\n" for line in filter(str.strip, lines))
    if re.fullmatch(pattern, text):
        return ""
    return f"the page shows\n{shown}\nand this was printed:\n{printed}"


# The shell


class Shell:
    """One bash for a whole accident, with the pages' variables; it dies with us, and all in it.

    `problems` are the blocks whose output is not what the page shows.
    """

    def __init__(
        self,
        folder: Path,
        programs: Sequence[Path],
        variables: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        kept = {"HOME": str(folder), "PATH": path, "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)}
        self._environment = {**kept, **environment}
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [*_leash(), "bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        self._say("set -euo pipefail")
        for name, value in self._variables.items():
            self._say(f"{name}={shlex.quote(value)}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # a session of its own: all are ours
        self._process.wait(PATIENCE)
        self._process.stdin.close()

    def run(self, block: Block) -> str:
        """Paste it; what it has printed. Fails where it does not end as the page says."""
        assert self._process is not None
        self._count += 1
        given, out, ended = (
            self._folder / f"{self._count:02}.{kind}" for kind in ("sh", "out", "status")
        )
        given.write_text(block.text)
        # errexit holds inside as well, but where the page announces a failure
        free = "set +e; " if block.status else ""
        self._say(
            f"{free}{{ . {given}; }} < /dev/null > {out} 2>&1; echo $? > {ended}.new; set -e; "
            f"mv {ended}.new {ended}"
        )
        process = self._process
        wait_until(lambda: ended.exists() or process.poll() is not None, BLOCK_SECONDS, block.name)
        printed = out.read_text(errors="replace") if out.exists() else ""
        found = int(ended.read_text()) if ended.exists() else process.poll()
        assert found == block.status, f"{block.name} ended with {found}:\n{block.text}\n{printed}"
        if block.shown is not None and (wrong := differs(block.shown, printed)):
            self.problems.append(f"{block.name}: {wrong}")
        return printed

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


def _leash() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def programs(folder: Path, binaries: ServerBinaries, aws: Path) -> list[Path]:
    """Directories for PATH: our command, the server's programs, aws. What stays up dies with us."""
    folder.mkdir()
    leash = shlex.join(_leash())
    chosen = {
        "binlog2s3": f"{shlex.quote(sys.executable)} -m binlog2s3",
        binaries.server.name: shlex.quote(str(binaries.server)),
        "python3": shlex.quote(sys.executable),
        "aws": shlex.quote(str(aws)),
    }
    for name, command in chosen.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {leash} {command} "$@"\n')
        program.chmod(0o755)
    return [folder, binaries.client.parent]
