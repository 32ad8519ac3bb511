"""A process of its own that applies a server's binlogs to another one as relay logs: to be killed.

python -m tests.relay_process '{"directory": ..., "names": [...], "note": ..., ...}'

What a run that was cut off has left is settled first, as `pitr` does it; without GTIDs it goes on
from the place in the channel, or else from the one in the file `note`.
"""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.recover import relay, target
from binlog2s3.recover.model import Place, Progress
from binlog2s3.server.connection import Server
from tests.login import ROOT
from tests.own_files import Own, own


def main(told: dict[str, Any]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    login = replace(ROOT, socket=told["socket"])
    note = Path(told["note"])
    with Server(lambda: login) as server:
        try:
            found = target.facts(server, login)
            left = relay.halt(server, found)
            if left is not None and left.place is not None:
                _write(note, left.place)
            relay.settle(server, found, directory=None)
            files = _rest(told, note)
            if not files.count:
                return 0
            why = relay.obstacle(server, found, directory=None, binlog_off=False, server_ids=())
            if why is not None:
                sys.stderr.write(f"obstacle: {why}\n")
                return 9
            way = relay.way(
                server,
                login,
                found,
                directory=None,
                size=files.size,
                transactions=files.count,
                batch_bytes=told.get("batch_bytes", 1 << 20),
                on_place=lambda place: _write(note, place),
            )
            way.apply(files.stream(), _tell)
        except Binlog2s3Error as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n{error.hint}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


def _rest(told: dict[str, Any], note: Path) -> Own:
    names, begin = told["names"], 0
    if note.exists() and told.get("by_place"):
        name, _, offset = note.read_text().rpartition(":")
        names = names[names.index(name) :]
        begin = int(offset)
    return own(Path(told["directory"]), names, begin=begin, cut=told.get("cut", 1 << 16))


def _write(note: Path, place: Place) -> None:
    beside = note.with_name("beside")
    beside.write_text(str(place))
    beside.rename(note)


def _tell(at: Progress) -> None:
    sys.stdout.write(f"{at.transactions}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
