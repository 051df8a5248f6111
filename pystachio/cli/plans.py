"""`pystachio-node ps`, `cancel`, `set-priority`: plans of this user's processes here, or of a cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.at_node import ClusterEyes, ConfigFile, NodeOption, TokenFile, connected_to, whole_plan_id
from pystachio.cli.choice import one_of
from pystachio.cli.columns import aligned, link_text, printable, shortened
from pystachio.cli.failure import ExitCode, reported
from pystachio.cli.output import say
from pystachio.cli.query import Priority, deadline_option

if TYPE_CHECKING:
    from pystachio.cli.rates import Picture, PlanRow
    from pystachio.runtime.control_client import Found

_SAMPLE_SECONDS = 0.2
"""Shares are those of so short a time."""

_STATEMENT_WIDTH = 60


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per plan.")] = False,
    node: NodeOption = None,
    token_file: TokenFile = None,
    config: ConfigFile = None,
) -> None:
    """List the running plans of all your processes on this machine, or of a cluster.

    Exit code 3 says that a process did not answer.
    """
    with reported(), looking(node, token_file, config) as look:
        now = take_picture(look, _SAMPLE_SECONDS)
        if as_json:
            for plan in now.plans:
                sys.stdout.write(json.dumps(asdict(plan)) + "\n")
        else:
            sys.stdout.write(aligned(_HEADINGS, [_cells(plan) for plan in now.plans]))
        report_silent(now)


def cancel(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Its id, or the beginning of it.")],
    node: NodeOption = None,
    token_file: TokenFile = None,
    config: ConfigFile = None,
) -> None:
    """End a running plan."""
    from pystachio.remote.messages import CancelPlan, Done
    from pystachio.runtime.control_client import node_of_plan, steer
    from pystachio.runtime.control_protocol import Cancel

    with reported():
        if node is not None:
            with connected_to(node, token_file, config) as connection:
                plan_id = whole_plan_id(connection, plan)
                connection.ask(Done, lambda number: CancelPlan(number, plan_id))
            say(f"cancelled {printable(plan_id)}")
            return
        process, plan_id = node_of_plan(plan)
        steer(process, Cancel(plan_id))
        say(f"cancelled {printable(plan_id)} of process {process.pid}")


def set_priority(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="Its id, or the beginning of it.")],
    priority: Annotated[
        Priority, typer.Argument(parser=one_of(Priority), metavar="CLASS", help="interactive, normal or batch")
    ],
    deadline: Annotated[
        str | None, typer.Option(help="When the answer is wanted, from now: 500ms, 2s, 1m. For interactive plans.")
    ] = None,
    node: NodeOption = None,
    token_file: TokenFile = None,
    config: ConfigFile = None,
) -> None:
    """Change the class of a running plan, for all that it has waiting too."""
    from pystachio.remote.messages import Done, SetPriority
    from pystachio.runtime.control_client import node_of_plan, steer
    from pystachio.runtime.control_protocol import Prioritize

    seconds = deadline_option(deadline)
    if seconds is not None and priority != Priority.INTERACTIVE:
        raise typer.BadParameter("a deadline orders interactive plans only")
    with reported():
        if node is not None:
            with connected_to(node, token_file, config) as connection:
                plan_id = whole_plan_id(connection, plan)
                connection.ask(Done, lambda number: SetPriority(number, plan_id, priority.value, seconds))
            say(f"{printable(plan_id)} is {priority.value} now")
            return
        process, plan_id = node_of_plan(plan)
        steer(process, Prioritize(plan_id, priority.value, seconds))
        say(f"{printable(plan_id)} of process {process.pid} is {priority.value} now")


@contextmanager
def looking(node: str | None, token_file: Path | None, config: Path | None) -> Iterator[Callable[[], list[Found]]]:
    """What looks at all processes of this user here, or at all nodes of the cluster that `node` belongs to."""
    if node is None:
        from pystachio.runtime.control_client import look

        yield look
        return
    with connected_to(node, token_file, config) as connection, closing(ClusterEyes(connection)) as eyes:
        yield eyes.look


def take_picture(look: Callable[[], list[Found]], seconds: float) -> Picture:
    """Two looks at the nodes, so long apart; one if there is nothing to see."""
    from pystachio.cli.rates import picture

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
