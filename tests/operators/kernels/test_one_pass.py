"""What is one pass over values where the library is there: none of the passes over temporaries is made."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.states import State, StateKind, lift, merge, state_types
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.functions import casts
from pystachio.operators.functions.casts import cast
from pystachio.operators.kernels import extremes
from pystachio.operators.kernels.extremes import extreme
from pystachio.operators.kernels.grouping import Grouping, group_rows

KEYS = column_from_arrow(pa.array([7, 7, 9, 9, 9, 7]))
FLOATS = column_from_arrow(pa.array([1.5, None, -2.0, 4.0, 1.0, 2.5]))
TEXTS = column_from_arrow(pa.array(["b", "a", "z", None, "c", "ab"], pa.large_string()))


def grouping() -> Grouping:
    return group_rows([KEYS], 6, torch.device("cpu"), allow_direct=True)


def other_way(*given: Any, **named: Any) -> NoReturn:
    raise AssertionError("a pass that is not needed")


def of_kind(kind: StateKind) -> list[list[Any]]:
    state = State(kind, (0,), None, state_types(kind, pa.float64()))
    lifted = lift(kind, [FLOATS], None, 6, torch.device("cpu"))
    return [column_to_arrow(column).to_pylist() for column in merge(state, lifted, grouping())]


def test_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grouping, "spread", other_way)
    counts, means, squares = of_kind(StateKind.MOMENTS)
    assert (counts, means, squares) == ([2, 3], [2.0, 1.0], [0.5, 18.0])


def test_sums_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "scatter_add_", other_way)
    assert of_kind(StateKind.FLOAT_SUM) == [[4.0, 3.0]]


def test_extremes_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes, "ordered_bits", other_way)
    assert column_to_arrow(extreme(FLOATS, grouping(), largest=True)).to_pylist() == [2.5, 4.0]


def test_extremes_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extremes, "text_ranks", other_way)
    assert column_to_arrow(extreme(TEXTS, grouping(), largest=False)).to_pylist() == ["a", "c"]


def test_casts_to_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts, "primitives", other_way)
    assert column_to_arrow(cast(FLOATS, pa.int16())).to_pylist() == [2, None, -2, 4, 1, 2]
