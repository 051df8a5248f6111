"""TPC-H: ours beside DuckDB on the same Parquet files and threads, interleaved, medians, answers verified."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement

THREADS = 2


def run(*, scale: float, quick: bool) -> list[Figure]:
    repetitions = 3 if quick else 5
    folder = data.tpch(scale)
    session = pystachio.connect(threads=THREADS)
    data.register(session, folder)
    peer = data.duckdb_over(folder)
    peer.execute(f"set threads = {THREADS}")
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    sys.stdout.write(f"{'query':<6}{'ours ms':>10}{'DuckDB ms':>12}{'ratio':>8}\n")
    for name, sql in data.queries().items():
        table = session.sql(sql).to_arrow()
        problem = disagreement(table, peer.execute(sql).fetchall(), sql)
        if problem:
            raise AssertionError(f"{name}: {problem}")
        pairs = [(_seconds(session.sql, sql), _seconds(peer.sql, sql)) for _ in range(repetitions)]
        ours[name] = statistics.median(pair[0] for pair in pairs)
        theirs[name] = statistics.median(pair[1] for pair in pairs)
        sys.stdout.write(
            f"{name:<6}{ours[name] * 1e3:>10.1f}{theirs[name] * 1e3:>12.1f}{ours[name] / theirs[name]:>8.2f}\n"
        )
        sys.stdout.flush()
    session.close()
    ratios = {name: ours[name] / theirs[name] for name in ours}
    return [
        Figure(
            "time over DuckDB on the same Parquet, geometric mean of 22",
            _geometric_mean(list(ratios.values())),
            "ratio",
            goal=1.5,
            peers={
                "pystachio ms": _geometric_mean(list(ours.values())) * 1e3,
                "duckdb ms": _geometric_mean(list(theirs.values())) * 1e3,
            },
            samples=repetitions,
        ),
        *(
            Figure(
                f"{name} over DuckDB",
                ratio,
                "ratio",
                peers={"pystachio ms": ours[name] * 1e3, "duckdb ms": theirs[name] * 1e3},
                samples=repetitions,
            )
            for name, ratio in ratios.items()
        ),
    ]


def _seconds(query: Callable[[str], Any], sql: str) -> float:
    """Both sides end with the whole answer as an Arrow table."""
    start = time.perf_counter()
    result = query(sql)
    result.to_arrow() if isinstance(result, pystachio.Result) else result.to_arrow_table()
    return time.perf_counter() - start


def _geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
