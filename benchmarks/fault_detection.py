"""How soon a node that is gone is found, and that none is taken for gone that is only slow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.cluster_processes import NodeProcess, ProcessCluster
from benchmarks.fault_kinds import Faults
from benchmarks.slow_tables import STATEMENTS

DETECTED = {"kill -9": 1.0, "SIGSTOP": 5.0, "wedged loop": 5.0, "black hole": 5.0}
"""The longest time that each may take, in seconds."""
STALL_SECONDS = 2.0
_BETWEEN_STALLS = 3.0
_MEET_SECONDS = 30.0
_GIVE_UP_SECONDS = 15.0


def detection_seconds(cluster: ProcessCluster, kind: str, runs: int) -> list[float]:
    """From the fault until the last of the others has found it, once for each run; victims take turns."""
    faults = Faults(cluster, random.Random(kind))
    return [_detect(cluster, faults, kind, f"n{number % 3}") for number in range(runs)]


def _detect(cluster: ProcessCluster, faults: Faults, kind: str, name: str) -> float:
    others = [node for node in cluster.running() if node.name != name]
    at = time.monotonic()
    struck = faults.strike(kind, cluster.nodes[name])
    cluster.until(
        lambda: all(_lost_at(node, name, at) is not None for node in others),
        _GIVE_UP_SECONDS,
        lambda: f"{kind} of {name} is not found",
    )
    seconds = max(_lost_at(node, name, at) or 0.0 for node in others) - at
    struck.mend()
    cluster.until_met(_MEET_SECONDS)
    return seconds


def _lost_at(node: NodeProcess, name: str, since: float) -> float | None:
    return next(
        (seen.at for seen in tuple(node.seen) if (seen.event, seen.node) == ("lost", name) and seen.at > since), None
    )


@dataclass(slots=True)
class Calm:
    """What was taken for lost or suspected while nothing was lost."""

    lost: int = 0
    suspected: int = 0
    stalls: int = 0
    queries: int = 0
    failed: int = 0


def false_losses(cluster: ProcessCluster, seconds: float, chance: random.Random) -> Calm:
    """All cores are kept busy by others, queries run, and now and then a node stands still for 2 seconds."""
    found = Calm()
    since = time.monotonic()
    with _loaded_cores():
        while time.monotonic() < since + seconds:
            asked = chance.choice(cluster.running())
            statement = asked.start_sql(chance.choice(list(STATEMENTS.values())))
            stalled = chance.choice(cluster.running())
            stalled.stop()
            time.sleep(STALL_SECONDS)
            stalled.go_on()
            found.stalls += 1
            found.queries += 1
            found.failed += statement.outcome().rows is None
            time.sleep(chance.uniform(0.0, _BETWEEN_STALLS))
    for node in cluster.running():
        events = [seen.event for seen in node.seen if seen.at > since]
        found.lost += events.count("lost")
        found.suspected += events.count("suspect")
    return found


@contextmanager
def _loaded_cores() -> Iterator[None]:
    burn = (sys.executable, "-c", "while True: pass")
    burners = [subprocess.Popen(burn) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
