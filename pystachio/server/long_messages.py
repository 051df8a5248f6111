"""Messages to other nodes that are too long for the control connection: plans of many constants, footers, long lists.

The control connection says that one is there; its bytes come as a data message, which the receiver asks for piece by
piece. So heartbeats, cancellations and ends of plans never wait behind bulk, and bulk never fills that connection.
What is told arrives, or the connection to that node ends, or it is found to take this node for no member: whoever told
it need not ask.

A message is announced when it has its sender's place, and its bytes are there: then its receiver's places are only ever
held by messages that move, and no nodes wait for each other in a circle. Each class has its own places, and so have
those of up to a MiB: what is urgent or short does not wait behind bulk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count

from pystachio.errors import Cancelled, DataError, InvalidRequest, NodeLost, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.server.messages import LongMessageSent
from pystachio.server.node_network import DataNetwork

SHORT_BYTES = 64 << 10
"""What the control connection carries itself."""
LONGEST_BYTES = 32 << 20
PATIENCE_SECONDS = 60.0
"""For so long a receiver may leave a message alone. It tells when it refuses one: this is for what nobody foresaw, and
far longer than any queue for places."""
_MIDDLING_BYTES = 1 << 20
_LONG_AT_ONCE = 1
_MIDDLING_AT_ONCE = 4
"""Under way each way, of a class, with all nodes together: so many are in memory. With three classes that is 108 MiB
each way at most, which nobody reserves."""
_MOST_ANNOUNCED = 4096
"""By one node, and not yet here."""


def traffic_plan(priority: PriorityClass) -> str:
    """What the scheduler's ledger calls the traffic of a class; it is open in the scheduler, in that class."""
    return f"control {priority.name.lower()}"


class LongMessages:
    """Everything is called on the loop. `start` runs a coroutine until its end or the control plane's."""

    def __init__(
        self,
        network: DataNetwork,
        *,
        start: Callable[[str, Callable[[], Coroutine[object, object, None]]], asyncio.Task[None]],
        announce: Callable[[str, LongMessageSent], bool],
        heard: Callable[[str, bytearray], None],
    ) -> None:
        """`announce` tells a node of a message, and returns whether it is connected; `heard` gets those that came."""
        self._network = network
        self._start = start
        self._announce = announce
        self._heard = heard
        self._numbers = count(1)
        self._sending = _Places()
        self._receiving = _Places()
        self._outgoing: dict[str, set[asyncio.Task[None]]] = {}
        self._incoming: dict[str, set[asyncio.Task[None]]] = {}
        self._announced: Counter[str] = Counter()

    def tell(
        self, node: str, length: int, body: Callable[[], bytes], priority: PriorityClass = PriorityClass.INTERACTIVE
    ) -> asyncio.Task[None] | None:
        """The task that ends when the message has arrived, or will not; None when the node is not connected.

        `body` is called when the message's turn has come: many that wait are not all in memory. It is no longer than
        `length`. Raises InvalidRequest for one that no node takes.
        """
        if length > LONGEST_BYTES:
            raise InvalidRequest(
                f"a plan, or the footers that it needs, is too long for other nodes: {length:,} bytes, "
                f"{LONGEST_BYTES:,} are allowed",
                hint="put the constants into a table and join it; give files to the nodes that read them",
            )
        if node not in self._network.peers:
            return None
        number = next(self._numbers)
        task = self._start(f"tell {node} {number}", partial(self._send, node, number, length, body, priority))
        _keep(self._outgoing, node, task)
        return task

    def take(self, node: str, message: LongMessageSent) -> None:
        """A member has one for this node. Raises DataError for one that cannot be."""
        if message.length > LONGEST_BYTES or self._announced[node] >= _MOST_ANNOUNCED:
            raise DataError(f"a node has too long a message, or too many: {message.length:,} bytes", node=node)
        self._announced[node] += 1
        task = self._start(f"hear {node} {message.number}", partial(self._receive, node, message))
        _keep(self._incoming, node, task)
        task.add_done_callback(lambda task: self._forget(node))

    def withdraw(self, node: str) -> None:
        """The node takes this one for no member, or is none: what it has not got is not sent any more."""
        for task in tuple(self._outgoing.get(node, ())):
            task.cancel()

    def lose(self, node: str) -> None:
        """The connection is gone: what was announced on it does not come, and what waits for a place is not for the
        node's next one."""
        self.withdraw(node)
        for task in tuple(self._incoming.get(node, ())):
            task.cancel()

    async def _send(
        self, node: str, number: int, length: int, body: Callable[[], bytes], priority: PriorityClass
    ) -> None:
        async with self._sending.of(length, priority):
            message = body()
            if self._announce(node, LongMessageSent(number, len(message), priority)):
                sending = self._network.send(
                    node, _key(number, priority), memoryview(message), patience=PATIENCE_SECONDS
                )
                await self._end_with(node, sending)

    async def _receive(self, node: str, message: LongMessageSent) -> None:
        async with self._receiving.of(message.length, message.priority):
            body = bytearray(message.length)
            key = _key(message.number, message.priority)
            receiving = self._network.receive(node, key, memoryview(body), patience=PATIENCE_SECONDS)
            if await self._end_with(node, receiving):
                self._heard(node, body)

    def _forget(self, node: str) -> None:
        """One that was announced is here, or will not come."""
        self._announced[node] -= 1
        if not self._announced[node]:
            del self._announced[node]

    async def _end_with(self, node: str, moving: Coroutine[object, object, object]) -> bool:
        """Whether the message has moved; a message that is lost takes its connection along."""
        try:
            await moving
        except (NodeLost, Cancelled):
            return False  # the connection is gone, or the other end has ended it and says so
        except PystachioError as error:
            self._network.disconnect(node, f"a message did not arrive: {error.message}")
            return False
        return True


class _Places:
    """One way's: who is here may move."""

    def __init__(self) -> None:
        self._long = {priority: asyncio.Semaphore(_LONG_AT_ONCE) for priority in PriorityClass}
        self._middling = {priority: asyncio.Semaphore(_MIDDLING_AT_ONCE) for priority in PriorityClass}

    def of(self, length: int, priority: PriorityClass) -> asyncio.Semaphore:
        return (self._middling if length <= _MIDDLING_BYTES else self._long)[priority]


def _keep(tasks: dict[str, set[asyncio.Task[None]]], node: str, task: asyncio.Task[None]) -> None:
    """Until its end."""
    kept = tasks.setdefault(node, set())
    kept.add(task)

    def drop(task: asyncio.Task[None]) -> None:
        kept.discard(task)
        if not kept and tasks.get(node) is kept:
            del tasks[node]

    task.add_done_callback(drop)


def _key(number: int, priority: PriorityClass) -> MessageKey:
    return MessageKey(traffic_plan(priority), "long message", number)
