"""What plans and links did between two looks at the nodes: for `ps` and `top`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pystachio.cli.columns import link_text
from pystachio.cli.output import readable_bytes
from pystachio.runtime.activity import NodeActivity, PlanActivity, Reason, Wait
from pystachio.runtime.control_client import Found


@dataclass(frozen=True, slots=True)
class PlanRow:
    """`process` is a number, or the name of a node of a cluster. `bytes_per_second` by link, `share` the plan's part of
    what moved on the link where that is largest, `cores` its worker seconds per second. Jobs count when they end, so
    `cores` is uneven over short times.
    """

    plan_id: str
    process: int | str
    priority: str
    deadline: float | None
    seconds: float
    state: str
    rows: int
    memory_bytes: int
    bytes_per_second: Mapping[str, float]
    share: float
    share_of: str
    cores: float
    waits: tuple[str, ...]
    statement: str


@dataclass(frozen=True, slots=True)
class LinkRow:
    """`busy` is the part of the link's measured rate, None while it is not known."""

    link: str
    process: int | str
    bytes_per_second: float
    busy: float | None
    outstanding_bytes: int
    waiting_bytes: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    process: int | str
    program: str
    workers: int
    busy_workers: int
    jobs_waiting: int
    memory_used: int
    memory_budget: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The nodes of this user, most urgent and oldest plans first. `silent` are processes that did not answer."""

    nodes: tuple[NodeRow, ...]
    plans: tuple[PlanRow, ...]
    links: tuple[LinkRow, ...]
    silent: tuple[str, ...]


def picture(before: Sequence[Found], after: Sequence[Found]) -> Picture:
    """Rates are those between the two; a plan or node that was not there before has moved what it has moved so far."""
    earlier = {found.node.path: found.seen.activity for found in before if found.seen is not None}
    nodes, plans, links, silent = [], [], [], []
    for found in after:
        if found.seen is None:
            silent.append(str(found.error))
            continue
        seen, activity = found.seen, found.seen.activity
        process = found.name or seen.pid
        nodes.append(
            NodeRow(
                process,
                seen.program,
                activity.workers,
                activity.busy_workers,
                activity.jobs_waiting,
                activity.memory_used,
                activity.memory_budget,
            )
        )
        old = earlier.get(found.node.path)
        moved = _link_rates(old, activity)
        links += [
            LinkRow(
                link.link,
                process,
                moved[link.link],
                None if not link.bytes_per_second else min(1.0, moved[link.link] / link.bytes_per_second),
                link.outstanding_bytes,
                link.waiting_bytes,
            )
            for link in activity.links
        ]
        plans += [_plan_row(plan, process, old, activity, moved) for plan in activity.plans]
    order = {"interactive": 0, "normal": 1, "batch": 2}
    plans.sort(key=lambda plan: (order.get(plan.priority, 3), -plan.seconds))
    return Picture(tuple(nodes), tuple(plans), tuple(links), tuple(silent))


def wait_text(wait: Wait) -> str:
    """What people read."""
    behind = ", ".join(wait.behind)
    match wait.reason:
        case Reason.TRANSFER:
            what = f"{readable_bytes(wait.nbytes)} on {link_text(wait.what)}"
        case Reason.WORKER:
            what = "a worker"
        case Reason.MEMORY:
            what = f"{readable_bytes(wait.nbytes)} of {wait.what} memory"
        case Reason.CLIENT:
            what = "its client"
        case Reason.NODE:
            what = "another node"
    return f"{what}, behind {behind}" if behind else what


def _link_rates(old: NodeActivity | None, new: NodeActivity) -> dict[str, float]:
    before = {link.link: link.nbytes for link in old.links} if old is not None else {}
    seconds = _seconds(old, new)
    return {link.link: max(0.0, (link.nbytes - before.get(link.link, 0)) / seconds) for link in new.links}


def _plan_row(
    plan: PlanActivity, process: int | str, old: NodeActivity | None, new: NodeActivity, moved: Mapping[str, float]
) -> PlanRow:
    before = next((each for each in old.plans if each.plan_id == plan.plan_id), None) if old is not None else None
    seconds = _seconds(old, new) if before is not None else max(plan.seconds, 1e-3)
    read = before.links if before is not None else {}
    rates = {link: max(0.0, (nbytes - read.get(link, 0)) / seconds) for link, nbytes in plan.links.items()}
    shares = {link: rate / moved[link] for link, rate in rates.items() if moved.get(link)}
    share_of = max(shares, key=lambda link: rates[link], default="")
    worked = plan.worker_seconds - (before.worker_seconds if before is not None else 0.0)
    return PlanRow(
        plan_id=plan.plan_id,
        process=process,
        priority=plan.priority,
        deadline=plan.deadline,
        seconds=plan.seconds,
        state=plan.state.value,
        rows=plan.rows,
        memory_bytes=plan.memory_bytes,
        bytes_per_second=rates,
        share=min(1.0, shares.get(share_of, 0.0)),
        share_of=share_of,
        cores=max(0.0, worked / seconds),
        waits=tuple(wait_text(wait) for wait in plan.waits),
        statement=" ".join(plan.label.split()),
    )


def _seconds(old: NodeActivity | None, new: NodeActivity) -> float:
    return max(new.at - old.at, 1e-3) if old is not None else 1.0
