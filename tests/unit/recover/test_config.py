"""What may be asked of `pitr`: times, GTIDs, positions, starts, targets; all problems at once."""

import shlex
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.cli import commands as cli
from binlog2s3.cli.options import config_of
from binlog2s3.config.file import read_file
from binlog2s3.config.goal import BeforeGtid, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.config.options import parse
from binlog2s3.config.pitr import (
    PITR,
    PITR_OPTIONS,
    PitrConfig,
)
from binlog2s3.config.points import gtids_text, parse_gtid, parse_gtids, parse_position, parse_time
from binlog2s3.config.stream import OPTIONS, STREAM, MysqlConfig
from binlog2s3.errors import ConfigError, SourceError
from binlog2s3.formatting import iso_text, us_of
from binlog2s3.server.login import resolve

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SOURCE = ("--source=orders", "--s3-url=s3://bucket/p")
TARGET = ("--target-host=db9", "--target-user=root")
LEAST = (*SOURCE, *TARGET)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in (*OPTIONS, *PITR.options):
        monkeypatch.delenv(option.environment, raising=False)
    monkeypatch.delenv("BINLOG2S3_CONFIG", raising=False)


def configured(*arguments: str) -> PitrConfig:
    """The config of a command line, or ConfigError."""
    with cli.pitr.make_context("binlog2s3 pitr", list(arguments)) as ctx:
        return config_of(ctx, ctx.params, PITR)


def problems(*arguments: str) -> tuple[str, ...]:
    """All problems of a command line."""
    with pytest.raises(ConfigError) as caught:
        configured(*arguments)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value.problems


# Times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456Z"),
        ("2026-01-02 03:04:05.1z", "2026-01-02T03:04:05.100000Z"),
        ("2026-01-02t03:04:05,000001Z", "2026-01-02T03:04:05.000001Z"),
        ("2026-01-02 03:04:05 Z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05.000000Z"),
        ("2026-01-02T03:04:05 +0200", "2026-01-02T01:04:05.000000Z"),
        ("2026-01-02T03:04:05+02", "2026-01-02T01:04:05.000000Z"),
        ("2026-01-02T03:04:05-05:30", "2026-01-02T08:34:05.000000Z"),
        ("2026-01-01T00:30:00.5+01:00", "2025-12-31T23:30:00.500000Z"),
        ("2026-01-02T03:04Z", "2026-01-02T03:04:00.000000Z"),
        ("  2026-01-02T03:04:05Z ", "2026-01-02T03:04:05.000000Z"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000000Z"),
    ],
)
def test_times_with_a_zone(text: str, expected: str) -> None:
    """ISO 8601, a blank instead of the T too, up to six digits, any offset."""
    assert iso_text(parse_time(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-01-02T03:04:05", "has no time zone: add Z for UTC, or an offset such as +02:00"),
        ("2026-01-02 03:04:05.5", "has no time zone"),
        ("2026-01-02T03:04:05.1234567Z", "at most 6 decimal places"),
        ("2026-02-30T03:04:05Z", "is not a possible time: day"),
        ("2025-02-29T03:04:05Z", "is not a possible time: day"),
        ("2026-13-02T03:04:05Z", "is not a possible time: month"),
        ("2026-01-02T24:00:00Z", "is not a possible time: hour"),
        ("2026-01-02T23:60:00Z", "is not a possible time: minute"),
        ("2026-01-02T23:59:60Z", "is not a possible time: second"),
        ("0000-01-02T23:59:00Z", "is not a possible time: year"),
        ("2026-01-02T23:59:00+24:00", "is not of the form 2026-01-02T03:04:05.123456Z"),
        ("2026-01-02T23:59:00+01:60", "is not of the form"),
        ("2026-01-02T23:59:00 CET", "is not of the form"),
        ("2026-01-02", "is not of the form"),
        ("yesterday", "is not of the form"),
        ("1767322800", "is not of the form"),
        ("٢٠٢٦-01-02T23:59:00Z", "is not of the form"),
        ("-5 minutes", "is not of the form"),
        ("x" * 500, "xxx..."),
    ],
)
def test_what_is_no_time(text: str, words: str) -> None:
    """No zone is guessed, nothing is rounded; the message says what is missing."""
    with pytest.raises(ValueError, match=r"^'") as caught:
        parse_time(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200


@given(
    st.datetimes(),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_a_time_is_what_the_standard_library_says(naive: datetime, minutes: int) -> None:
    """Of each date and offset, to the microsecond."""
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    expected = us_of(moment)
    sign, minutes = "-" if minutes < 0 else "+", abs(minutes)
    text = f"{naive:%m-%dT%H:%M:%S.%f}{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    assert parse_time(f"{naive.year:04d}-{text}") == expected


def test_times_at_the_ends_of_the_calendar() -> None:
    """What is no date in UTC any more is a number all the same, and shown as one."""
    last = parse_time("9999-12-31T23:59:59-12:00")
    assert last == parse_time("9999-12-31T23:59:59Z") + 12 * 3600 * 10**6
    assert iso_text(last) == f"{last} us"


# GTIDs and positions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{UUID.upper()}:5", f"{UUID}:5"),
        (f"{UUID}:Blue:5", f"{UUID}:blue:5"),
        (f" {UUID}:7-7 ", f"{UUID}:7"),
        ("0-1-5", "0-1-5"),
        (" 00-1-05", "0-1-5"),
    ],
)
def test_one_gtid_of_either_flavour(text: str, expected: str) -> None:
    """Tags too, in the form in which a scanner names them."""
    assert parse_gtid(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{UUID}:5-6", "has 2 GTIDs"),
        (f"{UUID}:5,{UUID}:blue:5", "has 2 GTIDs"),
        ("0-1-5,0-2-6", "has 2 GTIDs"),
        (UUID, "is no GTID: MySQL's are UUID:5"),
        (f"{UUID}:", "not a transaction number"),
        (f"{UUID}:blue", "no transaction numbers"),
        (f"{UUID}:0", "out of range"),
        (f"{UUID}:x-5", "not a transaction number"),
        ("0-1", "is no GTID: MySQL's are UUID:5, MariaDB's 0-1-5"),
        ("0-1-5,x", "not a MariaDB GTID"),
        (",", "is no GTID"),
        ("48213", "is no GTID"),
        ("0-1:5", "not a server uuid"),
    ],
)
def test_what_is_not_one_gtid(text: str, words: str) -> None:
    """None, several, or something else."""
    with pytest.raises(ValueError, match=words):
        parse_gtid(text)


def test_gtid_sets_as_servers_print_them() -> None:
    r"""On several lines; with `\n` as text, as mysql --batch has it; MariaDB's each kept."""
    lines = f"{UUID}:1-5,\n{UUID[:-1]}3:1-7"
    expected = GtidSet.parse(lines)
    assert parse_gtids(lines) == parse_gtids(lines.replace("\n", "\\n")) == expected
    assert gtids_text(lines) == str(expected)
    assert parse_gtids("1-2-3, 0-1-5") == MariadbGtidList.parse("0-1-5,1-2-3")
    assert gtids_text(" 0-1-5,\\n0-1-7") == "0-1-5,0-1-7"
    (option,) = (one for one in PITR_OPTIONS if one.name == "from-gtid-set")
    assert parse(option, lines) == str(expected)


def test_positions() -> None:
    """The last colon parts name and number."""
    assert parse_position("a:b.000001:4") == (BinlogName.parse("a:b.000001"), 4)
    for wrong in ("b.000001", "b.000001:", "b.000001:x", "b.000001:-4", ":4", "b:4", "/b.000001:4"):
        with pytest.raises(ValueError, match=r"NAME:N|not the name of a binlog"):
            parse_position(wrong)


# The whole


def test_goals() -> None:
    """Each becomes the value that a plan asks for."""
    at, text = parse_time("2026-01-02T03:04:05.5Z"), "2026-01-02 04:04:05.5+01:00"
    accepting = configured(*LEAST, f"--to-time={text}", "--accept-times")
    assert accepting.goal == ToTime(at, text, accepts=True)
    for option, goal in (
        (f"--to-time={text}", ToTime(at, text)),
        (f"--to-gtid={UUID.upper()}:5", ToGtid(f"{UUID}:5")),
        ("--before-gtid=0-1-5", BeforeGtid("0-1-5")),
        (
            "--to-position=b.000001:1234",
            ToPosition(FilePosition(BinlogName.parse("b.000001"), 1234)),
        ),
        ("--latest", Latest()),
    ):
        assert configured(*LEAST, option).goal == goal


def test_every_value_reaches_its_place(tmp_path: Path) -> None:
    """From the command line, the file of the streamer among it."""
    pem = tmp_path / "pem"
    pem.touch()
    file = tmp_path / "x.toml"
    file.write_text(
        '[stream]\nsource = "orders"\nflush_interval = 2\n[s3]\nurl = "s3://bucket/p"\n'
        '[mysql]\nhost = "db1"\nport = 3307\nuser = "repl"\nmysqlbinlog = "/mb"\n'
        f'[target]\nhost = "db9"\nport = 3308\nuser = "root"\npassword_file = "{pem}"\n'
        f'ssl_mode = "REQUIRED"\nssl_ca = "{pem}"\nssl_cert = "{pem}"\nssl_key = "{pem}"\n'
        f'defaults_file = "{pem}"\nconnect_timeout = "3s"\nserve_address = "10.1.2.3:3310"\n'
        f'serve_tls_cert = "{pem}"\nserve_tls_key = "{pem}"\nserve_tls_ca = "/ca"\n'
        "accept_unverified_server = true\n"
    )
    flags = ("skip-leaves-hole", "allow-gap", "allow-source", "allow-extra-gtids")
    flags += ("allow-non-transactional", "stop-target-threads", "dry-run", "yes")
    given = f"--latest --skip-gtid={UUID}:5 --skip-gtid={UUID}:7-9 --from-binlog=b.000007 "
    given += "--from-position=157 --lineage=20260102T030405Z-3e11fa47-a1b2 --workers=4 --json"
    config = configured(f"--config={file}", *given.split(), *(f"--{flag}" for flag in flags))
    assert all(getattr(config, flag.replace("-", "_")) for flag in flags)
    assert config.as_json
    assert (config.source, config.s3.bucket, config.s3.prefix) == ("orders", "bucket", "p")
    assert config.source_address == MysqlConfig(host="db1", port=3307)
    assert (config.serve_address, config.workers) == ("10.1.2.3:3310", 4)
    assert config.target == MysqlConfig(
        prefix="target", host="db9", port=3308, user="root", password_file=pem, defaults_file=pem,
        ssl_ca=pem, ssl_cert=pem, ssl_key=pem, ssl_mode="REQUIRED", connect_timeout=3.0,
        accept_unverified_server=True,
    )  # fmt: skip
    assert (config.serve_tls_cert, config.serve_tls_key, config.serve_tls_ca) == (pem, pem, "/ca")
    assert config.skip_gtid == (f"{UUID}:5", f"{UUID}:7-9")
    assert (config.from_binlog, config.from_position) == (BinlogName.parse("b.000007"), 157)
    assert (config.from_gtid_set, config.from_backup) == (None, None)
    assert config.lineage == "20260102T030405Z-3e11fa47-a1b2"
    assert not config.applies


def test_defaults() -> None:
    """The least is a source, a bucket, a target with its user, and where to stop."""
    config = configured(*LEAST, "--latest")
    assert config == PitrConfig(s3=config.s3, source="orders", goal=Latest(), target=config.target)
    assert config.target is not None
    assert (config.target.connect_timeout, config.target.port) == (10.0, None)
    assert config.applies


def test_tables() -> None:
    """Each once, with the names that a filter can have."""
    config = configured(*LEAST, "--latest", "--table=shop.orders", "--table=shop.`odd name`")
    assert config.tables == (("shop", "orders"), ("shop", "odd name"))


def test_without_a_target() -> None:
    """Files need none, a dry run only a start; a target beside them is kept, to be asked."""
    assert configured(*SOURCE, "--latest", "--output-dir=/d").target is None
    dry = configured(*SOURCE, "--latest", "--dry-run", f"--from-gtid-set={UUID}:1-5")
    assert (dry.target, dry.from_gtid_set) == (None, f"{UUID}:1-5")
    assert configured(*LEAST, "--latest", "--output-dir=/d").target is not None


def test_a_target_is_never_guessed() -> None:
    """There is no default host: neither where nothing is said, nor where only a part of it is.

    Without a target and a start, the command says which registered backup to restore.
    """
    for extra in (
        ("--yes",),
        ("--yes", "--json"),
        ("--from-backup-id=20260102T030405Z-1f2e3d4c",),
        ("--from-binlog=b.1", "--from-position=4"),
    ):
        (problem,) = problems(*SOURCE, "--latest", *extra)
        assert problem.startswith("no target: --target-host or --target-socket is missing")
    for extra in ((), ("--json",), ("--dry-run",), ("--mysql-host=db1",)):
        config = configured(*SOURCE, "--latest", *extra)
        assert config.target is None
        assert config.chooses_backup
        assert not config.applies
    config = configured(*SOURCE, "--latest", "--dry-run", "--from-backup-id=x")
    assert not config.chooses_backup
    for extra in ("--target-port=3306", "--target-user=root", "--target-ssl-mode=DISABLED"):
        name = extra.partition("=")[0]
        needs = f"{name} needs --target-host or --target-socket"
        assert problems(*SOURCE, "--latest", extra) == (needs,)


def test_an_option_file_must_name_the_target(tmp_path: Path) -> None:
    """Where it has neither host nor socket, there is no default for it; hints say --target-..."""
    path = tmp_path / "my.cnf"
    path.write_text("[client]\nuser = root\n")
    config = configured(*SOURCE, "--latest", f"--target-defaults-file={path}").target
    assert config is not None
    with pytest.raises(SourceError, match="no target") as caught:
        resolve(config)
    assert caught.value.hint == "give --target-host or --target-socket"
    path.write_text("[client]\nuser = root\nsocket = /s\n")
    login = resolve(config)
    assert (login.socket, login.prefix) == ("/s", "target")
    assert login.advised("check --mysql-user, or --mysqlbinlog") == (
        "check --target-user, or --mysqlbinlog"
    )
    path.write_text("[client]\nhost = db9\n")
    with pytest.raises(SourceError, match="no user") as caught:
        resolve(config)
    assert caught.value.hint == "give --target-user"


def test_what_is_missing() -> None:
    """All at once."""
    assert problems() == (
        "--source is missing",
        "--s3-url is missing",
        (
            "where to stop is missing: one of --to-time, --to-gtid, --before-gtid, --to-position, "
            "--latest"
        ),
    )
    assert problems(*SOURCE, "--latest", "--target-host=db9") == (
        "--target-user is missing (or a --target-defaults-file that names it)",
    )


EITHER = "contradict each other: give one of them"
FILES = "contradict each other: no target is written to"
FILTER = "a replication filter cannot have a name with other characters than letters, digits, _ $ -"
NEEDS_CA = "needs --target-ssl-ca (or a --target-defaults-file that has ssl-ca)"
SCRATCH = "contradict each other: --table is for a scratch server"
TLS = "--latest --target-host=t --target-user=u"
WITHOUT_ZONE = (
    "'2026-01-02T03:04:05' has no time zone: add Z for UTC, or an offset such as +02:00 or -05:30"
)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("--latest --to-position=b.000001:4", f"--to-position and --latest {EITHER}"),
        (
            f"--latest --from-gtid-set={UUID}:1 --from-backup=/",
            f"--from-gtid-set and --from-backup {EITHER}",
        ),
        (
            f"--latest --from-gtid-set={UUID}:1 --from-binlog=b.1 --from-position=4",
            f"--from-gtid-set and --from-binlog {EITHER}",
        ),
        ("--latest --from-binlog=b.1", "--from-binlog needs --from-position (4: its beginning)"),
        ("--latest --from-position=4", "--from-position needs --from-binlog"),
        ("--latest --from-backup=/no/x", "--from-backup: /no/x: no such file or directory"),
        ("--latest --skip-leaves-hole", "--skip-leaves-hole needs --skip-gtid"),
        (
            f"--to-gtid=0-1-5 --skip-gtid={UUID}:1",
            "--skip-gtid has MySQL's GTIDs and --to-gtid MariaDB's",
        ),
        (
            f"--latest --skip-gtid=0-1-5 --skip-gtid={UUID}:1",
            "--skip-gtid has GTIDs of MySQL and of MariaDB",
        ),
        ("--latest --output-dir=/d --workers=2", f"--workers and --output-dir {FILES}"),
        (
            "--latest --output-dir=/d --serve-address=::1",
            f"--serve-address and --output-dir {FILES}",
        ),
        (
            "--latest --output-dir=/d --stop-target-threads",
            f"--stop-target-threads and --output-dir {FILES}",
        ),
        (
            "--latest --serve-address=[::1]",
            "--serve-address: '[::1]' is not of the form HOST or HOST:PORT",
        ),
        (
            "--latest '--serve-address=a b:1'",
            "--serve-address: 'a b:1' is not of the form HOST or HOST:PORT",
        ),
        (f"{TLS} --serve-tls-ca=/ca", "--serve-tls-ca needs --serve-tls-cert"),
        (f"{TLS} --serve-tls-cert=/dev/null", "--serve-tls-cert needs --serve-tls-key"),
        (
            f"{TLS} --serve-tls-ca=/ca --serve-tls-cert=/dev/null --serve-tls-key=/dev/null",
            "--serve-tls-cert needs --serve-address",
        ),
        ("--latest --table=shop.*", "--table takes single tables, not shop.*: name each one"),
        ("--latest '--table=`a.b`.c'", f"--table a.b.c: {FILTER} and spaces within"),
        ("--latest --table=shop.a,shop", f"--table shop.a,shop: {FILTER} and spaces within"),
        (
            "--latest --table=shop.a --allow-extra-gtids",
            f"--table and --allow-extra-gtids {SCRATCH}",
        ),
        (
            "--latest --target-socket=/s",
            "--target-socket and --target-host contradict each other: give one way to connect",
        ),
        ("--latest --target-ssl-mode=VERIFY_CA", f"--target-ssl-mode VERIFY_CA {NEEDS_CA}"),
        (
            "--latest --target-password-file=/no/x",
            "--target-password-file: /no/x: no such file or directory",
        ),
        ("--to-gtid=", "--to-gtid: '' is empty or has control characters"),
        ("--latest --from-gtid-set=", "--from-gtid-set: '' is empty or has control characters"),
        (
            "--latest --skip-gtid=5",
            "--skip-gtid: '5' is no GTID: MySQL's are UUID:5, MariaDB's 0-1-5",
        ),
        (
            "--latest --from-binlog=b.000001 --from-position=3",
            "--from-position: '3' is below the minimum, 4",
        ),
        (
            "--to-position=b.000001",
            "--to-position: 'b.000001' is not of the form NAME:N, e.g. mysql-bin.000042:1234",
        ),
        ("--to-time=2026-01-02T03:04:05", f"--to-time: {WITHOUT_ZONE}"),  # and no goal is missing
    ],
)
def test_what_does_not_go_together(extra: str, expected: str) -> None:
    """One line, that names the options as they were given."""
    assert problems(*LEAST, *shlex.split(extra)) == (expected,)


def test_values_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every option; several sets stand there with blanks between them."""
    monkeypatch.setenv("BINLOG2S3_SKIP_GTID", f"{UUID}:5 {UUID}:7")
    monkeypatch.setenv("BINLOG2S3_TARGET_HOST", "db8")
    monkeypatch.setenv("BINLOG2S3_LATEST", "true")
    config = configured(*SOURCE, "--target-user=root")
    assert config.skip_gtid == (f"{UUID}:5", f"{UUID}:7")
    assert config.target is not None
    assert config.target.host == "db8"
    monkeypatch.setenv("BINLOG2S3_LATEST", "maybe")
    (problem,) = problems(*LEAST)
    assert problem == "BINLOG2S3_LATEST: 'maybe' is not true or false"


def test_one_file_for_the_streamer_and_for_a_recovery(tmp_path: Path) -> None:
    """[target] stands in the streamer's file; what is wrong in it is named as in every table."""
    path = tmp_path / "x.toml"
    path.write_text(
        '[stream]\nsource = "a"\n[mysql]\nuser = "repl"\n[s3]\nurl = "s3://bucket"\n'
        '[target]\nhost = "db9"\nuser = "root"\n'
    )
    with cli.stream.make_context("binlog2s3 stream", [f"--config={path}"]) as ctx:
        assert config_of(ctx, ctx.params, STREAM).mysql.host is None
    assert configured(f"--config={path}", "--latest").target is not None
    path.write_text('[target]\nprot = 1\nport = "x"\nto_time = "x"\n')
    found = read_file(path)
    assert found.wrong == {"target-port"}
    assert found.problems[0] == f"{path}: unknown key [target] prot (did you mean port?)"
    assert found.problems[1].startswith(f"[target] port of {path}: ")
    assert found.problems[2].startswith(f"{path}: unknown key [target] to_time ")
