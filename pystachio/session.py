"""What a client holds: an embedded node, its tables, and the plans it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, overload

import pyarrow as pa

from pystachio import config as configuration
from pystachio.embedded import EmbeddedNode, SessionStatistics
from pystachio.errors import InternalError, InvalidRequest, PystachioError
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.network.tls import TlsFiles
from pystachio.operators.chunks.plans import ChunkPlans
from pystachio.operators.chunks.samples import ChunkSamples
from pystachio.operators.chunks.warm import WarmUp
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.catalog import Catalog, FindFiles, Source
from pystachio.planner.explain import render
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from pystachio.remote.door import open_connection, parse_address
from pystachio.remote.session import RemoteSession
from pystachio.result import Result, StartedPlan
from pystachio.runtime.urgency import USUAL, Urgency, urgency


@overload
def connect(
    address: None = None,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    threads: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    priority: PriorityClass | str | None = None,
    deadline: float | timedelta | None = None,
    **settings: Any,
) -> Session: ...


@overload
def connect(
    address: str,
    *,
    token: str | None = None,
    tls: TlsFiles | None = None,
    config: str | os.PathLike[str] | None = None,
    priority: PriorityClass | str | None = None,
    deadline: float | timedelta | None = None,
) -> RemoteSession: ...


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: TlsFiles | None = None,
    config: str | os.PathLike[str] | None = None,
    priority: PriorityClass | str | None = None,
    deadline: float | timedelta | None = None,
    **settings: Any,
) -> Session | RemoteSession:
    """A session on a node embedded in this process, or at `address` (`pystachio://host:port`).

    `memory` is bytes or text such as "2GiB": what running plans may hold together. `device` is auto, cpu or cuda:N.
    `config` names a TOML file; `settings` are further settings by name (see docs/configuration.md). `priority`
    (interactive, normal or batch) and `deadline` hold for queries that are given none of their own (`Session.sql`).
    A node elsewhere has its own settings; it wants a `token` (see `remote.door.open_connection`).
    Raises InvalidRequest for a setting that is unknown or bad, and for a node elsewhere NodeLost and Unauthorized.
    """
    usual = urgency(priority, deadline, USUAL)
    if address is not None:
        given = [name for name, value in settings.items() if value is not None]
        if given:
            raise InvalidRequest(
                f"settings of a node elsewhere cannot be changed from here: {', '.join(given)}",
                hint="they are in the configuration file that the node was started with",
            )
        return RemoteSession(open_connection(parse_address(address), token=token, tls=tls, config=config), usual)
    if token is not None or tls is not None:
        raise InvalidRequest("a token and TLS are for nodes elsewhere", hint="give an address: pystachio://host:port")
    return Session(configuration.load(config, **settings).settings, usual)


class SessionNode(Protocol):
    """What a session stands on: `embedded.EmbeddedNode`, which says more, or one that is a part of a cluster."""

    def find_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]: ...

    def read_footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]: ...

    def fetch(self, path: str, extents: Sequence[Extent]) -> list[HostBuffer]: ...

    @property
    def samples(self) -> ChunkSamples | None: ...

    @property
    def plans(self) -> ChunkPlans | None: ...

    def expect(self, urgency: Urgency) -> None: ...

    def as_run(self, plan: PhysicalPlan) -> PhysicalPlan: ...

    def submit(self, plan: PhysicalPlan, urgency: Urgency, label: str) -> StartedPlan: ...

    def statistics(self) -> SessionStatistics: ...

    def close(self) -> None: ...


class Session:
    """Tables by name and queries over them. Usable from several threads; `close` or `with` ends it."""

    def __init__(
        self,
        settings: configuration.Settings,
        usual: Urgency = USUAL,
        *,
        node: SessionNode | None = None,
        find_files: FindFiles | None = None,
        tables_of: Session | None = None,
    ) -> None:
        """`usual` holds for queries that are given no priority and no deadline. A `node` that is given outlives the
        session; by default it has one of its own. `find_files` stands in for the node's. The session begins with the
        `tables_of` another one, on the same node, as they are."""
        self._usual = usual
        self._owns_node = node is None
        self._node: SessionNode = EmbeddedNode(settings) if node is None else node
        self._catalog = Catalog(self._node.read_footers, find_files or self._node.find_files)
        if tables_of is not None:
            self._catalog.adopt(tables_of._catalog)
        self._planner = Planner(StatisticsCache(self._node.fetch, kept=self._node.samples), self._node.plans)
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
        return Result(self._start(_text(sql), wanted, parameters, called))

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
        return Result(self._start(plan, wanted, (), called))

    def start(self, statement: str | bytes, wanted: Urgency, parameters: Sequence[Any] = ()) -> StartedPlan:
        """As `sql` and `execute`, for who delivers the rows elsewhere: the plan runs until its end or `cancel`."""
        return self._start(statement, wanted, parameters, time.monotonic())

    def warm(self, name: str) -> Result:
        """Start to store all columns of a table, decoded, in the chunk cache on disk; as work of class batch.

        The result has a row for each piece of the table (`operators.chunks.warm.WarmUp`), and raises InvalidRequest
        where there is no such cache. Raises NotFound when there is no table of this name.
        """
        catalog = self._catalog.refresh()
        table = self._catalog.table(name)
        catalog.require_readable((table.name,))
        fields = table.files[0].fields if table.files else ()
        readable = {field.name for field in fields if field.leaf is not None}
        columns = tuple(position for position, field in enumerate(table.schema) if field.name in readable)
        plan = PhysicalPlan(WarmUp(table, columns), (), WarmUp.names)
        return Result(self._node.submit(plan, Urgency(PriorityClass.BATCH), f"warm {name}"))

    def explain(self, sql: str, *, parameters: Sequence[Any] = ()) -> str:
        """The physical plan as a tree; runs nothing."""
        return render(self._node.as_run(self._plan(_text(sql), parameters)))

    def statistics(self) -> SessionStatistics:
        """What runs and is held now."""
        return self._node.statistics()

    def close(self) -> None:
        """Cancel running plans and stop the node, if it is the session's own. May be called twice."""
        if self._owns_node:
            self._node.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, statement: str | bytes, wanted: Urgency, parameters: Sequence[Any], called: float) -> StartedPlan:
        self._node.expect(wanted)
        try:
            plan = self._plan(statement, parameters)
        finally:
            self._node.expect(USUAL)
        label = statement if isinstance(statement, str) else f"a Substrait plan of {len(statement)} bytes"
        return self._node.submit(plan, _from(called, wanted), label)

    def _plan(self, statement: str | bytes, parameters: Sequence[Any]) -> PhysicalPlan:
        if not isinstance(parameters, list | tuple):
            raise InvalidRequest(f"parameters must be a list or a tuple, not {type(parameters).__name__}")
        given, reorders = tuple(parameters), self._join_reordering
        try:
            # A statement that was planned before costs looks at its own tables, however many others there are.
            reads = self._planner.tables_known(statement, parameters=given, join_reordering=reorders)
            catalog = self._catalog.refresh(reads)
            return self._planner.plan(statement, catalog, parameters=given, join_reordering=reorders)
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
