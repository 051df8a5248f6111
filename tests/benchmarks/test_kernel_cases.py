"""The primitives that are measured exist, and their two forms do the same with the arguments of the benchmark."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import kernels
from benchmarks.kernel_cases import PRIMITIVES, larger
from pystachio.operators.kernels import Primitives, host, portable

ROWS = 1000


def test_each_case_is_of_a_primitive() -> None:
    """One without a case is no error, but the benchmark says so."""
    without = {name for name in vars(Primitives) if not name.startswith("_")} - set(PRIMITIVES)
    assert set(PRIMITIVES) <= set(vars(Primitives))
    assert any(note.startswith("primitives without") for note in kernels.notes()) == bool(without)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_both_forms_agree(name: str) -> None:
    arguments = PRIMITIVES[name][1](ROWS, np.random.default_rng(1))
    if name == "number_codes":  # the order of the numbers and the rows that stand for them are up to the form
        (codes, _), made = arguments, [getattr(module, name)(*arguments) for module in (host, portable)]
        for table, numbers, first in made:
            assert torch.equal(table[codes.long()], numbers.to(table.dtype) + 1)
            assert torch.equal(codes[first.long()][numbers.long()], codes)
        assert len(made[0][2]) == len(made[1][2]) == len(codes.unique())
        return
    if name == "group_rows":  # which of a group's rows is up to the form
        arguments_of = [getattr(module, name)(*arguments)[0] for module in (host, portable)]
        assert torch.equal(*arguments_of)
        return
    first, second = (getattr(module, name)(*arguments) for module in (host, portable))
    for one, other in zip(_parts(first), _parts(second), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _parts(result: object) -> tuple[object, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_the_larger_kernels_run() -> None:
    for _, ways in larger(ROWS, np.random.default_rng(1)).values():
        for run in ways.values():
            run()
