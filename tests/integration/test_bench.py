"""The benchmark measures what it says: small runs through all of its code."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from bench import catchup, scanner, serve
from bench.cost import Load, dear, dollars_per_month, requests_for
from bench.link import SlowLink
from bench.load import Plan
from bench.measure import Setting, measure, quantile
from bench.reach import WHOLE, History, Sample
from bench.report import tables, write
from bench.rpo import keep, load_results
from lab.get import ServerBinaries
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, client_for

PLAN = Plan(rate=20, row_bytes=100, seconds=6, connections=2, fillers=1, rotations=1)
DOCUMENT = "# before\n" + "".join(
    f"<!-- begin {name} -->\nold\n<!-- end {name} -->\nkept {name}\n"
    for name in ("rpo", "requests", "peers", "cost", "model", "restore", "catchup", "serve")
)


@pytest.mark.mysql
@pytest.mark.minio
@pytest.mark.parametrize("way", ["link", "rotated", "plain"])
def test_each_commit_of_a_run_is_read_back(
    way: str,
    mysql_binaries: ServerBinaries,  # skips where there is none
    minio_binary: Path,
    tmp_path: Path,
) -> None:
    """A run finds each committed transaction in the bucket, and its numbers make the report."""
    setting = Setting(
        name="20-100-link" if way == "link" else f"peer-{way}",
        plan=PLAN,
        way="stream" if way == "link" else way,
        flush_interval=1.0 if way == "link" else 0.0,
        slow_link=way == "link",
        drain_seconds=600,
    )
    begun = monotonic()
    result = measure(setting)
    took = monotonic() - begun
    assert result["commits"] > 1
    assert result["missing"] == 0
    assert result["behind"] == 0
    assert len(result["fillers"]) == 1
    assert 0 < result["p50"] <= result["p99"] <= result["max"]
    assert result["max"] < took
    assert result["binlogs"] >= 2
    assert result["part_ends"] >= 1
    assert result["read_back_bytes"] >= result["binlog_bytes"] > 6_000_000
    assert result["sent_ratio"] >= 1  # each byte is sent at least once
    assert bool(result["requests"].get("PUT small chunk")) == (way == "link")

    keep(tmp_path / "results.json", result)
    results = load_results(tmp_path / "results.json")
    assert results == {setting.name: result}
    (tmp_path / "benchmarks.md").write_text(DOCUMENT)
    write(results, tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "old" not in text
    assert all(f"kept {name}\n" in text for name in tables(results))
    assert f"| {result['p50']:.2f} | {result['p99']:.2f} | {result['max']:.2f} |" in text


@pytest.mark.mysql
@pytest.mark.minio
def test_a_backlog_is_measured_by_each_way(
    mysql_binaries: ServerBinaries,  # skips where there is none
    minio_binary: Path,
    toxiproxy_binary: Path,
    aws_command: Path,
    tmp_path: Path,
) -> None:
    """A small backlog gets into the bucket near and far, and its numbers make the report."""
    results = tmp_path / "results.json"
    small = ["--megabytes", "4", "--rounds", "1", "--rows", "8000", "--results", str(results)]
    assert catchup.main(small) == 0
    found = load_results(results)
    assert list(found) == ["catchup-near-8000", "catchup-far-8000"]
    for result in found.values():
        assert result["binlogs"] == catchup.BINLOGS
        assert 2_000_000 < result["size"] < 8_000_000
        assert {"stream", "aws"} <= result["ways"].keys()
        for done in result["ways"].values():
            assert done["seconds"] > 0
            assert done["main"]["cpu_seconds"] > 0
            assert done["main"]["peak_bytes"] > 1_000_000
            assert done["child"]["peak_bytes"] > 1_000_000
            assert done["requests"]["PutObject"] >= catchup.BINLOGS
    assert catchup.main(small) == 0
    assert load_results(results) == found  # what is there is not measured again


@pytest.mark.minio
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_serve_is_measured(
    flavour: str, request: pytest.FixtureRequest, minio_binary: Path, tmp_path: Path
) -> None:
    """All clients get all bytes, and the delay of each transaction makes the report."""
    del minio_binary
    request.getfixturevalue(f"{flavour}_binaries")
    results = tmp_path / "results.json"
    small = ["--megabytes", "8", "--seconds", "3", "--rounds", "1", "--results", str(results)]
    assert serve.main(["--flavour", flavour, *small]) == 0
    (result,) = load_results(results).values()
    assert result["name"] == f"serve-{flavour}"
    assert set(result["clients"]) == {"1", "10"}
    for one in result["clients"].values():
        assert one["bytes_per_second"] > 0
        assert 0 <= one["fetched_per_block"] < 10
    assert set(result["mysqlbinlog"]) == {"server", "serve"}
    delay = result["delay"]
    assert delay["commits"] == 3 * serve.RATE
    assert 0 < delay["p50"] <= delay["p99"] <= delay["max"]
    shown = tables({result["name"]: result})["serve"]
    assert f"| {delay['p50']:.2f} | {delay['p99']:.2f} |" in shown


def test_a_transaction_counts_from_when_all_before_it_can_be_read() -> None:
    """Earlier binlogs must be whole, and the binlog must reach the transaction's last byte."""
    samples = [
        Sample(1.0, "mysql-bin.000009", 50),
        Sample(2.0, "mysql-bin.000010", 70),
        Sample(3.0, "mysql-bin.000009", 100),
        Sample(4.0, "mysql-bin.000010", 90),
    ]
    history = History(samples, {"mysql-bin.000009": 100, "mysql-bin.000010": 95})
    assert history.restorable_at("mysql-bin.000009", 50) == 1
    assert history.restorable_at("mysql-bin.000009", 51) == 3
    assert history.restorable_at("mysql-bin.000010", 60) == 3
    assert history.restorable_at("mysql-bin.000010", 71) == 4
    assert history.restorable_at("mysql-bin.000010", 91) is None
    assert history.reach_at(2.5) == {"mysql-bin.000009": 50, "mysql-bin.000010": 70}


def test_nothing_counts_behind_a_hole() -> None:
    """Where an earlier binlog was never whole in the bucket, nothing of a later one counts."""
    history = History([Sample(1.0, "b.2", WHOLE)], {"b.1": 10, "b.2": 10})
    assert history.restorable_at("b.2", 5) is None


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4)]
)
def test_a_quantile_is_one_of_the_values(share: float, found: int) -> None:
    """It is the smallest that at least this share of them does not exceed."""
    assert quantile([1, 2, 3, 4], share) == found


def test_the_formula_of_costs() -> None:
    """Idle costs four heartbeat requests a minute; the interval bounds what flushes cost."""
    idle = requests_for(Load(0, 0), 1, seconds=60, binlogs=0)
    assert dear(idle) == 4
    busy = [requests_for(Load(100, 600), i, seconds=60, binlogs=0) for i in (1, 5, 30)]
    puts = [round(requests["PUT small chunk"], 1) for requests in busy]
    assert puts == [64.0, 12.8, 2.1]
    assert 13 < dollars_per_month(Load(1, 600), 1) - dollars_per_month(Load(0, 0), 1) < 15


def test_connections_share_the_link(minio: MinioServer, bucket: str) -> None:
    """What two connections send at once takes as long as if one had sent it, and is unchanged."""
    body = bytes(range(256)) * 800
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        SlowLink(proxy.url, round_trip_seconds=0.02, bytes_per_second=1_000_000) as link,
    ):
        seconds = _put_side_by_side(minio, bucket, link.url, body)
    assert seconds >= 2 * len(body) / 1_000_000 - 0.1  # what it may catch up
    client = minio.client()
    assert [client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in "ab"] == [body] * 2
    client.close()


def _put_side_by_side(minio: MinioServer, bucket: str, endpoint_url: str, body: bytes) -> float:
    """Seconds until both are there."""
    client = client_for(endpoint_url, minio.access_key, minio.secret_key)
    begin = monotonic()
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(client.put_object, Bucket=bucket, Key=key, Body=body) for key in "ab"
        ]:
            done.result(60)
    client.close()
    return monotonic() - begin


def test_the_scanner_is_measured_on_whole_binlogs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of binlog, in each way; the ways themselves see that they come to its end."""
    scanner.main(["--megabytes", "1", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(scanner.SHAPES) * len(scanner.WAYS)
    assert {line.split()[0] for line in lines[1:]} == {"mysql", "anonymous", "mariadb"}
