"""The network: offers, grants and chunks between nodes, their ports and the switch.

A sender offers a transfer; its receiver's core schedules it on the port that the bytes will come in by, with the memory
that they will need, and every chunk that it starts is a grant; the sender's core schedules what was granted on the port
that it leaves by. Without receivers' grants (`push`) a sender sends whatever it has at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.core.events import TransfersCancelled
from pystachio.io_scheduler.core.request import CreditPool, Extent, PriorityClass, Transfer
from pystachio.io_scheduler.network.backlog import backlog_chunks, egress_criticality
from pystachio.io_scheduler.simulation.hardware import EGRESS, INGRESS, Network
from pystachio.io_scheduler.simulation.meter import LinkMeter
from pystachio.io_scheduler.simulation.node import SimulatedNode
from pystachio.io_scheduler.simulation.switch import Port, Switch
from pystachio.io_scheduler.simulation.trace import Trace
from pystachio.io_scheduler.simulation.transfer import SimulatedTransfer
from pystachio.io_scheduler.simulation.virtual_time import Kind, VirtualTime


class Message:
    """`length` bytes for another node. `ended` hears at the receiver that all have arrived, or why they did not;
    `delivered`, where given, of each chunk on its way.
    """

    __slots__ = (
        "context",
        "credit",
        "criticality",
        "delivered",
        "ended",
        "granted",
        "length",
        "plan_id",
        "priority",
        "receiver",
        "sender",
    )

    def __init__(
        self,
        sender: int,
        receiver: int,
        length: int,
        *,
        plan_id: str,
        priority: PriorityClass,
        ended: Callable[[Message, PystachioError | None], None],
        delivered: Callable[[SimulatedTransfer, Extent], None] | None = None,
        credit: CreditPool | None = None,
        criticality: int = 0,
        context: object = None,
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.length = length
        self.plan_id = plan_id
        self.priority = priority
        self.ended = ended
        self.credit = credit
        self.criticality = criticality
        self.delivered = delivered
        self.context = context
        self.granted = 0
        """Bytes that its receiver has asked for, those asked for again included."""


class Grant:
    """The receiver's leave to send one chunk. `withdrawn`: the sender will send no more of it."""

    __slots__ = ("arrived", "chunk", "criticality", "inbound", "message", "outbound_id", "sent", "withdrawn")

    def __init__(self, message: Message, inbound: SimulatedTransfer | None, chunk: Extent, criticality: int) -> None:
        self.message = message
        self.inbound = inbound
        """None when the sender pushes."""
        self.chunk = chunk
        self.criticality = criticality
        self.sent = 0
        self.arrived = 0
        self.outbound_id = 0
        self.withdrawn = False


class SimulatedNetwork:
    """`messages` counts offers, grants and what else is said about transfers."""

    def __init__(
        self,
        time: VirtualTime,
        spec: Network,
        nodes: Sequence[SimulatedNode],
        meters: Sequence[tuple[LinkMeter, LinkMeter]],
        transfer_ids: count[int],
        *,
        push: bool,
        trace: Trace | None,
    ) -> None:
        """`meters` are those of each node's egress and ingress."""
        self.messages = 0
        self._time = time
        self._spec = spec
        self._nodes = nodes
        self._ids = transfer_ids
        self._push = push
        self._names = [f"node{node.index}" for node in nodes]
        self._granted: dict[tuple[int, int], Grant] = {}
        self._backlog: Counter[tuple[int, str]] = Counter()
        """Bytes that were offered to a receiver by a plan, and not yet asked for."""
        self._switch = Switch(time, spec, meters, self._sent, self._arrived, trace)
        for node in nodes:
            node.open_link(EGRESS, spec.egress_limits(), Egress(self._switch.port(node.index)))
            node.open_link(INGRESS, spec.ingress_limits(), Ingress(self))

    def port(self, node: int) -> Port:
        return self._switch.port(node)

    def send(self, messages: Sequence[Message]) -> None:
        """Offer all of them, each to its receiver."""
        if self._push:
            for message in messages:
                # The receiver is not asked whether it has memory.
                message.credit = None
                self._submit_outbound(Grant(message, None, Extent(0, message.length), message.criticality))
            return
        by_receiver: dict[int, list[Message]] = {}
        for message in messages:
            self._count_control(message.sender)
            by_receiver.setdefault(message.receiver, []).append(message)
        for receiver, offered in by_receiver.items():
            self._control(receiver, self._offered, offered)

    def _offered(self, messages: list[Message]) -> None:
        receiver = self._nodes[messages[0].receiver]
        receiver.submit(*[self._inbound(message) for message in messages])

    def _inbound(self, message: Message) -> SimulatedTransfer:
        self._backlog[message.receiver, message.plan_id] += message.length
        transfer = Transfer(
            next(self._ids),
            message.plan_id,
            INGRESS,
            Extent(0, message.length),
            criticality=message.criticality,
            credit=message.credit,
            by_chunk=message.delivered is not None,
            peer=self._names[message.sender],
            rank=(message.sender - message.receiver) % len(self._nodes),
        )
        return SimulatedTransfer(
            transfer, message.priority, self._inbound_ended, delivered=message.delivered, context=message
        )

    def grant(self, inbound: SimulatedTransfer, chunk: Extent) -> None:
        """Tell the sender that it may send this chunk now, and how much its receiver is still waiting for.

        Senders serve the receiver with the longest backlog first: the port that will be busy longest must never wait.
        """
        message = inbound.context
        assert isinstance(message, Message)
        backlog = self._backlog[message.receiver, message.plan_id]
        self._backlog[message.receiver, message.plan_id] = backlog - chunk.length
        message.granted += chunk.length
        criticality = egress_criticality(message.criticality, backlog_chunks(backlog, self._spec.chunk_bytes))
        grant = Grant(message, inbound, chunk, criticality)
        self._granted[inbound.transfer.transfer_id, chunk.offset] = grant
        self._count_control(message.receiver)
        self._control(message.sender, self._submit_outbound, grant)

    def revoke(self, inbound: SimulatedTransfer, offset: int) -> None:
        """Nobody wants the chunk any more; the sender sends it if it is too late."""
        grant = self._granted[inbound.transfer.transfer_id, offset]
        self._count_control(grant.message.receiver)
        self._control(grant.message.sender, self._revoked, grant)

    def _revoked(self, grant: Grant) -> None:
        sender = self._nodes[grant.message.sender]
        if grant.outbound_id in sender.transfers:
            sender.tell(TransfersCancelled((grant.outbound_id,)))

    def _submit_outbound(self, grant: Grant) -> None:
        message = grant.message
        grant.outbound_id = next(self._ids)
        transfer = Transfer(
            grant.outbound_id,
            message.plan_id,
            EGRESS,
            grant.chunk,
            criticality=grant.criticality,
            peer=self._names[message.receiver],
        )
        outbound = SimulatedTransfer(transfer, message.priority, self._outbound_ended, context=grant)
        self._nodes[message.sender].submit(outbound)

    def _outbound_ended(self, outbound: SimulatedTransfer, error: PystachioError | None) -> None:
        grant = outbound.context
        assert isinstance(grant, Grant)
        if error is not None and grant.sent < grant.chunk.length:
            self._count_control(grant.message.sender)
            self._control(grant.message.receiver, self._withdrawn, grant)

    def _withdrawn(self, grant: Grant) -> None:
        grant.withdrawn = True
        self._settle(grant)

    def _sent(self, outbound: SimulatedTransfer, chunk: Extent) -> None:
        """The last byte has left the sender."""
        outbound.node.end_chunk(outbound, chunk, None)

    def _arrived(self, grant: Grant, length: int) -> None:
        grant.arrived += length
        self._settle(grant)

    def _inbound_ended(self, inbound: SimulatedTransfer, error: PystachioError | None) -> None:
        message = inbound.context
        assert isinstance(message, Message)
        # What was never asked for, or was asked for twice.
        self._backlog[message.receiver, message.plan_id] -= message.length - message.granted
        message.ended(message, error)

    def _settle(self, grant: Grant) -> None:
        """A chunk ends at its receiver when nothing more of it can come."""
        error: PystachioError | None = None
        if grant.arrived < grant.chunk.length:
            if not grant.withdrawn or grant.arrived < grant.sent:
                return
            error = Cancelled("the sender has withdrawn the transfer", plan_id=grant.message.plan_id)
        if grant.inbound is None:
            grant.message.ended(grant.message, error)
        else:
            del self._granted[grant.inbound.transfer.transfer_id, grant.chunk.offset]
            grant.inbound.node.end_chunk(grant.inbound, grant.chunk, error)

    def _count_control(self, sender: int) -> None:
        self.messages += 1
        self._switch.port(sender).control_bytes += self._spec.control_bytes

    def _control(self, receiver: int, act: Callable[[Any], None], argument: object) -> None:
        when = self._switch.port(receiver).answers_from(self._time.now + self._spec.hop_seconds)
        self._time.at(when, Kind.CONTROL, receiver, act, argument)


class Egress:
    """The core's view of the port that a node sends by."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def start(self, transfer: SimulatedTransfer, chunk: Extent) -> None:
        grant = transfer.context
        assert isinstance(grant, Grant)
        self._port.send(transfer, chunk, grant)

    def cancel(self, transfer: SimulatedTransfer, offsets: tuple[int, ...]) -> None:
        for chunk in self._port.drop(transfer, offsets):
            transfer.node.end_chunk(transfer, chunk, Cancelled("the chunk was cancelled before it was sent"))


class Ingress:
    """The core's view of the port that a node receives by: starting a chunk lets somebody send it."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network

    def start(self, transfer: SimulatedTransfer, chunk: Extent) -> None:
        self._network.grant(transfer, chunk)

    def cancel(self, transfer: SimulatedTransfer, offsets: tuple[int, ...]) -> None:
        for offset in offsets:
            self._network.revoke(transfer, offset)
