"""Devices take as long as can be worked out by hand."""

from __future__ import annotations

import pytest

from pystachio.io_scheduler.core.request import LinkLimits
from pystachio.io_scheduler.simulation.devices import Condition
from pystachio.io_scheduler.simulation.hardware import PCIE_LINK, Device
from tests.simulation.machine import DISK, Machine

DEVICE = Device(bytes_per_second=1000.0, latency_seconds=0.5)


def test_a_chunk_takes_its_latency_and_its_bytes() -> None:
    machine = Machine(DEVICE)
    machine.read(1, 1000)
    machine.run(100.0)
    assert machine.seconds() == {1: 1.5}


def test_latencies_overlap_and_bytes_do_not() -> None:
    machine = Machine(DEVICE)
    machine.read(1, 1000)
    machine.read(2, 2000)
    machine.run(100.0)
    assert machine.seconds() == {1: 1.5, 2: 3.5}
    assert machine.meter.busy_seconds == pytest.approx(3.0)
    assert machine.meter.chunks == 2


def test_beyond_its_depth_chunks_wait_for_the_whole_of_those_before() -> None:
    machine = Machine(Device(bytes_per_second=1000.0, latency_seconds=0.5, depth=1))
    machine.read(1, 1000)
    machine.read(2, 2000)
    machine.run(100.0)
    assert machine.seconds() == {1: 1.5, 2: 4.0}


def test_a_slow_device_takes_longer() -> None:
    machine = Machine(DEVICE)
    machine.disk.condition = Condition(speed=0.25)
    machine.read(1, 1000)
    machine.run(100.0)
    assert machine.seconds() == {1: 4.5}


def test_a_stalled_chunk_delays_nobody_else() -> None:
    machine = Machine(DEVICE)
    machine.disk.condition = Condition(stall_probability=1.0, stall_seconds=5.0)
    machine.read(1, 1000)
    machine.disk.condition = Condition()
    machine.read(2, 1000)
    machine.run(100.0)
    assert machine.seconds() == {2: 1.5, 1: 6.5}


NO_RETRY = LinkLimits(chunk_bytes=1 << 30, window_bytes=1 << 40, calibrated=False, timeout_seconds=2.0, attempts=1)


def test_an_error_comes_after_the_latency() -> None:
    machine = Machine(DEVICE, limits=NO_RETRY)
    machine.disk.condition = Condition(error_probability=1.0)
    machine.read(1, 1000)
    machine.run(100.0)
    assert machine.ended == {1: (0.5, "data_error")}


def test_a_short_read_has_moved_half_of_the_bytes() -> None:
    machine = Machine(DEVICE, limits=NO_RETRY)
    machine.disk.condition = Condition(short_read_probability=1.0)
    machine.read(1, 1000)
    machine.run(100.0)
    assert machine.ended == {1: (1.0, "data_error")}


def test_what_fails_is_tried_again() -> None:
    machine = Machine(DEVICE)
    machine.disk.condition = Condition(error_probability=1.0)
    machine.read(1, 1000)
    machine.run(0.501)
    machine.disk.recover()
    machine.run(100.0)
    (seconds, error) = machine.ended[1]
    assert error == ""
    assert seconds == pytest.approx(0.5 + 0.01 + 1.5, abs=1e-6)


def test_a_device_that_vanished_answers_nothing_until_it_is_back() -> None:
    machine = Machine(DEVICE, limits=NO_RETRY)
    machine.read(1, 1000)
    machine.disk.condition = Condition(vanished=True)
    machine.run(50.0)
    assert machine.ended[1][1] == "resource_exhausted", "the core gave it up after its time-out, and again as long"
    assert 4.0 <= machine.ended[1][0] <= 6.0
    assert machine.node.scheduler.statistics().links[0].written_off_bytes == 1000
    machine.disk.recover()
    assert machine.node.scheduler.statistics().links[0].written_off_bytes == 0


def test_bytes_cross_the_bus_after_they_have_left_the_disk() -> None:
    machine = Machine(DEVICE, pcie=Device(bytes_per_second=500.0, latency_seconds=0.25))
    machine.read(1, 1000, through=PCIE_LINK)
    machine.read(2, 1000, through=PCIE_LINK)
    machine.run(100.0)
    # The disk is done after 1.5 and 2.5 s; the bus takes 2 s for each.
    assert machine.seconds() == {1: 3.75, 2: 5.75}


def test_what_waits_inside_the_device_can_be_cancelled() -> None:
    machine = Machine(Device(bytes_per_second=1000.0, depth=1))
    machine.read(1, 1000)
    machine.read(2, 1000)
    (second,) = (transfer for number, transfer in machine.node.transfers.items() if number == 2)
    machine.node.server(DISK).cancel(second, (0,))
    machine.run(100.0)
    assert machine.ended[1] == (1.0, "")
    assert machine.ended[2][0] == 0.0
    assert machine.ended[2][1] == "cancelled"
