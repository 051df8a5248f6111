"""SQL over small integer tables, answered twice: by DuckDB, and by interpreting our logical plan row by row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import Cast, Expression, Literal, ScalarSubquery, transform
from pystachio.planner import logical
from pystachio.planner.rewrites.rewrite import simplify
from pystachio.planner.sharing import inputs_of, with_inputs
from pystachio.planner.sql.statement import SqlPlanner
from pystachio.planner.substrait.plan import read_plan
from tests.planner.interpreter import Row, Tables, rows_of

INTEGER = pa.int64()


def schema_of(*columns: str, nullable: bool = True) -> Schema:
    return tuple(Field(column, INTEGER, nullable) for column in columns)


def random_contents(chance: random.Random, schema: Schema, rows: int) -> list[Row]:
    def value(f: Field) -> int | None:
        return None if f.nullable and chance.random() < 0.25 else chance.randint(0, 4)

    return [tuple(value(f) for f in schema) for _ in range(rows)]


def load_duckdb(tables: Tables) -> duckdb.DuckDBPyConnection:
    """A connection to a database with the tables."""
    connection = duckdb.connect(config={"threads": 1})
    for name, schema in tables.schemas.items():
        rows = tables.contents[name]
        columns = {f.name: pa.array([row[p] for row in rows], f.type) for p, f in enumerate(schema)}
        connection.register("arrow_rows", pa.table(columns))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow_rows")
        connection.unregister("arrow_rows")
    return connection


def duckdb_rows(sql: str, connection: duckdb.DuckDBPyConnection) -> Counter[Row]:
    """The bag of rows; whole numbers as integers."""
    return Counter(tuple(map(plain, row)) for row in connection.execute(sql).fetchall())


def plain(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) and value == int(value) else value


def planned(sql: str, planner: SqlPlanner, schemas: Mapping[str, Schema]) -> logical.Query:
    statement = planner.plan(sql)
    query, _ = read_plan(statement.substrait, schemas, statement.null_aware)
    return query


def interpreted(query: logical.Query, tables: Tables) -> Counter[Row]:
    """The bag of rows that the logical plan means."""
    scalars: list[Any] = []
    for plan in query.scalars:
        rows = rows_of(bound(plan, scalars), tables)
        assert len(rows) <= 1
        scalars.append(rows[0][0] if rows else None)
    return Counter(rows_of(bound(query.root, scalars), tables))


def bound(plan: logical.LogicalPlan, scalars: Sequence[Any]) -> logical.LogicalPlan:
    """The plan with scalar subqueries as literals, and without casts between integers."""

    def change(node: Expression) -> Expression:
        if isinstance(node, ScalarSubquery):
            return Literal(scalars[node.index], node.type)
        if isinstance(node, Cast):
            assert pa.types.is_integer(node.type), node
            return node.operand
        return node

    plan = with_inputs(plan, tuple(bound(part, scalars) for part in inputs_of(plan)))
    match plan:
        case logical.Filter() | logical.Read() if plan.predicate is not None:
            return replace(plan, predicate=transform(plan.predicate, change))
        case logical.Project():
            return replace(plan, expressions=tuple(transform(e, change) for e in plan.expressions))
        case logical.Join() if plan.residual is not None:
            return replace(plan, residual=transform(plan.residual, change))
        case _:
            return plan


def check(sql: str, planner: SqlPlanner, tables: Tables, connection: duckdb.DuckDBPyConnection) -> None:
    """Ours as read and ours as simplified give DuckDB's bag of rows."""
    expected = duckdb_rows(sql, connection)
    query = planned(sql, planner, tables.schemas)
    assert interpreted(query, tables) == expected, f"as read: {sql}"
    assert interpreted(simplify(query), tables) == expected, f"simplified: {sql}"
