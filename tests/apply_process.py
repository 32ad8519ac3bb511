"""A process of its own that applies a server's binlogs to another one: it can be killed.

python -m tests.apply_process '{"directory": ..., "names": [...], ...}'
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.recover.client import find_client
from binlog2s3.recover.model import Progress
from binlog2s3.recover.pipe import Pipe
from binlog2s3.server.connection import Server
from binlog2s3.server.mysqlbinlog import Tool
from tests.login import ROOT
from tests.own_files import own


def main(told: dict[str, Any]) -> int:
    flavour = told["flavour"]
    login = replace(ROOT, socket=told["socket"])
    files = own(Path(told["directory"]), told["names"], cut=told.get("cut", 1 << 16))
    tool = Tool(path=told["binlog"], flavour=flavour, version="", connection_server_id=True)
    with Server(lambda: login) as server:
        pipe = Pipe(
            server,
            login,
            find_client(flavour, Path(told["client"])),
            tool,
            size=files.size,
            transactions=files.count,
        )
        try:
            pipe.apply(files.stream(), _tell)
        except Binlog2s3Error as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return error.exit_code
    return 0


def _tell(at: Progress) -> None:
    sys.stdout.write(f"{at.transactions}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
