"""A server's version, and the words that it knows."""

import pytest

from binlog2s3.server.version import ServerVersion, is_on


@pytest.mark.parametrize(
    ("version", "stamps"),
    [
        ("5.7.22-log", False),
        ("8.0.1", False),
        ("8.0.2", True),
        ("8.0.31", True),
        ("9.7.4-2", True),
        ("26.7.0", True),
        ("10.11.18-MariaDB-0+deb12u1-log", False),
        ("5.5.5-11.4.5-MariaDB", False),
    ],
)
def test_which_servers_stamp_commits(version: str, stamps: bool) -> None:
    """Only the others need PROCESS, so only of them `check` asks for it."""
    assert ServerVersion(version).stamps_commits is stamps


VERSIONS = ("5.6.51-log", "5.7.22", "8.0.15", "8.0.22", "8.0.25", "8.0.26", "8.4.10", "9.7.4",
            "26.1.0", "26.7.0-commercial", "26.10.1", "27.1.0")  # fmt: skip
"""In their order. 26.7 is the first calendar version; texts would be in another order."""


def test_versions_are_compared_as_numbers() -> None:
    """A calendar version is later than 9.7, and one of October than one of July."""
    found = [ServerVersion(text).numbers for text in VERSIONS]
    assert found == sorted(found)
    assert sorted(VERSIONS) != list(VERSIONS)
    assert ServerVersion("26.10.1").series > ServerVersion("26.7.3").series
    assert ServerVersion("26.7.1").series == ServerVersion("26.7.0-log").series


def test_another_series() -> None:
    """A later release of the same series is none."""

    def is_other(version: str, source: str) -> bool:
        return ServerVersion(version).is_other_series(ServerVersion(source))

    for source in ("8.0.36", "8.4.3"):
        assert is_other("9.7.4", source)
        assert ServerVersion(source).is_older(ServerVersion("9.7.4"))
    assert is_other("11.8.6-MariaDB-log", "10.11.18-MariaDB")
    assert not is_other("10.11.18-MariaDB-log", "10.11.6-MariaDB")
    assert is_other("26.10.0", "26.1.0")
    assert not is_other("26.7.1", "26.7.0-commercial")
    assert not ServerVersion("26.7.0").is_older(ServerVersion("26.7.1"))


@pytest.mark.parametrize(
    ("version", "cascades"), [("9.5.0", False), ("9.6.0", True), ("11.8.6-MariaDB", False)]
)
def test_which_servers_cascade_themselves(version: str, cascades: bool) -> None:
    """A target of an older version cannot be loaded with what such a one wrote."""
    assert ServerVersion(version).cascades_itself is cascades


NEWEST = ("SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS", "STOP REPLICA",
          "RESET BINARY LOGS AND GTIDS")  # fmt: skip
"""Without MASTER and SLAVE, which a calendar version does not know any more."""
MARIADBS = ("SHOW MASTER STATUS", "SHOW ALL SLAVES STATUS", "SHOW SLAVE HOSTS", "STOP ALL SLAVES",
            "RESET MASTER")  # fmt: skip


@pytest.mark.parametrize(
    ("version", "statements"),
    [
        *((version, NEWEST) for version in ("9.7.4", "26.7.0", "26.10.1", "27.1.0")),
        *((version, MARIADBS) for version in ("10.11.18-MariaDB", "12.3.1-MariaDB-log")),
    ],
)
def test_a_version_of_any_number_gets_its_own_words(
    version: str, statements: tuple[str, ...]
) -> None:
    """Numbers of MariaDB are greater than those of the MySQL that has the newer words."""
    found = ServerVersion(version)
    assert found.flavour == ("mysql" if statements is NEWEST else "mariadb")
    assert found.says_replica is (statements is NEWEST)
    assert statements == (
        found.status_statement,
        found.replica_statement,
        found.replicas_statement,
        found.stop_statement,
        found.reset_statement,
    )


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ("", "mysql_native_password"),
        ("5.7.22-log", "mysql_native_password"),
        ("8.0.15", "caching_sha2_password"),
        ("9.7.4", "caching_sha2_password"),
        ("11.8.2-MariaDB", "mysql_native_password"),
    ],
)
def test_what_a_replica_can_log_in_with(version: str, plugin: str) -> None:
    """MySQL 5.7 has no caching_sha2_password before 5.7.23, and MySQL 9 has nothing older."""
    assert ServerVersion(version).plugin == plugin


FIRST = {
    "can_be_source": ("5.6.0", "10.0.0-MariaDB"),
    "is_maintained": ("8.0.0", "10.5.0-MariaDB"),
    "may_log_in_engine": (None, "12.0.0-MariaDB"),
    "has_channels": ("5.7.0", "5.5.0-MariaDB"),
    "filters_channels": ("8.0.0", "5.5.0-MariaDB"),
    "reads_tags": ("8.3.0", None),
    "shows_applied": ("8.0.0", None),
    "splits_super": ("8.0.0", "10.5.0-MariaDB"),
    "says_monitor": (None, "10.5.0-MariaDB"),
    "shows_accounts": ("5.7.0", "10.2.0-MariaDB"),
    "shows_functions": ("8.0.0", None),
    "persists_settings": ("8.0.0", None),
    "expires_by_seconds": ("8.0.0", "10.6.0-MariaDB"),
    "has_atomic_statements": ("8.0.0", "10.6.0-MariaDB"),
    "keeps_counters": ("8.0.0", "10.2.4-MariaDB"),
    "loads_history": (None, "10.11.0-MariaDB"),
    "says_replica": ("8.0.26", None),
    "stamps_commits": ("8.0.2", None),
}
"""The first version of each flavour that has it; none has it: None."""
EACH = ("5.5.62", "5.6.51-log", "5.7.44", "8.0.1", "8.0.2", "8.0.25", "8.0.26", "8.2.0", "8.3.0",
        "9.7.4", "26.7.0", "5.5.68-MariaDB", "10.0.38-MariaDB", "10.1.48-MariaDB", "10.2.3-MariaDB",
        "10.2.4-MariaDB", "10.4.34-MariaDB", "10.5.1-MariaDB", "10.6.18-MariaDB",
        "10.10.7-MariaDB", "10.11.6-MariaDB", "11.8.2-MariaDB", "12.0.1-MariaDB")  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_what_a_version_has(name: str) -> None:
    """From a first version of its flavour on."""
    first: dict[str, ServerVersion | None] = {
        flavour: ServerVersion(text) if text else None
        for flavour, text in zip(("mysql", "mariadb"), FIRST[name], strict=True)
    }
    for version in map(ServerVersion, EACH):
        least = first[version.flavour]
        has = least is not None and version.numbers >= least.numbers
        assert getattr(version, name) is has, version


def test_the_number_before_that_of_a_mariadb() -> None:
    """Old replicas read 5.5.5 there; it is no version of it."""
    assert ServerVersion("5.5.5-10.11.8-MariaDB-log").numbers == (10, 11, 8)
    assert ServerVersion("10.11.8-MariaDB").for_replicas == "5.5.5-10.11.8-MariaDB"
    assert ServerVersion("9.7.4").for_replicas == "9.7.4"
    assert ServerVersion("5.5.5-m3").numbers == (5, 5, 5)


@pytest.mark.parametrize(
    ("value", "on"),
    [
        (0, False), (1, True), ("0", False), ("1", True), ("OFF", False), ("off", False),
        ("ON", True), (b"OFF", False), (b"ON", True), ("NO_LOCK", True),
        ("NO_LOCK_NO_ADMIN", True), (None, False), ("", False),
    ],
)  # fmt: skip
def test_a_switch_or_an_enumeration(value: object, on: bool) -> None:
    """MariaDB 12 answers words for read_only; all but OFF refuse writes."""
    assert is_on(value) is on
