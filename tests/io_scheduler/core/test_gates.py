"""Links that others pass through, such as a bus, and that have transfers of their own."""

from __future__ import annotations

from collections import Counter

import pytest

from pystachio.io_scheduler.core.events import Action, PlanCancelled, PriorityChanged, StartChunk, TransfersCancelled
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from tests.io_scheduler.core.scheduler_model import World

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK, OTHER_DISK, BUS = Link("disk", "1:0"), Link("disk", "2:0"), Link("pcie", "0")


def limits(chunk: int = 10, window: int = 20, urgent: int = 0) -> LinkLimits:
    return LinkLimits(
        chunk_bytes=chunk, window_bytes=window, smallest_chunk_bytes=chunk, calibrated=False, urgent_bytes=urgent
    )


def world(
    *,
    disk: LinkLimits | None = None,
    other: LinkLimits | None = None,
    bus: LinkLimits | None = None,
    **plans: PriorityClass,
) -> World:
    w = World(POLICIES["pystachio"])
    w.open_link(DISK, disk or limits())
    w.open_link(OTHER_DISK, other or limits())
    w.open_link(BUS, bus or limits())
    for plan_id, priority in (plans or {"a": NORMAL, "b": NORMAL, "c": NORMAL}).items():
        w.open_plan(plan_id, priority)
    return w


def through(transfer_id: int, length: int, plan_id: str = "a", link: Link = DISK) -> Transfer:
    return Transfer(transfer_id, plan_id, link, Extent(0, length), through=BUS)


def plain(transfer_id: int, length: int, plan_id: str = "a", link: Link = DISK) -> Transfer:
    return Transfer(transfer_id, plan_id, link, Extent(0, length))


def started(actions: list[Action]) -> list[int]:
    return [action.transfer_id for action in actions if isinstance(action, StartChunk)]


def run(w: World, chunks: int) -> Counter[str]:
    """The devices end so many chunks, one a millisecond, the oldest first; how many each plan got started meanwhile."""
    order = list(w.inside())
    plans: Counter[str] = Counter()
    for _ in range(chunks):
        if not order:
            break
        transfer_id, offset = order.pop(0)
        w.clock += 0.001
        w.elapsed += 0.001
        for action in w.end_chunk(transfer_id, offset):
            if isinstance(action, StartChunk):
                order.append((action.transfer_id, action.chunk.offset))
                plans[w.accounts[action.transfer_id].transfer.plan_id] += 1
    return plans


def test_a_chunk_occupies_both_links() -> None:
    w = world()
    assert started(w.submit([through(1, 40)])) == [1, 1]
    assert [link.outstanding_bytes for link in w.scheduler.statistics().links] == [20, 0, 20]
    assert started(w.submit([through(2, 20, link=OTHER_DISK), plain(3, 20, "b", link=BUS)])) == []
    w.end_chunk(1, 0)
    assert sum(link.outstanding_bytes for link in w.scheduler.statistics().links[:2]) <= 20
    w.finish()


def test_what_waits_for_a_bus_does_not_stand_in_the_way_on_its_disk() -> None:
    w = world()
    w.submit([plain(1, 20, link=BUS)])
    assert started(w.submit([through(2, 20), plain(3, 20), plain(4, 20, "b")])) in ([3, 4], [4, 3], [3, 3], [4, 4])
    parked = [link.parked_transfers for link in w.scheduler.statistics().links]
    assert parked == [1, 0, 0]


def test_a_link_that_passes_through_itself_is_counted_once() -> None:
    w = world()
    assert started(w.submit([Transfer(1, "a", BUS, Extent(0, 40), through=BUS)])) == [1, 1]
    assert w.scheduler.statistics().links[2].outstanding_bytes == 20
    w.finish()


def test_links_may_pass_through_each_other() -> None:
    w = world()
    w.submit(
        [
            Transfer(1, "a", DISK, Extent(0, 100), through=BUS),
            Transfer(2, "b", BUS, Extent(0, 100), through=DISK),
            Transfer(3, "c", OTHER_DISK, Extent(0, 100), through=DISK),
        ]
    )
    w.finish()
    assert set(w.ended.values()) == {None}


def test_disks_and_the_bus_itself_take_turns() -> None:
    w = world()
    w.submit([through(1, 3000, "a"), through(2, 3000, "b", OTHER_DISK), plain(3, 3000, "c", BUS)])
    assert sorted(run(w, 300).values()) == pytest.approx([100, 100, 100], abs=3)


@pytest.mark.parametrize("urgent", ["a", "b", "c"])
def test_the_most_urgent_goes_first_wherever_it_waits(urgent: str) -> None:
    plans = dict.fromkeys("abc", BATCH) | {urgent: INTERACTIVE}
    w = world(**plans)
    w.submit([through(1, 3000, "a"), through(2, 3000, "b", OTHER_DISK), plain(3, 3000, "c", BUS)])
    run(w, 3)
    assert run(w, 100)[urgent] >= 94, "the rest is reserved"


@pytest.mark.parametrize("urgent", ["disk", "bus"])
def test_small_chunks_do_not_keep_an_urgent_large_one_out(urgent: str) -> None:
    """Whether the large one waits on the bus itself or comes from a disk."""
    w = world(disk=limits(5, 20), bus=limits(20, 20), other=limits(20, 20), a=BATCH, b=INTERACTIVE)
    w.submit([through(1, 1000, "a")])
    w.submit([plain(2, 20, "b", BUS) if urgent == "bus" else through(2, 20, "b", OTHER_DISK)])
    run(w, 4)
    assert w.accounts[2].has_started


def test_small_chunks_do_not_keep_a_large_one_of_their_class_out() -> None:
    w = world(disk=limits(5, 20), other=limits(20, 20))
    w.submit([through(1, 1000, "a")])
    w.submit([through(2, 20, "b", OTHER_DISK)])
    run(w, 4)
    assert w.accounts[2].has_started


@pytest.mark.parametrize("own", [True, False], ids=["by the bus itself", "by disks"])
@pytest.mark.parametrize(("priority", "share"), [(NORMAL, 0.10), (BATCH, 0.05)])
def test_reservations_hold_on_a_bus_too(own: bool, priority: PriorityClass, share: float) -> None:
    w = world(a=INTERACTIVE, b=priority)
    w.submit([plain(1, 30_000, "a", BUS) if own else through(1, 30_000, "a")])
    w.submit([through(2, 30_000, "b", OTHER_DISK)])
    run(w, 200)
    assert run(w, 1000)["b"] == pytest.approx(1000 * share, rel=0.06)


def test_room_beyond_a_bus_window_is_for_urgent_transfers() -> None:
    w = world(bus=limits(urgent=10), a=BATCH, b=INTERACTIVE)
    w.submit([through(1, 100, "a")])
    assert started(w.submit([through(2, 100, "b", OTHER_DISK)])) == [2]
    assert w.scheduler.statistics().links[2].outstanding_bytes == 30


def test_who_waits_for_a_bus_while_its_disk_is_busy_with_others_gets_both() -> None:
    """Whenever the bus has room its disk has none, and the other way round."""
    w = world(disk=limits(10, 10), bus=limits(10, 10))
    w.submit([plain(1, 1000, "b")])
    w.submit([through(2, 1000, "c", OTHER_DISK)])
    w.submit([through(3, 20, "a")])
    for _ in range(10):
        for link in (BUS, DISK):
            for number, offset in w.inside():
                account = w.accounts[number]
                if link in (account.transfer.link, account.transfer.through):
                    w.end_chunk(number, offset)
    assert 3 not in w.accounts or w.accounts[3].has_started


@pytest.mark.parametrize(
    "event", [TransfersCancelled((2,)), PlanCancelled("b"), PriorityChanged("b", BATCH)], ids=["", "plan", "class"]
)
def test_when_who_was_first_on_the_bus_gives_up_others_go_on(event: TransfersCancelled) -> None:
    w = world(other=limits(20, 20), bus=limits(10, 20), a=NORMAL, b=INTERACTIVE, c=NORMAL)
    w.submit([plain(1, 10, "c", BUS)])
    w.submit([through(2, 20, "b", OTHER_DISK)])
    assert started(w.submit([through(3, 10, "a")])) == []
    w.tell(event)
    assert w.accounts[3].has_started


def test_when_the_bus_itself_has_nothing_urgent_any_more_others_go_on() -> None:
    w = world(disk=limits(5, 20), bus=limits(20, 20), a=NORMAL, b=INTERACTIVE, c=NORMAL)
    w.submit([through(1, 5, "c")])
    w.submit([plain(2, 20, "b", BUS)])
    assert started(w.submit([through(3, 5, "a")])) == []
    w.tell(TransfersCancelled((2,)))
    assert w.accounts[3].has_started
