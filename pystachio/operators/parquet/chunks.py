"""What a Parquet footer says about column chunks, read without pyarrow: it aborts the process on lying statistics.

Field numbers are those of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import CDLL
from typing import Any, NamedTuple

import numpy as np

from pystachio.errors import DataError, Unsupported
from pystachio.operators.kernels import native
from pystachio.operators.parquet.thrift_compact import Struct, ThriftError, read_struct

PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")

_DATA_PAGES = (0, 3)
_CODED = (2, 8)

_NUMBERS = 20
"""How the library describes a chunk: `ps_chunk_description` in native/footer.h."""

_ABSENT = -(2**63)
_TRUTHS = (False, True, None)


class ChunkDescription(NamedTuple):
    """One column chunk in the footer's own words: the numbers are numbers, but need not make sense.

    `codec` is Parquet's number of the compression. `coded`: whether all its data pages hold dictionary codes (None: not
    said). `text_bytes`: bytes of all its strings.
    `low` and `high` are in Parquet's plain encoding, `exact_low` and `exact_high` whether they are values of the chunk
    (None: not said); `legacy_low` and `legacy_high` are the deprecated ones, which only make sense for types with the
    order of signed numbers.
    """

    physical_type: str
    codec: int
    data_offset: int
    dictionary_offset: int | None
    length: int
    decoded: int
    values: int
    coded: bool | None
    text_bytes: int | None
    nulls: int | None
    low: bytes | None
    high: bytes | None
    legacy_low: bytes | None
    legacy_high: bytes | None
    exact_low: bool | None
    exact_high: bool | None

    @property
    def has_exact_limits(self) -> bool:
        """Whether `low` and `high` are values of the chunk. Numbers are, unless their writer denies it; bytes only when
        it says so; floats leave NaN out."""
        if self.low is None or self.high is None or self.exact_low is False or self.exact_high is False:
            return False
        if self.physical_type in ("INT32", "INT64"):
            return True
        return "BYTE_ARRAY" in self.physical_type and self.exact_low is True and self.exact_high is True


Descriptions = Mapping[int, Sequence[ChunkDescription]]
"""By primitive column, and then by row group."""


def describe_chunks(path: str, footer: bytes, leaves: int, groups: int) -> Descriptions:
    """The chunks of each primitive column, by row group. DataError when the footer is not well-formed.

    `leaves` and `groups`: how many there must be of each, by another reader of the footer.
    """
    library = native.library()
    described = None if library is None else find_chunks(library, footer, leaves, groups)
    return described or read_chunks(path, footer, leaves)


def find_chunks(library: CDLL, footer: bytes, leaves: int, groups: int) -> CompiledDescriptions | None:
    """None when something is odd about the footer: `read_chunks` then tells what."""
    if leaves * groups > len(footer):  # a lie that would take memory to find out
        return None
    places = np.empty((leaves, groups), dtype=np.int64)
    ordered = np.empty(leaves, dtype=np.bool_)
    found = library.pystachio_find_chunks(footer, len(footer), leaves, groups, places.ctypes.data, ordered.ctypes.data)
    return CompiledDescriptions(library, footer, places, ordered) if found == native.Status.OK else None


class CompiledDescriptions(Mapping[int, Sequence[ChunkDescription]]):
    """`Descriptions` of a footer that the library has found to be well-formed, made per column when asked for.

    `places`: where the footer describes each chunk; `ordered`: of each column, whether its statistics follow its order.
    """

    def __init__(self, library: CDLL, footer: bytes, places: np.ndarray, ordered: np.ndarray) -> None:
        self.library = library
        self.places = places
        self.ordered = ordered
        self._footer = footer
        self._made: dict[int, list[ChunkDescription]] = {}

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.places)))

    def __getitem__(self, leaf: int) -> list[ChunkDescription]:
        made = self._made.get(leaf)
        if made is None:
            made = self._made[leaf] = self._make(leaf)
        return made

    def _make(self, leaf: int) -> list[ChunkDescription]:
        places = self.places[leaf]
        footer, groups = self._footer, len(places)
        numbers = np.empty((groups, _NUMBERS), dtype=np.int64)
        self.library.pystachio_describe_chunks(footer, len(footer), places.ctypes.data, groups, numbers.ctypes.data)
        columns = numbers.T.tolist()
        physical, codec, data, dictionary, length, decoded, values, coded, text, nulls, exact_low, exact_high = columns[
            :12
        ]
        slices = [_slices(footer, columns[at], columns[at + 1]) for at in range(12, _NUMBERS, 2)]
        if not self.ordered[leaf]:
            slices[:2] = [[None] * groups] * 2
        fields = zip(
            [PHYSICAL_TYPES[number] for number in physical],
            codec,
            data,
            _present(dictionary),
            length,
            decoded,
            values,
            [_TRUTHS[truth] for truth in coded],
            _present(text),
            _present(nulls),
            *slices,
            [_TRUTHS[truth] for truth in exact_low],
            [_TRUTHS[truth] for truth in exact_high],
            strict=True,
        )
        return list(map(ChunkDescription._make, fields))


def _present(numbers: list[int]) -> list[int | None]:
    return [None if number == _ABSENT else number for number in numbers]


def _slices(footer: bytes, offsets: list[int], lengths: list[int]) -> list[bytes | None]:
    return [None if n < 0 else footer[at : at + n] for at, n in zip(offsets, lengths, strict=True)]


def read_chunks(path: str, footer: bytes, leaves: int) -> dict[int, list[ChunkDescription]]:
    """`Descriptions` without the library. DataError when the footer is not well-formed."""
    try:
        metadata = read_struct(footer)
        orders = metadata.get(7) or []
        ordered = [bool(orders[leaf]) if leaf < len(orders) else False for leaf in range(leaves)]
        groups = [group[1] for group in metadata[4]]
        if any(len(group) != leaves for group in groups):
            raise DataError(f"a row group of the Parquet footer lacks columns: {path}")
        return {leaf: [_description(path, group[leaf], ordered[leaf]) for group in groups] for leaf in range(leaves)}
    except (ThriftError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"cannot read the Parquet footer: {path}: {type(error).__name__}: {error}") from error


def _description(path: str, chunk: Struct, ordered: bool) -> ChunkDescription:
    if chunk.get(1):
        raise Unsupported(f"column chunks in other files: {path}")
    described: Struct = chunk[3]
    statistics: Struct = described.get(12) or {}
    sizes: Struct = described.get(16) or {}
    return ChunkDescription(
        physical_type=PHYSICAL_TYPES[_number(described[1])],
        codec=_number(described[4]),
        data_offset=_number(described[9]),
        dictionary_offset=_optional_number(described.get(11)),
        length=_number(described[7]),
        decoded=_number(described[6]),
        values=_number(described[5]),
        coded=_coded(described.get(13)),
        text_bytes=_optional_number(sizes.get(1)),
        nulls=_optional_number(statistics.get(3)),
        low=_optional_bytes(statistics.get(6)) if ordered else None,
        high=_optional_bytes(statistics.get(5)) if ordered else None,
        legacy_low=_optional_bytes(statistics.get(2)),
        legacy_high=_optional_bytes(statistics.get(1)),
        exact_low=_optional_truth(statistics.get(8)),
        exact_high=_optional_truth(statistics.get(7)),
    )


def _coded(pages: list[Struct] | None) -> bool | None:
    if not pages:
        return None
    return all(page[2] in _CODED for page in pages if page[1] in _DATA_PAGES)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("a field has the wrong type")
    return value


def _optional_number(value: Any) -> int | None:
    return None if value is None else _number(value)


def _optional_bytes(value: Any) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError("a field has the wrong type")
    return value


def _optional_truth(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError("a field has the wrong type")
    return value
