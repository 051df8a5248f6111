"""Groups of rows whose key is NULL, which are many: against DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.operators.aggregation import fold, partial
from pystachio.operators.aggregation.plan import AggregatePlan
from pystachio.operators.batch import Batch

ROWS = 80_000
KEYS = {
    "random": "half of the rows have none, and groups are many",
    "few": "half of the rows have none, and groups are few",
    "rare": "one of twenty has none",
    "never": "no row has one",
    "number": "floats, NaN and zeros among them",
    "word": "words",
    "text": "texts that nearly all differ",
    "flag": "true, false or none",
    "ordered": "in the order of the file",
    "money": "decimals that need two limbs",
    "single": "one value, and none in one of six rows, the first ones of each batch among them",
}
"""Of rows: what is special about the column."""
STATES = "count(*) as n, count(v) as c, sum(v) as s, min(v) as low, max(w) as high, sum(v) filter (where w > 3) as f"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nulls")
    draw = np.random.default_rng(3)

    def some(values: object, share: float = 0.5) -> pa.Array:
        return pa.array(values, mask=draw.random(ROWS) < share)

    floats = draw.integers(-50_000, 50_000, ROWS) / 4
    floats[::100], floats[1::100], floats[2::100] = np.nan, 0.0, -0.0
    large = pa.array(draw.integers(0, 60_000, ROWS)).cast(pa.decimal128(38, 2))
    table = pa.table(
        {
            "random": some(draw.integers(-(2**62), 2**62, 50_000)[draw.integers(0, 50_000, ROWS)]),
            "few": some(draw.integers(0, 2**62, 40)[draw.integers(0, 40, ROWS)]),
            "rare": some(draw.integers(0, 2**62, ROWS), 0.05),
            "never": pa.nulls(ROWS, pa.int64()),
            "number": some(floats),
            "word": some([f"word {number}" for number in draw.integers(0, 300, ROWS)]),
            "text": some([f"{number:x} is a text" for number in draw.integers(0, 2**60, ROWS)]),
            "flag": some(draw.random(ROWS) < 0.5),
            "ordered": some(np.arange(ROWS) // 2, 0.2),
            "money": some(np.array(large.to_pylist())),
            "single": pa.array(np.full(ROWS, 7), mask=np.arange(ROWS) % 40_000 < 7_000),
            "v": some(draw.integers(-1000, 1000, ROWS)),
            "w": draw.integers(0, 9, ROWS),
        }
    )
    pq.write_table(table, folder / "t.parquet", row_group_size=40_000)
    return folder


@pytest.fixture(scope="module")
def apart() -> Iterator[list[int]]:
    """How many rows without a key were put apart, of each batch."""
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:

        def watched(plan: AggregatePlan, batch: Batch, device: torch.device) -> tuple[Batch | None, Batch]:
            keyless, others = fold.without_keys_apart(plan, batch, device)
            seen.append(0 if keyless is None else batch.length - others.length)
            return keyless, others

        patch.setattr(partial, "without_keys_apart", watched)
        yield seen


@pytest.fixture(scope="module", params=[True, False], ids=["with programs", "without programs"])
def session(request: pytest.FixtureRequest, folder: Path, apart: list[int]) -> Iterator[pystachio.Session]:
    chunks = str(folder / f"chunks {request.param}")
    with pystachio.connect(threads=2, chunk_cache_dir=chunks, fusion=request.param) as session:
        session.register("t", folder / "t.parquet")
        yield session


def statements(key: str) -> list[str]:
    return [
        f"select {key}, {STATES} from t group by {key}",
        f"select {key} from t group by {key} having {key} is null or count(*) > 2",
        f"select {key}, w, count(*) as n from t where v > 500 group by {key}, w",
        f"select {key}, count({key}) as k, any_value({key}) as a, round(stddev(w), 6) as d from t group by {key}",
        f"select {key}, count(distinct w) as d from t group by {key}",
        f"select distinct {key} from t",
        f"select count(*) as n from (select {key}, sum(v) as s from t where v > 990 group by {key} having s > 0)",
    ]


@pytest.mark.parametrize("key", KEYS)
def test_as_duckdb(folder: Path, session: pystachio.Session, key: str) -> None:
    with duckdb.connect() as peer:
        peer.execute(f"create view t as from '{folder / 't.parquet'}'")
        for sql in statements(key):
            expected = sorted(map(_plain, peer.sql(sql).fetchall()))
            # From Parquet, and from memory with what the first run has learnt.
            for _ in range(2):
                found = session.sql(sql).to_arrow()
                rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
                assert sorted(map(_plain, rows)) == expected


def test_that_rows_without_a_key_are_put_apart(session: pystachio.Session, apart: list[int]) -> None:
    apart.clear()
    session.sql("select random, count(*) as n, stddev(v) as d from t group by random").to_arrow()
    assert 0.4 * ROWS < sum(apart) < 0.6 * ROWS
    apart.clear()
    session.sql("select rare, count(*) as n, stddev(v) as d from t group by rare").to_arrow()
    assert apart
    assert not any(apart)


def _plain(row: tuple[object, ...]) -> str:
    """One zero."""
    return repr(tuple(0.0 if value == 0.0 and isinstance(value, float) else value for value in row))
