"""The page as HTML, by a template that escapes.

Law: what comes from the bucket is text, never an element, an attribute or a style. Every value that
the template prints goes through `shown` and is escaped; numbers are the page's own.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from binlog2s3.formatting import cut
from binlog2s3.output import clean
from binlog2s3.report.model import Page

MOST_TEXT = 1000
"""Characters of one value: GTID sets may have millions."""


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
