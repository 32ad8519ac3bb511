"""What a server in the right one's place gets of a password, as the documents say."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import Child, Tool, find
from lab.get import ServerBinaries
from tests.impostor import CLEAR, FULL, Impostor, Trick, new_key, pem_of
from tests.integration.certificates import Authority
from tests.login import ROOT
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/guides/permissions.md"
KEY = pem_of(new_key()).decode()
LOGIN = replace(ROOT, password="Open-Sesame", connect_timeout=10.0)
WORST = ("nothing", "encrypted with its own key", "in clear text")
CLIENTS = ("pymysql", "mysql", "mariadb")


def rows() -> Iterator[list[str]]:
    """The cells of the table."""
    found = re.search(r"<!-- impostor -->\n\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert found
    for line in found[1].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


ROWS = list(rows())


def asked(login: Login, _: Path) -> None:
    """pymysql."""
    with closing(Server(lambda: login)) as server, pytest.raises(SourceError):
        server.rows("SELECT 1")


def fetched_by(tool: Tool) -> Callable[[Login, Path], list[str]]:
    """mysqlbinlog; what it says."""

    def fetch(login: Login, directory: Path) -> list[str]:
        directory.mkdir()
        child = Child(
            tool,
            login,
            server_id=4711,
            directory=directory,
            binlog=BinlogName.parse("mysql-bin.000001"),
            on_line=lambda _line: None,
        )
        try:
            wait_until(lambda: child.poll() is not None, what="mysqlbinlog gives up")
        finally:
            child.stop()
        return list(child.lines)

    return fetch


@pytest.fixture(params=CLIENTS)
def client(
    request: pytest.FixtureRequest, mysql_binaries: ServerBinaries, mariadb_binaries: ServerBinaries
) -> tuple[int, Callable[[Login, Path], object]]:
    """The column of a client, and how it connects."""
    column = 1 + CLIENTS.index(request.param)
    if request.param == "pymysql":
        return column, asked
    binaries = mysql_binaries if request.param == "mysql" else mariadb_binaries
    return column, fetched_by(find(binaries.flavour, binaries.binlog))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_it_gets(
    client: tuple[int, Callable[[Login, Path], object]], row: list[str], tmp_path: Path
) -> None:
    """By full authentication with a key of its own, or in clear text; at once or after a switch."""
    column, connect = client
    mode = re.findall("[A-Z]{3}[A-Z_]+", row[0])[0]
    key = KEY if "--mysql-server-public-key" in row[0] else None
    ca = str(Authority(tmp_path, "authority").ca) if mode.startswith("VERIFY") else None
    login = replace(LOGIN, ssl_mode=mode, ssl_ca=ca, public_key=key)
    worst = 0
    for number, trick in enumerate(FULL + CLEAR):
        version = "5.5.5-10.11.0-MariaDB" if column == 3 else "9.7.0"
        with Impostor(trick, tls="no TLS" not in row[0], version=version) as impostor:
            connect(replace(login, port=impostor.port), tmp_path / str(number))
            assert impostor.accepted, trick
        worst = max(worst, WORST.index(impostor.got(LOGIN.password)))
    assert WORST[worst] == row[column]


def test_no_plugin_that_the_server_names(mysql_binaries: ServerBinaries, tmp_path: Path) -> None:
    """With a known key MySQL's client has those alone that never send a password."""
    tool = find("mysql", mysql_binaries.binlog)
    unpacked = mysql_binaries.binlog.parent.parent.rglob("mysql_native_password.so")
    fetch = fetched_by(replace(tool, plugins=tool.plugins or tuple(unpacked)))
    login = replace(LOGIN, ssl_mode="DISABLED", public_key=KEY)
    with Impostor(Trick(plugin="dialog", first=False), tls=False) as impostor:
        lines = fetch(replace(login, port=impostor.port), tmp_path / "dialog")
    assert any(f"{tmp_path}/dialog/plugins/dialog.so" in line for line in lines), lines
    with Impostor(Trick(plugin="mysql_native_password", first=False), tls=False) as impostor:
        fetch(replace(login, port=impostor.port), tmp_path / "native")
    assert [len(one) for one in impostor.heard[1:]] == [20], "an answer to the challenge"


def test_the_table_has_all_modes() -> None:
    """Each mode of TLS has a row."""
    assert len(ROWS) == 7
    modes = {re.findall("[A-Z]{3}[A-Z_]+", row[0])[0] for row in ROWS}
    assert modes == {"DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"}
