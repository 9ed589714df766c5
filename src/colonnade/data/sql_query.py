"""A block that is the answer to an SQL query, over a connection that the caller has opened.

Any connection of Python's database interface (PEP 249) will do: sqlite3, DuckDB, psycopg, ADBC's
drivers. None of them is required. Values keep the types that the driver gives them: decimals are
numbers and dates are dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pandas as pd

from colonnade.core.errors import DataError

__all__ = ["Sql"]


@dataclass(frozen=True)
class Sql:
    """A party's columns by a query: ``fit({"bank": Sql("SELECT ...", connection)}, ...)``.

    The query runs when the block is used; the connection stays open. Name the column that holds the
    ids by ``id_column``: a database has no order of rows.

    Args:
        query: A query that gives rows.
        connection: An open connection (PEP 249).
        parameters: Values for the query's placeholders, as the driver writes them.
    """

    query: str
    connection: Any
    parameters: Sequence[Any] | Mapping[str, Any] = ()

    def read(self, where: str) -> pd.DataFrame:
        """Run the query.

        Args:
            where: Whose block it is, for messages.

        Returns:
            The table.

        Raises:
            DataError: The query fails, gives no rows of columns, or repeats a column's name.
        """
        if not hasattr(self.connection, "cursor"):
            raise DataError(
                f"{where}: expected an open database connection (PEP 249), got "
                f"{type(self.connection).__name__}; e.g. sqlite3.connect(path)"
            )
        try:
            with closing(self.connection.cursor()) as cursor:
                given = (self.parameters,) if self.parameters else ()
                cursor.execute(self.query, *given)
                names = [column[0] for column in cursor.description or ()]
                rows = cursor.fetchall() if names else []
        except Exception as error:  # every driver has errors of its own
            raise DataError(
                f"{where}: the query failed: {type(error).__name__}: {error}; try it in the "
                "database first"
            ) from error
        if not names:
            raise DataError(f"{where}: the query gives no columns; write one that begins SELECT")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{where}: the query gives {twice} more than once; rename them with AS")
        return pd.DataFrame.from_records(rows, columns=names)
