"""A batch: columns of equal length on one device, and the event after which they may be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn, WideDecimalColumn
from pystachio.records import record


@dataclass(frozen=True, slots=True)
class Field:
    """A column of an operator's output. Operators refer to fields by position; names matter at the edges."""

    name: str
    type: pa.DataType
    nullable: bool = True


Schema = tuple[Field, ...]


class Event(Protocol):
    """A CUDA event: after it the last write to a batch is over."""

    def query(self) -> bool: ...


@record(eq=False)
class Batch:
    """`length` rows. A batch without columns still has a length (count(*) needs nothing else).

    Between jobs of a stream a batch is complete: `runtime.streams.Stream.run` has waited for the device. Inside the job
    that makes it, kernels on the job's stream come behind its last write; any other stream waits for `ready` (None:
    nothing was copied, as on a CPU).
    """

    columns: tuple[Column, ...]
    length: int
    ready: Event | None
    _nbytes: int = field(default=-1, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes held by the tensors, without shared dictionaries."""
        if self._nbytes < 0:
            object.__setattr__(self, "_nbytes", sum(map(column_nbytes, self.columns)))
        return self._nbytes


def column_nbytes(column: Column) -> int:
    """Bytes of the column's own tensors; a dictionary is shared and counts once, with the scan that made it."""
    validity = 0 if column.validity is None else column.validity.nbytes
    match column:
        case FixedColumn(values=values):
            return values.nbytes + validity
        case WideDecimalColumn(high=high, low=low):
            return high.nbytes + low.nbytes + validity
        case DictionaryColumn(codes=codes):
            return codes.nbytes + validity
        case BytesColumn(places=places, data=data):
            return places.nbytes + data.nbytes + validity
        case ViewColumn(views=views, text_bytes=text_bytes, hashes=hashes):
            # What it keeps alive, or will take when its bytes are copied.
            own = views.nbytes + (0 if hashes is None else hashes.nbytes)
            return own + max(text_bytes, column.held_bytes) + validity
