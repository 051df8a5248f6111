"""A plan on a node elsewhere, as its client holds it: `result.StartedPlan`."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from pystachio.errors import Cancelled, InternalError, NodeLost, PystachioError, Unsupported
from pystachio.io_scheduler.ledger import Totals
from pystachio.remote.connection import Connection, expected
from pystachio.remote.messages import (
    Answer,
    CancelPlan,
    Done,
    Ended,
    Fetch,
    Measure,
    Measured,
    Operators,
    OperatorsAre,
    Profile,
    Rows,
    SetPriority,
    Submitted,
    Text,
)
from pystachio.remote.rows import read_rows, read_schema
from pystachio.runtime.urgency import Urgency

if TYPE_CHECKING:
    import pyarrow as pa

    from pystachio.running_plan import OperatorReport
    from pystachio.trace.plan_trace import PlanTrace
    from pystachio.trace.verdict import Verdict

WINDOW = 3
"""Pieces of rows on their way or waiting here; the node makes no more until they are taken."""


class RemotePlan:
    """For any thread. Nothing that waits outlives the connection: then it raises NodeLost."""

    def __init__(self, connection: Connection, submitted: Submitted, session: object) -> None:
        """`session` lives as long as the plan is held: its end would be the plan's."""
        self.plan_id = submitted.plan_id
        self.schema: pa.Schema = read_schema(submitted.schema)
        self.rows = 0
        self._connection = connection
        self._session = session
        self._submitted = time.monotonic()
        self._fetching = threading.Lock()
        self._fetches: deque[Future[Answer]] = deque()
        self._ended: Ended | None = None
        self._error: PystachioError | None = None
        self._is_cancelled = False

    def next_batch(self) -> pa.RecordBatch | None:
        """Wait for rows; None after the last. Raises the plan's error."""
        with self._fetching:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._ended is not None:
                return None
            try:
                answer = self._next_answer()
                if isinstance(answer, Ended):
                    if answer.rows != self.rows:
                        raise InternalError(f"rows are missing: {self.rows:,} of {answer.rows:,} came")
                    self._ended = answer
                    self._fetches.clear()
                    return None
                batch = read_rows(expected(Rows, answer).batch, self.schema)
            except PystachioError as error:
                error.plan_id = error.plan_id or self.plan_id
                self._error = error
                raise
            self.rows += batch.num_rows
            return batch

    def _next_answer(self) -> Answer:
        try:
            while len(self._fetches) < WINDOW:
                self._fetches.append(self._connection.post(lambda number: Fetch(number, self.plan_id)))
        except NodeLost:
            if not self._fetches:
                raise  # otherwise the last rows may be here already
        answer = self._fetches[0].result()
        self._fetches.popleft()
        if self._is_cancelled and isinstance(answer, Rows):
            raise Cancelled("the plan was cancelled", plan_id=self.plan_id)
        return answer

    def cancel(self) -> None:
        """Never waits; for any thread, also that of a garbage collection."""
        if self._ended is not None or self._is_cancelled:
            return
        self._is_cancelled = True
        with suppress(PystachioError):  # the node is gone, and the plan with it
            self._connection.post(lambda number: CancelPlan(number, self.plan_id))

    def set_urgency(self, urgency: Urgency) -> None:
        """Without effect once the plan has ended."""
        if self._ended is not None or self._error is not None:
            return
        name = urgency.priority.name.lower()
        self._connection.ask(Done, lambda number: SetPriority(number, self.plan_id, name, urgency.deadline))

    @property
    def seconds(self) -> float:
        """From submission to the end, by the node's clock, or to now."""
        return self._ended.seconds if self._ended is not None else time.monotonic() - self._submitted

    def transferred(self) -> Totals:
        """What the node's I/O scheduler moved: only `transferred_bytes` is known here."""
        if self._ended is not None:
            return Totals(transferred_bytes=self._ended.transferred_bytes)
        return Totals(transferred_bytes=self._measured().transferred_bytes)

    def operators(self) -> tuple[OperatorReport, ...]:
        from pystachio.running_plan import OperatorReport

        answer = self._connection.ask(OperatorsAre, lambda number: Operators(number, self.plan_id))
        return tuple(
            OperatorReport(
                each.name, each.kind, each.label, each.rows_in, each.rows_out, each.busy_seconds, dict(each.counts)
            )
            for each in answer.operators
        )

    def explain(self, analyze: bool) -> str:
        return self._connection.ask(Text, lambda number: Profile(number, self.plan_id, analyze)).text

    def trace(self) -> PlanTrace:
        raise Unsupported("traces of plans on nodes elsewhere", hint="explain(analyze=True) says what bounded a plan")

    def verdict(self) -> Verdict | None:
        """Is in the text of `explain`."""
        return None

    def progress(self) -> float | None:
        return 1.0 if self._ended is not None else self._measured().progress

    def _measured(self) -> Measured:
        return self._connection.ask(Measured, lambda number: Measure(number, self.plan_id))
