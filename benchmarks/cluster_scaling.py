"""The same statements on one node and on four, each a process with an emulated SSD and an emulated network of its own,
so slow that the processors of a small machine do for all of them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import cluster_data
from benchmarks.cluster_processes import NodeProcess, ProcessCluster
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement

NODES = 4
GOAL = 0.3
DISK = {"rate": 10e6, "latency": 100e-6}
NETWORK = {"rate": 20e6, "latency": 50e-6}
ANSWER_SECONDS = 120.0

QUERIES = {
    "scan": "select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), avg(l_discount), count(*)"
    " from lineitem group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus",
    "shuffled groups": "select l_partkey, l_suppkey, sum(l_quantity) as quantity, sum(l_extendedprice) as price"
    " from lineitem group by l_partkey, l_suppkey order by quantity desc, price desc, l_partkey limit 10",
    "shuffled join": "select o_orderpriority, count(*), sum(l_extendedprice), sum(o_totalprice) from lineitem"
    " join orders on l_orderkey = o_orderkey where l_commitdate < l_receiptdate group by o_orderpriority order by 1",
    "skewed groups": "select key, count(*) as n, sum(amount) as total, max(note) as note from facts group by key"
    " order by n desc, key limit 20",
    "skewed join": "select family, count(*), sum(amount) from facts join things on facts.key = things.key"
    " group by family order by family",
}
QUICK = ("scan", "shuffled join", "skewed join")
QUICK_FACTOR = 2
"""So much faster are disks and networks in a quick run."""


def run(*, quick: bool) -> list[Figure]:
    tables = cluster_data.tables(1.0)
    rounds = 1 if quick else 3
    queries = {name: sql for name, sql in QUERIES.items() if name in QUICK or not quick}
    expected = _expected(tables, queries)
    seconds: dict[tuple[str, int], list[float]] = {}
    factor = QUICK_FACTOR if quick else 1
    with _cluster(1, tables, factor) as one, _cluster(NODES, tables, factor) as several:
        asked = {1: one.nodes["n0"], NODES: several.nodes["n0"]}
        for number in range(rounds + 1):
            for name, sql in queries.items():
                for nodes, node in asked.items():
                    # The first time nodes read footers and tell each other of files; answers are right every time.
                    took = _ask(node, sql, expected[name])
                    if number:
                        seconds.setdefault((name, nodes), []).append(took)
                sys.stdout.write(f"{name}: {_line(seconds, name)}\n" if number else "")
                sys.stdout.flush()
    return [_figure(name, seconds[name, 1], seconds[name, NODES]) for name in queries]


def _figure(name: str, one: list[float], several: list[float]) -> Figure:
    return Figure(
        f"{name}: wall time on {NODES} nodes, over that on 1",
        statistics.median(theirs / own for own, theirs in zip(one, several, strict=True)),
        "ratio",
        goal=GOAL,
        peers={"1 node, s": statistics.median(one), f"{NODES} nodes, s": statistics.median(several)},
        samples=len(one),
    )


def _cluster(count: int, tables: Mapping[str, Path], factor: float) -> ProcessCluster:
    folder = next(iter(tables.values())).parent
    disk = {**DISK, "path": str(folder), "rate": DISK["rate"] * factor}
    network = {**NETWORK, "rate": NETWORK["rate"] * factor}
    settings: dict[str, Any] = {"threads": 2, "memory": "2GiB", "emulated": [disk]}
    return ProcessCluster(count, tables=tables, settings=settings, cluster={"emulated": network})


def _ask(node: NodeProcess, sql: str, expected: list[tuple[Any, ...]]) -> float:
    outcome = node.sql(sql, ANSWER_SECONDS)
    if outcome.rows is None:
        raise RuntimeError(f"{sql}: {outcome.error}: {outcome.message}")
    problem = disagreement(outcome.rows, expected, sql)
    if problem is not None:
        raise AssertionError(f"{sql}: {problem}")
    return outcome.seconds


def _expected(tables: Mapping[str, Path], queries: Mapping[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect() as oracle:
        for name, path in tables.items():
            oracle.execute(f"create view {name} as from '{path}'")
        return {name: oracle.execute(sql).fetchall() for name, sql in queries.items()}


def _line(seconds: Mapping[tuple[str, int], list[float]], name: str) -> str:
    one, several = seconds[name, 1][-1], seconds[name, NODES][-1]
    return f"{one:.3f} s on 1 node, {several:.3f} s on {NODES}: {several / one:.3f}"
