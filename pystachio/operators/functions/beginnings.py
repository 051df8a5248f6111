"""Comparisons of the first characters of texts with constants, where no text need be cut for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

import torch

from pystachio.operators.column import BytesColumn, Column
from pystachio.operators.expressions import Call, Expression, FieldReference, InList, Literal
from pystachio.operators.kernels import native
from pystachio.operators.kernels.selection import device_of
from pystachio.operators.kernels.substrings import MOST_BEGINNING, match_beginnings

_MOST_TEXTS: Final = 32
"""Of more it is better to look a text up than to compare it with each."""


def compared_beginning(expression: Expression) -> tuple[FieldReference, int, tuple[bytes, ...]] | None:
    """For `substring(field, 1, n)` that is to be equal to a constant, or to one of several: the field, n, and those of
    the constants that it may be equal to. None for anything else, and where n characters may be other than n bytes."""
    match expression:
        case InList(operand=operand, options=options):
            pass
        case (
            Call(function="equal", arguments=(Literal() as option, operand))
            | Call(function="equal", arguments=(operand, option))
        ):
            options = (option,)
        case _:
            return None
    match operand:
        case Call(
            function="substring",
            arguments=(FieldReference() as field, Literal(value=1), Literal(value=int() as length)),
        ):
            texts = _texts(options)
            if texts is None or not 0 < length <= MOST_BEGINNING:
                return None
            return field, length, tuple(each for each in texts if len(each) <= length)
        case _:
            return None


def _texts(options: Sequence[Expression]) -> list[bytes] | None:
    """Those of constants, in which each character is a byte: only such a text begins with them."""
    if len(options) > _MOST_TEXTS:
        return None
    texts: list[bytes] = []
    for option in options:
        if not (isinstance(option, Literal) and isinstance(option.value, str) and option.value.isascii()):
            return None
        texts.append(option.value.encode())
    return texts


def can_compare_beginnings(column: Column) -> TypeGuard[BytesColumn]:
    """Whether they are plain texts on the host, where a library compares them."""
    return isinstance(column, BytesColumn) and device_of(column).type == "cpu" and native.library() is not None


def begins_with_any(column: BytesColumn, length: int, texts: Sequence[bytes]) -> torch.Tensor:
    """bool [rows]: whether the first `length` bytes of each text, or all where it has fewer, are one of `texts`."""
    offsets, data = column.offsets.contiguous(), column.data.contiguous()
    return torch.from_numpy(match_beginnings(offsets.numpy(), data.numpy(), length, texts))
