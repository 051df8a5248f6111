"""Statements over a folder of generated tables by ours and by DuckDB, in turns: a table, a chart, and the goals.

Nothing is left out: a statement that ours does not support or answers wrongly stands in the table with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import chart
from benchmarks.engines import DUCKDB_OWN, DUCKDB_PARQUET, OURS, engines
from benchmarks.figures import Figure
from benchmarks.race import Race, race
from benchmarks.report import Report, table

PEERS = (DUCKDB_PARQUET, DUCKDB_OWN)


def contest(
    folder: Path,
    queries: Mapping[str, str],
    *,
    repetitions: int,
    goal: float | None = None,
    worst_on_parquet: float | None = None,
    beside: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Report:
    """`goal`: of DuckDB on its own file, as a mean; `worst_on_parquet`: of any statement over the same files. `beside`:
    other states of ours that are measured without a goal."""
    # Ours never right behind ours, whose code would be in the cache.
    with engines(folder, (OURS, DUCKDB_PARQUET, *beside, DUCKDB_OWN)) as contenders:
        found = race(contenders, queries, repetitions, tolerant=True)
    figures = [
        Figure(
            "statements not answered rightly",
            sum(len(found.faults[name]) for name in (OURS, *beside)),
            "count",
            0,
            samples=len(queries),
        ),
    ]
    if any(query in found.seconds[OURS] for query in queries):
        figures += found.figures(OURS, DUCKDB_OWN, goal)
        figures += found.figures(OURS, DUCKDB_PARQUET, None, worst=worst_on_parquet)
        for name in beside:
            if found.seconds[name]:
                figures += found.figures(name, DUCKDB_OWN, None)
    names = list(queries)
    series = {name: [_milliseconds(found, name, query) for query in names] for name in (OURS, *PEERS)}
    title = f"{folder.name}: median of {repetitions} warm runs, two threads"
    return Report(
        figures,
        _table(found, names),
        notes,
        partial(chart.bars, title=title, labels=names, series=series, unit="milliseconds"),
    )


def _table(found: Race, queries: Sequence[str]) -> str:
    rows = []
    for query in queries:
        times = [_milliseconds(found, name, query) for name in (OURS, *PEERS)]
        ours = times[0]
        ratios = ["-" if ours is None or not other else ours / other for other in times[1:]]
        fault = "; ".join(f"{name}: {each[query]}" for name, each in found.faults.items() if query in each)
        rows.append([query, *("-" if time is None else time for time in times), *ratios, fault])
    head = ["statement", *(f"{name}, ms" for name in (OURS, *PEERS)), "over Parquet", "over own file", "fault"]
    return table(head, rows)


def _milliseconds(found: Race, name: str, query: str) -> float | None:
    seconds = found.seconds[name].get(query)
    return None if seconds is None else seconds * 1e3
