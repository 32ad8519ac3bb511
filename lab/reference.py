"""What the documents say of the code, taken from the code: `python -m lab.reference` writes it.

What is generated is between the comments `<!-- begin NAME -->` and `<!-- end NAME -->`: the options
in docs/reference/, the table of what ends a transaction in docs/format.md, what `status` and `pitr`
print in docs/guides/. Of the tables of JSON fields (`FIELDS`) the names and types are generated;
what a field means stays as it is written there. The pictures of README.md are made too
(lab/screens.py), and the PrometheusRule of kubernetes/rules, of docs/alerts.yml. A test
(tests/unit/test_docs.py) fails if one of them is not what this would write.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from pathlib import Path
from textwrap import indent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import binlog2s3
from binlog2s3.archive import listing
from binlog2s3.archive.codec import TextOrNull, When, hints_of
from binlog2s3.binlog import transactions as transaction
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config import file as sample
from binlog2s3.config.backup import BACKUP_OPTIONS
from binlog2s3.config.drill import DRILL_OPTIONS
from binlog2s3.config.file import FILE_OPTIONS
from binlog2s3.config.find import FIND_OPTIONS
from binlog2s3.config.options import Option
from binlog2s3.config.pitr import PITR_OPTIONS
from binlog2s3.config.prune import PRUNE_OPTIONS
from binlog2s3.config.report import REPORT_OPTIONS
from binlog2s3.config.restore import RESTORE_OPTIONS
from binlog2s3.config.rows import ROWS_OPTIONS
from binlog2s3.config.serve import SERVE_OPTIONS
from binlog2s3.config.status import STATUS_OPTIONS
from binlog2s3.config.undo import UNDO_OPTIONS
from binlog2s3.config.verify import VERIFY_OPTIONS
from binlog2s3.inspect.check import report
from binlog2s3.inspect.find import view as find
from binlog2s3.inspect.verify import view as verify
from binlog2s3.inspect.verify.report import WORDS
from binlog2s3.recover import document as recovery
from binlog2s3.restore import document as restore
from binlog2s3.retain import backup
from binlog2s3.retain import view as prune
from binlog2s3.status.model import PrintedStatus
from binlog2s3.undo import view as undo
from lab import pitr_examples, screens, status_examples

ROOT = Path(__file__).parent.parent
PACKAGE = Path(binlog2s3.__file__).parent
_TABLE_TITLES = {
    "stream": "What is streamed",
    "mysql": "The source",
    "spool": "The spool",
    "s3": "The bucket",
    "log": "The log",
    "target": "The target of `pitr`, the server of `undo`",
}


def option_tables() -> str:
    """All options, a Markdown table for each table of the file."""
    sections = []
    for table in dict.fromkeys(option.table for option in FILE_OPTIONS):
        rows = [
            "| option | in the file | in the environment | type | default | meaning |",
            "|---|---|---|---|---|---|",
            *(_option_row(option) for option in FILE_OPTIONS if option.table == table),
        ]
        sections.append(f"## {_TABLE_TITLES[table]}: `[{table}]`\n\n" + "\n".join(rows))
    return "\n\n".join(sections)


def _option_row(option: Option) -> str:
    default = option.default_text
    if option.default is not None:
        default = f"`{default}`"
    cells = (
        f"`--{option.name}`",
        f"`{option.key}`",
        f"`{option.environment}`",
        _type_text(option),
        "required" if option.required else default or "none",
        option.help,
    )
    return f"| {' | '.join(cells)} |"


def status_option_table() -> str:
    """The options that `status` has for itself, a Markdown table."""
    return _own_table("status", STATUS_OPTIONS)


def pitr_option_table() -> str:
    """The options that `pitr` has for itself, a Markdown table."""
    return _own_table("pitr", PITR_OPTIONS)


def find_option_table() -> str:
    """The options that `find` has for itself, a Markdown table."""
    return _own_table("find", FIND_OPTIONS)


def rows_option_table() -> str:
    """The options that `rows` has for itself, a Markdown table."""
    return _own_table("rows", ROWS_OPTIONS)


def undo_option_table() -> str:
    """The options that `undo` has for itself, a Markdown table."""
    return _own_table("undo", UNDO_OPTIONS)


def serve_option_table() -> str:
    """The options that `serve` has for itself, a Markdown table."""
    return _own_table("serve", SERVE_OPTIONS)


def verify_option_table() -> str:
    """The options that `verify` has for itself, a Markdown table."""
    return _own_table("verify", VERIFY_OPTIONS)


def drill_option_table() -> str:
    """The options that `drill` has for itself, a Markdown table."""
    return _own_table("drill", DRILL_OPTIONS)


def report_option_table() -> str:
    """The options that `report` has for itself, a Markdown table."""
    return _own_table("report", REPORT_OPTIONS)


def restore_option_table() -> str:
    """The options that `restore` has for itself, a Markdown table."""
    return _own_table("restore", RESTORE_OPTIONS)


def backup_option_table() -> str:
    """The options that `backup` has for itself, a Markdown table."""
    return _own_table("backup", BACKUP_OPTIONS)


def prune_option_table() -> str:
    """The options that `prune` has for itself, a Markdown table."""
    return _own_table("prune", PRUNE_OPTIONS)


def defect_table() -> str:
    """The kinds of defects that `verify` finds, a Markdown table."""
    rows = ["| kind | what it is | for a recovery | what to do |", "|---|---|---|---|"]
    rows += [
        f"| `{kind}` | {said.what} | {said.follows} | {said.todo} |" for kind, said in WORDS.items()
    ]
    return "\n".join(rows)


def _own_table(command: str, options: Sequence[Option]) -> str:
    rows = [f"| option of `{command}` | type | default | meaning |", "|---|---|---|---|"]
    for option in options:
        cells = (f"`--{option.name}`", _type_text(option), option.default_text or "none")
        rows.append(f"| {' | '.join(cells)} | {option.help} |")
    return "\n".join(rows)


def _type_text(option: Option) -> str:
    if option.choices:
        return "one of " + ", ".join(f"`{choice}`" for choice in option.choices)
    kind = {
        "source": "name",
        "binlog": "binlog's name",
        "file": "readable file",
        "s3 url": "URL",
        "endpoint": "URL",
    }.get(option.kind, option.kind)
    if option.least is None or option.most is None:
        return kind
    least, most = (_amount(option, value) for value in (option.least, option.most))
    return f"{kind}, {least} to {most}"


def _amount(option: Option, value: float) -> str:
    if option.kind == "size":
        return f"{value / (1 << 20):g} MiB" if value < 1 << 30 else f"{value / (1 << 30):g} GiB"
    return f"{value:,}" + (" s" if option.kind == "duration" else "")


def sample_file() -> str:
    """The example of a configuration file, in a fence."""
    return f"```toml\n{sample.example()}```"


def transaction_ends() -> str:
    """The table in the docstring of `binlog.transactions`."""
    text = transaction.__doc__ or ""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


@dataclass(frozen=True, slots=True, order=True)
class LogEvent:
    """One event that the package logs: where, how loud, with which fields."""

    name: str
    level: str
    module: str
    fields: tuple[str, ...]


def log_events() -> Iterator[LogEvent]:
    """Every call of a module's `_log` in the package; ValueError where its name is no constant."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log."):
                first = node.args[0] if node.args else None
                if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
                    raise ValueError(f"{path.name}: an event's name must be a constant text")
                yield LogEvent(
                    name=first.value,
                    level=ast.unparse(node.func)
                    .removeprefix("_log.")
                    .replace("recurring", "warning")
                    .replace("over", "info"),
                    module=path.stem,
                    fields=tuple(word.arg or "**" for word in node.keywords),
                )


_WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", BinlogName: "text"}


def type_words(hint: Any) -> str:
    """What a document says of a field's type.

    >>> type_words(int | None), type_words(When), type_words(tuple[str, ...])
    ('integer or null', 'time', 'list')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint == TextOrNull:
        return "text or null"
    if hint == When or hint is datetime:
        return "time"
    if origin is Annotated:
        return type_words(inner[0])
    if origin in (Union, UnionType):
        some = type_words(next(one for one in inner if one is not NoneType))
        return f"{some.removesuffix(' or null')} or null"
    if origin is tuple:
        return "list"
    return "text" if origin is Literal else _WORDS.get(hint, "object")


def inner_hints(kind: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a document, those of inner objects with dots, and their types."""
    for name, hint in hints_of(kind).items():
        yield f"{before}{name}", hint
        one = hint
        while inner := [part for part in get_args(one) if part not in (NoneType, ...)]:
            one = inner[0]
        if is_dataclass(one):
            yield from inner_hints(one, f"{before}{name}.")


def _with_fields(text: str, first_cell: str, hints: Mapping[str, Any]) -> str:
    """The table of these fields made again; ValueError if it is missing."""
    before, head, rest = text.partition(f"\n| {first_cell} | type | meaning |\n|---|---|---|\n")
    if not head:
        raise ValueError(f"there is no table {first_cell!r}")
    table, end, after = rest.partition("\n\n")
    meanings: dict[str, str] = {}
    for row in table.splitlines():
        name, _, meaning = row.removeprefix("| `").partition("` | ")
        meanings[name] = meaning.partition(" |")[2].removesuffix("|").strip()
    rows = [
        f"| `{name}` | {type_words(hint)} | {meanings.get(name, '?')} |".replace("|  |", "| |")
        for name, hint in hints.items()
    ]
    return f"{before}{head}{chr(10).join(rows)}{end or chr(10)}{after}"


GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    "docs/guides/look.md": {
        "status": status_examples.one,
        "status of all": status_examples.table,
        "status watched": status_examples.screen,
    },
    "docs/guides/pitr.md": {"pitr": pitr_examples.plan, "not proved": pitr_examples.doubted},
    "docs/reference/options.md": {"options": option_tables},
    "docs/reference/status.md": {
        "options of status": status_option_table,
        "lines of status": status_examples.line,
    },
    "docs/reference/pitr.md": {"options of pitr": pitr_option_table},
    "docs/reference/verify.md": {
        "options of verify": verify_option_table,
        "kinds of defects": defect_table,
    },
    "docs/reference/find.md": {"options of find": find_option_table},
    "docs/reference/rows.md": {"options of rows": rows_option_table},
    "docs/reference/undo.md": {"options of undo": undo_option_table},
    "docs/reference/serve.md": {"options of serve": serve_option_table},
    "docs/reference/backup.md": {"options of backup": backup_option_table},
    "docs/reference/drill.md": {"options of drill": drill_option_table},
    "docs/reference/report.md": {"options of report": report_option_table},
    "docs/reference/restore.md": {"options of restore": restore_option_table},
    "docs/reference/prune.md": {"options of prune": prune_option_table},
    "docs/reference/configuration.md": {"example": sample_file},
    "docs/format.md": {"transaction ends": transaction_ends},
}


FIELDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "docs/reference/backup.md": {
        "field of the document": hints_of(backup.PrintedBackups),
        "field of a backup": hints_of(backup.PrintedBackup),
    },
    "docs/reference/check.md": {
        "field of the document": hints_of(report.PrintedRows),
        "field of a row": hints_of(report.PrintedRow),
    },
    "docs/reference/find.md": {
        "field of the search": {
            **hints_of(find.PrintedHead),
            "transactions": tuple[find.PrintedHit, ...],
            **hints_of(find.PrintedTail),
        },
        "field of what was found": hints_of(find.PrintedHit),
    },
    "docs/reference/list.md": {
        "field of the document": hints_of(listing.PrintedListing),
        "field of a lineage": hints_of(listing.PrintedLineage),
        "field of a binlog": hints_of(listing.PrintedBinlog),
    },
    "docs/reference/rows.md": {
        "field with rows": {
            "rows": tuple[find.PrintedRow, ...],
            **hints_of(find.PrintedRowsTail),
        },
    },
    "docs/reference/pitr.md": {
        "field of the document": hints_of(recovery.PrintedRecovery),
        "field of the plan": hints_of(recovery.PrintedPlan),
        "field of a piece": hints_of(recovery.PrintedPiece),
        "field of a transaction": hints_of(recovery.PrintedShown),
        "field of the result": hints_of(recovery.PrintedResult),
        "field of `base_backup`": hints_of(recovery.PrintedBase),
    },
    "docs/reference/prune.md": {"field of the document": hints_of(prune.PrintedPrune)},
    "docs/reference/restore.md": {
        "field of the document": hints_of(restore.PrintedRestore),
        "field of `--dry-run`": hints_of(restore.PrintedChoice),
    },
    "docs/reference/undo.md": {
        "field of the document": hints_of(undo.PrintedUndo),
        "field of a transaction": hints_of(undo.PrintedTransaction),
        "field of a table": hints_of(undo.PrintedTable),
        "field of a conflict": hints_of(undo.PrintedConflict),
    },
    "docs/reference/status-document.md": {"field of the status": dict(inner_hints(PrintedStatus))},
    "docs/reference/verify.md": {
        "field of the document": hints_of(verify.PrintedReport),
        "field of a source": hints_of(verify.PrintedSource),
        "field of a verified lineage": hints_of(verify.PrintedLineage),
        "field of an interval": hints_of(verify.PrintedInterval),
        "field of a defect": hints_of(verify.PrintedDefect),
    },
}
"""The tables of JSON fields, by their first cells, with the types of the fields."""


def written(document: str) -> str:
    """A document with what is generated in it made again; ValueError if its place is missing."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for first_cell, hints in FIELDS.get(document, {}).items():
        text = _with_fields(text, first_cell, hints)
    for name, make in GENERATED.get(document, {}).items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"{document} has no {begin.strip()} ... {end}")
        text = f"{before}{begin}\n{make()}\n\n{end}{after}"
    return text


RULES = "kubernetes/rules/prometheusrule.yaml"
"""The alert rules as an object of the Prometheus Operator."""

_RULES_HEAD = """\
# Made of docs/alerts.yml: `python -m lab.reference` writes it anew.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: binlog2s3
  labels:
    app.kubernetes.io/name: binlog2s3
    app.kubernetes.io/component: rules
    app.kubernetes.io/part-of: binlog2s3
    app.kubernetes.io/version: "{version}"
spec:
"""


def rules_manifest() -> str:
    """docs/alerts.yml below the head of a PrometheusRule, without its first comment."""
    _, found, groups = (ROOT / "docs/alerts.yml").read_text(encoding="utf-8").partition("\ngroups:")
    if not found:
        raise ValueError("docs/alerts.yml has no groups")
    return _RULES_HEAD.format(version=binlog2s3.__version__) + indent(f"groups:{groups}", "  ")


def main() -> None:
    """Write the generated parts of all documents, the pictures and the PrometheusRule."""
    (ROOT / RULES).write_text(rules_manifest(), encoding="utf-8")
    print(f"wrote {RULES}")
    for document in sorted(GENERATED.keys() | FIELDS):
        (ROOT / document).write_text(written(document), encoding="utf-8")
        print(f"wrote {document}")
    for picture, make in screens.PICTURES.items():
        (ROOT / picture).write_text(make(), encoding="utf-8")
        print(f"wrote {picture}")


if __name__ == "__main__":
    main()
