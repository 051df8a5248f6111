"""Devices in virtual time: disks, buses and processors, and what can go wrong with them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pystachio.errors import Cancelled, DataError, PystachioError
from pystachio.io_scheduler.core.request import Extent
from pystachio.io_scheduler.simulation.hardware import Device
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.trace import Trace
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime


class ChunkServer(Protocol):
    """What a node hands chunks to. Each that was started ends once, by `SimulatedNode.end_chunk`, or never."""

    def start(self, transfer: SimulatedTransfer, chunk: Extent) -> None: ...

    def cancel(self, transfer: SimulatedTransfer, offsets: tuple[int, ...]) -> None:
        """Nobody wants these chunks any more; one that has not begun ends at once."""
        ...


@dataclass(slots=True, eq=False)
class Condition:
    """What is wrong with a device at present. Probabilities are per chunk."""

    speed: float = 1.0
    stall_probability: float = 0.0
    stall_seconds: float = 0.0
    error_probability: float = 0.0
    short_read_probability: float = 0.0
    vanished: bool = False


class SimulatedDevice:
    """See `hardware.Device`. Bytes that go `through` another link cross its `bus` when they have left the device."""

    def __init__(
        self,
        time: VirtualTime,
        spec: Device,
        meter: LinkMeter,
        chance: Random,
        *,
        bus: SimulatedDevice | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.condition = Condition()
        self._time = time
        self._spec = spec
        self._meter = meter
        self._chance = chance
        self._bus = bus
        self._trace = trace
        self._free_at = 0.0
        self._inside = 0
        self._waiting: deque[tuple[SimulatedTransfer, Extent]] = deque()
        self._lost: list[tuple[SimulatedTransfer, Extent]] = []

    def start(self, transfer: SimulatedTransfer, chunk: Extent) -> None:
        if self._inside >= self._spec.depth:
            self._waiting.append((transfer, chunk))
        else:
            self._begin(transfer, chunk)

    def cancel(self, transfer: SimulatedTransfer, offsets: tuple[int, ...]) -> None:
        unwanted = [entry for entry in self._waiting if entry[0] is transfer and entry[1].offset in offsets]
        for entry in unwanted:
            self._waiting.remove(entry)
            transfer.node.end_chunk(transfer, entry[1], Cancelled("the chunk was cancelled inside the device"))

    def cross(self, transfer: SimulatedTransfer, chunk: Extent) -> float:
        """As a bus that the bytes of the chunk have reached: when they will have crossed it."""
        start = max(self._time.now, self._free_at)
        self._free_at = start + chunk.length / (self._spec.bytes_per_second * self.condition.speed)
        self._meter.note(start, self._free_at, chunk.length, transfer.priority)
        return self._free_at + self._spec.latency_seconds

    def recover(self) -> None:
        """All is well again. Chunks that were lost meanwhile fail, late."""
        self.condition = Condition()
        lost, self._lost = self._lost, []
        for started in lost:
            self._leave(*started, _no_answer())

    def _begin(self, transfer: SimulatedTransfer, chunk: Extent) -> None:
        self._inside += 1
        condition = self.condition
        seconds = self._spec.latency_seconds
        if condition.stall_probability and self._chance.random() < condition.stall_probability:
            # Only the bytes of this chunk are late: they take their turn when they are there.
            self._at(self._time.now + seconds + condition.stall_seconds, transfer, self._pass, (transfer, chunk))
        elif condition.error_probability and self._chance.random() < condition.error_probability:
            self._at(self._time.now + seconds, transfer, self._fail, (transfer, chunk))
        else:
            self._pass_from(self._time.now + seconds, transfer, chunk)

    def _pass(self, started: tuple[SimulatedTransfer, Extent]) -> None:
        self._pass_from(self._time.now, *started)

    def _pass_from(self, ready_at: float, transfer: SimulatedTransfer, chunk: Extent) -> None:
        """The bytes pass when those before them have."""
        condition = self.condition
        start = ready_at if ready_at > self._free_at else self._free_at
        length, act = chunk.length, self._end
        if condition.short_read_probability and self._chance.random() < condition.short_read_probability:
            length, act = length // 2, self._fail
        end = self._free_at = start + length / (self._spec.bytes_per_second * condition.speed)
        self._meter.note(start, end, length, transfer.priority)
        if self._trace is not None:
            self._trace.served(transfer, chunk, start, end)
        self._at(end, transfer, act, (transfer, chunk))

    def _at(
        self, when: float, transfer: SimulatedTransfer, act: _Act, started: tuple[SimulatedTransfer, Extent]
    ) -> None:
        self._time.at(when, Kind.DEVICE, transfer.transfer.transfer_id, act, started)

    def _end(self, started: tuple[SimulatedTransfer, Extent]) -> None:
        transfer, chunk = started
        if self.condition.vanished:
            self._lost.append(started)
            return
        if self._bus is not None and transfer.transfer.through is not None:
            self._next()
            self._at(self._bus.cross(transfer, chunk), transfer, self._arrive, started)
            return
        self._leave(transfer, chunk, None)

    def _arrive(self, started: tuple[SimulatedTransfer, Extent]) -> None:
        transfer, chunk = started
        transfer.node.end_chunk(transfer, chunk, None)

    def _fail(self, started: tuple[SimulatedTransfer, Extent]) -> None:
        if self.condition.vanished:
            self._lost.append(started)
        else:
            self._leave(*started, _no_answer())

    def _leave(self, transfer: SimulatedTransfer, chunk: Extent, error: PystachioError | None) -> None:
        self._next()
        transfer.node.end_chunk(transfer, chunk, error)

    def _next(self) -> None:
        self._inside -= 1
        if self._waiting and self._inside < self._spec.depth:
            self._begin(*self._waiting.popleft())


class _Act(Protocol):
    def __call__(self, started: tuple[SimulatedTransfer, Extent], /) -> None: ...


def _no_answer() -> PystachioError:
    """What a lost path to a disk looks like (EIO): the core may try again."""
    error = DataError("the simulated device returned an error")
    error.retryable = True
    return error
