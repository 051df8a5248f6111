"""What goes wrong in a simulated cluster: drawn from the seed, each with an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from pystachio.server.simulation.node import SimulatedNode
from pystachio.server.simulation.wires import SimulatedNetwork, Way, Weather

FAULT_SECONDS = 15.0
"""The last fault has ended by then."""
_MOST_FAULTS = 8
_LENGTHS = (0.2, 1.0, 3.0, 6.0, 10.0)


class Faultable(Protocol):
    """The part of a simulated cluster that faults strike."""

    @property
    def network(self) -> SimulatedNetwork: ...

    @property
    def chance(self) -> Random: ...

    def running(self) -> tuple[SimulatedNode, ...]: ...

    def kill(self, node: SimulatedNode) -> None: ...

    def leave(self, node: SimulatedNode) -> None: ...

    def restart(self, name: str) -> None: ...


@dataclass(eq=False)
class Faults:
    cluster: Faultable
    struck: Counter[str] = field(default_factory=Counter)

    def draw(self) -> None:
        """Have all faults happen at their times."""
        loop, chance = asyncio.get_running_loop(), self.cluster.chance
        kinds: dict[str, Callable[[SimulatedNode, float], None]] = {
            "kill": self._kill,
            "leave": self._leave,
            "reset": self._reset,
            "cut off": self._cut_off,
            "cut one way": self._cut_one_way,
            "storm": self._storm,
            "damage": self._damage,
            "disk": self._fail_disk,
            "drain": self._drain,
        }
        chosen = chance.sample(sorted(kinds), chance.randint(1, len(kinds)))
        for _ in range(chance.randint(1, _MOST_FAULTS)):
            name = chance.choice(chosen)
            begin = chance.uniform(0.5, FAULT_SECONDS - 1)
            end = min(FAULT_SECONDS, begin + chance.choice(_LENGTHS))
            loop.call_at(loop.time() + begin, self._strike, name, kinds[name], end - begin)

    def _strike(self, name: str, kind: Callable[[SimulatedNode, float], None], seconds: float) -> None:
        running = self.cluster.running()
        if running:
            self.struck[name] += 1
            kind(self.cluster.chance.choice(running), seconds)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, callback)

    def _kill(self, node: SimulatedNode, seconds: float) -> None:
        self.cluster.kill(node)
        self._later(seconds, partial(self.cluster.restart, node.name))

    def _leave(self, node: SimulatedNode, seconds: float) -> None:
        self.cluster.leave(node)
        self._later(seconds, partial(self.cluster.restart, node.name))

    def _reset(self, node: SimulatedNode, seconds: float) -> None:
        for other in self.cluster.running():
            if other is not node:
                self.cluster.network.reset(node.host, other.host)

    def _cut_off(self, node: SimulatedNode, seconds: float) -> None:
        """A part of the nodes, of which this is one, from the rest."""
        hosts = [each.host for each in self.cluster.running()]
        side = {node.host, *self.cluster.chance.sample(hosts, self.cluster.chance.randint(0, len(hosts) - 1))}
        self._cut([(one, other) for one in hosts for other in hosts if (one in side) != (other in side)], seconds)

    def _cut_one_way(self, node: SimulatedNode, seconds: float) -> None:
        others = [each.host for each in self.cluster.running() if each is not node]
        if others:
            chosen = self.cluster.chance.sample(others, self.cluster.chance.randint(1, len(others)))
            self._cut([(node.host, other) for other in chosen], seconds)

    def _cut(self, ways: Iterable[Way], seconds: float) -> None:
        ways = tuple(ways)
        self.cluster.network.cut(ways)
        self._later(seconds, partial(self.cluster.network.heal, ways))

    def _storm(self, node: SimulatedNode, seconds: float) -> None:
        self.cluster.network.weather = Weather(latency_seconds=0.02, jitter_seconds=0.3, bytes_per_second=1e6)
        self._later(seconds, self._calm)

    def _calm(self) -> None:
        self.cluster.network.weather = Weather()

    def _damage(self, node: SimulatedNode, seconds: float) -> None:
        others = [each.host for each in self.cluster.running() if each is not node]
        if others:
            way = (node.host, self.cluster.chance.choice(others))
            self.cluster.network.damaged.add(way)
            self._later(seconds, partial(self.cluster.network.damaged.discard, way))

    def _fail_disk(self, node: SimulatedNode, seconds: float) -> None:
        disk = node.home.disk
        disk.fails = True
        self._later(seconds, partial(setattr, disk, "fails", False))

    def _drain(self, node: SimulatedNode, seconds: float) -> None:
        self._set_draining(node, True)
        self._later(seconds, partial(self._undrain, node))

    def _undrain(self, node: SimulatedNode) -> None:
        if node.is_running:
            self._set_draining(node, False)

    @staticmethod
    def _set_draining(node: SimulatedNode, draining: bool) -> None:
        # What follows from it happens on the node's host.
        node.member.host.call_soon(lambda: node.member.plane.drain(node.name, draining))
