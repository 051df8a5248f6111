"""Columns for generated tables: skewed choices, keys that no range describes, texts; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = npt.NDArray[Any]

ROWS_PER_GROUP = 250_000


def skewed(random: np.random.Generator, choices: int, rows: int, exponent: float = 1.0) -> Numbers:
    """Choices from 0 on, the n-th of them drawn with a probability proportional to n ** -exponent."""
    weights = np.cumsum(np.arange(1, choices + 1, dtype=np.float64) ** -exponent)
    found: Numbers = np.searchsorted(weights, random.random(rows) * weights[-1])
    return np.minimum(found, choices - 1)


def shuffled_skew(random: np.random.Generator, choices: int, rows: int, exponent: float = 1.0) -> Numbers:
    """As `skewed`, but a choice's number says nothing about its frequency."""
    return random.permutation(choices)[skewed(random, choices, rows, exponent)]


def random_keys(random: np.random.Generator, count: int) -> Numbers:
    """Different 64-bit numbers without a range or an order."""
    keys = np.unique(random.integers(-(2**62), 2**62, count + count // 100 + 10))
    return random.permutation(keys)[:count]


def picked(texts: Sequence[str], positions: Numbers) -> pa.Array:
    """The texts at the positions."""
    return pa.array(texts, pa.string()).take(pa.array(positions))


def with_nulls(random: np.random.Generator, values: Any, share: float) -> pa.Array:
    """The values, that share of them NULL."""
    missing = random.random(len(values)) < share
    if isinstance(values, np.ndarray):
        return pa.array(values, mask=missing)
    return pa.compute.if_else(pa.array(missing), None, values)


def generate(folder: Path, tables: Mapping[str, Callable[[], pa.Table]]) -> Path:
    """One Parquet file in `folder` for each table that has none yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in tables.items():
        target = folder / f"{name}.parquet"
        if not target.exists():
            partial = target.with_suffix(".partial")
            pq.write_table(make(), partial, row_group_size=ROWS_PER_GROUP, compression="snappy")
            partial.rename(target)
    return folder
