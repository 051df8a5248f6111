"""What a client holds: an embedded node, its tables, and the plans it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa

from pystachio import config as configuration
from pystachio.embedded import EmbeddedNode, SessionStatistics
from pystachio.errors import InternalError, InvalidRequest, PystachioError, Unsupported
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.operators.chunk_warm import WarmUp
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.planner.catalog import Catalog, Source
from pystachio.planner.explain import render
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from pystachio.result import Result
from pystachio.runtime.urgency import USUAL, Urgency, urgency


def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    threads: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    priority: PriorityClass | str | None = None,
    deadline: float | timedelta | None = None,
    **settings: Any,
) -> Session:
    """A session on a node embedded in this process.

    `memory` is bytes or text such as "2GiB": what running plans may hold together. `device` is auto, cpu or cuda:N.
    `config` names a TOML file; `settings` are further settings by name (see docs/configuration.md). `priority`
    (interactive, normal or batch) and `deadline` hold for queries that are given none of their own (`Session.sql`).
    Raises InvalidRequest for a setting that is unknown or bad, Unsupported for an `address`.
    """
    if address is not None:
        raise Unsupported("sessions on remote nodes", hint="connect() without an address embeds a node here")
    usual = urgency(priority, deadline, USUAL)
    loaded = configuration.load(config, memory=memory, device=device, threads=threads, spill_dir=spill_dir, **settings)
    return Session(loaded.settings, usual)


class Session:
    """Tables by name and queries over them. Usable from several threads; `close` or `with` ends it."""

    def __init__(self, settings: configuration.Settings, usual: Urgency = USUAL) -> None:
        """`usual` holds for queries that are given no priority and no deadline."""
        self._usual = usual
        self._node = EmbeddedNode(settings)
        self._catalog = Catalog(self._node.read_footers)
        self._planner = Planner(StatisticsCache(self._node.fetch, kept=self._node.samples))
        self._join_reordering = settings.join_reordering

    def register(self, name: str, source: Source) -> None:
        """Make Parquet files known as table `name`: a file, a folder, a glob pattern, or a list of these.

        Footers are read at once. Raises NotFound, Unauthorized, DataError (not Parquet, or schemas that differ),
        InvalidRequest, Unsupported (object stores, Hive partition folders).
        """
        self._catalog.register(name, source)

    def tables(self) -> dict[str, pa.Schema]:
        """The registered tables with their columns."""
        return {
            name: pa.schema([pa.field(field.name, field.type, field.nullable) for field in table.schema])
            for name, table in self._catalog.tables().items()
        }

    def sql(
        self,
        sql: str,
        *,
        priority: PriorityClass | str | None = None,
        deadline: float | timedelta | None = None,
        parameters: Sequence[Any] = (),
    ) -> Result:
        """Plan one query and start it; the rows come through the result.

        `priority` is interactive, normal (the default, unless the session has another) or batch. `deadline` is in
        seconds from now: of the interactive queries the one that is due first goes first. It ends nothing, and a query
        with a deadline and no priority is interactive. `parameters` are the values of $1, $2, ...

        Raises SqlSyntaxError, NotFound, InvalidRequest or Unsupported at once; what goes wrong later is raised by the
        result.
        """
        called = time.monotonic()
        wanted = urgency(priority, deadline, self._usual)
        self._node.expect(wanted)
        return Result(self._node.submit(self._plan(_text(sql), parameters), _from(called, wanted), sql))

    def execute(
        self,
        plan: bytes,
        *,
        priority: PriorityClass | str | None = None,
        deadline: float | timedelta | None = None,
    ) -> Result:
        """Start a Substrait plan (protobuf bytes) whose named tables are registered; otherwise as `sql`."""
        called = time.monotonic()
        wanted = urgency(priority, deadline, self._usual)
        if not isinstance(plan, bytes):
            raise InvalidRequest(f"a plan must be bytes, not {type(plan).__name__}")
        self._node.expect(wanted)
        label = f"a Substrait plan of {len(plan)} bytes"
        return Result(self._node.submit(self._plan(plan, ()), _from(called, wanted), label))

    def warm(self, name: str) -> Result:
        """Start to store all columns of a table, decoded, in the chunk cache on disk; as work of class batch.

        The result has a row for each piece of the table (`operators.chunk_warm.WarmUp`), and raises InvalidRequest
        where there is no such cache. Raises NotFound when there is no table of this name.
        """
        self._catalog.refresh()
        table = self._catalog.table(name)
        fields = table.files[0].fields if table.files else ()
        readable = {field.name for field in fields if field.leaf is not None}
        columns = tuple(position for position, field in enumerate(table.schema) if field.name in readable)
        plan = PhysicalPlan(WarmUp(table, columns), (), WarmUp.names)
        return Result(self._node.submit(plan, Urgency(PriorityClass.BATCH), f"warm {name}"))

    def explain(self, sql: str, *, parameters: Sequence[Any] = ()) -> str:
        """The physical plan as a tree; runs nothing."""
        return render(self._plan(_text(sql), parameters))

    def statistics(self) -> SessionStatistics:
        """What runs and is held now."""
        return self._node.statistics()

    def close(self) -> None:
        """Cancel running plans and stop the node. May be called twice."""
        self._node.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _plan(self, statement: str | bytes, parameters: Sequence[Any]) -> PhysicalPlan:
        if not isinstance(parameters, Sequence) or isinstance(parameters, str | bytes):
            raise InvalidRequest(f"parameters must be a list or a tuple, not {type(parameters).__name__}")
        try:
            return self._planner.plan(
                statement,
                self._catalog.refresh(),
                parameters=tuple(parameters),
                join_reordering=self._join_reordering,
            )
        except PystachioError:
            raise
        except Exception as error:
            raise InternalError(f"planning failed: {type(error).__name__}: {error}") from error


def _text(sql: str) -> str:
    if not isinstance(sql, str):
        raise InvalidRequest(f"a statement must be text, not {type(sql).__name__}")
    return sql


def _from(called: float, wanted: Urgency) -> Urgency:
    """The urgency as of now: a deadline counts from the call, and planning has taken a part of it."""
    if wanted.deadline is None:
        return wanted
    return wanted._replace(deadline=wanted.deadline - (time.monotonic() - called))
