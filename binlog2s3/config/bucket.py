"""How a command that only reads reaches the bucket, and what it calls it.

Place in the flow: under all commands but `stream`, between `values` and `store.s3`.
"""

from binlog2s3.config.values import S3Config
from binlog2s3.store.contract import StoreConfig

MOST_THREADS = 16
"""So many requests at once are enough to read what is small."""


def for_reading(s3: S3Config) -> StoreConfig:
    """The store's settings; whoever asks is waiting, so an unreachable store is told soon."""
    return StoreConfig(
        bucket=s3.bucket,
        endpoint_url=s3.endpoint_url,
        region=s3.region,
        addressing_style=s3.addressing_style,
        profile=s3.profile,
        concurrency=min(s3.concurrency, MOST_THREADS),
        connect_timeout_seconds=5.0,
    )


def url(s3: S3Config) -> str:
    """Where the archive lies: s3://bucket/prefix."""
    return f"s3://{s3.bucket}/{s3.prefix}".rstrip("/")
