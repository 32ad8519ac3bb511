"""Archives that released versions wrote can be read: every later version must."""

import hashlib
import json
import re
from typing import Any

import pytest

from binlog2s3 import __version__
from lab.s3 import MotoServer
from tests.golden import bucket
from tests.golden.bucket import VERSIONS, Golden

KINDS = (
    r"archive/test/[^/]+/lineage\.json",
    r"archive/test/[^/]+/binlogs/mysql-bin\.\d+",
    r"archive/test/[^/]+/entries/mysql-bin\.\d+\.json",
    r"archive/test/[^/]+/pages/\d+-\d+\.json",
    r"archive/test/[^/]+/floors/\d+\.json",
    r"archive/test/backups/[^/]+\.json",
    r"archive/test/drills/[^/]+\.json",
    r"archive/test/turns/\d+\.json",
    r"archive/gone/retired\.json",
    r"live/test/\d[^/]+/mysql-bin\.\d+/\d+-\d+-[0-9a-f]+",
    r"live/test/writers/[^/]+\.json",
    r"live/test/standbys/[^/]+\.json",
)

STORED = r"archive/test/base/[^/]+/0001"
"""The stream of a base backup; 0.2.0 stored none."""


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, moto: MotoServer) -> Golden:
    return bucket.put(request.param, moto, moto.make_bucket())


def test_there_are_golden_buckets() -> None:
    """The format is frozen with 0.2.0; this version has kinds of objects that 0.2.0 had not."""
    assert {"0.2.0", __version__} <= set(VERSIONS)


def test_it_is_as_it_was_made(golden: Golden) -> None:
    """An object of every kind, and no byte of them was changed since."""
    sums = {key: hashlib.sha256(data).hexdigest() for key, data in golden.objects.items()}
    assert sums == golden.truth["objects"]
    for kind in (*KINDS, *([STORED] if "stored" in golden.truth else [])):
        assert any(re.fullmatch(f"pre/{kind}", key) for key in sums), kind


def contains(found: Any, wanted: Any) -> bool:
    """Whether a JSON value has all that another one has; it may have more fields."""
    if isinstance(wanted, dict):
        return all(key in found and contains(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


def test_the_page_shows_it(golden: Golden) -> None:
    """`report`: each lineage of it, and its base backup."""
    page = golden.call("report", "--html=-")
    (listed,) = golden.truth["list"]["sources"]
    assert all(one["lineage"] in page for one in listed["lineages"])
    assert "<b>golden</b>" in page


def test_list_shows_what_it_showed(golden: Golden) -> None:
    """Lineages, binlogs, times, GTIDs, the floor; an open binlog has its size."""
    found, wanted = json.loads(golden.call("list", "--json")), golden.truth["list"]
    del wanted["target"]
    assert contains(found, wanted)
    assert not contains(found, {"sources": []})


def test_verify_finds_no_defect(golden: Golden) -> None:
    """Every byte and event of it."""
    found = json.loads(golden.call("verify", "--deep", "--json"))
    (source,) = found["sources"]
    assert source["defects"] == []
    assert [one["lineage"] for one in source["lineages"]] == golden.lineages


def test_find_reads_every_row(golden: Golden) -> None:
    """Of the current lineage: 10 and 10 in the closed binlog, 7 in the open one."""
    found = json.loads(golden.call("find", "--table=shop.orders", "--type=insert", "--json"))
    assert len(found["transactions"]) == 27


def test_backups_and_status_are_read(golden: Golden) -> None:
    """The registered backups, and what the writer said last."""
    backups = json.loads(golden.call("backup", "list", "--json"))["backups"]
    assert [one["label"] for one in backups] == (
        ["golden", "stored"] if "stored" in golden.truth else ["golden"]
    )
    status = json.loads(golden.call("status", "--json"))
    name, size = golden.truth["binlogs"][-1]
    assert (status["durable"]["binlog"], status["durable"]["offset"]) == (name, size)


@pytest.mark.parametrize("version", [one for one in VERSIONS if one != "0.2.0"])
def test_a_stored_backup_is_read_back(version: str, moto: MotoServer) -> None:
    """The dump that was stored, to its last line."""
    golden = bucket.put(version, moto, moto.make_bucket())
    dump = golden.call("backup", "get", golden.truth["stored"])
    assert "INSERT INTO `trees` VALUES (1);" in dump
    assert dump.splitlines()[-1].startswith("-- Dump completed on ")
