"""Statements whose texts and names look like the planner's own words: against DuckDB."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import Unsupported

STATEMENTS = (
    "select count(*) as n, count(*) filter (where s like '%\n%') as m from t where a not in (select k from n)",
    "select s || '\n  x' as m, a from t where a not in (select k from n)",
    "select s || '\nLeftAnti Join: x' as m, a from t where a not in (select k from n)",
    "select a from t where a not in (select k from n where s <> 'p\r\nq')",
    "select a from t where s <> 'p\nq' and a not in (select k from n)",
    "select a from t where s <> $$p\nq$$ and a not in (select k from n)",
    "select a from t where s <> 'p\nq' and a not in (select k from n where k is not null)",
    "select case when a in (select k from n) then '\n' else s end as m from t where s <> 'p\nq'",
    'select a from t where not exists (select 1 from n where n."k null_aware" = t.a)',
    "select a from t where s = 'l1\nl2' or not exists (select 1 from n where n.k = t.a)",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    pq.write_table(pa.table({"a": [1, 2, 3, None], "s": ["x", "y", "z", "l1\nl2"]}), folder / "t.parquet")
    names = {"k": [1, None, 5], "s": ["x", None, "w"], "k null_aware": [1, None, 5]}
    pq.write_table(pa.table(names), folder / "n.parquet")
    pq.write_table(pa.table({"f": [1.0, None, 3.0], "j": [1, 1, 2], "b": [10, 20, 30]}), folder / "f.parquet")
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        for path in folder.glob("*.parquet"):
            session.register(path.stem, path)
        yield session


def oracle(folder: Path, sql: str, parameters: Sequence[object] = ()) -> list[str]:
    with duckdb.connect() as peer:
        for path in folder.glob("*.parquet"):
            peer.execute(f"create view {path.stem} as from '{path}'")
        return sorted(map(repr, peer.execute(sql, list(parameters)).fetchall()))


def answer(session: pystachio.Session, sql: str, parameters: Sequence[object] = ()) -> list[str]:
    found = session.sql(sql, parameters=list(parameters)).to_arrow()
    return sorted(repr(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize("sql", STATEMENTS)
def test_line_breaks(folder: Path, session: pystachio.Session, sql: str) -> None:
    assert answer(session, sql) == oracle(folder, sql)


def test_line_breaks_in_parameters(folder: Path, session: pystachio.Session) -> None:
    sql = "select a from t where s <> $1 and a not in (select k from n)"
    assert answer(session, sql, ["p\nq"]) == oracle(folder, sql, ["p\nq"]) == []


def test_line_breaks_in_escapes(session: pystachio.Session) -> None:
    """Refused, where the answer could be wrong."""
    with pytest.raises(Unsupported, match="line break"):
        session.sql(r"select a from t where s <> E'p\nq' and a not in (select k from n)")


def test_line_breaks_that_are_computed(folder: Path, session: pystachio.Session) -> None:
    sql = "select a from t where s <> 'p' || chr(10) and a not in (select k from n)"
    assert answer(session, sql) == oracle(folder, sql)


def test_not_a_number_in_grouping_sets(folder: Path, session: pystachio.Session) -> None:
    key = "coalesce(f, cast('NaN' as double))"
    sql = f"select {key} as c, j, max(b) as m from t group by rollup ({key}, j)".replace(" t ", " f ")
    found = answer(session, sql)
    assert found == oracle(folder, sql)
    assert any(repr(math.nan) in row for row in found)
