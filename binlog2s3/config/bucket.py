"""What a command needs to reach the bucket: the settings of its store; the options of `list`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from binlog2s3.config.given import CommandOptions
from binlog2s3.config.options import Made, Option, fill, options_of
from binlog2s3.config.points import Moment
from binlog2s3.config.stream import BY_NAME, S3Config, s3_of
from binlog2s3.store.contract import Picks, StoreConfig

FromLineage = Annotated[
    str | None,
    Option("ID", "Lineage of the base backup, if several lineages have its position or its GTIDs."),
]
"""The option --from-lineage of the commands that take a base backup."""
AsJson = Annotated[bool, Option("", "Print one JSON document.", name="json")]
DryRun = Annotated[bool, Option("", "Show the plan, and change nothing.")]
BACKUP_FORMS = (
    "a dump of mysqldump; or the directory of xtrabackup, mariabackup, mydumper or MySQL Shell, or "
    "the file in it that has the position."
)
"""For help: the base backups that say themselves where they end."""
WRITING = tuple(BY_NAME[name] for name in ("sse", "sse-kms-key-id", "object-lock"))
"""The options of a command that writes documents."""
_READING = (
    "endpoint-url",
    "region",
    "addressing-style",
    "profile",
    "expected-bucket-owner",
    "concurrency",
)


@dataclass(frozen=True, slots=True)
class _PickOptions:
    """The options that become `S3Config.picks`."""

    object_version: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "KEY=ID",
            "With Object Lock, where versions of an object differ: the version of this key that "
            "counts; KEY=none: none of them does. May be given several times.",
            "object version",
        ),
    ] = ()
    versions_before: Annotated[
        Moment | None,
        Option(
            "TIME",
            "With Object Lock, where versions of an object differ: only those count that were put "
            "before this time, by the store's clock.",
            "time",
        ),
    ] = None


PICK_OPTIONS = options_of(_PickOptions)
"""Those that decide between versions of an object that differ."""


def reading(source: str, *, required: bool = True, otherwise: str = "") -> tuple[Option, ...]:
    """The options of `stream` that a reader has, too; `source` is the help of --source."""
    return (
        replace(BY_NAME["source"], help=source, required=required, otherwise=otherwise),
        replace(BY_NAME["s3-url"], help="Where the archive is: s3://bucket/prefix."),
        *(BY_NAME[name] for name in _READING),
        *PICK_OPTIONS,
    )


def of_source(
    config: Callable[..., Made],
    options: Iterable[Option],
    **more: Callable[[Mapping[str, Any]], object],
) -> Callable[[Mapping[str, Any]], Made]:
    """What makes the config of a command that reads one source, or all: see `CommandOptions.make`.

    It has the fields `s3` and `source`, those of the options, and those that `more` makes.
    """
    own = tuple(options)

    def make(values: Mapping[str, Any]) -> Made:
        made = {field: of(values) for field, of in more.items()}
        return fill(config, own, values, s3=s3_of(values), source=values.get("source"), **made)

    return make


def reading_words(s3: S3Config, source: str) -> list[str]:
    """The options of `reading`, as words of a command line that say the same as this config."""
    words = ["--source", source, "--s3-url", s3.url]
    for name in _READING:
        option = BY_NAME[name]
        value = getattr(s3, option.field)
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


def for_reading(s3: S3Config) -> StoreConfig:
    """The store's settings. The timeout is short, because a user waits for the answer."""
    return StoreConfig(
        bucket=s3.bucket,
        endpoint_url=s3.endpoint_url,
        region=s3.region,
        addressing_style=s3.addressing_style,
        profile=s3.profile,
        expected_bucket_owner=s3.expected_bucket_owner,
        concurrency=s3.threads,
        connect_timeout_seconds=5.0,
    )


def for_restoring(s3: S3Config) -> StoreConfig:
    """The same for a command that sees what Object Lock keeps, even if it was replaced or deleted.

    Below archive/ objects are written once: `store.versions` decides which version counts.
    """
    below = f"{s3.prefix}/archive/" if s3.prefix else "archive/"
    return replace(for_reading(s3), written_once=below, picks=s3.picks)


def for_writing(s3: S3Config) -> StoreConfig:
    """The same for a command that also writes documents: encrypted and locked as asked for."""
    return replace(
        for_restoring(s3),
        sse=s3.sse,
        sse_kms_key_id=s3.sse_kms_key_id,
        object_lock=s3.object_lock,
    )


def for_storing(s3: S3Config) -> StoreConfig:
    """The same for a command that also stores base backups: like the archived binlogs."""
    return replace(
        for_writing(s3),
        storage_class=s3.storage_class,
        checksum=s3.checksum,
        max_bandwidth=s3.max_bandwidth,
        connect_timeout_seconds=10.0,
    )


def for_streaming(s3: S3Config) -> StoreConfig:
    """The same for a command that writes the archive, and reads what the bucket has now."""
    return replace(for_storing(s3), written_once="", picks=Picks(), concurrency=s3.concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig:
    """What `list` shows: all sources and lineages if none is named."""

    s3: S3Config
    source: str | None = None
    lineage: Annotated[str | None, Option("ID", "Only this lineage.")] = None
    as_json: AsJson = False


_OWN = options_of(ListConfig)
LIST = CommandOptions(
    (*reading("Only this source.", required=False, otherwise="all below the prefix"), *_OWN),
    lambda _: (),
    of_source(ListConfig, _OWN),
)
