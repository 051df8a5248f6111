"""A plan on a cluster, from its submission to its one end: rows, errors, cancellation, what is left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import Cancelled, DataError, NodeLost
from pystachio.planner.distribution.distribution import Preference
from pystachio.running_plan import RunningPlan
from pystachio.runtime.host import NodeStopped
from pystachio.runtime.memory import Reservation
from pystachio.runtime.streams import CpuStream
from pystachio.server.cluster_node import ClusterNode
from pystachio.server.coordinator import Attempt, Coordinator
from pystachio.server.plan_messages import FilesAsked, FilesSeen
from pystachio.session import Session
from tests.cluster.local_cluster import local_cluster, session_on

ROWS = 400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans")
    numbers = pa.table({"n": range(ROWS), "text": [f"the text of row {n % 1000}" for n in range(ROWS)]})
    pq.write_table(numbers, path / "numbers.parquet", row_group_size=10_000)
    return path


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[ClusterNode]]:
    with local_cluster(3, preference=Preference.SHUFFLE) as nodes:
        yield nodes
        assert all(node.statistics().leaks == 0 for node in nodes)


@pytest.fixture
def session(nodes: list[ClusterNode], folder: Path) -> Session:
    session = session_on(nodes[0])
    session.register("numbers", folder / "numbers.parquet")
    return session


def wait_until_idle(nodes: list[ClusterNode], seconds: float = 2.0) -> None:
    """Everything of every plan is released on every node."""
    end = time.monotonic() + seconds
    while any(node.statistics().running_plans or node.statistics().reserved_bytes for node in nodes):
        assert time.monotonic() < end, [node.statistics() for node in nodes]
        time.sleep(0.01)


def test_each_node_reads_its_share(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select count(*), sum(n) from numbers where n >= 0 and text like '%row%'")
    assert [list(row.values()) for row in result.to_arrow().to_pylist()] == [[ROWS, ROWS * (ROWS - 1) // 2]]
    (scan,) = [operator for operator in result.operators() if operator.kind == "Scan"]
    assert scan.rows_in == ROWS
    assert "Exchange gather" in result.explain(analyze=True)
    wait_until_idle(nodes)


def test_more_rows_than_are_held_come_in_order_of_arrival(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select a.n, a.text, b.text as other from numbers a join numbers b on a.n = b.n")
    seen = [n for batch in result.batches() for n in batch.column(0).to_pylist()]
    assert len(seen) == ROWS
    assert set(seen) == set(range(ROWS))
    wait_until_idle(nodes)


def test_a_result_that_is_read_no_further_ends_its_plan_everywhere(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select a.text, b.text as other from numbers a join numbers b on a.n % 1000 = b.n % 1000")
    batches = result.batches()
    next(batches)
    batches.close()
    wait_until_idle(nodes)


def test_a_limit_ends_the_plan_early(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select a.text from numbers a join numbers b on a.n % 1000 = b.n % 1000 limit 5")
    assert result.to_arrow().num_rows == 5
    wait_until_idle(nodes)


def test_a_limit_does_not_wait_for_a_node_that_finds_nothing(
    session: Session, nodes: list[ClusterNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs do not begin: as if its disk were slow, or none of its rows had passed a filter."""
    run = CpuStream.run
    threads = {node.host.call(_thread()).result() for node in nodes[1:]}
    held = threading.Event()

    async def run_or_wait(stream: CpuStream, *args: Any, **more: Any) -> Any:
        if threading.get_ident() in threads:
            held.set()
            await asyncio.Event().wait()
        return await run(stream, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(CpuStream, "run", run_or_wait)
        begun = time.monotonic()
        result = session.sql("select n, text from numbers where n >= 0 and text like '%row%' limit 3")
        assert result.to_arrow().num_rows == 3
        assert time.monotonic() - begun < 5.0
        assert held.is_set()
        wait_until_idle(nodes)


async def _thread() -> int:
    return threading.get_ident()


def test_an_error_of_any_node_is_the_plans_and_is_not_tried_again(session: Session, nodes: list[ClusterNode]) -> None:
    for row in (5, ROWS // 2, ROWS - 5):
        result = session.sql(f"select sum(10 / (n - {row})) from numbers")
        with pytest.raises(DataError, match="zero") as raised:
            result.to_arrow()
        assert raised.value.plan_id == result.plan_id
        assert result._running.attempts == 1  # type: ignore[attr-defined]
    wait_until_idle(nodes)


def test_cancelling_reaches_every_node(session: Session, nodes: list[ClusterNode]) -> None:
    for delay in (0.0, 0.02, 0.2):
        result = session.sql("select count(*) from numbers a join numbers b on a.n % 5 = b.n % 5 where a.n < b.n")
        time.sleep(delay)
        result.cancel()
        with pytest.raises(Cancelled):
            result.to_arrow()
        wait_until_idle(nodes, seconds=0.5)


def test_a_plan_whose_node_has_stopped_before_its_part_began_has_lost_it(
    session: Session, nodes: list[ClusterNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(plan: RunningPlan, urgency: object) -> None:
        raise NodeStopped

    with monkeypatch.context() as patched:
        patched.setattr(RunningPlan, "start", start)
        with pytest.raises(NodeLost, match="the node has stopped before the plan's end") as raised:
            session.sql("select sum(n) from numbers where n >= 5 and text like '%row%'").to_arrow()
    assert raised.value.retryable
    wait_until_idle(nodes)


def test_a_part_that_is_cancelled_on_its_node_cancels_the_plan(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select count(*) from numbers a join numbers b on a.n % 5 = b.n % 5 where a.n < b.n")
    other = nodes[2]
    end = time.monotonic() + 5
    while other.statistics().running_plans == 0:
        assert time.monotonic() < end
        time.sleep(0.005)
    other.host.call(other.host.node.cancel(result.plan_id)).result()
    with pytest.raises(Cancelled):
        result.to_arrow()
    wait_until_idle(nodes)


def test_a_node_that_does_not_say_why_its_part_ended_costs_an_attempt(
    session: Session, nodes: list[ClusterNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator hears of the failure by what the node gave up, and nothing from the node itself."""
    take, end, failed = RunningPlan.take, Coordinator.end, threading.Event()

    async def fail_once(plan: RunningPlan) -> Any:
        if failed.is_set():
            return await take(plan)
        failed.set()
        raise Cancelled("the sender gave the message up")

    async def end_without_an_answer(self: Coordinator, attempt: Attempt, *, cancel: bool) -> None:
        await end(self, attempt, cancel=cancel)
        if cancel:
            attempt.pending.add("n2")
            attempt.failure = None

    monkeypatch.setattr(RunningPlan, "take", fail_once)
    monkeypatch.setattr(Coordinator, "end", end_without_an_answer)
    result = session.sql("select n % 7 as k, count(*) as c from numbers group by k order by k")
    assert sum(result.to_arrow()["c"].to_pylist()) == ROWS
    assert result._running.attempts == 2  # type: ignore[attr-defined]
    wait_until_idle(nodes)


def test_rows_that_cannot_be_given_to_a_client_leave_nothing(
    session: Session, nodes: list[ClusterNode], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: RunningPlan, batch: object) -> pa.RecordBatch:
        raise DataError("a batch is too long for Arrow")

    with monkeypatch.context() as patched:
        patched.setattr(RunningPlan, "as_arrow", fail)
        result = session.sql("select n, text from numbers")
        with pytest.raises(DataError, match="too long for Arrow"):
            result.to_arrow()
        wait_until_idle(nodes)
        with local_cluster(1) as [alone]:
            on_it = session_on(alone)
            on_it.register("numbers", folder / "numbers.parquet")
            with pytest.raises(DataError, match="too long for Arrow"):
                on_it.sql("select n, text from numbers").to_arrow()
            wait_until_idle([alone])


def test_rows_of_a_plan_that_was_cancelled_are_let_go(session: Session, nodes: list[ClusterNode]) -> None:
    result = session.sql("select n, text from numbers")
    plan = result._running
    end = time.monotonic() + 5
    while not plan._ready_bytes and plan._seconds is None:  # type: ignore[attr-defined]
        assert time.monotonic() < end
    result.cancel()
    with suppress(Cancelled):
        result.to_arrow()
    assert plan._ready_bytes == 0  # type: ignore[attr-defined]
    wait_until_idle(nodes)


def test_plans_of_several_coordinators_interleave(nodes: list[ClusterNode], folder: Path) -> None:
    failures: list[BaseException] = []

    def work(node: ClusterNode, seed: int) -> None:
        try:
            session = session_on(node)
            session.register("numbers", folder / "numbers.parquet")
            for _ in range(4):
                sql = (
                    f"select a.n % 7 as k, count(*) as c from numbers a join numbers b on a.n = b.n + {seed} group by 1"
                )
                counts = {row["k"]: row["c"] for row in session.sql(sql).to_arrow().to_pylist()}
                assert sum(counts.values()) == ROWS - seed
                assert set(counts) == set(range(7))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(node, seed)) for seed in (1, 2) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    wait_until_idle(nodes)


def test_a_node_that_lacks_a_file_leaves_it_to_the_others(folder: Path) -> None:
    """All nodes see the same disk here: one of them says that it does not."""
    with local_cluster(3) as nodes:
        without = nodes[2]

        def deny(sender: str, message: FilesAsked) -> None:
            without.plane.tell(sender, FilesSeen(message.number, tuple(range(len(message.files)))))

        without.plane._handlers[FilesAsked] = deny
        session = session_on(nodes[0])
        session.register("numbers", folder / "numbers.parquet")
        assert session.sql("select sum(n) as s from numbers where n >= 0").to_arrow().to_pylist() == [
            {"s": ROWS * (ROWS - 1) // 2}
        ]
        read = [node.host.call(_moved(node)).result() for node in nodes]
        assert read[0] > 0
        assert read[1] > 0
        assert read[2] == 0


async def _moved(node: ClusterNode) -> int:
    """Bytes that the node has read for plans from disks."""
    links = node._embedded._transfers.ledger.links()
    return sum(nbytes for link, nbytes in links.items() if link.medium != "network")


def test_a_draining_node_gets_no_part(folder: Path) -> None:
    with local_cluster(3) as nodes:
        session = session_on(nodes[0])
        session.register("numbers", folder / "numbers.parquet")
        nodes[1].drain()
        end = time.monotonic() + 5
        while "n1" in (names := [member.name for member in nodes[0].plane.available()]):
            assert time.monotonic() < end, names
            time.sleep(0.01)
        before = nodes[1].host.node.statistics().plans_ended
        assert session.sql("select count(*) as c from numbers where n > 5").to_arrow().to_pylist() == [{"c": ROWS - 6}]
        assert nodes[1].host.node.statistics().plans_ended == before


def test_a_priority_that_is_changed_on_one_node_holds_on_all(session: Session, nodes: list[ClusterNode]) -> None:
    async def classes(node: ClusterNode) -> list[str]:
        return [plan.priority for plan in node.host.node.activity().plans]

    statement = "select count(*) from numbers a join numbers b on a.n % 50 = b.n % 50 where a.n < b.n"
    result = session.sql(statement, priority="batch")

    def all_are(priority: str) -> bool:
        return all(node.host.call(classes(node)).result() == [priority] for node in nodes)

    for priority in ("batch", "interactive"):
        end = time.monotonic() + 5
        while not all_are(priority):
            assert time.monotonic() < end, [node.host.call(classes(node)).result() for node in nodes]
            time.sleep(0.01)
        result.set_priority("interactive")
    result.cancel()
    with pytest.raises(Cancelled):
        result.to_arrow()
    wait_until_idle(nodes)


def test_little_plans_run_on_the_node_that_they_are_submitted_to(folder: Path) -> None:
    with local_cluster(2, cluster={"alone_bytes": "1GiB"}) as nodes:
        session = session_on(nodes[1])
        session.register("numbers", folder / "numbers.parquet")
        result = session.sql("select text, sum(n) as total from numbers group by text order by total limit 1")
        assert result.to_arrow().num_rows == 1
        explained = result.explain(analyze=True)
        assert "on n1 alone" in explained
        assert "Exchange" not in explained


def test_dictionaries_of_exchanges_are_reserved(
    nodes: list[ClusterNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay with both ends of a stream, for the blocks that follow."""
    values = [f"{number:04} {'x' * 20}" for number in range(50)]
    table = pa.table({"n": range(20_000), "text": [values[n % 50] for n in range(20_000)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2000)
    kept: list[int] = []
    resize = Reservation.resize_nowait

    def note(reservation: Reservation, nbytes: int) -> None:
        kept.append(nbytes)
        resize(reservation, nbytes)

    monkeypatch.setattr(Reservation, "resize_nowait", note)
    session = session_on(nodes[0])
    session.register("t", tmp_path / "t.parquet")
    joined = session.sql("select a.n, a.text from t a join t b on a.n = b.n").to_arrow()
    assert sorted(joined.column("text").to_pylist()) == sorted(table.column("text").to_pylist())
    assert 50 * 25 <= max(kept) < 100_000
    wait_until_idle(nodes)


def test_progress_is_that_of_all_nodes(session: Session, nodes: list[ClusterNode]) -> None:
    """What is known of it: this node's, and that of nodes whose part has ended."""
    result = session.sql("select a.text, b.text as other from numbers a join numbers b on a.n % 500 = b.n % 500")
    batches = result.batches()
    next(batches)
    assert result.progress() is not None
    batches.close()
    wait_until_idle(nodes)
    result = session.sql("select count(*) from numbers where n >= 0 and text like '%row%'")
    result.to_arrow()
    assert result.progress() == 1
