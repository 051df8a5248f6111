"""A plan's way to its other nodes: blocks of bytes by operator and number, through the I/O scheduler of both ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pystachio.runtime.plan_entry import PlanEntry

if TYPE_CHECKING:
    from pystachio.io_scheduler.devices import Buffer
    from pystachio.io_scheduler.network.messages import MessageKey


class Messages(Protocol):
    """The part of `io_scheduler.network.network.Network` that a plan needs, which says more."""

    async def send(
        self, peer: str, key: MessageKey, buffer: Buffer, *, criticality: int = 0, patience: float | None = None
    ) -> None: ...

    async def offered(self, peer: str, key: MessageKey, *, patience: float | None = None) -> int: ...

    async def receive(
        self,
        peer: str,
        key: MessageKey,
        into: Buffer | None = None,
        *,
        criticality: int = 0,
        patience: float | None = None,
    ) -> Buffer: ...

    def decline(self, peer: str, key: MessageKey) -> None: ...

    def close_plan(self, plan_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PlanPeers:
    """The nodes of one plan by number, the same on each of them; number 0 is the coordinator. `here` is this node's.

    Whoever waits for the other end waits as long as the plan lives: its end, and the loss of the peer, end the wait.
    """

    plan_id: str
    nodes: tuple[str, ...]
    here: int
    messages: Messages
    entry: PlanEntry | None = None
    """To be told when other nodes are awaited; there once the plan runs."""

    @property
    def others(self) -> tuple[int, ...]:
        """Beginning behind this node: no two nodes begin with the same."""
        count = len(self.nodes)
        return tuple((self.here + step) % count for step in range(1, count))

    async def send(self, node: int, operator: str, number: int, block: Buffer) -> None:
        """Returns when the node has the block. Raises Cancelled when it does not want it, or as `Network.send`."""
        with self._awaiting():
            await self.messages.send(self.nodes[node], self._key(operator, number), block, patience=math.inf)

    async def offered(self, node: int, operator: str, number: int) -> int:
        """The block's length, once the node offers it."""
        with self._awaiting():
            return await self.messages.offered(self.nodes[node], self._key(operator, number), patience=math.inf)

    async def receive(self, node: int, operator: str, number: int) -> Buffer:
        """The block. A receiver that is cancelled does not want it, which its sender is told."""
        with self._awaiting():
            return await self.messages.receive(self.nodes[node], self._key(operator, number), patience=math.inf)

    def decline(self, node: int, operator: str, number: int) -> None:
        """Nobody here will ask for the block: who sends it is told, now or when it is offered."""
        self.messages.decline(self.nodes[node], self._key(operator, number))

    def close(self) -> None:
        """The plan has ended here."""
        self.messages.close_plan(self.plan_id)

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        if self.entry is None:
            yield
            return
        self.entry.begin_remote()
        try:
            yield
        finally:
            self.entry.end_remote()

    def _key(self, operator: str, number: int) -> MessageKey:
        from pystachio.io_scheduler.network.messages import MessageKey

        return MessageKey(self.plan_id, operator, number)
