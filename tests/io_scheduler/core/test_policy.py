"""The order in which a link serves what waits for it, from events and orders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pystachio.io_scheduler.core.events import (
    LinkOpened,
    PlanCancelled,
    PlanClosed,
    PlanOpened,
    PriorityChanged,
    StartChunk,
    TransfersCancelled,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.flow import Line
from pystachio.io_scheduler.core.link_queue import LinkQueue
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler
from tests.io_scheduler.core.serial_link import CHUNK, SerialLink

INTERACTIVE, NORMAL, BATCH = PriorityClass
NOTHING_RESERVED = replace(POLICIES["pystachio"], reservations=(0.0, 0.0, 0.0, 0.0))


def busy(**plans: PriorityClass) -> SerialLink:
    """A link whose device is full of another plan's chunks when the plans arrive."""
    link = SerialLink(NOTHING_RESERVED)
    link.plan("before", INTERACTIVE)
    link.submit("before", 2 * CHUNK)
    for plan_id, priority in plans.items():
        link.plan(plan_id, priority)
    return link


# Chunks and the window


@pytest.mark.parametrize(
    ("nbytes", "lengths"),
    [
        (1, [1]),
        (1000, [1000]),
        (1250, [1250]),
        (1251, [1000, 251]),
        (2250, [1000, 1250]),
        (3000, [1000, 1000, 1000]),
        (3251, [1000, 1000, 1000, 251]),
    ],
    ids=str,
)
def test_a_quarter_of_a_chunk_joins_the_last_one(nbytes: int, lengths: list[int]) -> None:
    link = SerialLink(chunks=10)
    link.plan("p", NORMAL)
    link.submit("p", nbytes)
    assert [chunk.chunk.length for chunk in link.inside] == lengths
    starts = [chunk.chunk.offset for chunk in link.inside]
    assert starts == [sum(lengths[:position]) for position in range(len(lengths))]


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_the_window_bounds_the_bytes_inside_the_device(chunks: int) -> None:
    link = SerialLink(chunks=chunks)
    link.plan("p", NORMAL)
    link.submit("p", 20 * CHUNK)
    for _ in range(19):
        assert sum(chunk.chunk.length for chunk in link.inside) <= chunks * CHUNK
        link.step()
    assert link.drain() == []


def test_a_chunk_larger_than_the_window_passes_alone() -> None:
    scheduler = Scheduler()
    disk = Link("disk", "1:0")
    scheduler.handle(LinkOpened(disk, LinkLimits(chunk_bytes=100, window_bytes=20, calibrated=False)), 0.0)
    scheduler.handle(PlanOpened("p", NORMAL), 0.0)
    started = scheduler.handle(TransfersSubmitted((Transfer(1, "p", disk, Extent(0, 200)),)), 0.0)
    assert started == [StartChunk(1, Extent(0, 100), 0.0)]


@pytest.mark.parametrize("priority", [INTERACTIVE, NORMAL, BATCH])
def test_room_beyond_the_window_is_for_interactive_transfers(priority: PriorityClass) -> None:
    link = SerialLink(chunks=2, urgent_bytes=CHUNK)
    link.plan("endless", BATCH)
    link.plan("late", priority)
    link.submit("endless", 100 * CHUNK)
    link.submit("late", 5 * CHUNK)
    assert link.order[2:] == (["late"] if priority == INTERACTIVE else [])


def test_room_beyond_the_window_is_not_held_back_by_an_overdue_lane() -> None:
    """The overdue chunk waits for room in the window, and an urgent one for nothing."""
    link = SerialLink(chunks=2, urgent_bytes=CHUNK)
    link.plan("urgent", INTERACTIVE)
    link.plan("batch", BATCH)
    link.submit("urgent", 10, endless=False)
    link.drain()
    link.keep("urgent")
    link.submit("batch", 100 * CHUNK)
    for _ in range(300):
        link.step()
        assert sum(chunk.chunk.length for chunk in link.inside) == 3 * CHUNK, "two of any class, one urgent"


# Classes


@pytest.mark.parametrize("together", [True, False])
def test_classes_are_strict(together: bool) -> None:
    link = busy(batch=BATCH, normal=NORMAL, interactive=INTERACTIVE)
    if together:
        link.submit_together(("batch", 2 * CHUNK), ("interactive", 2 * CHUNK), ("normal", 2 * CHUNK))
    else:
        for plan_id in ("batch", "normal", "interactive"):
            link.submit(plan_id, 2 * CHUNK)
    assert link.drain() == ["interactive"] * 2 + ["normal"] * 2 + ["batch"] * 2


def test_what_frees_memory_goes_between_interactive_and_normal() -> None:
    link = busy(spilling=BATCH, normal=NORMAL, interactive=INTERACTIVE)
    link.submit("normal", CHUNK)
    link.submit("spilling", CHUNK)
    link.submit("spilling", CHUNK, write_back=True)
    link.submit("interactive", CHUNK)
    link.drain()
    assert link.order[2:] == ["interactive", "spilling", "normal", "spilling"]
    assert [transfer.write_back for transfer in link.started[2:]] == [False, True, False, False]


def test_lower_classes_do_not_pass_an_urgent_chunk_that_waits_for_room() -> None:
    link = SerialLink(NOTHING_RESERVED, chunks=1)
    link.plan("batch", BATCH)
    link.plan("urgent", INTERACTIVE)
    link.submit("batch", CHUNK // 2)
    link.submit("urgent", CHUNK)
    link.submit("batch", CHUNK // 2)
    assert link.order == ["batch"], "there is room for the second half, but it would keep the urgent one out"
    assert link.drain() == ["urgent", "batch"]


def test_a_change_of_class_applies_to_what_waits() -> None:
    link = busy(a=BATCH, b=BATCH)
    link.submit("a", 4 * CHUNK)
    link.submit("b", 4 * CHUNK)
    link.step()
    link.step()
    assert set(link.order[2:]) == {"a", "b"}
    link.tell(PriorityChanged("b", INTERACTIVE))
    assert link.drain() == ["b", "b", "b", "a", "a", "a"]


def test_a_change_of_class_does_not_move_what_frees_memory() -> None:
    link = busy(a=BATCH, b=NORMAL)
    link.submit("b", CHUNK)
    link.submit("a", CHUNK, write_back=True)
    link.tell(PriorityChanged("a", NORMAL))
    link.tell(PriorityChanged("a", BATCH))
    assert link.drain() == ["a", "b"]


# Fair shares


@pytest.mark.parametrize("priority", [NORMAL, BATCH])
@pytest.mark.parametrize(
    ("weights", "shares"),
    [((1.0, 1.0), (50, 50)), ((3.0, 1.0), (75, 25)), ((0.5, 1.5), (25, 75)), ((4.0, 4.0, 2.0), (40, 40, 20))],
    ids=str,
)
def test_weights_divide_the_bandwidth(
    priority: PriorityClass, weights: tuple[float, ...], shares: tuple[int, ...]
) -> None:
    link = SerialLink()
    for number, weight in enumerate(weights):
        link.plan(f"p{number}", priority, weight=weight)
        link.keep(f"p{number}")
    moved = link.run(1.0)
    assert [moved[f"p{number}"] // CHUNK for number in range(len(weights))] == pytest.approx(
        [10 * share for share in shares], abs=3
    )


def test_plans_share_by_bytes_not_by_requests() -> None:
    link = SerialLink()
    link.plan("small", NORMAL)
    link.plan("large", NORMAL)
    for _ in range(400):
        link.submit("small", CHUNK // 5)
    link.submit("large", 60 * CHUNK)
    moved = link.run(0.1)
    assert moved["small"] == pytest.approx(moved["large"], abs=2 * CHUNK)


def test_idling_earns_no_credit() -> None:
    link = SerialLink()
    link.plan("busy", NORMAL)
    link.plan("idle", NORMAL)
    link.keep("busy")
    link.run(1.0)
    link.keep("idle")
    moved = link.run(0.1)
    assert moved["busy"] == pytest.approx(moved["idle"], abs=3 * CHUNK)


def test_a_plan_that_comes_and_goes_gets_no_more_than_its_share() -> None:
    link = SerialLink()
    link.plan("steady", NORMAL)
    link.plan("bursts", NORMAL)
    link.keep("steady")
    moved: Counter[str] = Counter()
    for _ in range(50):
        for _ in range(5):
            link.submit("bursts")
        moved += link.run(0.01)
    assert moved["bursts"] == pytest.approx(moved["steady"], abs=3 * CHUNK)


def test_hundreds_of_plans_have_as_many_shares() -> None:
    link = SerialLink(NOTHING_RESERVED)
    transfers = []
    for number in range(100):
        link.plan(f"p{number}", BATCH)
        transfers.append((f"p{number}", 10 * CHUNK))
    link.submit_together(*transfers)
    moved = link.run(0.3)
    assert len(moved) == 100
    assert set(moved.values()) <= {2 * CHUNK, 3 * CHUNK, 4 * CHUNK}


# Inside a plan


@pytest.mark.parametrize("priority", PriorityClass)
def test_criticality_orders_a_plan_and_arrival_breaks_ties(priority: PriorityClass) -> None:
    link = busy(p=priority)
    numbers = [link.submit("p", criticality=criticality) for criticality in (0, 5, 5, -1, 7, 0)]
    link.drain()
    order = [transfer.transfer_id for transfer in link.started[2:]]
    assert order == [numbers[position] for position in (4, 1, 2, 0, 5, 3)]


def test_transfers_that_were_cancelled_are_passed_over() -> None:
    link = busy(p=NORMAL)
    numbers = [link.submit("p", 3 * CHUNK) for _ in range(3)]
    link.tell(TransfersCancelled((numbers[0], numbers[2])))
    link.drain()
    assert [transfer.transfer_id for transfer in link.started[2:]] == [numbers[1]] * 3


@pytest.mark.parametrize("event", [PlanCancelled("a"), PlanClosed("a")], ids=["cancelled", "closed"])
def test_a_plan_that_ends_starts_nothing_more(event: PlanCancelled | PlanClosed) -> None:
    link = busy(a=INTERACTIVE, b=BATCH)
    for _ in range(20):
        link.submit("a")
    link.submit("b", 3 * CHUNK)
    link.tell(event)
    assert link.drain() == ["b"] * 3


# Interactive plans


@pytest.mark.parametrize(
    ("deadlines", "first"),
    [((5.0, 3.0), "b"), ((3.0, 5.0), "a"), ((None, 3.0), "a"), ((None, 0.5), "b"), ((40.0, None), "b")],
    ids=str,
)
def test_the_earliest_deadline_goes_first(deadlines: tuple[float | None, float | None], first: str) -> None:
    """A plan without one counts as due a second after it began."""
    link = busy()
    for plan_id, deadline in zip("ab", deadlines, strict=True):
        link.plan(plan_id, INTERACTIVE, deadline=deadline)
        link.submit(plan_id, 3 * CHUNK)
    order = link.drain()
    assert order == [first] * 3 + [{"a": "b", "b": "a"}[first]] * 3


def test_a_deadline_can_be_changed() -> None:
    link = busy()
    for plan_id, deadline in (("a", 2.0), ("b", 3.0)):
        link.plan(plan_id, INTERACTIVE, deadline=deadline)
        link.submit(plan_id, 2 * CHUNK)
    link.tell(PriorityChanged("b", INTERACTIVE, 1.5))
    assert link.drain() == ["b", "b", "a", "a"]


def test_without_deadlines_the_older_plan_goes_first() -> None:
    link = busy(old=INTERACTIVE)
    link.now = 0.5
    link.plan("new", INTERACTIVE)
    link.submit("new", 3 * CHUNK)
    link.submit("old", 3 * CHUNK)
    assert link.drain() == ["old"] * 3 + ["new"] * 3


@pytest.mark.parametrize("long_plans", [1, 3])
def test_long_interactive_plans_do_not_stand_in_the_way_of_short_ones(long_plans: int) -> None:
    """What a plan takes beyond its allowance makes it later due."""
    link = SerialLink()
    for number in range(long_plans):
        link.plan(f"long{number}", INTERACTIVE)
        link.keep(f"long{number}")
    link.run(2.0)
    for number in range(20):
        link.plan(f"short{number}", INTERACTIVE)
        began = link.now
        transfer_id = link.submit(f"short{number}", 5 * CHUNK)
        link.run(0.05)
        assert link.ended_at[transfer_id] - began < 0.01
    assert min(link.moved[f"long{number}"] for number in range(long_plans)) > 300 * CHUNK


def test_short_interactive_plans_do_not_starve_a_long_one() -> None:
    link = SerialLink(chunk_seconds=0.01)
    link.plan("long", INTERACTIVE)
    link.keep("long")
    link.run(5.0)
    before = link.moved["long"]
    for number in range(100):
        link.plan(f"short{number}", INTERACTIVE)
        link.submit(f"short{number}", 11 * CHUNK)
        link.run(0.1)
    assert link.moved["long"] - before >= 5 * CHUNK


@pytest.mark.parametrize("deadline", [-1000.0, 0.0, 1.0], ids=str)
def test_a_plan_that_is_hopelessly_late_does_not_starve_others(deadline: float) -> None:
    link = SerialLink()
    link.now = 100.0
    link.plan("late", INTERACTIVE, deadline=deadline)
    link.keep("late")
    link.run(1.0)
    link.plan("other", INTERACTIVE)
    other = link.submit("other", 5 * CHUNK)
    link.run(3.0)
    assert other in link.ended_at


def test_a_plan_with_a_distant_deadline_is_not_starved() -> None:
    link = SerialLink(chunk_seconds=0.01)
    link.plan("patient", INTERACTIVE, deadline=1e9)
    link.plan("endless", INTERACTIVE)
    link.keep("endless")
    patient = link.submit("patient", CHUNK)
    link.run(70.0)
    assert patient in link.ended_at


# Reservations


@pytest.mark.parametrize(
    ("plan", "share", "urgent"),
    [
        ("batch", 0.05, INTERACTIVE),
        ("batch", 0.05, NORMAL),
        ("normal", 0.10, INTERACTIVE),
        ("spilling", 0.25, INTERACTIVE),
    ],
    ids=str,
)
def test_a_reservation_is_sustained_under_a_long_urgent_load(plan: str, share: float, urgent: PriorityClass) -> None:
    link = SerialLink()
    link.plan("urgent", urgent)
    link.plan(plan, NORMAL if plan == "normal" else BATCH)
    link.keep("urgent")
    link.keep(plan, write_back=plan == "spilling")
    link.run(1.0)
    moved = link.run(5.0)
    assert moved[plan] >= 0.95 * share * moved.total()
    assert moved[plan] <= 1.05 * share * moved.total(), "and not more than was reserved"


def test_all_reservations_hold_together() -> None:
    link = SerialLink()
    for plan_id, priority in (("urgent", INTERACTIVE), ("spilling", BATCH), ("normal", NORMAL), ("batch", BATCH)):
        link.plan(plan_id, priority)
        link.keep(plan_id, write_back=plan_id == "spilling")
    link.run(1.0)
    moved = link.run(5.0)
    shares = {plan_id: nbytes / moved.total() for plan_id, nbytes in moved.items()}
    assert shares == pytest.approx({"urgent": 0.60, "spilling": 0.25, "normal": 0.10, "batch": 0.05}, rel=0.05)


@pytest.mark.parametrize(("priority", "chunks"), [(BATCH, 100), (NORMAL, 100), (BATCH, 180)])
def test_a_short_urgent_burst_is_not_interrupted(priority: PriorityClass, chunks: int) -> None:
    """What the lower class had of the link until now counts against its reservation."""
    link = SerialLink()
    link.plan("below", priority)
    link.plan("urgent", INTERACTIVE)
    link.keep("below")
    link.run(2.0)
    before = len(link.order)
    link.submit("urgent", chunks * CHUNK)
    link.run(0.3)
    started = link.order[before:]
    assert started[:chunks] == ["urgent"] * chunks
    assert set(started[chunks:]) == {"below"}


def test_nothing_is_saved_up_in_a_reservation_while_nothing_waits() -> None:
    link = SerialLink()
    link.plan("urgent", INTERACTIVE)
    link.plan("batch", BATCH)
    link.keep("urgent")
    link.run(5.0)
    before = len(link.order)
    link.submit("batch", 100 * CHUNK)
    link.run(0.1)
    assert link.order[before:].count("batch") <= 6


def test_a_reader_of_one_chunk_at_a_time_gets_its_reservation_too() -> None:
    link = SerialLink()
    link.plan("urgent", INTERACTIVE)
    link.plan("batch", BATCH)
    link.keep("urgent")
    link.submit("batch", CHUNK, endless=True)
    link.run(1.0)
    moved = link.run(5.0)
    assert moved["batch"] >= 0.8 * 0.05 * moved.total()


def test_a_lane_that_was_not_served_for_long_goes_first() -> None:
    """On a slow device a reservation of 5 % comes due late: five seconds are enough."""
    link = SerialLink(chunk_seconds=0.5)
    link.plan("urgent", INTERACTIVE)
    link.plan("batch", BATCH)
    link.keep("urgent")
    began = link.now
    transfer_id = link.submit("batch", CHUNK)
    while transfer_id not in link.ended_at:
        link.step()
    assert 5.0 < link.ended_at[transfer_id] - began < 7.0


# What is switched off to compare


def test_strict_has_no_reservations_and_goes_by_arrival() -> None:
    link = SerialLink(replace(POLICIES["strict"], window_bytes=2 * CHUNK))
    for plan_id, priority in (("a", INTERACTIVE), ("b", INTERACTIVE), ("batch", BATCH)):
        link.plan(plan_id, priority)
    link.submit("batch", 10 * CHUNK)
    link.keep("a")
    moved = link.run(10.0)
    assert moved["batch"] <= 2 * CHUNK
    link.submit("b", 2 * CHUNK)
    before = len(link.order)
    link.run(0.03)
    after = link.order[before:]
    assert after.index("b") >= 5, "behind what arrived earlier, whatever it has had"


def test_strict_moves_what_waits_when_the_class_changes() -> None:
    link = SerialLink(replace(POLICIES["strict"], window_bytes=2 * CHUNK))
    link.plan("a", NORMAL)
    link.plan("b", BATCH)
    link.submit("a", 6 * CHUNK)
    link.submit("b", 3 * CHUNK)
    link.tell(PriorityChanged("b", INTERACTIVE))
    assert link.drain() == ["b", "b", "b", "a", "a", "a", "a"]


def test_fair_knows_no_classes() -> None:
    link = SerialLink(replace(POLICIES["fair"], window_bytes=2 * CHUNK))
    for plan_id, priority, weight in (("i", INTERACTIVE, 1.0), ("n", NORMAL, 1.0), ("b", BATCH, 2.0)):
        link.plan(plan_id, priority, weight=weight)
        link.keep(plan_id)
    moved = link.run(2.0)
    assert moved["i"] == pytest.approx(moved["n"], rel=0.02)
    assert moved["b"] == pytest.approx(2 * moved["n"], rel=0.02)


def test_fair_gives_a_plan_one_share_even_if_part_of_it_frees_memory() -> None:
    link = SerialLink(replace(POLICIES["fair"], window_bytes=2 * CHUNK))
    link.plan("spilling", BATCH)
    link.plan("other", BATCH)
    link.keep("spilling")
    link.keep("spilling", write_back=True)
    link.keep("other")
    moved = link.run(2.0)
    assert moved["spilling"] == pytest.approx(moved["other"], rel=0.02)


def test_fifo_goes_by_arrival_alone() -> None:
    link = SerialLink(replace(POLICIES["fifo"], window_bytes=2 * CHUNK))
    for plan_id, priority in (("batch", BATCH), ("urgent", INTERACTIVE)):
        link.plan(plan_id, priority)
    link.submit("batch", 6 * CHUNK)
    link.submit("urgent", 2 * CHUNK, criticality=9)
    link.submit("batch", CHUNK)
    link.submit("urgent", CHUNK)
    link.drain()
    assert link.order == ["batch"] * 6 + ["urgent"] * 2 + ["batch", "urgent"]


@pytest.mark.parametrize("name", ["strict", "fair", "fifo"])
def test_what_is_compared_with_has_a_deep_window(name: str) -> None:
    scheduler = Scheduler(POLICIES[name])
    scheduler.handle(LinkOpened(Link("disk", "1:0"), LinkLimits(chunk_bytes=1 << 20, window_bytes=2 << 20)), 0.0)
    (link,) = scheduler.statistics().links
    assert link.window_bytes == 32 << 20


# Peers


@pytest.mark.parametrize("sizes", [(30, 30, 30), (10, 30, 60), (90, 1, 9)], ids=str)
def test_the_transfers_of_an_exchange_finish_together(sizes: tuple[int, ...]) -> None:
    link = SerialLink(chunks=4)
    link.plan("before", INTERACTIVE)
    link.submit("before", 4 * CHUNK)
    link.plan("p", NORMAL)
    for number, chunks in enumerate(sizes):
        link.submit("p", chunks * CHUNK, peer=f"n{number}", rank=number)
    link.run(4 * link.chunk_seconds)
    link.run(0.5 * sum(sizes) * link.chunk_seconds)
    halves = [link.moved_by_peer[f"n{number}"] / CHUNK for number in range(len(sizes))]
    assert halves == pytest.approx([chunks / 2 for chunks in sizes], abs=2)


def test_a_peer_that_had_much_before_has_no_less_now() -> None:
    """Shares follow what waits, not what was moved long ago."""
    link = SerialLink(chunks=4)
    link.plan("p", NORMAL)
    link.submit("p", 500 * CHUNK, peer="x")
    link.drain()
    link.submit("p", 20 * CHUNK, peer="y", rank=1)
    link.submit("p", 20 * CHUNK, peer="x", rank=2)
    link.run(0.02)
    assert link.moved_by_peer["y"] == pytest.approx(10 * CHUNK, abs=2 * CHUNK)


def test_equal_peers_are_served_by_rank() -> None:
    link = SerialLink(chunks=4)
    link.plan("before", INTERACTIVE)
    link.submit("before", 4 * CHUNK)
    link.plan("p", NORMAL)
    for rank in (2, 0, 3, 1):
        link.submit("p", 2 * CHUNK, peer=f"n{rank}", rank=rank)
    link.drain()
    assert [transfer.peer for transfer in link.started[4:]] == ["n0", "n1", "n2", "n3"] * 2


def test_no_more_than_its_cap_is_under_way_with_a_peer() -> None:
    link = SerialLink(chunks=6, peer_bytes=2 * CHUNK)
    link.plan("p", NORMAL)
    link.plan("q", NORMAL)
    link.submit("p", 10 * CHUNK, peer="x")
    link.submit("q", 10 * CHUNK, peer="x")
    assert len(link.inside) == 2, "of all plans together"
    link.submit("q", 10 * CHUNK, peer="y")
    assert len(link.inside) == 4
    for _ in range(30):
        under_way = Counter(link.transfers[chunk.transfer_id].peer for chunk in link.inside)
        assert max(under_way.values()) <= 2
        link.step()
    assert not link.inside
    assert link.moved == {"p": 10 * CHUNK, "q": 20 * CHUNK}


def test_who_comes_behind_others_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is parked for its peer waits for its head's sake; a more critical transfer is another head."""
    woken: list[Line] = []
    unpark = LinkQueue.unpark

    def counting(self: LinkQueue, line: Line, now: float) -> None:
        woken.append(line)
        unpark(self, line, now)

    monkeypatch.setattr(LinkQueue, "unpark", counting)
    link = SerialLink(chunks=6, peer_bytes=CHUNK)
    link.plan("p", NORMAL)
    first, second, *behind = [link.submit("p", peer="x") for _ in range(5)]
    assert (len(link.inside), woken) == (1, [])
    critical = link.submit("p", peer="x", criticality=1)
    assert len(woken) == 1
    link.drain()
    assert sorted(link.ended_at, key=link.ended_at.__getitem__) == [first, critical, second, *behind]


def test_a_plan_has_its_share_however_many_peers_it_has() -> None:
    link = SerialLink(chunks=4, peer_bytes=3 * CHUNK)
    link.plan("many", NORMAL)
    link.plan("one", NORMAL)
    for number in range(16):
        link.keep("many", peer=f"n{number}", rank=number)
    link.keep("one", peer="another")
    link.run(0.5)
    moved = link.run(2.0)
    assert moved["one"] == pytest.approx(moved["many"], rel=0.05)
