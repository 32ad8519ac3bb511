"""Puts a page into a file: the old one or the new one is there, never a part of one."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from binlog2s3.config.report import unwritable
from binlog2s3.durable import sync_directory
from binlog2s3.errors import ConfigError

_MODE = 0o666
"""As a shell makes files: the umask decides who reads it."""


def replace_file(path: Path, data: bytes) -> None:
    """Write a file beside this one, make it durable, and let it take its name.

    A file that is there passes its permissions on. Raises ConfigError; then nothing has changed.
    """
    if why := unwritable(path):
        raise ConfigError([f"--html: {why}"])
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        try:
            _write(new, data, like=path)
            new.replace(path)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise
        sync_directory(path.parent)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = "the file is as it was: name another one, or - for standard output"
        raise ConfigError([f"--html: cannot write {path}: {why}"], hint=hint) from error


def _write(new: Path, data: bytes, *, like: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, _MODE), "wb") as file:
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), like.lstat().st_mode & 0o777)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
