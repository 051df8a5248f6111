"""The outcome of simulations as tables for people and as one object for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pystachio.cli.columns import printable
from pystachio.cli.output import readable_bytes
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.comparison import Comparison
from pystachio.io_scheduler.simulation.outcome import LinkOutcome, Outcome
from pystachio.io_scheduler.simulation.scenario import Scenario

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_FILE_WIDTH = 160
SEPARATE_LINKS = 8
"""More links than that are shown by kind, those of all nodes together."""


def print_tables(scenario: Scenario, comparisons: Sequence[Comparison]) -> None:
    """To standard output."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    with console.capture() as captured:
        _print(console, scenario, comparisons)
    # Not by rich, which ends the process in its own way when the reader is gone.
    sys.stdout.write(captured.get())
    sys.stdout.flush()


def _print(console: Console, scenario: Scenario, comparisons: Sequence[Comparison]) -> None:
    from rich.text import Text

    console.print(Text(printable(scenario.title), style="bold"), soft_wrap=True)
    rows = [row for comparison in comparisons for row in _class_rows(comparison)]
    console.print()
    console.print(_table(("policy", "class"), ("p50", "/ idle", "p99", "/ idle", "throughput", "plans"), rows))
    policies = [comparison.outcome.policy for comparison in comparisons]
    rows = [(name, *shares) for name, shares in _busy(comparisons).items()]
    console.print()
    console.print(_table(("busy",), policies, rows))
    rows = [_count_row(comparison.outcome) for comparison in comparisons]
    console.print()
    console.print(_table(("policy",), ("virtual time", "chunks", "messages", "events", "event hash"), rows))


def _table(left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Column, Table

    columns = [Column(name, no_wrap=True) for name in left]
    columns += [Column(name, no_wrap=True, justify="right") for name in right]
    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def _count_row(outcome: Outcome) -> tuple[str, ...]:
    messages = outcome.messages + outcome.central_messages
    numbers = (f"{number:,}" for number in (outcome.chunks, messages, outcome.events))
    return outcome.policy, _seconds(outcome.seconds), *numbers, outcome.event_hash


def _class_rows(comparison: Comparison) -> Iterable[tuple[str, ...]]:
    outcome = comparison.outcome
    for result in outcome.classes:
        if not (result.latencies or result.bytes_per_second or result.plans_failed):
            continue
        yield (
            outcome.policy,
            result.priority.name.lower(),
            _seconds(result.quantile(0.5)),
            _ratio(comparison.ratio(result.priority, 0.5)),
            _seconds(result.quantile(0.99)),
            _ratio(comparison.ratio(result.priority, 0.99)),
            f"{readable_bytes(result.bytes_per_second)}/s",
            f"{result.plans_done:,}" + (f", {result.plans_failed:,} failed" if result.plans_failed else ""),
        )


def _busy(comparisons: Sequence[Comparison]) -> dict[str, list[str]]:
    """The share of time that each link, or each kind of link, was busy, by policy."""
    grouped = max(len(comparison.outcome.links) for comparison in comparisons) > SEPARATE_LINKS
    columns = [_busy_of(comparison.outcome, grouped=grouped) for comparison in comparisons]
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: [column.get(name, "") for column in columns] for name in names}


def _busy_of(outcome: Outcome, *, grouped: bool) -> dict[str, str]:
    if not grouped:
        return {f"node {link.node}, {link.name}": f"{link.busy:.1%}" for link in outcome.links}
    kinds: dict[str, list[float]] = {}
    for link in outcome.links:
        kinds.setdefault(link.name, []).append(link.busy)
    return {
        f"{name}, {len(shares)} nodes": f"{sum(shares) / len(shares):.1%} ({min(shares):.0%} to {max(shares):.0%})"
        for name, shares in kinds.items()
    }


def as_object(scenario: Scenario, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What --json prints: seconds, bytes per second and shares as numbers, None where there is none."""
    return {"title": scenario.title, "policies": [_policy_object(comparison) for comparison in comparisons]}


def _policy_object(comparison: Comparison) -> dict[str, Any]:
    outcome = comparison.outcome
    return {
        "policy": outcome.policy,
        "seed": outcome.seed,
        "seconds": outcome.seconds,
        "events": outcome.events,
        "chunks": outcome.chunks,
        "messages": outcome.messages,
        "central_messages": outcome.central_messages,
        "event_hash": outcome.event_hash,
        "classes": {
            result.priority.name.lower(): {
                "p50_seconds": result.quantile(0.5),
                "p99_seconds": result.quantile(0.99),
                "p50_over_idle": comparison.ratio(result.priority, 0.5),
                "p99_over_idle": comparison.ratio(result.priority, 0.99),
                "waits": len(result.latencies),
                "bytes_per_second": result.bytes_per_second,
                "plans_done": result.plans_done,
                "plans_failed": result.plans_failed,
            }
            for result in outcome.classes
        },
        "links": [_link_object(link) for link in outcome.links],
    }


def _link_object(link: LinkOutcome) -> dict[str, Any]:
    by_class = {priority.name.lower(): link.bytes_by_class[priority] for priority in PriorityClass}
    return {"node": link.node, "link": link.name, "busy": link.busy, "chunks": link.chunks, "bytes": by_class}


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= 1.0:
        return f"{seconds:,.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio < 100.0 else f"{ratio:,.0f}"
