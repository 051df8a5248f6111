"""Tables on emulated disks so slow that a query over them lasts long enough to be hit by a fault."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 90_000
GROUP_ROWS = 3_000
BYTES_PER_SECOND = 5_000_000
STATEMENTS = {
    "group": "select key, count(*), sum(amount), min(name) from sales group by key order by key",
    "join": "select k.word, sum(s.amount), count(*) from sales s join kinds k on s.key = k.key group by k.word "
    "order by k.word",
    "sort": "select id, amount, name from sales where amount > 900000 order by amount desc, id limit 500",
    "rows": "select id, key, name from sales where id % 3 = 0",
}
DIVISION_BY_ZERO = "select sum(amount % (id - 7777)) from sales"
ENDLESS = "select count(*) from sales a join sales b on a.key % 5 = b.key % 5 where a.name < b.name"
BAD_CAST = "select sum(cast(name as integer)) from sales"


def write_slow_tables(folder: Path) -> dict[str, Path]:
    """`sales` takes a good part of a second to read, several statements at once some seconds; `kinds` no time."""
    chance = random.Random(11)
    sales = {
        "id": pa.array(range(ROWS), pa.int64()),
        "key": pa.array([chance.randrange(500) for _ in range(ROWS)], pa.int32()),
        "amount": pa.array([chance.randrange(1_000_000) for _ in range(ROWS)], pa.int64()),
        "name": pa.array([f"name {chance.getrandbits(40):x}" for _ in range(ROWS)], pa.string()),
    }
    kinds = {
        "key": pa.array(range(500), pa.int32()),
        "word": pa.array([f"kind {number % 37}" for number in range(500)], pa.string()),
    }
    tables = {"sales": folder / "sales.parquet", "kinds": folder / "kinds.parquet"}
    pq.write_table(pa.table(sales), tables["sales"], row_group_size=GROUP_ROWS, compression="none")
    pq.write_table(pa.table(kinds), tables["kinds"])
    return tables


def slow_disk(folder: Path) -> dict[str, Any]:
    """Settings of a node whose disk is slow where the tables are."""
    return {"emulated": [{"path": str(folder), "rate": BYTES_PER_SECOND, "latency": 0.0, "depth": 4}]}
