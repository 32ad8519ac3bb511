"""Looks at the spool directory for `check`.

Law: it leaves the directory as it was: a directory that does not exist is made and removed again,
because the streamer may run as another user. It does not touch a spool that a streamer has locked.
"""

import errno
import fcntl
import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from binlog2s3 import private
from binlog2s3.config.stream import Config, SpoolLimits
from binlog2s3.errors import SpoolError
from binlog2s3.formatting import size_text
from binlog2s3.inspect.check.report import Row, fail, failed, ok, skipped, warn
from binlog2s3.stream.spool import check_spool, hint_of, holder, room_of, runs_in

_PROBE_BYTES = 1 << 20
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NAMES = ("lock", "contents", "free space", "file system")
_DYNAMIC = Path("/var/lib/private")
"""Where systemd keeps the state of units with DynamicUser."""


def spool_rows(config: Config) -> Iterator[Row]:
    """Every row of the spool; directories made for it are removed."""
    directory = config.spool
    made: list[Path] = []
    try:
        try:
            _make(directory, made)
            yield from _rows(config, made)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            found = f"{error.filename or directory}: {reason}"
            yield fail("spool", "directory", found, unusable_hint(error, directory))
            for name in _NAMES:
                yield skipped("spool", name, "the directory cannot be used")
    finally:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir()


def unusable_hint(error: OSError, directory: Path) -> str:
    """The hint for a directory that cannot be made or written to."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return hint_of(error)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return f"{hint_of(error)}: install -d -m 700 -o {user} {directory}"


def _make(directory: Path, made: list[Path]) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700)
        made.append(path)


def _rows(config: Config, made: list[Path]) -> Iterator[Row]:
    directory = config.spool
    probe = directory / f"check-{secrets.token_hex(4)}"
    try:
        with open(private.create(probe), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(b"\1" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield _directory_row(directory, made)
        yield _lock_row(directory)
        yield _contents_row(directory, config.stream.source, config.target)
    finally:
        with suppress(OSError):
            probe.unlink()
    yield _room_row(directory, config.spool_limits)
    yield _kind_row(directory)


def _directory_row(directory: Path, made: list[Path]) -> Row:
    if made:
        return ok(
            "spool", "directory", f"{directory} does not exist; it can be made and written to"
        )
    return owner_row(directory.resolve(), directory.stat().st_uid, os.geteuid())


def owner_row(directory: Path, owner: int, user: int) -> Row:
    """Whether a streamer of this user takes it; a unit's own user is known to root only."""
    if private.trusts(user, owner):
        return ok("spool", "directory", f"{directory} can be written to")
    if user == 0 and directory.is_relative_to(_DYNAMIC):
        found = f"{directory} belongs to user {owner}, which systemd made for the unit"
        return ok("spool", "directory", found)
    found = f"{directory} belongs to user {owner}; this check runs as {user}"
    hint = f"run the check as the user that streams; a streamer that runs as {user} refuses it"
    return warn("spool", "directory", found, hint)


def _lock_row(directory: Path) -> Row:
    process = holder(directory)
    if process is None:
        return ok("spool", "lock", "free")
    named = f" (process {process})" if process else ""
    return ok("spool", "lock", f"a streamer runs here{named}")


def _contents_row(directory: Path, source: str, target: str) -> Row:
    """Whose binlogs it has: a streamer refuses those of another source or archive."""
    try:
        runs = runs_in(directory)
        check_spool(runs, source, target)
    except SpoolError as error:
        return failed("spool", "contents", error)
    return ok("spool", "contents", f"binlogs of this source, {len(runs)} runs" if runs else "empty")


def _room_row(directory: Path, limits: SpoolLimits) -> Row:
    room = room_of(directory, limits)
    if short := room.short_of():
        hint = "free space, or set --spool-min-free-bytes and --spool-max-bytes; never delete run-*"
        return fail("spool", "free space", short, hint)
    found = f"{size_text(room.free)} free, {size_text(room.min_free)} must stay free, "
    found += f"the spool uses {size_text(room.used)}"
    grows = room.free - room.min_free
    if limits.max_bytes is not None and limits.max_bytes - room.used > grows:
        hint = "the streamer pauses before it reaches the limit: lower it, or use a larger disk"
        limit = size_text(limits.max_bytes)
        return warn("spool", "free space", f"{found}; there is no space for all of {limit}", hint)
    return ok("spool", "free space", found)


def _kind_row(directory: Path) -> Row:
    kind = _kind(directory)
    if kind in _MEMORY:
        hint = "put the spool on a disk: a reboot loses it, and it uses the host's memory"
        return warn("spool", "file system", f"{kind}, which is in memory", hint)
    return ok("spool", "file system", kind or "not known")


def _kind(directory: Path) -> str:
    """The type of a directory's file system, from the kernel's list of mounts."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        wanted = directory.stat().st_dev
    except OSError:
        return ""
    number = f"{os.major(wanted)}:{os.minor(wanted)}"
    kinds = {}
    best = ("", "")
    real = str(directory.resolve())
    for line in lines.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split(" ")[0]
        kinds[fields[2]] = kind
        at = fields[4].replace("\\040", " ")
        inside = real == at or real.startswith(f"{at.rstrip('/')}/")
        if inside and len(at) >= len(best[0]):
            best = (at, kind)
    return kinds.get(number) or best[1]
