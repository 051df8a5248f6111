"""Clients of a cluster of two nodes: real networks and plans, all in one process."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import os
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio as ps
from pystachio.endpoint import Endpoint
from pystachio.errors import (
    Cancelled,
    DataError,
    InvalidRequest,
    NodeLost,
    NotFound,
    PystachioError,
    ResourceExhausted,
    SqlSyntaxError,
    Unauthorized,
    Unsupported,
)
from pystachio.io_scheduler.network.tokens import Token, TokenRole, create
from pystachio.io_scheduler.network.visits import visit
from pystachio.remote import messages
from pystachio.remote.connection import Connection
from pystachio.remote.session import RemoteSession
from pystachio.server.cluster_node import ClusterNode
from tests.cluster.local_cluster import SECRET, address_of
from tests.cluster.served_cluster import ServedNode, served_cluster, token
from tests.io_scheduler.network.authorities import signed
from tests.remote.request_samples import KINDS, sample

ROWS = 300_000
ENDLESS = "select a.n from numbers a, numbers b"
"""A plan whose rows nobody reads to the end."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = pa.table({"n": pa.array(range(ROWS), pa.int64()), "s": [f"x{n % 7}" for n in range(ROWS)]})
    pq.write_table(rows, folder / "numbers.parquet", row_group_size=30_000)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "few.parquet")
    return folder


@pytest.fixture(scope="module")
def nodes(data: Path) -> Iterator[list[ServedNode]]:
    with served_cluster(2, data) as served:
        yield served


@pytest.fixture
def session(nodes: list[ServedNode]) -> Iterator[RemoteSession]:
    with ps.connect(nodes[0].address, token=str(token())) as connected:
        yield connected
    eventually(nodes[0], lambda: nodes[0].doorman.statistics().clients == 0)


def eventually(served: ServedNode, holds: Callable[[], bool]) -> None:
    """Turns the node's loop until it holds."""

    async def turn() -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - there is no event for what a node holds
                await asyncio.sleep(0.01)

    served.node.host.call(turn()).result()


def test_a_session_is_like_one_here(session: RemoteSession, data: Path) -> None:
    statement = "select s, sum(n) as total, count(*) as c from numbers where n >= $1 group by s order by s"
    with ps.connect(threads=1, control_socket=False) as here:
        here.register("numbers", data / "numbers.parquet")
        expected = here.sql(statement, parameters=[10])
        result = session.sql(statement, parameters=[10])
        assert result.schema == expected.schema
        assert result.to_arrow().equals(expected.to_arrow())
        assert session.tables()["numbers"] == here.tables()["numbers"]
    metrics = result.metrics()
    assert metrics.rows == 7
    assert metrics.bytes_read > 0
    assert 0 < metrics.seconds < 60
    assert result.progress() == 1.0
    assert {report.kind for report in result.operators()} >= {"Sort", "Aggregate"}
    assert "rows" in result.explain(analyze=True)
    assert "Aggregate" in session.explain(statement, parameters=[10])
    with pytest.raises(Unsupported):
        result.trace("trace.pftrace")


def test_many_rows_come_in_batches(session: RemoteSession) -> None:
    batches = list(session.sql("select n, s from numbers order by n").batches())
    assert len(batches) > 1
    assert pa.Table.from_batches(batches)["n"].to_pylist() == list(range(ROWS))


def test_a_session_may_run_any_number_of_plans(session: RemoteSession) -> None:
    """More than it may have requests and plans under way at once."""
    for number in range(400):
        assert session.sql(f"select {number} as n").to_arrow().to_pylist() == [{"n": number}]


def test_files_that_change_and_go(nodes: list[ServedNode], data: Path, tmp_path: Path) -> None:
    """Statements are right at once, and say what is wrong for as long as it is."""
    total = "select count(*) as c, sum(n) as s from parts"

    def write(number: int, **columns: Any) -> Path:
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns or {"n": [number] * 10}), path)
        return path

    paths = [write(number) for number in range(3)]
    with (
        ps.connect(nodes[0].address, token=str(token())) as session,
        ps.connect(nodes[1].address, token=str(token())) as other,
    ):
        for each in (session, other):
            each.register("parts", tmp_path)
            assert each.sql(total).to_arrow().to_pylist() == [{"c": 30, "s": 30}]
        paths[0].unlink()
        for each in (session, other):
            assert each.sql(total).to_arrow().to_pylist() == [{"c": 20, "s": 30}]
            each.register("parts", tmp_path)
        with ps.connect(nodes[1].address, token=str(token())) as late:
            late.register("parts", tmp_path)
            assert late.sql(total).to_arrow().to_pylist() == [{"c": 20, "s": 30}]
        paths[2].write_text("garbage" * 100)
        for _ in range(2):
            for statement in (total, "select count(*) as c from parts", "select n from parts"):
                with pytest.raises(DataError, match=r"not a Parquet file.*2\.parquet"):
                    session.sql(statement).to_arrow()
        assert session.sql("select count(*) as c from few").to_arrow().to_pylist() == [{"c": 2}]
        write(2, m=["x"])
        with pytest.raises(DataError, match=r"different schemas.*2\.parquet"):
            session.sql(total).to_arrow()
        write(2)
        assert session.sql(total).to_arrow().to_pylist() == [{"c": 20, "s": 30}]
        for path in paths[1:]:
            path.unlink()
        with pytest.raises(NotFound, match="no Parquet files in the folder"):
            session.sql(total).to_arrow()


def test_what_is_too_long_for_a_request_is_refused_and_nothing_else(session: RemoteSession, data: Path) -> None:
    numbers = data / "numbers.parquet"
    for ask in (
        lambda: session.sql("select $1 as x", parameters=["x" * 10_000_000]),
        lambda: session.sql(f"select '{'x' * 10_000_000}' as x"),
        lambda: session.explain(f"select '{'x' * 10_000_000}' as x"),
        lambda: session.execute(bytes(10_000_000)),
        lambda: session.register("x" * 100_000, numbers),
        lambda: session.register("x", "/" + "x" * 5_000),
        lambda: session.register("x", [numbers] * 200_000),
        lambda: session.register_folder("/" + "x" * 5_000),
        lambda: session.sql("select $1 as x", parameters=[Decimal("1" * 200)]),
    ):
        with pytest.raises(InvalidRequest):
            ask()
    assert session.sql("select $1 as x", parameters=["x" * 1_000_000]).to_arrow()["x"][0].as_py() == "x" * 1_000_000


def test_parameters_of_every_type(session: RemoteSession) -> None:
    values = [5, 1.5, "x", Decimal("2.50"), dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2, 3), True]
    marks = ", ".join(f"${number} as p{number}" for number in range(1, len(values) + 1))
    row = session.sql(f"select {marks}", parameters=values).to_arrow().to_pylist()[0]
    assert list(row.values()) == values


def test_tables_are_registered_for_one_session(nodes: list[ServedNode], session: RemoteSession, data: Path) -> None:
    session.register("mine", data / "few.parquet")
    session.register("both", [data / "few.parquet"])
    assert session.sql("select sum(id) as n from mine").to_arrow().to_pylist() == [{"n": 3}]
    assert set(session.tables()) == {"numbers", "few", "mine", "both"}
    with ps.connect(nodes[0].address, token=str(token())) as other:
        assert set(other.tables()) == {"numbers", "few"}
        assert set(other.register_folder(data)) == {"numbers", "few"}
    with pytest.raises(NotFound):
        session.register("t", "/no/such/file.parquet")
    for source in ("", [], [b"x"], 5):
        with pytest.raises(InvalidRequest):
            session.register("t", source)  # type: ignore[arg-type]


def test_a_result_outlives_the_name_of_its_session(nodes: list[ServedNode]) -> None:
    result = ps.connect(nodes[0].address, token=str(token())).sql("select count(*) as n from numbers")
    gc.collect()
    assert result.to_arrow().to_pylist() == [{"n": ROWS}]


def test_errors_keep_their_types(session: RemoteSession) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        session.sql("selec 1")
    assert caught.value.line
    with pytest.raises(NotFound, match="nothing"):
        session.sql("select * from nothing")
    failing = session.sql("select 1 / (n - 5) as x from numbers")
    with pytest.raises(DataError, match="zero") as late:
        failing.to_arrow()
    assert late.value.plan_id == failing.plan_id
    with pytest.raises(DataError):
        failing.to_arrow()
    with pytest.raises(InvalidRequest):
        session.sql("select 1", priority="batch", deadline=1)
    with pytest.raises(InvalidRequest):
        session.execute(b"no plan at all")
    with pytest.raises(InvalidRequest, match="must be bytes"):
        session.execute("select 1")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="must be text"):
        session.sql(b"select 1")  # type: ignore[arg-type]


def test_plans_of_one_client_run_at_once(session: RemoteSession) -> None:
    results = [session.sql(f"select sum(n + {number}) as total from numbers") for number in range(8)]
    totals = [result.to_arrow()["total"][0].as_py() for result in results]
    assert totals == [ROWS * (ROWS - 1) // 2 + ROWS * number for number in range(8)]


def test_who_reads_nothing_stops_the_plan_and_no_other(nodes: list[ServedNode], session: RemoteSession) -> None:
    endless = session.sql(ENDLESS)
    batches = endless.batches()
    first = next(batches)
    assert first.num_rows
    held = nodes[0].node.describe().memory_used
    assert held < 512 << 20
    assert session.sql("select count(*) as n from numbers").to_arrow()["n"][0].as_py() == ROWS
    endless.cancel()
    with pytest.raises(Cancelled):
        list(batches)
    eventually(nodes[0], lambda: nodes[0].doorman.statistics().plans == 0)


def test_a_result_that_is_dropped_ends_its_plan(nodes: list[ServedNode], session: RemoteSession) -> None:
    result = session.sql(ENDLESS)
    next(result.batches())
    del result
    gc.collect()
    eventually(nodes[0], lambda: nodes[0].doorman.statistics().plans == 0)
    eventually(nodes[0], lambda: nodes[0].node.describe_nowait().plans == 0)


def test_a_client_that_goes_ends_its_plans(nodes: list[ServedNode]) -> None:
    with ps.connect(nodes[0].address, token=str(token())) as leaving:
        result = leaving.sql(ENDLESS)
        next(result.batches())
    with pytest.raises(InvalidRequest, match="closed"):
        leaving.tables()
    with pytest.raises(PystachioError):
        result.metrics()
    eventually(nodes[0], lambda: nodes[0].doorman.statistics().plans == 0)
    eventually(nodes[0], lambda: nodes[0].node.describe_nowait().plans == 0)
    eventually(nodes[1], lambda: nodes[1].node.describe_nowait().fragments == 0)


def test_any_node_cancels_any_plan(nodes: list[ServedNode], session: RemoteSession) -> None:
    result = session.sql(ENDLESS, priority="batch")
    batches = result.batches()
    next(batches)
    other = Connection(address_of(nodes[1].node), token())
    try:
        found = other.ask(messages.Found, lambda number: messages.FindPlans(number, result.plan_id[:6]))
        assert found.plan_ids == (result.plan_id,)
        other.ask(messages.Done, lambda number: messages.SetPriority(number, result.plan_id, "interactive", 60.0))
        eventually(nodes[0], lambda: priority_on(nodes[0].node, result.plan_id) == "interactive")
        other.ask(messages.Done, lambda number: messages.CancelPlan(number, result.plan_id))
        with pytest.raises(Cancelled):
            list(batches)
        with pytest.raises(NotFound):
            other.ask(messages.Done, lambda number: messages.CancelPlan(number, "0123456789ab"))
    finally:
        other.close()


def priority_on(node: ClusterNode, plan_id: str) -> str:
    return next((plan.priority for plan in node.host.node.activity().plans if plan.plan_id == plan_id), "")


def test_a_node_says_what_it_is(nodes: list[ServedNode], session: RemoteSession) -> None:
    connection = Connection(address_of(nodes[1].node), token(TokenRole.OBSERVER))
    try:
        described = connection.ask(messages.Described, messages.Status).description
        assert (described.name, described.address) == ("n1", str(address_of(nodes[1].node)))
        assert [member.name for member in described.members] == ["n0", "n1"]
        assert connection.ask(messages.Seen, messages.Look).activity.workers == 1
    finally:
        connection.close()
    assert session.statistics().leaks == 0


def test_a_draining_node_says_where_to_go(nodes: list[ServedNode], session: RemoteSession) -> None:
    nodes[0].doorman.drain()
    try:
        with pytest.raises(ResourceExhausted, match="no more plans") as caught:
            session.sql("select 1 as one")
        assert caught.value.retryable
    finally:
        nodes[0].doorman.drain(False)
    assert session.sql("select 1 as one").to_arrow().num_rows == 1


async def told(host: str, port: int, known: Token, body: bytes) -> bytes:
    async with await visit(host, port, known) as visitor:
        visitor.tell(body)
        return await visitor.receive()


def test_who_is_sent_away_because_a_token_expired_is_told_so(nodes: list[ServedNode]) -> None:
    host, port = address_of(nodes[0].node)
    passing = token(expires_at=int(time.time()) + 2)

    def ask_for_seconds(session: RemoteSession) -> None:
        for _ in range(500):
            session.sql("select 1 as one").to_arrow()
            time.sleep(0.01)

    with (
        ps.connect(f"pystachio://{host}:{port}", token=str(passing)) as session,
        pytest.raises(Unauthorized, match=r"the token has expired .*: test"),
    ):
        ask_for_seconds(session)


WRONG_TOKENS = [
    token(secret=b"another secret"),
    token(expires_at=int(time.time()) - 1),
    Token(token().credential, bytes(32)),
    Token(token(TokenRole.CLIENT).credential, token(TokenRole.OBSERVER).key),
]


@pytest.mark.parametrize("wrong", WRONG_TOKENS)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_answered_for_a_wrong_token(nodes: list[ServedNode], kind: type[Any], wrong: Token) -> None:
    before = nodes[0].doorman.statistics()
    host, port = address_of(nodes[0].node)
    with pytest.raises(Unauthorized):
        await told(host, port, wrong, messages.encode(sample(kind)))
    assert nodes[0].doorman.statistics() == before


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_answered_without_a_token(nodes: list[ServedNode], kind: type[Any]) -> None:
    before = nodes[0].doorman.statistics()
    reader, writer = await asyncio.open_connection(*address_of(nodes[0].node))
    body = messages.encode(sample(kind))
    writer.write(len(body).to_bytes(4, "little") + body)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert b"welcome" not in answer
    assert nodes[0].doorman.statistics() == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in messages.LOOKING])
async def test_observers_look_and_nothing_else(nodes: list[ServedNode], kind: type[Any]) -> None:
    async with await visit(*address_of(nodes[0].node), token(TokenRole.OBSERVER)) as visitor:
        visitor.tell(messages.encode(messages.Hello(1)))
        assert isinstance(messages.decode_answer(await visitor.receive()), messages.Welcome)
        visitor.tell(messages.encode(sample(kind, 2)))
        answer = messages.decode_answer(await visitor.receive())
    assert isinstance(answer, messages.Failed)
    assert isinstance(answer.failure.error(), Unauthorized)


async def test_who_speaks_nonsense_is_sent_away_and_counted(nodes: list[ServedNode]) -> None:
    before = nodes[0].doorman.statistics().malformed
    async with await visit(*address_of(nodes[0].node), token()) as visitor:
        visitor.tell(os.urandom(1000))
        with pytest.raises(NodeLost, match="not a request"):
            await visitor.receive()
    assert nodes[0].doorman.statistics().malformed == before + 1


def test_a_token_is_found(nodes: list[ServedNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PYSTACHIO_CHUNK_CACHE_BYTES", raising=False)
    with pytest.raises(Unauthorized, match="token"):
        ps.connect(nodes[0].address)
    monkeypatch.setenv("PYSTACHIO_TOKEN", str(token()))
    with ps.connect(nodes[0].address) as connected:
        assert "numbers" in connected.tables()
    monkeypatch.delenv("PYSTACHIO_TOKEN")
    create(tmp_path / "secret")
    monkeypatch.setenv("PYSTACHIO_CLUSTER_SECRET_FILE", str(tmp_path / "secret"))
    with pytest.raises(Unauthorized):
        ps.connect(nodes[0].address)
    monkeypatch.setattr("pystachio.remote.door.read", lambda path: SECRET)
    with ps.connect(nodes[0].address) as connected:
        assert "numbers" in connected.tables()


def test_a_cluster_may_be_encrypted(
    data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("certificates")
    files = signed(folder, "authority", "node")
    mine = signed(folder, "authority", "client")
    foreign = signed(folder, "another authority", "stranger")
    with served_cluster(1, data, tls=files) as served:
        address = served[0].address
        with ps.connect(address, token=str(token()), tls=mine) as connected:
            assert connected.sql("select count(*) as n from numbers").to_arrow()["n"][0].as_py() == ROWS
        for wrong in (None, foreign):
            with pytest.raises(PystachioError):
                ps.connect(address, token=str(token()), tls=wrong)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        config = tmp_path / "pystachio.toml"
        lines = (f'tls_{name} = "{getattr(mine, name)}"' for name in ("certificate", "key", "authority"))
        config.write_text("\n".join(["[cluster]", *lines]))
        with ps.connect(address, token=str(token()), config=config) as connected:
            assert "numbers" in connected.tables()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1:1", "pystachio://", "pystachio://h", ""])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidRequest):
        ps.connect(address, token=str(token()))


def test_connect_says_what_does_not_go_together(nodes: list[ServedNode]) -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        ps.connect(nodes[0].address, token=str(token()), memory="1GiB")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="address"):
        ps.connect(token=str(token()))  # type: ignore[call-overload]
    with pytest.raises(Unauthorized, match="malformed"):
        ps.connect(nodes[0].address, token="secret")


def test_nobody_answers() -> None:
    with pytest.raises(NodeLost):
        Connection(Endpoint("127.0.0.1", 1), token())


def test_what_waits_when_the_node_ends_is_told(data: Path) -> None:
    with served_cluster(1, data) as served, ps.connect(served[0].address, token=str(token())) as connected:
        result = connected.sql(ENDLESS)
        batches = result.batches()
        next(batches)
        served[0].node.close()
        began = time.monotonic()
        with pytest.raises(PystachioError):
            list(batches)
        for ask in (connected.tables, result.metrics, lambda: connected.sql("select 1")):
            with pytest.raises(NodeLost):
                ask()
        assert time.monotonic() - began < 5


def test_clients_name_files_in_their_folders_alone(data: Path, tmp_path: Path) -> None:
    """The tables that the node gives to everybody are there all the same."""
    allowed = tmp_path / "allowed"
    (allowed / "sub").mkdir(parents=True)
    few = (data / "few.parquet").read_bytes()
    (allowed / "mine.parquet").write_bytes(few)
    (tmp_path / "secret.parquet").write_bytes(few)
    (allowed / "sub" / "link.parquet").symlink_to(tmp_path / "secret.parquet")
    with (
        served_cluster(2, data, client_folders=[allowed]) as served,
        ps.connect(served[1].address, token=str(token())) as session,
    ):
        session.register("mine", allowed / "mine.parquet")
        assert session.sql("select count(*) as c from mine, few").to_arrow().to_pylist() == [{"c": 4}]
        refused: list[Path | str] = [
            tmp_path / "secret.parquet",
            allowed / "sub" / "link.parquet",
            tmp_path / "*.parquet",
            data,
        ]
        for source in refused:
            with pytest.raises(Unauthorized, match="client_folders"):
                session.register("other", source)
        for source in (allowed / "sub", allowed / "sub" / "*.parquet"):
            with pytest.raises(NotFound):
                session.register("other", source)
        for folder in (tmp_path, data):
            with pytest.raises(Unauthorized, match="client_folders"):
                session.register_folder(folder)
        assert sorted(session.tables()) == ["few", "mine", "numbers"]
        # A link that is put in the place of a file later leads nowhere else either.
        (allowed / "mine.parquet").unlink()
        (allowed / "mine.parquet").symlink_to(data / "numbers.parquet")
        with pytest.raises(Unauthorized, match="client_folders"):
            session.sql("select count(*) as c from mine")
        assert session.sql("select count(*) as c from few").to_arrow().to_pylist() == [{"c": 2}]
