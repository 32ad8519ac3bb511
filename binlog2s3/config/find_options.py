"""The options of `find` beside those that it shares with `stream`. Pure.

Place in the flow: as `options`, for `inspect.find.config` to judge and `cli` to declare. They have
no place in the configuration file: what is looked for is said each time.
"""

from dataclasses import replace

from binlog2s3.config.options import BY_NAME, Option, of_command

DEFAULT_LIMIT = 100


FIND_OPTIONS: tuple[Option, ...] = (
    of_command(
        "table",
        "text",
        "DB.TABLE",
        "Transactions that change or define this table, or (DB.*) anything in this database; names "
        "that have a dot in backquotes; may be given several times.",
        otherwise="any",
        repeatable=True,
    ),
    of_command(
        "type",
        "choice",
        "TYPE",
        "Transactions that do this, to the table if one is given; ddl is all that defines: "
        "CREATE, ALTER, DROP, TRUNCATE, RENAME, GRANT and so on, drop is every DROP; may be given "
        "several times.",
        choices=("insert", "update", "delete", "ddl", "drop"),
        otherwise="any",
        repeatable=True,
    ),
    of_command(
        "between",
        "text",
        "FROM/TO",
        "Committed in this time, by the source's clock, both ends included: "
        "2026-01-02T15:00Z/2026-01-02T16:00Z; the zones must be there, either end may be left "
        "out.",
        otherwise="any time",
    ),
    of_command(
        "gtid",
        "gtid set",
        "SET",
        "Only these transactions; may be given several times.",
        repeatable=True,
    ),
    of_command(
        "min-rows",
        "integer",
        "N",
        "Transactions that change at least so many rows, of the tables and by the types that are "
        "given.",
        least=1,
    ),
    of_command(
        "order",
        "choice",
        "ORDER",
        "Which come first.",
        choices=("newest", "oldest"),
        default="newest",
    ),
    of_command(
        "limit",
        "integer",
        "N",
        "End after so many; 0: show all.",
        default=DEFAULT_LIMIT,
        least=0,
    ),
    of_command(
        "lineage",
        "text",
        "ID",
        "Look through the history that ends in this lineage; all: through every lineage.",
        otherwise="the last writer's",
    ),
    of_command("json", "flag", "", "One JSON document, for programs."),
)

SHARED_OPTIONS: tuple[Option, ...] = (
    replace(BY_NAME["source"], help="Server in the bucket whose history is searched."),
    replace(BY_NAME["s3-url"], help="Where the archive is: s3://bucket/prefix."),
    BY_NAME["endpoint-url"],
    BY_NAME["region"],
    BY_NAME["addressing-style"],
    BY_NAME["profile"],
    BY_NAME["concurrency"],
)
"""Options that `find` has as `stream` has them."""

ALL_OPTIONS = (*FIND_OPTIONS, *SHARED_OPTIONS)
"""All of `find`'s, in the order of its help."""
