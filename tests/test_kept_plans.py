"""Plans that outlive the process that made them: found where nothing has changed, and only there."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import InvalidRequest, NotFound, PystachioError
from pystachio.operators.chunks import plans as kept
from pystachio.planner import kept_plans, plan

SQL = "select k % 3 as g, sum(v) as total, count(*) as n from t join u using (k) where v < 900 group by 1 order by 1"
"""A statement with a join, whose plan depends on samples."""


def table(rows: int = 4000, factor: int = 7) -> pa.Table:
    return pa.table({"k": [i * factor % rows for i in range(rows)], "v": [i % 1000 for i in range(rows)]})


def write_plain(rows: pa.Table, path: Path) -> None:
    """Of a size that depends on nothing but the number of rows."""
    pq.write_table(rows, path, compression="none", use_dictionary=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(table(), tmp_path / "t.parquet")
    write_plain(table(500, 3).select(["k"]), tmp_path / "u.parquet")
    return tmp_path


@contextmanager
def connected(folder: Path, *names: str, **settings: Any) -> Iterator[pystachio.Session]:
    wanted = {"chunk_cache_dir": str(folder / "cache"), "chunk_cache_bytes": 64 << 20} | settings
    with pystachio.connect(threads=2, **wanted) as session:
        for name in names or ("t", "u"):
            session.register(name, folder / f"{name}.parquet")
        yield session


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str | bytes]:
    """The statements that were planned, and not found."""
    found: list[str | bytes] = []
    read = plan._read

    def noted(statement: str | bytes, *others: Any) -> Any:
        found.append(statement)
        return read(statement, *others)

    monkeypatch.setattr(plan, "_read", noted)
    return found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*/plans/*.plan"))


def keep(folder: Path, sql: str = SQL, *, parameters: tuple[Any, ...] = (), **settings: Any) -> list[dict[str, Any]]:
    """Run the statement in a session of its own, until its plan is on disk."""
    before = len(files(folder))
    with connected(folder, **settings) as session:
        found: list[dict[str, Any]] = session.sql(sql, parameters=parameters).to_arrow().to_pylist()
        deadline = time.monotonic() + 10
        while len(files(folder)) == before:
            assert time.monotonic() < deadline, "no plan was kept"
            time.sleep(0.005)
    return found


def oracle(folder: Path, sql: str = SQL) -> list[dict[str, Any]]:
    with duckdb.connect() as peer:
        for path in folder.glob("*.parquet"):
            peer.execute(f"create view {path.stem} as from '{path}'")
        found: list[dict[str, Any]] = peer.sql(sql).to_arrow_table().to_pylist()
        return found


def answered(folder: Path, sql: str = SQL, **settings: Any) -> list[dict[str, Any]]:
    with connected(folder, **settings) as session:
        found: list[dict[str, Any]] = session.sql(sql).to_arrow().to_pylist()
        return found


def test_the_next_session_plans_nothing(folder: Path, planned: list[str | bytes]) -> None:
    first = keep(folder)
    assert first == oracle(folder)
    assert answered(folder) == first
    assert planned == [SQL]
    # What it would be without.
    with connected(folder, chunk_cache=False) as session:
        text = session.explain(SQL)
    with connected(folder) as session:
        assert session.explain(SQL) == text
    assert planned == [SQL, SQL]


def test_plans_of_every_kind_come_back(folder: Path, planned: list[str | bytes]) -> None:
    statements = [
        "select count(*) as n from t where v > (select avg(v) from t)",
        "with big as (select k, sum(v) as s from t group by k) select count(*) as n from big a, big b where a.k = b.k",
        "select k, v from t where k in (select k from u) order by v desc, k limit 7",
        "select distinct v % 7 as r from t union all select k from u where k < 3",
        "select v % 2 as a, k % 2 as b, grouping(v % 2) as g, count(*) as n from t group by rollup(v % 2, k % 2)",
        "select t.k from t left join u on t.k = u.k where u.k is null and t.v = 5",
        "select case when v between 3 and 9 then 'few' else 'many' end as c, min(k) as m from t group by 1",
        "select sum(v) as s from t where cast(v as varchar) like '%7%'",
    ]
    for sql in statements:
        first = keep(folder, sql)
        planned.clear()
        found = answered(folder, sql)
        assert planned == []
        if "order by" in sql:
            assert found == first
        else:
            assert sorted(map(repr, found)) == sorted(map(repr, first))


@pytest.mark.parametrize("change", ["content", "more", "same size and time", "touched", "other files"])
def test_other_files_make_another_plan(folder: Path, planned: list[str | bytes], change: str) -> None:
    keep(folder)
    planned.clear()
    path = folder / "u.parquet"
    status = path.stat()
    match change:
        case "content":
            pq.write_table(table(500, 9).select(["k"]), path)
        case "more":
            pq.write_table(table(5000).select(["k"]), path)
        case "same size and time":
            # Only the values differ, and the ranges in the footer.
            changed = pa.table({"k": [i * 3 % 500 + 1000 for i in range(500)]})
            write_plain(changed, path)
            assert path.stat().st_size == status.st_size
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "touched":
            os.utime(path)
        case "other files":
            (folder / "u.parquet").rename(folder / "w.parquet")
            pq.write_table(table(300, 3).select(["k"]), path)
    assert answered(folder) == oracle(folder)
    assert planned == [SQL]


@pytest.mark.parametrize("end", ["where false", "limit 0", "where 1 = 0 and v > 3"])
def test_other_columns_of_a_table_that_nothing_is_read_of_make_another_plan(folder: Path, end: str) -> None:
    """As programs ask for a statement's columns."""
    sql = f"select * from T {end}"
    assert keep(folder, sql) == []
    with connected(folder) as session:
        assert session.sql(sql).to_arrow().column_names == ["k", "v"]
        pq.write_table(table().append_column("more", pa.array(["x"] * 4000)), folder / "t.parquet")
        assert session.sql(sql).to_arrow().column_names == ["k", "v", "more"]
    with connected(folder) as session:
        assert session.sql(sql).to_arrow().column_names == ["k", "v", "more"]
        pq.write_table(table().select(["v"]), folder / "t.parquet")
    with connected(folder) as session:
        assert session.sql("select v from t limit 0").to_arrow().column_names == ["v"]
        with pytest.raises(PystachioError):
            session.sql(f"select k from t {end}")


def test_parameters_of_other_types_make_another_plan(folder: Path, planned: list[str | bytes]) -> None:
    sql = "select $1 as p, count(*) as n from t"
    values = [
        pa.scalar(1, pa.int8()),
        pa.scalar(1, pa.int64()),
        pa.scalar(None, pa.int64()),
        pa.scalar(None, pa.string()),
    ]
    for value in values:
        keep(folder, sql, parameters=(value,))
    assert len(planned) == len(values)
    for value in values:
        with connected(folder) as session:
            found = session.sql(sql, parameters=(value,)).to_arrow()
        assert found.column("p").to_pylist() == [value.as_py()]
    assert len(planned) == len(values)


def test_tables_of_other_names_make_another_plan(folder: Path, planned: list[str | bytes]) -> None:
    """A name that is written in lower case may mean another table when there is one more."""
    sql = "select sum(k) as s from big"
    pq.write_table(pa.table({"k": [1, 2]}), folder / "Big.parquet")
    with connected(folder, "Big") as session:
        assert session.sql(sql).to_arrow().to_pylist() == [{"s": 3}]
        while not files(folder):
            time.sleep(0.005)
    pq.write_table(pa.table({"k": [10, 20]}), folder / "big.parquet")
    with connected(folder, "Big", "big") as session:
        assert session.sql(sql).to_arrow().to_pylist() == [{"s": 30}]
    with connected(folder, "t") as session, pytest.raises(NotFound):
        session.sql(sql)
    assert planned.count(sql) == 3


def test_other_parameters_and_settings_make_another_plan(folder: Path, planned: list[str | bytes]) -> None:
    sql = "select count(*) as n from t where v < $1"
    for number, value in enumerate((3, 3.0, 30, dt.date(2020, 1, 1)), 1):
        try:
            keep(folder, sql, parameters=(value,))
        except PystachioError:  # no number is compared with a date
            number -= 1
        assert len(planned) >= number
    count = len(planned)
    with connected(folder) as session:
        assert session.sql(sql, parameters=(30,)).to_arrow().to_pylist() == [{"n": 120}]
        assert session.sql(sql, parameters=(3.0,)).to_arrow().to_pylist() == [{"n": 12}]
    assert len(planned) == count
    keep(folder)
    keep(folder, join_reordering=False)
    assert planned.count(SQL) == 2


@pytest.mark.parametrize("now", ["now()", '"now"()', "`now`()"])
def test_what_holds_the_time_is_not_kept(folder: Path, planned: list[str | bytes], now: str) -> None:
    sql = f"select count(*) as n from t where {now} > timestamp '2020-01-01 00:00:00'"
    for _ in range(2):
        assert answered(folder, sql) == [{"n": 4000}]
    assert planned == [sql, sql]
    assert files(folder) == []


def test_another_release_plans_anew(folder: Path, planned: list[str | bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder)
    monkeypatch.setattr(kept_plans, "_planner", lambda: "another")
    assert answered(folder) == oracle(folder)
    assert planned == [SQL, SQL]


def test_a_changed_source_file_is_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "operators" / "below").mkdir(parents=True)
    for path in (tmp_path / "planner" / "a.py", tmp_path / "operators" / "below" / "b.py"):
        path.write_text("x = 1\n")
    monkeypatch.setattr(kept_plans, "__file__", str(tmp_path / "planner" / "a.py"))
    seen = set()
    for name in ("", "planner/a.py", "operators/below/b.py", "operators/new.py"):
        if name:
            with open(tmp_path / name, "a") as file:
                file.write("x = 2\n")
        kept_plans._planner.cache_clear()
        seen.add(kept_plans._planner())
        assert kept_plans._planner() in seen
    kept_plans._planner.cache_clear()
    assert len(seen) == 4


@pytest.mark.parametrize("damage", ["changed", "truncated", "empty", "another's", "removed", "of another form"])
def test_a_damaged_plan_is_made_again(folder: Path, planned: list[str | bytes], damage: str) -> None:
    keep(folder)
    (path,) = files(folder)
    content = bytearray(path.read_bytes())
    match damage:
        case "changed":
            for place in range(0, len(content), 5):
                content[place] ^= 0x10
        case "truncated":
            del content[len(content) // 2 :]
        case "empty":
            content.clear()
        case "another's":
            content = bytearray(os.urandom(3000))
        case "of another form":
            body = b"\x93\x01\x02\x03"
            content = bytearray(kept.xxhash.xxh3_128_digest(body) + body)
        case "removed":
            path.unlink()
    if damage != "removed":
        path.write_bytes(content)
    assert answered(folder) == oracle(folder)
    assert planned == [SQL, SQL]


def test_the_folder_of_somebody_else_is_not_trusted(folder: Path, planned: list[str | bytes]) -> None:
    keep(folder)
    root = files(folder)[0].parent.parent
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(root, 12345, 12345)
    assert answered(folder) == oracle(folder)
    assert planned == [SQL, SQL]


def test_only_its_user_may_read_it(folder: Path) -> None:
    keep(folder)
    (path,) = files(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_few_enough_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used go first."""
    monkeypatch.setattr(kept, "MOST_PLANS", 10)
    for number in range(10):
        keep(folder, f"select count(*) as n from t where v = {number}")
        os.utime(max(files(folder), key=lambda path: path.stat().st_mtime_ns), (1000 + number, 1000 + number))
    oldest = min(files(folder), key=lambda path: path.stat().st_mtime)
    with connected(folder) as session:  # it is used, and stays
        session.explain("select count(*) as n from t where v = 0")
    assert oldest.stat().st_mtime > 10_000
    with connected(folder) as session:
        session.sql("select count(*) as n from t where v = 99").to_arrow()
        deadline = time.monotonic() + 10
        while len(files(folder)) != 9:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert oldest in files(folder)


def test_without_a_cache_on_disk_nothing_is_kept(folder: Path, planned: list[str | bytes]) -> None:
    for settings in ({"chunk_cache": False}, {"chunk_cache_bytes": 0}):
        assert answered(folder, **settings) == oracle(folder)
        assert answered(folder, **settings) == oracle(folder)
    assert planned == [SQL] * 4
    assert not (folder / "cache").exists()


def test_a_folder_that_cannot_be_made_changes_no_answer(folder: Path, planned: list[str | bytes]) -> None:
    (folder / "cache").write_text("a file where the folder should be")
    for _ in range(2):
        assert answered(folder) == oracle(folder)
    assert planned == [SQL, SQL]


def test_a_table_that_has_become_unreadable_is_refused(folder: Path) -> None:
    keep(folder)
    with connected(folder) as session:
        (folder / "u.parquet").write_bytes(b"not Parquet at all")
        with pytest.raises(PystachioError):
            session.sql(SQL)
        assert session.sql("select count(*) as n from t").to_arrow().to_pylist() == [{"n": 4000}]


def test_substrait_plans_are_kept_too(folder: Path, planned: list[str | bytes]) -> None:
    from pystachio.planner.sql.statement import plan_sql

    with connected(folder) as session:
        schemas = {name: held.schema for name, held in session._catalog.tables().items()}
        sent = plan_sql("select sum(v) as s from t where k < 100", schemas).substrait
        first = session.execute(sent).to_arrow().to_pylist()
        while not files(folder):
            time.sleep(0.005)
    with connected(folder) as session:
        assert session.execute(sent).to_arrow().to_pylist() == first
    assert planned == [sent]


def test_plans_that_change_places_are_made_again(folder: Path) -> None:
    statements = ["select sum(v) as s from t", "select max(v) as s from t"]
    for sql in statements:
        keep(folder, sql)
    first, second = files(folder)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    for sql in statements:
        assert answered(folder, sql) == oracle(folder, sql)


def test_parameters_that_look_alike_make_different_plans(folder: Path) -> None:
    class Zone(dt.tzinfo):
        def __init__(self, hours: int) -> None:
            self.hours = hours

        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(hours=self.hours)

        def dst(self, _: dt.datetime | None) -> None:
            return None

        def __repr__(self) -> str:
            return "a zone"

    sql = "select count(*) as n from t where arrow_cast($1, 'Int64') + v * 0 = 1"
    for value, expected in ((pa.scalar(1, pa.time64("ns")), 4000), (pa.scalar(999, pa.time64("ns")), 0)):
        with connected(folder) as session:
            assert session.sql(sql, parameters=(value,)).to_arrow().to_pylist() == [{"n": expected}]
    moment = "select count(*) as n from t where $1 < timestamp '2024-01-01 03:00:00Z' and v >= 0"
    for hours, expected in ((0, 0), (5, 4000)):
        value = dt.datetime(2024, 1, 1, 4, tzinfo=Zone(hours))
        with connected(folder) as session:
            try:
                found = session.sql(moment, parameters=(value,)).to_arrow().to_pylist()
            except InvalidRequest:  # Arrow knows only zones with a name
                continue
        assert found == [{"n": expected}]


def test_too_long_a_statement_is_not_kept(folder: Path, planned: list[str | bytes]) -> None:
    sql = f"select count(*) as n from t -- {'x' * (1 << 18)}"
    for _ in range(2):
        assert answered(folder, sql) == [{"n": 4000}]
    assert len(planned) == 2
    assert files(folder) == []


def test_two_sessions_at_once(folder: Path) -> None:
    expected = oracle(folder)
    with connected(folder) as first, connected(folder) as second:
        for _ in range(5):
            results = [session.sql(SQL) for session in (first, second)]
            assert [result.to_arrow().to_pylist() for result in results] == [expected, expected]
    assert len(files(folder)) == 1
    assert list((folder / "cache").rglob("*.unfinished")) == []
