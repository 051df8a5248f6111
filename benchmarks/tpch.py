"""TPC-H: first touch and tensor-ready columns beside DuckDB, DataFusion and Polars; answers verified, in turns.

Then the same with nothing in memory, what it takes in memory, processor time and energy, and how the time grows from a
tenth of the scale.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks import chart, data
from benchmarks.cold import cold
from benchmarks.consumption import POWER, Consumption, consumption
from benchmarks.engines import (
    BUILDS_ANEW,
    DATAFUSION,
    DUCKDB_OWN,
    DUCKDB_PARQUET,
    FIRST_TOUCH,
    OURS,
    POLARS,
    engines,
)
from benchmarks.figures import Figure
from benchmarks.race import Race, race
from benchmarks.report import Report, table

LARGE = 10.0
"""From this scale on the goals are those of scale 10."""

NAMES = (OURS, FIRST_TOUCH, DUCKDB_PARQUET, BUILDS_ANEW, DUCKDB_OWN, DATAFUSION, POLARS)
CONSUMERS = (OURS, FIRST_TOUCH, DUCKDB_PARQUET, DUCKDB_OWN)
GROWING = (OURS, DUCKDB_PARQUET, DUCKDB_OWN)


def run(*, scale: float, quick: bool) -> Report:
    repetitions = 3 if quick else 5
    queries = data.queries()
    folder = data.tpch(scale)
    with engines(folder, NAMES) as contenders:
        found = race(contenders, queries, repetitions, tolerant=True)
    cold_seconds = cold(folder, queries, 1 if quick else 3)
    used = {name: consumption(name, folder, queries) for name in CONSUMERS}
    sys.stdout.write(f"a tenth of the scale, {scale / 10:g}\n")
    with engines(data.tpch(scale / 10), GROWING) as contenders:
        smaller = race(contenders, queries, repetitions, tolerant=True)
    series = {name: [_milliseconds(found.seconds, name, query) for query in queries] for name in (OURS, *_PEERS)}
    series |= {f"{name}, cold": [cold_seconds[name][query] * 1e3 for query in queries] for name in cold_seconds}
    title = f"TPC-H at scale {scale:g}: medians, two threads"
    return Report(
        [
            *_race_figures(found, is_large=scale >= LARGE),
            *_cold_figures(found, cold_seconds),
            *_consumption_figures(used, is_large=scale >= LARGE),
            *_growth(found, smaller, scale),
        ],
        _table(found, cold_seconds, list(queries)),
        _notes(used),
        partial(chart.bars, title=title, labels=list(queries), series=series, unit="milliseconds"),
    )


_PEERS = (DUCKDB_PARQUET, DUCKDB_OWN)


def _race_figures(found: Race, *, is_large: bool) -> list[Figure]:
    goals: Sequence[tuple[str, str, float | None, float | None]] = (
        (FIRST_TOUCH, DUCKDB_PARQUET, 0.8 if is_large else 0.9, 1.5),
        (OURS, DUCKDB_OWN, 0.4 if is_large else 0.5, 1.0),
        (BUILDS_ANEW, DUCKDB_OWN, None, None),
        (OURS, DUCKDB_PARQUET, 0.25, None),
        (OURS, DATAFUSION, 0.3, None),
        (OURS, POLARS, 0.3, None),
    )
    wrong = sum(len(found.faults[name]) for name in (OURS, BUILDS_ANEW, FIRST_TOUCH))
    return [
        Figure("statements not answered rightly, warm and first touch", wrong, "count", 0),
        *(
            figure
            for ours, peer, goal, worst in goals
            if found.seconds[ours] and found.seconds[peer]
            for figure in found.figures(ours, peer, goal, worst)
        ),
    ]


def _cold_figures(found: Race, seconds: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    return [
        *Race(seconds, 1).figures(OURS, DUCKDB_OWN, 0.5),
        *(
            Figure(f"{name}: cold over warm, geometric mean", _mean_ratio(seconds[name], found.seconds[name]), "ratio")
            for name in seconds
        ),
    ]


def _consumption_figures(used: Mapping[str, Consumption], *, is_large: bool) -> list[Figure]:
    figures = []
    for name, each in used.items():
        peers = {"of it imported GiB": each.imported / 2**30}
        goal = 4.0 if is_large and name == OURS else None
        figures.append(Figure(f"{name}: peak memory of the process", each.peak / 2**30, "GiB", goal, peers=peers))
        peers = {"wall s": each.wall_seconds}
        figures.append(
            Figure(f"{name}: processor time, warm, all statements", each.processor_seconds, "s", peers=peers)
        )
        if each.joules is not None:
            figures.append(Figure(f"{name}: energy, warm, all statements", each.joules, "J"))
    return figures


def _growth(found: Race, smaller: Race, scale: float) -> list[Figure]:
    return [
        Figure(
            f"{name}: time at scale {scale:g} over scale {scale / 10:g}, geometric mean",
            _mean_ratio(found.seconds[name], smaller.seconds[name]),
            "ratio",
            samples=found.samples,
        )
        for name in GROWING
    ]


def _mean_ratio(over: Mapping[str, float], under: Mapping[str, float]) -> float:
    both = [query for query in over if query in under]
    return math.exp(statistics.fmean(math.log(over[query] / under[query]) for query in both)) if both else math.nan


def _table(found: Race, cold_seconds: Mapping[str, Mapping[str, float]], queries: Sequence[str]) -> str:
    rows: list[list[object]] = []
    for query in queries:
        warm = [_milliseconds(found.seconds, name, query) for name in NAMES]
        fault = "; ".join(f"{name}: {each[query]}" for name, each in found.faults.items() if query in each)
        times = (*warm, *(seconds[query] * 1e3 for seconds in cold_seconds.values()))
        rows.append([query, *("-" if each is None else each for each in times), fault])
    head = ["statement", *(f"{name}, ms" for name in NAMES), *(f"{name}, cold, ms" for name in cold_seconds), "fault"]
    return table(head, rows)


def _notes(used: Mapping[str, Consumption]) -> list[str]:
    if all(each.joules is None for each in used.values()):
        return [f"Energy is not measured: {POWER} is not readable on this machine."]
    return []


def _milliseconds(seconds: Mapping[str, Mapping[str, float]], name: str, query: str) -> float | None:
    found = seconds[name].get(query)
    return None if found is None else found * 1e3
