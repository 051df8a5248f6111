"""What a client holds: an embedded node, its tables, and the plans it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from pystachio import config as configuration
from pystachio.embedded import EmbeddedNode, SessionStatistics
from pystachio.errors import InternalError, InvalidRequest, PystachioError, Unsupported
from pystachio.io_scheduler.request import PriorityClass
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.planner.catalog import Catalog, Source
from pystachio.planner.explain import render
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from pystachio.result import Result


def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    threads: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Session:
    """A session on a node embedded in this process.

    `memory` is bytes or text such as "2GiB": what running plans may hold together. `device` is auto, cpu or cuda:N.
    `config` names a TOML file; `settings` are further settings by name (see docs/configuration.md).
    Raises InvalidRequest for a setting that is unknown or bad, Unsupported for an `address`.
    """
    if address is not None:
        raise Unsupported("sessions on remote nodes", hint="connect() without an address embeds a node here")
    loaded = configuration.load(config, memory=memory, device=device, threads=threads, spill_dir=spill_dir, **settings)
    return Session(loaded.settings)


class Session:
    """Tables by name and queries over them. Usable from several threads; `close` or `with` ends it."""

    def __init__(self, settings: configuration.Settings) -> None:
        self._node = EmbeddedNode(settings)
        self._catalog = Catalog(self._node.read_footers)
        self._planner = Planner(StatisticsCache(self._node.fetch))
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
        priority: PriorityClass | str = PriorityClass.NORMAL,
        parameters: Sequence[Any] = (),
    ) -> Result:
        """Plan one query and start it; the rows come through the result.

        `parameters` are the values of $1, $2, ... Raises SqlSyntaxError, NotFound, InvalidRequest or Unsupported at
        once; what goes wrong later is raised by the result.
        """
        urgency = _priority(priority)
        return Result(self._node.submit(self._plan(_text(sql), parameters), urgency))

    def execute(self, plan: bytes, *, priority: PriorityClass | str = PriorityClass.NORMAL) -> Result:
        """Start a Substrait plan (protobuf bytes) whose named tables are registered. Raises as `sql` does."""
        urgency = _priority(priority)
        if not isinstance(plan, bytes):
            raise InvalidRequest(f"a plan must be bytes, not {type(plan).__name__}")
        return Result(self._node.submit(self._plan(plan, ()), urgency))

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


def _priority(priority: PriorityClass | str) -> PriorityClass:
    if isinstance(priority, PriorityClass):
        return priority
    names = {member.name.lower(): member for member in PriorityClass}
    if not isinstance(priority, str) or priority.lower() not in names:
        raise InvalidRequest(f"no such priority: {priority!r}", hint=f"one of {', '.join(names)}")
    return names[priority.lower()]
