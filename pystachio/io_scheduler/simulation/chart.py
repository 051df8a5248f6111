"""One picture of a comparison: how long each class waited, and what the links were busy with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO

from pystachio.errors import Unsupported
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.comparison import Comparison
from pystachio.io_scheduler.simulation.outcome import ClassOutcome, LinkOutcome, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people who cannot tell red from green can tell apart.
_POLICY_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_CLASS_COLOURS = {PriorityClass.INTERACTIVE: "#D55E00", PriorityClass.NORMAL: "#F0C95A", PriorityClass.BATCH: "#9DBBD6"}
_IDLE_COLOUR = "#777777"
_RULE: Any = {"color": "#e4e4e4", "linewidth": 0.8}
_STYLE: Any = {"font.size": 9.5, "axes.titlesize": 10.5, "axes.spines.top": False, "axes.spines.right": False}
_SEPARATE_LINKS = 6
_SLOTS = 128
# Inches.
_TALLEST_PANEL, _TALLEST_STRIP, _LOWEST_STRIP, _USUAL_HEIGHT = 7.2, 0.62, 0.3, 7.2
_FEW_WAITS = 5


def require_matplotlib() -> None:
    """Raises Unsupported where it is not installed."""
    if find_spec("matplotlib") is None:
        raise Unsupported("charts without matplotlib", hint="pip install matplotlib")


def draw(title: str, comparisons: Sequence[Comparison], sink: BinaryIO) -> None:
    """Write a PNG: latencies of each class under all policies on the left, links under each policy on the right."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    classes = _classes_that_wait(comparisons)
    strips = _strip_names(comparisons)
    rows = len(comparisons) * (len(strips) + 0.8)
    with rc_context(_STYLE):
        strip = min(_TALLEST_STRIP, max(_LOWEST_STRIP, _USUAL_HEIGHT / rows))
        height = max(3.1 * len(classes), strip * rows, 3.6) + 0.9
        figure = Figure(figsize=(13.0, height), dpi=144)
        figure.suptitle(title, x=0.02, y=1.0 - 0.18 / height, ha="left", va="top", fontsize=13, fontweight="bold")
        edges = {"top": 1.0 - 0.8 / height, "bottom": 0.55 / height}
        if classes:
            low = max(edges["bottom"], edges["top"] - _TALLEST_PANEL * len(classes) / height)
            place = {"top": edges["top"], "bottom": low}
            _draw_waits(figure, comparisons, classes, left=0.045, right=0.455, **place)
        _draw_links(figure, comparisons, strips, left=0.6 if classes else 0.11, right=0.985, **edges)
        figure.savefig(sink, format="png")


def _classes_that_wait(comparisons: Sequence[Comparison]) -> list[PriorityClass]:
    """Those of which enough was measured for a distribution."""
    return [
        priority
        for priority in PriorityClass
        if max(len(comparison.outcome.of(priority).latencies) for comparison in comparisons) >= _FEW_WAITS
    ]


# How long each class waited


def _draw_waits(
    figure: Figure, comparisons: Sequence[Comparison], classes: Sequence[PriorityClass], **place: float
) -> None:
    grid = figure.add_gridspec(len(classes), 1, hspace=0.32, **place)
    for row, priority in enumerate(classes):
        axes = figure.add_subplot(grid[row])
        _draw_distributions(axes, comparisons, priority)
        if row == len(classes) - 1:
            axes.set_xlabel("milliseconds")


def _draw_distributions(axes: Axes, comparisons: Sequence[Comparison], priority: PriorityClass) -> None:
    """Cumulative distributions; the dot is the 99th percentile."""
    axes.set_title(f"How long {priority.name.lower()} work took", loc="left", fontweight="bold")
    idle = comparisons[0].idle
    if idle is not None and idle.of(priority).latencies:
        _draw_distribution(axes, idle.of(priority), "alone", _IDLE_COLOUR, dashed=True)
    for comparison, colour in zip(comparisons, _POLICY_COLOURS):
        _draw_distribution(axes, comparison.outcome.of(priority), comparison.outcome.policy, colour)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(_minor_labels(axes))
    axes.set_ylim(0.0, 1.03)
    axes.set_yticks([0.0, 0.5, 0.99], ["0", "half", "99 %"])
    axes.grid(axis="both", which="major", **_RULE)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="best", fontsize=8.5, title="99th percentile", title_fontsize=8.5, framealpha=0.92)
    legend.get_frame().set_edgecolor("none")


def _draw_distribution(axes: Axes, result: ClassOutcome, label: str, colour: str, *, dashed: bool = False) -> None:
    latencies = [seconds * 1e3 for seconds in result.latencies]
    p99 = quantile(latencies, 0.99)
    if p99 is None:
        return
    axes.step(
        [latencies[0], *latencies],
        [rank / len(latencies) for rank in range(len(latencies) + 1)],
        where="post",
        color=colour,
        linewidth=1.6 if dashed else 2.2,
        linestyle=(0, (4, 2)) if dashed else "solid",
        label=f"{label}  {_milliseconds(p99)}",
        zorder=3 if dashed else 2,
    )
    axes.plot([p99], [0.99], "o", color=colour, markersize=5, zorder=4)


# What the links were busy with


def _strip_names(comparisons: Sequence[Comparison]) -> list[str]:
    """A strip for each link, or, when they are many, for those of the same name on all nodes."""
    links = [link for comparison in comparisons for link in comparison.outcome.links]
    if len({link.node for link in links}) == 1:
        return list(dict.fromkeys(link.name for link in links))
    separate = dict.fromkeys(_own_name(link) for link in links)
    return list(separate if len(separate) <= _SEPARATE_LINKS else dict.fromkeys(link.name for link in links))


def _own_name(link: LinkOutcome) -> str:
    return f"node {link.node} {link.name}"


def _draw_links(figure: Figure, comparisons: Sequence[Comparison], strips: Sequence[str], **place: float) -> None:
    """For each policy a strip for each link: its utilisation over time, by class."""
    outer = figure.add_gridspec(len(comparisons), 1, hspace=0.8 / max(len(strips), 1), **place)
    first: Axes | None = None
    for row, comparison in enumerate(comparisons):
        inner = outer[row].subgridspec(len(strips), 1, hspace=0.18)
        links = comparison.outcome.links
        for index, name in enumerate(strips):
            axes = figure.add_subplot(inner[index], sharex=first)
            first = first or axes
            _draw_strip(axes, name, [link for link in links if name in (link.name, _own_name(link))])
            if index == 0:
                axes.set_title(f"Links under {comparison.outcome.policy}", loc="left", fontweight="bold")
            is_last = index == len(strips) - 1 and row == len(comparisons) - 1
            axes.tick_params(labelbottom=is_last, bottom=is_last)
            if is_last:
                axes.set_xlabel("seconds")
    _explain_classes(figure, comparisons, place["right"], place["top"])


def _draw_strip(axes: Axes, name: str, links: Sequence[LinkOutcome]) -> None:
    axes.set_ylim(0.0, 1.0)
    axes.set_yticks([0.0, 1.0], ["", ""])
    label = name if len(links) == 1 else f"{name}\n{len(links)} nodes"
    axes.set_ylabel(label, rotation=0, ha="right", va="center", labelpad=6, fontsize=9)
    axes.margins(x=0.0)
    if not links:
        return
    times, by_class = _mean_over_time(links)
    axes.stackplot(
        times, *by_class, colors=[_CLASS_COLOURS[priority] for priority in PriorityClass], step="post", linewidth=0
    )


def _mean_over_time(links: Sequence[LinkOutcome]) -> tuple[list[float], list[list[float]]]:
    """The start of each slot, and the mean share of the links for each class."""
    width = max(link.slot_seconds for link in links)
    while max(len(link.shares_by_class[0]) * link.slot_seconds for link in links) > _SLOTS * width:
        width *= 2.0
    rows = [[_widened(shares, round(width / link.slot_seconds)) for shares in link.shares_by_class] for link in links]
    length = max(len(row[0]) for row in rows)
    by_class = [
        [
            sum(row[priority][slot] if slot < len(row[priority]) else 0.0 for row in rows) / len(rows)
            for slot in range(length)
        ]
        for priority in PriorityClass
    ]
    # The last slot is not over.
    keep = max(length - 1, 1)
    return [slot * width for slot in range(keep)], [shares[:keep] for shares in by_class]


def _widened(shares: Sequence[float], times: int) -> Sequence[float]:
    if times <= 1:
        return shares
    return [sum(shares[start : start + times]) / times for start in range(0, len(shares), times)]


def _explain_classes(figure: Figure, comparisons: Sequence[Comparison], right: float, top: float) -> None:
    from matplotlib.patches import Patch

    seen = [
        priority
        for priority in PriorityClass
        if any(link.bytes_by_class[priority] for comparison in comparisons for link in comparison.outcome.links)
    ]
    patches = [Patch(color=_CLASS_COLOURS[priority], label=priority.name.lower()) for priority in seen]
    height = figure.get_figheight()
    figure.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(right, top + 0.05 / height),
        ncols=len(patches),
        frameon=False,
        fontsize=9,
        borderaxespad=0.0,
    )


def _milliseconds(value: float) -> str:
    return f"{value:,.1f} ms" if value >= 1.0 else f"{value:.2f} ms"


def _minor_labels(axes: Axes) -> Any:
    """Between powers of ten, 2 and 5 are labelled when the axis shows few of those."""

    def label(value: float, _: int) -> str:
        low, high = axes.get_xlim()
        return f"{value:g}" if f"{value:e}"[0] in "25" and high / low < 300 else ""

    return label
