"""Rows that are held all at once: what they were collected in is let go."""

from __future__ import annotations

import weakref

import pyarrow as pa
import pytest
import torch

from pystachio.operators import collected as module
from pystachio.operators.batch import Batch, Field
from pystachio.operators.collected import Collected
from pystachio.operators.column import Column, FixedColumn

INT = pa.int64()
SCHEMA = (Field("a", INT), Field("b", INT), Field("c", INT))


def collected(batches: list[Batch]) -> Collected:
    rows = sum(batch.length for batch in batches)
    return Collected(batches, rows, SCHEMA, torch.device("cpu"), None)  # type: ignore[arg-type]


def batches(count: int) -> list[Batch]:
    return [
        Batch(tuple(FixedColumn(INT, torch.arange(3) + 100 * at + 10 * n) for at in range(len(SCHEMA))), 3, None)
        for n in range(count)
    ]


def values(batch: Batch) -> list[list[int]]:
    return [column.values.tolist() for column in batch.columns]  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_rows_of_all_batches_are_one(count: int) -> None:
    expected = [[100 * at + 10 * n + row for n in range(count) for row in range(3)] for at in range(len(SCHEMA))]
    one = collected(batches(count))
    whole = one.joined()
    assert whole.length == 3 * count
    assert values(whole) == expected
    assert not one.batches


def test_a_column_is_let_go_as_soon_as_there_is_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = batches(4)
    parts = [[weakref.ref(batch.columns[at].values) for batch in given] for at in range(len(SCHEMA))]  # type: ignore[union-attr]
    alive: list[list[bool]] = []
    concat = module.concat

    def noting(columns: list[Column]) -> Column:
        alive.append([any(one() is not None for one in column) for column in parts])
        return concat(columns)

    monkeypatch.setattr(module, "concat", noting)
    one = collected(given)
    del given
    one.joined()
    assert alive == [[True, True, True], [False, True, True], [False, False, True]]
