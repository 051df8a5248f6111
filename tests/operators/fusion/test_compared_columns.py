"""Two columns of a table are compared as they are stored: against Python, with programs and without."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio

ROWS = 9000
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "<>": operator.ne,
}


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int | None, int | None]]]:
    chance = random.Random(8)
    pairs = [(chance.choice([None, *range(-3, 4)]), chance.choice([None, *range(-3, 4)])) for _ in range(ROWS)]
    path = tmp_path_factory.mktemp("compared") / "t.parquet"
    left, right = (pa.array([pair[side] for pair in pairs], pa.int32()) for side in (0, 1))
    pq.write_table(pa.table({"a": left, "b": right, "c": pa.array(range(ROWS), pa.int32())}), path)
    return path, pairs


@pytest.mark.parametrize("fusion", [True, False], ids=["programs", "operators"])
@pytest.mark.parametrize("sign", COMPARISONS)
def test_comparisons_of_two_columns(
    columns: tuple[Path, list[tuple[int | None, int | None]]], sign: str, fusion: bool
) -> None:
    path, pairs = columns
    holds = COMPARISONS[sign]
    wanted = [n for n, (a, b) in enumerate(pairs) if a is not None and b is not None and holds(a, b)]
    with pystachio.connect(memory="256MiB", threads=2, fusion=fusion) as session:
        session.register("t", str(path))
        for _ in range(2):
            answer = session.sql(f"select count(*) as n, sum(c) as s from t where a {sign} b").to_arrow().to_pylist()
            assert answer == [{"n": len(wanted), "s": sum(wanted)}]
