"""What the models of this directory need: that a run with the same choices is the same run."""

import pytest

from binlog2s3 import workers
from binlog2s3.errors import StoreError


@pytest.fixture(autouse=True)
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two questions that are asked at the same time, the first reaches the store first.

    As where the system starts no thread: an injected fault or a crash meets the same one again.
    """

    def refuse(*_: object) -> None:
        raise StoreError("no thread")

    monkeypatch.setattr(workers, "asked", refuse)
