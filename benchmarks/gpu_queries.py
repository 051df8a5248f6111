"""TPC-H on a device: right answers, times in memory and from files, waits of the host, bytes over the bus.

Needs the engine and what it imports. Where DuckDB is there, answers are compared with its, and its times stand beside
ours; else answers are compared with those of the engine on the CPU.
"""

from __future__ import annotations

import collections
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

import pystachio
from benchmarks.figures import Figure
from benchmarks.gpu_copies import Rates
from benchmarks.report import Report, table
from pystachio.cli import tpch as standard
from pystachio.cli.oracle import DuckDB, difference, ordered_columns
from pystachio.operators.placement import COPIED_TO_DEVICE, COPIED_TO_HOST

DATA = Path(__file__).parent / "data"
LARGE_BATCH = 1 << 22
"""Rows; sixteen times the default, which was chosen for the caches of a CPU."""

STATES: Mapping[str, Mapping[str, Any]] = {
    "in memory": {},
    "in memory, large batches": {"batch_rows": LARGE_BATCH},
    "from files": {"chunk_cache": False},
}


@dataclass(slots=True)
class Measured:
    """One statement; seconds are medians by state. `waits` is None where they cannot be counted."""

    peer: float | None
    problem: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    waits: int | None = None
    to_device: int = 0
    to_host: int = 0
    places: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def bus(self) -> float:
        """Bytes to the device a second, in memory."""
        return self.to_device / self.seconds["in memory"]


def folder(scale: float) -> Path:
    path = DATA / f"tpch-{scale:g}"
    if not standard.is_complete(path):
        standard.generate(scale, path)
    return path


def measure(
    device: torch.device, rates: Rates, *, scale: float, repetitions: int, names: Sequence[str] | None = None
) -> Report:
    """Every statement of TPC-H (or those named) at `scale` on `device`: first rightly, then `repetitions` times by the
    clock, in each of the states."""
    files = standard.table_files(folder(scale))
    statements = {name: sql for name, sql in standard.statements().items() if names is None or name in names}
    with _expected(files, statements) as (answers, peer_seconds):
        found = {name: Measured(peer_seconds.get(name)) for name in statements}
        for state, settings in STATES.items():
            with pystachio.connect(device=str(device), threads=_threads(), **settings) as session:
                for file in files:
                    session.register(file.stem, str(file))
                for name, sql in statements.items():
                    _measure_one(session, sql, answers[name], found[name], repetitions, state)
                    if state == "in memory":
                        _count(session, device, sql, found[name])
                    fault = "" if found[name].problem is None else f", {found[name].problem}"
                    sys.stdout.write(f"{name} {state}: {found[name].seconds[state] * 1e3:,.1f} ms{fault}\n")
                    sys.stdout.flush()
    return Report(_figures(found, rates), _table(found, rates), _notes(found))


def _measure_one(
    session: pystachio.Session,
    sql: str,
    expected: list[tuple[Any, ...]],
    into: Measured,
    repetitions: int,
    state: str,
) -> None:
    answer = session.sql(sql).to_arrow()
    into.problem = into.problem or _difference(answer, expected, sql)
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        session.sql(sql).to_arrow()
        seconds.append(time.perf_counter() - started)
    into.seconds[state] = statistics.median(seconds)


def _count(session: pystachio.Session, device: torch.device, sql: str, into: Measured) -> None:
    """Not among the timed runs: counting has a price."""
    with _waits(device) as places:
        result = session.sql(sql)
        result.to_arrow()
    into.waits = None if device.type != "cuda" else len(places)
    into.places.update(places)
    counts = _counts(result)
    into.to_device, into.to_host = counts[COPIED_TO_DEVICE], counts[COPIED_TO_HOST]


def _counts(result: pystachio.Result) -> collections.Counter[str]:
    total: collections.Counter[str] = collections.Counter()
    for operator in result.operators():
        total.update(operator.counts)
    return total


@contextmanager
def _waits(device: torch.device) -> Iterator[list[str]]:
    """Where the host waited for the device without an event of its own; by torch's own count, filled at the end."""
    places: list[str] = []
    if device.type != "cuda":
        yield places
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places.extend(
        f"{Path(warning.filename).name}:{warning.lineno}" for warning in caught if "synchroniz" in str(warning.message)
    )


@contextmanager
def _expected(
    files: Sequence[Path], statements: Mapping[str, str]
) -> Iterator[tuple[dict[str, list[tuple[Any, ...]]], dict[str, float]]]:
    """Right answers, and DuckDB's seconds by statement where it is there."""
    if find_spec("duckdb") is None:
        with pystachio.connect(device="cpu") as session:
            for file in files:
                session.register(file.stem, str(file))
            yield {name: _rows(session.sql(sql).to_arrow()) for name, sql in statements.items()}, {}
        return
    oracle = DuckDB(files)
    try:
        seconds, answers = {}, {}
        for name, sql in statements.items():
            answers[name] = oracle.rows(sql)
            started = time.perf_counter()
            oracle.rows(sql)
            seconds[name] = time.perf_counter() - started
        yield answers, seconds
    finally:
        oracle.close()


def _difference(answer: pa.Table, expected: list[tuple[Any, ...]], sql: str) -> str | None:
    return difference(_rows(answer), expected, ordered_columns(sql, answer.column_names))


def _rows(answer: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))


def _threads() -> int:
    return max(2, len(os.sched_getaffinity(0)))


def _figures(found: Mapping[str, Measured], rates: Rates) -> list[Figure]:
    right = sum(each.problem is None for each in found.values())
    figures = [Figure("TPC-H statements answered rightly", right, "right", len(found), "at least")]
    for state in STATES:
        mean = math.exp(statistics.fmean(math.log(each.seconds[state]) for each in found.values()))
        figures.append(Figure(f"TPC-H {state}, geometric mean", mean * 1e3, "ms"))
    beside = [each.seconds["in memory"] / each.peer for each in found.values() if each.peer]
    if beside:
        mean = math.exp(statistics.fmean(map(math.log, beside)))
        figures.append(Figure("TPC-H in memory over DuckDB on Parquet, geometric mean", mean, "ratio", 1.0))
    waits = [each.waits for each in found.values() if each.waits is not None]
    if waits:
        figures.append(Figure("waits of the host in a statement, mean", statistics.fmean(waits), "count"))
    moved = max((each.bus for each in found.values()), default=0.0)
    figures.append(Figure("bytes to the device over the bus, most of a statement", moved / 1e9, "GB/s"))
    figures.append(Figure("the same over what pinned memory delivers", moved / rates.from_pinned, "ratio"))
    return figures


def _table(found: Mapping[str, Measured], rates: Rates) -> str:
    head = (
        *("statement", *(f"{state}, ms" for state in STATES), "DuckDB on Parquet, ms", "waits"),
        *("MB to the device", "MB to the host before the result", "share of the bus", "fault"),
    )
    rows = [
        (
            *(name, *(each.seconds[state] * 1e3 for state in STATES), "-" if each.peer is None else each.peer * 1e3),
            *("-" if each.waits is None else each.waits, each.to_device / 1e6, each.to_host / 1e6),
            *(each.bus / rates.from_pinned, each.problem or ""),
        )
        for name, each in found.items()
    ]
    return table(head, rows)


def _notes(found: Mapping[str, Measured]) -> list[str]:
    places: collections.Counter[str] = sum((each.places for each in found.values()), collections.Counter())
    notes = [f"{count} waits at {place}" for place, count in places.most_common(10)]
    if not any(each.waits is not None for each in found.values()):
        notes.append("Waits are not counted: no CUDA device.")
    if not any(each.peer is not None for each in found.values()):
        notes.append("DuckDB is not installed: answers are compared with the engine's own on the CPU.")
    return notes
