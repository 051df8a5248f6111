"""What each operator of a plan did and waited for: counters cheap enough for every batch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple

from pystachio.runtime.clock import Clock
from pystachio.runtime.tracing import JobRecord, Tracing, WaitReason, WaitRecord

_UNTRACED: Final = Tracing(enabled=False)


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


def together(measured: Iterable[OperatorSnapshot]) -> dict[str, OperatorSnapshot]:
    """By name what operators did on all nodes; `peak_memory` is that of the node that held most."""
    found: dict[str, OperatorSnapshot] = {}
    for one in measured:
        other = found.get(one.name)
        found[one.name] = one if other is None else _both(one, other)
    return found


def _both(one: OperatorSnapshot, other: OperatorSnapshot) -> OperatorSnapshot:
    waits, counts = Counter(one.wait_seconds), Counter(one.counts)
    waits.update(other.wait_seconds)
    counts.update(other.counts)
    return OperatorSnapshot(
        one.name,
        one.rows_in + other.rows_in,
        one.rows_out + other.rows_out,
        one.batches + other.batches,
        one.bytes + other.bytes,
        one.busy_seconds + other.busy_seconds,
        waits,
        max(one.peak_memory, other.peak_memory),
        counts,
    )


class _ReportedSeconds(threading.local):
    """Seconds that jobs have reported from within on this thread, so that none is counted twice."""

    seconds: float = 0.0

    def __init__(self) -> None:
        # Once for each thread.
        self.thread = threading.current_thread().name


_REPORTED: Final = _ReportedSeconds()
_NO_WAITS: Final = dict.fromkeys(WaitReason, 0.0)


class StartedJob(NamedTuple):
    """`reported` are the seconds that this thread had reported before the job."""

    submitted: float
    started: float
    reported: float


class OperatorMetrics:
    """Counters of one operator, and its records in the trace; every method may be called from any thread.

    A stream adds a job's seconds to the operator that started it, less what was reported inside the job with
    `add_batch(seconds=...)`: a chain of streaming operators in one job reports each its own, the rest is the starter's.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        plan_id: str = "",
        tracing: Tracing = _UNTRACED,
    ) -> None:
        self.name = name
        self.clock = clock
        self.plan_id = plan_id
        self.tracing = tracing
        self._lock = threading.Lock()
        self._rows_in = 0
        self._rows_out = 0
        self._batches = 0
        self._bytes = 0
        self._busy_seconds = 0.0
        self._wait_seconds = _NO_WAITS.copy()
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
        if seconds:
            reported = _REPORTED
            reported.seconds += seconds
            if self.tracing.enabled:
                ended = self.clock.now()
                self.tracing.job(JobRecord(self.plan_id, self.name, reported.thread, None, ended - seconds, ended))

    def count(self, what: str, amount: int) -> None:
        """Add to one of the operator's own counts (`OperatorSnapshot.counts`)."""
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + amount

    def job_started(self, submitted: float) -> StartedJob:
        """On the job's thread, which it had to wait for since `submitted`; returns what `job_ended` takes."""
        now = self.clock.now()
        self.add_wait(WaitReason.STREAM, now - submitted)
        return StartedJob(submitted, now, _REPORTED.seconds)

    def job_ended(self, job: StartedJob) -> None:
        now = self.clock.now()
        unreported = now - job.started - (_REPORTED.seconds - job.reported)
        with self._lock:
            self._busy_seconds += unreported
        if self.tracing.enabled:
            thread = _REPORTED.thread
            self.tracing.job(JobRecord(self.plan_id, self.name, thread, job.submitted, job.started, now))

    def device_ended(self, stream: str, launched: float) -> None:
        """A device's stream has done what was put on it at `launched`."""
        if self.tracing.enabled:
            now = self.clock.now()
            self.tracing.job(JobRecord(self.plan_id, self.name, stream, launched, launched, now, on_device=True))

    def add_wait(self, reason: WaitReason, seconds: float) -> None:
        with self._lock:
            self._wait_seconds[reason] += seconds

    def waiting(self, reason: WaitReason, what: str = "", nbytes: int = 0) -> Waiting:
        """Around an await: the time inside is a wait for `nbytes` of, or in, `what`."""
        return Waiting(self, reason, what, nbytes)

    def waited(self, reason: WaitReason, what: str, nbytes: int, started: float) -> None:
        """A wait for `reason` that began at `started` is over."""
        ended = self.clock.now()
        with self._lock:
            self._wait_seconds[reason] += ended - started
        if self.tracing.enabled:
            self.tracing.wait(WaitRecord(self.plan_id, self.name, reason, what, nbytes, started, ended))

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


class Waiting:
    """`with` around an await; a class, because a generator costs twice as much."""

    __slots__ = ("_metrics", "_nbytes", "_reason", "_started", "_what")

    def __init__(self, metrics: OperatorMetrics, reason: WaitReason, what: str, nbytes: int) -> None:
        self._metrics = metrics
        self._reason = reason
        self._what = what
        self._nbytes = nbytes
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = self._metrics.clock.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.waited(self._reason, self._what, self._nbytes, self._started)


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

    def __init__(self, plan_id: str, clock: Clock, tracing: Tracing = _UNTRACED) -> None:
        self.plan_id = plan_id
        self._clock = clock
        self._tracing = tracing
        self._operators: dict[str, OperatorMetrics] = {}

    def operator(self, name: str) -> OperatorMetrics:
        found = self._operators.get(name)
        if found is None:
            metrics = OperatorMetrics(name, self._clock, plan_id=self.plan_id, tracing=self._tracing)
            found = self._operators.setdefault(name, metrics)
        return found

    def snapshot(self) -> PlanSnapshot:
        return PlanSnapshot(self.plan_id, tuple(each.snapshot() for each in tuple(self._operators.values())))
