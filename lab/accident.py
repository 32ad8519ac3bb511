"""Accidents to practise docs/recovery/ on.

    python -m lab.accident dropped-table

starts real servers, streams one of them into a bucket, lets the accident happen, prints the values
for the variables of docs/recovery/prepare.md, and waits for Ctrl-C; then all is gone again. The
test of these pages runs every command of them at these accidents. What a recovery must give was
asked of the servers themselves, before they were lost.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NoReturn

from lab import get
from lab.cache import Unavailable
from lab.child import ServerFailedError
from lab.company import CompanyFailedError, Site, company, now, server_of, wait_for
from lab.disk import temporary_directory
from lab.mysql import MariadbServer


def dropped_table(site: Site) -> None:
    """A table is dropped by mistake, and work goes on."""
    site.remember("before the mistake")
    second = now(site.source)[:19]  # what was defined before is not of the same second, on MariaDB
    wait_for(lambda: now(site.source)[:19] > second, "the next second")
    began = now(site.source)
    site.source.query("SET foreign_key_checks = 0", "DROP TABLE shop.orders")
    site.variables["WHEN"] = f"{began}/{now(site.source)}"
    site.note("where are the orders?")
    site.flush()
    site.note("still looking")
    site.remember("at the end")
    site.arrived()
    site.says("idle")


def lost_host(site: Site) -> None:
    """The database's host is gone; the streamer is another one, and works."""
    site.remember("at the end")
    site.arrived()
    site.source.kill()
    site.says("source unreachable")


def lost_all(site: Site) -> None:
    """Database and streamer are gone, the spool with them, since a while."""
    _lose_all(site)
    site.seems_dead()


def _lose_all(site: Site) -> None:
    lost_host(site)
    site.streamers[-1].kill()
    shutil.rmtree(site.streamers[-1].spool)


def gap(site: Site) -> None:
    """While nobody streamed, the source purged what nobody had read; then its host was lost."""
    site.arrived()
    site.streamers[-1].stop()
    site.remember("before the gap")
    site.note("nobody saw this", 7)
    site.flush()
    newest = site.source.binlogs()[-1][0]
    site.source.query(f"PURGE BINARY LOGS TO '{newest}'")
    site.remember("behind the gap")
    site.stream()
    site.trade()
    site.variables["LATER"] = str(site.dump("tuesday"))
    site.trade()
    site.remember("at the end")
    site.arrived()
    site.source.kill()
    site.streamers[-1].stop()


def fail_over(site: Site) -> None:
    """A replica takes over that has not got the source's last transactions."""
    replica = site.stack.enter_context(server_of(site.binaries, site.folder / "replica", 2))
    replica.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_SSL=1, "
        f"SOURCE_PORT={site.source.port}, SOURCE_USER='{site.source.repl_user}', "
        f"SOURCE_PASSWORD='{site.source.password}', SOURCE_AUTO_POSITION=1",
        "START REPLICA",
    )
    site.remember("the common point")
    wanted = site.gtids["the common point"]
    wait_for(
        lambda: bool(replica.query(f"SELECT GTID_SUBSET('{wanted}', @@gtid_executed)")[0][0]),
        "the replica has all",
    )
    replica.query("STOP REPLICA")
    site.trade(3)
    site.note("paid, but not replicated", 2)
    site.remember("on the old source")
    site.arrived()
    site.source.kill()
    replica.query("RESET REPLICA ALL")
    site.streamers[-1].stop()
    site.stream(replica)
    site.trade(server=replica)
    site.flush(replica)
    site.trade(server=replica)
    site.remember("at the end", replica)
    site.arrived(replica)
    site.live(replica)


def reset(site: Site) -> None:
    """The source was RESET, and gave its GTIDs to other transactions; then its host was lost."""
    site.remember("before the reset")
    site.arrived()
    site.source.query("RESET BINARY LOGS AND GTIDS")
    site.trade(60)
    site.flush()
    site.variables["LATER"] = str(site.dump("tuesday"))
    site.trade(60)
    site.remember("at the end")
    site.arrived()
    site.source.kill()
    site.streamers[-1].stop()


def snapshot(site: Site) -> None:
    """The base backup is a snapshot of the data directory of a server at work; then it is lost."""
    site.source.freeze()
    copied = site.folder / "snapshot"
    shutil.copytree(site.source.datadir, copied, ignore=shutil.ignore_patterns("*.pid"))
    site.source.thaw()
    site.variables["SNAPSHOT"] = str(copied)

    site.trade()
    site.flush()
    site.trade()
    _lose_all(site)


ACCIDENTS: Mapping[str, Callable[[Site], None]] = {
    "dropped-table": dropped_table,
    "lost-host": lost_host,
    "lost-all": lost_all,
    "gap": gap,
    "fail-over": fail_over,
    "reset": reset,
    "snapshot": snapshot,
}


@contextmanager
def accident(
    name: str,
    folder: Path,
    binaries: get.ServerBinaries,
    minio: Path,
    *,
    gtid: bool = True,
) -> Iterator[Site]:
    """A company to which it has just happened; at the end nothing of it is left running."""
    with company(folder, binaries, minio, gtid=gtid) as site:
        ACCIDENTS[name](site)
        yield site


def install_db(folder: Path, binaries: get.ServerBinaries) -> None:
    """A mariadb-install-db for a server that is not installed, which the package's own wants."""
    template = MariadbServer(binaries, folder / "unused")._template()  # noqa: SLF001 - the lab's own
    program = folder / "mariadb-install-db"
    program.write_text(
        f"""#!/bin/sh
# mariadb-install-db --defaults-file=FILE ...
set -eu
cp -a {shlex.quote(str(template / "data"))} "$(sed -n 's/^datadir = //p' "${{1#--defaults-file=}}")"
"""
    )
    program.chmod(0o755)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Make one, say where it is, and wait for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="lab.accident", description=__doc__)
    parser.add_argument("name", choices=[*ACCIDENTS])
    parser.add_argument("--mariadb", action="store_true", help="with MariaDB instead of MySQL")
    parser.add_argument("--no-gtids", action="store_true", help="a source without GTIDs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        binaries = get.mariadb() if arguments.mariadb else get.mysql()
        with (
            temporary_directory("accident-") as folder,
            accident(
                arguments.name, folder, binaries, get.minio(), gtid=not arguments.no_gtids
            ) as site,
        ):
            programs = [Path(sys.executable).parent, site.binaries.client.parent]
            if site.is_mariadb:
                programs.append(folder / "programs")
                programs[-1].mkdir()
                install_db(programs[-1], binaries)
            path = ":".join([*map(str, programs), os.environ["PATH"]])
            for key, value in {**site.environment, "PATH": path}.items():
                print(f"export {key}={shlex.quote(value)}")
            for key, value in site.variables.items():
                print(f"{key}={shlex.quote(value)}")
            print("# Ctrl-C ends it and removes everything", flush=True)
            Event().wait()
    except KeyboardInterrupt:
        return 130
    except (CompanyFailedError, ServerFailedError, Unavailable) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
