"""An archive in a bucket of moto's that has one open binlog, and a command that reads it."""

import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType
from lab.s3 import REGION, MotoServer
from tests.binlog_writer import NOW_US, UUID_A, BinlogWriter, query_body
from tests.command import run
from tests.documents import BEAT, LINEAGE, turn_of

NAME = BinlogName.parse("mysql-bin.000001")
SECOND = 1_000_000


class OpenArchive:
    """The source `orders`: these statements, one a second, the first at NOW_US + SECOND.

    They are executed in the database `shop`, with the GTIDs 1, 2 and so on of UUID_A. `beat` is
    what the writer's object says of itself.
    """

    def __init__(self, moto: MotoServer, statements: Sequence[str], **beat: Any) -> None:
        self.moto = moto
        bucket = moto.make_bucket()
        self.url = f"s3://{bucket}/pre"
        binlog = BinlogWriter(in_use=True)
        binlog.previous_gtids(GtidSet())
        for number, statement in enumerate(statements, 1):
            binlog.transaction(
                [(EventType.QUERY, query_body(statement, db="shop"))],
                gtid=(UUID_A, "", number),
                commit_us=NOW_US + number * SECOND,
            )
        data = bytes(binlog.data)
        layout, lineage = Layout("pre", "orders"), replace(LINEAGE, source="orders", gtid_set="")
        usual = {"lineage": lineage.id, "covered_until": None, "durable": None}
        said = replace(BEAT, source="orders", **{**usual, **beat})
        chunk = Chunk(begin=0, end=len(data), crc64=crc64nvme(data))
        with closing(moto.client()) as client:
            for key, body in (
                (layout.lineage(lineage.id), lineage.to_json()),
                (layout.chunk(lineage.id, NAME, chunk), data),
                (layout.writer(*said.rank), said.to_json()),
                (layout.turn(1), turn_of(said, 1).to_json()),
            ):
                client.put_object(Bucket=bucket, Key=key, Body=body)

    def where(self) -> list[str]:
        """The options that lead there."""
        return [
            *("--s3-url", self.url, "--endpoint-url", self.moto.endpoint_url),
            *("--addressing-style", "path", "--region", REGION, "--source", "orders"),
        ]

    def run(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command that reads it."""
        return run(command, *self.where(), *arguments, **self.moto.env())
