"""A switch with one full-duplex port per node, in virtual time.

The switch forwards a chunk as soon as its first byte is there. Each port has a buffer; a chunk is not sent before it
fits into the buffer of the port it goes to (as with the credits of InfiniBand), so nothing is lost, and a sender whose
first chunk waits for that holds back what is behind it: head-of-line blocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pystachio.io_scheduler.core.request import Extent
from pystachio.io_scheduler.simulation.hardware import Network
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.trace import Trace
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime

if TYPE_CHECKING:
    from pystachio.io_scheduler.simulation.network import Grant

Entry = tuple[SimulatedTransfer, Extent, "Grant"]


class Switch:
    """`sent` hears when the last byte of a chunk has left its sender, `arrived` when it has reached its receiver."""

    def __init__(
        self,
        time: VirtualTime,
        spec: Network,
        meters: Sequence[tuple[LinkMeter, LinkMeter]],
        sent: Callable[[SimulatedTransfer, Extent], None],
        arrived: Callable[[Grant, int], None],
        trace: Trace | None,
    ) -> None:
        self.time = time
        self.spec = spec
        self.sent = sent
        self.arrived = arrived
        self.trace = trace
        self._ports = [Port(self, index, *pair) for index, pair in enumerate(meters)]

    def port(self, node: int) -> Port:
        return self._ports[node]


class Port:
    """Both directions of one node's cable, the sender's queue on one side and the switch's buffer on the other."""

    __slots__ = (
        "_blocked",
        "_buffered",
        "_egress_meter",
        "_free_at",
        "_index",
        "_ingress_meter",
        "_is_blocked",
        "_is_sending",
        "_queue",
        "_silent_until",
        "_switch",
        "_time",
        "control_bytes",
        "speed",
    )

    def __init__(self, switch: Switch, index: int, egress: LinkMeter, ingress: LinkMeter) -> None:
        self.control_bytes = 0
        """Of messages about transfers that go out before the next chunk."""
        self.speed = 1.0
        self._switch = switch
        self._time = switch.time
        self._index = index
        self._egress_meter = egress
        self._ingress_meter = ingress
        self._queue: deque[Entry] = deque()
        self._is_sending = False
        self._is_blocked = False
        self._buffered = 0
        self._blocked: deque[Port] = deque()
        self._free_at = 0.0
        self._silent_until = 0.0

    def send(self, transfer: SimulatedTransfer, chunk: Extent, grant: Grant) -> None:
        self._queue.append((transfer, chunk, grant))
        self._send_next()

    def drop(self, transfer: SimulatedTransfer, offsets: tuple[int, ...]) -> list[Extent]:
        """Take chunks that are not yet on the wire out of the queue."""
        entries = [entry for entry in self._queue if entry[0] is transfer and entry[1].offset in offsets]
        for entry in entries:
            self._queue.remove(entry)
        return [entry[1] for entry in entries]

    def answers_from(self, when: float) -> float:
        """When something that reaches the node at `when` is seen by it."""
        return max(when, self._silent_until)

    def fall_silent(self, until: float) -> None:
        """The node sends nothing, and sees nothing of what it is sent, before `until`."""
        self._silent_until = until
        self._time.at(until, Kind.FAULT, self._index, self._speak_again, None)

    def _speak_again(self, _: None) -> None:
        self._send_next()

    def _send_next(self) -> None:
        if self._is_sending or self._is_blocked or not self._queue or self._time.now < self._silent_until:
            return
        transfer, chunk, grant = self._queue[0]
        target = self._switch.port(grant.message.receiver)
        if not target._takes(chunk.length):
            self._is_blocked = True
            target._blocked.append(self)
            return
        entry = self._queue.popleft()
        self._is_sending = True
        now, rate = self._time.now, self._switch.spec.bytes_per_second * self.speed
        end = now + (chunk.length + self.control_bytes) / rate
        self.control_bytes = 0
        self._egress_meter.note(now, end, chunk.length, transfer.priority)
        if self._switch.trace is not None:
            self._switch.trace.served(transfer, chunk, now, end)
        grant.sent += chunk.length
        transfer_id = transfer.transfer.transfer_id
        self._time.at(end, Kind.WIRE, transfer_id, self._end_sending, entry)
        target._receive(entry, end)

    def _end_sending(self, entry: Entry) -> None:
        self._is_sending = False
        self._switch.sent(entry[0], entry[1])
        self._send_next()

    def _takes(self, length: int) -> bool:
        """Whether the switch has room for a chunk to this port; one always fits."""
        return not self._buffered or self._buffered + length <= self._switch.spec.port_buffer_bytes

    def _receive(self, entry: Entry, sent_at: float) -> None:
        """A chunk begins to flow towards this port now, and has left its sender at `sent_at`."""
        transfer, chunk, _ = entry
        spec = self._switch.spec
        self._buffered += chunk.length
        start = max(self._free_at, self._time.now + spec.hop_seconds)
        end = max(start + chunk.length / (spec.bytes_per_second * self.speed), sent_at + spec.hop_seconds)
        self._free_at = end
        self._ingress_meter.note(start, end, chunk.length, transfer.priority)
        if self._switch.trace is not None and (inbound := entry[2].inbound) is not None:
            self._switch.trace.served(inbound, chunk, start, end)
        self._time.at(end, Kind.WIRE, transfer.transfer.transfer_id, self._end_receiving, entry)

    def _end_receiving(self, entry: Entry) -> None:
        if self._time.now < self._silent_until:
            self._time.at(self._silent_until, Kind.WIRE, self._index, self._end_receiving, entry)
            return
        _, chunk, grant = entry
        self._buffered -= chunk.length
        self._switch.arrived(grant, chunk.length)
        while self._blocked and self._takes(self._blocked[0]._queue[0][1].length if self._blocked[0]._queue else 0):
            sender = self._blocked.popleft()
            sender._is_blocked = False
            sender._send_next()
