"""What a physical operator is. One operator, one file; no behaviour is inherited.

There are two kinds:

- A *breaker* owns a coroutine: it reads its inputs to the end in its own way (scan, aggregate, sort, union, spool).
- A *streaming* operator turns each batch into zero or more batches without waiting (filter, project, join probe,
  partial aggregation). It runs inside the task that feeds it, batch by batch in the worker's cache, so that a chain of
  them costs one hop to a worker thread instead of one each (`operators.pipeline` composes them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol, TypeGuard

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.rows import ScanRows
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

Produced = Batch | ScanRows | HotRows
"""What breakers put out."""


class NotWanted(Exception):
    """Raised by `Output` when its consumer has all it wants: the breaker that gets it ends, its plan goes on."""


class Output(Protocol):
    """Where a breaker puts its batches: through the streaming operators above it, into the next breaker's channel.

    `emit` and `send` raise NotWanted; let it pass.
    """

    async def emit(
        self,
        produce: Callable[[], Iterable[Produced]],
        *,
        last: bool | Callable[[], bool] = False,
        small: bool = False,
    ) -> None:
        """Run `produce` and the streaming operators behind it on a worker; waits while the channel is full.

        `last`: nothing comes after it, and nothing else is being put out; what those operators kept follows in the
        same job. May be asked on the worker, once everything is produced. `small`: that is `small.is_small`, and need
        not go to a worker.
        """
        ...

    async def send(self, batch: Batch) -> None:
        """`emit` of one batch that exists already."""
        ...

    async def until_unwanted(self) -> None:
        """Returns when the consumer has all it wants: for who waits for others and has nothing to put out meanwhile."""
        ...


class Operator(Protocol):
    """A node of the physical plan: a frozen dataclass."""

    @property
    def inputs(self) -> tuple[Operator, ...]: ...

    @property
    def schema(self) -> Schema: ...

    def label(self) -> str:
        """One line for `explain`, without the inputs."""
        ...


class Breaker(Operator, Protocol):
    """`run` is one coroutine per plan. It may start tasks of its own in a TaskGroup."""

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None: ...


class Transform(Protocol):
    """An opened streaming operator."""

    def process(self, batch: Batch) -> Iterator[Batch]:
        """On worker threads, several at once. An empty batch among the output means only that work may pause here."""
        ...

    def finish(self) -> Iterator[Batch] | None:
        """What is left when the last batch of every worker was processed (e.g. unmatched build rows); None: nothing.

        Called once, on the loop or on a worker: the work is in the iterator, which a worker pulls, perhaps not to its
        end. Where nobody wants more rows it may not be called at all.
        """
        ...

    def close(self) -> None:
        """Gives back what is still held: nothing is pulled any more, whatever was wanted. Perhaps called again; not
        called where the plan fails, which gives back everything."""
        ...


class Streaming(Operator, Protocol):
    """`inputs[0]` is streamed; any further inputs are read to the end by `open`."""

    prefers_large_batches: ClassVar[bool]
    """Whether a batch costs so much whatever its size that small ones are joined first (`operators.coalesce`)."""

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> Transform: ...


def is_streaming(operator: Operator) -> TypeGuard[Streaming]:
    """`isinstance` with a protocol takes 40 us, and a plan has many operators."""
    return hasattr(operator, "open")


def is_breaker(operator: Operator) -> TypeGuard[Breaker]:
    return hasattr(operator, "run")
