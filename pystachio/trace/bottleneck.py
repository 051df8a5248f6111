"""Which resource bounded a plan: the instants of its time by cause.

`attribution` says what the plan waited for. Here that becomes a cause:

- Computing is *decode* for the part in which operators that read files did their own work, else *compute*.
- Waiting for a worker is *priority* where plans of a higher class held the workers, else *compute*, shared.
- Waiting for a link is *priority* for the part of the device that plans of higher classes had; *memory* when every
  transfer needed credit and the link was held back or empty; *window* when it was held back without credit
  (`LinkUse.is_held_back`); *slow device* when links of the same kind deliver more than twice as much in the median;
  *straggler* when the device was mostly busy with one of at least three files of an operator, whose requests took
  three times as long as the others'; else *storage*, *network* or *bus* by the medium.

Twice and three times: healthy devices of one kind differ by less than half, and requests to one device by less than a
factor of two between their means, queueing included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.io_scheduler.history import ChunkRecord
from pystachio.trace.attribution import Attribution
from pystachio.trace.link_use import LinkUse
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.timeline import Levels, Timeline

SLOW_DEVICE_RATIO = 0.5
STRAGGLER_RATIO = 3.0
STRAGGLER_SHARE = 0.5
"""Of the time in which the link is awaited, for how much at least the device is busy with one file."""
FEWEST_FILES = 3
FEWEST_SECONDS = 0.001
"""A plan that is over sooner has nothing worth a verdict."""


class Bottleneck(StrEnum):
    STORAGE = "storage"
    NETWORK = "network"
    BUS = "bus"
    COMPUTE = "compute"
    DECODE = "decode"
    MEMORY = "memory"
    PRIORITY = "priority"
    SLOW_DEVICE = "slow device"
    STRAGGLER = "straggler"
    WINDOW = "window"
    CLIENT = "client"
    NONE = "none"


_BY_MEDIUM: Mapping[str, Bottleneck] = {"network": Bottleneck.NETWORK, "pcie": Bottleneck.BUS}


class Cause(NamedTuple):
    """`resource` names the link, file, operator or plan behind the bottleneck, as it is named in the records."""

    bottleneck: Bottleneck
    resource: str


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """`shares` of the plan's time by cause, which add up to one; `straggler_ratio` and `peer_rate` by link for words.

    `held_up_by` are the seconds that the plan's transfers and jobs waited behind those of another plan and class.
    """

    shares: Mapping[Cause, float]
    held_up_by: Mapping[tuple[str, PriorityClass], float]
    busy_by_operator: Mapping[str, float]
    stragglers: Mapping[Link, tuple[str, float]]
    peer_rates: Mapping[Link, float]

    def of(self, bottleneck: Bottleneck) -> float:
        return sum(share for cause, share in self.shares.items() if cause.bottleneck is bottleneck)

    def ranked(self) -> list[tuple[Bottleneck, float]]:
        """Bottlenecks by their share, the largest first."""
        return sorted(((each, self.of(each)) for each in Bottleneck), key=lambda entry: -entry[1])

    def main_resource(self, bottleneck: Bottleneck) -> str:
        """What had most of the bottleneck's share."""
        found = {cause.resource: share for cause, share in self.shares.items() if cause.bottleneck is bottleneck}
        return max(found, key=lambda resource: found[resource], default="")


def causes(trace: PlanTrace, found: Attribution) -> Causes:
    """Give every instant of the plan's time to its cause."""
    collected = _Collected(trace, found)
    collected.computing()
    collected.queued()
    collected.transfers()
    for operator, part in _parts(_waiting_for_memory(trace)).items():
        collected.add(Bottleneck.MEMORY, operator, found.share(found.memory) * part)
    collected.add(Bottleneck.CLIENT, "", found.share(found.unread))
    collected.add(Bottleneck.NONE, "", max(0.0, 1.0 - sum(collected.shares.values())))
    return Causes(
        shares=collected.shares,
        held_up_by=collected.held_up_by,
        busy_by_operator=collected.busy,
        stragglers=collected.stragglers,
        peer_rates=collected.peer_rates,
    )


class _Collected:
    def __init__(self, trace: PlanTrace, found: Attribution) -> None:
        self.shares: dict[Cause, float] = {}
        self.held_up_by: dict[tuple[str, PriorityClass], float] = {}
        self.busy = _busy_by_operator(trace)
        self.peer_rates = {link: rate for link in found.links if (rate := _peer_rate(link, found.links)) is not None}
        self.stragglers: dict[Link, tuple[str, float]] = {}
        self._trace = trace
        self._found = found

    def add(self, bottleneck: Bottleneck, resource: str, share: float) -> None:
        if share > 0:
            cause = Cause(bottleneck, resource)
            self.shares[cause] = self.shares.get(cause, 0.0) + share

    def computing(self) -> None:
        share = self._found.share(self._found.computing)
        for operator, part in _parts(self.busy).items():
            decodes = operator in self._trace.decoders
            self.add(Bottleneck.DECODE if decodes else Bottleneck.COMPUTE, operator, share * part)

    def queued(self) -> None:
        """Jobs were ready and none ran: the workers were others'."""
        jobs, queued = self._found.jobs, self._found.queued
        total = np.maximum(jobs.of_others, 1.0)
        left = queued.astype(float)
        for (plan_id, priority), running in jobs.others.items():
            part = np.where(queued, running / total, 0.0)
            left -= part
            share = self._hold_up(plan_id, priority, part)
            went_first = priority < self._trace.priority
            self.add(Bottleneck.PRIORITY if went_first else Bottleneck.COMPUTE, plan_id, share)
        self.add(Bottleneck.NONE, "", self._found.share(np.maximum(left, 0.0)))

    def transfers(self) -> None:
        for link, use in self._found.links.items():
            if link in self._found.awaited:
                self._link(use, self._found.awaited[link])

    def _link(self, use: LinkUse, awaited: Levels) -> None:
        blocked = (use.waiting > 0) & (awaited > 0)
        inside = np.maximum(use.inside, 1.0)
        ahead = self._found.share(np.where(blocked, awaited * use.ahead / inside, 0.0))
        for (plan_id, priority), levels in use.others.items():
            share = self._hold_up(plan_id, priority, np.where(blocked, awaited * levels / inside, 0.0))
            if priority < self._trace.priority:
                self.add(Bottleneck.PRIORITY, plan_id, share)
        parked = np.where(blocked & (use.inside == 0), awaited, 0.0)
        rest = self._found.share(awaited) - ahead
        if _needs_credit(self._trace, use.link):
            share = rest if use.is_held_back else self._found.share(parked)
            self.add(Bottleneck.MEMORY, _credit_pool(self._trace, use.link), share)
            rest -= share
        self.add(*self._at_link(use, awaited), rest)

    def _at_link(self, use: LinkUse, awaited: Levels) -> Cause:
        """Why the link itself did not deliver more."""
        link = use.link
        straggler = _straggler(self._trace, self._found.timeline, link, awaited)
        if straggler is not None:
            self.stragglers[link] = straggler
            return Cause(Bottleneck.STRAGGLER, straggler[0])
        peers = self.peer_rates.get(link)
        if peers is not None and use.rate < SLOW_DEVICE_RATIO * peers:
            return Cause(Bottleneck.SLOW_DEVICE, str(link))
        if use.is_held_back:
            return Cause(Bottleneck.WINDOW, str(link))
        return Cause(_BY_MEDIUM.get(link.medium, Bottleneck.STORAGE), str(link))

    def _hold_up(self, plan_id: str, priority: PriorityClass, levels: Levels) -> float:
        share = self._found.share(levels)
        if share > 0:
            who = plan_id, priority
            self.held_up_by[who] = self.held_up_by.get(who, 0.0) + share * self._trace.seconds
        return share


def _busy_by_operator(trace: PlanTrace) -> dict[str, float]:
    """Seconds of each operator's own work: a job's less those of the parts inside it, which others report."""
    busy: dict[str, float] = {}
    parts: dict[str, list[tuple[float, float]]] = {}
    own = [job for job in trace.tracing.jobs if trace.is_own(job)]
    on_device = any(job.on_device for job in own)
    for job in own:
        if job.submitted is None:
            parts.setdefault(job.thread, []).append((job.started, job.ended))
        if job.on_device == on_device or job.submitted is None:
            busy[job.operator] = busy.get(job.operator, 0.0) + job.ended - job.started
    inside = {thread: np.asarray(sorted(spans)) for thread, spans in parts.items()}
    for job in own:
        if job.submitted is not None and not job.on_device and job.thread in inside:
            spans = inside[job.thread]
            first, last = np.searchsorted(spans[:, 0], (job.started - 1e-6, job.ended))
            busy[job.operator] = busy.get(job.operator, 0.0) - float(np.diff(spans[first:last], axis=1).sum())
    return {operator: seconds for operator, seconds in busy.items() if seconds > 0}


def _waiting_for_memory(trace: PlanTrace) -> dict[str, float]:
    waiting: dict[str, float] = {}
    for wait in trace.tracing.waits:
        if wait.plan_id == trace.plan_id and wait.reason == "memory":
            waiting[wait.operator] = waiting.get(wait.operator, 0.0) + wait.ended - wait.started
    return waiting


def _parts(amounts: Mapping[str, float]) -> dict[str, float]:
    """The amounts as parts of their sum; a single unnamed one where there are none."""
    total = sum(amounts.values())
    return {name: amount / total for name, amount in amounts.items()} if total > 0 else {"": 1.0}


def _peer_rate(link: Link, links: Mapping[Link, LinkUse]) -> float | None:
    """What the other links of the same kind deliver while they are busy, in the median."""
    rates = [
        use.rate
        for other, use in links.items()
        if other != link and (other.medium, other.direction) == (link.medium, link.direction)
    ]
    return median(rates) if rates else None


def _straggler(trace: PlanTrace, timeline: Timeline, link: Link, awaited: Levels) -> tuple[str, float] | None:
    """The file that the device is busy with while the plan waits, and how much longer its requests took.

    Files are compared with those that the same operator reads: what different operators ask for differs.
    """
    paths = {each.transfer_id: each.path for each in trace.history.transfers if trace.is_own(each)}
    chunks: dict[tuple[str, str], list[ChunkRecord]] = {}
    for chunk in trace.history.chunks:
        if chunk.link == link and trace.is_own(chunk):
            chunks.setdefault((chunk.operator, paths.get(chunk.transfer_id, "")), []).append(chunk)
    inside = {file: timeline.count((chunk.started_at, chunk.ended_at) for chunk in its) for file, its in chunks.items()}
    together = np.maximum(sum(inside.values(), timeline.none()), 1.0)
    shares = {file: float((awaited * levels / together).sum()) for file, levels in inside.items()}
    slowest = max(shares, key=lambda file: shares[file], default=None)
    if slowest is None or shares[slowest] < STRAGGLER_SHARE * float(awaited.sum()):
        return None
    siblings = [its for file, its in chunks.items() if file != slowest and file[0] == slowest[0]]
    if len(siblings) + 1 < FEWEST_FILES:
        return None
    ratio = _mean_seconds(chunks[slowest]) / _mean_seconds([chunk for its in siblings for chunk in its])
    return (slowest[1], ratio) if ratio >= STRAGGLER_RATIO else None


def _mean_seconds(chunks: Sequence[ChunkRecord]) -> float:
    return max(fmean(chunk.ended_at - chunk.started_at for chunk in chunks), 1e-9)


def _needs_credit(trace: PlanTrace, link: Link) -> bool:
    own = [each for each in trace.history.transfers if trace.is_own(each) and each.link == link]
    return bool(own) and all(each.credit is not None for each in own)


def _credit_pool(trace: PlanTrace, link: Link) -> str:
    pools = (each.credit for each in trace.history.transfers if trace.is_own(each) and each.link == link)
    return next((f"{pool.tier} credit of stage {pool.stage}" for pool in pools if pool is not None), "")
