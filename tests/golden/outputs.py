"""What the commands print of the buckets in tests/golden/buckets.py, and the files that have it.

`COMMAND.txt` has each call as in a terminal that is no terminal: the words, standard output,
standard error, the exit code. `COMMAND.json` has the same calls with --json. The program is called
as the console script calls it; its clock and its store are passed in.
"""

import atexit
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from click.testing import CliRunner

from binlog2s3.cli.main import main
from binlog2s3.config.outside import Outside
from tests import rows_printer
from tests.golden.buckets import BUCKETS, EVERY_SOURCE, Golden

FOLDER = Path(__file__).parent
ANEW = "make golden"
COMMANDS: Mapping[str, tuple[Sequence[str], Sequence[str] | None]] = {
    "list": (["list"], []),
    "status": (["status"], ["--from=bucket"]),
    "find": (["find"], []),
    "rows": (["rows"], None),
    "verify": (["verify"], ["--deep"]),
    "check": (["check"], []),
    "pitr": (["pitr"], ["--latest", "--dry-run"]),
    "backup-list": (["backup", "list"], []),
    "prune": (["prune"], ["--keep-binlogs-for=1h", "--dry-run"]),
}
"""The words of each command, and those of its usual call; None: it has none."""
NO_SOURCE = ["--mysql-socket=/dev/null/mysqld.sock", "--mysql-user=repl"]
NO_SOURCE += ["--mysqlbinlog=/dev/null/mysqlbinlog", "--spool=/dev/null/spool"]
"""What `check` gets: a server, a program and a spool that no machine has."""
PROBES = re.compile(r"check-[0-9a-f]{8}")
"""What `check` puts has another name each time."""


@dataclass(frozen=True, slots=True)
class Called:
    """One call of the program, and what it did."""

    words: Sequence[str]
    out: str
    err: str
    code: int

    def text(self) -> str:
        shown = [f"$ binlog2s3 {' '.join(self.words)}", *self.out.splitlines()]
        shown += [f"! {line}" for line in self.err.splitlines()]
        return "".join(f"{line}\n" for line in (*shown, f"# exit code {self.code}"))

    def document(self) -> dict[str, object]:
        return {
            "call": " ".join(self.words),
            "exit_code": self.code,
            "stderr": self.err.splitlines(),
            "stdout": json.loads(self.out) if self.out else None,
        }


@cache
def _programs() -> str:
    """A folder with what stands in for mysqlbinlog, and for MariaDB's."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    for mariadb in (False, True):
        rows_printer.install(Path(folder), mariadb=mariadb)
    return folder


def called(golden: Golden, words: Sequence[str], **more: str) -> Called:
    """Call the program as the console script does, with `more` in its environment."""
    ours = ("AWS_", "BINLOG2S3_")
    unset = {name: None for name in os.environ if name.startswith(ours)}
    outside = Outside(
        now=lambda: golden.now,
        monotonic=lambda: 0.0,
        sleep=lambda _: None,
        session=golden.client.session,
    )
    code = 0
    path = f"{_programs()}:{os.environ['PATH']}"
    given = {**unset, "COLUMNS": "100", "PATH": path, **more}
    with CliRunner().isolation(env=given) as (out, err, _):
        try:
            main(words, outside)
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stderr.flush()
    return Called(words, _masked(out.getvalue()), _masked(err.getvalue()), code)


def _masked(data: bytes) -> str:
    text = PROBES.sub("check-********", data.decode())
    lines = text.splitlines(keepends=True)
    # only a slow machine prints progress
    return "".join(line for line in lines if not line.startswith("progress: "))


def words_of(golden: Golden, command: str) -> Iterator[list[str]]:
    """The words of each call of a command."""
    words, usual = COMMANDS[command]
    where = ["--s3-url=s3://acme/pre"]
    more = NO_SOURCE if command == "check" else []
    for call in golden.calls.get(command, () if usual is None else (usual,)):
        named = not golden.source or any(one.startswith("--source=") for one in call)
        named = named or (command == "status" and "--all" in call) or EVERY_SOURCE in call
        source = [] if named else [f"--source={golden.source}"]
        yield [*words, *where, *source, *more, *(one for one in call if one != EVERY_SOURCE)]


def outputs(bucket: str, command: str) -> dict[str, str]:
    """The content of each file of a bucket and a command, by its name; {}: it has no such call."""
    golden = BUCKETS[bucket]()
    calls = [*words_of(golden, command)]
    if not calls:
        return {}
    texts = [called(golden, words).text() for words in calls]
    asked = [[*words, "--json"] for words in calls if "--check" not in words]
    documents = [called(golden, [w for w in words if w != "--all" or command != "check"]).document()
                 for words in asked]  # fmt: skip
    return {
        f"{command}.txt": "\n".join(texts),
        f"{command}.json": json.dumps(documents, indent=1, ensure_ascii=True) + "\n",
    }


def write_anew(*buckets: str) -> None:
    """Write all files, and remove those of calls that are no more."""
    for bucket in buckets or BUCKETS:
        folder = FOLDER / bucket
        folder.mkdir(exist_ok=True)
        made = {name: text for one in COMMANDS for name, text in outputs(bucket, one).items()}
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        for path in folder.iterdir():
            if path.name not in made:
                path.unlink()
