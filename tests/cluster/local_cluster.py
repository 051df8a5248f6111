"""Clusters of nodes in one process, each with a loop and a thread of its own: real networks, messages and plans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from pystachio import config as configuration
from pystachio.config import ClusterSettings
from pystachio.endpoint import Endpoint
from pystachio.planner.distribution.distribution import Preference
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.cluster_node import ClusterNode, until_members
from pystachio.session import Session

SECRET = b"the secret of a cluster in tests"
JOIN_SECONDS = 20


@contextmanager
def local_cluster(
    count: int,
    *,
    transport: str = "tcp",
    preference: Preference = Preference.BYTES,
    cluster: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[list[ClusterNode]]:
    """So many nodes that know of each other; the first one is the seed of the others. `cluster` adds to the settings
    of the cluster: even little plans run on all nodes unless they say otherwise."""
    chosen = {"threads": 1, "memory": "512MiB", "control_socket": False, "chunk_cache": False, **settings}
    loaded = configuration.load(None, **chosen).settings
    common = {"transport": transport, "watchdog_seconds": 0, "alone_bytes": 0}
    shared = ClusterSettings.model_validate({**common, **(cluster or {})})
    with ExitStack() as stack:
        nodes: list[ClusterNode] = []
        for number in range(count):
            seeds = (Address("", *nodes[0].address),) if nodes else ()
            node = ClusterNode(
                loaded,
                shared,
                name=f"n{number}",
                secret=SECRET,
                discovery=StaticDiscovery(*seeds),
                preference=preference,
            )
            nodes.append(stack.enter_context(closing(node)))
        for node in nodes:
            node.host.call(asyncio.wait_for(until_members(node, count), JOIN_SECONDS)).result()
        yield nodes


def session_on(node: ClusterNode) -> Session:
    return Session(node.settings, node=node)


def address_of(node: ClusterNode) -> Endpoint:
    return Endpoint(*node.address)
