"""Tables that no trick helps with: keys without ranges, long texts as keys, NULLs, one heavy key, unique strings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.data import ROOT
from benchmarks.random_columns import generate, random_keys, with_nulls

FACTS = 10_000_000
"""Rows, and different values of `facts.id`, at scale 1."""

STEPS = 29
"""Joins of the longest chain: thirty tables."""


def folder(scale: float) -> Path:
    """The tables at this scale, generated once."""
    rows = int(FACTS * scale)
    random = np.random.default_rng(7)
    keys = random_keys(random, max(rows // 10, 1000))
    codes = [f"urn:example:tenant-0001:document:{high:016x}{low:016x}" for low, high in zip(*_halves(random, keys))]
    places = random_keys(np.random.default_rng(8), 20_000)
    return generate(
        ROOT / f"hostile-{scale:g}",
        {
            "dimension": lambda: _dimension(np.random.default_rng(9), keys, codes),
            "facts": lambda: _facts(np.random.default_rng(10), rows, keys),
            "documents": lambda: _documents(np.random.default_rng(11), rows // 4, codes),
            "step": lambda: _steps(np.random.default_rng(12), places),
            "walk": lambda: _walks(np.random.default_rng(13), rows // 50, places),
        },
    )


def _halves(random: np.random.Generator, keys: np.ndarray) -> tuple[list[int], list[int]]:
    return random.integers(0, 2**62, len(keys)).tolist(), random.integers(0, 2**62, len(keys)).tolist()


def _dimension(random: np.random.Generator, keys: np.ndarray, codes: list[str]) -> pa.Table:
    return pa.table(
        {
            "key": keys,
            "code": codes,
            "kind": random.integers(0, 25, len(keys)).astype(np.int32),
            "weight": random.integers(0, 1000, len(keys)),
        }
    )


def _facts(random: np.random.Generator, rows: int, keys: np.ndarray) -> pa.Table:
    """`id` is unique; half of `heavy` is one value; every other value of `half` is NULL, at random."""
    drawn = keys[random.integers(0, len(keys), rows)]
    misses = random.integers(-(2**62), 2**62, rows)
    return pa.table(
        {
            "id": random_keys(random, rows),
            "key": np.where(random.random(rows) < 0.7, drawn, misses),
            "heavy": np.where(random.random(rows) < 0.5, keys[0], keys[random.integers(0, len(keys), rows)]),
            "half": with_nulls(random, drawn[::-1], 0.5),
            "amount": with_nulls(random, random.integers(-1_000_000, 1_000_000, rows), 0.5),
            "price": np.round(random.lognormal(4, 2, rows), 3),
            "small": random.integers(0, 10, rows).astype(np.int16),
        }
    )


def _documents(random: np.random.Generator, rows: int, codes: list[str]) -> pa.Table:
    """`code` is 68 characters of which the first 32 are always the same; no `body` occurs twice."""
    numbers = random.integers(0, 2**62, (rows, 3)).tolist()
    return pa.table(
        {
            "code": pa.array(codes).take(pa.array(random.integers(0, len(codes), rows))),
            "body": [f"{a:x} lorem {b:x} ipsum {c:x} {a ^ b:x} dolor" for a, b, c in numbers],
            "size": random.integers(0, 100_000, rows),
        }
    )


def _steps(random: np.random.Generator, places: np.ndarray) -> pa.Table:
    """From each place to another one."""
    return pa.table({"place": places, "next": random.permutation(places), "cost": random.integers(0, 9, len(places))})


def _walks(random: np.random.Generator, rows: int, places: np.ndarray) -> pa.Table:
    return pa.table({"start": places[random.integers(0, len(places), rows)], "paid": random.integers(0, 99, rows)})
