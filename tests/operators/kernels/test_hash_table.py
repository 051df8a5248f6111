"""The hash tables against a dict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.kernels import hash_rounds, host, portable
from pystachio.operators.kernels.hash_compiled import MOST_WORDS
from pystachio.operators.kernels.numbering import Numbering, capacity_for

EDGES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
KEYS = st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EDGES), st.integers(0, 8)), max_size=200)

both = pytest.mark.parametrize("number", [portable.number_keys, host.number_keys], ids=["portable", "host"])
Number = Callable[[torch.Tensor], Numbering]


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@both
@given(keys=KEYS)
def test_keys_are_numbered_without_gaps(number: Number, keys: list[int]) -> None:
    numbering = number(tensor(keys))
    numbers, first = numbering.numbers.tolist(), numbering.first.tolist()
    assert [keys[first[one]] for one in numbers] == keys
    assert sorted(set(numbers)) == list(range(len(set(keys))))
    assert first == sorted(first)
    assert [numbers[position] for position in first] == list(range(len(first)))


@both
@given(keys=KEYS, probes=KEYS)
def test_lookup_finds_what_was_inserted_and_nothing_else(number: Number, keys: list[int], probes: list[int]) -> None:
    numbering = number(tensor(keys))
    wanted = keys + probes + EDGES
    found = numbering.table().lookup(tensor(wanted)).tolist()
    expected = {key: one + 1 for key, one in zip(keys, numbering.numbers.tolist(), strict=True)}
    assert found == [expected.get(key, 0) for key in wanted]


@both
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 511, 512, 513, 100_000])
@pytest.mark.parametrize("kind", ["distinct", "equal", "few", "skewed", "late"])
def test_tables_that_grow(number: Number, rows: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(rows)
    anything = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    keys = {
        "distinct": anything,
        "equal": anything[:1].expand(rows),
        "few": anything % 7,
        "skewed": torch.where(torch.rand(rows, generator=generator) < 0.9, anything[0], anything),
        "late": torch.where(torch.arange(rows) < rows // 2, anything[0], anything),
    }[kind]
    expected, inverse = torch.unique(keys, return_inverse=True)
    numbering = number(keys)
    assert len(numbering.first) == len(expected)
    assert torch.equal(keys[numbering.first.long()][numbering.numbers.long()], keys)
    table = numbering.table()
    assert torch.equal(table.lookup(keys), numbering.numbers + 1)
    others = torch.randint(-(2**63), 2**63 - 1, (1000,), generator=generator)
    assert torch.equal(table.lookup(others) != 0, torch.isin(others, expected))
    assert len(inverse) == rows


@pytest.mark.parametrize("kernels", [portable, host], ids=["portable", "host"])
@pytest.mark.parametrize("width", [2, 3, 5, MOST_WORDS + 1])
@pytest.mark.parametrize("rows", [0, 1, 65, 3000, 100_000])
@pytest.mark.parametrize("spread", [1, 40, 2**62])
def test_rows_are_numbered_by_several_words(kernels: ModuleType, width: int, rows: int, spread: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    words = [torch.randint(-spread, spread, (rows,), generator=generator) for _ in range(width)]
    numbers, first, counts = kernels.number_words(words)
    known = list(zip(*(word.tolist() for word in words), strict=True))
    assert [known[row] for row in first[numbers.long()].tolist()] == known
    assert first.tolist() == sorted(first.tolist())
    assert numbers[first.long()].tolist() == list(range(len(set(known))))
    appeared = Counter(known)
    assert counts.tolist() == [appeared[known[row]] for row in first.tolist()]


@pytest.mark.parametrize("few", [0, 1 << 20])
def test_long_searches(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_rounds, "_FEW", few)
    keys = torch.arange(0, 30_000, 7)
    table = portable.number_keys(keys).table()
    probes = torch.arange(30_000)
    found = table.lookup(probes)
    assert torch.equal(found != 0, probes % 7 == 0)
    assert torch.equal(found[::7], torch.arange(1, len(keys) + 1, dtype=torch.int32))


def test_keys_that_share_a_home_slot_are_told_apart() -> None:
    capacity = capacity_for(300)
    candidates = torch.arange(2_000_000, dtype=torch.int64)
    crowded = candidates[hash_rounds.first_slots(candidates, capacity) == 5][:300]
    assert len(crowded) == 300
    table = portable.number_keys(crowded).table()
    assert table.lookup(crowded).tolist() == list(range(1, 301))
    others = candidates[hash_rounds.first_slots(candidates, capacity) == 5][300:600]
    assert not table.lookup(others).any()


def test_all_but_one_of_the_small_keys_are_taken() -> None:
    keys = torch.cat((torch.arange(5), torch.tensor([-(2**63), 2**63 - 1])))
    table = portable.number_keys(keys).table()
    assert table.empty not in keys.tolist()
    assert table.lookup(keys).tolist() == list(range(1, 8))
