"""Every error that binlog2s3 raises on purpose.

Law: foreign exceptions (boto3, pymysql, OSError) never leave the module that owns the library;
they leave as one of these. Each carries a message with the values in it, a hint that says what to
do next, whether trying again can help (`transient`), and the exit code of the process it ends.
"""

from typing import ClassVar


class Binlog2s3Error(Exception):
    """The root; exit code 1 is for defects, so every subclass that users meet sets its own.

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

    `problems` holds every problem found, one line each: all are reported at once.
    """

    exit_code = 3

    def __init__(self, problems: list[str], *, hint: str = "") -> None:
        super().__init__("; ".join(problems), hint=hint)
        self.problems = tuple(problems)


class SourceError(Binlog2s3Error):
    """The MySQL or MariaDB server, its privileges and settings, or mysqlbinlog.

    `answered`: the server, or its host, did answer; it only said no. `unservable`: it cannot give
    this place of this binlog. `refused`: it is a server that we refuse.
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
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.answered = answered
        self.unservable = unservable
        self.refused = refused


class SpoolError(Binlog2s3Error):
    """The spool directory: not writable, full, or held by another streamer."""

    exit_code = 5


class DamageError(SpoolError):
    """Bytes that are no binlog: a broken event chain, a wrong checksum, a torn event.

    `offset` is where the first bad event begins, in bytes of the binlog.
    """

    def __init__(self, message: str, *, offset: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.offset = offset


class FloorError(SpoolError):
    """Bytes that were given back to the file system, because the bucket had them, are wanted."""


class StoreError(Binlog2s3Error):
    """The S3 store: unreachable, refusing, or not an S3 store at all."""

    exit_code = 6


class ObjectMissingError(StoreError):
    """There is no object under this key (404 NoSuchKey)."""


class ObjectTooLargeError(StoreError):
    """The object is larger than the caller reads of it; not a byte of it was read."""


class UploadMissingError(StoreError):
    """The multipart upload is gone: completed, aborted or expired (404 NoSuchUpload)."""


class PreconditionError(StoreError):
    """Something lies under the key already and the write was to be the first (412, 409)."""


class UnsupportedError(StoreError):
    """The store does not have what was asked for (501 NotImplemented and the like)."""


class StoreSettingError(StoreError):
    """The store does not have what the configuration asks of it: only the operator can mend it."""


class ArchiveError(Binlog2s3Error):
    """The archive contradicts the source or itself: a gap, a fork, damage."""

    exit_code = 7


class MisplacedError(ArchiveError):
    """A document that by what it says belongs under another key: another source's, or binlog's."""


class ForkError(ArchiveError):
    """The source has other bytes than the archive where both should have the same."""


class ElsewhereError(ForkError):
    """What was read so far is of the known history; what comes now is of another one."""


class GapError(ArchiveError):
    """The source no longer has the binlog that comes next: it was purged before it was read."""


class RecoveryError(Binlog2s3Error):
    """A point-in-time recovery that refuses, or fails."""

    exit_code = 8


class SupersededError(Binlog2s3Error):
    """Another writer of the same source has taken over."""

    exit_code = 9
