"""Runtime filters on their way between nodes: as bytes, of bounded length, and as the union of what all nodes made.

Whatever is too large to be sent is left out of what is known: a filter that knows less lets more rows pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import dictionary_from_arrow, dictionary_to_arrow
from pystachio.operators.exchanges.layout import INTEGERS, TEXTS, dtypes_for
from pystachio.operators.kernels.key_set_unions import MOST_SET_BYTES, Part, members, union_of
from pystachio.operators.kernels.key_sets import (
    FEWEST_BLOOM_WORDS,
    BitSet,
    BloomFilter,
    bit_set,
    bits_bytes,
    bloom_filter,
    bloom_words,
)
from pystachio.operators.runtime_filter import MOST_STRINGS, RuntimeFilter

MOST_FILTER_BYTES: Final = MOST_SET_BYTES + (1 << 20)
"""Of an encoded filter."""
_MOST_TEXT_BYTES: Final = 1 << 20
_WORD_BYTES: Final = 8

_Key = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Bits(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="bits"):
    """From the lower bound on."""

    bits: bytes


class _Keys(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="keys"):
    """The bits that are set, as int64: where there are few."""

    keys: bytes


class _Bloom(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="bloom"):
    words: bytes


class _Written(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`is_known` is false where the part's node cannot say which rows may be dropped; nothing else counts then."""

    is_known: bool
    empty: bool = False
    bounds: tuple[_Key, _Key] | None = None
    keys: _Bits | _Keys | _Bloom | None = None
    values: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MOST_STRINGS)] | None = None


_DECODER: Final = msgspec.msgpack.Decoder(_Written)


def encode_filter(part: RuntimeFilter | None) -> bytes:
    """At most MOST_FILTER_BYTES."""
    if part is None:
        return msgspec.msgpack.encode(_Written(False))
    return msgspec.msgpack.encode(
        _Written(True, part.empty, part.bounds, _written_keys(part), _written_values(part)),
    )


def decode_filter(block: bytes | memoryview, type_: pa.DataType) -> RuntimeFilter | None:
    """A filter of keys of the type; DataError for what `encode_filter` does not write."""
    try:
        written = _DECODER.decode(block)
        return _read(written, type_) if written.is_known else None
    except (msgspec.DecodeError, _Damaged, pa.ArrowInvalid) as error:
        raise DataError(f"a runtime filter from another node is damaged: {error}") from error


def union_of_filters(parts: Sequence[RuntimeFilter | None], type_: pa.DataType) -> RuntimeFilter | None:
    """What passes any of the parts passes; None where rows pass that no filter may drop."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    known = [part for part in known if not part.empty]
    if not known:
        return RuntimeFilter(type_, empty=True)
    texts = [part.values for part in known if part.values is not None]
    if len(texts) == len(known):
        distinct = pa.concat_arrays([dictionary_to_arrow(values).cast(type_) for values in texts]).unique()
        return RuntimeFilter(type_, values=dictionary_from_arrow(distinct) if len(distinct) <= MOST_STRINGS else None)
    ranges = [Part(part.bounds, part.keys) for part in known if part.bounds is not None]
    if len(ranges) < len(known):
        return RuntimeFilter(type_)
    whole = union_of(ranges)
    return RuntimeFilter(type_, whole.bounds, whole.keys)


def bounded(part: RuntimeFilter | None) -> RuntimeFilter | None:
    """What of the filter is small enough to be sent: a Bloom filter instead of too many bits, or bounds alone."""
    if part is None:
        return None
    keys = part.keys
    if isinstance(keys, BitSet) and keys.bits.nbytes > MOST_SET_BYTES:
        values = members(keys)
        size = bloom_words(len(values))
        return replace(part, keys=bloom_filter(values, size) if _WORD_BYTES * size <= MOST_SET_BYTES else None)
    if isinstance(keys, BloomFilter) and keys.words.nbytes > MOST_SET_BYTES:
        return replace(part, keys=None)
    if part.values is not None and dictionary_to_arrow(part.values).nbytes > _MOST_TEXT_BYTES:
        return replace(part, values=None)
    return part


def _written_keys(part: RuntimeFilter) -> _Bits | _Keys | _Bloom | None:
    match part.keys:
        case BitSet(bits=bits) as keys:
            found = members(keys)
            if found.nbytes < bits.nbytes:
                return _Keys(found.tobytes())
            return _Bits(bits.numpy().tobytes())
        case BloomFilter(words=words):
            return _Bloom(words.numpy().tobytes())
        case None:
            return None


def _written_values(part: RuntimeFilter) -> tuple[bytes, ...] | None:
    if part.values is None:
        return None
    return tuple(dictionary_to_arrow(part.values).cast(pa.large_binary()).to_pylist())


class _Damaged(Exception):
    """What is wrong, in words."""


def _read(written: _Written, type_: pa.DataType) -> RuntimeFilter:
    stored = dtypes_for(type_)
    if written.values is not None:
        if TEXTS not in stored or written.bounds is not None or written.keys is not None:
            raise _Damaged(f"texts for keys of the type {type_}")
        texts = pa.array(written.values, pa.binary()).cast(type_)
        if len(texts.unique()) < len(texts):
            raise _Damaged("a text twice")
        return RuntimeFilter(type_, values=dictionary_from_arrow(texts), empty=written.empty)
    if written.bounds is None:
        if written.keys is not None:
            raise _Damaged("keys without bounds")
        return RuntimeFilter(type_, empty=written.empty)
    low, high = written.bounds
    if low > high or not stored & {*INTEGERS, "bool"}:
        raise _Damaged(f"bounds from {low} to {high} for keys of the type {type_}")
    return RuntimeFilter(type_, (low, high), _read_keys(written.keys, low, high), empty=written.empty)


def _read_keys(keys: _Bits | _Keys | _Bloom | None, low: int, high: int) -> BitSet | BloomFilter | None:
    span = high - low + 1
    match keys:
        case _Bits(bits=data):
            if len(data) != bits_bytes(span) or len(data) > MOST_SET_BYTES:
                raise _Damaged(f"{len(data)} bytes of bits for {span} values")
            return BitSet(low, span, torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()))
        case _Keys(keys=data):
            if len(data) % _WORD_BYTES or bits_bytes(span) > MOST_SET_BYTES:
                raise _Damaged(f"{len(data)} bytes of keys among {span} values")
            found = np.frombuffer(data, dtype=np.int64)
            if len(found) and not (low <= int(found.min()) and int(found.max()) <= high):
                raise _Damaged("keys out of their bounds")
            return bit_set((found,), low, span)
        case _Bloom(words=data):
            words, rest = divmod(len(data), _WORD_BYTES)
            if rest or words < FEWEST_BLOOM_WORDS or words & (words - 1) or len(data) > MOST_SET_BYTES:
                raise _Damaged(f"{len(data)} bytes of a Bloom filter")
            return BloomFilter(torch.from_numpy(np.frombuffer(data, dtype=np.int64).copy()))
        case None:
            return None
