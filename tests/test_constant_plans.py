"""Plans that read no rows: their answers are kept with the plan, and hold as long as what they were made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import Cancelled, DataError, InvalidRequest

NOTHING_RAN = "Nothing ran"


def write(path: Path, values: list[int | None]) -> None:
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path, row_group_size=100)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "t.parquet", [*range(500), None])
    return tmp_path / "t.parquet"


@pytest.fixture
def session(file: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(memory="256MiB", threads=2) as session:
        session.register("t", str(file))
        yield session


def rows_of(session: pystachio.Session, sql: str) -> tuple[list[dict[str, object]], bool]:
    """The answer, and whether something ran for it."""
    result = session.sql(sql)
    rows = result.to_arrow().to_pylist()
    return rows, NOTHING_RAN not in result.explain(analyze=True)


KEPT = {
    "select count(*) as a, count(x) as b, min(x) as c, max(x) as d from t": [{"a": 501, "b": 500, "c": 0, "d": 499}],
    "select count(*) + 1 as a from t having count(*) > 3": [{"a": 502}],
    "select (select min(x) from t) + (select max(x) from t) as a": [{"a": 499}],
    "select sum(column1) as a from (values (1), (2), (null))": [{"a": 3}],
    "select 'x' as a union all select 'y' order by a desc": [{"a": "y"}, {"a": "x"}],
}


@pytest.mark.parametrize("sql", KEPT)
def test_the_second_run_has_nothing_to_do(session: pystachio.Session, sql: str) -> None:
    assert rows_of(session, sql) == (KEPT[sql], True)
    assert rows_of(session, sql) == (KEPT[sql], False)


@pytest.mark.parametrize(
    "sql",
    [
        "select sum(x) as a from t",
        "select count(*) as a from t where x > (select max(x) - 10 from t)",
        "select count(*) as a from t a join t b on a.x = b.x",
        "select (select sum(x) from t) as a",
        "select 1 as a where 1 = 2",
    ],
)
def test_others_run_again(session: pystachio.Session, sql: str) -> None:
    first = rows_of(session, sql)
    assert first[1]
    assert rows_of(session, sql) == first


def test_a_changed_file_changes_the_answer(session: pystachio.Session, file: Path) -> None:
    count = "select count(*) as a, max(x) as b from t"
    above = "select x from t where x >= (select max(x) from t)"
    for last in (499, 7000, 12):
        write(file, [*range(last + 1)])
        for _ in range(3):
            assert rows_of(session, count)[0] == [{"a": last + 1, "b": last}]
            assert rows_of(session, above)[0] == [{"x": last}]


def test_a_scalar_that_reads_no_rows_is_asked_once(session: pystachio.Session) -> None:
    sql = "select count(*) as a from t where x = (select max(x) from t)"
    counts = []
    for _ in range(2):
        result = session.sql(sql)
        assert result.to_arrow().to_pylist() == [{"a": 1}]
        counts.append([each.kind for each in result.operators()])
    assert "StatisticsFold" in counts[0]
    assert "StatisticsFold" not in counts[1]


def test_a_scalar_that_others_read_too_leaves_nothing_behind(session: pystachio.Session) -> None:
    sql = "with m as (select max(x) as c from t) select x from t where x = (select c from m) union all select c from m"
    for _ in range(3):
        assert session.sql(sql).to_arrow()["x"].to_pylist() == [499, 499]
    assert session.statistics().leaks == 0


def test_what_is_cancelled_before_its_rows_are_taken_has_none(session: pystachio.Session) -> None:
    sql = "select count(*) as a from t"
    for _ in range(3):
        result = session.sql(sql)
        result.cancel()
        with pytest.raises(Cancelled):
            result.to_arrow()
        assert session.sql(sql).to_arrow().to_pylist() == [{"a": 501}]


def test_what_fails_fails_again(session: pystachio.Session) -> None:
    for _ in range(2):
        with pytest.raises(DataError):
            session.sql("select (select column1 from (values (1), (2))) as a").to_arrow()


def test_the_time_is_not_kept(session: pystachio.Session) -> None:
    first, second = (session.sql("select now() as a").to_arrow()["a"][0].as_py() for _ in range(2))
    assert first < second


def test_parameters_have_answers_of_their_own(session: pystachio.Session) -> None:
    for value in (1, 1.5, "x", 1):
        for _ in range(2):
            assert session.sql("select $1 as a", parameters=[value]).to_arrow().to_pylist() == [{"a": value}]


def test_large_answers_are_made_again(session: pystachio.Session) -> None:
    text = "x" * 100_000
    sql = f"select '{text}' as a"
    assert [rows_of(session, sql) for _ in range(2)] == [([{"a": text}], True)] * 2


def test_results_of_kept_answers_behave_like_others(session: pystachio.Session, tmp_path: Path) -> None:
    sql = "select count(*) as a from t"
    session.sql(sql).to_arrow()
    result = session.sql(sql)
    assert result.metrics().rows == 0
    result.set_priority("batch")
    assert [batch.to_pydict() for batch in result.batches()] == [{"a": [501]}]
    assert result.metrics().rows == 1
    assert result.metrics().bytes_read == 0
    assert result.progress() == 1.0
    result.cancel()
    result.trace(tmp_path / "trace")
    assert (tmp_path / "trace").stat().st_size
    other = session.sql(sql)
    assert other.plan_id != result.plan_id
    session.close()
    assert other.to_arrow().to_pylist() == [{"a": 501}], "it had ended before"
    with pytest.raises(InvalidRequest, match="not running"):
        session.sql(sql)


def test_zeros_of_different_sign_are_not_taken_for_each_other(session: pystachio.Session) -> None:
    infinity = float("inf")
    sql = """select 1 / ((x + 1) * cast('0.0' as double)) as a, 1 / ((x + 1) * cast('-0.0' as double)) as b,
             cast('0.0' as double) as c, cast('-0.0' as double) as d from t where x = 1"""
    (row,) = session.sql(sql).to_arrow().to_pylist()
    assert [str(value) for value in row.values()] == [str(infinity), str(-infinity), "0.0", "-0.0"]
