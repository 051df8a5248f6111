"""What each operator of a plan did and waited for: counters cheap enough for every batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pystachio.runtime.clock import Clock


class WaitReason(StrEnum):
    CHANNEL = "channel"
    MEMORY = "memory"
    IO = "io"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """`busy_seconds` are seconds of worker threads, `wait_seconds` seconds of coroutines: either may exceed the time
    that passed. `bytes` are those of the batches put out, `peak_memory` the most bytes reserved at once. `counts` are
    what only some operators count, by a name that reads well behind a number ("row groups pruned").
    """

    name: str
    rows_in: int
    rows_out: int
    batches: int
    bytes: int
    busy_seconds: float
    wait_seconds: Mapping[WaitReason, float]
    peak_memory: int
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanSnapshot:
    plan_id: str
    operators: tuple[OperatorSnapshot, ...]

    @property
    def busy_seconds(self) -> float:
        return sum(operator.busy_seconds for operator in self.operators)


class ReportedSeconds(threading.local):
    """Seconds that the running job has already reported on this thread, so that none is counted twice."""

    seconds: float = 0.0


class OperatorMetrics:
    """Counters of one operator; every method may be called from any thread.

    A stream adds a job's seconds to the operator that started it, less what was reported inside the job with
    `add_batch(seconds=...)`: a chain of streaming operators in one job reports each its own, the rest is the starter's.
    """

    def __init__(self, name: str, clock: Clock, reported: ReportedSeconds | None = None) -> None:
        self.name = name
        self.clock = clock
        self._reported = reported if reported is not None else ReportedSeconds()
        self._lock = threading.Lock()
        self._rows_in = 0
        self._rows_out = 0
        self._batches = 0
        self._bytes = 0
        self._busy_seconds = 0.0
        self._wait_seconds = dict.fromkeys(WaitReason, 0.0)
        self._peak_memory = 0
        self._counts: dict[str, int] = {}

    def add_batch(
        self, *, rows_in: int = 0, rows_out: int = 0, nbytes: int = 0, seconds: float = 0.0, batches: int = 1
    ) -> None:
        """One batch went through: `nbytes` of it were put out, `seconds` of this thread were spent on it."""
        with self._lock:
            self._rows_in += rows_in
            self._rows_out += rows_out
            self._batches += batches
            self._bytes += nbytes
            self._busy_seconds += seconds
        self._reported.seconds += seconds

    def count(self, what: str, amount: int) -> None:
        """Add to one of the operator's own counts (`OperatorSnapshot.counts`)."""
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + amount

    def job_started(self) -> float:
        """On the job's thread; returns what `job_ended` takes."""
        return self.clock.now() - self._reported.seconds

    def job_ended(self, started: float) -> None:
        unreported = self.clock.now() - self._reported.seconds - started
        with self._lock:
            self._busy_seconds += unreported

    def add_wait(self, reason: WaitReason, seconds: float) -> None:
        with self._lock:
            self._wait_seconds[reason] += seconds

    @contextmanager
    def waiting(self, reason: WaitReason) -> Iterator[None]:
        """Around an await: the time inside is a wait for `reason`."""
        started = self.clock.now()
        try:
            yield
        finally:
            self.add_wait(reason, self.clock.now() - started)

    def record_memory(self, held: int) -> None:
        """`held` bytes are reserved now."""
        if held > self._peak_memory:
            with self._lock:
                self._peak_memory = max(self._peak_memory, held)

    def snapshot(self) -> OperatorSnapshot:
        with self._lock:
            return OperatorSnapshot(
                name=self.name,
                rows_in=self._rows_in,
                rows_out=self._rows_out,
                batches=self._batches,
                bytes=self._bytes,
                busy_seconds=self._busy_seconds,
                wait_seconds=dict(self._wait_seconds),
                peak_memory=self._peak_memory,
                counts=dict(self._counts),
            )


_JOB: Final[ContextVar[OperatorMetrics | None]] = ContextVar("job", default=None)


@contextmanager
def job_metrics(metrics: OperatorMetrics) -> Iterator[None]:
    """`count_in_job` counts with `metrics` in here, on this thread."""
    token = _JOB.set(metrics)
    try:
        yield
    finally:
        _JOB.reset(token)


def count_in_job(what: str, amount: int) -> None:
    """Count with the operator whose job runs on this thread; kernels know no other way to it. Nothing elsewhere."""
    metrics = _JOB.get()
    if metrics is not None and amount:
        metrics.count(what, amount)


class PlanMetrics:
    """The operators' counters of one plan, by operator name, in the order of their first use."""

    def __init__(self, plan_id: str, clock: Clock) -> None:
        self.plan_id = plan_id
        self._clock = clock
        self._reported = ReportedSeconds()
        self._operators: dict[str, OperatorMetrics] = {}

    def operator(self, name: str) -> OperatorMetrics:
        found = self._operators.get(name)
        if found is None:
            found = self._operators.setdefault(name, OperatorMetrics(name, self._clock, self._reported))
        return found

    def snapshot(self) -> PlanSnapshot:
        return PlanSnapshot(self.plan_id, tuple(each.snapshot() for each in tuple(self._operators.values())))
