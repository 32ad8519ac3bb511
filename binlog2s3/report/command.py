"""`binlog2s3 report`: reads the bucket, and writes one page that shows it."""

import sys

from binlog2s3.archive.evidence import Evidence
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.report import STANDARD_OUTPUT, ReportConfig
from binlog2s3.output import say
from binlog2s3.progress import progress_of
from binlog2s3.report.file import replace_file
from binlog2s3.report.html import render
from binlog2s3.report.look import look_at
from binlog2s3.report.model import page_of
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers


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
