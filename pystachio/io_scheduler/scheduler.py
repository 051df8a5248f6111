"""The scheduler's core: facts in, orders out, no input or output of its own.

The same code runs under the asyncio service, in simulation and in tests. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.policy import LinkQueue, TransferProgress
from pystachio.io_scheduler.request import Extent, Link, LinkLimits, PriorityClass, Transfer


@dataclass(frozen=True, slots=True)
class LinkOpened:
    link: Link
    limits: LinkLimits


@dataclass(frozen=True, slots=True)
class PlanOpened:
    plan_id: str
    priority: PriorityClass
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    plan_id: str
    priority: PriorityClass


@dataclass(frozen=True, slots=True)
class PlanCancelled:
    """All of the plan's transfers, now and later, fail with `Cancelled`."""

    plan_id: str


@dataclass(frozen=True, slots=True)
class PlanClosed:
    """The plan will submit nothing more. Transfers that are still there are cancelled."""

    plan_id: str


@dataclass(frozen=True, slots=True)
class TransfersSubmitted:
    """Transfers that arrived together: the order between them is decided before the first is dispatched."""

    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class TransfersCancelled:
    """Whoever waited for them gave up. Transfers that have ended already are ignored."""

    transfer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkCompleted:
    transfer_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    transfer_id: int
    offset: int
    error: PystachioError


Event = (
    ChunkCompleted
    | TransfersSubmitted
    | ChunkFailed
    | TransfersCancelled
    | PlanOpened
    | PlanCancelled
    | PlanClosed
    | PriorityChanged
    | LinkOpened
)


@dataclass(frozen=True, slots=True)
class StartChunk:
    """Hand this part of the transfer to the link's device. `queue_seconds` is its wait since submission."""

    transfer_id: int
    chunk: Extent
    queue_seconds: float


@dataclass(frozen=True, slots=True)
class CompleteTransfer:
    """All bytes have arrived."""

    transfer_id: int


@dataclass(frozen=True, slots=True)
class FailTransfer:
    """Tell whoever waits. No device touches the destination any more."""

    transfer_id: int
    error: PystachioError


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Nobody wants the chunks at these offsets any more; a device that can may end them early."""

    transfer_id: int
    offsets: tuple[int, ...]


Action = StartChunk | CompleteTransfer | FailTransfer | CancelTransfer


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    link: Link
    waiting_transfers: int
    waiting_bytes: int
    outstanding_bytes: int


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    plans: int
    transfers: int
    links: tuple[LinkStatistics, ...]


@dataclass(slots=True, eq=False)
class _Plan:
    priority: PriorityClass
    weight: float
    cancelled: bool = False
    transfers: dict[int, TransferProgress] = field(default_factory=dict)


class Scheduler:
    """One queue per link, never a global one: a slow device must not slow a healthy one."""

    def __init__(self) -> None:
        self._links: dict[Link, LinkQueue] = {}
        self._plans: dict[str, _Plan] = {}
        self._transfers: dict[int, TransferProgress] = {}

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take a fact into account and say what is to be done; `now` in seconds of any monotonic clock."""
        match event:
            case ChunkCompleted(transfer_id, offset):
                return self._end_chunk(transfer_id, offset, None, now)
            case TransfersSubmitted(transfers):
                return self._submit(transfers, now)
            case ChunkFailed(transfer_id, offset, error):
                return self._end_chunk(transfer_id, offset, error, now)
            case TransfersCancelled(transfer_ids):
                return self._abandon(self._transfers.get(transfer_id) for transfer_id in transfer_ids)
            case PlanOpened(plan_id, priority, weight):
                assert plan_id not in self._plans, "a plan is opened once"
                self._plans[plan_id] = _Plan(priority, weight)
            case PlanCancelled(plan_id):
                return self._cancel_plan(plan_id)
            case PlanClosed(plan_id):
                return self._close_plan(plan_id)
            case PriorityChanged(plan_id, priority):
                self._change_priority(plan_id, priority)
            case LinkOpened(link, limits):
                assert link not in self._links, "a link is opened once"
                self._links[link] = LinkQueue(limits)
            case _:
                assert_never(event)
        return []

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            plans=len(self._plans),
            transfers=len(self._transfers),
            links=tuple(_link_statistics(link, queue) for link, queue in self._links.items()),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance; cheap enough to call after every event of a test."""
        outstanding = dict.fromkeys(self._links, 0)
        waiting = {id(progress) for queue in self._links.values() for progress in queue.waiting()}
        for transfer_id, progress in self._transfers.items():
            transfer = progress.transfer
            assert transfer.transfer_id == transfer_id
            assert 0 <= sum(progress.outstanding.values()) <= progress.dispatched <= transfer.extent.length
            assert progress.waits == (id(progress) in waiting), "a transfer waits exactly when it is queued"
            assert progress.waits or progress.outstanding, "a transfer that neither waits nor moves has ended"
            outstanding[transfer.link] += sum(progress.outstanding.values())
        for link, queue in self._links.items():
            assert queue.outstanding_bytes == outstanding[link], "the window counts what is in the device"
            assert queue.outstanding_bytes or not queue.waiting(), "an idle device has nothing waiting"

    def _submit(self, transfers: tuple[Transfer, ...], now: float) -> list[Action]:
        actions: list[Action] = []
        links: dict[Link, None] = {}
        for transfer in transfers:
            plan = self._plans.get(transfer.plan_id)
            if plan is None or plan.cancelled:
                actions.append(FailTransfer(transfer.transfer_id, _cancelled(transfer.plan_id)))
                continue
            if transfer.extent.length == 0:
                actions.append(CompleteTransfer(transfer.transfer_id))
                continue
            progress = TransferProgress(transfer, now)
            self._transfers[transfer.transfer_id] = plan.transfers[transfer.transfer_id] = progress
            self._links[transfer.link].push(progress, plan.priority, plan.weight)
            links[transfer.link] = None
        for link in links:
            self._dispatch(self._links[link], now, actions)
        return actions

    def _dispatch(self, queue: LinkQueue, now: float, actions: list[Action]) -> None:
        while (next_chunk := queue.pop_chunk()) is not None:
            progress, chunk = next_chunk
            actions.append(StartChunk(progress.transfer.transfer_id, chunk, now - progress.submitted_at))

    def _end_chunk(self, transfer_id: int, offset: int, error: PystachioError | None, now: float) -> list[Action]:
        progress = self._transfers[transfer_id]
        queue = self._links[progress.transfer.link]
        queue.settle(progress.outstanding.pop(offset))
        actions: list[Action] = []
        if error is not None and progress.error is None:
            progress.error = error
            if progress.outstanding:
                actions.append(CancelTransfer(transfer_id, tuple(progress.outstanding)))
        if not progress.outstanding and not progress.waits:
            actions.append(self._end_transfer(progress))
        self._dispatch(queue, now, actions)
        return actions

    def _end_transfer(self, progress: TransferProgress) -> CompleteTransfer | FailTransfer:
        transfer = progress.transfer
        del self._transfers[transfer.transfer_id]
        plan = self._plans.get(transfer.plan_id)
        if plan is not None:
            plan.transfers.pop(transfer.transfer_id, None)
        if progress.error is not None:
            return FailTransfer(transfer.transfer_id, progress.error)
        return CompleteTransfer(transfer.transfer_id)

    def _abandon(self, abandoned: Iterable[TransferProgress | None]) -> list[Action]:
        """Dispatch nothing more of these; each fails as soon as no device works on it."""
        actions: list[Action] = []
        for progress in abandoned:
            if progress is None or progress.error is not None:
                continue
            progress.error = _cancelled(progress.transfer.plan_id)
            if progress.outstanding:
                actions.append(CancelTransfer(progress.transfer.transfer_id, tuple(progress.outstanding)))
            else:
                actions.append(self._end_transfer(progress))
        return actions

    def _cancel_plan(self, plan_id: str) -> list[Action]:
        plan = self._plans.get(plan_id)
        if plan is None:
            return []
        plan.cancelled = True
        return self._abandon(tuple(plan.transfers.values()))

    def _close_plan(self, plan_id: str) -> list[Action]:
        actions = self._cancel_plan(plan_id)
        self._plans.pop(plan_id, None)
        for queue in self._links.values():
            queue.forget_plan(plan_id)
        return actions

    def _change_priority(self, plan_id: str, priority: PriorityClass) -> None:
        plan = self._plans.get(plan_id)
        if plan is None:
            return
        plan.priority = priority
        for queue in self._links.values():
            queue.move_plan(plan_id, priority)


def _cancelled(plan_id: str) -> Cancelled:
    return Cancelled("the plan's transfer was cancelled", plan_id=plan_id)


def _link_statistics(link: Link, queue: LinkQueue) -> LinkStatistics:
    waiting = queue.waiting()
    return LinkStatistics(
        link=link,
        waiting_transfers=len(waiting),
        waiting_bytes=sum(progress.remaining for progress in waiting),
        outstanding_bytes=queue.outstanding_bytes,
    )
