"""The scheduler's books, seen from outside: what they say, and whether they balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from pystachio.io_scheduler.events import LinkStatistics
from pystachio.io_scheduler.flow import Line
from pystachio.io_scheduler.link_queue import Agenda, LinkQueue
from pystachio.io_scheduler.policy import AGEING_SECONDS
from pystachio.io_scheduler.progress import TransferProgress
from pystachio.io_scheduler.request import Link
from pystachio.io_scheduler.resources import CreditBudget, Resource


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
        if inside and progress.line is not None and progress.line.flow.peer is not None:
            under_way[progress.line.flow.peer] += inside
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
    backlogged = 0
    for share in queue.shares():
        assert share.remaining == sum(flow.remaining for flow in share.flows.values() if flow.backlogged)
        for flow in share.flows.values():
            backlogged += flow.backlogged
            lines = [line for line in share.lines.values() if line.flow is flow]
            in_lane = sum(entry[3] is flow for entry in flow.lane.flows)
            assert in_lane == flow.backlogged, "a flow is in its lane once or not at all"
            for line in lines:
                _check_line(line)
            if flow.of_peer:
                waits = sum(each.remaining for each in queue.waiting() if each.line in lines)
                assert flow.remaining == waits, "a flow knows how much waits in it"
            if flow.peer is not None:
                assert flow.peer.used == under_way.get(flow.peer, 0), "a peer's budget counts what is under way"
                check_waiters(flow.peer, now)
    assert backlogged == queue.backlogged == sum(len(lane.flows) for lane in queue.lanes)
    check_waiters(queue, now)
    assert not queue.could_start(now), "something waits although there is room"


def _check_line(line: Line) -> None:
    is_ready = line in line.flow.ready
    assert is_ready == (line.parked_on is None), "a line is ready or parked"
    if line.head() is not None:
        assert line.parked_on is not None or line.flow.backlogged, "a line was forgotten"
    if line.parked_on is not None:
        assert line.head() is not None, "nothing waits in a line that is parked"
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
