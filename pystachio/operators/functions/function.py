"""What an entry of the registry is, and what its kernel is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa
import torch

from pystachio.operators.column import Column
from pystachio.operators.expressions import Literal

Operand = Column | Literal
"""A value per row, or one value for all rows."""

TypeRule = Callable[[Sequence[pa.DataType]], pa.DataType]
"""The result's type from the arguments' types, for plans that do not say."""


class NullRule(Enum):
    """What NULL arguments mean."""

    STRICT = auto()
    """The result is NULL where any argument is: the evaluator sees to it, the kernel's result needs no validity."""

    OWN = auto()
    """The kernel reads the arguments' validity and gives the result's."""


@dataclass(frozen=True, slots=True, eq=False)
class Invocation:
    """One call on one batch. At least one of `arguments` is a column; a strict function sees no NULL literal.

    `valid` (strict functions): True in rows in which no argument is NULL, None when that is all rows.
    """

    arguments: tuple[Operand, ...]
    type: pa.DataType
    rows: int
    device: torch.device
    valid: torch.Tensor | None = None


Kernel = Callable[[Invocation], Operand]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function by its canonical name.

    `subject` is the position of the argument that is given as a column (of one row) when all of them are constants;
    a kernel may insist on others being literals.
    """

    name: str
    result_type: TypeRule
    kernel: Kernel
    nulls: NullRule = NullRule.STRICT
    subject: int = 0


def always(type_: pa.DataType) -> TypeRule:
    """The type rule of a function whose result never depends on its arguments."""
    return lambda _: type_


def same_as_first(types: Sequence[pa.DataType]) -> pa.DataType:
    """The type rule of a function that keeps its first argument's type."""
    return types[0]
