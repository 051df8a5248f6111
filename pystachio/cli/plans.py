"""`pystachio-node ps`, `cancel`, `set-priority`: the plans of all of this user's processes on this machine."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.choice import one_of
from pystachio.cli.columns import aligned, link_text, printable, shortened
from pystachio.cli.failure import ExitCode, reported
from pystachio.cli.output import say
from pystachio.cli.query import Priority, deadline_option

if TYPE_CHECKING:
    from pystachio.cli.rates import Picture, PlanRow

_SAMPLE_SECONDS = 0.2
"""Shares are those of so short a time."""

_STATEMENT_WIDTH = 60


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per plan.")] = False,
) -> None:
    """List the running plans of all your processes on this machine.

    Exit code 3 says that a process did not answer.
    """
    with reported():
        now = take_picture(_SAMPLE_SECONDS)
        if as_json:
            for plan in now.plans:
                sys.stdout.write(json.dumps(asdict(plan)) + "\n")
        else:
            sys.stdout.write(aligned(_HEADINGS, [_cells(plan) for plan in now.plans]))
        report_silent(now)


def cancel(plan: Annotated[str, typer.Argument(metavar="PLAN", help="Its id, or the beginning of it.")]) -> None:
    """End a running plan."""
    from pystachio.runtime.control_client import node_of_plan, steer
    from pystachio.runtime.control_protocol import Cancel

    with reported():
        node, plan_id = node_of_plan(plan)
        steer(node, Cancel(plan_id))
        say(f"cancelled {printable(plan_id)} of process {node.pid}")


def set_priority(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Its id, or the beginning of it.")],
    priority: Annotated[
        Priority, typer.Argument(parser=one_of(Priority), metavar="CLASS", help="interactive, normal or batch")
    ],
    deadline: Annotated[
        str | None, typer.Option(help="When the answer is wanted, from now: 500ms, 2s, 1m. For interactive plans.")
    ] = None,
) -> None:
    """Change the class of a running plan, for all that it has waiting too."""
    from pystachio.runtime.control_client import node_of_plan, steer
    from pystachio.runtime.control_protocol import Prioritize

    seconds = deadline_option(deadline)
    if seconds is not None and priority != Priority.INTERACTIVE:
        raise typer.BadParameter("a deadline orders interactive plans only")
    with reported():
        node, plan_id = node_of_plan(plan)
        steer(node, Prioritize(plan_id, priority.value, seconds))
        say(f"{printable(plan_id)} of process {node.pid} is {priority.value} now")


def take_picture(seconds: float) -> Picture:
    """Two looks at the nodes, so long apart; one if there is nothing to see."""
    from pystachio.cli.rates import picture
    from pystachio.runtime.control_client import look

    before = look()
    if not any(found.seen is not None and found.seen.activity.plans for found in before):
        return picture(before, before)
    time.sleep(seconds)
    return picture(before, look())


def report_silent(now: Picture) -> None:
    """Say which processes did not answer, and end with the code for that."""
    for reason in now.silent:
        say(printable(reason))
    if now.silent:
        raise typer.Exit(ExitCode.UNREACHABLE)


_HEADINGS = ("PLAN", "PROCESS", "CLASS", "DEADLINE", "SECONDS", "STATE", "ROWS", "SHARE", "WAITS FOR", "STATEMENT")


def _cells(plan: PlanRow) -> tuple[str, ...]:
    """The plan's line under the headings."""
    return (
        plan.plan_id,
        str(plan.process),
        plan.priority,
        "" if plan.deadline is None else f"{plan.deadline:+.1f} s",
        f"{plan.seconds:.1f}",
        plan.state,
        f"{plan.rows:,}",
        f"{plan.share:.0%} of {link_text(plan.share_of)}" if plan.share_of else "",
        "; ".join(plan.waits),
        shortened(plan.statement, _STATEMENT_WIDTH),
    )
