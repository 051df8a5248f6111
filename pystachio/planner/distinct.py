"""How many distinct values a column has, from what its Parquet footer says about sizes and ranges.

A dictionary-encoded chunk of n values with d distinct ones of w bytes takes d * w bytes of dictionary and
n * ceil(log2 d) bits of codes. The footer gives the sum, and d follows. How far the chunks' values are the same values
follows from how their ranges overlap.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pystachio.operators.table import ColumnChunk

_LENGTH_BYTES = 4
_PLAIN = 1.02
"""A chunk that takes this multiple of its plain size has fallen back from its dictionary."""

_SORTED = 1.5
_UNIQUE = 0.98
_UNIQUE_DOMAIN = 8
"""Where nearly all values of a chunk differ, it tells only that the domain is some times larger."""

_STEPS = 40
_LAST_STEP = 1e-5
"""Of the domain. The step after it would be its square."""


@dataclass(frozen=True, slots=True)
class CountedRun:
    """`distinct` non-NULL values were counted in `rows` adjacent rows: for columns whose footers do not tell."""

    distinct: int
    rows: int


def distinct_from_chunks(
    chunks: Sequence[tuple[ColumnChunk, int]], type_: pa.DataType, run: CountedRun | None = None
) -> float | None:
    """Distinct non-NULL values of a column given as its chunks and their rows.

    Chunks without a dictionary are taken to be like `run`, or else like those with one; None when there is neither.
    """
    filled = [(chunk, rows) for chunk, rows in chunks if chunk.has_values]
    if not filled:
        return 0.0
    rows = float(sum(n for _, n in filled))
    limits = [(chunk.statistics.low, chunk.statistics.high) for chunk, _ in filled]
    span = value_span(limits)
    most = rows if span is None else min(rows, float(span))
    if pa.types.is_boolean(type_):
        return min(2.0, most)
    shared = overlap(limits)
    fixed = None if _is_text(type_) else _fixed_width(type_)
    domains = [(_chunk_domain(chunk, n, fixed) or _domain_like(run, n, shared), n) for chunk, n in filled]
    known = [(domain, n) for domain, n in domains if domain is not None]
    covered = sum(n for _, n in known)
    if covered * 2 < rows:
        return None
    return min(most, sum(domain for domain, _ in known) * (rows / covered) / shared)


def _domain_like(run: CountedRun | None, rows: int, shared: float) -> float | None:
    """The domain of a chunk that is like the run. In a sorted column it grows with the rows."""
    if run is None or not run.rows:
        return None
    if run.distinct >= _UNIQUE * run.rows:
        return float(_UNIQUE_DOMAIN * rows)
    if shared < _SORTED:
        return run.distinct * rows / run.rows
    return _domain(float(run.distinct), run.rows)


def overlap(limits: Sequence[tuple[Any, Any]]) -> float:
    """In how many chunks' ranges a value of the column lies on average: 1 for a sorted column, up to their number."""
    lows, highs = zip(*limits, strict=True)
    if not set(map(type, lows)) <= {int, float}:
        return float(len(limits))
    span = float(max(highs) - min(lows))
    if not span or math.isinf(span):
        return float(len(limits))
    return min(float(len(limits)), max(1.0, float(sum(map(operator.sub, highs, lows))) / span))


def value_span(limits: Sequence[tuple[Any, Any]]) -> int | None:
    """Integers in the range of an integer-like column; None when a chunk's range is unknown."""
    lows, highs = zip(*limits, strict=True)
    return int(max(highs) - min(lows)) + 1 if set(map(type, lows)) == {int} else None


def _chunk_domain(chunk: ColumnChunk, rows: int, fixed_width: float | None) -> float | None:
    """How many values the chunk's were drawn from, given how many different ones it holds. `fixed_width`: None of
    text."""
    if not chunk.has_dictionary:
        return None
    width = _text_width(chunk, rows) if fixed_width is None else fixed_width
    if width is None:
        return None
    if not chunk.coded or (fixed_width is not None and chunk.decoded >= _PLAIN * rows * width):
        return float(_UNIQUE_DOMAIN * rows)
    return _domain(_distinct_in_chunk(chunk.decoded, rows, width), rows)


def _distinct_in_chunk(nbytes: int, rows: int, width: float) -> float:
    """The largest d with d * width + rows * ceil(log2 d) / 8 <= nbytes, but at least 1 and at most `rows`."""
    bits = 0
    while 1 << bits < rows and ((1 << bits) + 1) * width + rows * (bits + 1) / 8 <= nbytes:
        bits += 1
    return float(max(1, min(rows, 1 << bits, int((nbytes - rows * bits / 8) / width))))


def _domain(distinct: float, rows: int) -> float:
    """The number of equally frequent values of which `rows` draws show `distinct` (the inverse of Cardenas 1975).

    By Newton's method from below: the expected number is concave, so that no step goes too far.
    """
    if distinct >= _UNIQUE * rows:
        return float(_UNIQUE_DOMAIN * distinct)
    domain = distinct
    if domain <= 1:
        return domain
    for _ in range(_STEPS):
        missed = math.exp(rows * math.log1p(-1.0 / domain))
        step = (distinct - domain * (1.0 - missed)) / (1.0 - missed * (1.0 + rows / (domain - 1.0)))
        domain += step
        if step <= _LAST_STEP * domain:
            break
    return domain


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _text_width(chunk: ColumnChunk, rows: int) -> float | None:
    """Bytes of a string in the dictionary page; its length is guessed when the footer does not say."""
    if chunk.text_bytes is not None and chunk.text_bytes >= 0:
        return _LENGTH_BYTES + chunk.text_bytes / rows
    low, high = chunk.statistics.low, chunk.statistics.high
    return None if low is None else _LENGTH_BYTES + (len(low) + len(high)) / 2


def _fixed_width(type_: pa.DataType) -> float:
    """Bytes of a value in the dictionary page."""
    if pa.types.is_decimal(type_):
        return 4.0 if type_.precision <= 9 else 8.0 if type_.precision <= 18 else 16.0
    return max(4.0, int(type_.bit_width) / 8)
