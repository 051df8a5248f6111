"""The same statements through several engines in turns: medians, ratios, and answers that agree."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.engines import DUCKDB_PARQUET, FIRST_TOUCH, OURS, Answer
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement


@dataclass(frozen=True, slots=True)
class Race:
    """`seconds[engine][query]` are medians; a peer has no figure for a statement that it does not support."""

    seconds: Mapping[str, Mapping[str, float]]
    samples: int

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


def race(engines: Mapping[str, Answer], queries: Mapping[str, str], repetitions: int) -> Race:
    """Each statement first once by everybody, whose answers DuckDB's must equal, then in turns.

    Raises AssertionError when ours differs or fails; a peer that fails or differs has no figure.
    """
    oracle = engines[DUCKDB_PARQUET]
    seconds: dict[str, dict[str, float]] = {name: {} for name in engines}
    sys.stdout.write(f"{'query':<12}" + "".join(f"{name[:24]:>26}" for name in engines) + "  ms\n")
    for query, sql in queries.items():
        expected = [tuple(row.values()) for row in oracle(sql).to_pylist()]
        able = {name: answer for name, answer in engines.items() if _is_right(name, answer, sql, expected)}
        times: dict[str, list[float]] = {name: [] for name in able}
        for _ in range(repetitions):
            for name, answer in able.items():
                times[name].append(_timed(answer, sql))
        for name in able:
            seconds[name][query] = statistics.median(times[name])
        shown = (f"{seconds[name][query] * 1e3:>26.1f}" if name in able else f"{'-':>26}" for name in engines)
        sys.stdout.write(f"{query:<12}" + "".join(shown) + "\n")
        sys.stdout.flush()
    return Race(seconds, repetitions)


def _is_right(name: str, answer: Answer, sql: str, expected: list[tuple[object, ...]]) -> bool:
    is_ours = name in (OURS, FIRST_TOUCH)
    try:
        table = answer(sql)
        problem = disagreement(_plain(table), expected, sql)
    except Exception as error:
        if is_ours:
            raise
        problem = str(error)
    if problem and is_ours:
        raise AssertionError(f"{sql}: {problem}")
    return not problem


def _plain(table: pa.Table) -> pa.Table:
    """Without the views and dictionaries that some engines answer with."""
    plain = {pa.string_view(): pa.string(), pa.large_string(): pa.string(), pa.binary_view(): pa.binary()}
    fields = [pa.field(f.name, plain.get(f.type, f.type)) for f in table.schema]
    return table.cast(pa.schema(fields))


def _timed(answer: Answer, sql: str) -> float:
    started = time.perf_counter()
    answer(sql)
    return time.perf_counter() - started


def _geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
