"""Orders by words against numpy's stable sort."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pystachio.operators.kernels import radix_sort

pytestmark = pytest.mark.usefixtures("instructions")

LOW, HIGH = -(2**63), 2**63 - 1


def words_of(kind: str, rows: int, chance: np.random.Generator) -> np.ndarray:
    match kind:
        case "any":
            return chance.integers(LOW, HIGH, rows, endpoint=True)
        case "few":
            return chance.integers(-3, 3, rows)
        case "equal":
            return np.full(rows, -7)
        case "ends":
            return chance.choice([LOW, LOW + 1, -1, 0, 1, HIGH - 1, HIGH], rows)
        case "ascending":
            return np.sort(chance.integers(0, rows + 1, rows))
        case "descending":
            return np.arange(rows)[::-1] * 1000
        case "skewed":
            return np.where(chance.random(rows) < 0.99, chance.integers(0, 5, rows), chance.integers(LOW, HIGH, rows))
        case _:
            return (chance.random(rows) ** 8 * 2**62).astype(np.int64)


KINDS = ("any", "few", "equal", "ends", "ascending", "descending", "skewed", "crowded")


@pytest.mark.parametrize("rows", [1, 2, 24, 25, 300, 5_000, 70_000])
@pytest.mark.parametrize("kind", KINDS)
def test_order(kind: str, rows: int) -> None:
    chance = np.random.default_rng(rows)
    words = [words_of(kind, rows, chance), *(words_of(other, rows, chance) for other in chance.choice(KINDS, 2))]
    for count in range(1, len(words) + 1):
        expected = np.lexsort(words[:count][::-1])
        tensors = [torch.from_numpy(np.ascontiguousarray(word)) for word in words[:count]]
        assert np.array_equal(radix_sort.sorted_rows(tensors).numpy(), expected)
        for wanted in {0, 1, rows // 2, rows - 1, rows, rows + 5}:
            assert np.array_equal(radix_sort.sorted_rows(tensors, wanted).numpy(), expected[:wanted])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", [1, 2, 7])
@pytest.mark.parametrize("workers", [1, 2, 100])
def test_shares_in_any_order(kind: str, shares: int, workers: int) -> None:
    chance = np.random.default_rng(shares)
    words = [words_of(kind, 20_000, chance), words_of("few", 20_000, chance)]
    split = radix_sort.SplitRows(
        [torch.from_numpy(np.ascontiguousarray(word)) for word in words], 15_000, shares, workers
    )
    assert 1 <= len(split.shares) <= shares
    order = list(split.shares)
    random.Random(shares).shuffle(order)
    split.order.fill_(-1)
    for share in order:
        split.sort(share)
    assert np.array_equal(split.order.numpy(), np.lexsort(words[::-1])[:15_000])


def test_shares_are_alike() -> None:
    words = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 40, 100_000))
    split = radix_sort.SplitRows([words], shares=4)
    assert len(split.shares) == 4
    assert split.nbytes >= 100_000 * (16 + 16 + 8)


@pytest.mark.parametrize(("kind", "most"), [("outlier", 5_000), ("sentinels", 22_000), ("crowded", 26_000)])
def test_one_value_far_from_all_others_leaves_work_for_every_worker(kind: str, most: int) -> None:
    """Equal words are one part; what is crowded at one end is split again, once."""
    chance = np.random.default_rng(1)
    words = chance.integers(0, 1 << 40, 100_000)
    if kind == "crowded":
        words = words_of("crowded", 100_000, chance)
    else:
        words[: 1 if kind == "outlier" else 20_000] = 2**62
    split = radix_sort.SplitRows([torch.from_numpy(words)], shares=32, workers=8)
    lengths = [split.rows_of(share) for share in split.shares]
    assert sum(lengths) == 100_000
    assert max(lengths) <= most
