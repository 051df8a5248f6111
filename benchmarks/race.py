"""The same statements through several engines in turns: medians, ratios, and answers that agree."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from benchmarks.engines import BUILDS_ANEW, DUCKDB_PARQUET, FIRST_TOUCH, OURS, Answer
from benchmarks.figures import Figure
from pystachio.cli.oracle import difference, ordered_columns


@dataclass(frozen=True, slots=True)
class Race:
    """`seconds[engine][query]` are medians; who answered wrongly or not at all has a word in `faults` instead."""

    seconds: Mapping[str, Mapping[str, float]]
    samples: int
    faults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def ratio(self, engine: str, peer: str, query: str) -> float:
        return self.seconds[engine][query] / self.seconds[peer][query]

    def figures(self, engine: str, peer: str, goal: float | None, worst: float | None = None) -> list[Figure]:
        """The geometric mean over what both answered, and the largest ratio of one statement."""
        both = [query for query in self.seconds[engine] if query in self.seconds[peer]]
        ratios = {query: self.ratio(engine, peer, query) for query in both}
        slowest = max(ratios, key=ratios.__getitem__)
        mean = {each: _geometric_mean(self.seconds[each][query] for query in both) * 1e3 for each in (engine, peer)}
        title = f"{engine} over {peer}"
        return [
            Figure(
                f"{title}, geometric mean of {len(both)}",
                _geometric_mean(ratios.values()),
                "ratio",
                goal,
                peers={f"{each} ms": milliseconds for each, milliseconds in mean.items()},
                samples=self.samples,
            ),
            Figure(f"{title}, {slowest}, the largest", ratios[slowest], "ratio", worst, samples=self.samples),
        ]


def race(
    engines: Mapping[str, Answer], queries: Mapping[str, str], repetitions: int, *, tolerant: bool = False
) -> Race:
    """Each statement first once by everybody, whose answers DuckDB's must equal, then in turns: there and back, so that
    nobody always finds the caches and cores as the same other one left them.

    Raises AssertionError when ours differs or fails, unless `tolerant`; then ours, like a peer, has a fault there
    and no figure.
    """
    oracle = engines[DUCKDB_PARQUET]
    seconds: dict[str, dict[str, float]] = {name: {} for name in engines}
    faults: dict[str, dict[str, str]] = {name: {} for name in engines}
    sys.stdout.write(f"{'query':<12}" + "".join(f"{name[:24]:>26}" for name in engines) + "  ms\n")
    for query, sql in queries.items():
        expected = _rows(oracle(sql))
        able = dict(engines)
        for name, answer in engines.items():
            fault = _fault(answer, sql, expected)
            if fault is None:
                continue
            if name in (OURS, BUILDS_ANEW, FIRST_TOUCH) and not tolerant:
                raise AssertionError(f"{sql}: {fault}")
            faults[name][query] = fault
            del able[name]
        times: dict[str, list[float]] = {name: [] for name in able}
        there = list(able)
        for number in range(repetitions):
            for name in there if number % 2 == 0 else reversed(there):
                times[name].append(_timed(able[name], sql))
        for name in able:
            seconds[name][query] = statistics.median(times[name])
        shown = (f"{seconds[name][query] * 1e3:>26.1f}" if name in able else f"{'-':>26}" for name in engines)
        sys.stdout.write(f"{query:<12}" + "".join(shown) + "\n")
        if tolerant:
            sys.stdout.writelines(f"    {name}: {faults[name][query]}\n" for name in engines if query in faults[name])
        sys.stdout.flush()
    return Race(seconds, repetitions, faults)


def _fault(answer: Answer, sql: str, expected: list[tuple[object, ...]]) -> str | None:
    """What is wrong with an engine's answer, in one line; None where nothing is."""
    try:
        table = answer(sql)
        problem = difference(_rows(table), expected, ordered_columns(sql, table.column_names))
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
    return None if problem is None else f"wrong answer: {problem[:300]}"


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    """Rows of plain values; a decimal without digits after the point is an integer: DuckDB's sums are such."""
    plain = {pa.string_view(): pa.string(), pa.large_string(): pa.string(), pa.binary_view(): pa.binary()}
    fields = [pa.field(f.name, plain.get(f.type, f.type)) for f in table.schema]
    columns = []
    for column in table.cast(pa.schema(fields)).columns:
        values = column.to_pylist()
        if pa.types.is_decimal(column.type) and column.type.scale == 0:
            values = [None if value is None else int(value) for value in values]
        columns.append(values)
    return list(zip(*columns))


def _timed(answer: Answer, sql: str) -> float:
    started = time.perf_counter()
    answer(sql)
    return time.perf_counter() - started


def _geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
