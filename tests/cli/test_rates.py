"""What happened between two looks at the nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pystachio.cli.columns import aligned, link_text, shortened
from pystachio.cli.rates import picture, wait_text
from pystachio.errors import NodeLost
from pystachio.runtime.activity import LinkActivity, NodeActivity, PlanActivity, Reason, State, Wait
from pystachio.runtime.control_client import Found
from pystachio.runtime.control_folder import ControlSocket
from pystachio.runtime.control_protocol import Seen

DISK = "disk 259:0 read"


def plan(plan_id: str, priority: str, seconds: float, moved: int, worked: float = 0.0) -> PlanActivity:
    return PlanActivity(
        plan_id=plan_id,
        label="select  1",
        priority=priority,
        deadline=None,
        seconds=seconds,
        rows=0,
        state=State.MOVING,
        waits=(),
        worker_seconds=worked,
        jobs_running=0,
        jobs_waiting=0,
        memory_bytes=0,
        links={DISK: moved},
    )


def node(at: float, moved: int, *plans: PlanActivity, pid: int = 7) -> Found:
    link = LinkActivity(
        link=DISK, nbytes=moved, outstanding_bytes=1, waiting_bytes=2, window_bytes=3, bytes_per_second=1000.0
    )
    activity = NodeActivity(
        at=at, workers=2, busy_workers=1, jobs_waiting=0, memory_used=0, memory_budget=1, plans=plans, links=(link,)
    )
    return Found(ControlSocket(Path(f"{pid}.sock"), pid), Seen(pid, "program", activity))


def test_rates_shares_and_order() -> None:
    before = node(10.0, 1000, plan("batch", "batch", 5, 800, 1.0), plan("urgent", "interactive", 1, 200))
    after = node(12.0, 2000, plan("batch", "batch", 7, 1000, 2.0), plan("urgent", "interactive", 3, 1000))
    now = picture([before], [after])
    assert [each.plan_id for each in now.plans] == ["urgent", "batch"]
    urgent, batch = now.plans
    assert (urgent.bytes_per_second, urgent.share, urgent.share_of) == ({DISK: 400.0}, 0.8, DISK)
    assert (batch.bytes_per_second, batch.share, batch.cores) == ({DISK: 100.0}, 0.2, 0.5)
    assert urgent.statement == "select 1"
    (link,) = now.links
    assert (link.bytes_per_second, link.busy) == (500.0, 0.5)


def test_a_plan_that_has_just_begun_is_measured_from_its_start() -> None:
    now = picture([node(10.0, 0)], [node(12.0, 500, plan("new", "normal", 0.5, 500, 0.25))])
    (new,) = now.plans
    assert (new.bytes_per_second, new.cores) == ({DISK: 1000.0}, 0.5)
    assert new.share == 1.0, "never more than all"


def test_one_look_and_a_node_that_came_or_is_silent() -> None:
    here = node(10.0, 100, plan("p", "normal", 2.0, 100))
    assert picture([here], [here]).links[0].bytes_per_second == 0.0
    now = picture([], [here, Found(ControlSocket(Path("8.sock"), 8), None, NodeLost("gone"))])
    assert now.silent == ("gone",)
    assert now.plans[0].bytes_per_second == {DISK: 50.0}
    assert picture([], []).plans == ()


def test_a_link_that_moved_less_than_before_is_another_one() -> None:
    """A node whose ledger began anew shows no negative rates."""
    before = node(10.0, 900, plan("p", "normal", 2.0, 900))
    now = picture([before], [replace(node(11.0, 100, plan("p", "normal", 3.0, 100)), node=before.node)])
    assert now.links[0].bytes_per_second == 0.0
    assert now.plans[0].bytes_per_second == {DISK: 0.0}


def test_waits_in_words() -> None:
    assert wait_text(Wait(Reason.TRANSFER, DISK, 2 << 20, ("a", "b"))) == f"2.0 MiB on {DISK}, behind a, b"
    assert wait_text(Wait(Reason.WORKER, "worker", 0, ("a",))) == "a worker, behind a"
    assert wait_text(Wait(Reason.MEMORY, "host", 1024)) == "1.0 KiB of host memory"
    assert wait_text(Wait(Reason.CLIENT, "client")) == "its client"
    assert wait_text(Wait(Reason.NODE, "node")) == "another node"


def test_columns() -> None:
    assert aligned(("A", "LONG"), [("abc", "d")]) == "A    LONG\nabc  d\n"
    assert aligned(("A",), []) == "A\n"
    assert aligned(("A", "B"), [("\x1b[2J\x07", "b\nb")]) == "A            B\n\\x1b[2J\\x07  b\\nb\n"
    assert shortened("\x1b]0;title\x07 select", 12) == "\\x1b]0;titl…"
    assert link_text(DISK) == DISK
    assert link_text("emulated /some/long/path/to/ssd0 write") == "emulated …/ssd0 write"
    assert link_text("network a-very-long-name-of-a-peer:8815 read") == "network a-very-long-name-of-a-peer:8815 read"
