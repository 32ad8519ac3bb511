"""What several kinds of unit tests begin with."""

import io
import logging
from collections.abc import Iterator

import pytest

from binlog2s3.log import configure


@pytest.fixture
def log_settings() -> Iterator[None]:
    """How the program logs is as it was, after the test."""
    logger = logging.getLogger("binlog2s3")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def log(log_settings: None) -> io.StringIO:
    """What the program logs, as JSON lines."""
    stream = io.StringIO()
    configure("json", "debug", stream)
    return stream
