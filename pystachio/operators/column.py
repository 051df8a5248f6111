"""Columns: typed tensors in one of five representations.

The logical type is Arrow's, normalised by `normalise_type`: `string` and `binary` stand for all their layouts and
dictionary encoding is a representation, not a type. A column is immutable; kernels make new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.records import record

BLOCK_ENTRIES: Final = 64
"""So many of `BlockOffsets` have one base; as in native/views.h."""

Bounds = tuple[int, int]
"""An inclusive range that holds every valid value of a column; it need not be tight."""


def normalise_type(type_: pa.DataType) -> pa.DataType:
    """Arrow's type without its layout: string for large_string and string_view, the value type for a dictionary.

    Moments of any time zone are those of UTC: Parquet stores nothing else, and Substrait's type names no zone.
    """
    if pa.types.is_dictionary(type_):
        return normalise_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_decimal(type_):
        return pa.decimal128(min(type_.precision, 38), type_.scale)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, tz="UTC")
    return type_


@record(eq=False)
class FixedColumn:
    """One number per row.

    `values` is bool for booleans; float32 or float64 for floats; and any signed integer dtype that holds the values
    for integers, dates (days), times, timestamps and durations (in the type's unit) and decimals (scaled by
    10**scale). The dtype may be narrower than the logical type: arithmetic widens first. Values under a NULL are
    arbitrary but in bounds of the dtype. `validity` is bool, True where the value is not NULL; None means no NULLs.
    `bounds` is known for some integer-like columns (see `kernels.bounds_of`), always valid for non-NULL rows.
    """

    type: pa.DataType
    values: torch.Tensor
    validity: torch.Tensor | None = None
    bounds: Bounds | None = None

    def __len__(self) -> int:
        return self.values.shape[0]


@record(eq=False)
class WideDecimalColumn:
    """A decimal whose scaled values need 128 bits: value = high * 2**64 + (low as unsigned)."""

    type: pa.DataType
    high: torch.Tensor
    low: torch.Tensor
    validity: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.high.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class BlockOffsets:
    """Offsets in a quarter of their bytes, on a CPU: entry i is bases[i // BLOCK_ENTRIES] + within[i].

    `bases` is int64, `within` int16 to be read as unsigned and filled up to whole blocks; there are `entries`.
    """

    bases: torch.Tensor
    within: torch.Tensor
    entries: int

    @property
    def nbytes(self) -> int:
        return self.bases.nbytes + self.within.nbytes

    def expanded(self) -> torch.Tensor:
        """All entries, int64."""
        within = self.within.numpy().view(np.uint16).reshape(-1, BLOCK_ENTRIES)
        whole = np.add(self.bases.numpy()[:, None], within, dtype=np.int64)
        return torch.from_numpy(whole.reshape(-1)[: self.entries])


@record(eq=False)
class BytesColumn:
    """Variable-length values (string, binary): row i is data[offsets[i]:offsets[i + 1]].

    `offsets` is int64 of length rows + 1 and need not start at 0; `data` is uint8. In `places` whole columns of the
    hot cache may have `BlockOffsets`, where whoever asks for `offsets` has them made; only scans see those, and put out
    slices and rows of them, whose offsets are a tensor.
    """

    type: pa.DataType
    places: torch.Tensor | BlockOffsets
    data: torch.Tensor
    validity: torch.Tensor | None = None

    @property
    def offsets(self) -> torch.Tensor:
        return self.places if isinstance(self.places, torch.Tensor) else self.places.expanded()

    def __len__(self) -> int:
        return (self.places.shape[0] if isinstance(self.places, torch.Tensor) else self.places.entries) - 1


@record(eq=False)
class ViewColumn:
    """Variable-length values that lie in the memory of other columns, as in Arrow's view layouts: only on a CPU.

    `views` is int64 [rows, 2], contiguous: row i is the views[i, 1] bytes at the address views[i, 0]. `held` are the
    tensors (uint8) that all of them lie in. `text_bytes` is the sum of the lengths. `hashes` (int64 [rows]) are those
    of `kernels.texts.hash_texts`, if somebody has asked for them.
    """

    type: pa.DataType
    views: torch.Tensor
    held: tuple[torch.Tensor, ...]
    text_bytes: int
    validity: torch.Tensor | None = None
    hashes: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.views.shape[0]

    @property
    def held_bytes(self) -> int:
        """Bytes that cannot be freed before the column."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.held)


@dataclass(eq=False)
class Dictionary:
    """Distinct non-NULL values that codes refer to; immutable, compared by identity.

    Batches of one scan column share one object per file version where they can, so that equal identity means equal
    codes. `derived` holds what was made of the values once (their Arrow array, results of expressions). Dictionaries of
    one `family` are states of one that grows: a code that two of them have means the same in both.
    """

    values: BytesColumn | FixedColumn
    derived: dict[object, object] = field(default_factory=dict)
    family: object | None = None

    def __len__(self) -> int:
        return len(self.values)


@record(eq=False)
class DictionaryColumn:
    """`codes` are int8 to int64, in [0, len(dictionary)), also under NULLs unless the dictionary is empty."""

    type: pa.DataType
    codes: torch.Tensor
    dictionary: Dictionary
    validity: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.codes.shape[0]


Column = FixedColumn | WideDecimalColumn | BytesColumn | ViewColumn | DictionaryColumn
