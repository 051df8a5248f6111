"""The rows that joins put out, ours over DuckDB's, on TPC-H: what the join order is worth."""

from __future__ import annotations

import json
import sys
from typing import Any

import duckdb

import pystachio
from benchmarks import data
from benchmarks.figures import Figure


def run(*, scale: float, quick: bool) -> list[Figure]:
    folder = data.tpch(scale)
    session = pystachio.connect(threads=2)
    data.register(session, folder)
    peer = data.duckdb_over(folder)
    total_ours = total_theirs = 0
    sys.stdout.write(f"{'query':<6}{'ours':>14}{'DuckDB':>14}\n")
    for name, sql in data.queries().items():
        result = session.sql(sql)
        result.to_arrow()
        ours = sum(operator.rows_out for operator in result.operators() if operator.kind == "Join")
        theirs = _duckdb_join_rows(peer, sql)
        total_ours += ours
        total_theirs += theirs
        sys.stdout.write(f"{name:<6}{ours:>14,}{theirs:>14,}\n")
    session.close()
    return [
        Figure(
            "intermediate rows of joins over DuckDB's, total of 22",
            total_ours / total_theirs,
            "ratio",
            goal=1.3,
            peers={"pystachio": total_ours, "duckdb": total_theirs},
        )
    ]


def _duckdb_join_rows(peer: duckdb.DuckDBPyConnection, sql: str) -> int:
    (_, text) = peer.execute(f"explain (analyze, format json) {sql}").fetchone() or ("", "{}")

    def count(node: dict[str, Any]) -> int:
        own: int = node["intermediate_rows"] if "JOIN" in node["type"] else 0
        return own + sum(count(child) for child in node.get("children", []))

    return sum(count(operator) for operator in json.loads(text)["operator"])
