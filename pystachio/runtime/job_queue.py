"""Which plan's job a worker takes next: the deciding half of the worker pool, without threads or clocks.

Between classes: the most urgent first. A less urgent job starts only on a worker that nobody more urgent wants, or when
its class is behind its reservation. An urgent job does not wait for less urgent ones that run: it starts beside them,
and the operating system shares the cores (`worker_pool`).

Inside the interactive class the earliest due plan goes first; inside the others start-time fair queueing (Goyal, Vin,
Cheng, SIGCOMM 1996) by seconds of CPU, not by jobs. A job's seconds are known at its end; until then it counts with the
plan's mean. A plan that was idle starts at the present virtual time. Inside a plan jobs go first in, first out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from pystachio.io_scheduler.request import PriorityClass
from pystachio.runtime.plan_entry import PlanEntry

RESERVATIONS: Final = (0.0, 0.10, 0.05)
"""Of the workers' seconds, by class; the links' lanes have the same (`io_scheduler.policy`)."""

RESERVATION_SECONDS = 0.2
"""Service beyond its reservation in about this time counts against a class: a short urgent burst is not interrupted."""

_ASSUMED_SECONDS = 0.005
"""A job of a plan of which none has ended yet."""

_MEMORY = 0.2
"""Weight of the newest job in a plan's mean."""


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

    def expected_start(self) -> float:
        return self.start + self.running * self.mean_seconds


@dataclass(slots=True, eq=False)
class _Lane:
    """One class. `balance` is how many seconds it is behind its reservation, counted while it has jobs that wait."""

    reservation: float
    running: int = 0
    balance: float = 0.0
    virtual_time: float = 0.0


class JobQueue(Generic[J]):
    """At most `workers` jobs of a class and those more urgent run at once, and `workers` in all except that urgent ones
    start beside others. Whoever calls keeps calls apart.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lanes = tuple(_Lane(share) for share in RESERVATIONS)
        self._plans: dict[PlanEntry, _PlanQueue[J]] = {}
        self.waiting = 0
        self.running = 0

    def push(self, job: J) -> None:
        self._queue_of(job.plan).waiting.append(job)
        self.waiting += 1

    def withdraw(self, job: J) -> bool:
        """Take a waiting job back; False when it has started."""
        queue = self._plans.get(job.plan)
        if queue is None or job not in queue.waiting:
            return False
        queue.waiting.remove(job)
        self.waiting -= 1
        self._forget_idle(queue.priority)
        return True

    def clear(self) -> None:
        """Drop all that waits."""
        for queue in self._plans.values():
            queue.waiting.clear()
        self.waiting = 0

    def next(self) -> J | None:
        """The job to start now, if any may: it stays here until `started`."""
        if not self.waiting:
            return None
        for plan, queue in self._plans.items():
            if queue.priority != plan.priority:
                self._move(queue, plan.priority)
        ready = [entry for entry in self._plans.items() if entry[1].waiting and self._may_start(entry[1])]
        return min(ready, key=_rank)[1].waiting[0] if ready else None

    def started(self, job: J) -> None:
        """`next`'s job is on a worker."""
        queue = self._plans[job.plan]
        taken = queue.waiting.popleft()
        assert taken is job, "only the job that is next may start"
        lane = self._lanes[queue.priority]
        lane.virtual_time = max(lane.virtual_time, queue.start)
        lane.running += 1
        queue.running += 1
        self.waiting -= 1
        self.running += 1

    def ended(self, job: J, seconds: float) -> None:
        """The job took `seconds` of CPU."""
        queue = self._plans[job.plan]
        job.plan.worker_seconds += seconds
        queue.running -= 1
        queue.start += seconds
        queue.mean_seconds += _MEMORY * (seconds - queue.mean_seconds)
        self._lanes[queue.priority].running -= 1
        self.running -= 1
        self._settle(queue.priority, seconds)
        self._forget_idle(queue.priority)

    def jobs(self, plan: PlanEntry) -> tuple[int, int]:
        """The plan's jobs that wait for a worker and that are on one."""
        queue = self._plans.get(plan)
        return (0, 0) if queue is None else (len(queue.waiting), queue.running)

    def _queue_of(self, plan: PlanEntry) -> _PlanQueue[J]:
        queue = self._plans.get(plan)
        virtual_time = self._lanes[plan.priority].virtual_time
        if queue is None:
            queue = self._plans[plan] = _PlanQueue(plan.priority, virtual_time)
        elif not queue.waiting and not queue.running:
            # No credit for the time that it was idle.
            queue.start = max(queue.start, virtual_time)
        return queue

    def _move(self, queue: _PlanQueue[J], priority: int) -> None:
        """The plan's class has changed. A virtual time means nothing in another lane."""
        self._lanes[queue.priority].running -= queue.running
        queue.priority = priority
        queue.start = self._lanes[priority].virtual_time
        self._lanes[priority].running += queue.running

    def _may_start(self, queue: _PlanQueue[J]) -> bool:
        lane = self._lanes[queue.priority]
        not_less_urgent = sum(each.running for each in self._lanes[: queue.priority + 1])
        if self.running < self._workers or not_less_urgent < self._workers:
            return True
        return lane.running < self._workers and lane.balance >= queue.mean_seconds

    def _settle(self, served: int, seconds: float) -> None:
        backlogged = {queue.priority for queue in self._plans.values() if queue.waiting}
        for priority, lane in enumerate(self._lanes):
            earned = seconds * lane.reservation if priority in backlogged else 0.0
            spent = seconds if priority == served else 0.0
            least = -lane.reservation * RESERVATION_SECONDS * self._workers
            lane.balance = max(
                least, (lane.balance if priority in backlogged else min(lane.balance, 0.0)) + earned - spent
            )

    def _forget_idle(self, priority: int) -> None:
        """A plan without jobs is remembered while its virtual time is ahead of its lane's: what it took counts when it
        comes back. When all of a lane is idle, its time catches up.
        """
        lane = self._lanes[priority]
        queues = [queue for queue in self._plans.values() if queue.priority == priority]
        if not any(queue.waiting or queue.running for queue in queues):
            lane.virtual_time = max([lane.virtual_time, *(queue.start for queue in queues)])
        for plan, queue in tuple(self._plans.items()):
            if queue.priority == priority and not (queue.waiting or queue.running) and queue.start <= lane.virtual_time:
                del self._plans[plan]


def _rank(entry: tuple[PlanEntry, _PlanQueue[Any]]) -> tuple[int, float, int]:
    plan, queue = entry
    order = plan.due if plan.priority == PriorityClass.INTERACTIVE else queue.expected_start()
    return plan.priority, order, plan.sequence
