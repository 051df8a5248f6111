"""A measured figure, and how figures are printed and kept."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit` against `goal`: it holds when value is at most (or at least) the goal; None: no goal."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    direction: Literal["at most", "at least"] = "at most"
    peers: dict[str, float] = field(default_factory=dict)
    samples: int = 1

    @property
    def holds(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.direction == "at most" else self.value >= self.goal


def machine() -> str:
    """One line that says where a figure was measured."""
    import torch

    from pystachio.operators.kernels import native

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) >> 20 for line in _read("/proc/meminfo").splitlines() if "MemTotal" in line), 0)
    cores = len(_affinity())
    loops = native.instructions() or "no compiled library"
    return (
        f"{model} ({loops}), {cores} cores, {memory} GiB, Python {platform.python_version()}, torch {torch.__version__}"
    )


def report(figures: Sequence[Figure], json_path: Path | None, command: str) -> int:
    """Print the figures; write them to `json_path`; the exit code is 1 if any misses its goal."""
    width = max((len(figure.name) for figure in figures), default=0)
    for figure in figures:
        verdict = {None: "", True: "holds", False: "MISSED"}[figure.holds]
        goal = "" if figure.goal is None else f"({figure.direction} {figure.goal:g})"
        sys.stdout.write(f"{figure.name:<{width}}  {figure.value:>12,.4g} {figure.unit:<8} {goal:<18} {verdict}\n")
    if json_path is not None:
        here = machine()
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [
            {**asdict(figure), "holds": figure.holds, "machine": here, "command": command, "measured_at": measured_at}
            for figure in figures
        ]
        json_path.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(figure.holds is False for figure in figures) else 0


def markdown(figures: Sequence[Figure]) -> str:
    """The figures as a table."""
    lines = ["| figure | value | goal | holds | peers | samples |", "|---|---|---|---|---|---|"]
    for figure in figures:
        goal = "" if figure.goal is None else f"{figure.direction} {figure.goal:g}"
        holds = {None: "", True: "yes", False: "**no**"}[figure.holds]
        peers = ", ".join(f"{name} {value:,.4g}" for name, value in figure.peers.items())
        lines.append(
            f"| {figure.name} | {figure.value:,.4g} {figure.unit} | {goal} | {holds} | {peers} | {figure.samples} |"
        )
    return "\n".join(lines) + "\n"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _affinity() -> set[int]:
    import os

    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
