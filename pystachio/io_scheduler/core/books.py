"""The scheduler's books, seen from outside: what they say, and whether they balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from pystachio.io_scheduler.core.agenda import Agenda
from pystachio.io_scheduler.core.events import LinkStatistics
from pystachio.io_scheduler.core.flow import Line
from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.policy import AGEING_SECONDS
from pystachio.io_scheduler.core.progress import TransferProgress
from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.core.resources import CreditBudget, Resource


def link_statistics(link: Link, queue: LinkQueue) -> LinkStatistics:
    waiting = queue.waiting()
    window = queue.window
    return LinkStatistics(
        link=link,
        waiting_transfers=len(waiting),
        waiting_bytes=sum(progress.remaining for progress in waiting),
        parked_transfers=sum(
            1 for progress in waiting if progress.line is not None and progress.line.parked_on is not None
        ),
        outstanding_bytes=queue.outstanding_bytes + queue.stalled_bytes,
        window_bytes=window.nbytes,
        chunk_bytes=window.chunk_bytes,
        bytes_per_second=window.rate,
        latency_seconds=window.latency,
        written_off_bytes=queue.written_off_bytes,
    )


def check(
    transfers: Mapping[int, TransferProgress],
    queues: Collection[LinkQueue],
    budgets: Collection[CreditBudget],
    written_off: Iterable[tuple[CreditBudget, int]],
    agenda: Agenda,
    now: float,
) -> None:
    """Raise AssertionError when the books do not balance, or somebody waits who need not."""
    assert not agenda.unfilled, "a queue was not looked at"
    assert not agenda.freed, "a resource was not looked at"
    outstanding: Counter[LinkQueue] = Counter()
    under_way: Counter[Resource] = Counter()
    credited = Counter(dict.fromkeys(budgets, 0))
    for budget, length in written_off:
        credited[budget] += length
    waiting = {progress for queue in queues for progress in queue.waiting()}
    for transfer_id, progress in transfers.items():
        assert progress.transfer.transfer_id == transfer_id
        _check_transfer(progress, waiting, agenda)
        inside = sum(length for length, _ in progress.outstanding.values())
        outstanding[progress.queue] += inside
        if progress.gate is not None:
            outstanding[progress.gate] += inside
        if inside and progress.line is not None and progress.line.peer is not None:
            under_way[progress.line.peer] += inside
        if progress.budget is not None:
            credited[progress.budget] += progress.credited
    for queue in queues:
        inside = queue.outstanding_bytes + queue.stalled_bytes
        assert inside == outstanding[queue], "the window counts what is in the device"
        _check_queue(queue, under_way, now)
    for budget in budgets:
        assert credited[budget] <= budget.used, "credit was given back that is still in use"
        assert budget.used == budget.held_by_all(), "what is used is held by somebody"
        check_waiters(budget, now)


def _check_transfer(progress: TransferProgress, waiting: set[TransferProgress], agenda: Agenda) -> None:
    inside = sum(length for length, _ in progress.outstanding.values())
    assert 0 <= inside <= progress.dispatched <= progress.length
    assert progress.waits == (progress in waiting), "a transfer waits exactly when it is queued"
    assert progress.waits or progress.outstanding or progress.backing_off, "a transfer that does nothing ended"
    assert bool(progress.outstanding) == (progress in agenda.inside), "time-outs are checked of what is inside"
    assert progress.credited >= 0, "credit was given back twice"
    if progress.budget is not None and not progress.by_chunk:
        assert progress.credited in (0, progress.length), "a transfer takes credit for all of it"
        assert progress.credited or not progress.dispatched, "what moves has credit"


def _check_queue(queue: LinkQueue, under_way: Mapping[Resource, int], now: float) -> None:
    lanes = queue.lanes
    in_lane = Counter((lane, entry[2]) for lane in lanes.all for entry in lane.flows)
    for flow in queue.flows():
        assert in_lane[flow.lane, flow] == flow.backlogged, "a flow is in its lane once or not at all"
        for line in flow.lines.values():
            _check_line(line, under_way)
            if line.peer is not None:
                check_waiters(line.peer, now)
    assert sum(flow.backlogged for flow in queue.flows()) == lanes.backlogged == in_lane.total()
    check_waiters(queue, now)
    assert not queue.could_start(now), "something waits although there is room"


def _check_line(line: Line, under_way: Mapping[Resource, int]) -> None:
    flow = line.flow
    live = line.live()
    assert all(progress.line is line for progress in live), "a transfer is in one line"
    if live and line.parked_on is None:
        assert flow.backlogged, "a line was forgotten"
        assert flow.sole is line or line.entry is not None, "a line was forgotten"
    if line.peer_name is not None:
        assert line.remaining == sum(progress.remaining for progress in live), "a line knows how much waits in it"
    if line.peer is not None:
        assert line.peer.used == under_way.get(line.peer, 0), "a peer's budget counts what is under way"
    if line.parked_on is not None:
        assert live, "nothing waits in a line that is parked"
        assert sum(each is line for each in line.parked_on.waiters) == 1
        assert line.ticket > 0
    for resource in line.reserved:
        assert resource.waiters.reserved_for is line


def check_waiters(resource: Resource, now: float) -> None:
    waiters = resource.waiters
    assert waiters.turn is None
    assert waiters.count == sum(1 for _ in waiters)
    assert waiters.reserved_for is None or resource in waiters.reserved_for.reserved
    for line in waiters:
        assert line.parked_on is resource
    if any(now - line.waits_since > AGEING_SECONDS for line in waiters):
        # Whose turn it is changes with time alone, and shows when time passes.
        return
    first = waiters.first(now)
    assert first is None or not resource.has_room(first, first.needs, now), "a line is parked although there is room"
