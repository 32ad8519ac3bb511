"""A binlog as the server's own mysqlbinlog reads it: what our scanner is compared with."""

import re
import subprocess
from calendar import timegm
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import strptime

from binlog2s3.binlog.scanner import Transaction

INSIDE_COMPRESSED = r"(?ms)^# Start of compressed events\.$.*?^# End of compressed events\.$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A binlog as mysqlbinlog prints it."""

    text: str
    bounds: list[int]  # where events begin and end, sorted
    headers: list[tuple[int, int, str]]  # end (0 if left out), time in seconds, description

    @classmethod
    def of(cls, binlog_program: Path, file: Path) -> "Witness":
        """Ask the stock client."""
        done = subprocess.run(
            [str(binlog_program), "--no-defaults", "--base64-output=decode-rows", str(file)],
            env={"TZ": "UTC", "TMPDIR": str(file.parent)},  # it writes LOAD DATA's files there
            capture_output=True,
            check=True,
            timeout=300,
        )
        text = done.stdout.decode(errors="replace")
        # events inside a compressed one are not the binlog's
        text = re.sub(INSIDE_COMPRESSED, "", text)
        begins = {int(at) for at in re.findall(r"^# at (\d+)$", text, re.MULTILINE)}
        found = re.findall(
            r"^#(\d{6} [ \d]\d:\d\d:\d\d) server id \d+  end_log_pos (\d+) "
            r"(?:CRC32 0x[0-9a-f]+ )?(?:\t(.*))?$",
            text,
            re.MULTILINE,
        )
        bounds = [*sorted(begins), int(found[-1][1])]
        assert bounds[0] == 4
        placed: dict[int, tuple[int, int, str]] = {}
        number = 0
        for stamp, end, what in found:
            # in order, but for the INTVAR before a block of LOAD DATA, which MySQL's client prints
            # late; MariaDB from 11.4 leaves the position out inside transactions
            number = bounds.index(int(end)) if int(end) else number + 1
            placed[number] = int(end), timegm(strptime(stamp, "%y%m%d %H:%M:%S")), what
        headers = [placed[number] for number in range(1, len(bounds))]
        assert len(placed) == len(found) == len(headers)
        return cls(text=text, bounds=bounds, headers=headers)

    def mysql_transactions(self) -> list[Transaction]:
        """By the lengths and times that GTID events are printed with."""
        found = re.findall(
            r"^# at (\d+)\n#.*\t(?:GTID|Anonymous_GTID)\t.*\ttransaction_length=(\d+)\n"
            r"(?:/\*!50718 .*\n)?"
            r"# original_commit_timestamp=(\d+) .*\n# immediate_commit_timestamp=(\d+) .*\n"
            r"(?:/\*!80.*\n)*SET @@SESSION.GTID_NEXT= '(.*)'/\*!\*/;$",
            self.text,
            re.MULTILINE,
        )
        assert len(found) == len(re.findall(r"\ttransaction_length=", self.text))
        return [
            Transaction(
                begin=int(begin),
                end=int(begin) + int(length),
                gtid=None if gtid == "ANONYMOUS" else gtid,
                commit_us=int(immediate),
                commit_exact=True,
                original_commit_us=int(original),
            )
            for begin, length, original, immediate, gtid in found
        ]

    def mariadb_transactions(self) -> list[Transaction]:
        """From each GTID event to the next event that is not of a transaction."""
        between = re.compile(r"GTID \d|Binlog checkpoint|Rotate|Stop|Start: |Gtid list")
        cuts = [at for at, header in enumerate(self.headers) if between.match(header[2])]
        found = []
        for at, following in pairwise([*cuts, len(self.headers)]):
            match = re.match(r"GTID (\S+)", self.headers[at][2])
            if match:
                found.append(
                    Transaction(
                        begin=self.bounds[at],
                        end=self.bounds[following],
                        gtid=match[1],
                        commit_us=self.headers[following - 1][1] * 1_000_000,
                        commit_exact=False,
                        original_commit_us=None,
                    )
                )
        return found
