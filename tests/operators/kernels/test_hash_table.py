"""The hash table against a dict."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.kernels import hash_table

EDGES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
KEYS = st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EDGES), st.integers(0, 8)), max_size=200)


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@given(KEYS)
def test_every_row_has_a_representative_with_its_key(keys: list[int]) -> None:
    winners = hash_table.insert(tensor(keys)).winners.tolist()
    assert [keys[winner - 1] for winner in winners] == keys
    assert len(set(winners)) == len(set(keys))
    assert hash_table.all_win(hash_table.insert(tensor(keys)).winners) == (len(set(keys)) == len(keys))


@given(KEYS)
def test_groups_are_numbered_without_gaps(keys: list[int]) -> None:
    numbers, first = hash_table.number_groups(hash_table.insert(tensor(keys)).winners)
    assert [keys[position] for position in first.tolist()] == [keys[first[n]] for n in range(len(first))]
    assert [keys[int(first[number])] for number in numbers.tolist()] == keys
    assert sorted(set(numbers.tolist())) == list(range(len(set(keys))))


@pytest.mark.parametrize("few", [0, 1 << 20])
def test_long_searches(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_table, "_FEW", few)
    keys = torch.arange(0, 30_000, 7)
    table = hash_table.insert(keys).table()
    probes = torch.arange(30_000)
    found = table.lookup(probes)
    assert torch.equal(found != 0, probes % 7 == 0)
    assert torch.equal(found[::7], torch.arange(1, len(keys) + 1, dtype=torch.int32))


@given(KEYS, KEYS)
def test_lookup_finds_what_was_inserted_and_nothing_else(keys: list[int], probes: list[int]) -> None:
    insertion = hash_table.insert(tensor(keys))
    table = insertion.table()
    wanted = keys + probes + EDGES
    found = table.lookup(tensor(wanted)).tolist()
    for key, number in zip(wanted, found, strict=True):
        assert (keys[number - 1] == key) if number else key not in keys
    values = torch.arange(100, 100 + len(keys), dtype=torch.int32)
    described = insertion.table(values, -1).lookup(tensor(wanted)).tolist()
    assert [value - 99 if value >= 0 else 0 for value in described] == found


def test_keys_that_share_a_home_slot_are_told_apart() -> None:
    capacity = hash_table.capacity_for(300)
    candidates = torch.arange(2_000_000, dtype=torch.int64)
    crowded = candidates[hash_table.first_slots(candidates, capacity) == 5][:300]
    assert len(crowded) == 300
    table = hash_table.insert(crowded).table()
    assert table.lookup(crowded).tolist() == list(range(1, 301))
    others = candidates[hash_table.first_slots(candidates, capacity) == 5][300:600]
    assert not table.lookup(others).any()


def test_all_but_one_of_the_small_keys_are_taken() -> None:
    keys = torch.cat((torch.arange(5), torch.tensor([-(2**63), 2**63 - 1])))
    table = hash_table.insert(keys).table()
    assert table.empty not in keys.tolist()
    assert table.lookup(keys).tolist() == list(range(1, 8))
