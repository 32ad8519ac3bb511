"""What the operator asked of `verify`, judged as a whole: one frozen `VerifyConfig`.

Place in the flow: as `config.values`, for `cli`; `verify` carries it out. Law: as `config`'s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3.config.options import BY_NAME, OPTIONS
from binlog2s3.config.points import parse_time
from binlog2s3.config.values import (
    Given,
    MysqlConfig,
    S3Config,
    contradiction,
    file_problems,
    login_problems,
    s3_of,
)
from binlog2s3.config.verify_options import SHARED_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What is to be looked at, and how closely. `source` None: all below the prefix.

    `server`: how to reach the one to compare with, None where that was not asked for. `since_us` in
    microseconds, UTC; `last`: so many binlogs of each lineage.
    """

    s3: S3Config
    source: str | None
    lineage: str | None = None
    deep: bool = False
    since_us: int | None = None
    last: int | None = None
    server: MysqlConfig | None = None
    from_backup: Path | None = None
    from_gtid_set: str | None = None
    from_lineage: str | None = None
    repair: bool = False
    as_json: bool = False

    @property
    def asks(self) -> bool:
        """Whether a base backup is asked about."""
        return self.from_backup is not None or self.from_gtid_set is not None


def build_verify(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[VerifyConfig | None, list[str]]:
    """As `config.values.build`, for `verify`."""
    given = Given(values, places or {}, frozenset(wrong))
    problems = ["--s3-url is missing"] if given.lacks("s3-url") else []
    problems += _problems(given)
    if problems or given.wrong:
        return None, problems
    since = values.get("since")
    return (
        VerifyConfig(
            s3=s3_of(values),
            source=values.get("source"),
            lineage=values.get("lineage"),
            deep=bool(values.get("deep")),
            since_us=parse_time(since) if since else None,
            last=values.get("last"),
            server=_server(values) if values.get("against-source") else None,
            from_backup=values.get("from-backup"),
            from_gtid_set=values.get("from-gtid-set"),
            from_lineage=values.get("from-lineage"),
            repair=bool(values.get("repair")),
            as_json=bool(values.get("json")),
        ),
        [],
    )


def _server(values: Mapping[str, Any]) -> MysqlConfig:
    own = {o.key: values.get(o.name, o.default) for o in OPTIONS if o.table == "mysql"}
    timeout: Any = own.pop("connect_timeout") or BY_NAME["mysql-connect-timeout"].default
    return MysqlConfig(**{**own, "mysqlbinlog": None, "server_id": None}, connect_timeout=timeout)


def _problems(given: Given) -> Iterable[str]:
    if given.has("from-backup") and given.has("from-gtid-set"):
        yield contradiction(given, "from-backup", "from-gtid-set", "give one of them")
    if given.has("from-backup") and not given.values["from-backup"].exists():
        yield f"{given.called('from-backup')}: {given.values['from-backup']}: there is no such file"
    asks = given.has("from-backup") or given.has("from-gtid-set")
    if given.has("from-lineage") and not asks:
        yield f"{given.called('from-lineage')} needs --from-backup or --from-gtid-set"
    if given.has("since") and given.has("last"):
        yield contradiction(given, "since", "last", "give one of them")
    if given.values.get("against-source"):
        yield from login_problems(given, "mysql")
        yield from file_problems(given, SHARED_OPTIONS)
