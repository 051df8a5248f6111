"""A query in SQL whose table lies on one emulated disk, or in parts on four: how much of its time the disks are busy.

The disks are so slow that they need a known time for the bytes of the query, which is compared with the time it takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb

import pystachio
from benchmarks import data
from benchmarks.figures import Figure

DISKS = 4
LATENCY = 80e-6
QUERY = (
    "select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), avg(l_discount), count(*)"
    " from lineitem group by l_returnflag, l_linestatus"
)
SECONDS = 0.6
"""At scale 1 this is 90 MB/s, half of what the decoders of two cores do."""


def run(*, scale: float, quick: bool) -> list[Figure]:
    samples = 3 if quick else 9
    return [_efficiency(folders, samples) for folders in ([data.tpch(scale)], _split(scale))]


def _efficiency(folders: Sequence[Path], count: int) -> Figure:
    """A scan with an aggregate, of a table with a file on each disk, run `count` times."""
    files = [folder / "lineitem.parquet" for folder in folders]
    samples = []
    moved = _query_bytes(files)
    rate = moved / len(folders) / SECONDS
    emulated = [{"path": str(folder), "rate": rate, "latency": LATENCY} for folder in folders]
    with pystachio.connect(emulated=emulated, chunk_cache=False) as session:
        session.register("lineitem", [str(file) for file in files])
        session.sql(QUERY).to_arrow()
        for _ in range(count):
            start = time.perf_counter()
            session.sql(QUERY).to_arrow()
            samples.append(SECONDS / (time.perf_counter() - start))
    return Figure(
        f"overlap efficiency, a query bound by storage on {len(folders)}",
        statistics.median(samples),
        "of 1",
        goal=0.9,
        direction="at least",
        peers={"MB": moved / 1e6, "MB/s of each": rate / 1e6},
        samples=len(samples),
    )


def _query_bytes(files: Sequence[Path]) -> int:
    with pystachio.connect(chunk_cache=False) as session:
        session.register("lineitem", [str(file) for file in files])
        session.sql(QUERY).to_arrow()
        result = session.sql(QUERY)
        result.to_arrow()
        return result.metrics().bytes_read


def _split(scale: float) -> list[Path]:
    """A folder for each disk with its part of lineitem."""
    source = data.tpch(scale) / "lineitem.parquet"
    folders = [data.ROOT / f"overlap-lineitem-{scale:g}" / f"disk{disk}" for disk in range(DISKS)]
    for disk, folder in enumerate(folders):
        target = folder / "lineitem.parquet"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".partial")
            duckdb.sql(f"copy (from '{source}' where l_orderkey % {DISKS} = {disk}) to '{partial}' (format parquet)")
            partial.rename(target)
    return folders
