"""What every operator did and waited for lately, in rings of bounded size: the node's half of a trace.

The I/O scheduler's half is `io_scheduler.history`. Times are seconds of the node's clock, which is the scheduler's too.
Recording is one append, from any thread; nothing is looked up or sorted until somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from pystachio.io_scheduler.ring import Ring

CAPACITY = 1 << 16
"""Records of each kind: several minutes of a busy plan, in about 15 MiB for each full ring."""


class WaitReason(StrEnum):
    """`input` waits for a batch, `consumer` for room in the channel to the next operator, `client` for the same in the
    channel that the client reads, `io` for bytes, `stream` for a worker."""

    INPUT = "input"
    CONSUMER = "consumer"
    CLIENT = "client"
    MEMORY = "memory"
    IO = "io"
    STREAM = "stream"


class Phase(StrEnum):
    """`start` builds the graph, `run` lasts until every task has ended, `drain` until the client has read the rest."""

    START = "start"
    RUN = "run"
    DRAIN = "drain"


class JobRecord(NamedTuple):
    """An operator's work on a thread or, `on_device`, on a device's stream, both named by `thread`.

    `submitted` is when the job was ready to run. It is None for a streaming operator's part of another's job: such
    parts lie inside a job on the same thread.
    """

    plan_id: str
    operator: str
    thread: str
    submitted: float | None
    started: float
    ended: float
    on_device: bool = False


class WaitRecord(NamedTuple):
    """A coroutine of an operator stood still. `what` names the channel or the tier, `nbytes` what did not fit."""

    plan_id: str
    operator: str
    reason: WaitReason
    what: str
    nbytes: int
    started: float
    ended: float


class MemoryRecord(NamedTuple):
    """The operator holds `held` bytes of the tier from `at` on; all plans together hold `tier_used`."""

    at: float
    plan_id: str
    operator: str
    tier: str
    held: int
    tier_used: int


class PhaseRecord(NamedTuple):
    """A part of a plan's life. The phases of a plan follow each other and cover it, also when it fails."""

    plan_id: str
    phase: Phase
    priority: int
    started: float
    ended: float


class TracingSnapshot(NamedTuple):
    """`complete_from` is the earliest time from which nothing has been forgotten."""

    jobs: tuple[JobRecord, ...]
    waits: tuple[WaitRecord, ...]
    memory: tuple[MemoryRecord, ...]
    phases: tuple[PhaseRecord, ...]
    complete_from: float


class Tracing:
    """The last `capacity` records of each kind, of all plans of a node.

    `job`, `wait` and `phase` take a record each. Making one costs more than keeping it: ask `enabled` first.
    """

    def __init__(self, *, capacity: int = CAPACITY, enabled: bool = True) -> None:
        self.enabled = enabled
        kept = capacity if enabled else 0
        self._jobs = Ring(JobRecord._make, kept)
        self._waits = Ring(WaitRecord._make, kept, (WaitRecord._fields.index("reason"),))
        self._memory = Ring(MemoryRecord._make, kept, (MemoryRecord._fields.index("tier"),))
        self._phases = Ring(PhaseRecord._make, kept, tuple(map(PhaseRecord._fields.index, ("phase", "priority"))))
        # The rings' own methods: nothing is called in between.
        self.job: Callable[[JobRecord], None] = self._jobs.append
        self.wait: Callable[[WaitRecord], None] = self._waits.append
        self.phase: Callable[[PhaseRecord], None] = self._phases.append

    def memory_level(self, at: float, plan_id: str, operator: str, tier: str, held: int, used: int) -> None:
        """What a `MemoryRecord` says: there are more of them than of all others, so none is made."""
        number = self._memory.numbers.by_id.get(id(tier))
        if number is None:
            number = self._memory.numbers.of(tier)
        self._memory.append_row((at, plan_id, operator, number, held, used))

    def plan_phases(self, plan_id: str) -> tuple[PhaseRecord, ...]:
        """Those of one plan, as far as they are remembered."""
        return tuple(phase for phase in self._phases if phase.plan_id == plan_id)

    def snapshot(self, since: float = 0.0, until: float = float("inf")) -> TracingSnapshot:
        """All that touched the span of time, of every plan; from before it memory levels, which last, and phases, by
        which a plan that still runs is known."""
        lost = (self._jobs.forgetting, self._waits.forgetting)
        return TracingSnapshot(
            jobs=tuple(each for each in self._jobs.since(since, _ended) if (each.submitted or each.started) <= until),
            waits=tuple(each for each in self._waits.since(since, _ended) if each.started <= until),
            memory=tuple(level for level in self._memory if level.at <= until),
            phases=tuple(phase for phase in self._phases if phase.started <= until),
            complete_from=max((record.ended for record in lost if record is not None), default=0.0),
        )


def _ended(record: JobRecord | WaitRecord) -> float:
    return record.ended
