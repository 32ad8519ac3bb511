"""`binlog2s3 report`: reads the bucket, and writes one page that shows it.

Law: what comes from the bucket is text, never an element, an attribute or a style. Every value that
the template prints goes through `shown` and is escaped; numbers are the page's own. The old page or
the new one is in the file, never a part of one.
"""

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from binlog2s3.archive.evidence import Evidence
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.report import STANDARD_OUTPUT, ReportConfig, unwritable
from binlog2s3.durable import sync_directory
from binlog2s3.errors import ConfigError
from binlog2s3.formatting import cut
from binlog2s3.output import clean, say
from binlog2s3.progress import progress_of
from binlog2s3.report.look import look_at
from binlog2s3.report.model import Page, page_of
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers

MOST_TEXT = 1000
"""Characters of one value: GTID sets may have millions."""
_MODE = 0o666
"""As a shell makes files: the umask decides who reads it."""


def run(config: ReportConfig, outside: Outside = OUTSIDE) -> None:
    """Write the page. Raises StoreError, ArchiveError if there is nothing to show, ConfigError."""
    now = outside.now()
    s3 = for_restoring(config.s3)
    with (
        opened(s3, evidence=Evidence, session=outside.session) as store,
        progress_of("entries") as advance,
    ):
        workers = Workers(config.s3.threads)
        found = look_at(store, config, workers, now, advance)
        notes = [*store.version_notes()]
    for text in notes:
        say("warning", text)
    page = render(page_of(found, config.s3.url, now=now, notes=notes))
    if config.html == STANDARD_OUTPUT:
        sys.stdout.buffer.write(page)
        sys.stdout.flush()
    else:
        replace_file(config.html, page)


def shown(value: Any) -> Any:
    """A value of the template: text on one line, without characters that turn or hide others."""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # else the template made it
        return cut(clean(value), MOST_TEXT)
    return value


def render(page: Page) -> bytes:
    """The page, UTF-8."""
    environment = Environment(
        loader=PackageLoader("binlog2s3.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(page=page).encode("utf-8", "replace")


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
