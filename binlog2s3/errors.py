"""Every error that binlog2s3 raises on purpose.

Law: foreign exceptions (botocore, PyMySQL, OSError) never leave the module that owns the library;
it raises one of these instead. Each has a message with the values in it, a hint that says what to
do, whether a retry can help (`transient`), and the exit code of the process.
"""

from typing import ClassVar


class Binlog2s3Error(Exception):
    """The root. Exit code 1 is for defects, so every subclass that users see sets its own.

    >>> str(SpoolError("no space left in /spool", hint="free some"))
    'no space left in /spool'
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.transient = transient


class ConfigError(Binlog2s3Error):
    """Options, environment or configuration file: unknown, missing, wrong or contradictory.

    `problems` has every problem found, one line each: all are reported at once.
    """

    exit_code = 3

    def __init__(self, problems: list[str], *, hint: str = "") -> None:
        super().__init__("; ".join(problems), hint=hint)
        self.problems = tuple(problems)


class SourceError(Binlog2s3Error):
    """The MySQL or MariaDB server, its privileges and settings, or mysqlbinlog.

    `answered`: the server, or its host, answered with an error. `unservable`: it cannot send the
    binlog from this position. `refused`: binlog2s3 refuses this server. `needs_privilege`: the
    account is missing a privilege. `locked`: another transaction holds a lock that was waited for.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        transient: bool = False,
        answered: bool = False,
        unservable: bool = False,
        refused: bool = False,
        needs_privilege: bool = False,
        locked: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.answered = answered
        self.unservable = unservable
        self.refused = refused
        self.needs_privilege = needs_privilege
        self.locked = locked


class UnloggedError(SourceError):
    """The server answers and writes no binlog: what is committed there now is in no archive.

    `uuid` is the server's, as in `ServerFacts`; "" if it was not asked.
    """

    def __init__(self, message: str, *, hint: str, uuid: str = "") -> None:
        super().__init__(message, hint=hint, answered=True)
        self.uuid = uuid


class UncomparedError(SourceError):
    """The source contradicts the archive, and nobody may compare their bytes now."""


class SpoolError(Binlog2s3Error):
    """The spool directory: not writable, full, or held by another streamer."""

    exit_code = 5


class DamageError(SpoolError):
    """Bytes that are not a binlog: a broken event chain, a wrong checksum, a partial event.

    `offset` is the offset of the first bad event in the binlog.
    """

    def __init__(self, message: str, *, offset: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.offset = offset


class FloorError(SpoolError):
    """Bytes that the spool has no longer, because the bucket had them, have left the bucket."""


class StoreError(Binlog2s3Error):
    """The S3 store: unreachable, refusing a request, or not an S3 store.

    `sent_bytes`: of the request's body that went over the network for nothing.
    """

    exit_code = 6
    sent_bytes = 0


class ObjectMissingError(StoreError):
    """There is no object under this key (404 NoSuchKey)."""


class ObjectTooLargeError(StoreError):
    """The object is larger than the caller allows; nothing of it was read."""


class UploadMissingError(StoreError):
    """The multipart upload is gone: completed, aborted or expired (404 NoSuchUpload)."""


class PreconditionError(StoreError):
    """The key already exists, and the write was only allowed if it did not (412, 409)."""


class UnsupportedError(StoreError):
    """The store does not support the request (501 NotImplemented and similar)."""


class StoreSettingError(StoreError):
    """The store does not support what the configuration requires: the operator has to fix it."""


class ArchiveError(Binlog2s3Error):
    """The archive contradicts the source or itself: a gap, a fork, damage."""

    exit_code = 7


class NoBinlogError(ArchiveError):
    """No byte of this binlog is in the bucket: it is not there yet, or not any more."""


class MisplacedError(ArchiveError):
    """A document whose content belongs under another key: of another source, or binlog."""


class VersionConflictError(ArchiveError):
    """Versions of an object differ, and nothing shows which one counts."""


class ForkError(ArchiveError):
    """The source has other bytes than the archive at the same place.

    `binlog`: the name of the one of which the bucket has other bytes than we have; "" if the source
    has other ones.
    """

    def __init__(
        self, message: str, *, hint: str = "", transient: bool = False, binlog: str = ""
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.binlog = binlog


class TakenError(ForkError):
    """Somebody wrote under a key before the streamer did: its history has to go on elsewhere."""


class ElsewhereError(ForkError):
    """The bytes so far are of the known history; the next ones are of another history."""


class LeftOutError(ElsewhereError):
    """The next binlog continues the known history, but for rows that are in no binlog."""


class AbortedError(ElsewhereError):
    """The next binlog continues the known history, but a lineage cannot show that by its binlogs.

    The server ended itself between the two: see `archive.history.is_unlogged_between`.
    """


class GapError(ArchiveError):
    """The source no longer has the next binlog: it was purged before it was read."""


class RecoveryError(Binlog2s3Error):
    """A point-in-time recovery that is refused, or fails."""

    exit_code = 8


class GoalError(RecoveryError):
    """The goal is no place of the history, whatever base backup is brought to it."""


class SupersededError(Binlog2s3Error):
    """Another writer of the same source has taken over."""

    exit_code = 9
