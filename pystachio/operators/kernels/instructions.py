"""What programs are made of: the operations of the interpreter in native/program.h, and the registers they work on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final

import numpy as np
import torch

VECTOR_ROWS: Final = 1024
FEW_SLOTS: Final = 256
WAYS: Final = 4
"""States of at most so many slots have so many copies; as in program.h."""

_KINDS: Final = {
    dtype: number
    for number, dtype in enumerate(
        (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float32, torch.float64)
    )
} | {torch.uint8: 4}


class Operation(IntEnum):
    """As in program.h, in that order."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    LOAD_INTEGER = auto()
    LOAD_FLOAT = auto()
    LOAD_MASK = auto()
    INPUT_RANGE = auto()
    INPUT_COMPARE = auto()
    INPUT_MEMBER = auto()
    INPUT_BIT = auto()
    BIT = auto()
    BLOOM = auto()
    RANGE = auto()
    MEMBER = auto()
    COMPARE = auto()
    COMPARE_FLOATS = auto()
    AND = auto()
    OR = auto()
    NOT = auto()
    FILTER = auto()
    CONSTANT = auto()
    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    SCALE = auto()
    APPEND = auto()
    DIVIDE = auto()
    ADD_FLOATS = auto()
    SUBTRACT_FLOATS = auto()
    MULTIPLY_FLOATS = auto()
    DIVIDE_FLOATS = auto()
    TO_FLOAT = auto()
    FROM_MASK = auto()
    CHOOSE = auto()
    OFFSET = auto()
    GATHER = auto()
    GATHER_FLOAT = auto()
    HASH_FIND = auto()
    RANK = auto()
    EXPAND = auto()
    EXPAND_ALL = auto()
    FLAG = auto()
    PUT_INPUT = auto()
    PUT_TABLE = auto()
    PUT_INTEGER = auto()
    PUT_FLOAT = auto()
    PUT_MASK = auto()
    PUT_ROW = auto()
    FOLD_COUNT = auto()
    FOLD_SUM = auto()
    FOLD_MINIMUM = auto()
    FOLD_MAXIMUM = auto()
    FOLD_SUM_FLOATS = auto()
    BOUNDARY = auto()


class Comparison(IntEnum):
    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_EQUAL = 3


INSTRUCTION: Final = np.dtype(
    [(name, np.int32) for name in ("operation", "kind", "out", "a", "b", "c")] + [("x", np.int64), ("y", np.int64)]
)


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A value per row; a mask has one byte, any other register eight."""

    is_mask: bool


def kind_of(dtype: torch.dtype) -> int:
    """The number of a dtype as an element of columns and tables."""
    return _KINDS[dtype]


def signed(value: int) -> int:
    """64 bits as a signed number."""
    return value - (1 << 64) if value >= 1 << 63 else value
