"""The systemd units, by systemd's own judgement: nothing unknown in them, and little exposed."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from binlog2s3.config import file as sample

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
TEMPLATE, PLAIN = UNITS / "binlog2s3@.service", UNITS / "binlog2s3.service"
SERVE = UNITS / "binlog2s3-serve@.service"
DRILL = UNITS / "binlog2s3-drill@.service"
BACKUP = UNITS / "binlog2s3-backup@.service"
PRUNE = UNITS / "binlog2s3-prune@.service"
INSTANCES = {
    TEMPLATE: "binlog2s3@orders-primary.service",
    PLAIN: "binlog2s3.service",
    SERVE: "binlog2s3-serve@orders-primary.service",
    DRILL: "binlog2s3-drill@orders-primary.service",
    BACKUP: "binlog2s3-backup@orders-primary.service",
    PRUNE: "binlog2s3-prune@orders-primary.service",
}
MOST_EXPOSED = 2.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the units and something that can be executed."""
    program = tmp_path / "usr/bin/binlog2s3"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    there = tmp_path / "etc/systemd/system"
    there.mkdir(parents=True)
    for unit in INSTANCES:
        shutil.copy(unit, there)
    return tmp_path


def verify(systemd_analyze: list[str], root: Path, instance: str) -> tuple[int, str]:
    """Exit code and words; without the options it would be content with unknown keys."""
    argv = [
        *systemd_analyze,
        "verify",
        "--man=no",
        "--recursive-errors=no",
        f"--root={root}",
        instance,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def version(systemd_analyze: list[str]) -> int:
    done = subprocess.run(
        [*systemd_analyze, "--version"], capture_output=True, text=True, check=True
    )
    found = re.search(r"systemd (\d+)", done.stdout)
    assert found
    return int(found[1])


def settings(text: str) -> list[str]:
    """A unit's lines, without comments and blank ones."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("unit", INSTANCES, ids=lambda unit: unit.name)
def test_verify_is_content(systemd_analyze: list[str], root: Path, unit: Path) -> None:
    """And a key that does not exist, or a value that cannot be, would be seen."""
    assert verify(systemd_analyze, root, INSTANCES[unit]) == (0, "")
    place = root / "etc/systemd/system" / unit.name
    good = place.read_text()
    for planted, word in (("RestartStepz=8", "RestartStepz"), ("WatchdogSec=often", "often")):
        place.write_text(good.replace("[Service]\n", f"[Service]\n{planted}\n"))
        code, said = verify(systemd_analyze, root, INSTANCES[unit])
        assert (code, word in said) == (1, True), said


@pytest.mark.parametrize("unit", INSTANCES, ids=lambda unit: unit.name)
def test_little_is_exposed(systemd_analyze: list[str], root: Path, unit: Path) -> None:
    """2.0 at most, of 10; without the sandbox it would be far more."""

    def exposure() -> float:
        argv = [*systemd_analyze, "security", "--offline=true", "--no-pager", f"--root={root}"]
        done = subprocess.run(
            [*argv, INSTANCES[unit]], capture_output=True, text=True, check=True, timeout=60
        )
        found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
        assert found, done.stdout
        return float(found[1])

    assert exposure() <= MOST_EXPOSED
    place = root / "etc/systemd/system" / unit.name
    place.write_text(re.sub(r"(?m)^(SystemCall|Restrict|Protect).*\n", "", place.read_text()))
    assert exposure() > MOST_EXPOSED


def test_growing_pauses_where_systemd_knows_them(systemd_analyze: list[str], root: Path) -> None:
    """The drop-in is for 254 and later; older ones do not know its keys, so it stands apart."""
    there = root / "etc/systemd/system/binlog2s3@.service.d/restart.conf"
    there.parent.mkdir()
    shutil.copy(UNITS / "restart-254.conf", there)
    code, said = verify(systemd_analyze, root, INSTANCES[TEMPLATE])
    if version(systemd_analyze) >= 254:
        assert (code, said) == (0, "")
    else:
        unknown = re.findall(r"Unknown key (?:name )?'(\w+)'", said)
        assert sorted(unknown) == ["RestartMaxDelaySec", "RestartSteps"], said


def test_both_units_are_the_same() -> None:
    """But for what an instance is called by: the plain one is the instance `binlog2s3`."""
    described = "Description="
    template = [
        line.replace("%i", "binlog2s3")
        for line in settings(TEMPLATE.read_text())
        if not line.startswith(described)
    ]
    plain = [line for line in settings(PLAIN.read_text()) if not line.startswith(described)]
    assert plain == template


WRITABLE = re.compile(r"(State|Cache|Logs|Runtime)Directory=|ReadWritePaths=|BindPaths=")
PROMISED = {
    TEMPLATE: """
        Type=notify
        NotifyAccess=main
        Restart=always
        StartLimitIntervalSec=0
        RestartPreventExitStatus=2 3 9
        StateDirectory=binlog2s3/%i
        ExecStart=binlog2s3 stream --config /etc/binlog2s3/%i.toml
        After=network-online.target mysql.service mysqld.service mariadb.service
    """,
    SERVE: """
        ExecStart=binlog2s3 serve --config /etc/binlog2s3/%i.toml
        EnvironmentFile=/etc/binlog2s3/%i.serve
        LoadCredential=serve:/etc/binlog2s3/%i.serve.d
        LoadCredential=aws:/etc/binlog2s3/%i.aws
        WorkingDirectory=%d
        Restart=on-failure
        RestartPreventExitStatus=2 3
        StartLimitIntervalSec=0
        ProtectSystem=strict
        ReadOnlyPaths=/tmp /var/tmp /run
    """,
    DRILL: """
        Type=oneshot
        ExecStart=binlog2s3 drill --config /etc/binlog2s3/%i.toml --work-dir %S/binlog2s3-drill/%i
        EnvironmentFile=/etc/binlog2s3/%i.drill
        LoadCredential=aws:/etc/binlog2s3/%i.aws
        StateDirectoryMode=0700
        ProtectSystem=strict
        DynamicUser=yes
        User=binlog2s3-drill
    """,
    UNITS / "binlog2s3-drill@.timer": """
        Persistent=yes
        WantedBy=timers.target
    """,
    BACKUP: """
      Type=oneshot
    ExecStart=binlog2s3 backup run --config /etc/binlog2s3/%i.toml --mysql-password-file %d/password
      EnvironmentFile=/etc/binlog2s3/%i.backup
      LoadCredential=password:/etc/binlog2s3/%i.backup.password
      LoadCredential=aws:/etc/binlog2s3/%i.backup.aws
      ProtectSystem=strict
      DynamicUser=yes
    """,
    UNITS / "binlog2s3-backup@.timer": """
        Persistent=yes
        WantedBy=timers.target
    """,
    PRUNE: """
        Type=oneshot
        ExecStart=binlog2s3 prune --config /etc/binlog2s3/%i.toml --yes
        EnvironmentFile=/etc/binlog2s3/%i.prune
        LoadCredential=aws:/etc/binlog2s3/%i.prune.aws
        ProtectSystem=strict
        DynamicUser=yes
    """,
    UNITS / "binlog2s3-prune@.timer": """
        Persistent=yes
        WantedBy=timers.target
    """,
}


@pytest.mark.parametrize("unit", PROMISED, ids=lambda unit: unit.name)
def test_what_a_unit_promises(unit: Path) -> None:
    """Lines that the documents count on: a change of one is a decision."""
    lines = settings(unit.read_text())
    promised = [line.strip() for line in PROMISED[unit].strip().splitlines()]
    assert [line for line in promised if line not in lines] == []


def test_what_a_unit_never_has() -> None:
    """The streamer starts without its source, a oneshot fails for good, serve writes nowhere."""
    assert not [line for line in settings(TEMPLATE.read_text()) if line.startswith("Requires")]
    for unit in (DRILL, BACKUP, PRUNE):
        assert not [line for line in settings(unit.read_text()) if line.startswith("Restart=")]
    assert not [line for line in settings(SERVE.read_text()) if WRITABLE.match(line)]


def test_every_unit_is_looked_at() -> None:
    """None lies there that the tests above leave out."""
    assert set(UNITS.glob("*.service")) == set(INSTANCES)


def test_the_unit_of_serve_is_confined_as_the_streamers() -> None:
    """What the streamer's unit denies is denied here."""
    kept = re.compile(
        r"(Capability|Ambient|NoNew|Protect|Private|Device|ProcSubset|Restrict|Lock|Memory(?=Deny)"
        r"|RemoveIPC|Keyring|SystemCall|UMask|LimitCORE|DynamicUser)"
    )
    mine = settings(SERVE.read_text())
    for line in settings(TEMPLATE.read_text()):
        assert line in mine or not kept.match(line) or line.startswith("Restart"), line


def test_one_place_for_each_file() -> None:
    """Guide, example and the commands by hand name what the unit of orders-primary uses."""
    lines = [line.replace("%i", "orders-primary") for line in settings(TEMPLATE.read_text())]
    loaded = dict(
        line.removeprefix("LoadCredential=").split(":", 1)
        for line in lines
        if line.startswith("LoadCredential=")
    )
    [state] = [line.partition("=")[2] for line in lines if line.startswith("StateDirectory=")]
    spool, password, keys = f"/var/lib/{state}", loaded["mysql.password"], loaded["aws"]
    assert f"Environment=BINLOG2S3_SPOOL=%S/{state}" in lines

    assert {"mysql-password-file": password, "spool": spool} == sample.PLACES
    assert keys in sample.example()
    guide = (ROOT / "docs/guides/systemd.md").read_text()
    file = re.search(r"(?ms)^```toml\n(.*?)^```", guide)
    assert file
    given = tomllib.loads(file[1])
    assert given["mysql"]["password_file"] == password
    assert given["spool"]["dir"] == spool
    assert f"--mysql-password-file {password} " in guide
    assert f"--spool {spool} " in guide
    named = re.findall(r"export AWS_SHARED_CREDENTIALS_FILE=(\S+)", guide)
    assert len(named) == 2
    assert set(named) == {keys}
    for source in (password, keys, f"/etc/{state}.toml"):
        assert re.search(rf"install (?:-D )?-m 6[04][04] \S+ {re.escape(source)}\n", guide), source
