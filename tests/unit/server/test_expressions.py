"""What an expression uses, as MySQL 8.0 and 9 and MariaDB 10.11 and 11.8 print it."""

import pytest

from binlog2s3.server.expressions import depends_on_zone, mentions, needs_zone_tables


@pytest.mark.parametrize(
    ("expression", "columns", "is_used"),
    [
        ("cast(`ts` as date)", ["a", "ts"], True),
        ("cast(`TS` as date)", ["ts"], True),
        ("cast(`ts2` as date)", ["ts"], False),
        ("(`n` * 2)", [], False),
        ("cast(`a``b` as date)", ["a`b"], True),
        ("concat('`',`ts`,'x`y')", ["ts"], True),
        ("concat(_utf8mb4\\'`\\',`ts`)", ["ts"], True),
        ("cast(`größe ts` as date)", ["größe ts"], True),
        ("cast(`grÃ¶Ã\x9fe ts` as date)", ["größe ts"], True),
        ("concat(`Ã¤t`,_utf8mb4\\'Ã¼â\x82¬\\')", ["ÄT"], True),
        ("concat(`Å\x93Ã¿`,'x')", ["ŒŸ"], True),
        ("concat(`æ\x97¶é\x97\xb4`,'x')", ["时间"], True),
        ("concat(`Ã¤t`)", ["Ã¤t"], True),
        ("concat(`Ã¤t`)", ["öt"], False),
        ("concat(`\xff`, '时间')", ["ts"], False),
    ],
)
def test_names_are_found_as_each_server_prints_them(
    expression: str, columns: list[str], *, is_used: bool
) -> None:
    """MySQL prints the bytes of a name."""
    assert mentions(expression, columns) == is_used


@pytest.mark.parametrize(
    ("expression", "depends"),
    [
        ("hour(`ts`)", True),
        ("from_unixtime(`n`)", True),
        ("UNIX_TIMESTAMP(`n`)", True),
        ("unix_timestamp(`ts`)", False),
        ("unix_timestamp(`TS`) + 1", False),
        ("unix_timestamp(`made`)", True),
        ("unix_timestamp(`ts`) + hour(`ts`)", True),
        ("unix_timestamp(concat(`ts`))", True),
        ("(`unixtime` + 1)", False),
    ],
)
def test_the_seconds_of_a_stored_timestamp_are_the_same_in_every_zone(
    expression: str, *, depends: bool
) -> None:
    """Those of all else are not; without such columns any UNIX_TIMESTAMP depends on the zone."""
    shown = {"ts", "made"}
    assert depends_on_zone(expression, shown, {"ts"}) == depends
    assert depends_on_zone(expression, shown) == (expression != "(`unixtime` + 1)")


@pytest.mark.parametrize(
    ("expression", "needs"),
    [
        ("convert_tz(`d`,'Europe/Berlin','UTC')", True),
        ("convert_tz(`d`,'+00:00','UTC')", True),
        ("convert_tz(`d`,`z`,'+00:00')", True),
        ("convert_tz(`d`,'+00:00','-9:30')", False),
        ("convert_tz(`d`,'SYSTEM','+00:00')", False),
        ("convert_tz(convert_tz(`d`,'+00:00','+01:00'),'+00:00','MET')", True),
        ("concat('+00:00','+01:00')", False),
    ],
)
def test_zones_with_a_name_are_in_tables(expression: str, *, needs: bool) -> None:
    """Offsets need none."""
    assert needs_zone_tables(expression) == needs
