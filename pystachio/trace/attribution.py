"""What a plan waited for at each instant of its time.

Each instant goes to one activity, by the first rule that holds:

1. *Computing*: the plan's jobs run and no worker is idle, or more of its jobs are ready, or nothing else is awaited.
   As long as all workers are busy, bytes that arrive sooner would not help: reading ahead is hidden behind computing.
2. *Queued for a worker*: jobs are ready, and all workers run those of others.
3. *Unread*: results lie in the channel to the client, and neither a job runs nor a transfer is under way. Memory waits
   behind it, if there are any, end when the client reads.
4. *Memory*: somebody waits for memory, and none of its transfers waits in a link's queue. Where one does, the link has
   all the work it can take, and more memory would only make the queue longer.
5. *Transfer*: transfers are under way. A worker is idle, so the bytes are what is missing.
6. *Computing*, on fewer workers than there are; 7. *hand-over*: nothing that a resource limits.

An instant of transfers goes to the links whose files operators wait for at that time; where none says so, to the link
that ends the plan's transfers last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.runtime.tracing import JobRecord, WaitReason
from pystachio.trace.link_use import LinkUse, link_use
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.timeline import Levels, Span, Timeline

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class JobUse:
    """`own`, `queued` and those of others as levels over the plan's time; `device` is work on a device's stream."""

    own: Levels
    queued: Levels
    device: Levels
    others: Mapping[tuple[str, PriorityClass], Levels]

    @property
    def of_others(self) -> Levels:
        return sum(self.others.values(), np.zeros(len(self.own)))

    def as_urgent(self, priority: PriorityClass) -> Levels:
        """Others' jobs of this class or a higher one: the only ones that a plan of the class has to make room for."""
        urgent = [running for (_, theirs), running in self.others.items() if theirs <= priority]
        return sum(urgent, np.zeros(len(self.own)))


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """The activity of each instant, as masks that exclude each other, and what they were found from.

    `awaited` divides the instants of `transfer` among links: levels that add up to one at each of them.
    """

    timeline: Timeline
    computing: Mask
    queued: Mask
    unread: Mask
    memory: Mask
    transfer: Mask
    jobs: JobUse
    links: Mapping[Link, LinkUse]
    awaited: Mapping[Link, Levels]

    def share(self, levels: Levels | Mask) -> float:
        """The part of the plan's time, where `levels` say how much of each instant counts."""
        return float(np.mean(levels))


def attribute(trace: PlanTrace) -> Attribution:
    """Apply the rules above to the plan's time, which must not be empty."""
    timeline = Timeline(trace.started, trace.ended)
    jobs = _job_use(trace, timeline)
    waits = {reason: _waits(trace, timeline, reason) for reason in WaitReason}
    links = _links(trace, timeline)
    under_way = timeline.count(_spans_of_transfers(trace)) > 0
    runs = jobs.own > 0
    is_queueing = np.zeros(len(timeline.instants), dtype=bool)
    for use in links.values():
        is_queueing |= use.waiting > 0
    all_busy = jobs.own + jobs.as_urgent(trace.priority) >= trace.workers
    awaited = (waits[WaitReason.IO] > 0) | (waits[WaitReason.MEMORY] > 0)
    rules = [
        (jobs.device > 0) | (runs & (all_busy | (jobs.queued > 0) | ~awaited)),
        ~runs & (jobs.queued > 0),
        ~runs & (waits[WaitReason.CLIENT] > 0) & ~under_way,
        (waits[WaitReason.MEMORY] > 0) & ~is_queueing,
        under_way,
        runs,
    ]
    first = np.select(rules, list(range(len(rules))), default=len(rules))
    transfer = first == 4
    return Attribution(
        timeline=timeline,
        computing=(first == 0) | (first == 5),
        queued=first == 1,
        unread=first == 2,
        memory=first == 3,
        transfer=transfer,
        jobs=jobs,
        links=links,
        awaited=_awaited(trace, timeline, transfer),
    )


def _job_use(trace: PlanTrace, timeline: Timeline) -> JobUse:
    whole = [job for job in trace.tracing.jobs if job.submitted is not None]
    own = [job for job in whole if trace.is_own(job) and not job.on_device]
    classes = {phase.plan_id: PriorityClass(phase.priority) for phase in trace.tracing.phases}
    groups: dict[tuple[str, PriorityClass], list[Span]] = {}
    for job in whole:
        if not trace.is_own(job) and not job.on_device:
            # A plan that still runs has no record of its class yet: it does not count as more urgent.
            who = job.plan_id, classes.get(job.plan_id, trace.priority)
            groups.setdefault(who, []).append((job.started, job.ended))
    return JobUse(
        own=timeline.count((job.started, job.ended) for job in own),
        queued=timeline.count(_queue_span(job) for job in own),
        device=timeline.count((job.started, job.ended) for job in whole if trace.is_own(job) and job.on_device),
        others={who: timeline.count(spans) for who, spans in groups.items()},
    )


def _queue_span(job: JobRecord) -> Span:
    return job.started if job.submitted is None else job.submitted, job.started


def _waits(trace: PlanTrace, timeline: Timeline, reason: WaitReason) -> Levels:
    return timeline.count(
        (wait.started, wait.ended)
        for wait in trace.tracing.waits
        if wait.plan_id == trace.plan_id and wait.reason is reason
    )


def _links(trace: PlanTrace, timeline: Timeline) -> dict[Link, LinkUse]:
    used = {chunk.link for chunk in trace.history.chunks if trace.is_own(chunk)}
    return {
        link: link_use(
            link,
            [chunk for chunk in trace.history.chunks if chunk.link == link],
            timeline,
            trace.plan_id,
            trace.priority,
        )
        for link in used
    }


def _spans_of_transfers(trace: PlanTrace) -> list[Span]:
    return [
        (transfer.submitted_at, transfer.ended_at) for transfer in trace.history.transfers if trace.is_own(transfer)
    ]


def _awaited(trace: PlanTrace, timeline: Timeline, transfer: Mask) -> dict[Link, Levels]:
    """Which link is awaited at each instant of `transfer`."""
    spans: dict[Link, list[Span]] = {}
    links: dict[str, Link] = {}
    for each in trace.history.transfers:
        if trace.is_own(each):
            spans.setdefault(each.link, []).append((each.submitted_at, each.ended_at))
            links[each.path] = each.link
    waits: dict[Link, list[Span]] = {}
    for wait in trace.tracing.waits:
        if wait.plan_id == trace.plan_id and wait.reason is WaitReason.IO and wait.what in links:
            waits.setdefault(links[wait.what], []).append((wait.started, wait.ended))
    waiting = {link: timeline.count(waits.get(link, ())) for link in spans}
    latest = {link: timeline.latest_end(each) for link, each in spans.items()}
    last = np.max(list(latest.values()), axis=0) if latest else timeline.none()
    are_last = {link: ((latest[link] == last) & (last > timeline.instants)).astype(float) for link in spans}
    total = sum(waiting.values(), timeline.none())
    weights = {link: np.where(total > 0, waiting[link], are_last[link]) for link in spans}
    together = np.maximum(sum(weights.values(), timeline.none()), 1.0)
    return {link: np.where(transfer, weight / together, 0.0) for link, weight in weights.items()}
