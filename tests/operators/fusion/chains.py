"""Chains of streaming operators, as programs and operator by operator; and random columns for them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import batch_from_arrow, dictionary_from_arrow
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.column import Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.expressions import Call, Expression, FieldReference, Literal
from pystachio.operators.fusion.flow import Flow
from pystachio.operators.kernels.program import Program
from pystachio.operators.kernels.selection import take_late
from pystachio.operators.scans.rows import ScanRows
from tests.operators.conftest import ListOutput

Row = tuple[Any, ...]

DTYPES: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
WORDS: Final = ["", "a", "b", "ab", "ä", "special requests", "zz", "a%b", "PROMO BRASS"]


@dataclass(frozen=True)
class Given:
    """Stands for what feeds the chain."""

    batches: tuple[Batch | ScanRows, ...]
    schema: Schema
    inputs: tuple[Any, ...] = ()

    def label(self) -> str:
        return "Given"


@dataclass(frozen=True)
class Outcome:
    """`error`: the chain failed. `programs`: how many ran, or would have."""

    rows: tuple[str, ...]
    error: bool
    programs: tuple[Program, ...] = ()
    stages: int = 0

    @property
    def counted(self) -> Counter[str]:
        return Counter(self.rows)


def outcome(harness: Any, operator: Any, *, fused: bool, **settings: Any) -> Outcome:
    """The rows that the chain above the `Given` puts out, as text: NaN equals itself there, and -0.0 is not 0.0."""
    flows: list[Flow] = []
    try:
        batches = asyncio.run(_run(harness, operator, flows, fused, settings))
    except DataError:
        return Outcome((), True)
    written = [known.segment for flow in flows for several in flow._written.values() for known in several]
    segments = [segment for segment in written if segment is not None]
    rows = tuple(map(repr, harness.rows_of(batches, operator.schema)))
    programs = tuple(segment.program for segment in segments)
    return Outcome(rows, False, programs, max((segment.stages for segment in segments), default=0))


def agree(harness: Any, make: Callable[[], Any], *, ordered: bool = False, **settings: Any) -> Outcome:
    """The fused chain gives what its operators give, which `make` makes anew."""
    want = outcome(harness, make(), fused=False, **settings)
    got = outcome(harness, make(), fused=True, **settings)
    assert got.error == want.error
    if ordered:
        assert got.rows == want.rows
    else:
        assert got.counted == want.counted, (got.rows[:8], want.rows[:8])
    return got


async def _run(harness: Any, operator: Any, flows: list[Flow], fused: bool, settings: dict[str, Any]) -> list[Batch]:
    ctx = harness.context(**settings)
    if hasattr(operator, "run"):
        produced = await _run(harness, operator.inputs[0], flows, fused, settings)
        await operator.run(ctx, (harness.receiver(produced),), collected := ListOutput())
        return list(collected.batches)
    chain: list[tuple[Any, Any]] = []
    while not isinstance(operator, Given):
        builds = [await harness._run(child, ctx) for child in operator.inputs[1:]]
        transform = await operator.open(ctx, tuple(map(harness.receiver, builds)))
        chain.insert(0, (transform, harness.context(**settings)))
        operator = operator.inputs[0]
    flow = Flow(chain, fused)
    flows.append(flow)
    made = [batch for batch in flow.push(operator.batches, ctx) if batch.length]
    for number, (transform, stage) in enumerate(chain):
        left = transform.finish()
        if left is not None:
            rest = Flow(chain[number + 1 :], fused)
            made += [batch for batch in rest.push_finished(left, stage) if batch.length]
    return made


def ref(schema: Schema, position: int) -> FieldReference:
    return FieldReference(position, schema[position].type)


def lit(value: Any, type_: pa.DataType) -> Literal:
    return Literal(value, type_)


def call(function: str, *arguments: Expression, type_: pa.DataType | None = None) -> Call:
    return Call(function, arguments, pa.bool_() if type_ is None else type_)


def dictionary_of(words: Sequence[str]) -> Dictionary:
    return dictionary_from_arrow(pa.array(words, pa.string()))


def integers(
    r: random.Random, type_: pa.DataType, rows: int, low: int, high: int, *, nulls: float = 0.0, known: bool = False
) -> FixedColumn:
    """Numbers in [low, high] in the smallest dtype; anything lies under NULLs."""
    dtype = next(d for d in DTYPES if _holds(d, min(low, 0), high))
    limits = torch.iinfo(dtype)
    chance = np.random.default_rng(r.getrandbits(32))
    numbers = chance.integers(low, high, rows, dtype=np.int64, endpoint=True)
    numbers[chance.random(rows) < 0.05] = low
    numbers[chance.random(rows) < 0.05] = high
    validity = validity_of(r, rows, nulls)
    if validity is not None:
        garbage = chance.choice(np.array([limits.min, limits.max, low, 0]), rows)
        numbers = np.where(validity.numpy(), numbers, garbage)
    return FixedColumn(type_, torch.from_numpy(numbers).to(dtype), validity, (low, high) if known else None)


def _holds(dtype: torch.dtype, low: int, high: int) -> bool:
    return bool(torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max)


def floats(r: random.Random, rows: int, nulls: float) -> FixedColumn:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5])
    chance = np.random.default_rng(r.getrandbits(32))
    numbers = np.where(chance.random(rows) < 0.3, chance.choice(special, rows), chance.uniform(-100, 100, rows))
    return FixedColumn(pa.float64(), torch.from_numpy(numbers), validity_of(r, rows, nulls))


def booleans(r: random.Random, rows: int, nulls: float) -> FixedColumn:
    validity = validity_of(r, rows, 0.5)
    assert validity is not None
    return FixedColumn(pa.bool_(), validity, validity_of(r, rows, nulls))


def codes(r: random.Random, rows: int, dictionary: Dictionary, nulls: float) -> DictionaryColumn:
    numbers = integers(r, pa.int64(), rows, 0, len(dictionary) - 1).values
    return DictionaryColumn(pa.string(), numbers, dictionary, validity_of(r, rows, nulls))


def plain(r: random.Random, rows: int, type_: pa.DataType, pool: Sequence[Any], nulls: float) -> Column:
    """As Arrow has it: strings that are no codes, wide decimals; strings may lie elsewhere, as behind a join."""
    array = pa.array([None if r.random() < nulls else r.choice(pool) for _ in range(rows)], type_)
    column = batch_from_arrow(pa.table({"a": array})).columns[0]
    return take_late(column, torch.arange(rows)) if r.random() < 0.5 else column


def validity_of(r: random.Random, rows: int, nulls: float) -> torch.Tensor | None:
    return torch.from_numpy(np.random.default_rng(r.getrandbits(32)).random(rows) >= nulls) if nulls else None


def batch_of(*columns: Column) -> Batch:
    return Batch(columns, len(columns[0]), None)


def schema_of(*types: pa.DataType) -> Schema:
    return tuple(Field(f"c{number}", type_) for number, type_ in enumerate(types))
