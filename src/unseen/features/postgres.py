"""Vectors in a table of PostgreSQL with pgvector, and verdicts in a table beside it.

A password is where libpq looks for it: PGPASSWORD, ~/.pgpass, a service file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from unseen.errors import DataError, import_extra
from unseen.features.format import Features

COLUMNS = """
SELECT column_.attname, type_.typname, format_type(column_.atttypid, column_.atttypmod), key_.indrelid IS NOT NULL
FROM pg_attribute column_ JOIN pg_type type_ ON type_.oid = column_.atttypid
LEFT JOIN pg_index key_ ON key_.indrelid = column_.attrelid AND key_.indisprimary AND column_.attnum = ANY(key_.indkey)
WHERE column_.attrelid = %s::regclass AND column_.attnum > 0 AND NOT column_.attisdropped ORDER BY column_.attnum
"""
VERDICTS = ("verdict", "name", "nearest", "margin", "threshold", "p_known")


class VectorTable(NamedTuple):
    """A table by its address and its name, with the columns that hold keys and vectors."""

    uri: str
    name: str
    key: str
    key_type: str
    vector: str

    @classmethod
    def find(cls, uri: str, name: str) -> VectorTable:
        """A table whose columns say which holds what: the primary key, and the first column of pgvector."""
        with _connected(uri) as db:
            found = db.execute(COLUMNS, (name,)).fetchall()
        keys = [(column, typed) for column, _, typed, is_key in found if is_key]
        vectors = [column for column, kind, _, _ in found if kind in ("vector", "halfvec")]
        if len(keys) != 1 or not vectors:
            columns = ", ".join(f"{column} {typed}" for column, _, typed, _ in found)
            what = "a table with a primary key of one column and a column of pgvector"
            raise DataError(f"expected {what}, got {name} ({columns}); name another one, or a view's table")
        return cls(uri, name, *keys[0], vectors[0])

    def read(self) -> Features:
        """The vectors in order of their keys; rows without one are left out."""
        with _connected(self.uri) as db:
            query = "SELECT {key}::text, {vector}::real[] FROM {table} WHERE {vector} IS NOT NULL ORDER BY {key}"
            rows = db.cursor(binary=True).execute(self._sql(query)).fetchall()
        if not rows:
            raise DataError(f"expected vectors in {self.name}, got none; fill {self.vector} first")
        keys, vectors = zip(*rows, strict=True)
        if len({len(vector) for vector in vectors}) > 1:
            raise DataError(f"expected vectors of one width in {self.name}, got several; use one encoder")
        return Features(torch.nn.functional.normalize(torch.tensor(vectors), dim=-1), keys, name=self.name)

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Put verdicts into the table NAME_verdicts, in place of earlier ones on the same keys; all or none."""
        columns = ", ".join(VERDICTS)
        numbers = {"margin", "threshold", "p_known"}
        typed = ", ".join(f"{name} {'real' if name in numbers else 'text'}" for name in VERDICTS)
        fresh = ", ".join(f"{name} = excluded.{name}" for name in VERDICTS)
        created = (
            "CREATE TABLE IF NOT EXISTS {verdicts} "
            f"({{key}} {self.key_type} PRIMARY KEY REFERENCES {{table}} ON DELETE CASCADE, {typed})"
        )
        put = (
            f"INSERT INTO {{verdicts}} ({{key}}, {columns}) VALUES (%s::{self.key_type}{', %s' * len(VERDICTS)}) "
            f"ON CONFLICT ({{key}}) DO UPDATE SET {fresh}"
        )
        with _connected(self.uri) as db, db.cursor() as cursor:
            cursor.execute(self._sql(created))
            rows = ((record["key"], *(record[name] for name in VERDICTS)) for record in records)
            cursor.executemany(self._sql(put), rows)

    def _sql(self, text: str) -> Any:
        sql = import_extra("psycopg.sql", "postgres")
        *schema, name = self.name.split(".")
        names = {"table": (*schema, name), "verdicts": (*schema, f"{name}_verdicts")}
        names |= {"key": (self.key,), "vector": (self.vector,)}
        return sql.SQL(text).format(**{word: sql.Identifier(*parts) for word, parts in names.items()})


@contextmanager
def _connected(uri: str) -> Iterator[Any]:
    """Yield a connection in a transaction, or say what the server said."""
    psycopg = import_extra("psycopg", "postgres")
    try:
        with psycopg.connect(uri, connect_timeout=10) as db:
            yield db
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        remedy = "check address, table and rights (passwords: PGPASSWORD or ~/.pgpass)"
        raise DataError(f"expected a table of PostgreSQL with pgvector, got: {said}; {remedy}") from error
