"""Whose job comes next: classes, reservations, deadlines, and fairness by seconds."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.job_queue import HELD_PART, HOLD_SECONDS, Hold, JobQueue
from pystachio.runtime.plan_entry import PlanEntry

INTERACTIVE, NORMAL, BATCH = PriorityClass


@dataclass(eq=False)
class Job:
    plan: PlanEntry
    name: str = ""


def entry(name: str, priority: PriorityClass, sequence: int = 0, deadline: float | None = None) -> PlanEntry:
    return PlanEntry(name, priority, sequence, deadline=deadline)


def start(queue: JobQueue[Job], now: float = 0.0) -> Job | None:
    job = queue.next(now)
    if job is not None:
        queue.started(job)
    return job


def serve(queue: JobQueue[Job], rounds: int, seconds: dict[str, float]) -> dict[str, float]:
    """One worker, kept busy: each plan's jobs take its `seconds`; what each plan got."""
    got = dict.fromkeys(seconds, 0.0)
    for _ in range(rounds):
        job = start(queue)
        assert job is not None
        name = job.plan.plan_id
        queue.push(Job(job.plan))
        queue.ended(job, seconds[name])
        got[name] += seconds[name]
    return got


def test_classes_go_in_order_and_jobs_of_a_plan_as_they_came() -> None:
    queue: JobQueue[Job] = JobQueue(6)
    plans = [entry("batch", BATCH, 1), entry("normal", NORMAL, 2), entry("interactive", INTERACTIVE, 3)]
    for number in range(2):
        for plan in plans:
            queue.push(Job(plan, f"{plan.plan_id} {number}"))
    names = [job.name for _ in range(6) if (job := start(queue)) is not None]
    assert names == ["interactive 0", "interactive 1", "normal 0", "normal 1", "batch 0", "batch 1"]
    assert queue.waiting == 0
    assert queue.running == 6


def test_an_urgent_job_starts_beside_less_urgent_ones_but_never_the_other_way_round() -> None:
    queue: JobQueue[Job] = JobQueue(2)
    batch, interactive = entry("batch", BATCH, 1), entry("interactive", INTERACTIVE, 2)
    for _ in range(4):
        queue.push(Job(batch))
    assert [start(queue) is not None for _ in range(3)] == [True, True, False]
    for _ in range(3):
        queue.push(Job(interactive))
    urgent = [start(queue) for _ in range(3)]
    assert [job is not None and job.plan is interactive for job in urgent] == [True, True, False]
    assert queue.running == 4
    assert urgent[0] is not None
    queue.ended(urgent[0], 0.001)
    following = start(queue)
    assert following is not None
    assert following.plan is interactive


def test_the_earliest_deadline_goes_first_and_one_second_counts_where_there_is_none() -> None:
    queue: JobQueue[Job] = JobQueue(4)
    plans = [
        PlanEntry("late", INTERACTIVE, 1, deadline=9.0),
        PlanEntry("none", INTERACTIVE, 2, opened_at=1.0),
        PlanEntry("soon", INTERACTIVE, 3, deadline=1.5),
    ]
    for plan in plans:
        queue.push(Job(plan))
    assert [job.plan.plan_id for _ in plans if (job := start(queue)) is not None] == ["soon", "none", "late"]


def test_an_interactive_plan_without_end_does_not_keep_the_next_one_waiting() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    endless, short = PlanEntry("endless", INTERACTIVE, 1), PlanEntry("short", INTERACTIVE, 2, opened_at=5.0)
    queue.push(Job(endless))
    serve(queue, 60, {"endless": 0.1})
    queue.push(Job(short))
    following = start(queue)
    assert following is not None
    assert following.plan is short


def test_plans_of_a_class_share_seconds_and_not_jobs() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    seconds = {"long": 0.1, "short": 0.002}
    for number, name in enumerate(seconds):
        queue.push(Job(entry(name, BATCH, number)))
    got = serve(queue, 5000, seconds)
    assert abs(got["long"] - got["short"]) <= 0.2


def test_no_credit_for_idling() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    busy, sleeper = entry("busy", NORMAL, 1), entry("sleeper", NORMAL, 2)
    queue.push(Job(busy))
    serve(queue, 100, {"busy": 0.01})
    queue.push(Job(sleeper))
    got = serve(queue, 100, {"busy": 0.01, "sleeper": 0.01})
    assert abs(got["busy"] - got["sleeper"]) <= 0.02


def test_what_a_plan_took_counts_when_it_comes_back_between_two_jobs() -> None:
    """A plan with one job at a time is never in the queue when the next is chosen; it gets its share and no more."""
    queue: JobQueue[Job] = JobQueue(1)
    serial, steady = entry("serial", BATCH, 1), entry("steady", BATCH, 2)
    got = {"serial": 0.0, "steady": 0.0}
    seconds = {"serial": 0.05, "steady": 0.005}
    queue.push(Job(serial))
    queue.push(Job(steady))
    for _ in range(2000):
        job = start(queue)
        assert job is not None
        name = job.plan.plan_id
        if name == "steady":
            queue.push(Job(steady))
        queue.ended(job, seconds[name])
        got[name] += seconds[name]
        if name == "serial":
            queue.push(Job(serial))
    assert abs(got["serial"] - got["steady"]) <= 0.1


def test_reservations_hold_under_urgent_load_and_are_no_credit() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    plans = {name: entry(name, priority, 0) for name, priority in zip(("i", "n", "b"), PriorityClass, strict=True)}
    for plan in plans.values():
        queue.push(Job(plan))
    got = dict.fromkeys(plans, 0.0)
    running: list[Job] = []
    for _ in range(20_000):
        while (job := start(queue)) is not None:
            running.append(job)
            queue.push(Job(job.plan))
        job = running.pop(0)
        queue.ended(job, 0.004)
        got[job.plan.plan_id] += 0.004
    total = sum(got.values())
    assert 0.08 <= got["n"] / total <= 0.12
    assert 0.04 <= got["b"] / total <= 0.06


def test_a_short_urgent_burst_is_not_interrupted() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    batch, interactive = entry("batch", BATCH, 1), entry("interactive", INTERACTIVE, 2)
    queue.push(Job(batch))
    serve(queue, 10, {"batch": 0.01})
    queue.push(Job(interactive))
    assert serve(queue, 20, {"batch": 0.01, "interactive": 0.01})["batch"] == 0.0


def test_a_plan_that_changes_its_class_takes_its_jobs_along() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    first, second = entry("first", BATCH, 1), entry("second", BATCH, 2)
    for plan in (first, first, second):
        queue.push(Job(plan))
    running = start(queue)
    assert running is not None
    second.priority = INTERACTIVE
    beside = start(queue)
    assert beside is not None
    assert beside.plan is second
    second.priority = BATCH
    assert start(queue) is None
    queue.ended(running, 0.01)
    queue.ended(beside, 0.01)
    assert start(queue) is not None


def test_nothing_less_urgent_starts_while_it_is_held_back_except_for_its_reservation() -> None:
    queue: JobQueue[Job] = JobQueue(2)
    batch, interactive = entry("batch", BATCH, 1), entry("interactive", INTERACTIVE, 2)
    queue.push(Job(batch))
    queue.hold.set(0.1, now=0.0)
    assert start(queue, 0.05) is None
    queue.push(Job(interactive))
    assert start(queue, 0.05) is not None
    assert start(queue, 0.1) is not None, "over at its time"
    queue.push(Job(batch))
    queue.hold.set(10.0, now=0.1)
    for _ in range(100):
        queue.push(Job(interactive))
        urgent, reserved = start(queue, 0.12), start(queue, 0.12)
        assert urgent is not None
        if reserved is not None:
            assert reserved.plan is batch
            break
        queue.ended(urgent, 0.01)
    else:
        raise AssertionError("the reservation does not count")


def test_the_hold_ends_when_it_is_taken_back() -> None:
    hold = Hold()
    hold.set(0.1, now=0.0)
    assert hold.is_on(0.05)
    hold.set(0.0, now=0.05)
    assert not hold.is_on(0.05)


def test_held_time_is_bounded_and_earned_back() -> None:
    """Interactive plans one after the other without end: the others get their part of the time."""
    hold = Hold()
    step, held = 0.001, 0.0
    for number in range(20_000):
        now = 10.0 + number * step
        hold.set(now + HOLD_SECONDS, now)
        held += step * hold.is_on(now + step / 2)
    assert abs(held / (20_000 * step) - HELD_PART) < 0.05
    hold = Hold()
    hold.set(1000.0, now=10.0)
    assert hold.until == 10.0 + HOLD_SECONDS, "once, no longer than that"
    hold.set(0.0, now=10.0 + HOLD_SECONDS)
    hold.set(1000.0, now=20.0)
    assert hold.until == 20.0 + HOLD_SECONDS, "rested"


def test_withdrawing() -> None:
    queue: JobQueue[Job] = JobQueue(1)
    plan = entry("plan", NORMAL)
    first, second = Job(plan), Job(plan)
    queue.push(first)
    queue.push(second)
    assert start(queue) is first
    assert queue.jobs(plan) == (1, 1)
    assert not queue.withdraw(first)
    assert queue.withdraw(second)
    assert not queue.withdraw(second)
    queue.ended(first, 0.1)
    assert queue.jobs(plan) == (0, 0)
    assert queue.next(0.0) is None


@given(st.lists(st.floats(0.0001, 0.2), min_size=2, max_size=6), st.integers(1, 4))
def test_plans_of_a_class_never_drift_apart(seconds: list[float], workers: int) -> None:
    queue: JobQueue[Job] = JobQueue(workers)
    times = {str(number): duration for number, duration in enumerate(seconds)}
    for number, name in enumerate(times):
        plan = entry(name, BATCH, number)
        for _ in range(workers + 1):
            queue.push(Job(plan))
    got = dict.fromkeys(times, 0.0)
    running: list[tuple[float, int, Job]] = []
    now, step = 0.0, 0
    for _ in range(400):
        while (job := start(queue)) is not None:
            step += 1
            running.append((now + times[job.plan.plan_id], step, job))
        running.sort(key=lambda each: each[:2])
        now, _, job = running.pop(0)
        queue.push(Job(job.plan))
        queue.ended(job, times[job.plan.plan_id])
        got[job.plan.plan_id] += times[job.plan.plan_id]
    # A plan is ahead by at most the jobs it has on workers and what its first ones were guessed to take.
    assert max(got.values()) - min(got.values()) <= 2 * (workers + 1) * max(seconds) + 0.1


class JobQueueStates(RuleBasedStateMachine):
    """Any order of calls: nothing is lost, started twice or left waiting for an idle worker."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = 2
        self.queue: JobQueue[Job] = JobQueue(self.workers)
        self.plans = [entry(str(number), PriorityClass(number % 3), number) for number in range(6)]
        self.waiting: list[Job] = []
        self.running: list[Job] = []

    @rule(number=st.integers(0, 5))
    def push(self, number: int) -> None:
        job = Job(self.plans[number])
        self.queue.push(job)
        self.waiting.append(job)

    @rule()
    def start(self) -> None:
        job = start(self.queue)
        if job is None:
            assert not self.waiting or len(self.running) >= self.workers
            return
        self.waiting.remove(job)
        self.running.append(job)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.floats(0.0, 0.5))
    def end(self, data: st.DataObject, seconds: float) -> None:
        job = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.queue.ended(job, seconds)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        job = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.queue.withdraw(job)

    @rule(number=st.integers(0, 5), priority=st.sampled_from(PriorityClass))
    def change_class(self, number: int, priority: PriorityClass) -> None:
        self.plans[number].priority = priority

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        assert self.queue.running == len(self.running)
        for plan in self.plans:
            waiting = sum(job.plan is plan for job in self.waiting)
            assert self.queue.jobs(plan) == (waiting, sum(job.plan is plan for job in self.running))


TestJobQueueStates = JobQueueStates.TestCase
