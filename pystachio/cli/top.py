"""`pystachio-node top`: plans, links and workers of all of this user's processes on this machine, live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.at_node import ConfigFile, NodeOption, TokenFile
from pystachio.cli.columns import aligned, link_text, printable, shortened
from pystachio.cli.failure import reported
from pystachio.cli.output import readable_bytes
from pystachio.cli.plans import looking, report_silent

if TYPE_CHECKING:
    from pystachio.cli.rates import LinkRow, NodeRow, Picture, PlanRow
    from pystachio.runtime.control_client import Found

_STATEMENT_WIDTH = 32


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per look.")] = False,
    node: NodeOption = None,
    token_file: TokenFile = None,
    config: ConfigFile = None,
) -> None:
    """Show what the plans of all your processes, or of a cluster, do, until Ctrl-C.

    For each plan its class, what it reads and waits for; for each link its bytes per second; the workers that are busy.
    """
    with reported(), looking(node, token_file, config) as look:
        pictures = _pictures(look, interval)
        if as_json:
            for now in pictures:
                sys.stdout.write(json.dumps(asdict(now)) + "\n")
                sys.stdout.flush()
                if once:
                    report_silent(now)
                    return
        elif once or not sys.stdout.isatty():
            _print_plainly(pictures, once)
        else:
            _show_live(pictures)


def _pictures(look: Callable[[], list[Found]], interval: float) -> Iterator[Picture]:
    from pystachio.cli.rates import picture

    before = look()
    while True:
        time.sleep(interval)
        after = look()
        yield picture(before, after)
        before = after


def _print_plainly(pictures: Iterator[Picture], once: bool) -> None:
    for now in pictures:
        sys.stdout.write(_page(now))
        sys.stdout.flush()
        if once:
            report_silent(now)
            return
        sys.stdout.write("\n")


def _show_live(pictures: Iterator[Picture]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        for now in pictures:
            live.update(Text(_page(now), no_wrap=True, overflow="ellipsis"), refresh=True)


def _page(now: Picture) -> str:
    lines = [*(_headline(node) for node in now.nodes), *now.silent]
    head = "\n".join(map(printable, lines)) or "no process of yours has a node"
    plans = aligned(_PLAN_HEADINGS, [_plan_cells(plan) for plan in now.plans])
    links = aligned(_LINK_HEADINGS, [_link_cells(link, now) for link in now.links])
    return f"{head}\n\n{plans}\n{links}"


def _headline(node: NodeRow) -> str:
    held = f"{readable_bytes(node.memory_used)} of {readable_bytes(node.memory_budget)} held"
    busy = f"{node.busy_workers} jobs on {node.workers} workers, {node.jobs_waiting} wait"
    return f"{node.program} ({node.process}): {busy}, {held}"


_PLAN_HEADINGS = (
    "PLAN",
    "PROCESS",
    "CLASS",
    "DEADLINE",
    "SECONDS",
    "STATE",
    "CORES",
    "MOVES",
    "SHARE",
    "HOLDS",
    "STATEMENT",
    "WAITS FOR",
)


def _plan_cells(plan: PlanRow) -> tuple[str, ...]:
    return (
        plan.plan_id,
        str(plan.process),
        plan.priority,
        "" if plan.deadline is None else f"{plan.deadline:+.1f} s",
        f"{plan.seconds:.1f}",
        plan.state,
        f"{plan.cores:.2f}",
        _rate(sum(plan.bytes_per_second.values())),
        f"{plan.share:.0%}" if plan.share_of else "",
        readable_bytes(plan.memory_bytes),
        shortened(plan.statement, _STATEMENT_WIDTH),
        "; ".join(plan.waits),
    )


_LINK_HEADINGS = ("LINK", "PROCESS", "MOVES", "BUSY", "INSIDE", "WAITING", "PLANS")


def _link_cells(link: LinkRow, now: Picture) -> tuple[str, ...]:
    moving = [
        (plan.bytes_per_second.get(link.link, 0.0), plan.plan_id) for plan in now.plans if plan.process == link.process
    ]
    return (
        link_text(link.link),
        str(link.process),
        _rate(link.bytes_per_second),
        "" if link.busy is None else f"{link.busy:.0%}",
        readable_bytes(link.outstanding_bytes),
        readable_bytes(link.waiting_bytes),
        ", ".join(f"{plan_id} {_rate(rate)}" for rate, plan_id in sorted(moving, reverse=True) if rate),
    )


def _rate(bytes_per_second: float) -> str:
    return f"{readable_bytes(bytes_per_second)}/s"
