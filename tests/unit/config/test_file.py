"""The example of a configuration file, and what `config --show` prints of the one in force."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.config import file as sample
from binlog2s3.config.file import FILE_OPTIONS, read_file
from binlog2s3.config.given import Given
from binlog2s3.config.options import Option
from binlog2s3.config.stream import OPTIONS, STREAM

EXAMPLE = sample.example()
SETTING = re.compile(r"^#(?=\w+ = )", re.MULTILINE)


def read(text: str, folder: Path) -> Given:
    path = folder / "x.toml"
    path.write_text(text)
    return read_file(path)


def given(found: Given) -> dict[str, Any]:
    """Its values; but the password file of the example is not on this machine."""
    return dict(found.values) | {"mysql-password-file": Path("/dev/null")}


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    """As it stands it is all that a streamer needs: what everybody must give, and the places."""
    found = read(EXAMPLE, tmp_path)
    assert found.problems == ()
    assert found.values.keys() == set(sample.LEAST) | set(sample.PLACES)
    assert {name: str(found.values[name]) for name in sample.PLACES} == sample.PLACES
    config, problems = STREAM.build(Given(given(found)))
    assert problems == []
    assert config is not None
    assert config.s3.bucket == "acme-binlogs"


@pytest.mark.parametrize("left_out", sample.LEAST)
def test_nothing_of_it_can_be_left_out(left_out: str, tmp_path: Path) -> None:
    """Without any one of what is given, `stream` says that it is missing."""
    config, problems = STREAM.build(Given(given(read(EXAMPLE, tmp_path)) | {left_out: None}))
    assert config is None
    assert any(f"--{left_out} is missing" in problem for problem in problems)


def test_all_of_it_is_known_when_it_is_uncommented(tmp_path: Path) -> None:
    """Every option that may be in a file stands there, once, with a value that is taken."""
    found = read(SETTING.sub("", EXAMPLE), tmp_path)
    assert found.problems == ()
    assert list(found.values) == [
        option.name
        for table in dict.fromkeys(o.table for o in FILE_OPTIONS)
        for option in FILE_OPTIONS
        if option.table == table
    ]


@pytest.mark.parametrize("option", FILE_OPTIONS, ids=lambda option: option.name)
def test_an_option_is_explained(option: Option, tmp_path: Path) -> None:
    """With its help, its words, and its default, which is the value that is shown (or a place)."""
    text = sample.example()
    paragraph = next(
        part
        for part in text[text.index(f"\n[{option.table}]\n") :].split("\n\n")
        if re.search(rf"(?m)^#?{option.key} = ", part)
    )
    words = " ".join(line.removeprefix("# ") for line in paragraph.splitlines())
    for piece in (option.help, *option.choices, option.default_text):
        assert piece in words
    if option.default is not None and option.name not in sample.PLACES:
        shown = read(SETTING.sub("", f"[{option.table}]\n{paragraph}"), tmp_path)
        assert shown.values == {option.name: option.default}


@pytest.mark.parametrize("value", ['a"b\\c', "ü\x7f", "x = 1 # y"])
def test_a_text_stays_what_it_is(value: str) -> None:
    """Whatever is in it, the file that has it says the same."""
    assert tomllib.loads(f"a = {sample.literal(value)}") == {"a": value}


def test_what_is_in_force_is_a_file_again(tmp_path: Path) -> None:
    """It has the values, where each comes from, and in words what holds where there is none."""
    values = {"mysql-user": "me", "flush-interval": 0.5, "take-over": True}
    places = {"flush-interval": "[stream] flush_interval of a\nb", "take-over": "X"}
    text = sample.in_force(Given(values, places), OPTIONS)
    defaults = {o.name: o.default for o in OPTIONS if o.default is not None}
    assert read(text, tmp_path).values == defaults | values
    assert 'user = "me"  # --mysql-user\n' in text
    assert "flush_interval = 0.5  # [stream] flush_interval of a b\n" in text
    assert "take_over = true  # X\n" in text
    assert "part_size = 5242880  # default\n" in text
    assert "# port: 3306\n" in text
    assert "metrics_listen" not in text


@pytest.mark.parametrize(
    ("table", "key"), [(one.table, one.key) for one in FILE_OPTIONS if one.kind in ("path", "file")]
)
def test_a_path_in_the_file_is_relative_to_the_file(
    table: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path in a file means the same from whatever directory a command is started."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "etc" / "orders.toml").write_text(f'[{table}]\n{key} = "own/it"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    for named in (Path("../etc/orders.toml"), tmp_path / "etc" / "orders.toml"):
        (value,) = read_file(named).values.values()
        assert value.is_absolute()
        assert value.resolve() == tmp_path / "etc" / "own" / "it"


@pytest.mark.parametrize("value", ["/abs/it", "~/it"])
def test_an_absolute_path_in_the_file_stays(value: str, tmp_path: Path) -> None:
    """Only a relative path depends on where the file is."""
    found = read(f'[mysql]\npassword_file = "{value}"\n[spool]\ndir = "{value}"\n', tmp_path)
    assert {*found.values.values()} == {Path(value).expanduser()}


def test_what_an_unknown_table_has_is_not_missing(tmp_path: Path) -> None:
    """One mistake is one problem: [mysqld] is not also a user that is missing."""
    found = read('[mysqld]\nuser = "repl"\n[s3]\nurll = "s3://b"\n', tmp_path)
    assert len(found.problems) == 2
    assert {"mysql-user", "s3-url"} <= found.wrong
    assert "source" not in found.wrong


def test_a_program_in_the_file(tmp_path: Path) -> None:
    """A program with a slash is relative to the file, one without is looked up on PATH."""
    beside = '[mysql]\npassword_command = "bin/token a \'b c\'"\nmysqlbinlog = "./mysqlbinlog"\n'
    assert read(beside, tmp_path).values == {
        "mysql-password-command": f"{tmp_path}/bin/token a 'b c'",
        "mysqlbinlog": tmp_path / "mysqlbinlog",
    }
    at_home = read('[mysql]\npassword_command = "~/bin/token"\n', tmp_path)
    assert at_home.values == {"mysql-password-command": str(Path("~/bin/token").expanduser())}
    on_path = '[mysql]\npassword_command = "token  a"\nmysqlbinlog = "mysqlbinlog-8.4"\n'
    assert read(on_path, tmp_path).values == {
        "mysql-password-command": "token  a",
        "mysqlbinlog": Path("mysqlbinlog-8.4"),
    }
