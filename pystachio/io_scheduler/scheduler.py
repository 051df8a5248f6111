"""The scheduler's core: facts in, orders out, no input or output of its own.

The same code runs under the asyncio service, in simulation and in tests. Time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import assert_never

from pystachio.errors import Cancelled, PystachioError, ResourceExhausted
from pystachio.io_scheduler.clock import SteadyClock
from pystachio.io_scheduler.events import (
    Action,
    CancelChunks,
    ChunkCompleted,
    ChunkFailed,
    CompleteTransfer,
    CreditReleased,
    DeliverChunk,
    Event,
    FailTransfer,
    LeaseGranted,
    LinkOpened,
    LinkStatistics,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PoolOpened,
    PoolStatistics,
    PriorityChanged,
    SchedulerStatistics,
    StartChunk,
    TimePassed,
    TransfersBoosted,
    TransfersCancelled,
    TransfersSubmitted,
    WriteOffChunks,
)
from pystachio.io_scheduler.leases import Leases, Ranks
from pystachio.io_scheduler.policy import POLICIES, Flow, LinkQueue, Plan, Policy, TransferProgress
from pystachio.io_scheduler.request import CreditPool, Extent, Link, PriorityClass, Transfer
from pystachio.io_scheduler.resources import CreditBudget, Resource
from pystachio.io_scheduler.stalls import STALLED_SECONDS, Stalls

CHECK_SECONDS = 1.0
"""How often the chunks inside devices are checked for time-outs."""
BACK_OFF_SECONDS = 0.01
"""Before the second attempt of a chunk; four times as long before each further one."""


class Scheduler:
    """One queue per link, never a global one: a slow device must not slow a healthy one."""

    def __init__(self, policy: Policy = POLICIES["pystachio"]) -> None:
        self._policy = policy
        self._clock = SteadyClock()
        self._links: dict[Link, LinkQueue] = {}
        self._pools: dict[CreditPool, CreditBudget] = {}
        self._plans: dict[str, Plan] = {}
        self._transfers: dict[int, TransferProgress] = {}
        self._lost: dict[tuple[int, int], tuple[LinkQueue, CreditBudget | None, int]] = {}
        self._retries: list[tuple[float, int, TransferProgress, Extent]] = []
        self._sequence = 0
        self._leases = Leases()
        self._stalls = Stalls()
        self._checked_at = 0.0
        self._inside = 0

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take a fact into account and say what is to be done; `now` in seconds of any monotonic clock."""
        now = self._clock.read(now, self._inside > 0)
        match event:
            case ChunkCompleted():
                return self._end_chunk(event[0], event[1], None, now)
            case TransfersSubmitted(transfers):
                return self._submit(transfers, now)
            case CreditReleased(pool, nbytes):
                return self._release_credit(self._pools[pool], nbytes, now)
            case ChunkFailed(transfer_id, offset, error):
                return self._end_chunk(transfer_id, offset, error, now)
            case TransfersCancelled(transfer_ids):
                return self._abandon((self._transfers.get(each) for each in transfer_ids), now)
            case TransfersBoosted():
                return self._boost(event, now)
            case TimePassed():
                return self._pass_time(now)
            case PlanOpened():
                self._open_plan(event, now)
            case PlanCancelled(plan_id):
                return self._cancel_plan(plan_id, now)
            case PlanClosed(plan_id):
                return self._close_plan(plan_id, now)
            case PriorityChanged():
                return self._change_priority(event, now)
            case LinkOpened(link, limits):
                assert link not in self._links, "a link is opened once"
                self._links[link] = LinkQueue(limits, self._policy)
            case PoolOpened(pool, nbytes):
                return self._open_pool(pool, nbytes, now)
            case LeaseGranted(lease):
                return self._rank_all(self._leases.take(lease, self._plans, now), now)
            case _:
                assert_never(event)
        return []

    def next_wake(self) -> float | None:
        """When `TimePassed` is due, on the clock of `handle`; None while nothing can become late."""
        wake = self._checked_at + CHECK_SECONDS if self._inside else None
        if self._retries and (wake is None or self._retries[0][0] < wake):
            wake = self._retries[0][0]
        lease_ends = self._leases.ends
        if lease_ends is not None and (wake is None or lease_ends < wake):
            wake = lease_ends
        return None if wake is None else self._clock.outer(wake)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            plans=len(self._plans),
            transfers=len(self._transfers),
            links=tuple(self._link_statistics(link, queue) for link, queue in self._links.items()),
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
        outstanding = dict.fromkeys(self._links.values(), 0)
        credited = dict.fromkeys(self._pools.values(), 0)
        waiting = {id(progress) for queue in self._links.values() for progress in queue.waiting()}
        for transfer_id, progress in self._transfers.items():
            assert progress.transfer.transfer_id == transfer_id
            inside = sum(length for length, _ in progress.outstanding.values())
            assert 0 <= inside <= progress.dispatched <= progress.length
            assert progress.waits == (id(progress) in waiting), "a transfer waits exactly when it is queued"
            assert progress.waits or progress.outstanding or progress.backing_off, "a transfer that does nothing ended"
            outstanding[progress.queue] += inside
            if progress.gate is not None:
                outstanding[progress.gate] += inside
            if progress.budget is not None:
                credited[progress.budget] += progress.credited
        for queue in self._links.values():
            inside = queue.outstanding_bytes + queue.stalled_bytes
            assert inside == outstanding[queue], "the window counts what is in the device"
            for flow in queue.flows():
                assert flow.head() is None or flow.backlogged or flow.parked_on is not None, "a flow was forgotten"
                assert not (flow.backlogged and flow.parked_on is not None), "a flow is in its lane or parked"
            if not queue.outstanding_bytes:
                assert queue.rank()[0] == len(queue.lanes) or all(
                    flow.head() is None for flow in queue.flows() if flow.backlogged
                ), "an idle device has nothing waiting but what is parked"
        for budget in self._pools.values():
            assert credited[budget] + budget.lost <= budget.used, "credit was given back that is still in use"
            first = budget.waiters.first(-math.inf)
            assert first is None or not budget.has_room(first, first.needs), "a flow is parked although there is room"

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

    def _cancel_plan(self, plan_id: str, now: float) -> list[Action]:
        plan = self._plans.get(plan_id)
        if plan is None:
            return []
        plan.cancelled = True
        return self._abandon(tuple(plan.transfers.values()), now)

    def _close_plan(self, plan_id: str, now: float) -> list[Action]:
        actions = self._cancel_plan(plan_id, now)
        plan = self._plans.pop(plan_id, None)
        if plan is not None:
            for transfer_id in tuple(plan.boosts):
                progress = self._transfers.get(transfer_id)
                if progress is not None and progress.payer is plan:
                    self._requeue(progress, progress.plan, actions, now)
            left = [resource for queue in self._links.values() for resource in queue.forget_plan(plan_id)]
            self._dispatch_all(self._links.values(), actions, now)
            for resource in left:
                self._wake(resource, actions, now)
        return actions

    def _change_priority(self, event: PriorityChanged, now: float) -> list[Action]:
        plan = self._plans.get(event.plan_id)
        if plan is None:
            return []
        plan.local_priority = event.priority
        plan.priority_is_local = True
        if event.deadline is not None:
            plan.deadline = event.deadline
        return self._rank(plan, event.priority, now)

    def _rank(self, plan: Plan, priority: PriorityClass, now: float) -> list[Action]:
        plan.priority = priority
        left = [resource for queue in self._links.values() for resource in queue.move_plan(plan, now)]
        actions: list[Action] = []
        self._dispatch_all(self._links.values(), actions, now)
        for resource in left:
            self._wake(resource, actions, now)
        return actions

    def _rank_all(self, ranks: Ranks, now: float) -> list[Action]:
        actions: list[Action] = []
        for plan, priority in ranks:
            actions += self._rank(plan, priority, now)
        return actions

    # Transfers

    def _submit(self, transfers: tuple[Transfer, ...], now: float) -> list[Action]:
        actions: list[Action] = []
        queues: dict[LinkQueue, None] = {}
        link, queue = None, None
        for transfer in transfers:
            plan = self._plans.get(transfer.plan_id)
            length = transfer.extent[1]
            if plan is None or plan.cancelled:
                actions.append(FailTransfer(transfer.transfer_id, _cancelled(transfer.plan_id)))
                continue
            if length == 0:
                actions.append(CompleteTransfer(transfer.transfer_id))
                continue
            if queue is None or transfer.link is not link:
                link = transfer.link
                queue = self._links[link]
                queues[queue] = None
            budget = None if transfer.credit is None else self._pools[transfer.credit]
            if budget is not None and _least_credit(transfer, queue, budget) > budget.left:
                actions.append(FailTransfer(transfer.transfer_id, _too_large(transfer, budget)))
                continue
            gate = None if transfer.through is None else self._links[transfer.through]
            progress = TransferProgress(transfer, queue, plan, now, transfer.criticality, length, plan, budget, gate)
            self._transfers[transfer.transfer_id] = plan.transfers[transfer.transfer_id] = progress
            queue.push(progress, now)
        for queue in queues:
            self._dispatch(queue, actions, now)
        return actions

    def _boost(self, event: TransfersBoosted, now: float) -> list[Action]:
        plan = self._plans.get(event.plan_id)
        actions: list[Action] = []
        queues: dict[LinkQueue, None] = {}
        for transfer_id in event.transfer_ids:
            progress = self._transfers.get(transfer_id)
            if progress is None or plan is None or progress.error is not None:
                continue
            payer = plan if plan.priority < progress.payer.priority else progress.payer
            criticality = max(progress.criticality, event.criticality)
            if payer is not progress.payer or criticality != progress.criticality:
                progress.criticality = criticality
                self._requeue(progress, payer, actions, now)
                queues[progress.queue] = None
        self._dispatch_all(queues, actions, now)
        return actions

    def _requeue(self, progress: TransferProgress, payer: Plan, actions: list[Action], now: float) -> None:
        """Its entry in the old flow becomes stale and is dropped when it comes up."""
        progress.payer.boosts.discard(progress.transfer.transfer_id)
        progress.payer = payer
        if payer is not progress.plan:
            payer.boosts.add(progress.transfer.transfer_id)
        if progress.waits:
            self._withdraw(progress, actions, now)
            progress.queue.push(progress, now)

    def _withdraw(self, progress: TransferProgress, actions: list[Action], now: float) -> None:
        """Out of its flow, which may have been parked for what only this transfer needs."""
        flow, progress.flow = progress.flow, None
        if flow is not None and flow.parked_on is not None:
            resource = flow.parked_on
            flow.queue.unpark(flow, now)
            self._wake(resource, actions, now)

    def _abandon(self, abandoned: Iterable[TransferProgress | None], now: float) -> list[Action]:
        """Dispatch nothing more of these; each fails as soon as no device works on it."""
        actions: list[Action] = []
        queues: dict[LinkQueue, None] = {}
        for progress in abandoned:
            if progress is None or progress.error is not None:
                continue
            queues[progress.queue] = None
            self._fail(progress, _cancelled(progress.transfer.plan_id), actions, now)
        self._dispatch_all(queues, actions, now)
        return actions

    def _fail(self, progress: TransferProgress, error: PystachioError, actions: list[Action], now: float) -> None:
        progress.error = error
        progress.redo = None
        progress.backing_off = 0
        self._withdraw(progress, actions, now)
        if progress.outstanding:
            actions.append(CancelChunks(progress.transfer.transfer_id, tuple(progress.outstanding)))
        else:
            self._end_transfer(progress, actions, now)

    def _end_transfer(self, progress: TransferProgress, actions: list[Action], now: float) -> None:
        transfer_id = progress.transfer.transfer_id
        del self._transfers[transfer_id]
        del progress.plan.transfers[transfer_id]
        if progress.payer is not progress.plan:
            progress.payer.boosts.discard(transfer_id)
        if progress.error is None:
            actions.append(CompleteTransfer(transfer_id))
            return
        actions.append(FailTransfer(transfer_id, progress.error))
        if progress.credited and progress.budget is not None:
            actions += self._release_credit(progress.budget, progress.credited, now)

    # Chunks

    def _dispatch(self, queue: LinkQueue, actions: list[Action], now: float) -> None:
        while queue.backlogged:
            started = queue.next_chunk(now)
            if started is None:
                return
            progress, chunk = started
            if not self._inside:
                self._checked_at = now
            self._inside += 1
            actions.append(StartChunk(progress.transfer.transfer_id, chunk, now - progress.submitted_at))
        # There is room and nothing to start.
        queue.window.is_limited = True

    def _dispatch_all(self, queues: Iterable[LinkQueue], actions: list[Action], now: float) -> None:
        """Links may share a resource: the most urgent goes first."""
        for queue in sorted(queues, key=LinkQueue.rank):
            self._dispatch(queue, actions, now)

    def _end_chunk(self, transfer_id: int, offset: int, error: PystachioError | None, now: float) -> list[Action]:
        actions: list[Action] = []
        progress = self._transfers.get(transfer_id)
        if progress is None or offset not in progress.outstanding:
            queue, budget, length = self._lost.pop((transfer_id, offset))
            queue.written_off_bytes -= length
            if budget is None:
                return []
            budget.lost -= length
            return self._release_credit(budget, length, now)
        length, started_at = progress.outstanding.pop(offset)
        self._inside -= 1
        if self._stalls:
            self._stalls.bring_back(transfer_id, offset, length)
        progress.queue.settle(length, started_at, now)
        if error is not None and progress.error is None:
            self._retry_or_fail(progress, Extent(offset, length), error, actions, now)
        elif progress.transfer.by_chunk:
            self._deliver(progress, Extent(offset, length), actions, now)
        if transfer_id in self._transfers and not (progress.outstanding or progress.waits or progress.backing_off):
            self._end_transfer(progress, actions, now)
        queue = progress.queue
        if progress.gate is None and not queue.has_peers and not queue.waiters.count:
            self._dispatch(queue, actions, now)
        else:
            self._free(progress, length, started_at, actions, now)
        return actions

    def _deliver(self, progress: TransferProgress, chunk: Extent, actions: list[Action], now: float) -> None:
        """Its credit is the consumer's from here on, if there is still one."""
        if progress.error is None:
            progress.credited -= chunk.length if progress.budget is not None else 0
            actions.append(DeliverChunk(progress.transfer.transfer_id, chunk))

    def _free(
        self, progress: TransferProgress, length: int, started_at: float, actions: list[Action], now: float
    ) -> None:
        """The chunk's room on its link, its gate and with its peer is others' to take."""
        queue, gate = progress.queue, progress.gate
        if gate is not None:
            gate.settle(length, started_at, now)
            self._share(gate, actions, now)
        if queue.has_peers and (peer := queue.peer(progress.transfer)) is not None:
            peer.give(length)
            self._wake(peer, actions, now)
        self._share(queue, actions, now)

    def _share(self, queue: LinkQueue, actions: list[Action], now: float) -> None:
        """There is room in the link's device, for its own transfers or for those that pass through it."""
        if not queue.waiters.count:
            self._dispatch(queue, actions, now)
            return
        if queue.waiters_come_first(now):
            self._wake(queue, actions, now)
            self._dispatch(queue, actions, now)
        else:
            self._dispatch(queue, actions, now)
            self._wake(queue, actions, now)

    def _wake(self, resource: Resource, actions: list[Action], now: float) -> None:
        """Give what was freed to those who wait for it, as far as it goes."""
        waiters = resource.waiters
        while (flow := waiters.first(now)) is not None and resource.has_room(flow, flow.needs):
            assert isinstance(flow, Flow)
            flow.queue.unpark(flow, now)
            self._dispatch(flow.queue, actions, now)

    def _release_credit(self, budget: CreditBudget, nbytes: int, now: float) -> list[Action]:
        budget.give(nbytes)
        actions: list[Action] = []
        if budget.waiters.count:
            self._wake(budget, actions, now)
        return actions

    def _open_pool(self, pool: CreditPool, nbytes: int, now: float) -> list[Action]:
        budget = self._pools.get(pool)
        if budget is None:
            self._pools[pool] = CreditBudget(nbytes)
            return []
        budget.nbytes = nbytes
        return self._release_credit(budget, 0, now)

    # Time

    def _retry_or_fail(
        self, progress: TransferProgress, chunk: Extent, error: PystachioError, actions: list[Action], now: float
    ) -> None:
        attempts = progress.attempts = progress.attempts or {}
        attempts[chunk.offset] = attempts.get(chunk.offset, 0) + 1
        if progress.transfer.by_chunk and progress.budget is not None:
            progress.credited -= chunk.length
            actions += self._release_credit(progress.budget, chunk.length, now)
        if not error.retryable or attempts[chunk.offset] >= progress.queue.limits.attempts:
            self._fail(progress, error, actions, now)
            return
        progress.backing_off += 1
        self._sequence += 1
        due = now + BACK_OFF_SECONDS * 4.0 ** (attempts[chunk.offset] - 1)
        heappush(self._retries, (due, self._sequence, progress, chunk))

    def _pass_time(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._retries and self._retries[0][0] <= now:
            _, _, progress, chunk = heappop(self._retries)
            if progress.error is None:
                progress.backing_off -= 1
                progress.redo = [*(progress.redo or ()), chunk]
                if progress.flow is None:
                    progress.queue.push(progress, now)
                self._dispatch(progress.queue, actions, now)
        if self._leases.ends is not None and self._leases.ends <= now:
            actions += self._rank_all(self._leases.end(self._plans.values()), now)
        if self._inside and now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._check_timeouts(actions, now)
        return actions

    def _check_timeouts(self, actions: list[Action], now: float) -> None:
        relieved: dict[LinkQueue, None] = {}
        for progress in tuple(self._transfers.values()):
            limit = progress.queue.limits.timeout_seconds
            oldest = min((started_at for _, started_at in progress.outstanding.values()), default=now)
            if now - oldest >= STALLED_SECONDS and self._stalls.set_aside(progress, now):
                relieved[progress.queue] = None
                if progress.gate is not None:
                    relieved[progress.gate] = None
            if now - oldest <= limit:
                continue
            if progress.error is None:
                relieved[progress.queue] = None
                self._fail(progress, _timed_out(progress, limit), actions, now)
            elif now - oldest > 2.0 * limit:
                self._write_off(progress, actions, now)
        for queue in relieved:
            self._share(queue, actions, now)

    def _write_off(self, progress: TransferProgress, actions: list[Action], now: float) -> None:
        """The device does not let go. Whoever waits must not wait for ever, and the link may be of use to others."""
        transfer_id = progress.transfer.transfer_id
        actions.append(WriteOffChunks(transfer_id, tuple(progress.outstanding)))
        chunks, progress.outstanding = progress.outstanding, {}
        self._inside -= len(chunks)
        for offset, (length, _) in chunks.items():
            self._stalls.bring_back(transfer_id, offset, length)
            self._lost[transfer_id, offset] = (progress.queue, progress.budget, length)
            progress.credited -= length if progress.budget is not None else 0
            progress.queue.written_off_bytes += length
            progress.queue.outstanding_bytes -= length
            if progress.gate is not None:
                progress.gate.outstanding_bytes -= length
            if (peer := progress.queue.peer(progress.transfer)) is not None:
                peer.give(length)
                self._wake(peer, actions, now)
            if progress.budget is not None:
                progress.budget.lost += length
        self._end_transfer(progress, actions, now)
        if progress.budget is not None:
            self._refuse_too_large(progress.budget, actions, now)
            self._wake(progress.budget, actions, now)
        self._share(progress.queue, actions, now)
        if progress.gate is not None:
            self._share(progress.gate, actions, now)

    def _refuse_too_large(self, budget: CreditBudget, actions: list[Action], now: float) -> None:
        """Memory was lost: fail what will never fit into the rest."""
        queues: dict[LinkQueue, None] = {}
        for progress in tuple(self._transfers.values()):
            if (
                progress.budget is not budget
                or progress.error is not None
                or not (progress.waits or progress.backing_off)
            ):
                continue
            transfer = progress.transfer
            is_paid = progress.credited > 0 and not transfer.by_chunk
            if not is_paid and _least_credit(transfer, progress.queue, budget) > budget.left:
                queues[progress.queue] = None
                self._fail(progress, _too_large(transfer, budget), actions, now)
        self._dispatch_all(queues, actions, now)

    def _link_statistics(self, link: Link, queue: LinkQueue) -> LinkStatistics:
        waiting = queue.waiting()
        parked = sum(len(flow.waiting) for flow in queue.flows() if flow.parked_on is not None)
        window = queue.window
        return LinkStatistics(
            link=link,
            waiting_transfers=len(waiting),
            waiting_bytes=sum(progress.remaining for progress in waiting),
            parked_transfers=parked,
            outstanding_bytes=queue.outstanding_bytes + queue.stalled_bytes,
            window_bytes=window.nbytes,
            chunk_bytes=window.chunk_bytes,
            bytes_per_second=window.rate,
            latency_seconds=window.latency,
            written_off_bytes=queue.written_off_bytes,
        )


def _least_credit(transfer: Transfer, queue: LinkQueue, budget: CreditBudget) -> int:
    """What it takes to make progress."""
    if not transfer.by_chunk:
        return transfer.extent.length
    chunk_bytes = queue.limits.smallest_chunk_bytes
    if budget.lost:
        # No chance is taken with what may be the only place left: a quarter more may join the last chunk.
        chunk_bytes = queue.limits.chunk_bytes + queue.limits.chunk_bytes // 4
    return min(transfer.extent.length, chunk_bytes)


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


def _timed_out(progress: TransferProgress, seconds: float) -> ResourceExhausted:
    return ResourceExhausted(
        f"a device did not answer within {seconds:g} seconds: {progress.transfer.link}",
        setting="io_timeout",
        value=seconds,
        plan_id=progress.transfer.plan_id,
    )
