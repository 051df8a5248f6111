"""Statements whose files are not in memory: before each run the page cache is told to forget them.

Each run has a session, or a connection, of its own: neither engine has anything left from the run before but its files,
and what memory, without its content, the process keeps of what was freed. Opening it is not part of the time. Ours
decodes no Parquet here: its columns are on disk from earlier runs, as are its samples and its plans.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pystachio.config
from benchmarks.engines import DUCKDB_OWN, OURS, duckdb_file, engines

NAMES = (OURS, DUCKDB_OWN)


def cold(folder: Path, queries: Mapping[str, str], repetitions: int) -> dict[str, dict[str, float]]:
    """Median seconds by engine and statement; all statements have run before, so that their files exist."""
    files: dict[str, Callable[[], list[Path]]] = {
        OURS: lambda: [*_chunks(), *folder.glob("*.parquet")],
        DUCKDB_OWN: lambda: [duckdb_file(folder)],
    }
    seconds: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    read = dict.fromkeys(NAMES, 0)
    os.sync()
    for query, sql in queries.items():
        times: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(repetitions):
            for name in NAMES:
                forget(files[name]())
                with engines(folder, (name,)) as opened:
                    before = _bytes_read()
                    started = time.perf_counter()
                    opened[name](sql)
                    times[name].append(time.perf_counter() - started)
                    read[name] += _bytes_read() - before
        for name in NAMES:
            seconds[name][query] = statistics.median(times[name])
        shown = "".join(f"{seconds[name][query] * 1e3:>26.1f}" for name in NAMES)
        sys.stdout.write(f"{query + ' cold':<12}{shown}\n")
        sys.stdout.flush()
    for name in NAMES:
        sys.stdout.write(f"{name}: {read[name] / repetitions / 1e6:,.0f} MB came from disk in a round\n")
    return seconds


def forget(paths: Iterable[Path]) -> None:
    """Drop the files from the page cache. What is mapped or not written yet stays."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _chunks() -> list[Path]:
    """Where our stored columns are, by default settings."""
    folder = pystachio.config.load().settings.chunk_cache_dir
    return [path for path in folder.rglob("*") if path.is_file()]


def _bytes_read() -> int:
    """From disk by this process; 0 where nobody counts them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)
