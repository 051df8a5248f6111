"""Traces made by hand, and by a small model of a device that serves chunks in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pystachio.io_scheduler.core.request import CreditPool, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.history import ChunkRecord, HistorySnapshot, TransferRecord
from pystachio.runtime.tracing import (
    JobRecord,
    MemoryRecord,
    Phase,
    PhaseRecord,
    TracingSnapshot,
    WaitReason,
    WaitRecord,
)
from pystachio.trace.plan_trace import PlanTrace

DISK = Link("disk", "259:0")
MIB = 1 << 20


@dataclass
class Device:
    """A chunk takes `latency`, then its turn on a wire; at most `window` bytes are inside, at least one chunk."""

    rate: float
    latency: float = 0.0
    window: int = 16 * MIB

    def serve(self, lengths: Sequence[int], since: float = 0.0) -> list[tuple[float, float]]:
        """When each chunk enters and leaves, if all wait from `since` on."""
        stays: list[tuple[float, float]] = []
        wire_free = since
        for position, length in enumerate(lengths):
            entered = since
            for before in range(position):
                inside = sum(lengths[before:position])
                if inside + length > self.window:
                    entered = max(entered, stays[before][1])
            wire_free = max(wire_free, entered + self.latency) + length / self.rate
            stays.append((entered, wire_free))
        return stays


@dataclass
class Records:
    """Collects records of the plan "mine" and of others; `trace` is what a verdict is made from."""

    workers: int = 2
    priority: PriorityClass = PriorityClass.NORMAL
    chunks: list[ChunkRecord] = field(default_factory=list)
    transfers: list[TransferRecord] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    waits: list[WaitRecord] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    phases: list[PhaseRecord] = field(default_factory=list)
    consumed: dict[int, float] = field(default_factory=dict)

    def transfer(
        self,
        stays: Sequence[tuple[float, float]],
        lengths: Sequence[int],
        *,
        submitted: float = 0.0,
        link: Link = DISK,
        path: str = "/data/lineitem.parquet",
        plan_id: str = "mine",
        operator: str = "scan",
        priority: PriorityClass | None = None,
        credit: CreditPool | None = None,
    ) -> None:
        """A transfer in one chunk for each stay."""
        number = len(self.transfers)
        its = self.priority if priority is None else priority
        common = number, plan_id, operator, its, link
        offset = 0
        for (started, ended), length in zip(stays, lengths, strict=True):
            chunk = ChunkRecord(*common, offset, length, submitted, started, ended, PathTaken.DIRECT, False)
            self.chunks.append(chunk)
            offset += length
        ended = max(stay[1] for stay in stays)
        self.transfers.append(TransferRecord(*common, path, offset, submitted, stays[0][0], ended, None, credit=credit))

    def read(self, device: Device, count: int, length: int = MIB, *, link: Link = DISK, path: str = "/data/a") -> float:
        """As many transfers of slightly different lengths, all submitted at 0; the operator waits for the last."""
        lengths = [length - position % 7 * (length // 16) for position in range(count)]
        stays = device.serve(lengths)
        for stay, size in zip(stays, lengths, strict=True):
            self.transfer([stay], [size], link=link, path=path)
        ended = stays[-1][1]
        self.wait(WaitReason.IO, 0, ended, path)
        return ended

    def job(self, started: float, ended: float, *, operator: str = "join", submitted: float | None = None) -> None:
        ready = started if submitted is None else submitted
        self.jobs.append(JobRecord("mine", operator, "worker-0", ready, started, ended))

    def part(self, started: float, ended: float, operator: str) -> None:
        self.jobs.append(JobRecord("mine", operator, "worker-0", None, started, ended))

    def other_job(self, started: float, ended: float, thread: str, plan_id: str = "other") -> None:
        self.jobs.append(JobRecord(plan_id, "join", thread, started, started, ended))

    def wait(self, reason: WaitReason, started: float, ended: float, what: str = "", nbytes: int = 0) -> None:
        self.waits.append(WaitRecord("mine", "scan", reason, what, nbytes, started, ended))

    def other_plan(self, priority: PriorityClass, plan_id: str = "other") -> None:
        self.phases.append(PhaseRecord(plan_id, Phase.RUN, priority, 0, 100))

    def trace(self, ended: float, *, complete_from: float = 0.0) -> PlanTrace:
        phases = [*self.phases, PhaseRecord("mine", Phase.RUN, self.priority, 0, ended)]
        return PlanTrace(
            plan_id="mine",
            title="",
            priority=self.priority,
            started=0.0,
            ended=ended,
            workers=self.workers,
            history=HistorySnapshot(tuple(self.chunks), tuple(self.transfers), self.consumed, (), complete_from),
            tracing=TracingSnapshot(tuple(self.jobs), tuple(self.waits), tuple(self.memory), tuple(phases), 0.0),
            labels={"scan": "Scan lineitem", "join": "Join"},
            decoders=frozenset({"scan"}),
        )
