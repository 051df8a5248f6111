"""Programs with joins and runtime filters in them are kept as well: each run puts its own tables in their places."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.operators.fusion import flow
from pystachio.operators.fusion.groups import RowKey
from pystachio.operators.fusion.kept import KeptSegments, Written
from pystachio.operators.fusion.prepared import Prepared
from pystachio.operators.fusion.segment import Segment
from pystachio.operators.kernels import native
from pystachio.operators.scans.rows import UnitRows

ROWS = 300_000
ITEMS = 20_000

STATEMENTS = {
    "payloads": "select c, sum(v * p) s, count(*) n from t join item on i = id where p < 700 group by c order by c",
    "texts put out": "select v, long, c from t join item on i = id where p = 13 order by v, long limit 50",
    "groups of rows": "select long, c, sum(v) s, count(*) n from t join item on i = id where p < 40 group by long, c"
    " order by long, c",
    "sets of groups of rows": "select long, d, sum(v) s, count(*) n from t left join item on i = id and p < 20"
    " group by rollup (long, d) order by long nulls last, d nulls last, n",
    "several of a key": "select b, sum(v) s, count(*) n from t join several on i = k group by b order by b",
    "not all matched": "select count(*) n, count(c) m, sum(p) s from t left join item on i = id and p < 300",
    "semi": "select sum(v) s from t where i in (select id from item where p between 100 and 160)",
    "anti": "select sum(v) s from t where not exists (select 1 from several where k = i and b <> 'x')",
    "mark": "select sum(v) s from t where i in (select id from item where p < 9) or d = 3",
    "flagged": "select count(*) n, sum(p) s from item where exists (select 1 from t where i = id and v < 900)",
    "text keys": "select tag, count(*) n, min(p) m from t join item on w = tag where v < 70 group by tag order by tag",
    "two keys": "select sum(v) s, count(*) n from t join item on i = id and w = tag",
    "sparse keys": "select sum(v) s, count(*) n from t join sparse on r = far",
    "a residual": "select sum(v) s, count(*) n from t join item on i = id and v > p * 90",
    "scalars": "select count(*) n, sum(p) s from t join item on i = id where v > (select avg(v) from t where d = 2)",
    "three joins": "select b, count(*) n, sum(p) s from t join item on i = id join several on k = id"
    " join sparse on far = r where p < 800 group by b order by b",
    "nothing built": "select count(*) n, sum(v) s from t join item on i = id where p < -5",
    "nulls": "select count(*) n, sum(q) s from t join holes on i = h",
}

WRITTEN_ANEW = ("scalars", "text keys", "two keys")
"""Each run has a predicate of its own, or a runtime filter of texts."""

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")


def tables(seed: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)
    words = np.array(["alpha", "beta", "gamma", "delta", "nil", "omega"])
    ids = rng.permutation(ITEMS)
    far = np.unique(rng.integers(-(2**62), 2**62, 9_000))
    keys = rng.integers(0, ITEMS, 30_000)
    return {
        "t": pa.table(
            {
                "i": rng.integers(0, ITEMS + 500, ROWS).astype(np.int32),
                "v": rng.integers(0, 100_000, ROWS),
                "d": rng.integers(0, 12, ROWS).astype(np.int16),
                "w": words[rng.integers(0, len(words), ROWS)],
                "r": far[rng.integers(0, len(far), ROWS)] + rng.integers(0, 2, ROWS),
            }
        ),
        "item": pa.table(
            {
                "id": ids,
                "p": rng.integers(0, 1000, ITEMS),
                "c": words[rng.integers(0, len(words), ITEMS)],
                "tag": np.where(rng.random(ITEMS) < 0.0005, words[rng.integers(0, len(words), ITEMS)], "other"),
                "long": [f"a text of its own, number {number}" for number in ids],
            }
        ),
        "several": pa.table({"k": keys, "b": words[rng.integers(0, len(words), len(keys))]}),
        "sparse": pa.table({"far": far[::3]}),
        # Two versions of the same keys with the same values in another order: only the tables tell them apart.
        "versions": pa.table(
            {
                "version": np.repeat([0, 1], 1000),
                "key": np.concatenate([rng.permutation(1000), rng.permutation(1000)]),
                "worth": np.concatenate([rng.permutation(1000), rng.permutation(1000)]),
                "label": [f"label {number % 7}" for number in rng.permutation(2000)],
            }
        ),
        "holes": pa.table(
            {
                "h": pa.array(ids[:5000], mask=rng.random(5000) < 0.2),
                "q": pa.array(rng.integers(-9, 9, 5000), mask=rng.random(5000) < 0.3),
            }
        ),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joined")
    for name, rows in tables(7).items():
        pq.write_table(rows, path / f"{name}.parquet", row_group_size=60_000)
    return path


@pytest.fixture
def session(folder: Path, tmp_path: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2, chunk_cache_dir=str(tmp_path / "chunks")) as opened:
        for path in sorted(folder.glob("*.parquet")):
            opened.register(path.stem, path)
        yield opened


def expected(folder: Path, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, object]]:
    with duckdb.connect() as peer:
        for path in folder.glob("*.parquet"):
            peer.execute(f"create view {path.stem} as from '{path}'")
        found = peer.execute(sql, parameters)
        names = [column[0] for column in found.description]
        return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in found.fetchall()]


def rows_of(found: pa.Table) -> list[dict[str, object]]:
    return [{name: _plain(value) for name, value in row.items()} for row in found.to_pylist()]


def _plain(value: object) -> object:
    return int(value) if not isinstance(value, str) and value is not None else value  # type: ignore[call-overload]


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_run_answers_rightly(session: pystachio.Session, folder: Path, name: str) -> None:
    sql = STATEMENTS[name]
    wanted = expected(folder, sql)
    for _ in range(4):
        assert rows_of(session.sql(sql).to_arrow()) == wanted
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: session.sql(sql).to_arrow(), range(8)))
    assert all(rows_of(each) == wanted for each in found), "runs at once have their own tables"


def test_what_is_built_depends_on_a_parameter(session: pystachio.Session, folder: Path) -> None:
    sql = "select c, count(*) n, sum(v) s from t join item on i = id where p % 10 = $1 group by c order by c"
    for rest in (3, 4, 3, 9, 9, 0, 77, 4):
        wanted = expected(folder, sql, [rest])
        assert rows_of(session.sql(sql, parameters=[rest]).to_arrow()) == wanted


@pytest.mark.parametrize(
    "sql",
    [
        "select sum(v * worth) s, count(*) n from t join versions on i = key where version = $1",
        "select worth, count(*) n, sum(v) s from t join versions on i = key where version = $1 group by worth"
        " order by worth",
        "select v, label, worth from t join versions on i = key where version = $1 order by v, label, worth limit 90",
    ],
)
def test_each_value_of_a_parameter_has_its_own_answer(session: pystachio.Session, folder: Path, sql: str) -> None:
    for version in (0, 1, 0, 1, 1, 0):
        found = session.sql(sql, parameters=[version]).to_arrow()
        assert rows_of(found) == expected(folder, sql, [version])


SOME_ROWS = (
    "select count(*) n, cast(sum(j.a) as bigint) sa, count(j.a) ca, count(j.s) cs, cast(sum(j.s) as bigint) ss"
    " from facts join (select k, a, a + b s from {}) j on i = k",
    "select a, count(*) n, count(j.s) cs from facts join (select k, a, a + b s from {}) j on i = k"
    " group by a order by a",
    "select cast(sum(i + char_length(j.t)) as bigint) s from facts join (select k, t from {}) j on i = k",
    "select cast(sum(case when char_length(j.t) = 8 then 1 else 0 end) as bigint) n"
    " from facts join (select k, t from {}) j on i = k",
)


@pytest.mark.parametrize("sql", SOME_ROWS)
def test_what_looks_alike_and_is_another_in_each_run(tmp_path: Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIMIT without ORDER BY takes one row group or the other: the same forms over other tables. In one of them, a sum
    shares its validity with an operand, and in the other it has one of its own; texts are all of one length, which is
    another one."""
    rng, rows = np.random.default_rng(1), 1000
    halves = []
    for half in range(2):
        lacking = rng.random(rows) < 0.2
        halves.append(
            pa.table(
                {
                    "k": rng.permutation(rows),
                    "a": pa.array(rng.permutation(rows).astype(float), mask=lacking | (np.arange(rows) == 0)),
                    "b": pa.array(rng.permutation(rows).astype(float), mask=(rng.random(rows) < 0.3) & (half == 1)),
                    "t": [f"{number:0{8 + half}}" for number in rng.permutation(rows)],
                }
            )
        )
    facts = pa.table({"i": rng.integers(0, rows, 200_000)})
    pq.write_table(pa.concat_tables(halves), tmp_path / "item.parquet", row_group_size=rows)
    pq.write_table(facts, tmp_path / "facts.parquet", row_group_size=100_000)
    right = []
    for half in halves:
        with duckdb.connect() as peer:
            peer.register("facts", facts)
            peer.register("half", half)
            right.append(peer.sql(sql.format("half")).to_arrow_table().to_pylist())
    drawn: list[int] = []
    decode = UnitRows.decode

    def decoding(self: UnitRows, *given: object) -> None:
        if self.unit.rows == rows and rng.random() < 0.5:
            time.sleep(0.01)  # the other row group comes first
        decode(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(UnitRows, "decode", decoding)
    settings = {"chunk_cache": False, "dictionary_codes": False, "batch_rows": rows}
    with pystachio.connect(threads=2, **settings) as session:
        for name in ("facts", "item"):
            session.register(name, tmp_path / f"{name}.parquet")
        limited = sql.format(f"(select * from item limit {rows}) x")
        for _ in range(40):
            found = session.sql(limited).to_arrow().to_pylist()
            assert found in right
            drawn.append(right.index(found))
    assert len(set(drawn)) == 2, "both row groups were taken"


@pytest.mark.parametrize("name", [name for name in STATEMENTS if name not in WRITTEN_ANEW])
def test_a_kept_program_is_the_one_that_would_be_written(
    session: pystachio.Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    find, once = KeptSegments.find, flow.Flow._kept_or_written
    hits: list[Written | None] = []

    def finding(self: KeptSegments, *given: object) -> Written | None:
        hits.append(find(self, *given))  # type: ignore[arg-type]
        return hits[-1]

    def checking(self: flow.Flow, key: flow._Key, ready: Prepared, length: int, origin: flow._Origin) -> Written:
        hits.clear()
        found = once(self, key, ready, length, origin)
        if hits and hits[0] is not None:
            anew = flow.Flow(self.chain, self.fused)._write(key, ready.columns, length, origin)
            assert (found.segment is None) == (anew.segment is None)
            if found.segment is not None and anew.segment is not None and found.bounds == anew.bounds:
                assert_same(found.segment, anew.segment)
                compared.append(name)
        return found

    monkeypatch.setattr(KeptSegments, "find", finding)
    monkeypatch.setattr(flow.Flow, "_kept_or_written", checking)
    for _ in range(5):
        session.sql(STATEMENTS[name]).to_arrow()
    assert compared


def assert_same(kept: Segment, anew: Segment) -> None:
    assert kept.stages == anew.stages
    assert kept.inputs == anew.inputs
    assert kept.tested == anew.tested
    assert np.array_equal(kept.program.code, anew.program.code)
    assert (kept.program.outputs, kept.program.registers) == (anew.program.outputs, anew.program.registers)
    assert (kept.program.step, kept.program.masks) == (anew.program.step, anew.program.masks)
    assert kept.program.fixed == anew.program.fixed
    for mine, other, fixed in zip(kept.program.tables, anew.program.tables, anew.program.fixed, strict=True):
        assert torch.equal(mine, other) if fixed else mine is other
    for output, another in zip(kept.columns, anew.columns, strict=True):
        assert output.column is another.column
        assert output.dictionary is another.dictionary
        assert (output.type, output.values, output.valid, output.position, output.bounds) == (
            another.type,
            another.values,
            another.valid,
            another.position,
            another.bounds,
        )
    assert (kept.folded is None) == (anew.folded is None)
    if kept.folded is not None and anew.folded is not None:
        for key, another_key in zip(kept.folded.keys, anew.folded.keys, strict=True):
            assert key == another_key
            if isinstance(key, RowKey) and isinstance(another_key, RowKey):
                assert all(one is other for one, other in zip(key.of, another_key.of, strict=True))
        assert kept.folded.accumulators == anew.folded.accumulators
        assert kept.folded.slots == anew.folded.slots


def test_nothing_of_a_run_is_held(session: pystachio.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept holds neither the tables of a build side nor its texts."""
    kept = []
    keep = KeptSegments.keep

    def keeping(self: KeptSegments, *given: object) -> None:
        keep(self, *given)  # type: ignore[arg-type]
        kept.append(self)

    monkeypatch.setattr(KeptSegments, "keep", keeping)
    for name in ("payloads", "texts put out", "three joins", "groups of rows"):
        for _ in range(3):
            session.sql(STATEMENTS[name]).to_arrow()
    held = [each for segments in kept for looks in segments.by_look.values() for each in looks]
    programs = [each.written.segment for each in held if each.written.segment is not None]
    assert len(programs) >= 4
    row_keys = [rows for segment in programs if segment.folded is not None for rows in segment.folded.rows]
    assert set(row_keys) == {()}, "the columns that rows are of"
    for segment in programs:
        assert all(
            table.nbytes == 0
            for table, fixed in zip(segment.program.tables, segment.program.fixed, strict=True)
            if not fixed
        )
        assert all(output.column is None for output in segment.columns)
        assert segment.tested[1:] == ()


def test_what_comes_once_is_not_held(session: pystachio.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain texts become codes of a dictionary that each run makes anew."""
    kept: list[KeptSegments] = []
    keep = KeptSegments.keep

    def keeping(self: KeptSegments, *given: object) -> None:
        keep(self, *given)  # type: ignore[arg-type]
        kept.append(self)

    monkeypatch.setattr(KeptSegments, "keep", keeping)
    for _ in range(20):
        session.sql(
            "select count(*) n from t left join (select tag || 'x' y, id from item) j on w = y and v > 5"
        ).to_arrow()
    looks = {id(segments): segments for segments in kept}
    assert sum(len(segments.by_look) for segments in looks.values()) <= 3


def test_that_too_many_programs_were_written_is_not_kept(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_MOST_PROGRAMS", -1)
    for _ in range(3):
        session.sql(STATEMENTS["payloads"]).to_arrow()
    monkeypatch.setattr(flow, "_MOST_PROGRAMS", 32)
    written = []
    write = flow.write_segment
    monkeypatch.setattr(flow, "write_segment", lambda *given, **named: written.append(1) or write(*given, **named))
    session.sql(STATEMENTS["payloads"]).to_arrow()
    assert written


def test_a_program_with_joins_is_written_once(session: pystachio.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = flow.write_segment
    monkeypatch.setattr(flow, "write_segment", lambda *given, **named: written.append(1) or write(*given, **named))
    for name in ("payloads", "sparse keys", "semi"):
        for _ in range(3):
            session.sql(STATEMENTS[name]).to_arrow()
        before = len(written)
        for _ in range(3):
            session.sql(STATEMENTS[name]).to_arrow()
        assert len(written) == before, f"{name}: the build side looks as it did"
