"""Four plans of different priority at once on three nodes with emulated SSDs: an interactive client beside endless
scans in class normal and batch, from several nodes. Every answer is checked."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import duckdb

from benchmarks.cluster_processes import NodeProcess, ProcessCluster
from benchmarks.figures import Figure
from benchmarks.isolation import LATENCY, ORDER, SCAN, THINK_SECONDS, make_disks, make_statements, percentile
from pystachio.cli.oracle import disagreement

NODES = 3
RATE = 33e6
"""Of each node's disk: the nodes together do to two processors what the one of `isolation` does."""
OTHERS = (("n1", "normal"), ("n2", "batch"), ("n0", "batch"))
"""What else runs: to which node it is submitted, and its class."""
GOAL = 1.2
"""As of `isolation`."""
ANSWER_SECONDS = 300.0


def run(*, quick: bool) -> list[Figure]:
    rounds, per_round = (1, 24) if quick else (5, 60)
    folders = make_disks(1.0)
    tables = {table: str(folders[0].parent / "*" / f"{table}-*.parquet") for table in ORDER}
    statements = make_statements(per_round)
    with duckdb.connect() as oracle:
        for table, pattern in tables.items():
            oracle.execute(f"create view {table} as from '{pattern}'")
        expected = {sql: oracle.execute(sql).fetchall() for sql in {*statements, SCAN}}
    emulated = [{"path": str(folders[0].parent), "rate": RATE, "latency": LATENCY}]
    idle: list[float] = []
    beside: list[float] = []
    with ProcessCluster(NODES, tables=tables, settings={"memory": "2GiB", "emulated": emulated}) as cluster:
        asked = cluster.nodes["n0"]
        _ask(asked, statements[:8], expected)
        for number in range(rounds):
            idle += _ask(asked, statements, expected)
            with _scans(cluster, expected[SCAN]):
                time.sleep(1.0)
                beside += _ask(asked, statements, expected)
            sys.stdout.write(
                f"priorities, round {number + 1} of {rounds}: p99 {percentile(idle, 99) * 1e3:.1f} ms idle,"
                f" {percentile(beside, 99) * 1e3:.1f} ms beside\n"
            )
            sys.stdout.flush()
    return [
        Figure(
            f"interactive p{percent} beside a normal and two batch plans on {NODES} nodes, over idle",
            percentile(beside, percent) / percentile(idle, percent),
            "ratio",
            goal=goal,
            peers={"idle ms": percentile(idle, percent) * 1e3, "beside ms": percentile(beside, percent) * 1e3},
            samples=len(beside),
        )
        for percent, goal in ((50, None), (99, GOAL))
    ]


def _ask(node: NodeProcess, statements: Sequence[str], expected: dict[str, list[tuple[Any, ...]]]) -> list[float]:
    """One client that thinks between its queries."""
    chance = random.Random(3)
    seconds = []
    for sql in statements:
        time.sleep(chance.expovariate(1 / THINK_SECONDS))
        seconds.append(_answer(node, sql, "interactive", expected[sql]))
    return seconds


def _answer(node: NodeProcess, sql: str, priority: str, expected: list[tuple[Any, ...]]) -> float:
    outcome = node.start_sql(sql, priority).outcome(ANSWER_SECONDS)
    if outcome.rows is None:
        raise RuntimeError(f"{sql}: {outcome.error}: {outcome.message}")
    problem = disagreement(outcome.rows, expected, sql)
    if problem is not None:
        raise AssertionError(f"{sql}: {problem}")
    return outcome.seconds


@contextmanager
def _scans(cluster: ProcessCluster, expected: list[tuple[Any, ...]]) -> Iterator[None]:
    """Endless ones, until the end; what goes wrong with them is raised there."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def scan(node: NodeProcess, priority: str) -> None:
        while not stop.is_set():
            started = node.start_sql(SCAN, priority)
            while not stop.is_set() and not started.answer.done():
                stop.wait(0.01)
            if not started.answer.done():
                started.cancel()
            outcome = started.outcome(ANSWER_SECONDS)
            if outcome.rows is not None:
                problem = disagreement(outcome.rows, expected, SCAN)
                if problem is not None:
                    problems.append(AssertionError(f"{SCAN}: {problem}"))
            elif outcome.error != "cancelled":
                problems.append(RuntimeError(f"{SCAN}: {outcome.error}: {outcome.message}"))

    with ExitStack() as threads:
        for name, priority in OTHERS:
            thread = threading.Thread(target=scan, args=(cluster.nodes[name], priority))
            thread.start()
            threads.callback(thread.join)
        threads.callback(stop.set)
        yield
    for problem in problems:
        raise problem
