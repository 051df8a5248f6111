"""TPC-H's 22 answers against DuckDB's, on two kinds of files, under every setting that must not change an answer."""

from __future__ import annotations

import sys
from typing import Any

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from pystachio.cli.oracle import DuckDB, difference, ordered_columns

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "1,000-row batches": {"batch_rows": 1000},
    "one thread": {"threads": 1},
    "no dictionary codes": {"dictionary_codes": False},
    "no join reordering": {"join_reordering": False},
    "no direct addressing": {"direct_addressing": False},
}


def run(*, scale: float, quick: bool) -> list[Figure]:
    figures = []
    sources = {"tpchgen-cli": data.tpch(scale), "DuckDB's COPY": data.tpch_nullable(scale)}
    for source, folder in sources.items():
        files = [folder / f"{table}.parquet" for table in data.TABLES]
        oracle = DuckDB(files)
        expected = {name: oracle.rows(sql) for name, sql in data.queries().items()}
        oracle.close()
        for label, settings in SETTINGS.items():
            with pystachio.connect(**settings) as session:
                for file in files:
                    session.register(file.stem, str(file))
                right = sum(_is_right(session, name, sql, expected[name]) for name, sql in data.queries().items())
            figures.append(Figure(f"{source}, {label}", right, "right", goal=len(expected), direction="at least"))
            sys.stdout.write(f"{source}, {label}: {right} of {len(expected)}\n")
            sys.stdout.flush()
    return figures


def _is_right(session: pystachio.Session, name: str, sql: str, expected: list[tuple[Any, ...]]) -> bool:
    table = session.sql(sql).to_arrow()
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    problem = difference(rows, expected, ordered_columns(sql, table.column_names))
    if problem is not None:
        sys.stdout.write(f"{name}: {problem[:500]}\n")
    return problem is None
