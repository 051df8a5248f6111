"""Statements whose files are not in memory: before each run the page cache is told to forget them.

Each run has a session, or a connection, of its own: neither engine has anything left from the run before but its files,
and what memory, without its content, the process keeps of what was freed. Opening it is not part of the time. Ours
decodes no Parquet here: its columns are on disk from earlier runs, as are its samples and its plans.

Each engine runs in a process of its own, which has answered all statements once. In one for both, DuckDB returns free
memory of the whole process to the kernel whenever a database is closed, and its neighbour pays for 90,000 fresh pages
in a round of TPC-H, a sixth of its time.

`python -m benchmarks.cold ENGINE FOLDER` answers each line of its input, a statement as JSON, with a line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pystachio.config
from benchmarks.engines import DUCKDB_OWN, OURS, duckdb_file, engines

NAMES = (OURS, DUCKDB_OWN)


@dataclass(frozen=True, slots=True)
class ColdRun:
    """One run of a statement. `nbytes` came from disk; 0 where nobody counts them."""

    seconds: float
    nbytes: int


def cold(folder: Path, queries: Mapping[str, str], repetitions: int) -> dict[str, dict[str, float]]:
    """Median seconds by engine and statement; all statements have run before, so that their files exist."""
    seconds: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    read = dict.fromkeys(NAMES, 0)
    with ExitStack() as processes:
        contenders = {name: processes.enter_context(_contender(name, folder)) for name in NAMES}
        for contender in contenders.values():
            for sql in queries.values():
                contender(sql)
        # What is not on disk yet cannot be dropped.
        os.sync()
        for query, sql in queries.items():
            runs: dict[str, list[ColdRun]] = {name: [] for name in NAMES}
            for _ in range(repetitions):
                for name, contender in contenders.items():
                    runs[name].append(contender(sql))
            for name in NAMES:
                seconds[name][query] = statistics.median(run.seconds for run in runs[name])
                read[name] += sum(run.nbytes for run in runs[name])
            shown = "".join(f"{seconds[name][query] * 1e3:>26.1f}" for name in NAMES)
            sys.stdout.write(f"{query + ' cold':<12}{shown}\n")
            sys.stdout.flush()
    for name in NAMES:
        sys.stdout.write(f"{name}: {read[name] / repetitions / 1e6:,.0f} MB came from disk in a round\n")
    return seconds


@contextmanager
def _contender(name: str, folder: Path) -> Iterator[Callable[[str], ColdRun]]:
    """A process for the engine, and what runs a statement in it."""
    command = (sys.executable, "-m", "benchmarks.cold", name, str(folder))
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        statements, answers = process.stdin, process.stdout

        def run(sql: str) -> ColdRun:
            statements.write(json.dumps(sql) + "\n")
            statements.flush()
            answer = answers.readline()
            if not answer:
                raise RuntimeError(f"the process of {name} ended at: {sql}")
            return ColdRun(**json.loads(answer))

        yield run


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    # What an engine prints is no answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(asdict(_run(name, folder, json.loads(line)))) + "\n")
            answers.flush()


def _run(name: str, folder: Path, sql: str) -> ColdRun:
    forget([duckdb_file(folder)] if name == DUCKDB_OWN else [*_chunks(), *folder.glob("*.parquet")])
    with engines(folder, (name,)) as opened:
        before = _bytes_read()
        started = time.perf_counter()
        opened[name](sql)
        return ColdRun(time.perf_counter() - started, _bytes_read() - before)


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


if __name__ == "__main__":
    main()
