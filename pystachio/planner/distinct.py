"""How many distinct values a column has, from what its Parquet footer says about sizes and ranges.

A dictionary-encoded chunk of n values with d distinct ones of w bytes takes d * w bytes of dictionary and
n * ceil(log2 d) bits of codes. The footer gives the sum, and d follows. How far the chunks' values are the same values
follows from how their ranges overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pystachio.operators.parquet.column_chunks import ColumnChunks

_LENGTH_BYTES = 4
_PLAIN = 1.02
"""A chunk that takes this multiple of its plain size has fallen back from its dictionary."""

_MOST_CHUNKS = 8
"""Chunks whose dictionaries are looked at."""

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


def distinct_from_chunks(chunks: ColumnChunks, type_: pa.DataType, run: CountedRun | None = None) -> float | None:
    """Distinct non-NULL values of a column.

    Chunks without a dictionary are taken to be like `run`, or else like those with one; None when there is neither.
    A few chunks, evenly spread, stand for all.
    """
    filled = np.flatnonzero(chunks.has_values)
    if not len(filled):
        return 0.0
    rows = float(chunks.values[filled].sum(dtype=np.float64))
    limits = _limits(chunks, filled, type_)
    span = None if limits is None else limits.span
    most = rows if span is None else min(rows, span)
    if pa.types.is_boolean(type_):
        return min(2.0, most)
    shared = float(len(filled)) if limits is None else limits.overlap
    fixed = None if _is_text(type_) else _fixed_width(type_)
    parts = min(_MOST_CHUNKS, len(filled))
    seen = filled[(2 * np.arange(parts) + 1) * len(filled) // (2 * parts)]
    domains = [
        (_chunk_domain(chunk, fixed is not None) or _domain_like(run, chunk.rows, shared), chunk.rows)
        for chunk in _dictionaries(chunks, seen, fixed)
    ]
    known = [(domain, n) for domain, n in domains if domain is not None]
    covered = sum(n for _, n in known)
    if covered * 2 < sum(n for _, n in domains):
        return None
    return float(min(most, sum(domain for domain, _ in known) * (rows / covered) / shared))


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the ranges of a column's chunks tell. `span`: values between the least and the greatest, of integers.

    `overlap`: in how many chunks' ranges a value of the column lies on average: 1 for a sorted column, up to their
    number.
    """

    span: float | None
    overlap: float


def _limits(chunks: ColumnChunks, filled: np.ndarray, type_: pa.DataType) -> _Limits | None:
    """None where they are no numbers, or not all known."""
    if _is_text(type_):
        return None
    ranges = chunks.ranges
    if ranges is not None:
        if not ranges.known[filled].all():
            return None
        lows, highs = ranges.low[filled], ranges.high[filled]
    else:
        known = [chunks.statistics[group] for group in filled.tolist()]
        if not {type(each.low) for each in known} <= {int, float}:
            return None
        lows = np.array([float(each.low) for each in known])
        highs = np.array([float(each.high) for each in known])
    width = float(highs.max()) - float(lows.min())
    most = float(len(filled))
    if not width or not math.isfinite(width):
        return _Limits(1.0 if not width and ranges is not None else None, most)
    within = float((highs.astype(np.float64) - lows.astype(np.float64)).sum())
    return _Limits(width + 1.0 if ranges is not None else None, min(most, max(1.0, within / width)))


def _domain_like(run: CountedRun | None, rows: int, shared: float) -> float | None:
    """The domain of a chunk that is like the run. In a sorted column it grows with the rows."""
    if run is None or not run.rows:
        return None
    if run.distinct >= _UNIQUE * run.rows:
        return float(_UNIQUE_DOMAIN * rows)
    if shared < _SORTED:
        return run.distinct * rows / run.rows
    return _domain(float(run.distinct), run.rows)


class _Dictionary(NamedTuple):
    """What the footer says of a chunk and its dictionary; `width` is of a value in it, in bytes, None where unknown."""

    rows: int
    decoded: int
    is_there: bool
    is_used: bool
    width: float | None


def _dictionaries(chunks: ColumnChunks, groups: np.ndarray, fixed_width: float | None) -> list[_Dictionary]:
    """`fixed_width`: None of text."""
    rows = chunks.values[groups].tolist()
    if fixed_width is None:
        widths = list(map(_text_width, chunks.text_bytes[groups].tolist(), rows, repeat(chunks), groups.tolist()))
    else:
        widths = [fixed_width] * len(rows)
    numbers = (chunks.decoded[groups], chunks.has_dictionary[groups], chunks.coded[groups])
    return list(map(_Dictionary, rows, *(array.tolist() for array in numbers), widths))


def _chunk_domain(chunk: _Dictionary, has_fixed_width: bool) -> float | None:
    """How many values the chunk's were drawn from, given how many different ones it holds."""
    if not chunk.is_there or chunk.width is None:
        return None
    if not chunk.is_used or (has_fixed_width and chunk.decoded >= _PLAIN * chunk.rows * chunk.width):
        return float(_UNIQUE_DOMAIN * chunk.rows)
    return _domain(_distinct_in_chunk(chunk.decoded, chunk.rows, chunk.width), chunk.rows)


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


def _text_width(nbytes: int, rows: int, chunks: ColumnChunks, group: int) -> float | None:
    """Bytes of a string in the dictionary page; its length is guessed when the footer does not say."""
    if nbytes >= 0:
        return _LENGTH_BYTES + nbytes / rows
    low, high = chunks.statistics[group].low, chunks.statistics[group].high
    return _LENGTH_BYTES + (len(low) + len(high)) / 2 if isinstance(low, bytes) else None


def _fixed_width(type_: pa.DataType) -> float:
    """Bytes of a value in the dictionary page."""
    if pa.types.is_decimal(type_):
        return 4.0 if type_.precision <= 9 else 8.0 if type_.precision <= 18 else 16.0
    return max(4.0, int(type_.bit_width) / 8)
