"""The measurement of many streamers on one machine does what its guide says of it."""

from bench.instances import measure
from lab.get import ServerBinaries


def test_two_of_them(mysql_binaries: ServerBinaries, minio_binary: object) -> None:
    """Each with its mysqlbinlog; all are idle before and afterwards, else it raises."""
    del mysql_binaries, minio_binary  # both can be had, or the test is skipped
    found = measure(2, seconds=3)
    assert found.threads == 3 * found.count
    assert found.streamers.pss > 2 * (30 << 20)
    assert 2 * (2 << 20) < found.decoders.pss < found.streamers.pss
    assert found.streamers.uss <= found.streamers.pss
    assert 0 < found.idle_cpu < 120
    assert found.row[0] == "2"
