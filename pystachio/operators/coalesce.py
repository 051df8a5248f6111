"""Small batches are joined together before operators whose cost per batch is high."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from pystachio.operators.batch import Batch
from pystachio.operators.kernels.selection import concat_batches, settled_batch
from pystachio.operators.operator import Transform

LEAST_ROWS = 65_536
"""A join probe or a partial aggregation costs most of a millisecond whatever the batch; this many rows cost about as
much again. Selective scans put out a few hundred rows for each row group."""

_LARGE_PART = 2
"""A batch of this part of so many rows does not wait for more: two workers that have as much each do it at once, while
together it would be one worker's."""


class Coalesced:
    """Collects batches until they have `least_rows`, or one of them half as many, then has `transform` process them as
    one."""

    def __init__(self, transform: Transform, least_rows: int) -> None:
        self.transform = transform
        self._least_rows = least_rows
        self._lock = threading.Lock()
        self._pending: list[Batch] = []
        self._pending_rows = 0

    def process(self, batch: Batch) -> Iterator[Batch]:
        is_large = batch.length >= self._least_rows // _LARGE_PART
        waiting = batch if is_large else settled_batch(batch, waits=True)
        with self._lock:
            self._pending.append(waiting)
            self._pending_rows += batch.length
            due = self._take() if is_large or self._pending_rows >= self._least_rows else []
        if due:
            yield from self.transform.process(concat_batches(due))

    def finish(self) -> Iterator[Batch] | None:
        due = self._take()
        return self._last(due) if due else self.transform.finish()

    def close(self) -> None:
        self._take()
        self.transform.close()

    def _last(self, due: list[Batch]) -> Iterator[Batch]:
        yield from self.transform.process(concat_batches(due))
        yield from self.transform.finish() or ()

    def _take(self) -> list[Batch]:
        due, self._pending, self._pending_rows = self._pending, [], 0
        return due
