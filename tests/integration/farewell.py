"""An end in order: the streamer gives the store a few seconds for it, and then goes.

A busy store may take longer. Then the log says what lacks, and that is no defect; so a test of what
an end brings asks first whether it had its time, and lives once more where it had not.
"""

from datetime import UTC, datetime, timedelta

from tests.integration.stream_process import StreamProcess

_LEAST = timedelta(seconds=1.9)  # it waits for so long at least: for the last word alone


def ended_in_time(stream: StreamProcess) -> bool:
    """End it by SIGTERM; whether it had done all that it would before its seconds were over.

    It exits with 0, in any case. Where this is True, nothing may lack.
    """
    asked = datetime.now(UTC)
    assert stream.terminate() == 0, stream.stderr()
    said = stream.events("stopped")[-1]["time"]
    return datetime.fromisoformat(said) - asked < _LEAST
