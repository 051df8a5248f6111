"""TPC-H data, generated once into `benchmarks/data` (ignored by git), and the two engines over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pystachio
from pystachio.cli import tpch as standard

if TYPE_CHECKING:
    import duckdb

ROOT = Path(__file__).parent / "data"
QUERIES = Path(__file__).parent.parent / "pystachio" / "cli" / "tpch"


def queries() -> dict[str, str]:
    """The 22 statements by name (q01 .. q22)."""
    return standard.statements()


def tpch(scale: float) -> Path:
    """Files by tpchgen-cli: non-null columns, strings as string_view."""
    folder = ROOT / f"tpch-{scale:g}"
    if not standard.is_complete(folder):
        standard.generate(scale, folder)
    return folder


def tpch_nullable(scale: float) -> Path:
    """The same rows by DuckDB's COPY: nullable columns, other encodings and row groups."""
    import duckdb

    folder = ROOT / f"tpch-nullable-{scale:g}"
    folder.mkdir(parents=True, exist_ok=True)
    for source in standard.table_files(tpch(scale)):
        target = folder / source.name
        if not target.exists():
            partial = target.with_suffix(".partial")
            duckdb.sql(f"copy (from '{source}') to '{partial}' (format parquet)")
            partial.rename(target)
    return folder


def register(session: pystachio.Session, folder: Path) -> None:
    """Make the tables known to ours."""
    for path in standard.table_files(folder):
        session.register(path.stem, path)


def duckdb_over(folder: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB that knows the tables."""
    import duckdb

    peer = duckdb.connect()
    for path in standard.table_files(folder):
        peer.execute(f"create view {path.stem} as from '{path}'")
    return peer
