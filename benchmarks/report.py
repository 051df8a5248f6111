"""What a benchmark found: figures against goals, and where there is more to say, a table and a chart of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure

Draw = Callable[[Path], None]
"""Writes a chart to a PNG file."""


@dataclass(frozen=True, slots=True)
class Report:
    """`table` is Markdown; `notes` are lines below it."""

    figures: Sequence[Figure]
    table: str = ""
    notes: Sequence[str] = ()
    chart: Draw | None = None


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; floats with three digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|")
