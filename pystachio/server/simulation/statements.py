"""What simulated clusters are asked: statements over small tables, planned once, with a single node's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pystachio import config
from pystachio.embedded import EmbeddedNode
from pystachio.operators.parquet.footer import parse_footer
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.codec import TableReference, decode_plan, encode_plan, tables_of
from pystachio.operators.table import FileVersion, Table, table_of_files
from pystachio.planner.catalog import Catalog
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from pystachio.session import Session

_ROWS = {"facts": 3000, "things": 400}
_ROW_GROUP = {"facts": 250, "things": 100}

STATEMENTS = (
    "select count(*), sum(amount), min(note) from facts",
    "select key, count(*) as n, sum(amount) as total from facts group by key",
    "select note, count(distinct key) as n from facts where amount > 100 group by note",
    "select family, count(*), sum(amount) from facts join things on facts.key = things.key group by family",
    "select facts.amount, things.title from facts join things on facts.key = things.key where family < 40",
    "select count(*) from facts left join things on facts.key = things.key where things.key is null",
    "select title from things where key not in (select key from facts where key is not null)",
    "select distinct note from facts where exists (select 1 from things where things.key = facts.key and family = 3)",
    "select key, amount, note from facts order by amount desc, key, note limit 20",
    "select key, amount, note from facts order by note, amount, key",
    "select count(*) from (select key from facts where amount > 300 limit 40)",
    "select count(*), min(family) >= 0 from (select family from facts join things on facts.key = things.key limit 25)",
    "select note, key from facts where key > 900 union all select title, family from things where key > 390",
)

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Statement:
    """`payload` is the encoded plan; `rows` is its answer, sorted where the statement does not say an order."""

    sql: str
    payload: bytes
    rows: Rows

    def is_answered_by(self, rows: Rows) -> bool:
        return _in_order(self.sql, rows) == self.rows


@dataclass(frozen=True, slots=True)
class Statements:
    """Plans are decoded anew for each node of each simulation: nothing is carried from one to the next."""

    listed: tuple[Statement, ...]
    footers: Mapping[FileVersion, bytes]

    def plan(self, statement: Statement, tables: dict[TableReference, Table]) -> PhysicalPlan:
        for reference in tables_of(statement.payload):
            if reference not in tables:
                files = [parse_footer(version, self.footers[version]) for version in reference.versions]
                tables[reference] = table_of_files(reference.name, files)
        return decode_plan(statement.payload, tables)


def prepare(folder: Path) -> Statements:
    """Write the tables there, and plan and answer everything on one node."""
    paths = {name: folder / f"{name}.parquet" for name in _ROWS}
    for name, table in _tables().items():
        pq.write_table(table, paths[name], row_group_size=_ROW_GROUP[name])
    settings = config.load(None, threads=1, control_socket=False, chunk_cache=False).settings
    node = EmbeddedNode(settings)
    try:
        session = Session(settings, node=node)
        catalog = Catalog(node.read_footers, node.find_files)
        for name, path in paths.items():
            session.register(name, str(path))
            catalog.register(name, str(path))
        planner = Planner(StatisticsCache(node.fetch))
        listed = []
        for sql in STATEMENTS:
            payload = encode_plan(planner.plan(sql, catalog.refresh()))
            listed.append(Statement(sql, payload, _in_order(sql, rows_of(session.sql(sql).to_arrow()))))
        footers = {file.version: file.footer for table in catalog.tables().values() for file in table.files}
    finally:
        node.close()
    return Statements(tuple(listed), footers)


def rows_of(table: pa.Table | pa.RecordBatch) -> Rows:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _in_order(sql: str, rows: Rows) -> Rows:
    return rows if " order by " in sql else sorted(rows, key=repr)


def _tables() -> dict[str, pa.Table]:
    """A third of the facts have one key, some have none."""
    chance = Random(5)
    facts, things = _ROWS["facts"], _ROWS["things"]
    keys = [
        None if chance.random() < 0.02 else 7 if chance.random() < 0.3 else chance.randrange(1200) for _ in range(facts)
    ]
    return {
        "facts": pa.table(
            {
                "key": pa.array(keys, pa.int64()),
                "amount": [chance.randrange(1000) for _ in range(facts)],
                "note": [f"note {chance.randrange(50)}" for _ in range(facts)],
            }
        ),
        "things": pa.table(
            {
                "key": list(range(things)),
                "family": [chance.randrange(100) for _ in range(things)],
                "title": [f"the thing with the number {number}" for number in range(things)],
            }
        ),
    }
