"""A network in the test's own process and in virtual time: `NodeNetwork` without sockets, and what goes wrong there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from pystachio.errors import NodeLost
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.control_plane import ControlPlane
from tests import virtual_time

LATENCY_SECONDS = 0.001


class Hub:
    """All that are connected with each other, and who could be."""

    def __init__(self) -> None:
        self.networks: dict[int, HubNetwork] = {}
        self.cuts: set[frozenset[str]] = set()

    def cut(self, one: HubNetwork, other: HubNetwork) -> None:
        """Both sides have noticed that the other is silent."""
        self.cuts.add(frozenset((one.name, other.name)))
        one.disconnect(other.name, "silence")

    def heal(self) -> None:
        self.cuts.clear()


class HubNetwork:
    def __init__(self, hub: Hub, control: ControlPlane, port: int) -> None:
        self.name = control.name
        self.control = control
        self.port = port
        self.peers: dict[str, HubNetwork] = {}
        self.told: list[tuple[str, bytes]] = []
        self.suspected: frozenset[str] = frozenset()
        self._hub = hub
        hub.networks[port] = self

    def kill(self) -> None:
        """As by SIGKILL: the kernel closes the connections; nothing is heard of the node any more."""
        self._hub.networks.pop(self.port, None)
        peers, self.peers = self.peers, {}
        for peer in peers.values():
            if peer.peers.pop(self.name, None) is not None:
                peer.control.note_lost(self.name, NodeLost("the connection was closed"))

    def suspects(self) -> frozenset[str]:
        return self.suspected

    def tell(self, peer: str, body: bytes) -> None:
        if peer not in self.peers:
            raise NodeLost("not connected", node=peer)
        self.told.append((peer, body))
        asyncio.get_running_loop().call_later(LATENCY_SECONDS, self._deliver, peer, self.peers[peer], body)

    async def send(self, peer: str, key: MessageKey, buffer: Buffer, *, patience: float | None = None) -> None:
        raise NodeLost("there is no data here", node=peer)

    async def receive(
        self, peer: str, key: MessageKey, into: Buffer | None = None, *, patience: float | None = None
    ) -> Buffer:
        raise NodeLost("there is no data here", node=peer)

    async def connect(self, peer: str, host: str, port: int) -> None:
        assert await self.meet(host, port) == peer

    async def meet(self, host: str, port: int) -> str:
        await asyncio.sleep(LATENCY_SECONDS)
        other = self._hub.networks.get(port)
        if self._hub.networks.get(self.port) is not self or other is None or other is self:
            raise NodeLost("nobody answers")
        if frozenset((self.name, other.name)) in self._hub.cuts:
            raise NodeLost("silence")
        if other.name not in self.peers:
            self.peers[other.name] = other
            other.peers[self.name] = self
            self.control.note_connected(other.name)
            other.control.note_connected(self.name)
        return other.name

    def disconnect(self, peer: str, reason: str) -> None:
        other = self.peers.pop(peer, None)
        if other is not None:
            other.peers.pop(self.name, None)
            self.control.note_lost(peer, NodeLost(reason))
            other.control.note_lost(self.name, NodeLost(reason))

    def _deliver(self, peer: str, network: HubNetwork, body: bytes) -> None:
        if self.peers.get(peer) is network:
            network.control.note_heard(self.name, body)


def make_control(name: str, *known: Address, instance: str = "1") -> ControlPlane:
    return ControlPlane(
        name,
        instance=instance,
        discovery=StaticDiscovery(*known),
        clock=virtual_time.clock(),
        chance=Random(name),
    )


@asynccontextmanager
async def opened(hub: Hub, control: ControlPlane, port: int) -> AsyncIterator[HubNetwork]:
    network = HubNetwork(hub, control, port)
    async with control.open(network, "host", port):
        yield network
        await asyncio.sleep(0)


def addresses(*names: str) -> tuple[Address, ...]:
    """The nodes' ports are 1, 2, 3, ..."""
    return tuple(Address(name, "host", port) for port, name in enumerate(names, 1))


def names(control: ControlPlane) -> tuple[str, ...]:
    return tuple(member.name for member in control.view.members)
