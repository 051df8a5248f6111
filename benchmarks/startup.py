"""From process start to the printed answer: `pystachio-node query` of TPC-H Q6 over an existing folder."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import data
from benchmarks.figures import Figure


def run(*, scale: float, quick: bool) -> list[Figure]:
    folder = data.tpch(scale)
    node = Path(sys.executable).with_name("pystachio-node")
    query = [
        str(node),
        "query",
        "--data",
        str(folder),
        "--format",
        "json",
        "--quiet",
        "--file",
        str(data.QUERIES / "q06.sql"),
    ]
    cases = {
        "process start to the answer of Q6": (query, 2.0),
        "import of pystachio": ([sys.executable, "-c", "import pystachio"], None),
        "import of the command line": ([sys.executable, "-c", "import pystachio.cli.main"], 0.4),
        "an empty Python process": ([sys.executable, "-c", "pass"], None),
    }
    repetitions = 3 if quick else 7
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repetitions):
        for name, (command, _goal) in cases.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            samples[name].append(time.perf_counter() - start)
    return [
        *(
            Figure(name, statistics.median(samples[name]), "s", goal=goal, samples=repetitions)
            for name, (_command, goal) in cases.items()
        ),
        Figure("modules of torch or DataFusion loaded by `import pystachio`", _heavy_modules(), "modules", goal=0),
    ]


def _heavy_modules() -> float:
    code = "import sys, pystachio; print(sum(m.split('.')[0] in ('torch', 'datafusion') for m in sys.modules))"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
