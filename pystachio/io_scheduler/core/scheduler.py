"""The scheduler's core: facts in, orders out, no input or output of its own.

The same code runs under the asyncio service, in simulation and in tests. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from pystachio.errors import Cancelled, PystachioError, ResourceExhausted
from pystachio.io_scheduler.core import books
from pystachio.io_scheduler.core.agenda import Agenda
from pystachio.io_scheduler.core.clock import SteadyClock
from pystachio.io_scheduler.core.events import (
    Action,
    CancelChunks,
    ChunkFailed,
    ChunksCompleted,
    CompleteTransfer,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    LeaseGranted,
    LinkOpened,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PoolOpened,
    PoolStatistics,
    PriorityChanged,
    SchedulerStatistics,
    TimePassed,
    TransfersBoosted,
    TransfersCancelled,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.core.flow import Line
from pystachio.io_scheduler.core.late_chunks import CHECK_SECONDS, LateChunks, timed_out
from pystachio.io_scheduler.core.leases import Leases, Rank
from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.policy import POLICIES, Policy
from pystachio.io_scheduler.core.progress import Plan, TransferProgress
from pystachio.io_scheduler.core.request import CreditPool, Extent, Link, Transfer
from pystachio.io_scheduler.core.resources import CreditBudget, Resource
from pystachio.io_scheduler.core.stalls import STALLED_SECONDS


class Scheduler:
    """One queue per link, never a global one: a slow device must not slow a healthy one."""

    def __init__(self, policy: Policy = POLICIES["pystachio"]) -> None:
        self._policy = policy
        self._clock = SteadyClock()
        self._now = 0.0
        self._checked_at = 0.0
        self._links: dict[Link, LinkQueue] = {}
        self._pools: dict[CreditPool, CreditBudget] = {}
        self._plans: dict[str, Plan] = {}
        self._transfers: dict[int, TransferProgress] = {}
        self._agenda = Agenda()
        self._late = LateChunks()
        self._leases = Leases()
        self._sequence = 0

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take a fact into account and say what is to be done; `now` in seconds of any monotonic clock."""
        agenda = self._agenda
        if agenda.inside:
            self._now = now = self._clock.read(now, True)
        else:
            self._now = self._checked_at = now = self._clock.read(now, False)
        actions: list[Action] = []
        if type(event) is ChunksCompleted:
            self._complete_chunks(event[0], actions, now)
        else:
            self._take(event, actions, now)
        if agenda.freed or agenda.unfilled:
            self._share(actions, now)
        return actions

    def _take(self, event: Event, actions: list[Action], now: float) -> None:
        match event:
            case TransfersSubmitted(transfers):
                self._submit(transfers, actions, now)
            case CreditReleased(pool, nbytes, plan_id):
                self._release_credit(self._pools[pool], plan_id, nbytes)
            case ChunkFailed(transfer_id, offset, error):
                self._fail_chunk(transfer_id, offset, error, actions, now)
            case TransfersCancelled(transfer_ids):
                self._abandon((self._transfers.get(each) for each in transfer_ids), actions, now)
            case TransfersBoosted():
                self._boost(event, now)
            case TimePassed():
                self._pass_time(actions, now)
            case PlanOpened():
                self._open_plan(event, now)
            case PlanCancelled(plan_id):
                self._cancel_plan(plan_id, actions, now)
            case PlanClosed(plan_id):
                self._close_plan(plan_id, actions, now)
            case PriorityChanged():
                self._change_priority(event, now)
            case LinkOpened(link, limits):
                assert link not in self._links, "a link is opened once"
                self._links[link] = LinkQueue(limits, self._policy, self._agenda)
            case PoolOpened(pool, nbytes):
                self._open_pool(pool, nbytes, actions, now)
            case LeaseGranted(lease):
                self._rank(self._leases.take(lease, self._plans, now), now)
            case ChunksCompleted(chunks):
                self._complete_chunks(chunks, actions, now)
            case _:
                assert_never(event)

    def next_wake(self) -> float | None:
        """When `TimePassed` is due, on the clock of `handle`; None while nothing can become late."""
        wake = self._checked_at + CHECK_SECONDS if self._agenda.inside else None
        for due in (self._late.next_retry(), self._leases.ends):
            if due is not None and (wake is None or due < wake):
                wake = due
        return None if wake is None else self._clock.outer(wake)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            plans=len(self._plans),
            transfers=len(self._transfers),
            links=tuple(books.link_statistics(link, queue) for link, queue in self._links.items()),
            pools=tuple(PoolStatistics(pool, budget.nbytes, budget.used) for pool, budget in self._pools.items()),
            lease=self._leases.in_force(),
            clock_jumps=self._clock.jumps,
        )

    def windows(self) -> Iterator[tuple[Link, int]]:
        """The bytes that each link's window holds now."""
        for link, queue in self._links.items():
            yield link, queue.window.nbytes

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance; for tests, after every event."""
        queues, budgets = self._links.values(), self._pools.values()
        books.check(self._transfers, queues, budgets, self._late.credit(), self._agenda, self._now)

    # Plans

    def _open_plan(self, event: PlanOpened, now: float) -> None:
        assert event.plan_id not in self._plans, "a plan is opened once"
        self._plans[event.plan_id] = Plan(
            event.plan_id,
            local_priority=event.priority,
            local_weight=event.weight,
            deadline=event.deadline,
            opened_at=now,
            priority=event.priority,
            weight=event.weight,
        )

    def _cancel_plan(self, plan_id: str, actions: list[Action], now: float) -> None:
        plan = self._plans.get(plan_id)
        if plan is None:
            return
        plan.cancelled = True
        self._abandon(tuple(plan.transfers.values()), actions, now)
        for progress in tuple(plan.shared):
            if progress.plan is not plan:
                # It does not wait for them any more; somebody else still may.
                plan.shared.pop(progress, None)
                progress.boosters = tuple(booster for booster in progress.boosters if booster is not plan)
                self._choose_payer(progress, now)

    def _close_plan(self, plan_id: str, actions: list[Action], now: float) -> None:
        self._cancel_plan(plan_id, actions, now)
        plan = self._plans.pop(plan_id, None)
        if plan is not None:
            for queue in self._links.values():
                queue.forget_plan(plan)

    def _change_priority(self, event: PriorityChanged, now: float) -> None:
        plan = self._plans.get(event.plan_id)
        if plan is None:
            return
        plan.local_priority = event.priority
        plan.priority_is_local = True
        if event.deadline is not None:
            plan.deadline = event.deadline
        self._rank([Rank(plan, plan.weight, event.priority)], now)

    def _rank(self, ranks: list[Rank], now: float) -> None:
        moved = False
        for plan, weight, priority in ranks:
            if weight != plan.weight:
                before, plan.weight = plan.weight, weight
                for queue in self._links.values():
                    queue.reweigh_plan(plan, before, now)
            if priority is None:
                continue
            moved = True
            plan.priority = priority
            for queue in self._links.values():
                queue.move_plan(plan, now)
            for progress in tuple(plan.shared):
                self._choose_payer(progress, now)
        if moved:
            # Who may use how much of a pool depends on the classes of those who hold it.
            self._agenda.freed.update((budget, None) for budget in self._pools.values() if budget.waiters.count)

    # Transfers

    def _submit(self, transfers: tuple[Transfer, ...], actions: list[Action], now: float) -> None:
        queues: dict[LinkQueue, None] = {}
        last_link: Link | None = None
        queue: LinkQueue | None = None
        for transfer in transfers:
            transfer_id, plan_id, link, extent, _, credit, _, through, _, _, _ = transfer
            plan = self._plans.get(plan_id)
            if plan is None or plan.cancelled:
                actions.append(FailTransfer(transfer_id, _cancelled(plan_id)))
                continue
            if extent[1] == 0:
                actions.append(CompleteTransfer(transfer_id))
                continue
            if queue is None or link is not last_link:
                last_link = link
                queue = self._links[link]
                queues[queue] = None
            budget = None if credit is None else self._pools[credit]
            if budget is not None and _least_credit(transfer, queue) > budget.left:
                actions.append(FailTransfer(transfer_id, _too_large(transfer, budget)))
                continue
            gate = None if through is None or through == link else self._links[through]
            self._sequence += 1
            progress = TransferProgress(transfer, queue, plan, now, self._sequence, budget, gate)
            self._transfers[transfer_id] = plan.transfers[transfer_id] = progress
            queue.push(progress, now)
        if len(queues) == 1 and queue is not None:
            queue.fill(actions, now)
        else:
            self._agenda.unfilled.update(queues)

    def _boost(self, event: TransfersBoosted, now: float) -> None:
        plan = self._plans.get(event.plan_id)
        for transfer_id in event.transfer_ids:
            progress = self._transfers.get(transfer_id)
            if progress is None or plan is None or plan.cancelled or progress.error is not None:
                continue
            if plan is not progress.plan and plan not in progress.boosters:
                progress.boosters += (plan,)
                plan.shared[progress] = progress.plan.shared[progress] = None
            if event.criticality > progress.criticality:
                progress.criticality = event.criticality
                self._queue_anew(progress, progress.payer, now)
            self._choose_payer(progress, now)

    def _choose_payer(self, progress: TransferProgress, now: float) -> None:
        """The most urgent plan that waits for it, its own in doubt."""
        payer = progress.plan
        for booster in progress.boosters:
            if booster.precedes(payer):
                payer = booster
        if payer is not progress.payer:
            self._queue_anew(progress, payer, now)

    def _queue_anew(self, progress: TransferProgress, payer: Plan, now: float) -> None:
        queue = progress.queue
        is_queued = progress.entry is not None
        queue.withdraw(progress, now)
        progress.payer = payer
        if is_queued:
            queue.push(progress, now)
            self._agenda.unfilled[queue] = None

    def _abandon(self, abandoned: Iterable[TransferProgress | None], actions: list[Action], now: float) -> None:
        """Start nothing more of these; each fails as soon as no device works on it."""
        for progress in abandoned:
            if progress is not None and progress.error is None:
                self._fail(progress, _cancelled(progress.transfer.plan_id), actions, now)

    def _fail(self, progress: TransferProgress, error: PystachioError, actions: list[Action], now: float) -> None:
        queue = progress.queue
        queue.withdraw(progress, now)
        self._agenda.unfilled[queue] = None
        progress.error = error
        progress.redo = None
        progress.backing_off = 0
        if progress.outstanding:
            actions.append(CancelChunks(progress.transfer_id, tuple(progress.outstanding)))
        else:
            self._end_transfer(progress, actions)

    def _end_transfer(self, progress: TransferProgress, actions: list[Action]) -> None:
        transfer_id = progress.transfer_id
        del self._transfers[transfer_id]
        del progress.plan.transfers[transfer_id]
        if progress.boosters:
            for plan in (progress.plan, *progress.boosters):
                plan.shared.pop(progress, None)
        if progress.error is None:
            actions.append(CompleteTransfer(transfer_id))
            return
        actions.append(FailTransfer(transfer_id, progress.error))
        if progress.credited and progress.budget is not None:
            self._release_credit(progress.budget, progress.plan.plan_id, progress.credited)

    # Chunks

    def _complete_chunks(self, chunks: tuple[tuple[int, int], ...], actions: list[Action], now: float) -> None:
        transfers, agenda, stalls = self._transfers, self._agenda, self._late.stalls
        last: LinkQueue | None = None
        for transfer_id, offset in chunks:
            progress = transfers.get(transfer_id)
            started = None if progress is None else progress.outstanding.pop(offset, None)
            if progress is None or started is None:
                self._end_written_off(transfer_id, offset)
                continue
            length, started_at = started
            queue = progress.queue
            if stalls:
                stalls.bring_back(transfer_id, offset, length)
            if progress.error is None:
                queue.settle(length, started_at, now)
            else:
                queue.drop(length, now)
            if progress.by_chunk and progress.error is None:
                # Its credit is the consumer's from here on.
                progress.credited -= length if progress.budget is not None else 0
                actions.append(DeliverChunk(transfer_id, Extent(offset, length)))
            if not progress.outstanding:
                del agenda.inside[progress]
                if progress.entry is None and not progress.backing_off:
                    self._end_transfer(progress, actions)
            if queue.waiters.count or progress.gate is not None:
                self._free(progress, length, started_at if progress.error is None else None, now)
                continue
            peer = None if progress.line is None else progress.line.peer
            if peer is not None:
                peer.give(length)
                if peer.waiters.count:
                    agenda.freed[peer] = None
            if queue is not last:
                if last is not None:
                    agenda.unfilled[last] = None
                last = queue
        if last is not None:
            if agenda.unfilled or agenda.freed:
                agenda.unfilled[last] = None
            else:
                last.fill(actions, now)

    def _fail_chunk(
        self, transfer_id: int, offset: int, error: PystachioError, actions: list[Action], now: float
    ) -> None:
        progress = self._transfers.get(transfer_id)
        started = None if progress is None else progress.outstanding.pop(offset, None)
        if progress is None or started is None:
            self._end_written_off(transfer_id, offset)
            return
        length, _ = started
        self._late.stalls.bring_back(transfer_id, offset, length)
        progress.queue.drop(length, now)
        self._free(progress, length, None, now)
        if progress.error is None and not self._late.try_again(progress, Extent(offset, length), error, now):
            if not progress.outstanding:
                del self._agenda.inside[progress]
            self._fail(progress, error, actions, now)
        elif not progress.outstanding:
            del self._agenda.inside[progress]
            if progress.entry is None and not progress.backing_off:
                self._end_transfer(progress, actions)

    def _free(self, progress: TransferProgress, length: int, started_at: float | None, now: float) -> None:
        """The chunk's room on its gate and with its peer is others' to take. None: it was dropped."""
        if progress.gate is not None and started_at is not None:
            progress.gate.settle(length, started_at, now)
        elif progress.gate is not None:
            progress.gate.drop(length, now)
        if progress.line is not None and progress.line.peer is not None:
            progress.line.peer.give(length)
        self._look_again(progress)

    def _look_again(self, progress: TransferProgress) -> None:
        """Something that the transfer took has room again."""
        agenda = self._agenda
        agenda.unfilled[progress.queue] = None
        if progress.gate is not None:
            agenda.unfilled[progress.gate] = None
        if progress.line is not None and progress.line.peer is not None:
            agenda.freed[progress.line.peer] = None

    def _end_written_off(self, transfer_id: int, offset: int) -> None:
        lost = self._late.end(transfer_id, offset)
        if lost.budget is not None:
            self._release_credit(lost.budget, lost.plan_id, lost.length)

    def _release_credit(self, budget: CreditBudget, plan_id: str | None, nbytes: int) -> None:
        budget.give(plan_id, nbytes)
        if budget.waiters.count:
            self._agenda.freed[budget] = None

    def _open_pool(self, pool: CreditPool, nbytes: int, actions: list[Action], now: float) -> None:
        budget = self._pools.get(pool)
        if budget is None:
            self._pools[pool] = CreditBudget(nbytes, self._policy)
            return
        budget.nbytes = nbytes
        self._note_size(budget, actions, now)

    def _note_size(self, budget: CreditBudget, actions: list[Action], now: float) -> None:
        """The pool has become larger or smaller: some chunks are cut anew, and some transfers may never fit."""
        self._agenda.freed[budget] = None
        self._agenda.unfilled.update(dict.fromkeys(self._links.values()))
        for progress in tuple(self._transfers.values()):
            needs_credit = progress.budget is budget and progress.waits and not progress.has_credit
            if needs_credit and _least_credit(progress.transfer, progress.queue) > budget.left:
                self._fail(progress, _too_large(progress.transfer, budget), actions, now)

    # What one thing means for others

    def _share(self, actions: list[Action], now: float) -> None:
        """Start what can be started now that something was freed, the most urgent link first.

        Lines return to their flows before anything is started: otherwise less urgent ones would take their places.
        """
        unfilled, freed = self._agenda.unfilled, self._agenda.freed
        while unfilled or freed:
            for queue in unfilled:
                if queue.waiters.count:
                    freed[queue] = None
            resources = tuple(freed)
            freed.clear()
            turns: list[tuple[Resource, Line]] = []
            for resource in resources:
                if isinstance(resource, LinkQueue):
                    # What is parked on a link may have held back what waits for it itself.
                    unfilled[resource] = None
            for resource in resources:
                turn = self._give_turn(resource, now) if resource.waiters.count else None
                if turn is not None:
                    turns.append(turn)
            queues = sorted(unfilled, key=LinkQueue.rank) if len(unfilled) > 1 else tuple(unfilled)
            unfilled.clear()
            for queue in queues:
                before = len(actions), queue.lanes.backlogged
                queue.fill(actions, now)
                if queue.waiters.count and (len(actions), queue.lanes.backlogged) != before:
                    freed[queue] = None
            for resource, line in turns:
                self._end_turn(resource, line, now)

    def _give_turn(self, resource: Resource, now: float) -> tuple[Resource, Line] | None:
        """Let who waits first have what was freed, if it is enough."""
        line = resource.waiters.first(now)
        if line is None or not resource.has_room(line, line.needs, now):
            return None
        resource.waiters.turn = line
        line.flow.queue.unpark(line, now)
        return resource, line

    def _end_turn(self, resource: Resource, line: Line, now: float) -> None:
        """The next one's turn."""
        waiters = resource.waiters
        waiters.turn = None
        if line.ticket and line.parked_on is None and line.head() is not None:
            # There is no room on its link, and somebody else will take what it waited for.
            # Links that pass through each other must not wait for each other's reservations.
            may_reserve = not (isinstance(resource, LinkQueue) and line.flow.queue.is_gate)
            if line.was_missed and waiters.reserved_for is None and may_reserve:
                waiters.reserve(line, now)
                line.reserved += (resource,)
            line.was_missed = True
        self._agenda.freed[resource] = None

    # Time

    def _pass_time(self, actions: list[Action], now: float) -> None:
        for queue in self._late.retry(now):
            self._agenda.unfilled[queue] = None
        if self._leases.ends is not None and self._leases.ends <= now:
            self._rank(self._leases.end(self._plans.values()), now)
        if self._agenda.inside and now >= self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            self._check_timeouts(actions, now)
            # Somebody may have waited for so long that it is his turn now.
            self._agenda.unfilled.update((queue, None) for queue in self._links.values() if queue.lanes.backlogged)
            for queue in self._links.values():
                self._agenda.freed.update((resource, None) for resource in queue.resources() if resource.waiters.count)
            self._agenda.freed.update((budget, None) for budget in self._pools.values() if budget.waiters.count)

    def _check_timeouts(self, actions: list[Action], now: float) -> None:
        for progress in tuple(self._agenda.inside):
            limit = progress.queue.limits.timeout_seconds
            late = now - min(started_at for _, started_at in progress.outstanding.values())
            if late >= STALLED_SECONDS and self._late.stalls.set_aside(progress, now):
                self._look_again(progress)
            if late > limit and progress.error is None:
                self._fail(progress, timed_out(progress), actions, now)
            elif late > 2.0 * limit:
                self._write_off(progress, actions, now)

    def _write_off(self, progress: TransferProgress, actions: list[Action], now: float) -> None:
        """The device does not let go. Whoever waits must not wait for ever, and the link may be of use to others."""
        del self._agenda.inside[progress]
        actions.append(WriteOffChunks(progress.transfer_id, self._late.write_off(progress)))
        self._end_transfer(progress, actions)
        self._look_again(progress)
        if progress.budget is not None:
            self._note_size(progress.budget, actions, now)


def _least_credit(transfer: Transfer, queue: LinkQueue) -> int:
    """What it takes to make any progress."""
    length = transfer.extent.length
    if not transfer.by_chunk:
        return length
    limits = queue.limits
    return min(length, max(limits.alignment, min(limits.chunk_bytes, limits.smallest_chunk_bytes)))


def _cancelled(plan_id: str) -> Cancelled:
    return Cancelled("the plan's transfer was cancelled", plan_id=plan_id)


def _too_large(transfer: Transfer, budget: CreditBudget) -> ResourceExhausted:
    return ResourceExhausted(
        f"a transfer of {transfer.extent.length:,} bytes is larger than the memory for it, {budget.left:,} bytes",
        setting="memory",
        value=budget.left,
        needed=transfer.extent.length,
        plan_id=transfer.plan_id,
    )
