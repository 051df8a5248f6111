"""A plan on a node in the client's process, from its submission on: its rows, its end, and what is known of it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pystachio.errors import Cancelled, InternalError, InvalidRequest, NotFound, PystachioError
from pystachio.io_scheduler.ledger import Totals
from pystachio.operators.arrow import batch_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan, build_graph, operator_names, operators_of
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.planner.explain import render
from pystachio.runtime.channels import Receiver
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.host import NodeHost
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.slots import Slot
from pystachio.runtime.urgency import Urgency
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.verdict import Verdict, verdict

_LONGEST_LABEL = 60
_LABEL_TAIL = re.compile(r"( by)? \[| build=")


class PlanNode(Protocol):
    """The node that a plan runs on, which it keeps alive."""

    @property
    def host(self) -> NodeHost: ...

    @property
    def keeps_traces(self) -> bool: ...

    def plan_trace(self, plan: RunningPlan, submitted: float) -> PlanTrace: ...

    def totals(self, plan_id: str) -> Totals: ...


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What one operator did: `kind` is its class, `label` what `explain` calls it, `counts` what only some count."""

    name: str
    kind: str
    label: str
    rows_in: int
    rows_out: int
    busy_seconds: float
    counts: Mapping[str, int]


class RunningPlan:
    """A plan on the node, from submission on; keeps the node alive."""

    def __init__(
        self, node: PlanNode, plan: PhysicalPlan, label: str, *, plan_id: str = "", peers: PlanPeers | None = None
    ) -> None:
        """`peers` are the nodes that run the other parts of the plan, whose id is then given."""
        self.plan_id = plan_id or new_plan_id()
        self.plan = plan
        self.label = label
        self._node = node
        self._peers = peers
        self._submitted = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Once it is submitted."""
        self._seconds: float | None = None
        self._totals = Totals()
        self._handle: PlanHandle | None = None
        """There once the loop has come to it."""
        self._results: Slot[Receiver[Batch] | None] = Slot()
        self._error: PystachioError | None = None
        self._delivered = False
        """The last batch was, and the plan has ended well."""
        self._known: pa.RecordBatch | None = None
        """The answer, where it was kept: nothing runs."""
        self._last: pa.RecordBatch | None = None
        """What was taken last, of a plan whose answer may be kept."""

    @property
    def schema(self) -> pa.Schema:
        return self.plan.arrow_schema

    def submit(self, urgency: Urgency) -> None:
        """Have the node's loop start the plan; what it is asked for from now on finds the plan there."""
        self._known = self.plan.kept.rows
        if self._known is not None:
            self._node.host.require_running()
            self._seconds = time.monotonic() - self._submitted
            return
        self._loop = self._node.host.call_soon(lambda: self.start(urgency))

    def start(self, urgency: Urgency) -> None:
        """On the node's loop. What goes wrong is the plan's error."""
        self._loop = asyncio.get_running_loop()

        def build(scope: PlanScope) -> list[TaskSpec]:
            graph = build_graph(self.plan, scope)
            self._stream = scope.context("result").stream
            self._results.set(graph.results)
            return graph.tasks

        try:
            node = self._node.host.node
            self._handle = node.start_plan(
                build, plan_id=self.plan_id, urgency=urgency, label=self.label, peers=self._peers
            )
        except Exception as error:
            failure = error if isinstance(error, PystachioError) else InternalError(f"a plan did not start: {error}")
            failure.__cause__ = None if failure is error else error
            self._note_end(failure)
        else:
            self._handle.when_ended(self._note_end)

    def _note_end(self, error: PystachioError | None) -> None:
        """Keep what is known of the plan at its end."""
        self._error = error
        self._totals = self._node.totals(self.plan_id)
        # Last: other threads read the rest once this says that the plan has ended.
        self._seconds = time.monotonic() - self._submitted
        if not self._results.is_set:
            self._results.set(None)

    def next_batch(self) -> pa.RecordBatch | None:
        """Wait for rows; None after the last. Raises the plan's error."""
        if self._delivered:
            return None
        if self._known is not None:
            if self._error is not None:
                raise self._error
            self._delivered = True
            return self._known
        try:
            waiting = self._node.host.call(self.take())
        except InvalidRequest:
            if self._error is not None:
                raise self._error from None
            raise
        batch = waiting.result()
        rows = None if batch is None else self.as_arrow(batch)
        if self.plan.kept.is_constant:
            self._keep(rows)
        return rows

    def _keep(self, rows: pa.RecordBatch | None) -> None:
        """The batch that was taken, or the end: it is the answer if there was no other, and there will be none."""
        if rows is not None:
            self._last = rows
        has_ended = rows is None or self._delivered
        if has_ended and self._last is not None and self._last.num_rows == self.rows:
            self.plan.kept.keep_rows(self._last)

    def as_arrow(self, batch: Batch | pa.RecordBatch) -> pa.RecordBatch:
        """What `take` returned, under the names of the result; on any thread."""
        return batch_to_arrow(batch, self.schema) if isinstance(batch, Batch) else batch

    async def take(self) -> Batch | pa.RecordBatch | None:
        """On the node's loop: the next rows, None after the last. Batches of a CPU are left to others to convert."""
        handle, results = self._handle, await self._results.wait()
        if handle is not None and results is not None:
            async for batch in results:
                handle.rows += batch.length
                if self._stream.device.type != "cpu":
                    return await self._stream.run(batch_to_arrow, batch, self.schema)
                if not results.has_ended:
                    await asyncio.sleep(0)  # the producer may end in this turn
                if results.has_ended:
                    results.close()
                    await self._ended()
                    self._delivered = True
                return batch
        await self._ended()
        return None

    async def _ended(self) -> None:
        """Wait for the end of the plan; raises its error."""
        if self._handle is not None:
            await self._handle.wait_ended()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        if self._known is not None and not self._delivered:
            self._error = Cancelled("the plan was cancelled", plan_id=self.plan_id)
        if self._loop is not None and self._seconds is None:
            with suppress(RuntimeError):  # the loop is closed: every plan has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """On the node's loop."""
        if self._handle is not None:
            self._handle.cancel()

    def set_urgency(self, urgency: Urgency) -> None:
        """Without effect once the plan has ended."""
        if self._seconds is not None:
            return

        async def change() -> None:
            with suppress(NotFound):  # it has ended meanwhile
                await self._node.host.node.set_priority(self.plan_id, urgency.priority, urgency.deadline)

        self._node.host.call(change()).result()

    @property
    def rows(self) -> int:
        """Rows handed to the client so far."""
        if self._known is not None:
            return self._known.num_rows if self._delivered else 0
        return 0 if self._handle is None else self._handle.rows

    @property
    def seconds(self) -> float:
        """From submission to the end, or to now."""
        return self._seconds if self._seconds is not None else time.monotonic() - self._submitted

    def transferred(self) -> Totals:
        """What the I/O scheduler moved for this plan so far."""
        if self._seconds is None:

            async def ask() -> Totals:
                return self._node.totals(self.plan_id)

            return self._node.host.call(ask()).result()
        return self._totals

    def operators(self) -> tuple[OperatorReport, ...]:
        """What each operator did so far, parents before children."""
        return reports(self.plan, self.snapshots())

    def explain(self, analyze: bool) -> str:
        if not analyze:
            return render(self.plan)
        if self._known is not None:
            return f"{render(self.plan)}\n\nNothing ran: the plan reads no rows, and an earlier run has answered it."
        tree = render(self.plan, self.snapshots())
        found = self.verdict()
        return tree if found is None else f"{tree}\n\n{found}"

    def trace(self) -> PlanTrace:
        """What is remembered of the plan so far. Raises InvalidRequest when the node has stopped or keeps no record."""
        if not self._node.keeps_traces:
            raise InvalidRequest("nothing is traced", hint="set 'tracing' to true")
        return self._node.plan_trace(self, self._submitted)

    def verdict(self) -> Verdict | None:
        """What bounded the plan so far; None when the node has stopped or keeps no record."""
        try:
            return verdict(self.trace())
        except InvalidRequest:
            return None

    def progress(self) -> float | None:
        """The share of the rows of all scanned tables that the scans have gone through or skipped."""
        if self._seconds is not None and self._error is None:
            return 1.0
        return scanned_share(self.plan, self.snapshots())

    def snapshots(self) -> dict[str, OperatorSnapshot]:
        """What was measured of each operator so far, by its name."""
        if self._handle is None:
            return {}
        return {snapshot.name: snapshot for snapshot in self._handle.metrics.snapshot().operators}


def scanned_share(plan: PhysicalPlan, snapshots: Mapping[str, OperatorSnapshot]) -> float | None:
    """Of the rows of all tables that the plan scans, the share that was gone through or skipped; None where nothing is
    scanned. Scans that do not run, because an earlier run has kept what they would find, are none of them."""
    names = operator_names(plan)
    scans = {
        names[id(operator)]: operator.scan if isinstance(operator, ScanTopN) else operator
        for operator in operators_of(plan)
        if isinstance(operator, Scan | ScanTopN) and (not snapshots or names[id(operator)] in snapshots)
    }
    total = sum(scan.rows for scan in scans.values())
    done = sum(snapshots[name].rows_in for name in scans if name in snapshots)
    return min(1.0, done / total) if total else None


def new_plan_id() -> str:
    return secrets.token_hex(6)


def reports(plan: PhysicalPlan, measured: Mapping[str, OperatorSnapshot]) -> tuple[OperatorReport, ...]:
    """Of the plan's operators that were measured, parents before children."""
    return tuple(
        OperatorReport(
            name,
            type(operator).__name__,
            operator.label(),
            measured[name].rows_in,
            measured[name].rows_out,
            measured[name].busy_seconds,
            measured[name].counts,
        )
        for name, operator in named_operators(plan).items()
        if name in measured
    )


def named_operators(plan: PhysicalPlan) -> dict[str, Operator]:
    """The plan's operators by the names that metrics and records have for them."""
    names = operator_names(plan)
    return {names[id(operator)]: operator for operator in operators_of(plan)}


def operator_labels(plan: PhysicalPlan) -> dict[str, str]:
    """What people call the operators, by name: the head of their label, numbered where several are alike."""
    heads = {name: _LABEL_TAIL.split(operator.label())[0] for name, operator in named_operators(plan).items()}
    heads = {name: head if len(head) <= _LONGEST_LABEL else f"{head[:_LONGEST_LABEL]}…" for name, head in heads.items()}
    alike = Counter(heads.values())
    return {name: head if alike[head] == 1 else f"{head} ({name.split(':')[0]})" for name, head in heads.items()}
