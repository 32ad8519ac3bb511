"""What a recovery reads from a real bucket, compared with the servers' own files."""

import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.extract import Extract
from binlog2s3.recover.model import PlanPiece
from binlog2s3.recover.snapshot import Survey
from binlog2s3.workers import Workers
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.surveyed import expected, piece_of, taken
from tests.waiting import wait_until
from tests.witness import Witness
from tests.world.commands import opened

LAYOUT = Layout("pre", "test")
FLAG_OFFSET = 21
BLOCK = 4 << 20


class Lab:
    """A server's binlogs as files, and as a streamer has left them in a bucket."""

    def __init__(self, server: Any, minio: MinioServer, bucket: str, directory: Path) -> None:
        self.server = server
        self.minio = minio
        self.bucket = bucket
        self.copies = directory / "copies"
        self.copies.mkdir()

    def stream(self, directory: Path) -> StreamProcess:
        return StreamProcess(directory, self.server, self.minio, self.bucket)

    def wait_until_durable(self) -> None:
        """The bucket has every byte, all binlogs but the last one archived."""

        def done() -> bool:
            bucket = Bucket(self.minio, self.bucket)
            sizes = [(name, len(data)) for name, data in bucket.binlogs().items()]
            listed = self.server.binlogs()
            return sizes == listed and len(bucket.archived()) == len(listed) - 1

        wait_until(done, 120, "all is durable", interval=0.3)

    def files(self) -> dict[str, bytes]:
        """As the server has them, but for the in-use flag; copies for mysqlbinlog."""
        found = {}
        for name, _ in self.server.binlogs():
            data = bytearray((self.server.datadir / name).read_bytes())
            data[FLAG_OFFSET] &= 0xFE
            found[name] = bytes(data)
            (self.copies / name).write_bytes(data)
        return found

    def transactions(self, name: str) -> list[Transaction]:
        """As the stock client sees them, never our scanner."""
        witness = Witness.of(self.server.binaries.binlog, self.copies / name)
        if isinstance(self.server, MariadbServer):
            return witness.mariadb_transactions()
        return witness.mysql_transactions()

    @contextmanager
    def survey(self, endpoint_url: str = "") -> Iterator[Survey]:
        """Of what is there."""
        with opened(self.minio, self.bucket, endpoint_url=endpoint_url) as store:
            yield Survey(store, Catalog(store, LAYOUT), Workers(4))

    def printed(self, *arguments: str, data: bytes | None = None) -> list[str]:
        """The statements that mysqlbinlog prints: without comments."""
        done = subprocess.run(
            [self.server.binaries.binlog, "--no-defaults", *arguments],
            input=data,
            env={"TZ": "UTC", "TMPDIR": str(self.copies)},
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return re.sub(rb"(?m)^#.*\n", b"", done.stdout).decode(errors="replace").splitlines()


def extracted(survey: Survey, pieces: Sequence[PlanPiece]) -> list[tuple[bytes, list[Transaction]]]:
    stream = Extract(survey.blocks).stream(pieces)
    return [taken(list(checked)) for _, checked in stream]


def random_pieces(
    chance: random.Random, transactions: dict[str, list[Transaction]], lineage: str, count: int
) -> list[PlanPiece]:
    found = []
    for _ in range(count):
        name = chance.choice([name for name, those in transactions.items() if len(those) > 1])
        those = transactions[name]
        first, last = sorted(chance.sample(range(len(those) + 1), 2))
        without = chance.sample(range(first, last), chance.choice([0, 0, (last - first) // 4]))
        found.append(
            piece_of(
                those,
                first,
                last,
                without=sorted(without),
                name=BinlogName.parse(name),
                lineage=lineage,
            )
        )
    return found


def check(lab: Lab, seed: int) -> None:
    """Facts, transactions, bytes and statements of all binlogs, the open one among them."""
    chance = random.Random(seed)
    files = lab.files()
    transactions = {name: lab.transactions(name) for name in files}
    with lab.survey() as survey:
        (lineage,) = survey.lineages
        assert (survey.current, [str(name) for name in survey.names(lineage.id)]) == (
            lineage.id,
            list(files),
        )
        survey.load(lineage.id, survey.names(lineage.id))
        whole = []
        for name, data in files.items():
            parsed = BinlogName.parse(name)
            known = survey.known(lineage.id, parsed)
            those = transactions[name]
            is_last = name == list(files)[-1]
            assert (known.size, known.transaction_end) == (len(data), len(data))
            assert (known.state, known.ended) == (
                ("open", False) if is_last else ("archived", True)
            )
            assert known.transactions == len(those)
            assert list(survey.transactions(lineage.id, parsed)) == those
            if those:
                whole.append(piece_of(those, 0, len(those), name=parsed, lineage=lineage.id))
        pieces = random_pieces(chance, transactions, lineage.id, 60)
        last_name = list(files)[-1]
        pieces += random_pieces(chance, {last_name: transactions[last_name]}, lineage.id, 10)
        for piece, (data, done) in zip(
            [*whole, *pieces], extracted(survey, [*whole, *pieces]), strict=True
        ):
            assert data == expected(files[str(piece.binlog)], piece), (seed, piece)
            assert len(done) == piece.transactions
        for piece in pieces[::4]:
            if piece.left_out:
                continue
            ((data, _),) = extracted(survey, [piece])
            assert lab.printed("-", data=data) == lab.printed(
                f"--start-position={piece.begin}",
                f"--stop-position={piece.end}",
                str(lab.copies / str(piece.binlog)),
            ), (seed, piece)
            (one, *_) = transactions[str(piece.binlog)]
            assert survey.content(lineage.id, piece.binlog, one).changes


def test_pieces_of_a_mysql_are_the_servers_own_bytes(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Random ones, whole binlogs, the open one; little is fetched of a large binlog for a few."""
    lab = Lab(mysql, minio, bucket, disk_tmp_path)
    with lab.stream(disk_tmp_path) as stream:
        stream.wait_for_event("new lineage")
        mysql.query(
            "CREATE DATABASE big",
            "CREATE TABLE big.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
            *["INSERT INTO big.t (v) VALUES (REPEAT(RANDOM_BYTES(1024), 1000))"] * 50,
            "FLUSH BINARY LOGS",
        )
        shape = Shape(large_chance=0.02)
        with Load(mysql, threads=2, transactions_each=250, flush_seconds=0.5, shape=shape) as load:
            load.join()
        mysql.query(
            "FLUSH BINARY LOGS",
            "SET binlog_transaction_compression = ON",
            "INSERT INTO big.t (v) VALUES (REPEAT('a', 100000))",
            "SET binlog_transaction_compression = OFF, binlog_format = STATEMENT",
            "DELETE FROM big.t WHERE id < 3",
            "CREATE TABLE big.u LIKE big.t",
            "SET binlog_format = ROW",
            *["INSERT INTO big.u (v) VALUES ('x')"] * 20,
            "DROP TABLE big.t, big.u",
        )
        lab.wait_until_durable()
        check(lab, random.SystemRandom().randrange(1 << 32))
        assert stream.terminate() == 0
    executed = GtidSet.parse(mysql.query("SELECT @@gtid_executed")[0][0])
    large = BinlogName.parse(mysql.binlogs()[0][0])
    those = lab.transactions(str(large))
    with RecordingProxy(minio.endpoint_url) as proxy, lab.survey(proxy.url) as survey:
        survey.load(survey.current, survey.names(survey.current))
        known = [survey.known(survey.current, name) for name in survey.names(survey.current)]
        assert known[0].size > 50_000_000
        added = GtidSet()
        for one in known:
            assert isinstance(one.gtids_added, GtidSet)
            added |= one.gtids_added
        assert added == executed
        proxy.clear()
        wanted = those[30:32]
        found = survey.transactions(survey.current, large, wanted[0].begin, wanted[1].end)
        assert list(found) == wanted
        piece = piece_of(those, 30, 32, name=large, lineage=survey.current)
        assert survey.is_boundary(survey.current, large, piece.end)
        ((data, done),) = extracted(survey, [piece])
        assert (len(data), done) == (
            len(expected((lab.copies / str(large)).read_bytes(), piece)),
            wanted,
        )
        fetched = 0
        for record in proxy.matching(path=f"/{large}$"):
            low, high = map(int, record.request.headers["range"].partition("=")[2].split("-"))
            fetched += high + 1 - low
        assert {record.request.method for record in proxy.records} == {"GET"}
    assert 0 < fetched <= 4 * BLOCK + (1 << 16), "of 50 MB, for a piece of two"


def test_pieces_of_a_mariadb_are_the_servers_own_bytes(
    mariadb: MariadbServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Whose transactions have no lengths and no exact times."""
    lab = Lab(mariadb, minio, bucket, disk_tmp_path)
    with lab.stream(disk_tmp_path) as stream:
        stream.wait_for_event("new lineage")
        shape = Shape(large_chance=0.02)
        with Load(
            mariadb, threads=2, transactions_each=150, flush_seconds=0.5, shape=shape
        ) as load:
            load.join()
        mariadb.query(
            "FLUSH BINARY LOGS",
            "CREATE TABLE lab_load.u (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            *["INSERT INTO lab_load.u (v) VALUES (7)"] * 20,
            "SET SESSION binlog_format = STATEMENT",
            "UPDATE lab_load.u SET v = 8",
            "DROP TABLE lab_load.u",
        )
        lab.wait_until_durable()
        check(lab, random.SystemRandom().randrange(1 << 32))
        assert stream.terminate() == 0
