"""A node, as a process, that sees a folder of its own under a path that all nodes have: disks that are not shared.

Arguments: the folder, the path, the node's name, the port of a seed or 0. Orders are lines of JSON on standard input.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys

from pystachio import config as configuration
from pystachio.config import ClusterSettings
from pystachio.errors import PystachioError
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.cluster_node import ClusterNode, until_members
from tests.cluster.local_cluster import JOIN_SECONDS, SECRET, session_on

NEW_MOUNTS = 0x20000
BIND = 0x1000
PRIVATE_BELOW = 0x40000 | 0x4000


def bind(folder: str, path: str) -> bool:
    """For this thread and those that it starts; False where the machine does not allow it."""
    libc = ctypes.CDLL(None)
    return (
        libc.unshare(NEW_MOUNTS) == 0
        and libc.mount(b"none", b"/", None, PRIVATE_BELOW, None) == 0
        and libc.mount(folder.encode(), path.encode(), None, BIND, None) == 0
    )


def main() -> None:
    folder, path, name, seed = sys.argv[1:]
    if not bind(folder, path):
        print("forbidden", flush=True)
        return
    settings = configuration.load(None, threads=1, memory="256MiB", control_socket=False, chunk_cache=False).settings
    seeds = (Address("", "127.0.0.1", int(seed)),) if int(seed) else ()
    node = ClusterNode(
        settings,
        ClusterSettings.model_validate({"transport": "tcp"}),
        name=name,
        secret=SECRET,
        discovery=StaticDiscovery(*seeds),
    )
    print(node.address[1], flush=True)
    session = session_on(node)
    for line in sys.stdin:
        order = json.loads(line)
        node.host.call(asyncio.wait_for(until_members(node, order["members"]), JOIN_SECONDS)).result()
        try:
            session.register("t", order["source"])
            rows = session.sql(order["sql"]).to_arrow().to_pylist()
            print(json.dumps([list(row.values()) for row in rows]), flush=True)
        except PystachioError as error:
            print(json.dumps(error.code), flush=True)
    node.close()


if __name__ == "__main__":
    main()
