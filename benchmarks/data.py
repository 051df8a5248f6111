"""TPC-H data, generated once into `benchmarks/data` (ignored by git)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent / "data"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def queries() -> dict[str, str]:
    """The 22 statements by name (q01 .. q22)."""
    folder = Path(__file__).parent.parent / "pystachio" / "cli" / "tpch"
    return {path.stem: path.read_text() for path in sorted(folder.glob("q*.sql"))}


def tpch(scale: float) -> Path:
    """Files by tpchgen-cli: non-null columns, strings as string_view."""
    folder = ROOT / f"tpch-{scale:g}"
    if not all((folder / f"{table}.parquet").exists() for table in TABLES):
        folder.mkdir(parents=True, exist_ok=True)
        generator = Path(sys.executable).with_name("tpchgen-cli")
        subprocess.run([generator, "parquet", "-s", f"{scale:g}", "-o", folder], check=True, capture_output=True)
    return folder


def tpch_nullable(scale: float) -> Path:
    """The same rows by DuckDB's COPY: nullable columns, other encodings and row groups."""
    import duckdb

    folder = ROOT / f"tpch-nullable-{scale:g}"
    source = tpch(scale)
    for table in TABLES:
        target = folder / f"{table}.parquet"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".partial")
            duckdb.sql(f"copy (from '{source / table}.parquet') to '{partial}' (format parquet)")
            partial.rename(target)
    return folder
