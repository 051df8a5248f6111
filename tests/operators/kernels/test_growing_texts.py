"""Distinct strings that grow against a Python dictionary, and what columns over their states have in common."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, Dictionary, DictionaryColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.growing_texts import GrowingTexts
from pystachio.operators.kernels.selection import concat
from pystachio.operators.kernels.strings import translate

MOST = {"most_values": 1 << 20, "most_bytes": 1 << 30}


def texts(values: list[str]) -> BytesColumn:
    column = column_from_arrow(pa.array(values, pa.string()))
    assert isinstance(column, BytesColumn)
    return column


@pytest.mark.parametrize("compiled", [True, False])
def test_numbers_stay_and_follow_each_other(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "library", lambda *_: None)
    rng, known, growing = random.Random(7), dict[str, int](), GrowingTexts(pa.string())
    before: list[tuple[BytesColumn, int]] = []
    for step in range(40):
        values = [
            "",
            *(f"{rng.randrange(40 * step + 1)}" * rng.choice((1, 1, 1, 9)) for _ in range(rng.randrange(600))),
        ]
        numbers = growing.add(texts(values), **MOST)
        assert numbers is not None
        for value in values:
            known.setdefault(value, len(known))
        assert numbers.tolist() == [known[value] for value in values]
        assert column_to_arrow(growing.values).to_pylist() == list(known)
        before.append((growing.values, len(known)))
    for state, size in before:
        assert column_to_arrow(state).to_pylist() == list(known)[:size], "what was handed out does not change"


@pytest.mark.parametrize("limit", [{"most_values": 2}, {"most_bytes": 5}])
def test_too_many_add_nothing(limit: dict[str, int]) -> None:
    growing = GrowingTexts(pa.string())
    assert growing.add(texts(["abc", "d", "abc"]), **MOST) is not None
    assert growing.add(texts(["d", "e", "fg"]), **(MOST | limit)) is None
    assert column_to_arrow(growing.values).to_pylist() == ["abc", "d"]
    again = growing.add(texts(["d", "abc"]), **(MOST | limit))
    assert again is not None
    assert again.tolist() == [1, 0]


def test_states_of_one_dictionary_share_their_codes() -> None:
    growing = GrowingTexts(pa.string())
    states = []
    for values in (["a", "b"], ["c"], ["d", "e"]):
        codes = growing.add(texts(values), **MOST)
        assert codes is not None
        states.append(DictionaryColumn(pa.string(), codes, Dictionary(growing.values, family=growing)))
    whole = concat([states[1], states[2], states[0]])
    assert isinstance(whole, DictionaryColumn)
    assert whole.dictionary is states[2].dictionary
    assert column_to_arrow(whole).to_pylist() == ["c", "d", "e", "a", "b"]
    assert translate(states[0].dictionary, states[2].dictionary).tolist() == [0, 1]
    assert translate(states[2].dictionary, states[1].dictionary).tolist() == [0, 1, 2, -1, -1]
    other = DictionaryColumn(pa.string(), states[0].codes, Dictionary(texts(["e", "z"])))
    mixed = concat([states[0], other, states[2]])
    assert column_to_arrow(mixed).to_pylist() == ["a", "b", "e", "z", "d", "e"]


@pytest.mark.parametrize("compiled", [True, False])
def test_strings_that_are_distinct_are_taken_as_they_come(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are found from then on, as others are."""
    if not compiled:
        monkeypatch.setattr(native, "library", lambda *_: None)
    first = texts(["b", "", "äh", "c"])
    growing = GrowingTexts(pa.string())
    numbers = growing.add(first, most_values=10, most_bytes=100, are_distinct=True)
    assert numbers is not None
    assert numbers.tolist() == [0, 1, 2, 3]
    assert column_to_arrow(growing.values).to_pylist() == ["b", "", "äh", "c"]
    taken = growing.values
    for added, expected in ((["c", "x", "b"], [3, 4, 0]), (["x", "y", ""], [4, 5, 1])):
        numbers = growing.add(texts(added), most_values=10, most_bytes=100, are_distinct=True)
        assert numbers is not None
        assert numbers.tolist() == expected
    assert column_to_arrow(growing.values).to_pylist() == ["b", "", "äh", "c", "x", "y"]
    assert column_to_arrow(taken).to_pylist() == ["b", "", "äh", "c"]
    assert column_to_arrow(first).to_pylist() == ["b", "", "äh", "c"]
    for most_values, most_bytes in ((3, 100), (4, 4)):
        small = GrowingTexts(pa.string())
        assert small.add(first, most_values=most_values, most_bytes=most_bytes, are_distinct=True) is None
