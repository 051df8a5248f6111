"""A session on a node elsewhere: `session.Session` for who has an address and a token."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pystachio.errors import InvalidRequest, PystachioError, shown
from pystachio.remote.connection import Connection, expected
from pystachio.remote.messages import (
    Answer,
    CancelPlan,
    Explain,
    Holds,
    Register,
    Registered,
    RegisterFolder,
    Statistics,
    Submit,
    Submitted,
    Tables,
    TablesAre,
    Text,
)
from pystachio.remote.parameters import values_of
from pystachio.remote.plan import RemotePlan
from pystachio.remote.rows import read_schema
from pystachio.result import Result
from pystachio.runtime.urgency import USUAL, Urgency, urgency

if TYPE_CHECKING:
    import pyarrow as pa

    from pystachio.io_scheduler.core.request import PriorityClass


@dataclass(frozen=True, slots=True)
class RemoteStatistics:
    """What the node holds now, for all its clients."""

    running_plans: int
    reserved_bytes: int
    leaks: int


class RemoteSession:
    """Tables by name and queries over them, on a node elsewhere. For several threads; `close` or `with` ends it.

    Paths are those of the node's machine. When the node is lost, whatever waits raises NodeLost within five seconds.
    """

    def __init__(self, connection: Connection, usual: Urgency = USUAL) -> None:
        self._connection = connection
        self._usual = usual
        self._close = weakref.finalize(self, connection.close)

    def register(self, name: str, source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        """As `Session.register`, with paths on the node's machine; for this session only."""
        if not isinstance(name, str) or not name:
            raise InvalidRequest("a table needs a name")
        paths = _paths(source)
        self._connection.ask(Registered, lambda number: Register(number, name, paths))

    def register_folder(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Each `name.parquet` and each folder `name/` of Parquet files on the node's machine; returns the names."""
        (path,) = _paths(folder)
        return self._connection.ask(Registered, lambda number: RegisterFolder(number, path)).names

    def tables(self) -> dict[str, pa.Schema]:
        """The tables with their columns: the node's, and those registered here."""
        answer = self._connection.ask(TablesAre, Tables)
        return {name: read_schema(schema) for name, schema in answer.tables.items()}

    def sql(
        self,
        sql: str,
        *,
        priority: PriorityClass | str | None = None,
        deadline: float | timedelta | None = None,
        parameters: Sequence[Any] = (),
    ) -> Result:
        """As `Session.sql`."""
        if not isinstance(sql, str):
            raise InvalidRequest(f"a statement must be text, not {type(sql).__name__}")
        wanted = urgency(priority, deadline, self._usual)
        values = values_of(parameters)
        name = wanted.priority.name.lower()
        return self._submit(lambda number: Submit(number, sql, None, values, name, wanted.deadline))

    def execute(
        self,
        plan: bytes,
        *,
        priority: PriorityClass | str | None = None,
        deadline: float | timedelta | None = None,
    ) -> Result:
        """As `Session.execute`."""
        if not isinstance(plan, bytes):
            raise InvalidRequest(f"a plan must be bytes, not {type(plan).__name__}")
        wanted = urgency(priority, deadline, self._usual)
        name = wanted.priority.name.lower()
        return self._submit(lambda number: Submit(number, None, plan, (), name, wanted.deadline))

    def explain(self, sql: str, *, parameters: Sequence[Any] = ()) -> str:
        """The physical plan as a tree; runs nothing."""
        if not isinstance(sql, str):
            raise InvalidRequest(f"a statement must be text, not {type(sql).__name__}")
        values = values_of(parameters)
        return self._connection.ask(Text, lambda number: Explain(number, sql, values)).text

    def statistics(self) -> RemoteStatistics:
        """What runs and is held on the node now."""
        answer = self._connection.ask(Holds, Statistics)
        return RemoteStatistics(answer.running_plans, answer.reserved_bytes, answer.leaks)

    def close(self) -> None:
        """Cancel this session's plans and leave. May be called twice."""
        self._close()

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteSession at {self._connection.welcome.node}, {self._connection.endpoint}>"

    def _submit(self, make: Callable[[int], Submit]) -> Result:
        answer = self._connection.post(make)
        try:
            submitted = expected(Submitted, answer.result())
        except KeyboardInterrupt:
            answer.add_done_callback(self._cancel)
            raise
        return Result(RemotePlan(self._connection, submitted, self))

    def _cancel(self, answer: Future[Answer]) -> None:
        """Nobody waits for the plan any more, which the node may have started."""
        with suppress(PystachioError):
            plan_id = expected(Submitted, answer.result()).plan_id
            self._connection.post(lambda number: CancelPlan(number, plan_id))


def _paths(source: object) -> tuple[str, ...]:
    """Raises InvalidRequest for what is no path and no list of paths."""
    given: list[Any] = (
        list(source) if isinstance(source, Sequence) and not isinstance(source, str | bytes) else [source]
    )
    try:
        paths = tuple(os.fspath(each) for each in given)
    except TypeError:
        paths = ()
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise InvalidRequest(f"not a path or a list of paths: {shown(source)}")
    return tuple(str(path) for path in paths)
