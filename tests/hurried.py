"""binlog2s3 with shorter times of its own: `python -m tests.hurried 10 stream ...`, ten times so.

What a streamer does after a minute in production it does after six seconds here, in the same code.
"""

import sys
from dataclasses import fields

from binlog2s3.cli import main
from binlog2s3.timing import DEFAULT, Timing


def divided(by: float) -> Timing:
    """The default times, divided; the source is asked as often as ever, so that age stays."""
    times = {each.name: each.default / by for each in fields(Timing)}
    return Timing(**times | {"fresh_seconds": DEFAULT.fresh_seconds})


if __name__ == "__main__":
    main(sys.argv[2:], timing=divided(float(sys.argv[1])))
