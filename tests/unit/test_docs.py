"""The documents say what the code does: options, exit codes, log events, fields, checksums."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import yaml

from binlog2s3 import __version__, errors
from binlog2s3.archive import facts
from binlog2s3.archive.backups import Backup, BackupRun
from binlog2s3.archive.codec import Crc64, as_fields, as_printed, converted
from binlog2s3.archive.documents import EntryEnd, Lineage, LineageFloor
from binlog2s3.archive.drills import DrillResult
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import Page, Step, build
from binlog2s3.archive.parts import BLOCK_SIZE, MAX_PARTS, Block, Grid
from binlog2s3.archive.stored import Stored
from binlog2s3.archive.writers import Heartbeat, WriterState
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.cli import commands as cli
from binlog2s3.cli import group
from binlog2s3.config.backup import BACKUP_OPTIONS
from binlog2s3.config.drill import DRILL_OPTIONS
from binlog2s3.config.file import FILE_OPTIONS, read_file
from binlog2s3.config.prune import PRUNE_OPTIONS
from binlog2s3.config.serve import SERVE_OPTIONS
from binlog2s3.config.stream import OPTIONS
from binlog2s3.inspect.check import report as preflight
from binlog2s3.inspect.verify import report as verify_report
from binlog2s3.inspect.verify import view as verify_view
from binlog2s3.log import EVENT_IDS, event_id
from binlog2s3.recover import document as pitr_document
from binlog2s3.recover import view as pitr_view
from binlog2s3.recover.manifest import Manifest, WrittenFile
from lab import pitr_examples, reference, screens
from tests import damage, verified
from tests.documents import (
    BACKUP,
    BACKUP_RUN,
    BEAT,
    DRILL,
    ENTRY,
    FLOOR,
    LINEAGE,
    NAME,
    STORED,
    UUID,
)

ROOT = reference.ROOT
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs/format.md").read_text(encoding="utf-8")

OF_OTHERS = {
    "aws": """--bucket --checksum-mode --cluster-name --hostname --key --lifecycle-configuration
        --only-show-errors --output --prefix --query --recursive --retention --role-arn
        --service-account --username --versioning-configuration""",
    "az": "--enable-oidc-issuer",
    "docker and kubectl": """--build-arg --build-context --cap-drop --filename --from-file --name
        --namespace --output --read-only --restart --rm --security-opt --tmpfs --wait""",
    "helm": "--values",
    "mysql": """--binary-mode --defaults-file --init-command --no-defaults --silent --socket
        --ssl-mode""",
    "mysqlbinlog": """--base64-output --exclude-gtids --host --port --raw --read-from-remote-server
        --start-position --stop-never --stop-position --to-last-log --verbose
        --verify-binlog-checksum""",
    "mysqld": """--auth-root-authentication-method --enforce-gtid-consistency --gtid-mode
        --restrict-fk-on-non-standard-key
        --initialize-insecure --replica-parallel-workers --skip-networking --skip-replica-start
        --skip-slave-start --slave-parallel-threads --upgrade --user""",
    "mysqldump and mariadb-dump": """--all-databases --compact --databases --dump-history
        --events --master-data --no-create-info --no-data --routines --set-gtid-purged
        --single-transaction --skip-add-drop-table --skip-dump-history --skip-triggers
        --skip-tz-utc --source-data --triggers""",
    "node_exporter": "--collector",
    "pipx and systemctl": "--force --global --now",
    "pmm-admin": "--external-name --listen-port --metrics-path --scheme --service-name",
    "tools of the comparison": "--flashback --with-history",
    "xtrabackup": "--backup --decompress --prepare --remove-original --stream --target-dir",
}
"""Options of other programs that the documents speak of."""
FOREIGN = {option for options in OF_OTHERS.values() for option in options.split()}


def rows(text: str, first_cell: str) -> Iterator[list[str]]:
    """The cells of all tables whose head begins with this cell."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first_cell:
            inside = True
        elif inside and not line.startswith("|--"):
            yield cells


def page(name: str) -> str:
    """A page of the reference."""
    return (ROOT / "docs/reference" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"no heading {heading}"
    return found[1]


@pytest.mark.parametrize("document", sorted(reference.GENERATED.keys() | reference.FIELDS))
def test_what_is_generated_is_up_to_date(document: str) -> None:
    """Otherwise: `python -m lab.reference`; a new field needs its meaning there."""
    text = (ROOT / document).read_text(encoding="utf-8")
    assert reference.written(document) == text
    assert " | ? |" not in text


@pytest.mark.parametrize("picture", screens.PICTURES)
def test_pictures_are_what_the_commands_print(picture: str) -> None:
    """Otherwise: `python -m lab.reference`. The README shows them."""
    assert screens.PICTURES[picture]() == (ROOT / picture).read_text(encoding="utf-8")
    assert f"]({picture})" in README


def test_the_manifest_of_the_rules_is_made_of_them() -> None:
    """Otherwise: `python -m lab.reference`."""
    text = (ROOT / reference.RULES).read_text(encoding="utf-8")
    assert text == reference.rules_manifest()
    alerts = yaml.safe_load((ROOT / "docs/alerts.yml").read_text(encoding="utf-8"))
    assert yaml.safe_load(text)["spec"] == alerts


def test_the_command_has_the_options_of_the_reference() -> None:
    """What click knows is the table, but for the target's, --config and -h."""
    known = {name for parameter in cli.stream.params for name in parameter.opts}
    assert known == {f"--{option.name}" for option in OPTIONS} | {"--config"}


@pytest.mark.parametrize(
    "name",
    [
        "list",
        "status",
        "pitr",
        "verify",
        "find",
        "rows",
        "health",
        "backup",
        "prune",
        "report",
        "drill",
        "restore",
    ],
)
def test_the_options_of_a_command_are_in_the_reference(name: str) -> None:
    """All that click knows are named where the command is described, and no other one."""
    params = cli.binlog2s3.commands[name].params
    known = {name for p in params if isinstance(p, click.Option) for name in p.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page(name))) == known


def test_config_is_in_the_reference() -> None:
    """It takes what may be in a file; its own two options are named where it is described."""
    known = {name for parameter in cli.config_.params for name in parameter.opts}
    own = known - {f"--{option.name}" for option in FILE_OPTIONS} - {"--config"}
    assert own == {"--example", "--show"}
    text = page("configuration")
    assert all(f"`binlog2s3 config {name}`" in text for name in own)


def test_every_command_is_in_the_reference() -> None:
    """In the table that stands first, those that the help does not show too."""
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `binlog2s3 ([a-z]+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(cli.binlog2s3.commands)


def test_check_is_in_the_reference() -> None:
    """It takes what `stream` takes, --all and --json; each part has its exit code."""
    known = {name for parameter in cli.check.params for name in parameter.opts}
    assert known == {f"--{option.name}" for option in OPTIONS} | {"--config", "--all", "--json"}
    parts = [(row[0].strip("`"), int(row[1])) for row in rows(page("check"), "part")]
    assert parts == list(preflight.EXIT_CODES.items())


def are_as_in_the_table(documents: list[Any], text: str, first_cell: str) -> None:
    """The fields in their order, of the type that is said, null only where it may be."""
    table = {row[0].strip("`"): row[1] for row in rows(text, first_cell) if "." not in row[0]}
    for document in documents:
        assert list(document) == list(table)
        assert [field for field, value in document.items() if not fits(value, table[field])] == []


def printed(command: str, path: str) -> list[Any]:
    """All objects at a path of the documents that a command prints of the golden buckets.

    Those of `verify` never come from a repair or a comparison with the source: one more is.
    """
    found = []
    for file in (ROOT / "tests/golden").glob(f"*/{command}.json"):
        found += [call["stdout"] for call in json.loads(file.read_text(encoding="utf-8"))]
    found += [as_printed(verify_view.PrintedReport, verified.REPORT)] if command == "verify" else []
    for name in path.split():
        below = [one[name] for one in found if one]
        found = [one for value in below for one in (value if isinstance(value, list) else [value])]
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("command", "path", "first_cell"),
    [
        ("check", "", "field of the document"),
        ("check", "parts", "field of a row"),
        ("list", "", "field of the document"),
        ("list", "sources lineages", "field of a lineage"),
        ("list", "sources lineages binlogs", "field of a binlog"),
        ("find", "", "field of the search"),
        ("find", "transactions", "field of what was found"),
        ("backup-list", "", "field of the document"),
        ("backup-list", "backups", "field of a backup"),
        ("prune", "", "field of the document"),
        ("pitr", "", "field of the document"),
        ("pitr", "plan", "field of the plan"),
        ("pitr", "plan pieces", "field of a piece"),
        ("pitr", "plan kept", "field of a transaction"),
        ("pitr", "plan left_out", "field of a transaction"),
        ("verify", "", "field of the document"),
        ("verify", "sources", "field of a source"),
        ("verify", "sources lineages", "field of a verified lineage"),
        ("verify", "sources recoverable", "field of an interval"),
        ("verify", "sources defects", "field of a defect"),
    ],
)
def test_what_a_command_prints_is_as_documented(command: str, path: str, first_cell: str) -> None:
    """Every field of --json in its order, of the type that is said, null only where it may be."""
    documents = printed(command, path)
    assert documents
    are_as_in_the_table(documents, page(command.removesuffix("-list")), first_cell)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("list", "sources"),
        ("list", "sources lineages missing"),
        ("backup-list", "backups reach"),
        ("backup-list", "backups stored"),
        ("find", "sought"),
        ("find", "looked_through"),
        ("find", "transactions changes"),
        ("prune", "given_up"),
        ("prune", "below"),
        ("prune", "spent"),
        ("prune", "leftovers"),
        ("pitr", "plan goal"),
        ("pitr", "plan stop"),
        ("pitr", "plan reachable"),
        ("verify", "sources gaps"),
        ("verify", "sources answer"),
        ("verify", "sources repaired"),
        ("verify", "sources against_source"),
        ("verify", "sources recoverable first"),
        ("verify", "sources recoverable last"),
    ],
)
def test_the_fields_of_inner_objects_are_named(command: str, path: str) -> None:
    """Beside the field that has them."""
    text = page(command.removesuffix("-list"))
    *_, field = path.split()
    named = [row for row in text.splitlines() if row.startswith(f"| `{field}` |")]
    found = printed(command, path)
    assert found
    assert any(all(f"`{name}`" in row for name in found[0]) for row in named)


def test_every_state_of_a_binlog_is_in_the_reference() -> None:
    """Also those that come rarely."""
    states = {row[0].strip("`") for row in rows(page("list"), "state")}
    assert states == set(get_args(facts.State))


def test_the_status_document_is_as_documented() -> None:
    """Of one source; the fields of inner objects have dots there."""
    found = [one for one in printed("status", "") if "state" in one]
    assert found
    are_as_in_the_table(found, page("status-document"), "field of the status")


def test_the_result_of_a_recovery_is_as_documented() -> None:
    """Of one that was done, and of one that had nothing to do."""
    done = pitr_examples.RESULT, pitr_view.Result(how="nothing")
    results = [as_printed(pitr_document.PrintedResult, one) for one in done]
    are_as_in_the_table(results, page("pitr"), "field of the result")


def test_the_manifest_of_a_recovery_is_as_documented() -> None:
    """Every field in its order, of the type that is said; a file has a piece's, and two more."""
    text = page("pitr")
    plan = pitr_examples.PLAN
    piece = replace(plan.pieces[0], gtids=GtidSet(), greatest_commit_us=None)
    whole = Manifest(
        source="orders", flavour="mysql", server_version="9.7.0", lineage=plan.lineage,
        written_at=datetime(2026, 1, 2, tzinfo=UTC), gtids_before=str(plan.before),
        gtids_added=str(plan.adds), gtids_skipped=f"{UUID}:7", files=(WrittenFile.of(piece, 9, 1),),
    )  # fmt: skip
    least = replace(whole, gtids_before=None, gtids_added=None, gtids_skipped=None)
    documents = [json.loads(one.to_json()) for one in (whole, least)]
    are_as_in_the_table(documents, text, "field of the manifest")
    file = documents[0]["files"][0]
    of_piece = as_printed(pitr_document.PrintedPiece, piece)
    assert list(file)[: len(of_piece)] == list(of_piece)
    own = {name: value for name, value in file.items() if name not in of_piece}
    are_as_in_the_table([own], text, "field of a file")
    assert f"at most {Manifest.MOST >> 20} MiB" in text


def test_every_kind_of_defect_is_in_the_reference() -> None:
    """With what follows, and what to do; and every field of an entry, whether it can lie unseen."""
    text = page("verify")
    documented = [row[0].strip("`") for row in rows(text, "kind")]
    assert documented == list(get_args(verify_report.Kind)) == list(verify_report.WORDS)
    fields = json.loads(ENTRY.to_json()).keys() - {"format", "encoding", "encryption"}
    named = [name for row in rows(text, "field that lies") for name in row[0].split(", ")]
    assert {name.strip("`") for name in named} == fields
    for row in rows(text, "field that lies"):
        for name in row[0].replace("`", "").split(", "):
            lies = [one for key, one in damage.FIELDS.items() if key.split(",")[0] == name]
            assert all(one.deep for one in lies), name
            found = {bool(one.looked) for one in lies}
            expected = {"yes": {True}, "no": {False}}.get(row[1])
            if name != "archived_at" and expected is not None:
                assert found == expected, name
            assert bool(lies) == (name != "archived_at"), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_no_option_that_does_not_exist(path: Path) -> None:
    """Neither on the command line nor in the environment."""
    text = path.read_text(encoding="utf-8")
    ours = {f"--{option.name}" for option in OPTIONS} | {"--config", "--help", "--version"}
    for command in cli.binlog2s3.commands.values():
        ours |= {name for parameter in command.params for name in parameter.opts}
    named = set(re.findall(r"(?<![\w<!-])--[a-z][a-z0-9-]*", text))
    assert named - ours - FOREIGN == set()
    variables = set(re.findall(r"\bBINLOG2S3_[A-Z0-9_]+", text))
    many = (*FILE_OPTIONS, *SERVE_OPTIONS, *DRILL_OPTIONS, *BACKUP_OPTIONS, *PRUNE_OPTIONS)
    known = {option.environment for option in many}
    assert variables - known - {"BINLOG2S3_CONFIG"} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_toml_in_documents_is_good(path: Path, tmp_path: Path) -> None:
    """Every table of a configuration file that is shown has keys and values that are taken."""
    blocks = re.findall(
        r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for block in blocks:
        file = tmp_path / "x.toml"
        file.write_text(block)
        found = read_file(file)
        assert found.problems == ()
        assert found.values


def exit_codes() -> set[int]:
    """0, click's own, an interrupt, a closed pipe, and those of the errors."""

    def below(error: type[errors.Binlog2s3Error]) -> set[int]:
        return {error.exit_code}.union(*(below(child) for child in error.__subclasses__()))

    return {0, click.UsageError.exit_code, 130, group.CLOSED_PIPE} | below(errors.Binlog2s3Error)


def test_exit_codes_are_in_the_reference_and_in_the_help() -> None:
    """All of them, no others, each once."""
    documented = [int(row[0]) for row in rows(page("exit-codes"), "code")]
    assert sorted(documented) == sorted(exit_codes())
    help_text = group.EXIT_CODES.replace("\n", " ")
    assert {int(number) for number in re.findall(r"\b\d+\b", help_text)} == exit_codes()


@cache
def log_events() -> tuple[reference.LogEvent, ...]:
    """Reading the whole package takes a while."""
    return tuple(reference.log_events())


def test_the_readme_is_short_and_says_how_far_it_is() -> None:
    """A minute's reading; the status is that of this version, as its classifier has it."""
    assert len(README.split()) <= 900
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [stage] = [one for one in project["classifiers"] if one.startswith("Development Status")]
    assert f"\n## Status\n\n{stage.rpartition(' ')[2]}, {__version__}. " in README


def test_log_events_are_in_the_reference() -> None:
    """Every event with its id, level and fields; and no event that is not logged."""
    documented = {
        (row[0].strip("`"), row[1], row[2], tuple(re.findall(r"`(\w+)`", row[3])))
        for row in rows(page("events"), "event")
    }
    logged = set()
    for event in log_events():
        # Log.error takes its error without a name, and every error brings its hint
        error = ("error",) if event.level == "error" else ()
        fields = error + tuple(f for f in event.fields if f != "hint")
        logged.add((event_id(event.name), event.name, event.level, fields))
    assert documented == logged


def test_ids_of_events_are_short_and_tell_events_apart() -> None:
    """A program searches by them. None is kept for a message that nothing logs."""
    messages = {event.name for event in log_events()}
    ids = {event_id(message) for message in messages}
    assert len(ids) == len(messages)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", one) for one in ids)
    assert max(map(len, ids)) <= 45
    assert set(EVENT_IDS) <= messages


def test_the_end_of_an_outage_names_warnings_that_recur() -> None:
    """Else it would never be logged."""
    calls = [
        node
        for path in reference.PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    of = {
        kind: [node.args for node in calls if ast.unparse(node.func) == f"_log.{kind}"]
        for kind in ("over", "recurring")
    }
    recurring = {ast.literal_eval(args[0]) for args in of["recurring"]}
    ended = {ast.literal_eval(arg) for args in of["over"] for arg in args[1:]}
    assert ended
    assert ended <= recurring


def test_fields_of_log_events_do_not_hide_what_every_line_has() -> None:
    """`time`, `level`, `part`, `event`, `message` are the line's own."""
    own = {"time", "level", "part", "event", "message", "**"}
    for event in log_events():
        assert not own & set(event.fields), event.name


TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "hex": (str,),
    "time": (str,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "list": (list,),
    "true or false": (bool,),
}


def fits(value: Any, kind: str) -> bool:
    """Whether a JSON value is what the document says."""
    if value is None:
        return kind.endswith(" or null")
    kind = kind.removesuffix(" or null")
    if not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "true or false"):
        return False
    if kind == "hex":
        return bool(re.fullmatch("[0-9a-f]{16}", value))
    if kind == "time":
        return datetime.fromisoformat(value).tzinfo is not None and len(value) == 27
    return True


EMPTY_ENTRY = replace(
    ENTRY,
    least_commit_us=None,
    greatest_commit_us=None,
    reached_us=None,
    next_binlog=None,
    end="stop",
)
EMPTY_BEAT = replace(BEAT, lineage=None, durable=None, server=None, covered_until=None, status=None)
BY_GTIDS = replace(BACKUP, binlog=None, position=None, lineage=None)
BY_PLACE = replace(BACKUP, gtid_set=None)
FAILED_DRILL = replace(
    DRILL,
    outcome="failed",
    step="choose",
    error="no base backup is registered",
    backup=None,
    lineage=None,
    binlog=None,
    position=None,
    proven_until=None,
)
INNER = "field of `before` and `after`"
PAGE = build(replace(LINEAGE, first_binlog=NAME), 0, {NAME.number: ENTRY}, None)
NOTHING_BEGINS = as_fields(
    Block(
        offset=BLOCK_SIZE,
        size=1,
        crc64=Crc64(1),
        first_offset=None,
        first_commit_us=None,
        first_gtid=None,
    )
)


@pytest.mark.parametrize(
    ("heading", "first_cell", "documents"),
    [
        ("lineage.json", "field", [LINEAGE.to_json()]),
        ("Entry", "field", [ENTRY.to_json(), EMPTY_ENTRY.to_json()]),
        (
            "Entry",
            "block's field",
            [json.dumps(json.loads(ENTRY.to_json())["blocks"][0]), json.dumps(NOTHING_BEGINS)],
        ),
        ("Writer's object", "field", [BEAT.to_json(), EMPTY_BEAT.to_json()]),
        ("Floor", "field", [FLOOR.to_json()]),
        ("Backup", "field", [BACKUP.to_json(), BY_GTIDS.to_json(), BY_PLACE.to_json()]),
        ("Stored backup", "field of `stored`", [json.dumps(as_fields(STORED)).encode()]),
        ("Run of a backup", "field", [BACKUP_RUN.to_json()]),
        ("Drill", "field", [DRILL.to_json(), FAILED_DRILL.to_json()]),
        ("Page", "field", [PAGE.to_json()]),
        (
            "Page",
            INNER,
            [json.dumps(json.loads(PAGE.to_json())[which]) for which in ("before", "after")],
        ),
    ],
)
def test_fields_are_as_documented(heading: str, first_cell: str, documents: list[bytes]) -> None:
    """Those that are written, in that order, of the type that is said, null only where it may."""
    table = {row[0].strip("`"): row[1] for row in rows(section(FORMAT, heading), first_cell)}
    for document in map(json.loads, documents):
        assert list(document) == list(table)
        for field, value in document.items():
            assert fits(value, table[field]), field
    may_be_null = {field for field, kind in table.items() if kind.endswith(" or null")}
    if len(documents) > 1:
        assert {k for d in documents for k, v in json.loads(d).items() if v is None} == may_be_null


KEYS = (
    "prod/archive/orders-primary/20260102T030405Z-3e11fa47-a1b2/lineage.json",
    "prod/archive/orders-primary/20260102T030405Z-3e11fa47-a1b2/entries/mysql-bin.000001.json",
    "prod/live/orders-primary/writers/000007-19b7ca9945841aa9.json",
    "prod/archive/orders-primary/20260102T030405Z-3e11fa47-a1b2/pages/0000000000-0000000999.json",
    "prod/archive/orders-primary/20260102T030405Z-3e11fa47-a1b2/floors/0000000042.json",
    "prod/archive/orders-primary/backups/20260102T030405Z-1f2e3d4c.json",
    "prod/archive/orders-primary/drills/20260102T031244Z-5a6b7c8d.json",
    "prod/live/orders-primary/backups/20260102T030405Z-1f2e3d4c.json",
)
"""Those that docs/format.md has as examples."""


def stored_of(data: bytes, key: str) -> Stored:
    """The field `stored` of a backup's document."""
    del key
    return converted(json.loads(data), Stored)


@pytest.mark.parametrize(
    ("heading", "written", "read", "key"),
    [
        ("lineage.json", LINEAGE.to_json(), Lineage.from_json, KEYS[0]),
        ("Entry", ENTRY.to_json(), EntryEnd.from_json, KEYS[1]),
        ("Writer's object", BEAT.to_json(), Heartbeat.from_json, KEYS[2]),
        ("Page", PAGE.to_json(), Page.from_json, KEYS[3]),
        ("Floor", FLOOR.to_json(), LineageFloor.from_json, KEYS[4]),
        ("Backup", BACKUP.to_json(), Backup.from_json, KEYS[5]),
        ("Drill", DRILL.to_json(), DrillResult.from_json, KEYS[6]),
        ("Run of a backup", BACKUP_RUN.to_json(), BackupRun.from_json, KEYS[7]),
        ("Stored backup", json.dumps(as_fields(STORED)), stored_of, ""),
    ],
)
def test_examples_are_documents_of_this_format(
    heading: str, written: bytes, read: Any, key: str
) -> None:
    """They can be read, and have the same shape as what is written, down to the inner objects."""
    found = re.search(r"```json\n(.*?)```", section(FORMAT, heading), re.DOTALL)
    assert found
    assert read(found[1].encode(), key)
    assert shape(json.loads(found[1])) == shape(json.loads(written))


def shape(value: Any) -> Any:
    """The keys and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_inner_objects_are_documented() -> None:
    """Each of their fields is named beside its object."""
    places = {
        ("lineage.json", "server"): json.loads(LINEAGE.to_json())["server"],
        ("Entry", "formats"): json.loads(ENTRY.to_json())["formats"][0],
        ("Writer's object", "durable"): json.loads(BEAT.to_json())["durable"],
        ("Page", "steps"): asdict(Step(from_us=1, to_us=2, first=3, last=4)),
    }
    for (heading, field), value in places.items():
        tables = (rows(section(FORMAT, heading), cell) for cell in ("field", INNER))
        table = {row[0].strip("`"): row[2] for found in tables for row in found}
        for inner in value:
            assert f"`{inner}`" in table[field]


def test_writers_states_are_documented() -> None:
    """Each state that a writer may put, and no other."""
    states = set(get_args(WriterState))
    documented = {row[0].strip("`") for row in rows(section(FORMAT, "Writer's object"), "state")}
    assert documented == states


def test_the_checksum_is_as_documented() -> None:
    """Computed bit by bit from the document's own numbers, it is what the package computes."""
    text = section(FORMAT, "CRC64NVME")
    polynomial, reflected, check = re.findall(r"`([0-9a-f]{16})`", text)
    assert int(f"{int(polynomial, 16):064b}"[::-1], 2) == int(reflected, 16)

    def crc64(data: bytes) -> int:
        crc = 2**64 - 1
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (int(reflected, 16) if crc & 1 else 0)
        return crc ^ 2**64 - 1

    assert crc64_hex(crc64(b"123456789")) == check == crc64_hex(crc64nvme(b"123456789"))
    for data in (b"", b"\0", bytes(range(256)) * 3):
        assert crc64(data) == crc64nvme(data)


def test_the_parts_are_as_documented() -> None:
    """The formula is what the grid computes, and 10,000 parts hold what is said."""
    assert "min(part_size * 2 ^ floor((n - 1) / 1000), max(5 GiB, part_size))" in FORMAT
    for part_size in (5 << 20, 64 << 20, 5 << 30):
        for n in (1, 1000, 1001, 5500, 10_000):
            length = min(part_size * 2 ** ((n - 1) // 1000), max(5 << 30, part_size))
            assert Grid(part_size).length(n) == length
    whole = sum(Grid(5 << 20).length(n) for n in range(1, MAX_PARTS + 1))
    assert f"10,000 parts hold {whole / (1 << 40):.2f} TiB" in FORMAT


def test_the_keys_are_as_documented() -> None:
    """The example has the keys that the layout makes."""
    layout, name = Layout("prod", "orders-primary"), BinlogName.parse("mysql-bin.000001")
    lineage = "20260102T030405Z-3e11fa47-a1b2"
    binlog = layout.binlog(lineage, name)
    keys = [
        layout.turn(1),
        layout.backup("20260102T030405Z-1f2e3d4c"),
        layout.stored("20260102T030405Z-1f2e3d4c", 1),
        layout.drill("20260102T031244Z-5a6b7c8d"),
        layout.lineage(lineage),
        layout.floor(lineage, 42),
        binlog,
        layout.entry(lineage, name),
        layout.page(lineage, 0),
        layout.writer(7, "19b7ca9945841aa9"),
    ]
    assert "\n".join(["```", *keys, "```"]) in FORMAT
    assert f"s3://acme-binlogs/{binlog} ." in FORMAT


def _commands(block: str) -> list[str]:
    """The commands of a block for bash, in order, each on one line; a loop is one command."""
    found: list[str] = []
    end, depth, open_ = "", 0, ""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if end:
            end = "" if line == end else end
            continue
        is_more = bool(open_) or depth > 0 or (found and found[-1].endswith(("|", "$(")))
        found[-1:] = [f"{found[-1]}\n{line}"] if is_more else [*found[-1:], line]
        for char in re.sub(r"\\.|(?<!\S)#.*", "", line):
            if char in "'\"" and open_ in ("", char):
                open_ = "" if open_ else char
        depth += bool(re.match(r"\s*\(?(for|while) ", line)) - bool(re.match(r"\s*done\b", line))
        heredoc = re.search(r"<<([A-Z]+)\b", line)
        end = heredoc[1] if heredoc else ""
    return [re.sub(r"\s+#[^'\"]*$", "", line).rstrip() for line in found if line.strip()]


SETTINGS = re.compile(r"(export )?[A-Z0-9_]+=[^$ ]*|set \S.*")
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in sorted((ROOT / "docs/recovery").glob("*.md"))
    for number, block in enumerate(
        re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_a_recovery_page_stops_at_the_first_failure(block: str) -> None:
    """Whoever pastes it does not load an old table over living rows after a recovery that failed.

    And it needs no other programs than those of a database host.
    """
    assert "python" not in block or "venv" in block
    *before, _last = _commands(block)
    for command in before:
        is_setting = SETTINGS.fullmatch(command)
        assert is_setting or command.startswith("#") or command.endswith("&&"), command
