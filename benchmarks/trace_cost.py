"""What tracing costs on the TPC-H run, and how often a verdict names the right bottleneck.

The cost: the same queries in three sessions of one process, one with tracing and two without, in rounds whose order
changes; the median over the rounds of each query, the geometric mean over the queries. The verdicts: the ten plans of
`trace_cases`, each bounded by one thing.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from benchmarks.trace_cases import CASES
from pystachio.io_scheduler.core.request import Link, PathTaken, PriorityClass
from pystachio.io_scheduler.history import History
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.metrics import OperatorMetrics, PlanMetrics
from pystachio.runtime.tracing import Tracing, WaitReason
from pystachio.trace.verdict import verdict

THREADS = 2
EVENTS = 100_000


def run(*, scale: float, quick: bool) -> list[Figure]:
    rounds = 9 if quick else 15
    wall, processor, noise = _overhead(data.tpch(scale), rounds)
    named, total = _verdicts(repetitions=1 if quick else 3)
    return [
        Figure(
            "TPC-H with tracing over without, wall time, geometric mean of 22",
            wall,
            "ratio",
            1.02,
            peers={"without over without": noise},
            samples=rounds,
        ),
        Figure("the same without on both sides: the noise of the measurement", noise, "ratio", samples=rounds),
        Figure("with over without, processor time", processor, "ratio", samples=rounds),
        Figure(
            "verdicts that name the bottleneck, of ten constructed cases",
            named / total * len(CASES),
            "cases",
            9,
            direction="at least",
            samples=total,
        ),
        Figure("recording a chunk, processor time", _nanoseconds(_record_chunks()), "ns", 1000, samples=EVENTS),
        Figure("recording a transfer of one chunk, processor time", _nanoseconds(_record_transfers()), "ns"),
        *(
            Figure(f"recording {what}, processor time", _added(make), "ns", 1000, samples=EVENTS)
            for what, make in (("a wait", _wait), ("a job", _run_job), ("an operator's part of a job", _report_part))
        ),
    ]


def _overhead(folder: Path, rounds: int) -> tuple[float, float, float]:
    """Ratios over the session without tracing: of the traced one's wall and processor time, and of a second one's
    wall time that does not trace either."""
    traced, plain, again = (
        pystachio.connect(threads=THREADS, tracing=tracing, chunk_cache=False) for tracing in (True, False, False)
    )
    sessions = (traced, plain, again)
    for session in sessions:
        data.register(session, folder)
    wall: list[float] = []
    processor: list[float] = []
    noise: list[float] = []
    sys.stdout.write(f"{'query':<6}{'off ms':>10}{'on/off':>10}{'processor':>12}{'off/off':>10}\n")
    for name, sql in data.queries().items():
        for session in sessions:
            session.sql(sql).to_arrow()
        measured = [_round(sessions, sql, first=number % len(sessions)) for number in range(rounds)]
        wall.append(statistics.median(on[0] / off[0] for on, off, _ in measured))
        processor.append(statistics.median(on[1] / off[1] for on, off, _ in measured))
        noise.append(statistics.median(other[0] / off[0] for _, off, other in measured))
        off_ms = statistics.median(off[0] for _, off, _ in measured) * 1e3
        sys.stdout.write(f"{name:<6}{off_ms:>10.1f}{wall[-1]:>10.3f}{processor[-1]:>12.3f}{noise[-1]:>10.3f}\n")
        sys.stdout.flush()
    for session in sessions:
        session.close()
    return _geometric_mean(wall), _geometric_mean(processor), _geometric_mean(noise)


Times = tuple[float, float]
"""Wall and processor seconds."""


def _round(sessions: Sequence[pystachio.Session], sql: str, first: int) -> list[Times]:
    """Each session once; which is first changes from round to round."""
    times: list[Times] = [(0.0, 0.0)] * len(sessions)
    for step in range(len(sessions)):
        position = (first + step) % len(sessions)
        times[position] = _times(sessions[position], sql)
    return times


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
    history = History()
    origin = history.origin(1, "plan", "scan", PriorityClass.NORMAL, Link("disk", "259:0"), 1.0)

    def record() -> None:
        if history.enabled:
            history.chunk(origin, 0, 1, 2.0, 3.0, PathTaken.DIRECT, False)

    return record


def _record_transfers() -> Callable[[], object]:
    """As the service and a client do it for a transfer of one chunk."""
    history, link = History(), Link("disk", "259:0")

    def record() -> None:
        origin = history.origin(1, "plan", "scan", PriorityClass.NORMAL, link, 1.0)
        history.chunk(origin, 0, 1, 2.0, 3.0, PathTaken.DIRECT, False)
        history.transfer(origin, "/file", 1, 2.0, 3.0, None, None, None)
        history.consumed(1, 3.0)

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
