"""BlockWriter: batches as blocks of bytes for one reader."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import torch

from pystachio.errors import InternalError
from pystachio.operators.batch import Batch
from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.exchanges.layout import (
    MAGIC,
    MOST_DICTIONARY_BYTES,
    NAMES,
    PREFIX,
    TEXTS,
    WIDE,
    BlockHeader,
    CodedHeader,
    PlainHeader,
    aligned,
    buffers_of,
)
from pystachio.operators.kernels.selection import decode, take
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.views import copy_views
from pystachio.operators.plan_codec.types import write_type

_ENCODER: Final = msgspec.msgpack.Encoder()

_Plain = FixedColumn | WideDecimalColumn | BytesColumn
_Uncoded = _Plain | ViewColumn

Target = np.ndarray[Any, Any]
"""uint8, a part of the block, at a multiple of 64 bytes."""

_Fill = Callable[[Sequence[Target]], None]
_Filling = tuple[int, _Fill]
"""How many targets, and what fills them."""


@dataclass(slots=True)
class _Layout:
    """A block that is ready to be written: what goes into its buffers, and what the writer then remembers."""

    batch: Batch
    rows: slice
    head: bytes = b""
    lengths: list[int] = field(default_factory=list)
    fills: list[_Fill] = field(default_factory=list)
    """Each takes the targets of one column."""
    counts: list[int] = field(default_factory=list)
    """How many targets each takes."""
    sent: dict[Dictionary, tuple[int, int]] = field(default_factory=dict)
    """The dictionaries that this block introduces: their numbers and bytes."""
    used: list[Dictionary] = field(default_factory=list)
    forgotten: list[Dictionary] = field(default_factory=list)
    spent: dict[Dictionary, int] = field(default_factory=dict)
    nbytes: int = 0


class BlockWriter:
    """Writes blocks that one BlockReader reads, all of them and in this order: later blocks refer to the dictionaries
    of earlier ones. On the host: who has a batch on a device brings it over first (`placement.batch_on_host`).

    One thread at a time. What `write` raises leaves the writer as it was; a block that is written must be sent.
    """

    def __init__(self, most_dictionary_bytes: int = MOST_DICTIONARY_BYTES) -> None:
        self._most = most_dictionary_bytes
        self._known: OrderedDict[Dictionary, tuple[int, int]] = OrderedDict()
        self._held = 0
        self._next = 0
        self._spent: weakref.WeakKeyDictionary[Dictionary, int] = weakref.WeakKeyDictionary()
        self._ready: _Layout | None = None

    @property
    def dictionaries(self) -> dict[Dictionary, int]:
        """Those that are kept for later blocks, with their bytes."""
        return {dictionary: nbytes for dictionary, (_, nbytes) in self._known.items()}

    def size(self, batch: Batch, rows: slice | None = None) -> int:
        """How many bytes the block of these rows will take, if it is the next that is written."""
        return self._laid_out(batch, rows).nbytes

    def write(self, batch: Batch, rows: slice | None = None, out: memoryview | None = None) -> memoryview:
        """The rows (all, or a slice without a step) as one block: in `out`, at its beginning, or in new memory. What
        is put into `out` lies best when that begins at a multiple of 64 bytes. Each buffer is copied once."""
        layout = self._laid_out(batch, rows)
        self._ready = None
        block = _aligned(layout.nbytes) if out is None else _bytes_of(out, layout.nbytes)
        position = len(layout.head)
        block[:position] = np.frombuffer(layout.head, dtype=np.uint8)
        targets = []
        for length in layout.lengths:
            begin = aligned(position)
            block[position:begin] = 0  # nobody's memory goes over the network
            position = begin + length
            targets.append(block[begin:position])
        taken = 0
        for fill, count in zip(layout.fills, layout.counts, strict=True):
            fill(targets[taken : taken + count])
            taken += count
        self._remember(layout)
        written: Any = block
        return memoryview(written) if out is None else out[: layout.nbytes]

    def _laid_out(self, batch: Batch, rows: slice | None) -> _Layout:
        start, stop, _ = (rows or slice(None)).indices(batch.length)
        chosen = slice(start, max(start, stop))
        if self._ready is None or self._ready.batch is not batch or self._ready.rows != chosen:
            self._ready = self._lay_out(batch, chosen)
        return self._ready

    def _lay_out(self, batch: Batch, rows: slice) -> _Layout:
        layout = _Layout(batch, rows)
        needed = {column.dictionary for column in batch.columns if isinstance(column, DictionaryColumn)}
        headers: list[PlainHeader | CodedHeader] = []
        for column in batch.columns:
            if isinstance(column, DictionaryColumn):
                headers.append(self._lay_out_codes(column, rows, layout, needed))
            else:
                headers.append(_lay_out_plain(column, rows, layout))
        forget = tuple(self._known[dictionary][0] for dictionary in layout.forgotten)
        encoded = _ENCODER.encode(BlockHeader(rows.stop - rows.start, forget, tuple(headers)))
        layout.head = PREFIX.pack(MAGIC, len(encoded)) + encoded
        layout.lengths = [length for header in headers for length in buffers_of(header)]
        position = len(layout.head)
        for length in layout.lengths:
            position = aligned(position) + length
        layout.nbytes = position
        return layout

    def _lay_out_codes(
        self, column: DictionaryColumn, rows: slice, layout: _Layout, needed: set[Dictionary]
    ) -> PlainHeader | CodedHeader:
        dictionary, count = column.dictionary, rows.stop - rows.start
        known = self._known.get(dictionary) or layout.sent.get(dictionary)
        if known is not None:
            layout.used.append(dictionary)
            return _lay_out_coded(column, rows, layout, known[0], None)
        nbytes = _values_bytes(dictionary.values)
        # A dictionary that is larger than the rows is sent once its parts have taken as many bytes as it has.
        is_worth = len(dictionary) <= count or self._spent.get(dictionary, 0) >= nbytes
        if is_worth and self._make_room(nbytes, layout, needed):
            number = self._next + len(layout.sent)
            layout.sent[dictionary] = number, nbytes
            return _lay_out_coded(column, rows, layout, number, dictionary.values)
        smaller = _without_the_rest(column, rows)
        if isinstance(smaller, DictionaryColumn):
            header: PlainHeader | CodedHeader = _lay_out_coded(
                smaller, slice(0, count), layout, None, smaller.dictionary.values
            )
        else:
            header = _lay_out_plain(smaller, slice(0, count), layout)
        layout.spent[dictionary] = layout.spent.get(dictionary, 0) + sum(buffers_of(header))
        return header

    def _make_room(self, nbytes: int, layout: _Layout, needed: set[Dictionary]) -> bool:
        """Whether the reader can keep so much more; the dictionaries that were not used for longest make room."""
        held = self._held + sum(size for _, size in layout.sent.values())
        held -= sum(self._known[dictionary][1] for dictionary in layout.forgotten)
        leaving = []
        for dictionary, (_, size) in self._known.items():
            if held + nbytes <= self._most:
                break
            if dictionary not in needed and dictionary not in layout.forgotten:
                leaving.append(dictionary)
                held -= size
        if held + nbytes > self._most:
            return False
        layout.forgotten += leaving
        return True

    def _remember(self, layout: _Layout) -> None:
        for dictionary in layout.forgotten:
            self._held -= self._known.pop(dictionary)[1]
        for dictionary in layout.used:
            if dictionary in self._known:
                self._known.move_to_end(dictionary)
        for dictionary, (number, nbytes) in layout.sent.items():
            self._known[dictionary] = number, nbytes
            self._held += nbytes
            self._spent.pop(dictionary, None)
        self._next += len(layout.sent)
        for dictionary, nbytes in layout.spent.items():
            self._spent[dictionary] = self._spent.get(dictionary, 0) + nbytes


def _lay_out_coded(
    column: DictionaryColumn, rows: slice, layout: _Layout, number: int | None, values: BytesColumn | FixedColumn | None
) -> CodedHeader:
    fills: list[_Filling] = []
    described = None
    if values is not None:
        described = _described(values, slice(0, len(values)))
        fills.append(_filling(values, slice(0, len(values))))
    codes = column.codes[rows]
    fills.append((1, partial(_copy, codes)))
    header = CodedHeader(
        write_type(column.type), NAMES[codes.dtype], codes.shape[0], column.validity is not None, number, described
    )
    _append(layout, fills, column.validity, rows)
    return header


def _lay_out_plain(column: _Uncoded, rows: slice, layout: _Layout) -> PlainHeader:
    header = _described(column, rows)
    _append(layout, [_filling(column, rows)], column.validity, rows)
    return header


def _append(
    layout: _Layout,
    fills: list[_Filling],
    validity: torch.Tensor | None,
    rows: slice,
) -> None:
    """As one column."""
    if validity is not None:
        fills.append((1, partial(_pack, validity[rows])))
    layout.counts.append(sum(count for count, _ in fills))
    layout.fills.append(partial(_fill, fills))


def _fill(fills: list[_Filling], targets: Sequence[Target]) -> None:
    taken = 0
    for count, fill in fills:
        fill(targets[taken : taken + count])
        taken += count


def _described(column: _Uncoded, rows: slice) -> PlainHeader:
    count, has_validity, type_ = rows.stop - rows.start, column.validity is not None, write_type(column.type)
    match column:
        case FixedColumn(values=values, bounds=bounds):
            return PlainHeader(type_, NAMES[values.dtype], count, has_validity, bounds is not None, 0)
        case WideDecimalColumn():
            return PlainHeader(type_, WIDE, count, has_validity, False, 0)
        case BytesColumn(offsets=offsets):
            text_bytes = int(offsets[rows.stop]) - int(offsets[rows.start])
            return PlainHeader(type_, TEXTS, count, has_validity, False, text_bytes)
        case ViewColumn(views=views, text_bytes=text_bytes):
            if count < len(column):
                text_bytes = int(views[rows, 1].sum())
            return PlainHeader(type_, TEXTS, count, has_validity, False, text_bytes)


def _filling(column: _Uncoded, rows: slice) -> _Filling:
    """How many buffers the values take, and what fills them."""
    match column:
        case FixedColumn(values=values) if values.dtype == torch.bool:
            return 1, partial(_pack, values[rows])
        case FixedColumn(values=values):
            return 1, partial(_copy, values[rows])
        case WideDecimalColumn(high=high, low=low):
            return 2, partial(_copy_limbs, high[rows], low[rows])
        case BytesColumn(offsets=offsets, data=data):
            return 2, partial(_copy_texts, offsets[rows.start : rows.stop + 1], data)
        case ViewColumn(views=views):
            return 2, partial(_copy_viewed, views[rows])


def _copy(values: torch.Tensor, targets: Sequence[Target]) -> None:
    if values.shape[0]:
        source = values.numpy()
        np.copyto(targets[0].view(source.dtype), source)


def _copy_limbs(high: torch.Tensor, low: torch.Tensor, targets: Sequence[Target]) -> None:
    _copy(high, targets[:1])
    _copy(low, targets[1:])


def _copy_texts(offsets: torch.Tensor, data: torch.Tensor, targets: Sequence[Target]) -> None:
    first = int(offsets[0])
    np.subtract(offsets.numpy(), first, out=targets[0].view(np.int64))
    _copy(data[first : int(offsets[-1])], targets[1:])


def _copy_viewed(views: torch.Tensor, targets: Sequence[Target]) -> None:
    copy_views(views, torch.from_numpy(targets[0].view(np.int64)), torch.from_numpy(targets[1]))


def _pack(values: torch.Tensor, targets: Sequence[Target]) -> None:
    targets[0][:] = np.packbits(values.numpy(), bitorder="little")


def _values_bytes(values: BytesColumn | FixedColumn) -> int:
    return sum(buffers_of(_described(values, slice(0, len(values)))))


def _without_the_rest(column: DictionaryColumn, rows: slice) -> DictionaryColumn | _Plain:
    """The rows with a dictionary of the values that they have, or without one where that is smaller."""
    codes, validity = column.codes[rows], None if column.validity is None else column.validity[rows]
    chosen = DictionaryColumn(column.type, codes, column.dictionary, validity)
    if len(column.dictionary) == 0 or not codes.shape[0]:
        return _plain(chosen)
    used, numbers = torch.unique(index(codes), return_inverse=True)
    values = take(column.dictionary.values, used)
    assert isinstance(values, BytesColumn | FixedColumn)
    narrow = next(dtype for dtype in _CODES if used.shape[0] - 1 <= torch.iinfo(dtype).max)
    if isinstance(values, BytesColumn):
        lengths = values.offsets.diff()
        expanded = 8 * (codes.shape[0] + 1) + int(lengths.index_select(0, numbers).sum())
    else:
        expanded = values.values.itemsize * codes.shape[0]
    if expanded <= _values_bytes(values) + narrow.itemsize * codes.shape[0]:
        return _plain(chosen)
    return DictionaryColumn(column.type, numbers.to(narrow), Dictionary(values), validity)


_CODES: Final = (torch.int8, torch.int16, torch.int32, torch.int64)


def _plain(column: DictionaryColumn) -> _Plain:
    decoded: Column = decode(column)
    if isinstance(decoded, FixedColumn | BytesColumn | WideDecimalColumn):
        return decoded
    raise InternalError(f"the values of a dictionary are a {type(decoded).__name__}")


def _aligned(nbytes: int) -> Target:
    """New memory; torch's begins at a multiple of 64 bytes, numpy's need not."""
    return torch.empty(nbytes, dtype=torch.uint8).numpy()


def _bytes_of(out: memoryview, nbytes: int) -> Target:
    if out.nbytes < nbytes or out.readonly:
        raise InternalError(f"a block of {nbytes} bytes does not fit into {out.nbytes} bytes")
    return np.frombuffer(out, dtype=np.uint8)[:nbytes]
