"""Groups of rows in order and of numbers in any order, as many as batches hold: against DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.aggregation import fold
from pystachio.operators.kernels.grouping import group_rows

ROWS = 600_000
STATEMENTS = {
    "in order": "select k, sum(v) as s, count(*) as n from ordered group by k",
    "in order, several": "select k, l, sum(v) as s from ordered group by k, l",
    "in order, twice": "select s, count(*) from (select k, sum(v) as s from ordered group by k) group by s",
    "in order, few": "select k, max(v) from ordered where v > 990 group by k having max(v) > 995",
    "in order, with nulls": "select n, sum(v), count(n) from ordered group by n",
    "in order, distinct": "select k, count(distinct v) as d from ordered group by k",
    "in order, sets": "select k, l, sum(v) as s from ordered where k < 5000 group by rollup (k, l)",
    "any order": "select r, sum(v) as s, count(*) as n, min(v), max(v) from ordered group by r",
    "any order, joined": "select o.r, count(*) from ordered o join tail t on o.r = t.k group by o.r",
    "any order, outer": "select k, count(w) from tail left join (select r, v as w from ordered) on r = k group by k",
    "any order, distinct twice": (
        "select r, count(distinct v) as d, count(distinct m) as e, sum(v) from ordered group by r"
    ),
    "few, distinct of many": (
        "select l, count(distinct r) as d, count(distinct m) as e, count(distinct n) from ordered group by l"
    ),
    "all, distinct of many": (
        "select count(distinct r) as d, count(distinct v) as e, sum(distinct m) as f, count(n) from ordered"
    ),
    "sets, distinct of many": (
        "select l, v, count(distinct r) as d, count(distinct n) filter (where m > 9000) as e "
        "from ordered group by grouping sets ((l, v), (v), ())"
    ),
    "nearly in order": "select m, sum(v), count(*) from ordered group by m",
    "widths": "select k, sum(v) from (from head union all from middle union all from tail) group by k",
    "the same twice": "select k, sum(v) from (select k, v from ordered union all select k, v from ordered) group by k",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clustered")
    draw = np.random.default_rng(11)
    numbers = np.arange(ROWS)
    ordered = pa.table(
        {
            "k": numbers // 3,
            "l": numbers % 2,
            "m": numbers // 3 + draw.integers(0, 40, ROWS),
            "n": pa.array(numbers // 3, mask=draw.random(ROWS) < 0.01),
            "r": draw.integers(0, 300_000, ROWS),
            "v": draw.integers(0, 1000, ROWS),
        }
    )
    pq.write_table(ordered, folder / "ordered.parquet", row_group_size=70_001)
    for name, low, high in (("head", 0, 30_001), ("middle", 20_000, 90_001), ("tail", 90_000, 1_000_001)):
        keys = np.arange(low, high)
        pq.write_table(pa.table({"k": keys, "v": keys % 7}), folder / f"{name}.parquet", row_group_size=50_000)
    return folder


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2, chunk_cache_dir=str(folder / "chunks")) as session:
        for path in folder.glob("*.parquet"):
            session.register(path.stem, path)
        yield session


@pytest.mark.parametrize("name", STATEMENTS)
def test_groups_are_those_of_duckdb(folder: Path, session: pystachio.Session, name: str) -> None:
    with duckdb.connect() as peer:
        for path in folder.glob("*.parquet"):
            peer.execute(f"create view {path.stem} as from '{path}'")
        expected = sorted(map(repr, peer.sql(STATEMENTS[name]).fetchall()))
    sql = STATEMENTS[name].replace("(from ", "(select * from ").replace("all from ", "all select * from ")
    # The first run finds nothing in memory, the second takes rows from there, the third what the second has learnt.
    for _ in range(3):
        rows = session.sql(sql).to_arrow()
        found = sorted(repr(row) for row in zip(*(column.to_pylist() for column in rows.columns), strict=True))
        assert found == expected


def test_parts_of_a_list_are_grouped_by_its_values_alone(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[int, int]] = set()
    grouped = fold._grouped

    def recorded(plan: Any, keys: Any, states: Any, rows: Any, device: Any, direct: bool, *more: Any) -> Any:
        tag = more[1] if len(more) > 1 else None

        def counted(by: Any, *given: Any, **named: Any) -> Any:
            # Without keys: of another part, whose states are folded meanwhile.
            if tag is not None and by:
                seen.add((tag, len(by)))
            return group_rows(by, *given, **named)

        monkeypatch.setattr(fold, "group_rows", counted)
        found = grouped(plan, keys, states, rows, device, direct, *more)
        assert {len(column) for column in found.columns} == {found.length}
        return found

    monkeypatch.setattr(fold, "_grouped", recorded)
    session.sql("select r, count(distinct v) as d, count(distinct m) as e, sum(v) from ordered group by r").to_arrow()
    session.sql("select count(distinct r) as d, count(distinct m) as e, count(*) as c from ordered").to_arrow()
    assert seen == {(0, 1), (1, 2), (2, 2), (1, 1), (2, 1)}
