"""The public surface: sessions and results."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datafusion
import datafusion.substrait
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.errors import (
    Cancelled,
    DataError,
    InternalError,
    InvalidRequest,
    NotFound,
    PystachioError,
    ResourceExhausted,
    SqlSyntaxError,
    Unsupported,
)
from pystachio.remote.parameters import values_of

ROWS = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("session")
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "group": pa.array([n % 10 for n in range(ROWS)], pa.int32()),
            "value": pa.array([n / 8 for n in range(ROWS)], pa.float64()),
            "price": pa.array([decimal.Decimal(n).scaleb(-2) for n in range(ROWS)], pa.decimal128(10, 2)),
            "name": pa.array([f"name {n % 100}" for n in range(ROWS)], pa.string()),
            "maybe": pa.array([None if n % 3 == 0 else n for n in range(ROWS)], pa.int64()),
            "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(days=n % 400) for n in range(ROWS)]),
        }
    )
    pq.write_table(table, path / "t.parquet", row_group_size=1500)
    return path


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2) as session:
        session.register("t", folder / "t.parquet")
        yield session


def settle(session: pystachio.Session) -> None:
    """Wait until no plan runs and nothing is reserved."""
    for _ in range(2000):
        statistics = session.statistics()
        if not statistics.running_plans and not statistics.reserved_bytes:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"something is left: {session.statistics()}")


def test_results_in_every_form(session: pystachio.Session) -> None:
    result = session.sql('select "group", sum(value) as total from t group by "group" order by "group"')
    expected = [sum(n / 8 for n in range(ROWS) if n % 10 == g) for g in range(10)]
    assert result.schema.names == ["group", "total"]
    assert result.to_arrow().to_pydict() == {"group": list(range(10)), "total": expected}
    assert result.to_pandas()["total"].tolist() == expected
    assert result.to_polars()["total"].to_list() == expected
    assert pa.RecordBatchReader.from_stream(result).read_all().num_rows == 10
    tensors = result.to_torch()
    assert tensors["group"].dtype == torch.int32
    assert torch.from_dlpack(tensors["total"]).tolist() == expected


def test_tensors_of_decimals_dates_and_nulls(session: pystachio.Session) -> None:
    tensors = session.sql("select price, day, cast(maybe as double) as f from t where id < 4 order by id").to_torch()
    assert tensors["price"].tolist() == [0.0, 0.01, 0.02, 0.03]
    assert tensors["day"].tolist()[0] == (datetime.date(2020, 1, 1) - datetime.date(1970, 1, 1)).days
    assert tensors["f"].isnan().tolist() == [True, False, False, True]
    with pytest.raises(Unsupported, match="NULLs"):
        session.sql("select maybe from t").to_torch()
    with pytest.raises(Unsupported, match="string"):
        session.sql("select name from t").to_torch()


def test_batches_stream_once(session: pystachio.Session) -> None:
    result = session.sql("select id from t")
    assert sum(batch.num_rows for batch in result.batches()) == ROWS
    with pytest.raises(InvalidRequest, match="streamed already"):
        result.batches()
    with pytest.raises(InvalidRequest, match="streamed already"):
        result.to_arrow()


async def test_a_result_can_be_awaited(session: pystachio.Session) -> None:
    result = await session.sql("select count(*) as n from t")
    assert result.to_arrow().to_pydict() == {"n": [ROWS]}
    several = [session.sql(f"select count(*) as n from t where id < {n}") for n in range(10)]
    counts = [each.to_arrow().column("n")[0].as_py() for each in await asyncio.gather(*map(_awaited, several))]
    assert counts == list(range(10))


async def test_an_awaited_result_needs_no_thread_of_the_loop(session: pystachio.Session) -> None:
    """Others may occupy all of those while they wait for plans that wait for this one's memory."""
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
    busy = loop.run_in_executor(None, release.wait)
    result = await asyncio.wait_for(_awaited(session.sql("select count(*) as n from t")), timeout=30)
    release.set()
    await busy
    assert result.to_arrow().column("n")[0].as_py() == ROWS


async def _awaited(result: pystachio.Result) -> pystachio.Result:
    return await result


def test_parameters(session: pystachio.Session) -> None:
    sql = "select id from t where name = $1 and id < $2 and price > $3 order by id"
    answer = session.sql(sql, parameters=["name 7", 500, decimal.Decimal("1.50")]).to_arrow()
    assert answer.column("id").to_pylist() == [207, 307, 407]
    with pytest.raises(PystachioError):
        session.sql(sql, parameters=["name 7"])


@pytest.mark.parametrize(
    "value",
    [10**5000, 2**63, datetime.timedelta.max, "\udc80", decimal.Decimal("inf"), [1], object()],
    ids=lambda value: type(value).__name__,
)
def test_parameters_that_no_type_holds(session: pystachio.Session, value: object) -> None:
    with pytest.raises(InvalidRequest, match="parameter"):
        session.sql("select $1 as x", parameters=[value])


def test_parameters_of_numpy(session: pystachio.Session) -> None:
    values = [np.int64(-5), np.uint8(7), np.float32(0.5), np.float64(1.5), np.bool_(True), np.str_("x")]
    marks = ", ".join(f"${number} as p{number}" for number in range(1, len(values) + 1))
    (row,) = session.sql(f"select {marks}", parameters=values).to_arrow().to_pylist()
    assert list(row.values()) == [-5, 7, 0.5, 1.5, True, "x"]
    assert list(values_of(values)) == list(row.values())
    for value in (np.datetime64("2024-01-01"), np.array([1]), np.uint64(2**64 - 1), [1]):
        for ask in (lambda value: session.sql("select $1 as x", parameters=[value]), lambda value: values_of([value])):
            with pytest.raises(InvalidRequest) as caught:
                ask(value)
            assert "64 bits" in str(caught.value) or "decimal.Decimal" in str(caught.value)


@pytest.mark.parametrize("statement", [None, 5, b"select 1", ["select 1"], bytearray(b"select 1")])
def test_statements_and_plans_of_the_wrong_type(session: pystachio.Session, statement: Any) -> None:
    with pytest.raises(InvalidRequest, match="a statement must be text"):
        session.sql(statement)
    with pytest.raises(InvalidRequest, match="a statement must be text"):
        session.explain(statement)
    if not isinstance(statement, bytes):
        with pytest.raises(InvalidRequest, match="a plan must be bytes"):
            session.execute(statement)
    parameters: Any = 5
    with pytest.raises(InvalidRequest, match="a list or a tuple"):
        session.sql("select 1", parameters=parameters)


def test_substrait_bytes(session: pystachio.Session) -> None:
    context = datafusion.SessionContext()
    context.register_record_batches("t", [[pa.RecordBatch.from_pylist([], schema=session.tables()["t"])]])
    plan = context.sql("select id, maybe from t where id < 3 order by id").optimized_logical_plan()
    data = datafusion.substrait.Producer.to_substrait_plan(plan, context).encode()
    assert session.execute(data).to_arrow().to_pydict() == {"id": [0, 1, 2], "maybe": [None, 1, 2]}


def test_tables_and_explain(session: pystachio.Session) -> None:
    assert session.tables()["t"].field("price").type == pa.decimal128(10, 2)
    text = session.explain("select sum(value) from t where id > 100")
    assert "Scan" in text
    assert "Aggregate" in text
    analyzed = session.sql("select sum(value) from t where id > 100").explain(analyze=True)
    assert "rows" in analyzed


def test_metrics_count_bytes_and_rows(folder: Path) -> None:
    metadata = pq.read_metadata(folder / "t.parquet")
    column = sum(metadata.row_group(g).column(0).total_compressed_size for g in range(metadata.num_row_groups))
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        session.register("t", folder / "t.parquet")
        result = session.sql("select sum(id) from t")
        result.to_arrow()
        assert result.metrics().rows == 1
        assert column <= result.metrics().bytes_read <= (folder / "t.parquet").stat().st_size
        assert result.progress() == 1.0


def test_errors_are_typed_and_the_session_lives_on(session: pystachio.Session, tmp_path: Path) -> None:
    with pytest.raises(SqlSyntaxError) as syntax:
        session.sql("select id frm t")
    assert syntax.value.line == 1
    with pytest.raises(NotFound, match=r"(?s)tt.*\bt\b"):
        session.sql("select * from tt")
    with pytest.raises(NotFound, match=r"(?s)idd.*\bid\b"):
        session.sql("select idd from t")
    with pytest.raises(InvalidRequest):
        session.sql("drop table t")
    with pytest.raises(InvalidRequest, match="priority"):
        session.sql("select 1", priority="urgent")
    with pytest.raises(NotFound):
        session.register("x", tmp_path / "missing.parquet")
    with pytest.raises(DataError):
        session.sql("select cast(name as bigint) from t").to_arrow()
    with pytest.raises(PystachioError):
        session.execute(b"\x00random bytes")
    assert session.sql("select count(*) as n from t").to_arrow().to_pydict() == {"n": [ROWS]}
    settle(session)


def test_a_table_that_cannot_be_read_any_more_says_why(session: pystachio.Session, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    session.register("spoilt", path)
    assert session.sql("select sum(a) as s from spoilt").to_arrow().to_pylist() == [{"s": 3}]
    path.write_text("garbage" * 100)
    for _ in range(2):
        for statement in ("select sum(a) as s from spoilt", "select 1 as x where (select count(*) from spoilt) > 0"):
            with pytest.raises(DataError, match="not a Parquet file"):
                session.sql(statement).to_arrow()
        assert session.sql("select 1 as x").to_arrow().num_rows == 1
    path.unlink()
    with pytest.raises(NotFound, match=r"x\.parquet"):
        session.explain("select a from spoilt")


def test_each_statement_sees_the_files_of_its_own_tables_as_they_are(
    session: pystachio.Session, tmp_path: Path
) -> None:
    """Also one whose plan is kept, while the files of others change."""

    def write(name: str, rows: int) -> None:
        pq.write_table(pa.table({"n": range(rows)}), tmp_path / f"{name}.parquet")

    def counted(name: str) -> int:
        return int(session.sql(f"select count(*) from {name}").to_arrow().column(0)[0].as_py())

    for name, rows in (("one", 1), ("two", 2)):
        write(name, rows)
        session.register(name, tmp_path / f"{name}.parquet")
    assert [counted(name) for name in ("one", "two", "one", "two")] == [1, 2, 1, 2]
    write("two", 20)
    assert [counted(name) for name in ("one", "two", "one")] == [1, 20, 1]
    write("one", 10)
    (tmp_path / "two.parquet").unlink()
    assert counted("one") == 10
    with pytest.raises(NotFound, match=r"two\.parquet"):
        counted("two")


def test_a_failed_result_raises_its_error_again(session: pystachio.Session) -> None:
    result = session.sql("select cast(name as bigint) from t")
    for method in (result.to_arrow, result.to_arrow, result.to_torch, lambda: list(result.batches())):
        with pytest.raises(DataError):
            method()


def test_rows_that_nobody_can_get_any_more_end_the_plan(session: pystachio.Session) -> None:
    result = session.sql("select a.id from t a, t b")
    for _ in result.batches():
        break
    gc.collect()
    settle(session)
    with pytest.raises(InvalidRequest, match="streamed already"):
        result.to_arrow()


def test_too_little_memory_names_the_setting(folder: Path) -> None:
    with pystachio.connect(memory="200KiB", threads=1) as small:
        small.register("t", folder / "t.parquet")
        with pytest.raises(ResourceExhausted, match="memory") as error:
            small.sql("select * from t order by name, id").to_arrow()
        assert error.value.setting == "memory"
        assert error.value.value == 200 * 1024
        settle(small)


def test_cancel_and_dropped_results_release_everything(session: pystachio.Session) -> None:
    slow = "select count(*) from t a, t b where a.value * b.value > 1e9 or a.id + b.id = -1"
    result = session.sql(slow)
    result.cancel()
    with pytest.raises(Cancelled):
        result.to_arrow()
    settle(session)
    result = session.sql(slow)
    del result
    gc.collect()
    settle(session)
    assert session.statistics().leaks == 0


def test_a_cancel_leaves_other_plans_alone(session: pystachio.Session) -> None:
    first = session.sql("select count(*) from t a, t b where a.value * b.value > 1e9", priority="batch")
    second = session.sql("select sum(id) as s from t", priority="interactive")
    first.cancel()
    assert second.to_arrow().to_pydict() == {"s": [ROWS * (ROWS - 1) // 2]}
    with pytest.raises(Cancelled):
        first.to_arrow()


def test_a_closed_session_refuses_politely(folder: Path) -> None:
    session = pystachio.connect(threads=1)
    session.register("t", folder / "t.parquet")
    session.close()
    session.close()
    with pytest.raises(InvalidRequest):
        session.sql("select 1").to_arrow()


def test_a_result_outlives_a_dropped_session(folder: Path) -> None:
    session = pystachio.connect(threads=1)
    session.register("t", folder / "t.parquet")
    result = session.sql("select count(*) as n from t")
    del session
    gc.collect()
    assert result.to_arrow().to_pydict() == {"n": [ROWS]}


def test_a_defect_in_planning_is_an_internal_error(session: pystachio.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("pystachio.planner.plan.Planner.plan", broken)
    with pytest.raises(InternalError, match="KeyError"):
        session.sql("select 1")


def test_too_few_file_descriptors_are_a_typed_error() -> None:
    code = """
import os, resource, pystachio
pystachio.connect
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), 4096))
try:
    pystachio.connect(threads=1)
except pystachio.errors.ResourceExhausted as error:
    print(error.setting)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ulimit -n"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, pystachio; print([m for m in ('torch', 'datafusion', 'pyarrow', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_priorities_and_deadlines_of_queries_and_sessions(folder: Path) -> None:
    with pystachio.connect(threads=1, priority="batch") as session:
        session.register("t", folder / "t.parquet")
        for urgency in (
            {},
            {"priority": "interactive"},
            {"deadline": 5.0},
            {"deadline": datetime.timedelta(minutes=1)},
        ):
            result = session.sql("select count(*) as n from t", **urgency)
            assert result.to_arrow().column("n").to_pylist() == [ROWS]
            result.set_priority("normal")
        with pytest.raises(InvalidRequest, match="no such priority"):
            session.sql("select 1 as one", priority="urgent")
        with pytest.raises(InvalidRequest, match="a deadline"):
            session.execute(b"", deadline=float("nan"))
    with pytest.raises(InvalidRequest, match="interactive plans only"):
        pystachio.connect(priority="batch", deadline=1.0)


def test_the_priority_of_a_running_plan_changes(session: pystachio.Session) -> None:
    result = session.sql("select a.id from t a, t b where a.id = b.id", priority="batch")
    result.set_priority("interactive", deadline=2.0)
    with pytest.raises(InvalidRequest, match="no such priority"):
        result.set_priority("urgent")
    with pytest.raises(InvalidRequest, match="no such priority"):
        result.set_priority(None)  # type: ignore[arg-type]
    assert result.to_arrow().num_rows == ROWS
    result.set_priority("batch")
    settle(session)
