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


@pytest.mark.parametrize("version", ["9.7.4", "26.7.0", "26.10.1", "27.1.0"])
def test_a_calendar_version_gets_the_newest_words(version: str) -> None:
    """It knows neither MASTER nor SLAVE any more."""
    found = ServerVersion(version)
    assert found.flavour == "mysql"
    assert found.status_statement == "SHOW BINARY LOG STATUS"
    assert found.replica_statement == "SHOW REPLICA STATUS"
    assert found.replicas_statement == "SHOW REPLICAS"
    assert found.stop_statement == "STOP REPLICA"
    assert found.reset_statement == "RESET BINARY LOGS AND GTIDS"
    assert found.says_replica


@pytest.mark.parametrize("version", ["10.11.18-MariaDB", "12.3.1-MariaDB-log"])
def test_a_mariadb_of_any_number_gets_its_own_words(version: str) -> None:
    """Its numbers are greater than those of the MySQL that has the newer words."""
    found = ServerVersion(version)
    assert found.flavour == "mariadb"
    assert found.status_statement == "SHOW MASTER STATUS"
    assert found.replica_statement == "SHOW ALL SLAVES STATUS"
    assert found.replicas_statement == "SHOW SLAVE HOSTS"
    assert found.stop_statement == "STOP ALL SLAVES"
    assert found.reset_statement == "RESET MASTER"
    assert not found.says_replica


def test_the_number_before_that_of_a_mariadb() -> None:
    """Old replicas read 5.5.5 there; it is no version of it."""
    assert ServerVersion("5.5.5-10.11.8-MariaDB-log").numbers == (10, 11, 8)
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
