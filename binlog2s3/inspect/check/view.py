"""What `check` shows: a row each for people, as it comes, or one JSON document at the end.

Place in the flow: between `command` and `output`.

Law: what a server or a bucket says can neither break lines nor command a terminal; what is for
copying is not folded.
"""

import json
from collections.abc import Mapping
from typing import TextIO

from binlog2s3.inspect.check.row import EXIT_CODES, Result, Row, document, summary
from binlog2s3.output import page_on

_WORDS: Mapping[Result, str] = {"ok": "OK", "warn": "WARN", "fail": "FAIL", "skipped": "-"}
_STYLES: Mapping[Result, str] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "skipped": "dim",
}
_RESULT_WIDTH = max(map(len, _WORDS.values()))
_PART_WIDTH = max(map(len, EXIT_CODES))
_NAME_WIDTH = len("innodb_flush_log_at_trx_commit")
_LEAST_WIDTH = 24


class Shown:
    """What has been shown so far."""

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self.rows: list[Row] = []
        self._out = out
        self._as_json = as_json
        self._page = page_on(out)

    def show(self, row: Row) -> None:
        """One more row."""
        self.rows.append(row)
        if self._as_json:
            return
        fixed = (_RESULT_WIDTH, _PART_WIDTH, _NAME_WIDTH)
        room = (self._page.width or 0) - sum(fixed) - 2 * (len(fixed) + 1)
        widths = (*fixed, max(room, _LEAST_WIDTH) if self._page.width else 0)
        self._page.row(
            (_WORDS[row.result], row.part, row.name, row.found),
            widths,
            (_STYLES[row.result], "dim", "", "dim" if row.result == "skipped" else ""),
        )
        if row.hint:
            self._page.row(("", "", "", f"hint: {row.hint}"), widths, ("", "", "", "dim"))
        for line in row.paste.splitlines():
            self._page.line(line)
        self._out.flush()

    def finish(self) -> None:
        """All rows are there."""
        if self._as_json:
            print(json.dumps(document(self.rows), indent=1), file=self._out)
        else:
            self._page.line("")
            self._page.line(summary(self.rows))
