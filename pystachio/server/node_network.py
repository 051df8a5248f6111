"""What the control plane needs of a node's network."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.messages import MessageKey


class DataNetwork(Protocol):
    """The part of `io_scheduler.network.network.Network` that is needed here, which says more."""

    @property
    def peers(self) -> Container[str]: ...

    async def send(self, peer: str, key: MessageKey, buffer: Buffer, *, patience: float | None = None) -> None: ...

    async def receive(
        self, peer: str, key: MessageKey, into: Buffer | None = None, *, patience: float | None = None
    ) -> Buffer: ...

    def disconnect(self, peer: str, reason: str) -> None: ...


class NodeNetwork(DataNetwork, Protocol):
    """What is needed of the network; it calls `note_connected`, `note_lost` and `note_heard` on the loop."""

    def tell(self, peer: str, body: bytes) -> None:
        """Raises NodeLost when the node is not connected."""
        ...

    async def connect(self, peer: str, host: str, port: int) -> None:
        """Raises PystachioError."""
        ...

    async def meet(self, host: str, port: int) -> str:
        """Be connected to whoever listens there, and return its name. Raises PystachioError."""
        ...

    def suspects(self) -> frozenset[str]:
        """Those connected that have been silent for too long, but not long enough to be lost."""
        ...
