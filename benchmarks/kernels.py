"""Each primitive and the kernels above them: nanoseconds a row, and the share of the machine's copy bandwidth.

`host` is what runs on a CPU (numpy and C; for columns the compiled decoder), `portable` what runs anywhere (torch; for
columns pyarrow). One thread. The share counts the bytes that a row must read and write at least: it is 1 for a copy,
and may exceed it where the rows fit into a cache.
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial

import numpy as np
import torch

from benchmarks import chart
from benchmarks.figures import Figure
from benchmarks.kernel_cases import HOST, PORTABLE, PRIMITIVES, Run, larger
from benchmarks.report import Report, table
from pystachio.operators.kernels import Primitives, host, native, portable

SIZES = (1_000, 16_384, 262_144, 4_194_304)
_COPY_BYTES = 1 << 28


def run(*, scale: float, quick: bool) -> Report:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(quick)
    finally:
        torch.set_num_threads(threads)


def _run(quick: bool) -> Report:
    seconds = 0.02 if quick else 0.2
    sizes = SIZES[:-1] if quick else SIZES
    copied = _copy_bandwidth()
    nanoseconds: dict[tuple[str, str], dict[int, float]] = {}
    widths: dict[str, float] = {}
    for rows in sizes:
        for name, (width, ways) in _cases(rows).items():
            widths[name] = width
            for way, measured in ways.items():
                nanoseconds.setdefault((name, way), {})[rows] = _best(measured, seconds) / rows * 1e9
        sys.stdout.write(f"{rows:,} rows measured\n")
        sys.stdout.flush()
        gc.collect()
    figures = [Figure("copy bandwidth, one thread, read and written", copied / 1e9, "GB/s")]
    largest = sizes[-1]
    for name in PRIMITIVES:
        if (name, HOST) in nanoseconds:
            ratio = nanoseconds[name, HOST][largest] / nanoseconds[name, PORTABLE][largest]
            figures.append(Figure(f"{name}: host over portable, {largest:,} rows", ratio, "ratio", 1.0))
    head = ["kernel", "how", *(f"ns a row, {rows:,} rows" for rows in sizes), "bytes a row", "share of copy bandwidth"]
    rows_ = [
        [name, way, *times.values(), widths[name], widths[name] / times[largest] * 1e9 / copied]
        for (name, way), times in nanoseconds.items()
    ]
    shares = {
        way: [
            widths[name] / nanoseconds[name, way][largest] * 1e9 / copied if (name, way) in nanoseconds else None
            for name in widths
        ]
        for way in (HOST, PORTABLE)
    }
    title = f"share of the copy bandwidth ({copied / 1e9:.1f} GB/s), {largest:,} rows, one thread"
    return Report(
        figures,
        table(head, rows_),
        notes(),
        partial(chart.bars, title=title, labels=list(widths), series=shares, unit="share", line=1.0),
    )


def _cases(rows: int) -> dict[str, tuple[float, dict[str, Run]]]:
    random = np.random.default_rng(14)
    found: dict[str, tuple[float, dict[str, Run]]] = {}
    for name, (width, make) in PRIMITIVES.items():
        arguments = make(rows, random)
        modules = {HOST: host, PORTABLE: portable}
        found[name] = (
            width,
            {
                way: partial(getattr(module, name), *arguments)
                for way, module in modules.items()
                if hasattr(module, name)
            },
        )
    return found | larger(rows, random)


def notes() -> list[str]:
    """What is not measured, and why."""
    without = sorted(name for name in vars(Primitives) if not name.startswith("_") and name not in PRIMITIVES)
    notes = [f"primitives without a case: {', '.join(without)}"] if without else []
    if native.library() is None:
        notes.append(f"no compiled library: {native.load().problem}")
    return notes


def _best(measured: Run, seconds: float) -> float:
    """The least seconds of one run; others on the machine can only add to it."""
    measured()
    least = float("inf")
    end = time.perf_counter() + seconds
    runs = 0
    while runs < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        measured()
        least = min(least, time.perf_counter() - started)
        runs += 1
    return least


def _copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying much more than a cache holds."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    return 2 * _COPY_BYTES / _best(lambda: np.copyto(target, source), 1.0)
