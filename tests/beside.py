"""What goes on in a thread of its own beside a `with` block."""

import threading
from typing import Self


class Beside:
    """`run` begins with the block, and ends soon after `over` is set at the block's end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, and wait for that."""
        self.over.set()
        self._thread.join()

    def run(self) -> None:
        raise NotImplementedError
