"""TPC-H's 22 statements on one to four nodes, each a process; and what one over tiny tables costs on several."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from typing import Any

from benchmarks import data
from benchmarks.cluster_processes import NodeProcess, ProcessCluster
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement

COUNTS = (1, 2, 3, 4)
ANSWER_SECONDS = 120.0
LITTLE = (
    "select r_name, count(*) as nations, min(n_name) as first from nation join region on n_regionkey = r_regionkey"
    " group by r_name order by r_name"
)


def run(*, scale: float, quick: bool) -> list[Figure]:
    folder = data.tpch(scale)
    queries = data.queries()
    with data.duckdb_over(folder) as oracle:
        expected = {sql: oracle.execute(sql).fetchall() for sql in (*queries.values(), LITTLE)}
    tables = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
    seconds: dict[tuple[int, str], float] = {}
    wrong = dict.fromkeys(COUNTS, 0)
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(
                ProcessCluster(
                    count,
                    tables=tables,
                    settings={"threads": 2, "memory": "2GiB"},
                    cluster={"alone_bytes": 4 << 20},
                )
            )
            for count in COUNTS
        ]
        asked = {count: cluster.nodes["n0"] for count, cluster in zip(COUNTS, clusters, strict=True)}
        for name, sql in queries.items():
            for count, node in asked.items():
                _, problem = _answer(node, sql, expected[sql])
                if problem is not None:
                    sys.stdout.write(f"{name} on {count} nodes: {problem[:300]}\n")
                    wrong[count] += 1
            for count, node in asked.items():
                times = [_answer(node, sql, expected[sql])[0] for _ in range(1 if quick else 3)]
                seconds[count, name] = statistics.median(times)
            line = ", ".join(f"{seconds[count, name] * 1e3:.0f}" for count in COUNTS)
            sys.stdout.write(f"{name}: {line} ms on {', '.join(map(str, COUNTS))} nodes\n")
            sys.stdout.flush()
        little = _little(asked, expected[LITTLE], 20 if quick else 200)
    figures = []
    for count in COUNTS:
        right = len(queries) - wrong[count]
        label = f"TPC-H, scale {scale:g}, on {count} node{'s' * (count > 1)}"
        figures.append(Figure(f"{label}: right", right, "answers", len(queries), "at least", samples=len(queries)))
        total = sum(seconds[count, name] for name in queries)
        figures.append(Figure(f"{label}: all 22", total, "s", samples=len(queries)))
    return [*figures, little]


def _little(asked: dict[int, NodeProcess], expected: list[tuple[Any, ...]], rounds: int) -> Figure:
    times: dict[int, list[float]] = {1: [], 3: []}
    for _ in range(rounds):
        for count, mine in times.items():
            took, problem = _answer(asked[count], LITTLE, expected)
            if problem is not None:
                raise AssertionError(problem)
            mine.append(took)
    ratio = statistics.median(several / one for one, several in zip(times[1], times[3], strict=True))
    peers = {f"{count} nodes, ms": statistics.median(mine) * 1e3 for count, mine in times.items()}
    return Figure("a statement over tiny tables on 3 nodes, over 1", ratio, "ratio", peers=peers, samples=rounds)


def _answer(node: NodeProcess, sql: str, expected: list[tuple[Any, ...]]) -> tuple[float, str | None]:
    outcome = node.sql(sql, ANSWER_SECONDS)
    if outcome.rows is None:
        return outcome.seconds, f"{outcome.error}: {outcome.message}"
    return outcome.seconds, disagreement(outcome.rows, expected, sql)
