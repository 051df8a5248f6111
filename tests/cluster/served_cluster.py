"""Clusters in one process whose nodes serve clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pystachio import config as configuration
from pystachio.config import ClusterSettings
from pystachio.io_scheduler.network.tls import TlsFiles
from pystachio.io_scheduler.network.tokens import Token, TokenRole, issue
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.cluster_node import ClusterNode, until_members
from pystachio.server.doorman import Doorman
from tests.cluster.local_cluster import JOIN_SECONDS, SECRET, address_of


@dataclass(frozen=True)
class ServedNode:
    node: ClusterNode
    doorman: Doorman

    @property
    def address(self) -> str:
        return f"pystachio://{address_of(self.node)}"


def token(role: TokenRole = TokenRole.CLIENT, *, secret: bytes = SECRET, expires_at: int | None = None) -> Token:
    return issue(secret, role, "test", expires_at=expires_at)


@contextmanager
def served_cluster(
    count: int, *data: Path, tls: TlsFiles | None = None, client_folders: Sequence[Path] | None = None, **settings: Any
) -> Iterator[list[ServedNode]]:
    chosen = {"threads": 1, "memory": "512MiB", "control_socket": False, "chunk_cache": False, **settings}
    loaded = configuration.load(None, **chosen).settings
    encrypted = (
        {} if tls is None else {"tls_certificate": tls.certificate, "tls_key": tls.key, "tls_authority": tls.authority}
    )
    cluster = ClusterSettings.model_validate(
        {"transport": "tcp", "watchdog_seconds": 0, "alone_bytes": 0, "client_folders": client_folders, **encrypted}
    )
    with ExitStack() as stack:
        served: list[ServedNode] = []
        for number in range(count):
            seeds = (Address("", *served[0].node.address),) if served else ()
            doorman = stack.enter_context(closing(Doorman(loaded, data, client_folders=client_folders)))
            node = ClusterNode(
                loaded,
                cluster,
                name=f"n{number}",
                secret=SECRET,
                discovery=StaticDiscovery(*seeds),
                visited=doorman.visited,
            )
            stack.enter_context(closing(node))
            served.append(ServedNode(node, doorman))
        for each in served:
            each.node.host.call(asyncio.wait_for(until_members(each.node, count), JOIN_SECONDS)).result()
            each.doorman.open(each.node)
        yield served
