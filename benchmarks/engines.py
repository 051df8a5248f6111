"""Engines that answer the same statements over the same Parquet files: ours in its states, and its peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pystachio

if TYPE_CHECKING:
    # Only who uses a peer pays for it: what an engine takes in memory is measured in a process that has only that one.
    import duckdb
    import pyarrow as pa

THREADS = 2

Answer = Callable[[str], "pa.Table"]
"""Runs a statement to its end, planning included; the whole answer as an Arrow table."""

OURS = "pystachio"
BUILDS_ANEW = "pystachio, builds made anew"
"""Without what joins have stored of small tables for earlier runs of the statement, which peers do not do."""
FIRST_TOUCH = "pystachio, first touch"
DUCKDB_PARQUET = "DuckDB on Parquet"
DUCKDB_OWN = "DuckDB on its own file"
DATAFUSION = "DataFusion"
POLARS = "Polars"


def tables_of(folder: Path) -> Mapping[str, Path]:
    """One table for each Parquet file of the folder, by its name."""
    return {path.stem: path for path in sorted(folder.glob("*.parquet"))}


@contextmanager
def engines(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Answer]]:
    """The named engines over the folder's tables, with `THREADS` threads each. All are gone at the end."""
    tables = tables_of(folder)
    opened: dict[str, Answer] = {}
    sessions = []
    for name in names:
        if name in (OURS, BUILDS_ANEW, FIRST_TOUCH):
            session = pystachio.connect(
                threads=THREADS, chunk_cache=name != FIRST_TOUCH, keep_builds=name != BUILDS_ANEW
            )
            sessions.append(session)
            opened[name] = _ours(session, tables)
        else:
            opened[name] = _PEERS[name](folder, tables)
    try:
        yield opened
    finally:
        # DuckDB keeps what it has read of a file for as long as anybody holds a connection to it.
        opened.clear()
        for session in sessions:
            session.close()


def _ours(session: pystachio.Session, tables: Mapping[str, Path]) -> Answer:
    for name, path in tables.items():
        session.register(name, path)
    return lambda sql: session.sql(sql).to_arrow()


def _duckdb_parquet(folder: Path, tables: Mapping[str, Path]) -> Answer:
    import duckdb

    peer = duckdb.connect()
    _configure(peer)
    for name, path in tables.items():
        peer.execute(f"create view {name} as from '{path}'")
    return lambda sql: peer.sql(sql).to_arrow_table()


def _duckdb_own(folder: Path, tables: Mapping[str, Path]) -> Answer:
    """DuckDB's native format, written once beside the folder."""
    import duckdb

    file = duckdb_file(folder)
    if not file.exists():
        partial = file.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        with duckdb.connect(str(partial)) as writer:
            for name, path in tables.items():
                writer.execute(f"create table {name} as from '{path}'")
        partial.rename(file)
    peer = duckdb.connect(str(file), read_only=True)
    _configure(peer)
    return lambda sql: peer.sql(sql).to_arrow_table()


def _configure(peer: duckdb.DuckDBPyConnection) -> None:
    """DuckDB returns free memory of the whole process to the kernel after a query that has used much: its neighbours'
    too, who would pay for fresh pages. Nobody does that here, so all measure their own work."""
    peer.execute(f"set threads = {THREADS}")
    for threshold in ("allocator_flush_threshold", "allocator_bulk_deallocation_flush_threshold"):
        peer.execute(f"set {threshold} = '1TB'")


def duckdb_file(folder: Path) -> Path:
    """Where DuckDB's own file of the folder's tables is."""
    return folder.with_name(f"{folder.name}.duckdb")


def _datafusion(folder: Path, tables: Mapping[str, Path]) -> Answer:
    import datafusion

    config = datafusion.SessionConfig({"datafusion.sql_parser.parse_float_as_decimal": "true"})
    peer = datafusion.SessionContext(config.with_target_partitions(THREADS))
    for name, path in tables.items():
        peer.register_parquet(name, str(path))
    return lambda sql: peer.sql(sql).to_arrow_table()


def _polars(folder: Path, tables: Mapping[str, Path]) -> Answer:
    os.environ.setdefault("POLARS_MAX_THREADS", str(THREADS))
    import polars

    peer: Any = polars.SQLContext({name: polars.scan_parquet(path) for name, path in tables.items()})
    return lambda sql: peer.execute(sql).collect(engine="streaming").to_arrow()


_PEERS: Mapping[str, Callable[[Path, Mapping[str, Path]], Answer]] = {
    DUCKDB_PARQUET: _duckdb_parquet,
    DUCKDB_OWN: _duckdb_own,
    DATAFUSION: _datafusion,
    POLARS: _polars,
}
