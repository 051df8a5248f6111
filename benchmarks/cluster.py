"""Clusters on one machine: scaling, exchanges, priorities and answers of one to four nodes, each a process; and
exchanges of up to 256 nodes in simulation.

`network` has the throughput of single messages, whose figures stand here too.
"""

from __future__ import annotations

from benchmarks import cluster_answers, cluster_exchange, cluster_priorities, cluster_scaling, network, scheduler_cases
from benchmarks.figures import Figure
from pystachio.io_scheduler.simulation import MIB

SIMULATED = (16, 64, 256)
SIMULATED_GOAL = 0.9


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    figures += cluster_scaling.run(quick=quick)
    figures += simulated(quick=quick)
    figures += network.throughput(quick=quick)
    figures += cluster_exchange.run(quick=quick)
    figures += cluster_priorities.run(quick=quick)
    figures += cluster_answers.run(scale=scale, quick=quick)
    return figures


def simulated(*, quick: bool) -> list[Figure]:
    """Of all-to-all exchanges: the time that the busiest port needs for its bytes, over the time that they took."""
    nbytes = (MIB if quick else 4 * MIB) // 2
    return [
        figure
        for nodes in SIMULATED[: 2 if quick else None]
        for sizes in ("uniform", "hot", "pareto")
        for figure in scheduler_cases.all_to_all(sizes, nodes, nbytes * 256 // nodes, SIMULATED_GOAL, None)
    ]
