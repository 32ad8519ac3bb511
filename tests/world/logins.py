"""Logging in to a real server on both ways: pymysql's (`Server`) and mysqlbinlog's (`Child`)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server, ServerFacts
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import Child, find
from lab.mysql import MysqlServer
from tests.integration.certificates import Pair
from tests.login import ROOT
from tests.waiting import wait_until

NASTY = "a#b\"c\\d'e;f = é€ü%"  # everything an option file or a charset can get wrong

ACCOUNTS = {
    "tls": "IDENTIFIED BY 'pw' REQUIRE SSL",
    "certified": "IDENTIFIED BY 'pw' REQUIRE X509",
    "nasty": f"IDENTIFIED BY '{NASTY.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'",
    "naked": "IDENTIFIED BY ''",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What TLS needs: the server's certificate is good for the name `localhost` alone."""

    ca: Path
    wrong_ca: Path
    server: Pair
    client: Pair
    address: Pair


def login_to(server: MysqlServer, **changes: Any) -> Login:
    """The streamer's login over TCP; `changes` are fields of Login."""
    login = replace(
        ROOT,
        port=server.port,
        user=server.repl_user,
        password=server.password,
        connect_timeout=60.0,
    )
    return replace(login, **changes)


def try_server(login: Login) -> ServerFacts | SourceError:
    """pymysql's way: what it found, or why not."""
    with Server(lambda: login) as asks:
        try:
            return asks.facts()
        except SourceError as error:
            return error


def try_child(
    server: MysqlServer, login: Login, directory: Path, *, tls: bool = False
) -> SourceError | None:
    """mysqlbinlog's way: None if it streams, or why it ended. `tls`: the questions had it."""
    directory.mkdir(parents=True)
    tool = find(server.binaries.flavour, server.binaries.binlog)
    name = BinlogName.parse(server.binlogs()[0][0])
    child = Child(
        tool,
        login,
        server_id=4711,
        directory=directory,
        binlog=name,
        tls=tls,
        on_line=lambda _line: None,
    )
    try:
        copy = directory / str(name)
        ended = wait_until(
            lambda: (child.poll() is not None and "ended") or (copy.exists() and "streams"),
            what="mysqlbinlog streams or ends",
        )
        return child.failure() if ended == "ended" else None
    finally:
        child.stop()


def both_accept(server: MysqlServer, login: Login, directory: Path) -> ServerFacts:
    """Both ways must work; what the server said."""
    found = try_server(login)
    assert isinstance(found, ServerFacts), found
    refused = try_child(server, login, directory / "run", tls=found.tls)
    assert refused is None, refused
    return found


def both_refuse(server: MysqlServer, login: Login, directory: Path) -> tuple[SourceError, ...]:
    """Both ways must fail; why."""
    mine, childs = try_server(login), try_child(server, login, directory / "run")
    assert isinstance(mine, SourceError), mine
    assert isinstance(childs, SourceError), "mysqlbinlog accepts what pymysql refuses"
    return mine, childs
