from typing import Literal

import pytest

from binlog2s3.binlog.gtid import (
    GNO_MAX,
    Gtids,
    GtidSet,
    GtidSetBuilder,
    MariadbGtidList,
    beyond,
    empty,
    parse,
)

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "b4308ccf-e58d-11f1-9e92-02fc00000001"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" \n ", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A}:1-1", f"{A}:1"),
        (f"{A.upper()}:1-5:7", f"{A}:1-5:7"),
        (f"{A}:7:1-3:2-5:6", f"{A}:1-7"),
        (f"{A}:4:6:5:9-10", f"{A}:4-6:9-10"),
        (f"{B}:1,\n{A}:2 , {A}:1,", f"{A}:1-2,{B}:1"),
        (f"{A} : 1 - 5 : 7", f"{A}:1-5:7"),
        (f"{A}:Tag:1-3:other_tag9:9", f"{A}:other_tag9:9:tag:1-3"),
        (f"{A}:tag:3:1-2", f"{A}:tag:1-3"),
        (f"{A}:1:tag:1,{A}:2:tag:5", f"{A}:1-2:tag:1:5"),
        (f"{A}:_{'x' * 31}:1", f"{A}:_{'x' * 31}:1"),
        (f"{A}:1-{GNO_MAX}", f"{A}:1-{GNO_MAX}"),
        (f"{A}:1,,{A}:3, ,{A}:5,", f"{A}:1:3:5"),
    ],
)
def test_a_gtid_set_has_one_text(text: str, canonical: str) -> None:
    """Whatever the order, case and white space, the text is the one that the server prints."""
    parsed = GtidSet.parse(text)
    assert str(parsed) == canonical
    assert GtidSet.parse(canonical) == parsed
    assert hash(GtidSet.parse(canonical)) == hash(parsed)
    assert bool(parsed) == bool(canonical)


def test_a_single_gtid_is_in_a_set_in_any_case() -> None:
    """As the text of a set is read."""
    assert (A.upper(), "BLUE", 1) in GtidSet.parse(f"{A}:blue:1")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x", "'x'"),
        (A, A),
        (f"{A}:", "''"),
        (f"{A}:0", "'0'"),
        (f"{A}:5-3", "'5-3'"),
        (f"{A}:1-", "'1-'"),
        (f"{A}:-1", "'-1'"),
        (f"{A}:1-2-3", "'1-2-3'"),
        (f"{A}:{GNO_MAX + 1}", f"'{GNO_MAX + 1}'"),
        (f"{A}:1::2", "''"),
        (f"{A}:tag", "'tag'"),
        (f"{A}:tag:other:1", "'other'"),
        (f"{A}:1:tag", "'tag'"),
        (f"{A}:t-g:1", "'t-g'"),
        (f"{A}:t{'x' * 32}:1", "xxx"),
        (f"{A}:\u0661", "\u0661"),
        (f"{B}:1,{A[:-1]}:1", A[:-1]),
        (f"{A[:-1]}g:1", "g'"),
        (f"{A} {B}:1", B),
        ("0-1-5", "'0-1-5'"),
    ],
)
def test_text_that_is_no_gtid_set_is_named(text: str, named: str) -> None:
    """The error holds the piece that is wrong."""
    with pytest.raises(ValueError, match=r".") as caught:
        GtidSet.parse(text)
    assert named in str(caught.value)


def test_a_builder_stays_small_when_numbers_come_out_of_order() -> None:
    """A parallel replica commits in no order for ever; the runs are merged on the way."""
    builder = GtidSetBuilder()
    for block in range(0, 40_000, 4):
        for gno in (block + 3, block + 1, block + 4, block + 2):
            builder.add(A, "", gno)
    assert len(builder._runs[A, ""]) < 1100
    assert str(builder.build()) == f"{A}:1-40000"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0-1-5", "0-1-5"),
        ("1-2-7, 0-1-5\n", "0-1-5,1-2-7"),
        ("0-10-1,0-9-2", "0-9-2,0-10-1"),
        ("0-1-5,0-1-9,0-1-7", "0-1-9"),
        ("0-1-5,,1-1-3, ,2-1-1,", "0-1-5,1-1-3,2-1-1"),
        ("4294967295-4294967295-18446744073709551615",) * 2,
    ],
)
def test_a_mariadb_list_has_one_text(text: str, canonical: str) -> None:
    """Sorted by domain and server as numbers, the greatest number of each."""
    parsed = MariadbGtidList.parse(text)
    assert str(parsed) == canonical
    assert MariadbGtidList.parse(canonical) == parsed
    assert hash(MariadbGtidList.parse(canonical)) == hash(parsed)
    assert bool(parsed) == bool(canonical)


@pytest.mark.parametrize(
    "text",
    ["0", "0-1", "0-1-2-3", "a-1-2", "-1-1-1", "4294967296-1-1", f"0-1-{2**64}", f"{A}:1", "0-1-x"],
)
def test_text_that_is_no_mariadb_gtid_is_named(text: str) -> None:
    """The error holds the piece that is wrong."""
    with pytest.raises(ValueError, match="not a MariaDB GTID") as caught:
        MariadbGtidList.parse(f"0-1-5,{text}")
    assert repr(text) in str(caught.value)


def test_mariadb_lists_compare_by_domain_and_server() -> None:
    """Two primaries use the same numbers: a greater one of another server proves nothing."""
    position = MariadbGtidList.parse("0-1-100,1-1-5")
    assert position <= MariadbGtidList.parse("0-2-101,0-1-100,1-1-5")
    assert not position <= MariadbGtidList.parse("0-2-101,0-1-99,1-1-5")
    assert position <= MariadbGtidList.parse(str(position))
    assert not position <= MariadbGtidList.parse("0-2-99,1-1-5")
    assert not position <= MariadbGtidList.parse("0-1-100")
    assert MariadbGtidList() <= position
    assert not position <= MariadbGtidList()
    assert MariadbGtidList.parse("0-1-100,1-1-5,2-1-1") >= position
    assert MariadbGtidList.parse("0-1-100") != MariadbGtidList.parse("0-2-100")


def test_mariadb_lists_join() -> None:
    """`|` keeps the greater number, `then` the later one."""
    before = MariadbGtidList.parse("0-1-7,0-2-9")
    after = MariadbGtidList.parse("0-1-3,1-1-1")
    assert str(before | after) == "0-1-7,0-2-9,1-1-1" == str(after | before)
    assert str(before.then(after)) == "0-1-3,0-2-9,1-1-1"


@pytest.mark.parametrize(("flavour", "text"), [("mysql", f"{A}:1-3"), ("mariadb", "0-1-3")])
def test_both_flavours_are_used_alike(flavour: Literal["mysql", "mariadb"], text: str) -> None:
    """parse, ==, <=, |, str and bool need not know the flavour."""
    gtids, nothing = parse(text, flavour), empty(flavour)
    assert str(gtids) == text
    assert gtids == parse(text, flavour)
    assert nothing <= gtids
    assert not gtids <= nothing
    assert (gtids | nothing) == gtids
    assert not nothing
    assert nothing == parse("", flavour)
    assert repr(text) in repr(gtids)


def test_flavours_do_not_mix() -> None:
    """They are never equal, and comparing them is an error, not an answer."""
    mysql, mariadb = parse(f"{A}:1", "mysql"), parse("0-1-1", "mariadb")
    assert mysql != mariadb
    assert empty("mysql") != empty("mariadb")
    with pytest.raises(TypeError):
        _ = mysql <= mariadb
    with pytest.raises(TypeError):
        _ = mariadb | mysql


@pytest.mark.parametrize(
    ("largest", "beyond"),
    [
        (f"{2**32 - 1}-1-1", f"{2**32}-1-1"),
        (f"1-{2**32 - 1}-1", f"1-{2**32}-1"),
        (f"1-1-{2**64 - 1}", f"1-1-{2**64}"),
    ],
)
def test_numbers_that_mariadb_does_not_have(largest: str, beyond: str) -> None:
    """The largest is read, one more is refused."""
    assert str(MariadbGtidList.parse(largest)) == largest
    with pytest.raises(ValueError, match="-"):
        MariadbGtidList.parse(beyond)


def test_the_last_of_a_domain_is_that_of_the_later_list() -> None:
    """Whose number may be smaller than that of another server; the list is told by its domains."""
    before = MariadbGtidList({(0, 1): 50, (7, 1): 3}, {0: 1, 7: 1})
    after = before.then(MariadbGtidList({(0, 2): 8}, {0: 2}))
    assert (after.newest(0), after.newest(7)) == ((0, 2, 8), (7, 1, 3))
    assert sorted(after.gtids()) == [(0, 1, 50), (0, 2, 8), (7, 1, 3)]


def test_the_greatest_number_of_a_domain() -> None:
    """Of any server; numbers of other domains do not count."""
    state = MariadbGtidList.parse("0-1-7,0-2-9,3-1-40")
    assert [state.greatest(domain) for domain in (0, 1, 3)] == [9, 0, 40]


@pytest.mark.parametrize(
    ("gtids", "others", "beyond_them"),
    [
        ("0-1-4,1-2-9", "0-1-4,1-2-8", "1-2-9"),
        ("0-1-4", "0-1-5", ""),
        ("0-1-4", "0-2-9", "0-1-4"),
        (f"{A}:1-9", f"{A}:1-7,{B}:1", f"{A}:8-9"),
        (f"{A}:1-9", f"{A}:1-9", ""),
    ],
)
def test_what_others_do_not_have(gtids: str, others: str, beyond_them: str) -> None:
    """Of MariaDB what has a greater number than the others' of the same domain and server."""
    assert beyond(_either(gtids), _either(others)) == beyond_them


def _either(text: str) -> Gtids:
    return parse(text, "mysql" if ":" in text else "mariadb")
