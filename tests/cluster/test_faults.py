"""Faults of every kind on clusters of processes: right answers or typed errors, in time, and nothing left behind."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.cluster_processes import NodeProcess, Outcome, ProcessCluster
from benchmarks.fault_campaign import TYPED
from benchmarks.fault_kinds import Faults
from benchmarks.slow_tables import BAD_CAST, DIVISION_BY_ZERO, ENDLESS, STATEMENTS, slow_disk, write_slow_tables
from pystachio.cli.oracle import disagreement
from pystachio.io_scheduler.devices.ucx_library import ucx_report
from tests.cluster.served_cluster import served_cluster, token

pytestmark = pytest.mark.timeout(90)

BOUND_SECONDS = 15.0
"""A statement has ended in any case: a loss is found within 5 seconds, and the statement run once more."""
NEW_QUERY_SECONDS = 10.0
RELEASE_SECONDS = 2.0
CANCEL_SECONDS = 0.5
MEET_SECONDS = 20.0
LOSSES = (
    "kill -9",
    "SIGSTOP",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in (
            "wedged loop",
            "black hole",
            "one-way black hole",
            "half-open connections",
            "a node leaves",
            "kill -9 while draining",
        )
    ),
)
HARMLESS = ("slow link", "drain", "ENOSPC of a disk", "kill -9 of a node that joins")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slow")


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, Path]:
    return write_slow_tables(folder)


@pytest.fixture(scope="module")
def expected(tables: dict[str, Path]) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect() as oracle:
        for name, path in tables.items():
            oracle.execute(f"create view {name} as from '{path}'")
        return {name: oracle.execute(sql).fetchall() for name, sql in STATEMENTS.items()}


@pytest.fixture(scope="module")
def shared(folder: Path, tables: dict[str, Path]) -> Iterator[ProcessCluster]:
    def chunks(name: str) -> dict[str, Any]:
        """One node keeps decoded columns on disk, and so can run out of it."""
        kept = folder / "chunks"
        kept.mkdir(exist_ok=True)
        return {"chunk_cache": True, "chunk_cache_dir": str(kept), "chunk_cache_bytes": 1 << 30} if name == "n2" else {}

    with ProcessCluster(
        3, tables=tables, proxied=True, preference="shuffle", settings=slow_disk(folder), settings_of=chunks
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    """Whole and idle, before and after."""
    yield shared
    assert shared.proxies is not None
    shared.proxies.change(shared.proxies.heal_all)
    for name, node in tuple(shared.nodes.items()):
        node.go_on()
        if not node.is_running and name != shared.spare:
            shared.start(name)
    shared.until_met(MEET_SECONDS)
    shared.until_idle(RELEASE_SECONDS)
    assert [node.ask("statistics")["leaks"] for node in shared.running()] == [0, 0, 0], shared.logs()


def is_right(outcome: Outcome, name: str, expected: dict[str, list[tuple[Any, ...]]]) -> bool:
    if outcome.rows is None:
        return False
    problem = disagreement(outcome.rows, expected[name], STATEMENTS[name])
    assert problem is None, f"a wrong answer to {name}: {problem}"
    return True


def others(cluster: ProcessCluster, *but: str) -> list[NodeProcess]:
    return [node for node in cluster.running() if node.name not in but]


@pytest.mark.parametrize("kind", LOSSES)
def test_a_lost_node_costs_its_statements_nothing_but_time(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]], kind: str
) -> None:
    faults, victim = Faults(cluster, random.Random(kind)), cluster.nodes["n1"]
    survivors = others(cluster, "n1")
    asked = ((survivors[0], "group"), (survivors[0], "rows"), (survivors[1], "join"), (survivors[1], "sort"))
    started = {(node.name, name): node.start_sql(STATEMENTS[name]) for node, name in asked}
    cluster.until_at_work(victim)
    struck = faults.strike(kind, victim)
    outcomes = {key: statement.outcome(BOUND_SECONDS) for key, statement in started.items()}
    assert all(is_right(outcome, key[1], expected) for key, outcome in outcomes.items()), outcomes
    if kind != "kill -9 while draining":
        assert any(outcome.attempts > 1 for outcome in outcomes.values()), "the fault came too late"
    cluster.until_idle(RELEASE_SECONDS, survivors)
    for node in survivors:
        assert is_right(node.sql(STATEMENTS["group"], NEW_QUERY_SECONDS), "group", expected)
    struck.mend()


@pytest.mark.parametrize("kind", ["kill -9", "SIGSTOP", pytest.param("black hole", marks=pytest.mark.slow)])
def test_the_coordinators_death_leaves_nothing_on_others(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]], kind: str
) -> None:
    coordinator, survivors = cluster.nodes["n0"], others(cluster, "n0")
    statements = [coordinator.start_sql(sql) for sql in STATEMENTS.values()]
    cluster.until_at_work(survivors[0])
    struck = Faults(cluster, random.Random(3)).strike(kind, coordinator)
    cluster.until(
        lambda: all(any(seen.node == "n0" and seen.at > struck.at for seen in node.seen) for node in survivors),
        6,
        lambda: "the coordinator is not found dead",
    )
    cluster.until_idle(RELEASE_SECONDS, survivors)
    assert is_right(survivors[1].sql(STATEMENTS["join"], NEW_QUERY_SECONDS), "join", expected)
    struck.mend()
    for statement in statements:
        outcome = statement.outcome(BOUND_SECONDS)
        assert outcome.rows is not None or outcome.error in ("gone", "node_lost"), outcome


def test_two_nodes_that_do_not_see_each_other(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    assert cluster.proxies is not None
    ways = cluster.proxies.between("n1", "n2")
    cluster.proxies.change(lambda: [way.cut() for way in ways])
    statements = [node.start_sql(STATEMENTS["group"]) for node in cluster.running()]
    assert all(is_right(statement.outcome(BOUND_SECONDS), "group", expected) for statement in statements)
    assert is_right(cluster.nodes["n0"].sql(STATEMENTS["join"], NEW_QUERY_SECONDS), "join", expected)
    cluster.proxies.change(lambda: [way.heal() for way in ways])


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_loses_no_node_of_the_plan_changes_nothing(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]], kind: str
) -> None:
    struck = Faults(cluster, random.Random(5)).strike(kind, cluster.nodes["n2"])
    statements = {name: cluster.nodes["n0"].start_sql(sql) for name, sql in STATEMENTS.items()}
    assert all(is_right(statement.outcome(BOUND_SECONDS), name, expected) for name, statement in statements.items())
    struck.mend()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("EIO of a disk", None),
        ("corrupt exchange block", "data_error"),
        pytest.param("damage on the wire", None, marks=pytest.mark.slow),
    ],
)
def test_damage_is_a_typed_error_or_nothing(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]], kind: str, error: str | None
) -> None:
    for seed in range(3):
        struck = Faults(cluster, random.Random(seed)).strike(kind, cluster.nodes["n1"])
        outcome = cluster.nodes["n0"].sql(STATEMENTS["rows"], BOUND_SECONDS)
        struck.mend()
        if error is not None:
            assert outcome.error == error, outcome
        assert is_right(outcome, "rows", expected) or outcome.error in TYPED, outcome
        assert outcome.error != "cancelled", "that is what follows, not why"
        cluster.until_idle(RELEASE_SECONDS)
        cluster.until_met(MEET_SECONDS)
    assert is_right(cluster.nodes["n0"].sql(STATEMENTS["rows"], NEW_QUERY_SECONDS), "rows", expected)


def test_a_disk_that_fails_on_one_node_is_read_by_the_others(
    cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]]
) -> None:
    """What a node coordinates it takes part in: only there the disk's error is the plan's."""
    victim = cluster.nodes["n1"]
    victim.ask("fail_device", direction="read", error=errno.EIO, chunks=100_000)
    try:
        outcome = cluster.nodes["n0"].sql(STATEMENTS["rows"], BOUND_SECONDS)
        assert is_right(outcome, "rows", expected), outcome
        assert outcome.attempts == 2
        here = victim.sql(STATEMENTS["rows"], BOUND_SECONDS)
        assert (here.error, here.attempts) == ("data_error", 1), here
    finally:
        victim.ask("fail_device", direction="read", error=0, chunks=0)
    cluster.until_idle(RELEASE_SECONDS)
    assert is_right(victim.sql(STATEMENTS["rows"], NEW_QUERY_SECONDS), "rows", expected)


@pytest.mark.parametrize("sql", [DIVISION_BY_ZERO, BAD_CAST])
def test_errors_of_users_are_not_tried_again(cluster: ProcessCluster, sql: str) -> None:
    outcome = cluster.nodes["n0"].sql(sql, BOUND_SECONDS)
    assert (outcome.error, outcome.retryable) == ("data_error", False), outcome
    cluster.until_idle(RELEASE_SECONDS)


def test_cancelling_reaches_every_node(cluster: ProcessCluster) -> None:
    for delay in (0.0, 0.05, 0.12, 0.5):
        statement = cluster.nodes["n2"].start_sql(ENDLESS)
        time.sleep(delay)
        statement.cancel()
        assert statement.outcome(CANCEL_SECONDS + delay).error == "cancelled"
        assert cluster.until_idle(CANCEL_SECONDS) < CANCEL_SECONDS


def test_a_node_that_is_silent_does_not_hold_up_a_cancel_on_the_others(cluster: ProcessCluster) -> None:
    statement = cluster.nodes["n0"].start_sql(ENDLESS)
    cluster.until_at_work(cluster.nodes["n1"])
    cluster.nodes["n1"].stop()
    statement.cancel()
    cluster.until(
        lambda: cluster.nodes["n2"].ask("statistics")["fragments"] == 0, CANCEL_SECONDS, lambda: "it is not cancelled"
    )
    assert statement.outcome(BOUND_SECONDS).error == "cancelled"
    cluster.nodes["n1"].go_on()


def test_plans_interleave(cluster: ProcessCluster, expected: dict[str, list[tuple[Any, ...]]]) -> None:
    """Four at once, from nodes in turn: each node meets their parts in another order."""
    nodes, names = cluster.running(), list(STATEMENTS)
    statements = [
        (name, nodes[(number + turn) % 3].start_sql(STATEMENTS[name], priority))
        for turn in range(2)
        for number, (name, priority) in enumerate(
            zip(names, ("interactive", "normal", "batch", "interactive"), strict=True)
        )
    ]
    assert all(is_right(statement.outcome(30), name, expected) for name, statement in statements)


def test_losses_without_another_attempt_are_typed(folder: Path, tables: dict[str, Path]) -> None:
    with ProcessCluster(2, tables=tables, settings=slow_disk(folder), cluster={"retries": 0}) as cluster:
        statement = cluster.nodes["n0"].start_sql(ENDLESS)
        cluster.until_at_work(cluster.nodes["n1"])
        cluster.nodes["n1"].kill()
        outcome = statement.outcome(BOUND_SECONDS)
        assert (outcome.error, outcome.retryable) == ("node_lost", True), outcome
        cluster.until_idle(RELEASE_SECONDS, [cluster.nodes["n0"]])


def test_a_node_that_is_closed_ends_its_statements(folder: Path, tables: dict[str, Path]) -> None:
    with ProcessCluster(2, tables=tables, settings=slow_disk(folder)) as cluster:
        statement = cluster.nodes["n0"].start_sql(ENDLESS)
        cluster.until_at_work(cluster.nodes["n1"])
        started = time.monotonic()
        assert cluster.nodes["n0"].leave(10) == 0
        assert time.monotonic() - started < 2.0
        assert statement.outcome(1).error in ("node_lost", "gone")
        cluster.until_idle(RELEASE_SECONDS)


def test_a_wedged_node_ends_itself(folder: Path, tables: dict[str, Path]) -> None:
    with ProcessCluster(2, tables=tables, cluster={"watchdog_seconds": 2}) as cluster:
        cluster.nodes["n1"].ask("wedge", seconds=30)
        assert cluster.nodes["n1"].ended.result(10) == 70
        cluster.until_met(5)
        assert cluster.nodes["n0"].sql("select count(*) from sales", NEW_QUERY_SECONDS).rows is not None


CLIENT = """
import sys
import pystachio
with pystachio.connect(sys.argv[1], token=sys.argv[2]) as session:
    batches = session.sql("select a.id from sales a, sales b").batches()
    next(batches)
    print("reading", flush=True)
    sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_nothing(folder: Path, tables: dict[str, Path]) -> None:
    with served_cluster(2, folder) as nodes:
        client = subprocess.Popen(
            (sys.executable, "-c", CLIENT, nodes[0].address, str(token())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stdin is not None
        try:
            assert client.stdout.readline() == "reading\n"
            assert nodes[1].node.describe().fragments == 1
        finally:
            client.kill()
            client.wait()
            client.stdout.close()
            client.stdin.close()
        end = time.monotonic() + RELEASE_SECONDS
        while any((held := each.node.statistics()).running_plans or held.reserved_bytes for each in nodes):
            assert time.monotonic() < end, [each.node.statistics() for each in nodes]
            time.sleep(0.01)


@pytest.mark.skipif(ucx_report().version is None, reason="ucxx is not installed")
@pytest.mark.parametrize("kind", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_losses_over_ucx(
    folder: Path, tables: dict[str, Path], expected: dict[str, list[tuple[Any, ...]]], kind: str
) -> None:
    with ProcessCluster(3, tables=tables, transport="ucx", preference="shuffle", settings=slow_disk(folder)) as cluster:
        survivors = others(cluster, "n2")
        started = [(name, node.start_sql(sql)) for node in survivors for name, sql in STATEMENTS.items()]
        cluster.until_at_work(cluster.nodes["n2"])
        getattr(cluster.nodes["n2"], kind)()
        for name, statement in started:
            assert is_right(statement.outcome(BOUND_SECONDS), name, expected)
        cluster.until_idle(RELEASE_SECONDS, survivors)
        cluster.nodes["n2"].go_on()
        if kind == "stop":
            cluster.until_met(MEET_SECONDS)
        assert is_right(survivors[0].sql(STATEMENTS["join"], NEW_QUERY_SECONDS), "join", expected)
