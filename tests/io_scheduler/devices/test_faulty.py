"""Injected faults, in virtual time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

import pytest

from pystachio.errors import DataError
from pystachio.io_scheduler.core.request import Direction, LinkLimits, PathTaken
from pystachio.io_scheduler.devices import ChunkEnd, ChunkRequest
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.devices.faulty import (
    ChooseFault,
    Fail,
    Fault,
    FaultyDevice,
    Short,
    Slow,
    Stall,
    Vanish,
    by_chance,
    during,
    scripted,
)
from tests import virtual_time
from tests.io_scheduler.scripted_device import ScriptedDevice

CONTENT = bytes(range(200))


class Bench:
    """Ten bytes take a second; `ends` says when each chunk ended, and how."""

    def __init__(self, choose: ChooseFault, direction: Direction = Direction.READ) -> None:
        self.loop = asyncio.get_running_loop()
        self.inner = ScriptedDevice({"/f": CONTENT})
        wire = EmulatedDevice(self.inner, bytes_per_second=10.0, timers=self.loop)
        self.device = FaultyDevice(wire, choose, timers=self.loop, direction=direction)
        self.file = self.device.open("/f")
        self.ends: dict[int, tuple[float, ChunkEnd]] = {}
        self.requests: list[ChunkRequest] = []

    def start(self, offset: int) -> None:
        request = ChunkRequest(self.file, offset, memoryview(bytearray(10)), 10)
        self.requests.append(request)

        def ended(end: ChunkEnd) -> None:
            assert offset not in self.ends, "ended twice"
            self.ends[offset] = (round(self.loop.time(), 6), end)

        self.device.start(request, ended)


def ends_of(choose: ChooseFault, chunks: int, seconds: float = 1000.0) -> list[tuple[float, ChunkEnd] | None]:
    """Chunks that are started together, after so long."""

    async def main() -> list[tuple[float, ChunkEnd] | None]:
        bench = Bench(choose)
        for number in range(chunks):
            bench.start(10 * number)
        await asyncio.sleep(seconds)
        return [bench.ends.get(10 * number) for number in range(chunks)]

    return virtual_time.run(main())


GOOD = ChunkEnd(10, PathTaken.EMULATED)


def test_without_faults_nothing_changes() -> None:
    assert ends_of(scripted({}), 3) == [(1.0, GOOD), (2.0, GOOD), (3.0, GOOD)]


def test_one_chunk_stalls_and_the_others_pass() -> None:
    assert ends_of(scripted({0: Stall(5.0)}), 3) == [(6.0, GOOD), (2.0, GOOD), (3.0, GOOD)]


def test_what_stalls_for_ever_ends_when_it_is_let_go() -> None:
    async def main() -> tuple[int, dict[int, tuple[float, ChunkEnd]]]:
        bench = Bench(scripted({0: Stall()}))
        bench.start(0)
        await asyncio.sleep(100.0)
        assert not bench.ends
        held = bench.device.held
        bench.device.release()
        assert bench.device.held == 0
        return held, bench.ends

    assert virtual_time.run(main()) == (1, {0: (100.0, GOOD)})


@pytest.mark.parametrize("together", [False, True])
def test_a_slow_device_has_a_quarter_of_its_rate_from_a_time_on(together: bool) -> None:
    async def main() -> list[float]:
        bench = Bench(during(Slow(4.0), since=0.0 if together else 2.0))
        for number in range(6):
            bench.start(10 * number)
            await asyncio.sleep(0.0 if together else 4.0 if number > 1 else 1.0)
        await asyncio.sleep(100.0)
        return sorted(at for at, _ in bench.ends.values())

    # One after the other, the first two at full speed; or all inside at once.
    assert virtual_time.run(main()) == ([4, 8, 12, 16, 20, 24] if together else [1, 2, 6, 10, 14, 18])


def test_errors_of_the_system_come_before_or_after_some_bytes() -> None:
    early, late = ends_of(scripted({0: Fail(errno.EIO), 1: Fail(errno.EIO, after_bytes=5)}), 2)
    assert early is not None
    assert late is not None
    assert (early[0], early[1].transferred) == (0.0, 0)
    assert (late[0], late[1].transferred) == (0.5, 5)
    for _, end in (early, late):
        assert isinstance(end.error, DataError)
        assert end.error.retryable
    assert early[1].error is not late[1].error


def test_a_short_chunk_reports_no_error() -> None:
    assert ends_of(scripted({0: Short(3)}), 2) == [(0.3, ChunkEnd(3, PathTaken.EMULATED)), (1.3, GOOD)]


def test_a_device_vanishes_with_all_that_is_inside() -> None:
    inside, last, later = ends_of(scripted({1: Vanish()}), 3)
    assert inside is not None
    assert inside[0] == 1.0, "the device behind still touches its buffer until then"
    for end in (inside, last, later):
        assert end is not None
        assert isinstance(end[1].error, DataError)
        assert not end[1].error.retryable


def test_a_write_that_fails_says_so() -> None:
    async def main() -> str:
        bench = Bench(scripted({0: Fail(errno.EIO)}), Direction.WRITE)
        bench.start(0)
        await asyncio.sleep(1.0)
        return str(bench.ends[0][1].error)

    assert "written" in virtual_time.run(main())


def test_an_abandoned_chunk_is_passed_on_to_the_device_behind() -> None:
    async def main() -> tuple[list[int], float]:
        bench = Bench(scripted({0: Stall(1.0)}))
        bench.inner.at_once = False
        bench.start(0)
        bench.device.abandon(bench.requests[0])
        abandoned = list(bench.inner.abandoned)
        bench.inner.end_all()
        await asyncio.sleep(5.0)
        return abandoned, bench.ends[0][0]

    assert virtual_time.run(main()) == ([0], 1.0)


def test_the_same_seed_makes_the_same_faults() -> None:
    chances: dict[Fault, float] = {Stall(1.0): 0.1, Fail(errno.EIO): 0.2, Short(1): 0.05}

    def faults(seed: int) -> Sequence[Fault | None]:
        choose = by_chance(seed, chances)
        return [choose(number, 0.0) for number in range(2000)]

    assert faults(1) == faults(1) != faults(2)
    for fault, probability in chances.items():
        assert faults(3).count(fault) == pytest.approx(2000 * probability, rel=0.25)


def test_limits_may_be_its_own() -> None:
    async def main() -> tuple[LinkLimits, LinkLimits]:
        inner, loop = ScriptedDevice({}), asyncio.get_running_loop()
        other = LinkLimits(chunk_bytes=7, window_bytes=7)
        plain = FaultyDevice(inner, scripted({}), timers=loop)
        own = FaultyDevice(inner, scripted({}), timers=loop, limits=other)
        plain.close()
        assert inner.closed
        return plain.limits, own.limits

    assert virtual_time.run(main()) == (ScriptedDevice({}).limits, LinkLimits(chunk_bytes=7, window_bytes=7))
