"""What plans need of a node's way to the other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pystachio.errors import PystachioError
from pystachio.runtime.membership.views import Member, View


class Plane(Protocol):
    """The part of `control_plane.ControlPlane` that plans need, which says more."""

    @property
    def name(self) -> str: ...

    @property
    def view(self) -> View: ...

    def available(self) -> tuple[Member, ...]: ...

    def reaches(self, node: str) -> bool: ...

    def handle(self, kind: type[Any], handler: Callable[[str, Any], None]) -> None: ...

    def tell(self, node: str, message: Any) -> None: ...

    async def deliver(self, node: str, message: Any) -> None: ...

    def when_node_lost(self, callback: Callable[[str, PystachioError], None]) -> None: ...

    def when_view_changes(self, callback: Callable[[View], None]) -> None: ...

    def when_node_reached(self, callback: Callable[[str], None]) -> None: ...
