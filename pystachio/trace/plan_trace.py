"""One plan's part of what the node and its I/O scheduler remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.history import ChunkRecord, History, HistorySnapshot, TransferRecord
from pystachio.runtime.tracing import JobRecord, Phase, Tracing, TracingSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTrace:
    """Records of the plan and of all others at the same time, from `started` to `ended` in seconds of one clock.

    `labels` are what operators are called before people, by the names in the records, in the order of the plan;
    `decoders` are the operators whose own work is decoding what they read. `workers` threads run jobs.
    """

    plan_id: str
    title: str
    priority: PriorityClass
    started: float
    ended: float
    workers: int
    history: HistorySnapshot
    tracing: TracingSnapshot
    labels: Mapping[str, str] = field(default_factory=dict)
    decoders: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the plan's time has been forgotten."""
        return max(self.history.complete_from, self.tracing.complete_from) <= self.started

    def label(self, operator: str) -> str:
        return self.labels.get(operator, operator)

    def is_own(self, record: ChunkRecord | TransferRecord | JobRecord) -> bool:
        return record.plan_id == self.plan_id


def take(
    plan_id: str,
    *,
    submitted: float,
    history: History,
    tracing: Tracing,
    now: float,
    workers: int,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    decoders: frozenset[str] = frozenset(),
) -> PlanTrace:
    """What is known of the plan now, on any thread. A plan that still runs ends `now`."""
    phases = tracing.plan_phases(plan_id)
    started = min((phase.started for phase in phases), default=submitted)
    ended = next((phase.ended for phase in phases if phase.phase is Phase.DRAIN), now)
    return PlanTrace(
        plan_id=plan_id,
        title=title,
        priority=PriorityClass(phases[-1].priority) if phases else PriorityClass.NORMAL,
        started=started,
        ended=ended,
        workers=workers,
        history=history.snapshot(started, ended),
        tracing=tracing.snapshot(started, ended),
        labels=labels if labels is not None else {},
        decoders=decoders,
    )
