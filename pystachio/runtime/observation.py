"""Gathers what a node does at this moment: who has what, and who waits for what behind whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pystachio.io_scheduler.activity import IoActivity, LinkUse
from pystachio.io_scheduler.core.events import LinkStatistics
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.activity import LinkActivity, NodeActivity, PlanActivity, Reason, State, Wait
from pystachio.runtime.memory import Memory, PlanMemory, Tier
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.worker_pool import WorkerPool

MOST_BEHIND = 3
"""Plans that are named as being in front."""

LONGEST_LABEL = 100
_LABEL_BEGINNING = 10 * LONGEST_LABEL
"""Of a statement that may be megabytes long, only so many characters are looked at."""


class ObservedPlan(NamedTuple):
    entry: PlanEntry
    label: str
    rows: int


class _Moment(NamedTuple):
    """What all plans do together: jobs on workers and memory by plan, and by tier the plans that hold most of it."""

    now: float
    computing: Mapping[str, int]
    memory: Mapping[str, Mapping[Tier, PlanMemory]]
    holders: Mapping[Tier, Sequence[str]]
    io: IoActivity


def observe(
    now: float, plans: Sequence[ObservedPlan], workers: WorkerPool, memory: Memory, io: IoActivity
) -> NodeActivity:
    """On the node's loop; some tens of microseconds per plan."""
    jobs = {plan.entry.plan_id: workers.jobs(plan.entry) for plan in plans}
    levels = {plan.entry.plan_id: memory.plan(plan.entry) for plan in plans}
    computing = {plan_id: running for plan_id, (_, running) in jobs.items() if running}
    moment = _Moment(now, computing, levels, _holders(levels), io)
    pool = workers.statistics()
    host = memory.statistics()[Tier.HOST]
    return NodeActivity(
        at=now,
        workers=pool.workers,
        busy_workers=pool.running,
        jobs_waiting=pool.queued,
        memory_used=host.used,
        memory_budget=host.budget,
        plans=tuple(_plan_activity(plan, jobs[plan.entry.plan_id], moment) for plan in plans),
        links=tuple(_link_activity(link, io.moved.get(link.link, 0)) for link in io.links),
    )


def short_label(text: str) -> str:
    """One line of bounded length that can be encoded: what people recognise a statement or program by."""
    words = " ".join(text[:_LABEL_BEGINNING].split())
    if len(text) > _LABEL_BEGINNING or len(words) > LONGEST_LABEL:
        words = f"{words[: LONGEST_LABEL - 1]}…"
    return words.encode(errors="replace").decode()


def _plan_activity(plan: ObservedPlan, jobs: tuple[int, int], moment: _Moment) -> PlanActivity:
    entry = plan.entry
    waiting, running = jobs
    return PlanActivity(
        plan_id=entry.plan_id,
        label=short_label(plan.label),
        priority=PriorityClass(entry.priority).name.lower(),
        deadline=None if entry.deadline is None else entry.deadline - moment.now,
        seconds=moment.now - entry.opened_at,
        rows=plan.rows,
        state=_state(entry.plan_id, running, moment.io.uses),
        waits=(
            *_waits_for_links(entry.plan_id, moment.io.uses),
            *_waits_for_workers(entry.plan_id, waiting, moment.computing),
            *_waits_for_memory(entry.plan_id, moment),
            *([Wait(Reason.NODE, "node")] if entry.remote else []),
            *([Wait(Reason.CLIENT, "client")] if entry.unread > entry.remote else []),
        ),
        worker_seconds=entry.worker_seconds,
        jobs_running=running,
        jobs_waiting=waiting,
        memory_bytes=sum(level.held for level in moment.memory[entry.plan_id].values()),
        links={str(link): nbytes for link, nbytes in moment.io.moved_by.get(entry.plan_id, {}).items()},
    )


def _state(plan_id: str, running: int, uses: Sequence[LinkUse]) -> State:
    if running:
        return State.COMPUTING
    if any(use.plan_id == plan_id and use.inside_bytes for use in uses):
        return State.MOVING
    return State.WAITING


def _waits_for_links(plan_id: str, uses: Sequence[LinkUse]) -> list[Wait]:
    """The links of which none serves the plan at the moment."""
    waits = []
    for use in uses:
        if use.plan_id == plan_id and use.waiting_bytes and not use.inside_bytes:
            served = [other for other in uses if other.link == use.link and other.inside_bytes]
            served.sort(key=lambda other: -other.inside_bytes)
            behind = tuple(other.plan_id for other in served[:MOST_BEHIND])
            waits.append(Wait(Reason.TRANSFER, str(use.link), use.waiting_bytes, behind))
    return waits


def _waits_for_workers(plan_id: str, waiting: int, computing: Mapping[str, int]) -> list[Wait]:
    if not waiting or plan_id in computing:
        return []
    return [Wait(Reason.WORKER, "worker", 0, tuple(computing)[:MOST_BEHIND])]


def _waits_for_memory(plan_id: str, moment: _Moment) -> list[Wait]:
    waits = []
    for tier, level in moment.memory[plan_id].items():
        if level.waiting:
            others = [holder for holder in moment.holders.get(tier, ()) if holder != plan_id]
            waits.append(Wait(Reason.MEMORY, tier.value, level.waiting, tuple(others[:MOST_BEHIND])))
    return waits


def _holders(memory: Mapping[str, Mapping[Tier, PlanMemory]]) -> dict[Tier, list[str]]:
    """By tier the plans that hold memory, the ones with most first."""
    holders: dict[Tier, list[tuple[int, str]]] = {}
    for plan_id, tiers in memory.items():
        for tier, level in tiers.items():
            if level.held:
                holders.setdefault(tier, []).append((-level.held, plan_id))
    return {tier: [plan_id for _, plan_id in sorted(found)] for tier, found in holders.items()}


def _link_activity(link: LinkStatistics, moved: int) -> LinkActivity:
    return LinkActivity(
        link=str(link.link),
        nbytes=moved,
        outstanding_bytes=link.outstanding_bytes,
        waiting_bytes=link.waiting_bytes,
        window_bytes=link.window_bytes,
        bytes_per_second=link.bytes_per_second,
    )
