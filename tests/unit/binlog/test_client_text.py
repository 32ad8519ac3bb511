"""Statements on which the client and the server may not agree: each is held up, or is certain."""

import random
import struct
import zlib

import pytest
import zstandard

from binlog2s3.binlog.client_text import TEXT_LOOKED_MOST, NotForClients, is_plain_name, unclear
from binlog2s3.binlog.scanner import EventType, Scanner
from tests.binlog_writer import BEGIN, COMMIT, UUID_A, XID, BinlogWriter, packed, query_body

UTF8MB4, GBK, SJIS = 255, 28, 13
ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20

Event = tuple[int, bytes]


def status(*, sql_mode: int = 0, charset: int = UTF8MB4) -> bytes:
    """Status variables as a server writes them: flags, sql_mode, catalog, charset."""
    return (
        b"\0\0\0\0\0\1"
        + sql_mode.to_bytes(8, "little")
        + b"\6\3std"
        + b"\4"
        + struct.pack("<HHH", charset, charset, charset)
    )


CERTAIN = [
    "create table a (id int)",
    "insert into a values ('it''s', 'a\\'b', \"x\\\"y\", 'delimiter')",
    "insert into a values ('--\x01', '/*!99999 ', '#', '\n;\n/*!*/;\n')",
    "create table `a``b` (`--` int) -- plain\n",
    "create procedure p() begin /* kept */ -- and this\n  select 1; # too\nend",
    "select 1 - -1, 4 / 2, a - b",
    "select 1 /* a * b / c */",
    "select 1 /*!50000 + 1 */",
    "select 1 /*M! + 1 */",
    "select 'a' -- to the end",
    "select 1 # it's",
    "select 1 -- it's",
    'select 1 -- say "',
    "select 1 -- `",
    "create procedure p() begin select ';'; -- it's\nend",
    "",
]
UNCERTAIN = [
    "create table note (id int) --\x01'\n-- ' /*!*/; drop table a /*!*/;",
    "create table note (id int) --\x0b'",
    "select 1 /*!99999 ' */",
    "select 1 /*+ ' */",
    "select 1 -- it's\n'",
    "select 1 -- \\",
    "select 1 /* it's */",
    "select 1 /* a /* b */",
    "select 1 /* # */",
    "select 1 /* -- */",
    "select 1 /* not closed",
    "select 1\n\\g select 2",
    "select 'not closed",
    "select `not closed",
    "select `a\\`",
    "select 1\x00",
    "delimiter x\nselect 1",
    "select 1\n  DELIMITER x",
]


@pytest.mark.parametrize("text", CERTAIN)
def test_what_is_certain(text: str) -> None:
    assert unclear(text.encode(), status()) == ""


@pytest.mark.parametrize("text", UNCERTAIN)
@pytest.mark.parametrize("sql_mode", [0, ANSI_QUOTES, NO_BACKSLASH_ESCAPES])
def test_what_is_not(text: str, sql_mode: int) -> None:
    """In no sql_mode."""
    assert unclear(text.encode(), status(sql_mode=sql_mode))


def test_a_comment_of_two_dashes_at_the_end_is_certain() -> None:
    """Both take it for one: what mysqlbinlog puts behind a statement begins with a line's end."""
    assert not unclear(b"select 1 --", status())


@pytest.mark.parametrize(
    ("text", "sql_mode", "is_certain"),
    [
        ("select 'a\\'", 0, False),
        ("select 'a\\'", NO_BACKSLASH_ESCAPES, True),
        ("select 'a\\''", 0, True),
        ("select 'a\\''", NO_BACKSLASH_ESCAPES, False),
        ('create table "a\\" (i int)', ANSI_QUOTES, False),
        ('create table "a" (i int)', ANSI_QUOTES, True),
        ("select 'a\\''", ANSI_QUOTES, True),
    ],
)
def test_where_a_string_ends_depends_on_the_mode(
    text: str, sql_mode: int, is_certain: bool
) -> None:
    assert (unclear(text.encode(), status(sql_mode=sql_mode)) == "") is is_certain


@pytest.mark.parametrize("charset", [GBK, SJIS, 1, 95, 84, 35, 54, 60, 249])
def test_charsets_in_which_a_character_may_hold_a_quote(charset: int) -> None:
    """Only where there is such a character at all."""
    assert "charset" in unclear(b"select '\xbf\x5c'", status(charset=charset))
    assert not unclear(b"select 'ascii'", status(charset=charset))


def test_what_is_not_told_is_not_guessed() -> None:
    """Neither the charset nor the mode; an older variable of unknown size ends the reading."""
    assert "charset" in unclear("select 'ä'".encode(), b"")
    assert "sql_mode" in unclear(b"select '\\''", b"")
    assert "sql_mode" in unclear(b"select '\\''", b"\xc8" + status())
    assert "sql_mode" in unclear(b"select '\\''", status()[:9])
    assert not unclear(b"select 1", b"")


@pytest.mark.parametrize("name", [b"a`b", b"a\nb", b"a\\b", b"a\0", b"\x7f"])
def test_names_that_do_not_stay_names(name: bytes) -> None:
    assert not is_plain_name(name)
    assert is_plain_name(b"shop$1 \xc3\xa4")


def query(text: str, *, db: str = "t") -> Event:
    return EventType.QUERY, query_body(text, db=db, status=status())


def load(text: str) -> Event:
    """EXECUTE_LOAD_QUERY: 13 bytes more in front of its status variables."""
    body = query_body(text, status=status())
    return EventType.EXECUTE_LOAD_QUERY, body[:13] + bytes(13) + body[13:]


def squeezed(text: str) -> Event:
    """MariaDB's QUERY_COMPRESSED."""
    head = query_body("", status=status())
    data = text.encode()
    return EventType.QUERY_COMPRESSED, head + b"\x82" + struct.pack(
        ">H", len(data)
    ) + zlib.compress(data)


def user_variable(name: bytes) -> Event:
    return EventType.USER_VAR, len(name).to_bytes(4, "little") + name + b"\1"


def table(name: str) -> Event:
    body = (7).to_bytes(6, "little") + b"\1\0"
    for part in ("shop", name):
        body += packed(len(part)) + part.encode() + b"\0"
    return EventType.TABLE_MAP, body + b"\1\3\0\1"


def payload(events: list[Event], *, damage: bool = False) -> Event:
    inner = BinlogWriter(server_version="9.7.4", checksum=False)
    begin = len(inner.data)
    for event_type, body in events:
        inner.event(event_type, body)
    data = zstandard.ZstdCompressor().compress(bytes(inner.data[begin:]))
    if damage:
        data = data[:-3]
    fields = b"\2\1\0" + b"\3\3\xfd" + len(inner.data[begin:]).to_bytes(3, "little")
    fields += b"\1\3\xfd" + len(data).to_bytes(3, "little") + b"\0"
    return EventType.TRANSACTION_PAYLOAD, fields + data


def found(events: list[Event], *, version: str = "9.7.4", cut: int = 1 << 30) -> list[str]:
    """What is found in a transaction of these events."""
    writer = BinlogWriter(server_version=version)
    if writer.is_mariadb:
        writer.mariadb_transaction(events, gtid=(0, 5))
    else:
        writer.transaction(events, gtid=(UUID_A, "", 5))
    scanner = Scanner()
    scanner.feed(bytes(writer.data))
    assert scanner.format is not None
    look = NotForClients(scanner.format)
    data = bytes(writer.data)[writer.transactions[0].begin :]
    for at in range(0, len(data), cut):
        look.feed(data[at : at + cut])
    return look.found


ATTACK = UNCERTAIN[0]
LONG = "select '" + "x" * TEXT_LOOKED_MOST + "'"


@pytest.mark.parametrize("cut", [1, 100, 1 << 30])
@pytest.mark.parametrize("place", range(3))
def test_it_is_found_wherever_it_is(place: int, cut: int) -> None:
    """First, in the middle, last; in a payload as well, and in bytes that are cut anywhere."""
    events = [BEGIN, query("insert into a values ('x')"), query("select 1")]
    assert found([*events, XID], cut=cut) == []
    events.insert(place + 1, query(ATTACK))
    assert len(found([*events, XID], cut=cut)) == 1
    assert len(found([payload([*events, XID])], cut=cut)) == 1


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (query("drop database a", db="a`b"), "name of a database"),
        (load(ATTACK), "control character"),
        (user_variable(b"a`b"), "user variable"),
        (table("a\nb"), "table"),
        (query(LONG), "more than"),
        ((EventType.QUERY, b"\1\2\3"), "cannot be read"),
        (payload([query("select 1")], damage=True), "cannot be read"),
    ],
)
@pytest.mark.parametrize("cut", [5000, 1 << 30])
def test_each_kind(event: Event, says: str, cut: int) -> None:
    texts = found([BEGIN, event, COMMIT], cut=cut)
    assert len(texts) == 1, texts
    assert says in texts[0]


@pytest.mark.parametrize("event", [load("load data x"), user_variable(b"word"), table("a b")])
def test_each_kind_as_it_should_be(event: Event) -> None:
    assert found([BEGIN, event, COMMIT]) == []


def test_what_mariadb_compresses() -> None:
    """And a compressed statement that nobody can look at whole."""
    version = "10.11.18-MariaDB"
    assert found([squeezed("insert into a values ('x')")], version=version) == []
    assert len(found([squeezed(ATTACK)], version=version)) == 1
    event_type, body = squeezed("select 1")
    assert len(found([(event_type, body[:-8])], version=version)) == 1


def test_no_bytes_pass_that_cannot_be_read() -> None:
    """Damaged anywhere it is a finding, or what the events said is still seen."""
    dice = random.Random(20261123)
    pieces = [b"'", b'"', b"`", b"\\", b"--", b"\n", b"/*", b"*/", b"#", b"a", b" ", b"\x01", b"!"]
    for _ in range(20_000):
        text = b"".join(dice.choices(pieces, k=dice.randrange(1, 12)))
        mode = dice.choice([0, ANSI_QUOTES, NO_BACKSLASH_ESCAPES])
        if not unclear(text, status(sql_mode=mode)):
            assert ends_alike(text, mode), text


def ends_alike(text: bytes, mode: int) -> bool:
    """Whether both readers below are at the top level where the text ends.

    Both go on a line behind it, so that a comment that is still open there has its end.
    """
    text += b"\n"
    return _server(text, mode) and _client(text, mode)


def _server(text: bytes, mode: int) -> bool:
    """As the server reads (sql_lex.cc): `--` and any white space or control character."""
    at = 0
    while at < len(text):
        rest = text[at:]
        if rest[:1] in b"'\"`":
            at = _quoted(text, at, escapes=_escapes(rest[:1], mode))
            if at < 0:
                return False
        elif rest[:1] == b"#" or (rest[:2] == b"--" and (not rest[2:3] or rest[2] <= 32)):
            at = text.index(b"\n", at) + 1
        elif rest[:2] == b"/*":
            end = text.find(b"*/", at + 2)
            if end < 0:
                return False
            at = end + 2
        else:
            at += 1
    return True


def _client(text: bytes, mode: int) -> bool:
    """As mysql reads (add_line in mysql.cc): `--` and a blank; a backslash is a command."""
    at = 0
    while at < len(text):
        rest = text[at:]
        if rest[:1] in b"'\"`":
            at = _quoted(text, at, escapes=rest[:1] != b"`" and not mode & NO_BACKSLASH_ESCAPES)
            if at < 0:
                return False
        elif rest[:1] == b"\\":
            return False
        elif rest[:1] == b"#" or (rest[:2] == b"--" and rest[2:3] in b" \t\n"):
            at = text.index(b"\n", at) + 1
        elif rest[:2] == b"/*":
            end = text.find(b"*/", at + 2)
            if end < 0:
                return False
            at = end + 2
        else:
            at += 1
    return True


def _escapes(quote: bytes, mode: int) -> bool:
    is_name = quote == b"`" or (quote == b'"' and bool(mode & ANSI_QUOTES))
    return not is_name and not mode & NO_BACKSLASH_ESCAPES


def _quoted(text: bytes, at: int, *, escapes: bool) -> int:
    """Where what begins there with a quote has ended, -1 where it does not."""
    quote, at = text[at : at + 1], at + 1
    while at < len(text):
        if escapes and text[at : at + 1] == b"\\":
            at += 2
        elif text[at : at + 1] == quote:
            return at + 1
        else:
            at += 1
    return -1
