"""Codes, ranges and pairs in C against those in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.kernels import host, portable, ranks
from pystachio.operators.kernels.keys import KeyCodes
from pystachio.operators.kernels.row_index import index_members, index_rows

GROUPS = st.lists(st.integers(0, 9), max_size=60)
DTYPES = st.sampled_from([torch.int32, torch.int64])


@given(GROUPS, DTYPES)
def test_codes_are_numbered_by_appearance(codes: list[int], dtype: torch.dtype) -> None:
    values = torch.tensor(codes, dtype=dtype)
    for kernels in (host, portable):
        occupants, numbers, first = kernels.number_codes(values, 10)
        assert [codes[first[number]] for number in numbers.tolist()] == codes
        assert sorted(set(numbers.tolist())) == list(range(len(set(codes)))) == list(range(len(first)))
        assert [int(occupants[code]) - 1 for code in codes] == numbers.tolist()
        assert {code for code in range(11) if occupants[code]} == set(codes)


@given(GROUPS, DTYPES)
def test_ranges(groups: list[int], dtype: torch.dtype) -> None:
    values = torch.tensor(groups, dtype=dtype)
    expected, order = portable.ranges(values, 10)
    offsets, found = host.ranges(values, 10)
    assert torch.equal(offsets, expected)
    assert (found is None) == (order is None) == (groups == sorted(groups))
    if found is not None and order is not None:
        assert torch.equal(found, order)
    wanted = torch.arange(10, dtype=dtype).flip(0)
    for ours, theirs in zip(host.ranges_of(offsets, wanted), portable.ranges_of(offsets, wanted), strict=True):
        assert torch.equal(ours, theirs)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 20), st.booleans())
def test_pairs(counts: list[int], limit: int, ordered: bool) -> None:
    lengths = torch.tensor(counts, dtype=torch.int32)
    starts = (7 * torch.arange(len(counts), dtype=torch.int32)) % 5
    order = torch.arange(10, dtype=torch.int32).flip(0) if ordered else None
    ours = list(host.pairs(starts, lengths, order, limit))
    theirs = list(portable.pairs(starts, lengths, order, limit))
    assert [len(probe) for probe, _ in ours] == [len(probe) for probe, _ in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert [part.tolist() for part in mine] == [part.tolist() for part in other]


def test_what_is_out_of_range_is_refused() -> None:
    if host.native.library() is None:
        pytest.skip("the C library is not built")
    for bad in (-1, 10, 2**40):
        codes = torch.tensor([0, bad])
        with pytest.raises(AssertionError):
            host.number_codes(codes, 10)
        with pytest.raises(AssertionError):
            ranks.number(codes, 10)
        with pytest.raises(AssertionError):
            host.ranges(codes, 10)
        with pytest.raises(AssertionError):
            host.ranges_of(torch.zeros(11, dtype=torch.int32), codes)
    three = torch.tensor([3], dtype=torch.int32)
    with pytest.raises(AssertionError):
        list(host.pairs(three, three, torch.zeros(5, dtype=torch.int32), 10))


@given(st.lists(st.integers(0, 300), max_size=60), DTYPES)
def test_ranks(codes: list[int], dtype: torch.dtype) -> None:
    if host.native.library() is None:
        pytest.skip("the C library is not built")
    numbering, distinct = ranks.number(torch.tensor(codes, dtype=dtype), 301), sorted(set(codes))
    assert numbering.numbers.tolist() == [distinct.index(code) for code in codes]
    assert [codes[row] for row in numbering.first.tolist()] == distinct
    found = numbering.table().lookup(torch.arange(302, dtype=dtype)).tolist()
    assert found == [distinct.index(code) + 1 if code in distinct else 0 for code in range(302)]


@given(st.lists(st.integers(0, 300), max_size=60), DTYPES)
def test_ranks_of_codes_that_never_fall(codes: list[int], dtype: torch.dtype) -> None:
    if host.native.library() is None:
        pytest.skip("the C library is not built")
    if codes != sorted(codes):
        assert ranks.of_ascending(torch.tensor(codes, dtype=dtype), 301) is None
        codes.sort()
    found = ranks.of_ascending(torch.tensor(codes, dtype=dtype), 301)
    if not codes:
        assert found is None
        return
    assert found is not None
    table, starts = found
    distinct = sorted(set(codes))
    asked = table.lookup(torch.arange(302, dtype=dtype)).tolist()
    assert asked == [distinct.index(code) + 1 if code in distinct else 0 for code in range(302)]
    if starts is None:
        assert len(distinct) == len(codes)
    else:
        assert starts.tolist() == [codes.index(code) for code in distinct]
    for bad in ([-1, *codes], [*codes, 301]):
        assert ranks.of_ascending(torch.tensor(bad, dtype=dtype), 301) is None


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(301, 20_000), st.booleans(), st.booleans())
def test_an_index_finds_the_rows_whatever_its_table(
    codes: list[int], span: int, allow_direct: bool, in_order: bool
) -> None:
    """Codes that are many, few and rare in their range; `span` stands for a row without a key."""
    if in_order:
        codes.sort()
    values = torch.tensor([*codes, span])
    wanted = torch.tensor([*range(301), span])
    expected = [[row for row, code in enumerate(codes) if code == asked] for asked in range(301)] + [[]]
    index = index_rows(KeyCodes(values, span), allow_direct=allow_direct)
    found = index.find(KeyCodes(wanted, span))
    if isinstance(found, torch.Tensor):
        assert [[row - 1] if row else [] for row in found.tolist()] == expected
    else:
        assert found.counts.tolist() == list(map(len, expected))
        rows: list[list[int]] = [[] for _ in expected]
        for pairs in found.pairs(7):
            assert pairs.probe is not None
            for asked, row in zip(pairs.probe.tolist(), pairs.build.tolist(), strict=True):
                rows[asked].append(row)
        assert [sorted(each) for each in rows] == expected
    members = index_members(KeyCodes(values, span), allow_direct=allow_direct)
    assert members.contains(KeyCodes(wanted, span)).tolist() == [bool(each) for each in expected]
