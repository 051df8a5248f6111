"""Isolation on the real engine: short interactive queries beside endless batch scans on emulated SSDs.

The same queries in the same order run alone, beside the scans, and beside the scans with transfers in order of arrival
(`io_policy="fifo"`), in turns. Every table lies in parts on all disks. Answers are compared with DuckDB's before
anything is timed.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

import pystachio
from benchmarks import data
from benchmarks.figures import Figure
from pystachio.cli.oracle import disagreement

DISKS = 2
PARTS = 48
RATE = 50e6
LATENCY = 100e-6
SCANS = 3
THINK_SECONDS = 0.02

QUERIES = (
    "select sum(l_extendedprice * l_discount) as revenue from lineitem"
    " where l_shipdate >= date '{day}' and l_shipdate < date '{day}' + interval '365' day"
    " and l_discount between 0.05 and 0.07 and l_quantity < 24",
    "select l_returnflag, l_linestatus, sum(l_quantity) as quantity, avg(l_extendedprice) as price, count(*) as n"
    " from lineitem where l_shipdate >= date '{day}' and l_shipdate < date '{day}' + interval '180' day"
    " group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus",
    "select l_shipmode, count(*) as n, sum(l_extendedprice) as price from lineitem where l_shipdate >= date '{day}'"
    " and l_shipdate < date '{day}' + interval '270' day and l_commitdate < l_receiptdate"
    " group by l_shipmode order by l_shipmode",
    "select o_orderpriority, count(*) as n, sum(o_totalprice) as price from orders where o_orderdate >= date '{day}'"
    " and o_orderdate < date '{day}' + interval '365' day group by o_orderpriority order by o_orderpriority",
)
SCAN = (
    "select sum(l_orderkey), sum(l_partkey), sum(l_suppkey), sum(l_extendedprice), sum(l_quantity), sum(l_discount),"
    " sum(l_tax), max(l_shipdate), max(l_commitdate), max(l_receiptdate) from lineitem"
)
ORDER = {"lineitem": "l_shipdate", "orders": "o_orderdate"}


@dataclass
class Phase:
    """One condition: latencies of the queries in their order, and what moved meanwhile."""

    seconds: list[float] = field(default_factory=list)
    duration: float = 0.0
    query_bytes: int = 0
    scan_bytes: int = 0

    def rate(self) -> float:
        """Bytes per second of the scans."""
        return self.scan_bytes / self.duration


def run(*, scale: float, quick: bool) -> list[Figure]:
    scale = max(scale, 1.0)  # less would be no I/O
    rounds, per_round = (2, 32) if quick else (6, 64)
    folders = make_disks(scale)
    statements = make_statements(per_round)
    _verify(folders, statements)
    idle, beside, fifo, alone = Phase(), Phase(), Phase(), Phase()
    with _connect(folders, "pystachio") as ours, _connect(folders, "fifo") as theirs:
        _ask(ours, statements[:8], Phase())
        # As a server does when it has started: the collector stops all threads for as long as it takes to look at every
        # object of every imported module.
        gc.collect()
        gc.freeze()
        for number in range(rounds):
            _ask(ours, statements, idle)
            with Scans(ours) as scans:
                scans.measure(alone, lambda: time.sleep(1.0 if quick else 3.0))
                scans.measure(beside, lambda: _ask(ours, statements, beside))
            with Scans(theirs) as scans:
                scans.measure(fifo, lambda: _ask(theirs, statements[: per_round // 4], fifo))
            sys.stdout.write(f"round {number + 1} of {rounds}: {_line(idle)} | {_line(beside)} | fifo {_line(fifo)}\n")
            sys.stdout.flush()
    return _figures(idle, beside, fifo, alone)


def _figures(idle: Phase, beside: Phase, fifo: Phase, alone: Phase) -> list[Figure]:
    left = alone.rate() - beside.query_bytes / beside.duration
    left_by_fifo = alone.rate() - fifo.query_bytes / fifo.duration
    samples = len(beside.seconds)
    return [
        Figure(
            f"interactive p{percent} beside {SCANS} batch scans, over idle",
            percentile(beside.seconds, percent) / percentile(idle.seconds, percent),
            "ratio",
            goal=goal,
            peers={
                "idle ms": percentile(idle.seconds, percent) * 1e3,
                "beside ms": percentile(beside.seconds, percent) * 1e3,
                "fifo ratio": percentile(fifo.seconds, percent) / percentile(idle.seconds, percent),
            },
            samples=samples,
        )
        for percent, goal in ((50, None), (99, 1.2))
    ] + [
        Figure(
            "batch throughput of what the interactive bytes leave",
            beside.rate() / left,
            "part",
            goal=0.95,
            direction="at least",
            peers={
                "alone MB/s": alone.rate() / 1e6,
                "beside MB/s": beside.rate() / 1e6,
                "interactive MB/s": beside.query_bytes / beside.duration / 1e6,
                "fifo": fifo.rate() / left_by_fifo,
            },
            samples=samples,
        )
    ]


class Scans:
    """Endless scans in class batch, each on a thread of its own."""

    def __init__(self, session: pystachio.Session) -> None:
        self._session = session
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[int, pystachio.Result] = {}
        self._ended_bytes = 0
        self._threads = [threading.Thread(target=self._scan, args=(number,)) for number in range(SCANS)]

    def __enter__(self) -> Scans:
        for thread in self._threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for result in tuple(self._running.values()):
            result.cancel()
        for thread in self._threads:
            thread.join()

    def measure(self, phase: Phase, work: object) -> None:
        """Add the time of `work` and what the scans read meanwhile."""
        assert callable(work)
        before, started = self._bytes(), time.perf_counter()
        work()
        phase.duration += time.perf_counter() - started
        phase.scan_bytes += self._bytes() - before

    def _bytes(self) -> int:
        with self._lock:
            return self._ended_bytes + sum(result.metrics().bytes_read for result in self._running.values())

    def _scan(self, number: int) -> None:
        while not self._stop.is_set():
            result = self._session.sql(SCAN, priority="batch")
            with self._lock:
                self._running[number] = result
            try:
                result.to_arrow()
            except pystachio.errors.Cancelled:
                return
            with self._lock:
                self._ended_bytes += self._running.pop(number).metrics().bytes_read


def _ask(session: pystachio.Session, statements: Sequence[str], phase: Phase) -> None:
    """One client that thinks between its queries."""
    rng = random.Random(3)
    for sql in statements:
        time.sleep(rng.expovariate(1 / THINK_SECONDS))
        started = time.perf_counter()
        result = session.sql(sql, priority="interactive")
        result.to_arrow()
        phase.seconds.append(time.perf_counter() - started)
        phase.query_bytes += result.metrics().bytes_read


def make_statements(count: int) -> list[str]:
    rng = random.Random(5)
    days = [f"{rng.randint(1993, 1997)}-{rng.randint(1, 12):02}-01" for _ in range(count)]
    return [QUERIES[number % len(QUERIES)].format(day=day) for number, day in enumerate(days)]


def _connect(folders: Sequence[Path], policy: str) -> pystachio.Session:
    disks = [{"path": str(folder), "rate": RATE, "latency": LATENCY} for folder in folders]
    session = pystachio.connect(emulated=disks, io_policy=policy, chunk_cache=False)
    for table in ORDER:
        session.register(table, files_of(folders, table))
    return session


def _verify(folders: Sequence[Path], statements: Sequence[str]) -> None:
    peer = duckdb.connect()
    for table in ORDER:
        peer.execute(f"create view {table} as from read_parquet({files_of(folders, table)})")
    with _connect(folders, "pystachio") as session:
        for sql in statements:
            problem = disagreement(session.sql(sql).to_arrow(), peer.execute(sql).fetchall(), sql)
            if problem:
                raise AssertionError(f"{sql}: {problem}")


def make_disks(scale: float) -> list[Path]:
    """The tables by date, in parts that lie on the disks in turns."""
    root = data.ROOT / f"isolation-{scale:g}"
    folders = [root / f"ssd{number}" for number in range(DISKS)]
    source = data.tpch(scale)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for table, key in ORDER.items():
        if (folders[-1] / f"{table}-{PARTS - 1:02}.parquet").exists():
            continue
        numbered = f"select *, ntile({PARTS}) over (order by {key}) - 1 as part from '{source / table}.parquet'"
        duckdb.sql(f"create or replace temp table numbered as {numbered}")
        for part in range(PARTS):
            target = folders[part % DISKS] / f"{table}-{part:02}.parquet"
            rows = f"select * exclude part from numbered where part = {part} order by {key}"
            duckdb.sql(f"copy ({rows}) to '{target}' (format parquet, row_group_size 65536)")
        duckdb.sql("drop table numbered")
    return folders


def files_of(folders: Sequence[Path], table: str) -> list[str]:
    """In the order of the parts: neighbours lie on different disks."""
    paths = [path for folder in folders for path in folder.glob(f"{table}-*.parquet")]
    return [str(path) for path in sorted(paths, key=lambda path: path.name)]


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _line(phase: Phase) -> str:
    return f"p50 {percentile(phase.seconds, 50) * 1e3:.1f} p99 {percentile(phase.seconds, 99) * 1e3:.1f} ms"
