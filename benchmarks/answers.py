"""TPC-H's 22 answers against DuckDB's, on two kinds of files, under every setting that must not change an answer."""

from __future__ import annotations

import sys
from typing import Any

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "1,000-row batches": {"batch_rows": 1000},
    "one thread": {"threads": 1},
    "no dictionary codes": {"dictionary_codes": False},
    "no join reordering": {"join_reordering": False},
    "no direct addressing": {"direct_addressing": False},
    "no fusion": {"fusion": False},
}


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures = []
    sources = {"tpchgen-cli": data.tpch(scale), "DuckDB's COPY": data.tpch_nullable(scale)}
    for source, folder in sources.items():
        with data.duckdb_over(folder) as oracle:
            expected = {name: oracle.execute(sql).fetchall() for name, sql in data.queries().items()}
        for label, settings in SETTINGS.items():
            with pystachio.connect(**settings) as session:
                data.register(session, folder)
                right = sum(_is_right(session, name, sql, expected[name]) for name, sql in data.queries().items())
            figures.append(Figure(f"{source}, {label}", right, "right", goal=len(expected), direction="at least"))
            sys.stdout.write(f"{source}, {label}: {right} of {len(expected)}\n")
            sys.stdout.flush()
    return figures


def _is_right(session: pystachio.Session, name: str, sql: str, expected: list[tuple[Any, ...]]) -> bool:
    problem = disagreement(session.sql(sql).to_arrow(), expected, sql)
    if problem is not None:
        sys.stdout.write(f"{name}: {problem[:500]}\n")
    return problem is None
