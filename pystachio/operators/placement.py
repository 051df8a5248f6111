"""Where tensors lie: what scans decode goes to the plan's device, what only the host can do comes back.

A dictionary's values stay on the host, where expressions over them run once; its codes move, and so do tables over its
values (`on_device` keeps one copy per device). Every copy is counted with the operator whose job makes it: bytes to the
device beyond those of the scans, and any bytes to the host beyond those of the result, are work that a device kernel
would save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

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
from pystachio.runtime.devices import device_place
from pystachio.runtime.metrics import count_in_job
from pystachio.runtime.streams import Stream

COPIED_TO_DEVICE: Final = "bytes copied to the device"
COPIED_TO_HOST: Final = "bytes copied to the host"


def to_device(batch: Batch, stream: Stream) -> Batch:
    """A batch of CPU tensors on the device of `stream`; inside one of its jobs. The batch itself where that is the CPU.

    The copies are under way when this returns. The job's further work waits for them on the device; what reads them
    from a stream of its own waits for `ready`.
    """
    if stream.device.type == "cpu" or not batch.columns:
        return batch
    parts = [tensor for column in batch.columns for tensor in tensors_of(column)]
    count_in_job(COPIED_TO_DEVICE, sum(part.nbytes for part in parts))
    copies, ready = stream.upload(parts)
    waiting = iter(copies)
    columns = tuple(rebuilt(column, [next(waiting) for _ in tensors_of(column)]) for column in batch.columns)
    return Batch(columns, batch.length, ready)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, counted when that takes a copy (and a wait for the device)."""
    if tensor.device.type == "cpu":
        return tensor
    count_in_job(COPIED_TO_HOST, tensor.nbytes)
    return tensor.cpu()


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor that the host made on `device`, counted when that takes a copy; not for a scan's batches.

    The kernels that follow on this stream come behind the copy, and nothing waits for it on the host: torch keeps its
    pinned twin for as long as it takes.
    """
    if tensor.device == device:
        return tensor
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    count_in_job(COPIED_TO_DEVICE, tensor.nbytes)
    return tensor.pin_memory().to(device, non_blocking=True)


def batch_on_host(batch: Batch) -> Batch:
    """The batch in host memory, after one wait for the device and one copy, whatever the number of columns."""
    parts = [tensor for column in batch.columns for tensor in tensors_of(column)]
    if all(part.device.type == "cpu" for part in parts):
        return batch
    waiting = iter(_together_on_host(parts))
    columns = tuple(rebuilt(column, [next(waiting) for _ in tensors_of(column)]) for column in batch.columns)
    return Batch(columns, batch.length, None)


def _together_on_host(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of one device in host memory, by one copy and one wait."""
    # The widest first: then each begins at a multiple of its own width.
    order = sorted(range(len(parts)), key=lambda place: -parts[place].itemsize)
    packed = on_host(torch.cat([_as_bytes(parts[place]) for place in order]))
    moved, begin = list(parts), 0
    for place in order:
        part = parts[place]
        moved[place] = packed[begin : begin + part.nbytes].view(part.dtype).view(part.shape)
        begin += part.nbytes
    return moved


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def column_on(column: Column, device: torch.device) -> Column:
    """The column with its tensors on `device`; for tables and for what the host computed, not for a scan's batches."""
    parts = tensors_of(column)
    if all(part.device == device for part in parts):
        return column
    if device.type == "cpu":
        return rebuilt(column, _together_on_host(parts))
    return rebuilt(column, [on_device(part, device) for part in parts])


def values_on(dictionary: Dictionary, device: torch.device) -> BytesColumn | FixedColumn:
    """The dictionary's values on `device`; the copy is kept with the dictionary."""
    if device.type == "cpu":
        return dictionary.values
    key = ("values", device_place(device))
    known = dictionary.derived.get(key)
    if known is None:
        known = dictionary.derived.setdefault(key, column_on(dictionary.values, device))
    assert isinstance(known, BytesColumn | FixedColumn)
    return known


def table_on(dictionary: Dictionary, name: object, table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`table`, derived from the dictionary and known by `name`, on `device`; the copy is kept with the dictionary."""
    if table.device == device:
        return table
    key = ("table", name, device_place(device))
    known = dictionary.derived.get(key)
    if known is None:
        known = dictionary.derived.setdefault(key, on_device(table, device))
    assert isinstance(known, torch.Tensor)
    return known


def tensors_of(column: Column) -> tuple[torch.Tensor, ...]:
    """The column's own tensors, the validity (if any) last; not those of its dictionary."""
    validity = () if column.validity is None else (column.validity,)
    match column:
        case FixedColumn(values=values):
            return values, *validity
        case WideDecimalColumn(high=high, low=low):
            return high, low, *validity
        case DictionaryColumn(codes=codes):
            return codes, *validity
        case BytesColumn(offsets=offsets, data=data):
            return offsets, data, *validity
        case ViewColumn(views=views):
            return views, *validity


def rebuilt(column: Column, parts: list[torch.Tensor]) -> Column:
    """The same column on other tensors, in the order of `tensors_of`."""
    validity = None if column.validity is None else parts[-1]
    match column:
        case FixedColumn(type=type_, bounds=bounds):
            return FixedColumn(type_, parts[0], validity, bounds)
        case WideDecimalColumn(type=type_):
            return WideDecimalColumn(type_, parts[0], parts[1], validity)
        case DictionaryColumn(type=type_, dictionary=dictionary):
            return DictionaryColumn(type_, parts[0], dictionary, validity)
        case BytesColumn(type=type_):
            return BytesColumn(type_, parts[0], parts[1], validity)
        case ViewColumn():
            raise AssertionError("views stay on the host")
