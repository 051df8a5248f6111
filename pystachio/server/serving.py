"""A node's life as a server: it starts, serves clients, drains, and ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future

from pystachio.config import ClusterSettings, Settings, require_serviceable
from pystachio.endpoint import Endpoint
from pystachio.errors import InvalidRequest, Unauthorized
from pystachio.io_scheduler.network.handshake import ConnectedToItself
from pystachio.io_scheduler.network.tokens import read
from pystachio.runtime.logging import get_logger
from pystachio.runtime.membership.discovery import Discovery, StaticDiscovery
from pystachio.runtime.membership.ray_discovery import RayDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.cluster_node import ClusterNode, until_joined
from pystachio.server.doorman import Doorman
from pystachio.server.health import HealthServer

JOIN_SECONDS = 15.0
NAME_SECONDS = 10.0
"""A node that is started again is refused its own name until its old self is silent."""
_LOOK_SECONDS = 0.1


class ServingNode:
    """To be opened, and closed. All of it is for a thread that is not the node's."""

    def __init__(self, settings: Settings, cluster: ClusterSettings, *, supervisor: RayDiscovery | None = None) -> None:
        """The node listens when this returns. `supervisor` is what is told of other nodes with membership `ray`.

        Raises InvalidRequest for settings with which no node can start, however often it is tried: it would stand open
        or has no secret, and what `ClusterNode` raises. Raises ResourceExhausted and DataError for what may pass.
        """
        require_serviceable(cluster)
        assert cluster.secret_file is not None, "it was required"
        self._drain_seconds = cluster.drain_seconds
        self._doorman = Doorman(
            settings, cluster.data, client_folders=cluster.client_folders, most_plans=cluster.client_plans
        )
        asked = cluster.health_endpoint
        health = None if asked is None else HealthServer(asked, lambda: self._doorman.is_ready)
        self.node = ClusterNode(
            settings,
            cluster,
            name=cluster.name_at(cluster.endpoint.port or os.getpid()),
            secret=read(cluster.secret_file),
            discovery=discovery_of(cluster, supervisor),
            visited=self._doorman.visited,
            door=health,
        )
        self.health = None if health is None else health.address

    def open(self, is_to_stop: Callable[[], bool] = lambda: False) -> None:
        """Clients are served when this returns. Others are waited for no longer than until it `is_to_stop`. Raises what
        the cluster refuses this node with, and as the tables' folders raise."""
        if self.node.cluster.join:
            self._await_others(is_to_stop)
        self._doorman.open(self.node)

    @property
    def address(self) -> Endpoint:
        return Endpoint(*self.node.address)

    def drain(self) -> Future[bool]:
        """Take no more plans, and be done with True when those that run have ended, with False when they took too long.

        Plans of clients here and parts of other nodes' plans count alike.
        """
        self._doorman.stop()
        return self.node.host.call(self._settle())

    def close(self) -> None:
        """Cancel what runs, leave the cluster and end. May be called twice."""
        self.node.close()
        self._doorman.close()

    def _await_others(self, is_to_stop: Callable[[], bool]) -> None:
        """Who is told to join begins to serve as a member; where nobody is there it may be the first one.

        Raises what it is refused with by those who answer: alone it would be another cluster under the same name.
        """
        own = (self.address, self.node.advertised)
        others = frozenset(place for place in self.node.cluster.join_endpoints if place not in own)
        if not others:
            self._begin()
            return
        if self.node.host.call(self._joined(others, is_to_stop)).result():
            return
        failed = self.node.plane.failed.errors
        for place in sorted(others):
            reason = str(failed.get(place, "it has not answered yet"))
            get_logger().warning(
                "no node to join has answered: serving alone, and still trying", address=str(place), reason=reason
            )

    def _begin(self) -> None:
        get_logger().warning("the only node to join is this one: it begins a cluster", address=str(self.address))

    async def _joined(self, seeds: frozenset[Endpoint], is_to_stop: Callable[[], bool]) -> bool:
        """On the loop: whether it has joined, or need not: there is nobody else, or it is to stop."""
        joined = asyncio.ensure_future(until_joined(self.node))
        began = time.monotonic()
        try:
            while (waited := time.monotonic() - began) < JOIN_SECONDS:
                await asyncio.wait((joined,), timeout=_LOOK_SECONDS)
                if joined.done():
                    joined.result()
                    return True
                if is_to_stop():
                    return True
                failed = self.node.plane.failed.errors
                seeds = frozenset(p for p in seeds if not isinstance(failed.get(p), ConnectedToItself))
                if not seeds:
                    self._begin()
                    return True
                refused = {place: failed[place] for place in seeds if isinstance(failed.get(place), InvalidRequest)}
                is_final = all(isinstance(error, Unauthorized) for error in refused.values()) or waited >= NAME_SECONDS
                if len(refused) == len(seeds) and is_final:
                    break
        finally:
            joined.cancel()
        for place, error in sorted(refused.items()):
            kind = Unauthorized if isinstance(error, Unauthorized) else InvalidRequest
            raise kind(f"the cluster cannot be joined at {place}: {error.message}", hint=error.hint, node=error.node)
        return False

    async def _settle(self) -> bool:
        try:
            async with asyncio.timeout(self._drain_seconds):
                await self._doorman.settled()
                await self.node.fragments.settled()
        except TimeoutError:
            return False
        return True


def discovery_of(cluster: ClusterSettings, supervisor: RayDiscovery | None) -> Discovery:
    """Raises InvalidRequest for an address with port 0, and without the supervisor that membership `ray` needs."""
    if cluster.membership == "ray":
        if supervisor is None:
            raise InvalidRequest(
                "a node with membership ray is started by its supervisor",
                hint="pystachio-node ray up starts supervisors where Ray runs; a node by itself has membership static",
            )
        return supervisor
    seeds = [Address("", *endpoint) for endpoint in cluster.join_endpoints]
    known = [Address(peer.name, *peer.endpoint) for peer in cluster.static_peers]
    if any(address.port == 0 for address in (*seeds, *known)):
        raise InvalidRequest("a node to join listens on a port: it cannot be 0")
    return StaticDiscovery(*seeds, *known)
