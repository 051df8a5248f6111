"""Many nodes, their faults and their views in virtual time: the same code as in production, replayed from a seed.

`simulate(seed)` draws a cluster and a few dozen seconds of faults (crashes, restarts, stalls, cuts in one direction or
both, loss, delay, reordering, drains and leaves), checks the invariants after every event, and after the last fault
waits until all live nodes have one view. `python -m pystachio.runtime.membership.simulation 10000` runs many.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

from pystachio.runtime.membership.events import DrainAsked, LeaveAsked
from pystachio.runtime.membership.simulated_cluster import (
    InvariantBroken,
    SimulatedCluster,
    SimulatedNode,
    SimulationOutcome,
)
from pystachio.runtime.membership.simulated_network import Weather

FAULT_SECONDS = 20.0
AGREE_SECONDS = 15.0
"""After the last fault: four to take a silent node for dead, five for an attempt to connect that began before, three
and a half until the next, two to settle.
"""


class Faults:
    """Draws what goes wrong, and ends it again."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._chance = cluster.chance
        kinds = (self._crash, self._stall, self._cut_off, self._cut_one_way, self._storm, self._drain, self._leave)
        self._kinds = self._chance.sample(kinds, self._chance.randint(1, len(kinds)))

    def draw(self) -> None:
        """Enter all faults; the last of them has ended after `FAULT_SECONDS`."""
        for _ in range(self._chance.randint(1, 12)):
            begin = self._chance.uniform(1.0, FAULT_SECONDS)
            end = min(FAULT_SECONDS, begin + self._chance.choice((0.3, 1.0, 3.0, 6.0, 10.0)))
            kind = self._chance.choice(self._kinds)
            node = self._chance.choice(tuple(self._cluster.nodes.values()))
            self._cluster.faults += 1
            self._cluster.agenda.at(begin, partial(kind, node, end))

    def _crash(self, node: SimulatedNode, end: float) -> None:
        node.crash()
        self._cluster.agenda.at(end, partial(self._restart, node))

    def _restart(self, node: SimulatedNode) -> None:
        if node.core is None:
            node.start()

    def _stall(self, node: SimulatedNode, end: float) -> None:
        node.stall()
        self._cluster.agenda.at(end, node.go_on)

    def _cut_off(self, node: SimulatedNode, end: float) -> None:
        """A part of the nodes, of which this is one, from the rest."""
        names = sorted(self._cluster.nodes)
        side = {node.name, *self._chance.sample(names, self._chance.randint(0, len(names) - 1))}
        ways = {(one, other) for one in names for other in names if (one in side) != (other in side)}
        self._cut(ways, end)

    def _cut_one_way(self, node: SimulatedNode, end: float) -> None:
        others = sorted(self._cluster.nodes.keys() - {node.name})
        self._cut(
            {(node.name, other) for other in self._chance.sample(others, self._chance.randint(1, len(others)))}, end
        )

    def _cut(self, ways: set[tuple[str, str]], end: float) -> None:
        self._cluster.network.cuts |= ways
        self._cluster.agenda.at(end, partial(self._cluster.network.heal, ways))

    def _storm(self, node: SimulatedNode, end: float) -> None:
        self._cluster.network.weather = Weather(latency_seconds=0.02, jitter_seconds=1.0, loss=0.3)
        self._cluster.agenda.at(end, self._calm)

    def _calm(self) -> None:
        self._cluster.network.weather = Weather()

    def _drain(self, node: SimulatedNode, end: float) -> None:
        node.when_running(node.starts, partial(node.take, DrainAsked(True)))

    def _leave(self, node: SimulatedNode, end: float) -> None:
        node.when_running(node.starts, partial(node.take, LeaveAsked()))
        node.crash()
        self._cluster.agenda.at(end, partial(self._restart, node))


def simulate(seed: int) -> SimulationOutcome:
    """Raises InvariantBroken, also when the nodes do not agree `AGREE_SECONDS` after the last fault."""
    cluster = SimulatedCluster(seed)
    for node in cluster.nodes.values():
        cluster.agenda.at(cluster.chance.uniform(0.0, 0.9), node.start)
    Faults(cluster).draw()
    cluster.agenda.run_until(FAULT_SECONDS)
    agreed_at: float | None = None
    waited = 0.0
    while waited < AGREE_SECONDS:
        waited += 0.25
        cluster.agenda.run_until(FAULT_SECONDS + waited)
        if not cluster.agree():
            agreed_at = None
        elif agreed_at is None:
            agreed_at = waited
    if agreed_at is None:
        raise InvariantBroken(f"{_disagreement(cluster)} (seed {seed})")
    return cluster.outcome(agreed_at)


def simulate_many(seeds: Iterable[int]) -> list[SimulationOutcome]:
    return [simulate(seed) for seed in seeds]


def _disagreement(cluster: SimulatedCluster) -> str:
    views = [
        f"{node.name}: {node.core.view.epoch} {[member.instance for member in node.core.view.members]}"
        f" reaches {sorted(node.core.present)}"
        for node in cluster.nodes.values()
        if node.core is not None
    ]
    return f"no agreement {AGREE_SECONDS} s after the last fault: {'; '.join(views)}"


if __name__ == "__main__":
    outcomes = simulate_many(range(int(sys.argv[1])))
    latest = max(outcomes, key=lambda outcome: outcome.agreed_after)
    sys.stdout.write(f"{len(outcomes)} seeds agree, the slowest after {latest.agreed_after} s (seed {latest.seed})\n")
