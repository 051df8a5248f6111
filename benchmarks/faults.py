"""Faults on a cluster of processes: how soon they are found, and what they cost the queries that they hit.

Every query ends in one of these: the right answer (DuckDB's), a typed error, the death of its own node; or it counts as
wrong, hanging or untyped.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster_processes import ProcessCluster
from benchmarks.fault_campaign import Campaign, Tally
from benchmarks.fault_detection import DETECTED, detection_seconds, false_losses
from benchmarks.figures import Figure
from benchmarks.report import Report, table
from benchmarks.slow_tables import slow_disk, write_slow_tables
from pystachio.runtime.membership.simulation import simulate
from pystachio.server.simulation import simulation as whole_clusters

NODES = 3
SEED = 20


def run(*, scale: float, quick: bool, long: bool = False) -> Report:
    """`scale` changes nothing: the tables are as slow as they have to be."""
    figures: list[Figure] = []
    figures += _detection(runs=4 if quick else 20)
    figures += _calm(seconds=20.0 if quick else 600.0 if long else 60.0)
    tally = _campaign(*((12, 50) if quick else (600, 2500) if long else (60, 250)))
    figures += _of(tally)
    figures += _simulation(50 if quick else 10_000 if long else 200)
    figures += _whole_clusters(10 if quick else 1_000 if long else 200)
    rows = [
        (kind, tally.struck.get(kind, ""), *(counts[what] for what in ("right", "retried", "typed", "gone", "bad")))
        for kind, counts in sorted(tally.by_kind.items())
    ]
    head = (
        "fault",
        "times",
        "right answers",
        "of them by another attempt",
        "typed errors",
        "client's node gone",
        "bad",
    )
    return Report(figures, table(head, rows), tally.notes)


@contextmanager
def _cluster(**more: object) -> Iterator[ProcessCluster]:
    with tempfile.TemporaryDirectory(prefix="pystachio-faults-") as name:
        folder = Path(name)
        kept = folder / "chunks"
        kept.mkdir()
        data = folder / "data"
        data.mkdir()
        tables = write_slow_tables(data)
        cached = {"chunk_cache": True, "chunk_cache_dir": str(kept), "chunk_cache_bytes": 256 << 20}
        with ProcessCluster(
            NODES,
            tables=tables,
            proxied=True,
            settings=slow_disk(data),
            settings_of=lambda node: cached if node == f"n{NODES - 1}" else {},
        ) as cluster:
            yield cluster


def _detection(runs: int) -> list[Figure]:
    figures = []
    with _cluster() as cluster:
        for kind, goal in DETECTED.items():
            times = sorted(detection_seconds(cluster, kind, runs))
            sys.stdout.write(f"{kind}: found after {times[0]:.3g} to {times[-1]:.3g} s\n")
            sys.stdout.flush()
            # Of so few runs the 99th percentile is the longest.
            figures.append(Figure(f"{kind} is found, p99", times[-1], "s", goal=goal, samples=len(times)))
    return figures


def _calm(seconds: float) -> list[Figure]:
    with _cluster() as cluster:
        found = false_losses(cluster, seconds, random.Random(SEED))
    label = f"in {seconds:g} s with all cores loaded and {found.stalls} stalls of 2 s"
    return [
        Figure(f"nodes taken for lost {label}", found.lost, "", goal=0, samples=found.stalls),
        Figure(f"nodes suspected {label}", found.suspected, "", goal=0, samples=found.stalls),
        Figure(f"queries that failed {label}", found.failed, "", goal=0, samples=found.queries),
    ]


def _campaign(faults: int, queries: int) -> Tally:
    with _cluster() as cluster:
        return Campaign(cluster, seed=SEED).run(faults, queries)


def _of(tally: Tally) -> list[Figure]:
    ends = Counter[str]()
    for counts in tally.by_kind.values():
        ends.update(counts)
    queries = tally.queries
    hit = tally.hit_by_one_loss
    share = 1.0 if not hit else tally.saved / hit
    return [
        Figure("seeded faults", sum(tally.struck.values()), ""),
        Figure("queries beside them", queries, ""),
        Figure("wrong answers", tally.wrong, "", goal=0, samples=queries),
        Figure("hanging queries", tally.hanging, "", goal=0, samples=queries),
        Figure("untyped errors, defects included", tally.untyped, "", goal=0, samples=queries),
        Figure("typed errors", ends["typed"], "", samples=queries),
        Figure("queries hit by one lost node", hit, ""),
        Figure("queries hit by one lost node that succeed", share, "", goal=0.99, direction="at least", samples=hit),
        Figure("survivors that hold something after 2 s", tally.leaking, "", goal=0, samples=tally.checks),
        Figure(
            "longest time to the next answer after a fault",
            tally.longest_recovery,
            "s",
            goal=10.0,
            samples=tally.checks,
        ),
        Figure("clusters that do not become whole again", tally.broken, "", goal=0, samples=tally.checks),
    ]


def _simulation(seeds: int) -> list[Figure]:
    """The membership alone, in virtual time. `simulate` raises where an invariant does not hold."""
    slowest, faults, differing = 0.0, 0, 0
    for seed in range(seeds):
        outcome = simulate(seed)
        slowest, faults = max(slowest, outcome.agreed_after), faults + outcome.faults
        if seed % 10 == 0 and simulate(seed).digest != outcome.digest:
            differing += 1
    return [
        Figure("simulated clusters that break no invariant", seeds, "", goal=seeds, direction="at least"),
        Figure("simulated faults", faults, ""),
        Figure("slowest agreement in simulation", slowest, "s", samples=seeds),
        Figure("replays that differ", differing, "", goal=0, samples=(seeds + 9) // 10),
    ]


def _whole_clusters(seeds: int) -> list[Figure]:
    """Everything from the wire to the operators, in virtual time. Raises where an invariant does not hold."""
    outcomes = whole_clusters.simulate_many(range(seeds), replay_every=10)
    ended = sum((Counter(each.ended) for each in outcomes), Counter[str]())
    struck = sum((Counter(each.faults) for each in outcomes), Counter[str]())
    return [
        Figure("whole clusters simulated that break no invariant", len(outcomes), "", goal=seeds, direction="at least"),
        Figure("faults that struck them", struck.total(), ""),
        Figure("queries of theirs that ended", ended.total(), ""),
        Figure("queries of theirs that were answered", ended["answered"], ""),
    ]
