"""Join probes as programs, against the operators: all kinds, keys and indexes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.batch import Batch
from pystachio.operators.column import Column, Dictionary
from pystachio.operators.expressions import FieldReference, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow
from pystachio.operators.joins.join import Join
from tests.operators.conftest import Source
from tests.operators.fusion.chains import (
    WORDS,
    Given,
    agree,
    batch_of,
    booleans,
    call,
    codes,
    dictionary_of,
    floats,
    integers,
    plain,
    schema_of,
)

INT, TEXT, PRICE = pa.int64(), pa.string(), pa.decimal128(12, 2)
PAYLOAD = (INT, TEXT, TEXT, pa.float64(), pa.bool_())
KEYS: dict[str, pa.DataType] = {
    "dense": INT,
    "sparse": INT,
    "extreme": INT,
    "text": TEXT,
    "flag": pa.bool_(),
    "price": PRICE,
}
KEY_LISTS = [
    ["dense"],
    ["dense"],
    ["sparse"],
    ["text"],
    ["extreme"],
    ["price"],
    ["dense", "text"],
    ["sparse", "dense"],
    ["flag", "dense"],
    ["sparse", "extreme"],
    ["text", "dense", "dense"],
]
SINGLE = {JoinKind.SEMI, JoinKind.ANTI}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)


def key(r: random.Random, kind: str, rows: int, distinct: int, dictionary: Dictionary, nulls: float) -> Column:
    shift = r.choice([0, 0, -3, 5])
    match kind:
        case "dense":
            return integers(r, INT, rows, shift, shift + distinct, nulls=nulls, known=r.random() < 0.5)
        case "sparse":
            step = 2**45 // distinct
            column = integers(r, INT, rows, 0, distinct, nulls=nulls)
            return type(column)(INT, column.values.long() * step, column.validity)
        case "extreme":
            column = integers(r, INT, rows, 0, 3, nulls=nulls)
            far = column.values.new_tensor([0, 0, 0, 0]).long()
            far[:] = far.new_tensor([-(2**63), -1, 7, 2**63 - 1])
            return type(column)(INT, far[column.values.clamp(0, 3).long()], column.validity)
        case "text":
            return codes(r, rows, dictionary, nulls)
        case "flag":
            return booleans(r, rows, nulls)
        case _:
            return integers(r, PRICE, rows, 0, distinct, nulls=nulls)


def side(r: random.Random, kinds: list[str], rows: int, distinct: int, dictionary: Dictionary, nulls: float) -> Batch:
    return batch_of(
        *(key(r, kind, rows, distinct, dictionary, nulls if r.random() < 0.7 else 0.0) for kind in kinds),
        integers(r, INT, rows, 0, 90, nulls=nulls),
        codes(r, rows, dictionary, nulls),
        plain(r, rows, TEXT, WORDS, nulls),
        floats(r, rows, nulls),
        booleans(r, rows, nulls),
    )


def check(harness: Any, seed: int, kind: JoinKind, build: Literal["left", "right"], **options: Any) -> int:
    """How many programs were written."""
    r = random.Random(seed)
    kinds = options.get("keys") or r.choice(KEY_LISTS)
    types = (*(KEYS[name] for name in kinds), *PAYLOAD)
    width, nulls = len(types), r.choice([0.0, 0.2])
    built, streamed = r.choice([0, 1, 4, 40, 40]), r.choice([1, 200, 1100])
    distinct = r.choice([3, 10, 60, 500])
    here, there = dictionary_of(WORDS), dictionary_of(r.sample(WORDS, 5))
    stored = [side(r, kinds, built, distinct, r.choice([here, there]), nulls)] if built else []
    pushed = tuple(
        side(r, kinds, streamed, distinct, r.choice([here, here, there]), nulls) for _ in range(r.choice([1, 2]))
    )
    schema = schema_of(*types)
    residual = None
    if options.get("residual", r.random() < 0.4):
        residual = call("lt", FieldReference(len(kinds), INT), FieldReference(width + len(kinds), INT))
    output = tuple(range(width)) if kind in SINGLE else tuple(range(2 * width))
    if kind is JoinKind.MARK:
        output = (*range(width), 2 * width)
    positions = tuple(range(len(kinds)))
    null_equal = tuple(r.random() < 0.3 for _ in kinds)
    keep = call(r.choice(["gt", "lte"]), FieldReference(len(kinds), INT), FieldReference(len(kinds), INT))
    with_filter = r.random() < 0.3

    def join() -> Any:
        probe: Any = Given(pushed, schema)
        if with_filter:
            probe = Filter(probe, call("not", keep))
        side_ = Source(tuple(stored), schema)
        left, right = (side_, probe) if build == "left" else (probe, side_)
        return Join(
            left, right, kind, positions, positions, null_equal, residual, False, build, output, (None,) * len(kinds)
        )

    settings = {"direct_addressing": r.random() < 0.6, "batch_rows": r.choice([10, 4000])}
    return len(agree(harness, join, **settings).programs)


@pytest.mark.parametrize("build", ["left", "right"])
@pytest.mark.parametrize("kind", list(JoinKind))
@pytest.mark.parametrize("seed", range(20))
def test_joins(harness: Any, kind: JoinKind, build: Literal["left", "right"], seed: int) -> None:
    check(harness, seed, kind, build)


def test_nothing_to_join_with_has_floats(tmp_path: Path) -> None:
    """A column without a row has a range, even of floats."""
    pq.write_table(pa.table({"k": pa.array(range(5000)), "a": pa.array([i / 3 for i in range(5000)])}), tmp_path / "f")
    pq.write_table(pa.table({"k": pa.array([], pa.int64()), "b": pa.array([], pa.float64())}), tmp_path / "e")
    with pystachio.connect(threads=1) as session:
        session.register("f", tmp_path / "f")
        session.register("e", tmp_path / "e")
        sql = "select count(greatest(cast(0.25 as double), e.b)) as n, sum(e.b + 1.5) as x from f left join e"
        sql += " on f.k = e.k"
        assert session.sql(sql).to_arrow().to_pylist() == [{"n": 5000, "x": None}]
        sql += " and f.a = e.b"
        assert session.sql(sql).to_arrow().to_pylist() == [{"n": 5000, "x": None}]
