"""TPC-H: first touch and tensor-ready columns beside DuckDB, DataFusion and Polars; answers verified, in turns."""

from __future__ import annotations

from benchmarks import data
from benchmarks.engines import DATAFUSION, DUCKDB_OWN, DUCKDB_PARQUET, FIRST_TOUCH, OURS, POLARS, engines
from benchmarks.figures import Figure
from benchmarks.race import race

LARGE = 10.0
"""From this scale on the goals are those of scale 10."""


def run(*, scale: float, quick: bool) -> list[Figure]:
    is_large = scale >= LARGE
    names = (OURS, FIRST_TOUCH, DUCKDB_PARQUET, DUCKDB_OWN, DATAFUSION, POLARS)
    with engines(data.tpch(scale), names) as contenders:
        found = race(contenders, data.queries(), repetitions=3 if quick else 5)
    return [
        *found.figures(FIRST_TOUCH, DUCKDB_PARQUET, 0.8 if is_large else 0.9, worst=1.5),
        *found.figures(OURS, DUCKDB_OWN, 0.4 if is_large else 0.5, worst=1.0),
        *found.figures(OURS, DUCKDB_PARQUET, 0.25),
        *found.figures(OURS, DATAFUSION, 0.3),
        *found.figures(OURS, POLARS, 0.3),
    ]
