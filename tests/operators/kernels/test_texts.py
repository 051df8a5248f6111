"""Strings by position and by value: C against Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, Dictionary
from pystachio.operators.kernels import native
from pystachio.operators.kernels.texts import encode_texts, find_texts, number_texts, take_texts

TEXTS = st.lists(
    st.one_of(st.none(), st.text(max_size=80), st.sampled_from(["", "a", "ab", "x" * 15, "x" * 16, "x" * 17])),
    max_size=60,
)


def column(texts: list[str | None]) -> BytesColumn:
    made = column_from_arrow(pa.array(texts, pa.large_string()))
    assert isinstance(made, BytesColumn)
    return made


def texts_of(found: BytesColumn) -> list[str | None]:
    return list(column_to_arrow(found).to_pylist())


def check(texts: list[str | None], probes: list[str | None]) -> None:
    codes, dictionary = encode_texts(column(texts))
    assert isinstance(dictionary.values, BytesColumn)
    numbers, count = number_texts(column(texts))
    assert torch.equal(numbers, codes)
    assert count == len(dictionary)
    values = texts_of(dictionary.values)
    assert values == list(dict.fromkeys(text for text in texts if text is not None))
    for code, text in zip(codes.tolist(), texts, strict=True):
        assert code == (0 if text is None else values.index(text))
    wanted = [*texts, *probes]
    expected = [-1 if text is None or text not in values else values.index(text) for text in wanted]
    assert find_texts(column(wanted), dictionary).tolist() == expected
    assert find_texts(column(wanted), Dictionary(dictionary.values)).tolist() == expected


@pytest.mark.parametrize("compiled", [True, False])
@given(texts=TEXTS, probes=TEXTS)
def test_numbering_and_finding(compiled: bool, texts: list[str | None], probes: list[str | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda *_: None)
        check(texts, probes)


@pytest.mark.parametrize("compiled", [True, False])
@given(texts=TEXTS.filter(bool), data=st.data(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_taking(compiled: bool, texts: list[str | None], data: st.DataObject, dtype: torch.dtype) -> None:
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=100))
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda *_: None)
        taken = take_texts(column(texts), torch.tensor(rows, dtype=dtype))
    assert texts_of(taken) == [texts[row] or "" for row in rows]


@pytest.mark.parametrize("position", [-1, 2, 2**40])
def test_positions_outside_are_refused(position: int) -> None:
    with pytest.raises(IndexError):
        take_texts(column(["a", "b"]), torch.tensor([0, position]))


def test_many_strings_and_a_slice() -> None:
    texts: list[str | None] = [f"{'long ' * (row % 9)}{row % 20_011}" for row in range(50_000)]
    whole = column(texts)
    part = BytesColumn(whole.type, whole.offsets[1000:], whole.data)
    codes, dictionary = encode_texts(part)
    assert isinstance(dictionary.values, BytesColumn)
    values = texts_of(dictionary.values)
    assert [values[code] for code in codes.tolist()] == texts[1000:]
    assert len(set(values)) == len(values)
