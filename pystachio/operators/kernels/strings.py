"""Dictionaries: making codes, bringing columns to one dictionary, decoding. Sizes are those of the distinct values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.operators.arrow import (
    codes_from_arrow,
    column_from_arrow,
    column_to_arrow,
    dictionary_from_arrow,
    large_array,
)
from pystachio.operators.column import BytesColumn, Dictionary, DictionaryColumn, FixedColumn, ViewColumn
from pystachio.operators.kernels.host_memory import as_dtype
from pystachio.operators.kernels.texts import encode_texts, find_texts, number_texts
from pystachio.operators.kernels.views import materialised
from pystachio.operators.placement import column_on, on_device, table_on

_HOST: Final = torch.device("cpu")


def to_codes(column: BytesColumn | ViewColumn | FixedColumn | DictionaryColumn) -> DictionaryColumn:
    """The column with its distinct values in a dictionary (int32 codes in order of first appearance)."""
    if isinstance(column, DictionaryColumn):
        return column
    if isinstance(column, ViewColumn):
        column = materialised(column)
    device = _device(column)
    if isinstance(column, BytesColumn):
        numbers, dictionary = encode_texts(_on_host(column))
        return DictionaryColumn(column.type, on_device(numbers, device), dictionary, column.validity)
    encoded = arrow_view(column).dictionary_encode()
    dictionary = dictionary_from_arrow(encoded.dictionary)
    codes, validity = codes_from_arrow(encoded.indices, len(dictionary))
    return DictionaryColumn(
        column.type, on_device(codes, device), dictionary, None if validity is None else on_device(validity, device)
    )


def arrow_view(column: BytesColumn | FixedColumn) -> pa.Array:
    """The column for `pyarrow.compute`: strings as large_string, sharing memory on a CPU."""
    return large_array(column) if isinstance(column, BytesColumn) else column_to_arrow(column)


def unify(columns: Sequence[DictionaryColumn]) -> list[DictionaryColumn]:
    """The same columns on one dictionary. Columns that share one already come back as they are."""
    if len({column.dictionary for column in columns}) <= 1:
        return list(columns)
    dictionaries = newest(columns)
    target = dictionaries[0] if len(dictionaries) == 1 else _union(dictionaries)
    return [recode(column, target) for column in columns]


def newest(columns: Iterable[DictionaryColumn]) -> tuple[Dictionary, ...]:
    """The columns' dictionaries: of those of one family only the largest, in which the others' codes mean the same."""
    found: dict[object, Dictionary] = {}
    for dictionary in dict.fromkeys(column.dictionary for column in columns):
        key = dictionary if dictionary.family is None else dictionary.family
        known = found.get(key)
        if known is None or len(known) < len(dictionary):
            found[key] = dictionary
    return tuple(found.values())


def recode(column: DictionaryColumn, target: Dictionary) -> DictionaryColumn:
    """The column on `target`, which must hold every value of its dictionary."""
    if column.dictionary is target:
        return column
    if _is_older(column.dictionary, target):
        return DictionaryColumn(column.type, column.codes, target, column.validity)
    codes = of_codes(translate(column.dictionary, target, column.codes.device), column)
    return DictionaryColumn(column.type, codes, target, column.validity)


def of_codes(per_value: torch.Tensor, column: DictionaryColumn) -> torch.Tensor:
    """What `per_value` holds at each row's code. Zeros where there are no values: then every row is NULL."""
    if len(per_value) == 0:
        return per_value.new_zeros(len(column))
    return per_value.index_select(0, index(column.codes))


def translate(source: Dictionary, target: Dictionary, device: torch.device = _HOST) -> torch.Tensor:
    """For each code of `source` the code of the equal value in `target`, or -1: int32, kept with `source`."""
    key = ("translate", target)
    known = source.derived.get(key)
    if known is None:
        known = source.derived.setdefault(key, _positions(source, target))
    return table_on(source, key, cast(torch.Tensor, known), device)


def _is_older(dictionary: Dictionary, other: Dictionary) -> bool:
    """Whether all codes of a dictionary mean the same in the other one."""
    return dictionary.family is not None and dictionary.family is other.family and len(dictionary) <= len(other)


def _positions(source: Dictionary, target: Dictionary) -> torch.Tensor:
    if source.family is not None and source.family is target.family:
        positions = torch.arange(len(source), dtype=torch.int32)
        positions[len(target) :] = -1
        return positions
    if isinstance(source.values, BytesColumn) and isinstance(target.values, BytesColumn):
        return find_texts(source.values, target)
    mapping = column_from_arrow(
        pc.index_in(arrow_view(source.values), value_set=arrow_view(target.values)).fill_null(-1)
    )
    assert isinstance(mapping, FixedColumn)
    return mapping.values


def index(codes: torch.Tensor) -> torch.Tensor:
    """Codes in a dtype that index_select takes."""
    return codes if codes.dtype == torch.int64 else as_dtype(codes, torch.int32)


def _union(dictionaries: tuple[Dictionary, ...]) -> Dictionary:
    """A dictionary of all values, cached with the first one so that every batch gets the same object.

    The union is the largest of `dictionaries` when it holds all values: files often repeat one set of values.
    """
    key = ("union", dictionaries[1:])
    known = dictionaries[0].derived.get(key)
    if known is None:
        largest = max(dictionaries, key=len)
        complete = all(bool((translate(other, largest) >= 0).all()) for other in dictionaries if other is not largest)
        if not complete:
            values = pa.concat_arrays([arrow_view(dictionary.values) for dictionary in dictionaries]).unique()
            largest = dictionary_from_arrow(values)
        known = dictionaries[0].derived.setdefault(key, largest)
    return cast(Dictionary, known)


def find(column: BytesColumn, dictionary: Dictionary) -> torch.Tensor:
    """The code in `dictionary` (of strings) of each row's value: int32, -1 where it has none or for NULL."""
    return on_device(find_texts(_on_host(column), dictionary), column.data.device)


def numbered(column: BytesColumn) -> FixedColumn:
    """Strings as numbers that are equal where they are."""
    numbers, count = number_texts(_on_host(column))
    numbers = on_device(numbers, column.data.device)
    return FixedColumn(pa.int32(), numbers, column.validity, (0, max(0, count - 1)))


def _on_host(column: BytesColumn) -> BytesColumn:
    moved = column_on(column, _HOST)
    assert isinstance(moved, BytesColumn)
    return moved


def _device(column: BytesColumn | FixedColumn) -> torch.device:
    return column.data.device if isinstance(column, BytesColumn) else column.values.device
