"""Tables of many row groups, so that they can be divided among nodes: TPC-H's two largest, and one whose keys are
skewed with a table of all its keys."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data

ROW_GROUPS = 64
_FACTS = 4_000_000
_KEYS = 400_000
_SKEW = 1.2
"""Of Zipf's law: the commonest key has a sixth of all rows."""
_BLOCK_ROWS = 2048
"""DuckDB's row groups are multiples of it."""


def tables(scale: float) -> dict[str, Path]:
    """By name; `facts` is of scale times 4 million rows."""
    folder = data.ROOT / f"cluster-{scale:g}"
    folder.mkdir(parents=True, exist_ok=True)
    source = data.tpch(scale)
    for name in ("lineitem", "orders"):
        rows = pq.ParquetFile(source / f"{name}.parquet").metadata.num_rows
        _write(folder / f"{name}.parquet", f"from '{source / name}.parquet'", rows)
    if not (folder / "things.parquet").exists():
        facts, things = _skewed(scale)
        _write(folder / "facts.parquet", "from facts", facts.num_rows, facts=facts)
        _write(folder / "things.parquet", "from things", things.num_rows, things=things)
    return {path.stem: path for path in sorted(folder.glob("*.parquet"))}


def _write(target: Path, query: str, rows: int, **known: pa.Table) -> None:
    if target.exists():
        return
    partial = target.with_suffix(".partial")
    group = -(-rows // ROW_GROUPS // _BLOCK_ROWS) * _BLOCK_ROWS
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        for name, table in known.items():
            connection.register(name, table)
        connection.execute(f"copy ({query}) to '{partial}' (format parquet, row_group_size {group})")
    partial.rename(target)


def _skewed(scale: float) -> tuple[pa.Table, pa.Table]:
    chance = np.random.default_rng(7)
    rows, keys = int(_FACTS * scale), int(_KEYS * scale)
    weights = np.arange(1, keys + 1) ** -_SKEW
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), chance.random(rows))
    names = chance.permutation(keys)
    facts = pa.table(
        {
            "key": names[np.minimum(drawn, keys - 1)],
            "amount": chance.integers(0, 1_000_000, rows),
            "note": pa.array([f"note {number}" for number in range(5000)]).take(chance.integers(0, 5000, rows)),
        }
    )
    things = pa.table(
        {
            "key": np.arange(keys),
            "family": chance.integers(0, 100, keys),
            "title": [f"the thing with the number {number}" for number in range(keys)],
        }
    )
    return facts, things
