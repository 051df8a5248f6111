"""What nodes tell each other about plans: much of it at once, while members come and go, over files that hang."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.config import ClusterSettings
from pystachio.errors import PystachioError, ResourceExhausted, Unsupported
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.events import Event, ViewHeard
from pystachio.runtime.membership.views import Address
from pystachio.server import elsewhere
from pystachio.server.cluster_node import ClusterNode
from tests.cluster.local_cluster import SECRET, local_cluster, session_on

ROWS = 20_000
PLANS = 20


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traffic") / "t.parquet"
    rows = pa.table({"n": range(ROWS), "text": [f"row {n}" for n in range(ROWS)]})
    pq.write_table(rows, path, row_group_size=1000)
    return path


def all_end(works: list[Callable[[], None]]) -> list[BaseException]:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_plans_of_megabytes_at_once_end_no_connection(table: Path) -> None:
    """Each is sent to two nodes: together several times what a control connection holds."""
    lost: list[str] = []
    with local_cluster(3, cluster={"retries": 0}) as nodes:
        for node in nodes:
            node.plane.when_node_lost(lambda name, error: lost.append(name))
        session = session_on(nodes[0])
        session.register("t", table)

        def query(number: int) -> Callable[[], None]:
            texts = ", ".join(f"'{'x' * 3000} {each}'" for each in range(1000))
            sql = f"select count(*) as c from t where text in ({texts}, 'row {number}')"
            return lambda: check(session.sql(sql).to_arrow().to_pylist())

        def check(rows: list[dict[str, int]]) -> None:
            assert rows == [{"c": 1}]

        assert all_end([query(number) for number in range(PLANS)]) == []
        longer = ", ".join(f"'{'y' * 3000} {each}'" for each in range(3500))
        with pytest.raises(Unsupported, match="sending a plan"):
            session.sql(f"select count(*) as c from t where text in ({longer})").to_arrow()
        assert lost == []


@pytest.fixture
def changing() -> Iterator[list[ClusterNode]]:
    with local_cluster(2, cluster={"retries": 0}) as nodes:
        yield nodes


def test_members_that_join_and_leave_fail_no_plan_that_starts(changing: list[ClusterNode], table: Path) -> None:
    """One of them hears of each change later than the plans that come of it."""
    nodes, ended, is_over = changing, [0] * 4, threading.Event()
    take = nodes[1].plane._take

    def take_late(event: Event) -> None:
        if isinstance(event, ViewHeard) and event.name == nodes[0].name:
            asyncio.get_running_loop().call_later(0.2, take, event)
        else:
            take(event)

    nodes[1].plane._take = take_late  # type: ignore[method-assign]

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            session = session_on(nodes[number % 2])
            session.register("t", table)
            while not is_over.is_set():
                rows = session.sql("select count(*) as c, sum(n) as s from t where n >= 0").to_arrow().to_pylist()
                assert rows == [{"c": ROWS, "s": ROWS * (ROWS - 1) // 2}]
                ended[number] += 1

        return run

    def change() -> None:
        try:
            for number in range(4):
                come_and_go(number)
        finally:
            is_over.set()

    def come_and_go(number: int) -> None:
        node = ClusterNode(
            nodes[0].settings,
            ClusterSettings.model_validate({"transport": "tcp", "watchdog_seconds": 0}),
            name=f"x{number}",
            secret=SECRET,
            discovery=StaticDiscovery(Address("", *nodes[0].address)),
        )
        with closing(node):
            before = list(ended)
            wait_until(lambda: node.host.node.statistics().plans_ended > 3)
            node.drain()
            wait_until(lambda: all(node.name not in available(other) for other in nodes))
            wait_until(lambda: all(now > then for now, then in zip(ended, before, strict=True)))
            wait_until(lambda: node.fragments.running == 0)

    assert all_end([change, *(work(number) for number in range(4))]) == []
    assert min(ended) > 0


def available(node: ClusterNode) -> list[str]:
    return [member.name for member in node.plane.available()]


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_node_answers_while_the_files_of_a_client_hang(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, look = threading.Event(), elsewhere.look_for

    def hang(paths: tuple[str, ...]) -> object:
        if "dead" in paths[0]:
            hangs.wait(60)
        return look(paths)

    monkeypatch.setattr(elsewhere, "look_for", hang)
    try:
        with local_cluster(2, cluster={"file_seconds": 0.3}) as nodes:
            session = session_on(nodes[0])
            session.register("t", table)

            def register() -> None:
                with pytest.raises(ResourceExhausted) as raised:
                    session_on(nodes[0]).register("dead", "/dead/file.parquet")
                assert raised.value.setting == "cluster_file_seconds"

            def query() -> None:
                for _ in range(5):
                    assert session.sql("select count(*) as c from t").to_arrow().to_pylist() == [{"c": ROWS}]

            assert all_end([*[register] * 8, query]) == []
    finally:
        hangs.set()


def test_files_outside_the_folders_of_clients_are_refused(table: Path, tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "t.parquet").write_bytes(table.read_bytes())
    (allowed / "link.parquet").symlink_to(other / "t.parquet")
    (allowed / "inside.parquet").symlink_to(allowed / "t.parquet")
    with local_cluster(2, cluster={"client_folders": str(allowed)}) as nodes:
        for node in nodes:
            assert len(node.find_client_files((str(allowed / "t.parquet"),))) == 1
            assert len(node.find_client_files((str(allowed / "inside.parquet"),))) == 1
            for source in (allowed, allowed / "*.parquet", tmp_path / "allowed" / "**" / "*.parquet"):
                found = node.find_client_files((str(source),))
                assert [Path(version.path).name for version in found] == ["inside.parquet", "t.parquet"]
            assert len(node.find_files((str(other),))) == 1
            for path in (
                other,
                other / "t.parquet",
                other / "no.parquet",
                allowed / "link.parquet",
                tmp_path / "*" / "t.parquet",
                allowed / ".." / "other",
            ):
                with pytest.raises(PystachioError) as raised:
                    node.find_client_files((str(path),))
                assert raised.value.code == "unauthorized", path
                assert "client_folders" in str(raised.value)
