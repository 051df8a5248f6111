"""Random filters and projections as programs, against the same operators one by one."""

from __future__ import annotations

import operator
import random
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.operators import distinct
from pystachio.operators.column import DictionaryColumn, FixedColumn
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow
from pystachio.operators.kernels import host, portable
from pystachio.operators.project import Project
from tests.operators.fusion.chains import WORDS, Given, agree, batch_of, call, dictionary_of, lit, ref, schema_of
from tests.operators.fusion.trees import FLAG, FLOAT, INT, PRICE, SCHEMA, Trees, table

SEEDS = 150


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)


def batches(r: random.Random) -> tuple[Any, ...]:
    """Some of which look different from the others."""
    shared = dictionary_of(WORDS)
    made = []
    for number in range(r.choice([1, 2, 4])):
        dictionary = shared if r.random() < 0.7 else dictionary_of(r.sample(WORDS, r.randint(1, len(WORDS))))
        rows, shift = r.choice([1, 100, 1024, 1500]), r.choice([0, 0, 3, 40 * number])
        made.append(table(r, rows, dictionary, nulls=r.choice([0.0, 0.3, 1.0]), shift=shift))
    return tuple(made)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_filters_and_projections(harness: Any, seed: int) -> None:
    r = random.Random(seed)
    source, trees = Given(batches(r), SCHEMA), Trees(r)
    predicates = [trees.flag(r.choice([1, 2, 3])) for _ in range(r.choice([1, 2]))]
    types = [r.choice([INT, PRICE, FLOAT, FLAG]) for _ in range(4)]
    values = [trees.of(type_, 2) for type_ in types]
    outputs = (*values, *(ref(SCHEMA, position) for position in range(len(SCHEMA))))

    def chain() -> Any:
        operator: Any = source
        for predicate in predicates:
            operator = Filter(operator, predicate)
        return Project(operator, outputs, schema_of(*(value.type for value in outputs)))

    agree(harness, chain, ordered=True)


@pytest.mark.parametrize("function", ["equal", "not_equal", "lt", "lte", "gt", "gte"])
def test_a_range_may_be_wider_than_the_dtype(harness: Any, function: str) -> None:
    """Bounds need not be tight."""
    schema = schema_of(INT)
    column = FixedColumn(INT, torch.arange(-128, 128).to(torch.int8), None, (-1000, 70_000))
    for number in (-200, -128, -1, 0, 100, 127, 128, 300, 65_536):
        below = call(function, ref(schema, 0), lit(number, INT))
        agree(harness, lambda below=below: Filter(Given((batch_of(column),), schema), below), ordered=True)


@pytest.mark.parametrize("kernels", [host, portable])
@pytest.mark.parametrize("function", ["equal", "not_equal", "lt", "lte", "gt", "gte"])
@pytest.mark.parametrize(("dtype", "words"), [(torch.int8, 400), (torch.int16, 33_000), (torch.int32, 400)])
def test_codes_may_be_narrower_than_their_dictionary(
    harness: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, words: int, function: str, kernels: Any
) -> None:
    """Dictionaries grow, and codes that are stored already stay as they are."""
    monkeypatch.setattr(distinct, "primitives", lambda device: kernels)
    dictionary = dictionary_of([f"{number:06}" for number in range(words)])
    codes = torch.arange(127).to(dtype).repeat(words // 127 + 1)
    column = DictionaryColumn(pa.string(), codes, dictionary, None)
    schema = schema_of(pa.string())
    python = {"equal": "eq", "not_equal": "ne", "lt": "lt", "lte": "le", "gt": "gt", "gte": "ge"}[function]
    for number in (0, 44, 126, 127, 128, 300, words - 1):
        below = call(function, ref(schema, 0), lit(f"{number:06}", pa.string()))
        got = agree(harness, lambda below=below: Filter(Given((batch_of(column),), schema), below), ordered=True)
        want = sum(getattr(operator, python)(code, number) for code in range(127)) * (words // 127 + 1)
        assert len(got.rows) == want
