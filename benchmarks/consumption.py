"""What an engine uses for a set of statements, in a process of its own: peak memory, processor time, energy.

`python -m benchmarks.consumption ENGINE FOLDER < STATEMENTS` (JSON) prints what it found; `consumption` starts that.
The statements run twice; processor time and energy are those of the second time, the peak is that of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.engines import engines

POWER = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Consumption:
    """`peak` in bytes, with Python and all that is imported; `joules` of all processors, None where nobody counts."""

    peak: int
    imported: int
    wall_seconds: float
    processor_seconds: float
    joules: float | None


def consumption(engine: str, folder: Path, queries: Mapping[str, str]) -> Consumption:
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.consumption", engine, str(folder)),
        input=json.dumps(dict(queries)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return Consumption(**json.loads(done.stdout.splitlines()[-1]))


def _measured(engine: str, folder: Path, queries: Mapping[str, str]) -> Consumption:
    with engines(folder, (engine,)) as opened:
        answer = opened[engine]
        answer("select 1 as one")
        imported = _peak()
        for sql in queries.values():
            answer(sql)
        wall, processor, joules = time.perf_counter(), time.process_time(), _joules()
        for sql in queries.values():
            answer(sql)
        ended = _joules()
        return Consumption(
            _peak(),
            imported,
            time.perf_counter() - wall,
            time.process_time() - processor,
            None if joules is None or ended is None or ended < joules else ended - joules,
        )


def _peak() -> int:
    """VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _joules() -> float | None:
    """What all packages have used so far; None where that is not there or not ours to read."""
    counters = sorted(POWER.glob("*-rapl:[0-9]/energy_uj")) if POWER.is_dir() else []
    if not counters or not all(os.access(counter, os.R_OK) for counter in counters):
        return None
    return sum(int(counter.read_text()) for counter in counters) / 1e6


def main() -> None:
    found = _measured(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
