"""Foreign keys, by the engine's own list: it has also those of tables that the account may not see.

information_schema.referential_constraints leaves those out, without an error.
"""

import re
from dataclasses import dataclass

from binlog2s3.server.connection import Server

_ON_DELETE, _ON_UPDATE = 1 | 2, 4 | 8
"""Bits of the type of a foreign key of InnoDB: CASCADE, SET NULL."""
_WORD = re.compile(r"[0-9A-Za-z_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key of `child`, which refers to `parent`: both as "db/table", as InnoDB names them.

    `on_delete`, `on_update`: that changes rows of the child, too (CASCADE, SET NULL).
    """

    child: str
    parent: str
    on_delete: bool
    on_update: bool

    def may_refer_to(self, database: str, table: str) -> bool:
        """Whether this may be the parent.

        MySQL 8.0 and later show names as they are; others encode all but letters, digits and "_".
        """
        if f"{database}/{table}".lower() == self.parent.lower():
            return True
        its_database, _, its_table = self.parent.partition("/")
        return all(
            own.lower() == its.lower() or not (_WORD.fullmatch(own) or _WORD.fullmatch(its))
            for own, its in ((database, its_database), (table, its_table))
        )


def foreign_keys(server: Server) -> list[ForeignKey]:
    """All of a server's. Raises SourceError; one that needs a privilege without PROCESS.

    MySQL before 8.0 and MariaDB, which skips this comment, have the old name of the list.
    """
    rows = server.rows(
        "SELECT for_name AS child, ref_name AS parent, type AS type "
        "FROM information_schema./*!80000 innodb_foreign AS */ innodb_sys_foreign"
    )
    return [
        ForeignKey(
            child=str(row["child"]),
            parent=str(row["parent"]),
            on_delete=bool(int(row["type"]) & _ON_DELETE),
            on_update=bool(int(row["type"]) & _ON_UPDATE),
        )
        for row in rows
    ]
