"""What tracing costs on the TPC-H run, and how often a verdict names the right bottleneck.

The cost: the same queries in two sessions of one process, one with tracing and one without, in pairs whose order
alternates; the median over the pairs of each query, the geometric mean over the queries. The verdicts: the ten plans of
`trace_cases`, each bounded by one thing.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from benchmarks.trace_cases import CASES
from pystachio.io_scheduler.history import ChunkRecord, History
from pystachio.io_scheduler.request import Link, PathTaken, PriorityClass
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.metrics import OperatorMetrics, PlanMetrics
from pystachio.runtime.tracing import Tracing, WaitReason
from pystachio.trace.verdict import verdict

THREADS = 2
EVENTS = 100_000


def run(*, scale: float, quick: bool) -> list[Figure]:
    wall, processor, samples = _overhead(data.tpch(scale), pairs=12 if quick else 16)
    named, total = _verdicts(repetitions=1 if quick else 3)
    return [
        Figure(
            "TPC-H with tracing over without, wall time, geometric mean of 22", wall, "ratio", 1.02, samples=samples
        ),
        Figure("the same, processor time", processor, "ratio", samples=samples),
        Figure(
            "verdicts that name the bottleneck, of ten constructed cases",
            named / total * len(CASES),
            "cases",
            9,
            direction="at least",
            samples=total,
        ),
        Figure("recording a chunk, processor time", _nanoseconds(_record_chunks()), "ns", 1000, samples=EVENTS),
        *(
            Figure(f"recording {what}, processor time", _added(make), "ns", 1000, samples=EVENTS)
            for what, make in (("a wait", _wait), ("a job", _run_job), ("an operator's part of a job", _report_part))
        ),
    ]


def _overhead(folder: Path, pairs: int) -> tuple[float, float, int]:
    sessions = {traced: pystachio.connect(threads=THREADS, tracing=traced) for traced in (True, False)}
    for session in sessions.values():
        data.register(session, folder)
    wall: list[float] = []
    processor: list[float] = []
    sys.stdout.write(f"{'query':<6}{'off ms':>10}{'on/off':>10}{'processor':>12}\n")
    for name, sql in data.queries().items():
        for session in sessions.values():
            session.sql(sql).to_arrow()
        measured = [_pair(sessions, sql, traced_first=bool(index % 2)) for index in range(pairs)]
        wall.append(statistics.median(on[0] / off[0] for on, off in measured))
        processor.append(statistics.median(on[1] / off[1] for on, off in measured))
        off_ms = statistics.median(off[0] for _, off in measured) * 1e3
        sys.stdout.write(f"{name:<6}{off_ms:>10.1f}{wall[-1]:>10.3f}{processor[-1]:>12.3f}\n")
        sys.stdout.flush()
    for session in sessions.values():
        session.close()
    return _geometric_mean(wall), _geometric_mean(processor), pairs


Times = tuple[float, float]


def _pair(sessions: dict[bool, pystachio.Session], sql: str, *, traced_first: bool) -> tuple[Times, Times]:
    """Wall and processor seconds with tracing and without."""
    order = (True, False) if traced_first else (False, True)
    times = {traced: _times(sessions[traced], sql) for traced in order}
    return times[True], times[False]


def _times(session: pystachio.Session, sql: str) -> Times:
    started, used = time.perf_counter(), time.process_time()
    session.sql(sql).to_arrow()
    return time.perf_counter() - started, time.process_time() - used


def _verdicts(repetitions: int) -> tuple[int, int]:
    named = total = 0
    for case in (case for case in CASES for _ in repeat(None, repetitions)):
        found = verdict(asyncio.run(case.run()))
        right = found.bottleneck is case.bottleneck
        named += right
        total += 1
        sys.stdout.write(f"{'right' if right else 'WRONG':<6} {case.bottleneck:<12} {found}\n")
        sys.stdout.flush()
    return named, total


def _record_chunks() -> Callable[[], object]:
    history, link = History(), Link("disk", "259:0")

    def record() -> None:
        if history.enabled:
            history.chunk(
                ChunkRecord(1, "plan", "scan", PriorityClass.NORMAL, link, 0, 1, 1.0, 2.0, 3.0, PathTaken.DIRECT, False)
            )

    return record


def _wait(metrics: OperatorMetrics) -> None:
    with metrics.waiting(WaitReason.IO, "file", 1):
        pass


def _run_job(metrics: OperatorMetrics) -> None:
    metrics.job_ended(metrics.job_started(0.0))


def _report_part(metrics: OperatorMetrics) -> None:
    metrics.add_batch(seconds=1.0)


def _added(event: Callable[[OperatorMetrics], None]) -> float:
    """What tracing adds to an event: counters are kept in any case."""
    traced, untraced = (
        PlanMetrics("plan", SystemClock(), Tracing(enabled=enabled)).operator("scan") for enabled in (True, False)
    )
    return _nanoseconds(lambda: event(traced)) - _nanoseconds(lambda: event(untraced))


def _nanoseconds(call: Callable[[], object]) -> float:
    """Of processor time for one call, with the rings full."""
    for _ in range(2 * EVENTS):
        call()
    started = time.thread_time()
    for _ in range(EVENTS):
        call()
    return (time.thread_time() - started) / EVENTS * 1e9


def _geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
