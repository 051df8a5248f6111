"""Charts of benchmarks as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLORS = ("#1b6ca8", "#8fb8de", "#d9822b", "#f3c178", "#5a9e6f", "#999999", "#b04a5a", "#6b5b95", "#e3e3e3", "#333333")


def bars(
    path: Path,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    *,
    logarithmic: bool = True,
    line: float | None = None,
) -> None:
    """Groups of bars, one group for each label and a bar for each series; `line`: a level to hold."""
    axes, save = _axes(path, title, max(8.0, 0.24 * len(labels) * len(series) + 2))
    width = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(labels))]
        heights = [float("nan") if value is None else value for value in values]
        axes.bar(places, heights, width, label=name, color=COLORS[number % len(COLORS)])
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels), default=0) > 4 else 0, fontsize=8)
    if line is not None:
        axes.axhline(line, color="#333333", linewidth=1, linestyle="--")
    if logarithmic:
        axes.set_yscale("log")
    axes.set_ylabel(unit)
    axes.legend(fontsize=8)
    save()


def stacks(path: Path, title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> None:
    """One bar for each label, made of the series."""
    axes, save = _axes(path, title, max(7.0, 0.6 * len(labels) + 2))
    bottoms = [0.0] * len(labels)
    for number, (name, values) in enumerate(series.items()):
        axes.bar(labels, values, 0.7, bottom=bottoms, label=name, color=COLORS[number % len(COLORS)])
        bottoms = [bottom + value for bottom, value in zip(bottoms, values)]
    axes.set_ylabel(unit)
    axes.legend(fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    save()


def lines(path: Path, title: str, series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> None:
    """A line through the points of each series, both axes logarithmic."""
    axes, save = _axes(path, title, 9.0)
    for number, (name, points) in enumerate(series.items()):
        style = ("-", "--", ":")[number // len(COLORS) % 3]
        axes.plot(*zip(*points), style, marker="o", markersize=3, label=name, color=COLORS[number % len(COLORS)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    save()


def _axes(path: Path, title: str, width: float):  # type: ignore[no-untyped-def]
    """Axes to draw on, and what writes the picture when that is done."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(width, 24.0), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    return axes, lambda: figure.savefig(path, dpi=110)
