"""The calibrated window on devices of all kinds: it keeps them busy, and holds not much more than that takes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from pystachio.io_scheduler.core.events import (
    Action,
    ChunksCompleted,
    CompleteTransfer,
    Event,
    LinkOpened,
    PlanClosed,
    PlanOpened,
    StartChunk,
    TimePassed,
    TransfersSubmitted,
)
from pystachio.io_scheduler.core.request import Extent, Link, LinkLimits, PriorityClass, Transfer
from pystachio.io_scheduler.core.scheduler import Scheduler

MIB = 1 << 20
GIGA = 1e9
DISK = Link("disk", "1:0")
LIMITS = LinkLimits(chunk_bytes=2 * MIB, window_bytes=8 * MIB)

OverTime = Callable[[float], float]
Begin = Callable[[float, int], float]
"""A device: from the time that a chunk is started and its length to the time at which it ends."""


def serial(rate: float | OverTime, latency: float | OverTime, *, jitter: float = 0.0) -> Begin:
    """Latencies overlap, bytes pass one after the other. Latencies are up to `jitter` longer, by chance."""
    chance = Random(1)
    free = 0.0

    def begin(now: float, length: int) -> float:
        nonlocal free
        seconds = (latency(now) if callable(latency) else latency) * (1.0 + jitter * chance.random())
        free = max(now + seconds, free) + length / (rate(now) if callable(rate) else rate)
        return free

    return begin


def parallel(rate: float, latency: float, servers: int, *, jitter: float = 0.0) -> Begin:
    """Each server is busy with a chunk for the latency and its bytes at its part of the rate."""
    chance = Random(1)
    free = [0.0] * servers

    def begin(now: float, length: int) -> float:
        server = min(range(servers), key=free.__getitem__)
        seconds = latency * (1.0 + jitter * chance.random()) + length * servers / rate
        free[server] = max(now, free[server]) + seconds
        return free[server]

    return begin


def step(at: float, before: float, after: float) -> OverTime:
    return lambda now: before if now < at else after


class Bench:
    """A device under a scheduler with one plan, which asks again for whatever has ended."""

    def __init__(
        self, device: Begin, *, transfer: int | Callable[[], int] = 16 * MIB, limits: LinkLimits = LIMITS
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler()
        self.transfer = transfer
        self._device = device
        self._ids = count()
        self._ends: list[tuple[float, int, StartChunk]] = []
        self._served = 0
        self._tell(LinkOpened(DISK, limits))
        self._tell(PlanOpened("scan", PriorityClass.BATCH))
        self._tell(PlanOpened("urgent", PriorityClass.INTERACTIVE))

    def ask(self, transfers: int) -> None:
        length = self.transfer() if callable(self.transfer) else self.transfer
        self._tell(
            TransfersSubmitted(
                tuple(Transfer(next(self._ids), "scan", DISK, Extent(0, length)) for _ in range(transfers))
            )
        )

    def run(self, until: float, *, goes_on: bool = True) -> float:
        """Bytes per second from now on."""
        served, since = self._served, self.now
        while self._ends and self._ends[0][0] <= until:
            self.now, _, chunk = heapq.heappop(self._ends)
            wake = self.scheduler.next_wake()
            if wake is not None and wake <= self.now:
                self._tell(TimePassed())
            self._served += chunk.chunk.length
            ended = self._tell(ChunksCompleted(((chunk.transfer_id, chunk.chunk.offset),)))
            if ended and goes_on:
                self.ask(ended)
        self.now = until
        return (self._served - served) / (until - since)

    def urgent(self, length: int = 64 << 10) -> float:
        """How long an urgent transfer takes that comes now."""
        started, number = self.now, next(self._ids)
        self._tell(TransfersSubmitted((Transfer(number, "urgent", DISK, Extent(0, length)),)))
        while True:
            ends = [end for end, _, chunk in self._ends if chunk.transfer_id == number]
            if ends:
                self.run(ends[0])
                return ends[0] - started
            self.run(self._ends[0][0])

    def give_up(self) -> None:
        """End the plan, whose chunks come out at once, and open it again."""
        self._tell(PlanClosed("scan"))
        inside, self._ends = self._ends, []
        for _, _, chunk in inside:
            self.now += 1e-5
            self._tell(ChunksCompleted(((chunk.transfer_id, chunk.chunk.offset),)))
        self._tell(PlanOpened("scan", PriorityClass.BATCH))

    @property
    def window(self) -> int:
        return self.scheduler.statistics().links[0].window_bytes

    @property
    def chunk(self) -> int:
        return self.scheduler.statistics().links[0].chunk_bytes

    def _tell(self, event: Event) -> int:
        actions: list[Action] = self.scheduler.handle(event, self.now)
        for action in actions:
            if isinstance(action, StartChunk):
                heapq.heappush(self._ends, (self._device(self.now, action.chunk.length), next(self._ids), action))
        return sum(isinstance(action, CompleteTransfer) for action in actions)


def lone_bytes(device: Begin, rate: float, chunk: int) -> float:
    """B L0 + chunk: what passes while one chunk goes through the empty device alone."""
    late = 1e6
    return rate * (device(late, chunk) - late)


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        pytest.param(lambda: serial(6 * GIGA, 100e-6), 6 * GIGA, id="nvme"),
        pytest.param(lambda: serial(6 * GIGA, 100e-6, jitter=0.5), 6 * GIGA, id="nvme with jitter"),
        pytest.param(lambda: serial(0.1 * GIGA, 100e-6), 0.1 * GIGA, id="slow"),
        pytest.param(lambda: serial(2 * GIGA, 1e-3), 2 * GIGA, id="a millisecond"),
        pytest.param(lambda: serial(1 * GIGA, 10e-3), 1 * GIGA, id="cloud"),
        pytest.param(lambda: parallel(4 * GIGA, 10e-6, 4), 4 * GIGA, id="four servers in step"),
        pytest.param(lambda: parallel(4 * GIGA, 10e-6, 4, jitter=1.0), 4 * GIGA, id="four servers"),
        pytest.param(lambda: parallel(4 * GIGA, 10e-6, 16, jitter=1.0), 4 * GIGA, id="sixteen servers"),
    ],
)
def test_a_device_is_kept_busy_with_little_inside(device: Callable[[], Begin], rate: float) -> None:
    """After a second, with a window that was not chosen for it."""
    bench = Bench(device())
    bench.ask(8)
    bench.run(1.0)
    for second in range(2, 9):
        assert bench.run(second) > 0.97 * rate
        most = 2.0 * lone_bytes(device(), rate, bench.chunk) + bench.chunk
        assert bench.window <= most


def test_most_of_the_rate_is_there_from_the_beginning() -> None:
    for latency, least in ((100e-6, 0.99), (1e-3, 0.97), (10e-3, 0.8)):
        bench = Bench(serial(1 * GIGA, latency))
        bench.ask(8)
        assert bench.run(1.0) > least * GIGA


def test_chunks_as_long_as_the_first_window_are_not_alone_for_ever() -> None:
    """One after the other they would hide what several at once do."""
    limits = LinkLimits(
        chunk_bytes=4 * MIB, smallest_chunk_bytes=1 * MIB, window_bytes=4 * MIB, device_seconds=0.002, alignment=4096
    )
    bench = Bench(serial(4 * GIGA, 300e-6), limits=limits)
    assert (bench.chunk, bench.window) == (2 * MIB, 4 * MIB)
    bench.ask(8)
    bench.run(1.0)
    assert bench.chunk == 4 * MIB
    assert bench.window >= 8 * MIB
    assert bench.run(2.0) > 0.97 * 4 * GIGA


@pytest.mark.parametrize("rate", [0.3 * GIGA, 0.8 * GIGA, 2.5 * GIGA])
def test_long_chunks_hold_up_the_first_urgent_transfer_only(rate: float) -> None:
    limits = LinkLimits(chunk_bytes=2 * MIB, window_bytes=16 * MIB, device_seconds=0.002)
    bench, short = Bench(serial(rate, 80e-6), limits=limits), Bench(serial(rate, 80e-6))
    waits: list[list[float]] = []
    for one in (bench, short):
        one.ask(8)
        one.run(2.5)
        waits.append([])
        for _ in range(8):
            waits[-1].append(one.urgent())
            one.run(one.now + 0.05)
    assert bench.chunk > short.chunk or rate > GIGA
    assert waits[0][0] < 0.008
    assert max(waits[0][1:]) < 1.3 * max(waits[1][1:])


def test_what_a_few_small_reads_deliver_is_no_rate() -> None:
    bench = Bench(serial(1 * GIGA, 500e-6), transfer=8 << 10)
    for _ in range(10):
        bench.ask(2)
        bench.run(bench.now + 0.002, goes_on=False)
    assert bench.chunk == 2 * MIB


def test_a_long_way_costs_little_for_the_measurements() -> None:
    bench = Bench(serial(0.2 * GIGA, 100e-3))
    bench.ask(16)
    bench.run(5.0)
    assert bench.run(45.0) > 0.97 * 0.2 * GIGA


def test_a_device_that_slows_to_a_quarter_holds_less_within_a_second() -> None:
    bench = Bench(serial(step(5.0, 6 * GIGA, 1.5 * GIGA), 100e-6))
    bench.ask(8)
    bench.run(5.0)
    before = bench.window
    assert bench.run(6.0) > 0.97 * 1.5 * GIGA
    assert bench.window <= before / 3
    assert bench.run(10.0) > 0.97 * 1.5 * GIGA


def test_a_device_that_becomes_ten_times_as_fast_is_used_at_once() -> None:
    bench = Bench(serial(step(5.0, 0.5 * GIGA, 5 * GIGA), 100e-6))
    bench.ask(8)
    bench.run(5.0)
    assert bench.run(5.2) > 0.97 * 5 * GIGA


def test_a_latency_that_rises_is_found_and_one_that_falls_is_not_kept() -> None:
    for before, after in ((100e-6, 5e-3), (5e-3, 100e-6)):
        bench = Bench(serial(2 * GIGA, step(5.0, before, after)))
        bench.ask(8)
        bench.run(6.0)
        for second in range(7, 14):
            assert bench.run(second) > 0.97 * 2 * GIGA
        assert bench.window <= 2.0 * (2 * GIGA * after + bench.chunk) + bench.chunk


def test_an_hour_of_idleness() -> None:
    for factor in (0.25, 1.0, 4.0):
        bench = Bench(serial(step(1000.0, 2 * GIGA, factor * 2 * GIGA), 100e-6))
        bench.ask(8)
        bench.run(3.0)
        bench.run(10.0, goes_on=False)
        bench.run(3600.0, goes_on=False)
        bench.ask(8)
        bench.run(3601.0)
        assert bench.run(3602.0) > 0.97 * factor * 2 * GIGA
        bench.run(3608.0)
        assert bench.window <= 2.0 * (factor * 2 * GIGA * 100e-6 + bench.chunk) + bench.chunk


def test_chunks_that_are_given_up_do_not_tell_how_fast_a_device_is() -> None:
    """They may come out at once."""
    bench = Bench(serial(33e6, 100e-6))
    bench.ask(8)
    bench.run(2.0)
    before = bench.window
    for _ in range(5):
        bench.give_up()
        bench.ask(8)
    for second in (2.5, 3.0, 4.0, 10.0):
        bench.run(second)
        assert bench.window <= 2 * before


def test_small_requests_among_large_ones_do_not_hide_that_a_device_serves_several_at_once() -> None:
    chance = Random(3)
    bench = Bench(parallel(4 * GIGA, 10e-6, 4), transfer=lambda: 4096 if chance.random() < 0.7 else 8 * MIB)
    for _ in range(64):
        bench.ask(1)
    bench.run(1.0)
    assert bench.run(4.0) > 0.95 * 4 * GIGA


def test_only_small_requests() -> None:
    rate = 10 * 4096 / (90e-6 + 4096 * 10 / GIGA)
    bench = Bench(parallel(GIGA, 90e-6, 10), transfer=4096)
    bench.ask(400)
    bench.run(1.0)
    assert bench.run(3.0) > 0.97 * rate
    assert bench.window <= 2 * LIMITS.smallest_chunk_bytes


def test_one_request_at_a_time_teaches_nothing_false() -> None:
    for device, rate in ((serial(GIGA, 10e-3), GIGA), (parallel(4 * GIGA, 10e-6, 4), 4 * GIGA)):
        bench = Bench(device, transfer=256 << 10)
        bench.ask(1)
        bench.run(5.0)
        bench.transfer = 16 * MIB
        bench.ask(8)
        bench.run(5.5)
        assert bench.run(7.0) > 0.97 * rate


def test_a_first_request_that_opens_a_file_is_soon_forgotten() -> None:
    disk = serial(6 * GIGA, 100e-6)
    is_first = True

    def cold(now: float, length: int) -> float:
        nonlocal is_first
        if is_first:
            is_first = False
            return now + 0.3
        return disk(now, length)

    bench = Bench(cold)
    bench.ask(8)
    bench.run(1.0)
    assert bench.window <= 2.0 * (6 * GIGA * 100e-6 + bench.chunk)


def test_chunks_that_stall_now_and_then_do_not_blow_up_the_window() -> None:
    chance = Random(5)
    disk = serial(6 * GIGA, 100e-6)
    bench = Bench(lambda now, length: disk(now, length) + (2e-3 if chance.random() < 0.01 else 0.0))
    bench.ask(8)
    bench.run(1.0)
    for second in range(2, 8):
        assert bench.run(second) > 0.9 * 6 * GIGA
        assert bench.window <= 3.0 * (6 * GIGA * 100e-6 + bench.chunk)


def test_ends_that_are_noticed_late_and_together_count_as_latency() -> None:
    disk = serial(GIGA, 100e-6)
    bench = Bench(lambda now, length: math.ceil(disk(now, length) / 5e-3) * 5e-3)
    bench.ask(8)
    bench.run(1.0)
    for second in range(2, 8):
        assert bench.run(second) > 0.97 * GIGA
        assert bench.window <= 2.0 * (GIGA * 5e-3 + bench.chunk)


def test_a_write_cache_that_fills() -> None:
    """Fast for one second of five."""
    bench = Bench(serial(lambda now: 6 * GIGA if now % 5.0 < 1.0 else GIGA, 100e-6))
    bench.ask(8)
    for second in range(1, 15):
        served = bench.run(second)
        assert served > 0.97 * (6 * GIGA if (second - 1) % 5 == 0 else GIGA)
        if second % 5 in (0, 3, 4):
            assert bench.window <= 4.0 * (GIGA * 100e-6 + bench.chunk)


def test_the_rest_of_an_emptied_device_is_no_rate() -> None:
    """Four servers in step end their chunks almost together."""
    bench = Bench(parallel(4 * GIGA, 10e-6, 4, jitter=0.01))
    bench.ask(8)
    bench.run(1.0)
    for second in range(2, 30):
        bench.run(second)
        rate = bench.scheduler.statistics().links[0].bytes_per_second
        assert rate is not None
        assert rate < 1.3 * 4 * GIGA


def test_a_window_that_is_given_stays() -> None:
    scheduler = Scheduler()
    limits = LinkLimits(chunk_bytes=MIB, window_bytes=3 * MIB, calibrated=False)
    scheduler.handle(LinkOpened(DISK, limits), 0.0)
    scheduler.handle(PlanOpened("scan", PriorityClass.BATCH), 0.0)
    actions = scheduler.handle(TransfersSubmitted((Transfer(1, "scan", DISK, Extent(0, 100 * MIB)),)), 0.0)
    for step in range(1, 90):
        started = [action for action in actions if isinstance(action, StartChunk)]
        assert len(started) == (3 if step == 1 else 1)
        now = 0.001 * step
        actions = scheduler.handle(ChunksCompleted(((1, (step - 1) * MIB),)), now)
        assert scheduler.statistics().links[0].window_bytes == 3 * MIB
