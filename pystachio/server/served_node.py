"""What those who serve clients need of their node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from pystachio.operators.table import FileVersion
from pystachio.remote.description import NodeDescription
from pystachio.result import StartedPlan
from pystachio.runtime.host import NodeHost
from pystachio.server.file_looks import FileLooks
from pystachio.server.plane import Plane
from pystachio.session import SessionNode


class ServedPlan(StartedPlan, Protocol):
    """A plan whose rows are delivered elsewhere: `cluster_plan.ClusterPlan`."""

    async def take(self) -> pa.RecordBatch | None:
        """On the node's loop: the next rows, None after the last. Raises the plan's error."""
        ...


class ServedNode(SessionNode, Protocol):
    """`cluster_node.ClusterNode`, which says more. What blocks is not called on the loop."""

    @property
    def host(self) -> NodeHost: ...

    @property
    def plane(self) -> Plane: ...

    @property
    def name(self) -> str: ...

    @property
    def looks(self) -> FileLooks: ...

    def find_client_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]: ...

    def describe(self) -> NodeDescription: ...

    def drain(self, draining: bool = True) -> None: ...
