"""binlog2s3 with times of its own: `python -m tests.timed '{"stall_seconds": 3}' stream ...`.

What a streamer does after a minute in production it does after seconds here, in the same code; or
it has all the time of a busy machine for what it does in seconds there.
"""

import json
import sys
from dataclasses import asdict, replace

from binlog2s3.cli.main import main
from binlog2s3.config.outside import DEFAULT, Outside, Timing

PATIENT_END = replace(DEFAULT, drain_seconds=60.0, farewell_seconds=60.0)
"""Its end takes as long as it must: all that it knows of is in the bucket, and that it stopped."""


def hurried(by: float) -> Timing:
    """The default times, divided: but the age of a position, as the source is asked as often."""
    times = {name: seconds / by for name, seconds in asdict(DEFAULT).items()}
    return Timing(**times | {"fresh_seconds": DEFAULT.fresh_seconds})


if __name__ == "__main__":
    main(sys.argv[2:], Outside(timing=Timing(**json.loads(sys.argv[1]))))
