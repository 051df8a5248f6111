"""The top-N of a table against Python's stable sort: thresholds drop no row that belongs in the answer."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.ordering import Direction
from pystachio.operators.kernels.thresholds import KeyThreshold
from pystachio.operators.scans.top_n_rows import Beginning
from tests.operators.test_sort import COLUMNS, ordered, rows_of, same


def random_table(r: random.Random) -> pa.Table:
    rows = r.choice([0, 1, 30, 400, 1500])
    names = [r.choice(list(COLUMNS)) for _ in range(r.randrange(1, 4))]
    nulls = r.choice([0.0, 0.0, 0.2, 1.0])
    columns = []
    for name in names:
        type_, values = COLUMNS[name]
        if name == "int":
            values = [r.randrange(r.choice([3, 10_000])) for _ in range(200)]
        if name in ("string", "dictionary"):
            values = [*values, *(f"text {r.randrange(300)}" for _ in range(r.choice([0, 100])))]
        drawn = [None if r.random() < nulls else r.choice(values) for _ in range(rows)]
        columns.append(pa.array(drawn, type_))
    made = pa.table(columns, names=[f"c{place}" for place in range(len(names))])
    if r.random() < 0.4 and not pa.types.is_floating(made.schema[0].type):
        made = made.take(pa.array(_sorted_places(made["c0"].to_pylist()), pa.int64()))
    texts = pa.array([f"late {number % 7}" if number % 3 else None for number in range(rows)], pa.string())
    return made.append_column("late", texts).append_column("row", pa.array(range(rows), pa.int64()))


def _sorted_places(values: list[Any]) -> list[int]:
    present = [place for place, value in enumerate(values) if value is not None]
    return sorted(present, key=values.__getitem__) + [place for place, value in enumerate(values) if value is None]


def sql_of(keys: list[SortKey], count: int, offset: int, where: str) -> str:
    order = ", ".join(
        f"c{key.index}{' desc' if key.descending else ''} nulls {'first' if key.nulls_first else 'last'}"
        for key in keys
    )
    return f"select * from t{where} order by {order} limit {count} offset {offset}"


@pytest.mark.parametrize("seed", range(80))
def test_equals_a_stable_sort(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(seed)
    monkeypatch.setattr("pystachio.operators.scans.top_n_rows._FIRST_ROWS", r.choice([4, 50, 1 << 13]))
    monkeypatch.setattr("pystachio.operators.scans.top_n_rows._LEAST_FOUND", r.choice([1, 64]))
    monkeypatch.setattr("pystachio.operators.scans.top_n_rows._FEW_ROWS", r.choice([0, 512]))
    table = random_table(r)
    pq.write_table(
        table,
        tmp_path / "t.parquet",
        row_group_size=r.choice([17, 200, 5000]),
        use_dictionary=r.random() < 0.5,
        write_statistics=r.random() < 0.8,
    )
    widths = table.num_columns - 2
    keys = [SortKey(place, r.random() < 0.5, r.random() < 0.5) for place in r.sample(range(widths), widths)]
    settings = {"threads": r.choice([1, 2]), "batch_rows": r.choice([40, 1000]), "dictionary_codes": r.random() < 0.7}
    with pystachio.connect(**settings) as session:
        session.register("t", tmp_path / "t.parquet")
        for _ in range(4):
            count, offset = r.choice([0, 1, 3, 20, 600]), r.choice([0, 0, 2, 300])
            where, kept = r.choice([("", lambda row: True), (" where row % 5 = 1", lambda row: row[-1] % 5 == 1)])
            expected = ordered([row for row in rows_of(table) if kept(row)], keys)[offset : offset + count]
            assert same(rows_of(session.sql(sql_of(keys, count, offset, where)).to_arrow()), expected)


def test_what_was_skipped_is_told(tmp_path: Path) -> None:
    rows = 50_000
    columns = {"a": range(rows), "b": [f"b{n}" for n in range(rows)], "c": [n * 7 for n in range(rows)]}
    pq.write_table(
        pa.table({name: pa.array(values) for name, values in columns.items()}),
        tmp_path / "t.parquet",
        row_group_size=1000,
    )
    with pystachio.connect(threads=1, batch_rows=1000) as session:
        session.register("t", tmp_path / "t.parquet")
        result = session.sql("select * from t where c >= 0 order by a desc limit 3")
        assert result.to_arrow().to_pydict() == {
            "a": [49_999, 49_998, 49_997],
            "b": ["b49999", "b49998", "b49997"],
            "c": [349_993, 349_986, 349_979],
        }
        told = result.explain(analyze=True)
    assert "TopN 3 by a desc of Scan t [a, b, c] where c >= 0" in told
    assert "3 rows fetched late" in told
    skipped = int(told.split(" row groups skipped by threshold")[0].rsplit(" ", 1)[1])
    assert skipped >= 45
    read = int(told.split(" bytes read")[0].rsplit(" ", 1)[1].replace(",", ""))
    assert read < (tmp_path / "t.parquet").stat().st_size / 4


@pytest.mark.parametrize(
    ("value", "descending", "nulls_first", "low", "high", "nulls", "behind"),
    [
        (5, False, False, 6, 9, 0, True),
        (5, False, False, 5, 9, 0, False),
        (5, False, True, 6, 9, None, False),
        (5, False, True, 6, 9, 0, True),
        (5, True, False, 1, 4, 3, True),
        (5, True, True, 1, 4, 3, False),
        (5, False, False, None, None, None, False),
        (5, False, False, None, None, 10, True),
        (5, False, True, None, None, 10, False),
        (None, False, True, 1, 2, 0, True),
        (None, False, True, 1, 2, 1, False),
        (None, False, False, 1, 2, 0, False),
        (5.0, True, False, 1.0, 4.0, 0, False),  # a NaN may be there
        (5.0, False, False, 6.0, 9.0, 0, True),
        (float("nan"), False, False, 6.0, 9.0, 0, False),
        (b"m", False, False, b"n", b"z", 0, True),
        (b"m", False, False, b"m", b"z", 0, False),
    ],
)
def test_row_groups_behind_a_threshold(
    value: Any, descending: bool, nulls_first: bool, low: Any, high: Any, nulls: int | None, behind: bool
) -> None:
    threshold = KeyThreshold(value, Direction(descending, nulls_first))
    assert threshold.is_before(low, high, nulls, 10) is behind


def test_expressions_are_computed_for_the_answer_only(tmp_path: Path) -> None:
    rows = 300
    columns = {"a": [n * 3 % 301 for n in range(rows)], "b": [10 if n % 3 else 0 for n in range(rows)]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pystachio.connect(threads=1) as session:
        session.register("t", tmp_path / "t.parquet")
        result = session.sql("select b + 1 as more, a, b from t where a > 5 order by a, b desc limit 2 offset 1")
        told = result.explain()
        assert told.splitlines()[0].startswith("Project")
        assert "TopN 2 after 1 by a, b desc of Scan t" in told
        picked = sorted(((a, -b) for a, b in zip(columns["a"], columns["b"], strict=True) if a > 5))[1:3]
        assert result.to_arrow().to_pylist() == [{"more": 1 - b, "a": a, "b": -b} for a, b in picked]


def test_a_filter_of_a_join_and_a_scalar_go_with_it(tmp_path: Path) -> None:
    rows = 60_000
    facts = pa.table({"k": [n % 1000 for n in range(rows)], "v": [n * 7919 % 60_013 for n in range(rows)]})
    pq.write_table(facts, tmp_path / "facts.parquet", row_group_size=5000)
    with pystachio.connect(threads=2) as session:
        session.register("facts", tmp_path / "facts.parquet")
        sql = "select k, v from facts where v > (select min(v) + 100 from facts) order by v limit 4"
        expected = sorted(v for v in facts["v"].to_pylist() if v > 100)[:4]
        assert session.sql(sql).to_arrow()["v"].to_pylist() == expected


def test_memory_is_given_back(tmp_path: Path) -> None:
    rows = 200_000
    pq.write_table(
        pa.table({"a": list(range(rows)), "b": [f"text {n}" for n in range(rows)]}),
        tmp_path / "t.parquet",
        row_group_size=20_000,
    )
    with pystachio.connect(threads=2, memory="64MiB") as session:
        session.register("t", tmp_path / "t.parquet")
        for _ in range(3):
            top = session.sql("select * from t order by b desc, a limit 50000").to_arrow()
            expected = sorted(range(rows), key=lambda n: (f"text {n}", -n), reverse=True)[:50_000]
            assert top["a"].to_pylist() == expected


def test_ties_stand_as_in_the_files(tmp_path: Path) -> None:
    r = random.Random(5)
    parts = [[(r.randrange(4), number * 10_000 + place) for place in range(3000)] for number in range(4)]
    for number, part in enumerate(parts):
        keys, rows = zip(*part, strict=True)
        pq.write_table(
            pa.table({"k": list(keys), "row": list(rows)}), tmp_path / f"{number}.parquet", row_group_size=700
        )
    everything = [row for part in parts for row in part]
    with pystachio.connect(threads=2, batch_rows=500) as session:
        session.register("t", tmp_path)
        for direction, sign in (("", 1), (" desc", -1)):
            for count in (5, 4000):
                got = session.sql(f"select row from t order by k{direction} limit {count} offset 7").to_arrow()
                expected = sorted(everything, key=lambda row: sign * row[0])[7 : 7 + count]
                assert got["row"].to_pylist() == [row for _, row in expected]


def test_one_thread_begins_alone_and_then_all_are_let_in() -> None:
    beginning, first, others = Beginning(), threading.Event(), threading.Barrier(3)
    order: list[str] = []

    def begin() -> None:
        with beginning:
            first.wait(10)
            order.append("first")

    def follow() -> None:
        with beginning:
            order.append("other")
            others.wait(10)

    with ThreadPoolExecutor(3) as threads:
        begun = threads.submit(begin)
        while beginning._alone is None:
            pass
        followers = [threads.submit(follow) for _ in range(2)]
        first.set()
        others.wait(10)
        for each in (begun, *followers):
            each.result(10)
    assert order == ["first", "other", "other"]


def test_who_fails_alone_lets_in_all() -> None:
    beginning = Beginning()
    with pytest.raises(ValueError, match="x"), beginning:
        raise ValueError("x")
    with ThreadPoolExecutor(1) as threads, beginning:
        threads.submit(beginning.__enter__).result(10)
