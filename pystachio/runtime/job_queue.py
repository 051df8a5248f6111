"""Which plan's job a worker takes next: the deciding half of the worker pool, without threads or clocks.

Between classes: the most urgent first. A less urgent job starts only on a worker that nobody more urgent wants, or when
its class is behind its reservation. An urgent job does not wait for less urgent ones that run: it starts beside them.
And at the beginning of an interactive plan's life nothing less urgent starts even on idle workers (`Hold`): threads of
one process share the interpreter, and a job that began between two of the plan's would slow the second one down.

Inside the interactive class the earliest due plan goes first; inside the others start-time fair queueing (Goyal, Vin,
Cheng, SIGCOMM 1996) by seconds of CPU, not by jobs. A job's seconds are known at its end; until then it counts with the
plan's mean. A plan that was idle starts at the present virtual time. Inside a plan jobs go first in, first out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.plan_entry import PlanEntry

RESERVATIONS: Final = (0.0, 0.10, 0.05)
"""Of the workers' seconds, by class; the links' lanes have the same (`io_scheduler.core.policy`)."""

RESERVATION_SECONDS = 0.2
"""Service beyond its reservation in about this time counts against a class: a short urgent burst is not interrupted."""

_ASSUMED_SECONDS = 0.005
"""A job of a plan of which none has ended yet."""

_MEMORY = 0.2
"""Weight of the newest job in a plan's mean."""


HOLD_SECONDS = 0.15
"""So long after its start an interactive plan has the workers to itself."""

HELD_PART = 0.8
"""Of any longer time: where interactive plans follow each other without end, the others get the rest."""


class Hold:
    """Until when less urgent jobs do not start. A budget bounds the part of time in which they do not."""

    def __init__(self) -> None:
        self._until = 0.0
        self._settled_at = 0.0
        self._budget = HOLD_SECONDS

    def set(self, until: float, now: float) -> None:
        """Hold until then and no longer, or for as long as the budget lasts."""
        self._settle(now)
        self._until = min(until, now + self._budget)

    def is_on(self, now: float) -> bool:
        return now < self._until

    @property
    def until(self) -> float:
        return self._until

    def _settle(self, now: float) -> None:
        held = min(max(0.0, self._until - self._settled_at), now - self._settled_at)
        earned = (now - self._settled_at - held) * HELD_PART / (1.0 - HELD_PART)
        self._budget = max(0.0, min(HOLD_SECONDS, self._budget - held + earned))
        self._settled_at = now


class Ranked(Protocol):
    @property
    def plan(self) -> PlanEntry: ...


J = TypeVar("J", bound=Ranked)


@dataclass(slots=True, eq=False)
class _PlanQueue(Generic[J]):
    """A plan's jobs, in the class `priority`. `start` is its virtual time: seconds served, and idle times given up."""

    priority: int
    start: float
    waiting: deque[J] = field(default_factory=deque)
    running: int = 0
    mean_seconds: float = _ASSUMED_SECONDS


@dataclass(slots=True, eq=False)
class _Lane:
    """One class. `balance` is how many seconds it is behind its reservation, counted while it has jobs that wait;
    `latest` the furthest virtual time of its plans.
    """

    reservation: float
    waiting: int = 0
    running: int = 0
    balance: float = 0.0
    virtual_time: float = 0.0
    latest: float = 0.0


class JobQueue(Generic[J]):
    """At most `workers` jobs of a class and those more urgent run at once, and `workers` in all except that urgent ones
    start beside others. Whoever calls keeps calls apart.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lanes = tuple(_Lane(share) for share in RESERVATIONS)
        self._plans: dict[PlanEntry, _PlanQueue[J]] = {}
        self.hold = Hold()
        self.waiting = 0
        self.running = 0

    def push(self, job: J) -> None:
        plan = job.plan
        queue = self._plans.get(plan)
        lane = self._lanes[plan.priority]
        if queue is None:
            queue = self._plans[plan] = _PlanQueue(plan.priority, lane.virtual_time)
        elif queue.priority != plan.priority:
            self._move(queue, plan.priority)
        elif not queue.waiting and not queue.running and queue.start < lane.virtual_time:
            # No credit for the time that it was idle.
            queue.start = lane.virtual_time
        queue.waiting.append(job)
        lane.waiting += 1
        self.waiting += 1

    def withdraw(self, job: J) -> bool:
        """Take a waiting job back; False when it has started."""
        queue = self._plans.get(job.plan)
        if queue is None or job not in queue.waiting:
            return False
        queue.waiting.remove(job)
        lane = self._lanes[queue.priority]
        lane.waiting -= 1
        self.waiting -= 1
        self._catch_up(lane)
        return True

    def clear(self) -> None:
        """Drop all that waits."""
        for queue in self._plans.values():
            queue.waiting.clear()
        for lane in self._lanes:
            lane.waiting = 0
        self.waiting = 0

    def next(self, now: float) -> J | None:
        """The job to start now, if any may: it stays here until `started`."""
        if not self.waiting:
            return None
        best: _PlanQueue[J] | None = None
        best_rank = (0, 0.0, 0)
        is_held = self.hold.is_on(now)
        past: list[PlanEntry] = []
        for plan, queue in self._plans.items():
            if queue.priority != plan.priority:
                self._move(queue, plan.priority)
            if not queue.waiting:
                if not queue.running and queue.start <= self._lanes[queue.priority].virtual_time:
                    past.append(plan)
                continue
            is_urgent = plan.priority == PriorityClass.INTERACTIVE
            order = plan.due if is_urgent else queue.start + queue.running * queue.mean_seconds
            rank = (plan.priority, order, plan.sequence)
            if (best is None or rank < best_rank) and self._may_start(queue, is_held):
                best, best_rank = queue, rank
        for plan in past:
            del self._plans[plan]
        return None if best is None else best.waiting[0]

    def started(self, job: J) -> None:
        """`next`'s job is on a worker."""
        queue = self._plans[job.plan]
        taken = queue.waiting.popleft()
        assert taken is job, "only the job that is next may start"
        lane = self._lanes[queue.priority]
        lane.virtual_time = max(lane.virtual_time, queue.start)
        lane.waiting -= 1
        lane.running += 1
        queue.running += 1
        self.waiting -= 1
        self.running += 1

    def ended(self, job: J, seconds: float) -> None:
        """The job took `seconds` of CPU."""
        queue = self._plans[job.plan]
        lane = self._lanes[queue.priority]
        job.plan.worker_seconds += seconds
        queue.running -= 1
        queue.start += seconds
        queue.mean_seconds += _MEMORY * (seconds - queue.mean_seconds)
        lane.latest = max(lane.latest, queue.start)
        lane.running -= 1
        self.running -= 1
        self._settle(lane, seconds)
        self._catch_up(lane)

    def jobs(self, plan: PlanEntry) -> tuple[int, int]:
        """The plan's jobs that wait for a worker and that are on one."""
        queue = self._plans.get(plan)
        return (0, 0) if queue is None else (len(queue.waiting), queue.running)

    def _move(self, queue: _PlanQueue[J], priority: int) -> None:
        """The plan's class has changed. A virtual time means nothing in another lane."""
        left, entered = self._lanes[queue.priority], self._lanes[priority]
        left.running -= queue.running
        left.waiting -= len(queue.waiting)
        entered.running += queue.running
        entered.waiting += len(queue.waiting)
        queue.priority = priority
        queue.start = entered.virtual_time
        self._catch_up(left)

    def _may_start(self, queue: _PlanQueue[J], is_held: bool) -> bool:
        if not is_held or queue.priority == PriorityClass.INTERACTIVE:
            if self.running < self._workers:
                return True
            not_less_urgent = sum(lane.running for lane in self._lanes[: queue.priority + 1])
            if not_less_urgent < self._workers:
                return True
        lane = self._lanes[queue.priority]
        return lane.running < self._workers and lane.balance >= queue.mean_seconds

    def _settle(self, served: _Lane, seconds: float) -> None:
        for lane in self._lanes:
            earned = seconds * lane.reservation if lane.waiting else 0.0
            spent = seconds if lane is served else 0.0
            least = -lane.reservation * RESERVATION_SECONDS * self._workers
            kept = lane.balance if lane.waiting else min(lane.balance, 0.0)
            lane.balance = max(least, kept + earned - spent)

    def _catch_up(self, lane: _Lane) -> None:
        """When all plans of a lane are idle, its time goes on to theirs. Until then what a plan took counts when it
        comes back; one whose time is past is forgotten by `next`.
        """
        if not lane.waiting and not lane.running:
            lane.virtual_time = max(lane.virtual_time, lane.latest)
