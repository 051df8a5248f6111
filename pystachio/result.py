"""The answer of one plan, streamed from the node with back-pressure."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pystachio.errors import InvalidRequest, PystachioError
from pystachio.runtime.urgency import Urgency, priority_class, urgency

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    import torch

    from pystachio.io_scheduler.core.request import PriorityClass
    from pystachio.io_scheduler.ledger import Totals
    from pystachio.running_plan import OperatorReport
    from pystachio.trace.plan_trace import PlanTrace
    from pystachio.trace.verdict import Verdict


@dataclass(frozen=True, slots=True)
class ResultMetrics:
    """What the plan did so far: rows put out, bytes that the I/O scheduler moved, wall seconds from submission.

    `bytes_read` are those of Parquet files and of decoded columns on disk, as they crossed the link; for `Session.warm`
    what it wrote counts too.
    """

    rows: int
    bytes_read: int
    seconds: float


class StartedPlan(Protocol):
    """A plan from its submission on, for any thread: `running_plan.RunningPlan` says more."""

    @property
    def plan_id(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def next_batch(self) -> pa.RecordBatch | None: ...

    def cancel(self) -> None: ...

    def set_urgency(self, urgency: Urgency) -> None: ...

    def transferred(self) -> Totals: ...

    def operators(self) -> tuple[OperatorReport, ...]: ...

    def explain(self, analyze: bool) -> str: ...

    def trace(self) -> PlanTrace: ...

    def verdict(self) -> Verdict | None: ...

    def progress(self) -> float | None: ...


class Result:
    """Rows as they come. `batches` streams them once; the `to_...` methods collect them and may be called repeatedly.

    Awaiting a result waits until all rows are here. Dropping it, or `cancel`, ends the plan and frees what it holds.
    Every method raises the plan's typed error (`pystachio.errors`).
    """

    def __init__(self, running: StartedPlan) -> None:
        self._running = running
        self._lock = threading.Lock()
        self._streamed = False
        self._table: pa.Table | None = None
        self._failure: PystachioError | None = None
        self._drop = weakref.finalize(self, running.cancel)
        self._drop.atexit = False

    @property
    def plan_id(self) -> str:
        return self._running.plan_id

    @property
    def schema(self) -> pa.Schema:
        """Names and types, known before the first row."""
        return self._running.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches as they arrive; once only, unless the rows were collected before."""
        with self._lock:
            if self._table is not None:
                return iter(self._table.to_batches())
            self._begin_streaming(hint="collect with to_arrow() first")
        return self._stream()

    def _stream(self) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := self._running.next_batch()) is not None:
                yield batch
        except PystachioError as error:
            self._failure = error
            raise
        finally:
            # Left early, by a break or Ctrl-C: nobody can get the rest.
            self._running.cancel()

    def _begin_streaming(self, hint: str) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._streamed:
            raise InvalidRequest("the rows of this result were streamed already", hint=hint)
        self._streamed = True

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        with self._lock:
            if self._table is None:
                self._begin_streaming(hint="run the query again")
                self._table = pa.Table.from_batches(list(self._stream()), self.schema)
            return self._table

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas DataFrame (pandas must be installed)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """All rows as a Polars DataFrame (polars must be installed)."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_torch(self) -> dict[str, torch.Tensor]:
        """One tensor per column by name, ready for DLPack.

        Integers, booleans and floats keep their type (unsigned ones widen); dates and timestamps are integers in
        their unit; decimals become float64. Raises Unsupported for strings, and for NULLs in a column that is not
        floating point (there NULL is NaN).
        """
        from pystachio.operators.export import table_to_torch

        return table_to_torch(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._collected().__await__()

    async def _collected(self) -> Result:
        # A thread of its own: the loop's few threads may all wait for plans that wait for memory which the plans of
        # other results hold, until somebody reads those.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pystachio-result")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self.to_arrow)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            thread.shutdown(wait=False)
        return self

    def cancel(self) -> None:
        """End the plan; idempotent. Waiting methods raise `Cancelled`."""
        self._running.cancel()

    def set_priority(self, priority: PriorityClass | str, *, deadline: float | timedelta | None = None) -> None:
        """From now on the plan has this class, and this deadline in seconds from now if one is given.

        Holds at once for all that waits; what runs or moves already goes on. Without effect on a plan that has ended.
        Raises InvalidRequest for a class or a deadline that does not exist, or a deadline in another class than
        interactive.
        """
        chosen = priority_class(priority)
        self._running.set_urgency(urgency(chosen, deadline, Urgency(chosen)))

    def explain(self, analyze: bool = False) -> str:
        """The physical plan as a tree; with `analyze`, after the end of the plan, what each operator did."""
        if analyze and self._table is None and not self._streamed:
            self.to_arrow()
        return self._running.explain(analyze)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write what is remembered of the plan as a Perfetto trace (https://ui.perfetto.dev opens it); replaces `path`.

        Take it soon after the plan's end: records are kept in rings of bounded size. Raises InvalidRequest when the
        session is closed, nothing is traced or `path` is none, and the typed errors of writing a file; then the file
        is what it was before.
        """
        from pystachio.atomic_file import replaced_at_end
        from pystachio.io_scheduler.os_errors import from_os_error
        from pystachio.trace.perfetto_export import perfetto_trace

        target = _file_path(path)
        content = perfetto_trace(self._running.trace())
        try:
            with replaced_at_end(target) as file:
                file.write(content)
        except OSError as error:
            raise from_os_error(error, str(target), "written") from error

    def metrics(self) -> ResultMetrics:
        """Progress so far, or the totals after the end."""
        running = self._running
        return ResultMetrics(running.rows, running.transferred().transferred_bytes, running.seconds)

    def operators(self) -> tuple[OperatorReport, ...]:
        """What each operator did so far, parents before children."""
        return self._running.operators()

    def progress(self) -> float | None:
        """The share of the rows to scan that is done, 0 to 1; None where nothing is scanned."""
        return self._running.progress()

    def __repr__(self) -> str:
        return f"<Result {self.plan_id} of {len(self.schema)} columns>"


def _file_path(path: object) -> Path:
    """Raises InvalidRequest for what names no file."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise InvalidRequest(f"the path of a file must be text or a pathlib.Path, not {type(path).__name__}")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        raise InvalidRequest(f"the path of a file cannot be encoded: {name!r}") from None
    if not encoded or b"\0" in encoded:
        raise InvalidRequest(f"the path of a file is empty or contains a NUL: {name!r}")
    return Path(name)
