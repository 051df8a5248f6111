"""What a node listens at, by the word of the kernel: nothing that others could reach, unless it was told to."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

import pytest

from pystachio.config import ClusterSettings, require_serviceable
from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.devices.ucx_library import ucx_report
from tests.cluster.local_cluster import local_cluster

LISTENING = "0A"


def listeners() -> set[str]:
    """The addresses at which this process accepts TCP connections."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except OSError:
            continue
        if match is not None:
            inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add(f"{_host(address)} {int(port, 16)}")
    return found


def _host(text: str) -> str:
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_nodes_listen_on_the_loopback_device_alone(transport: str) -> None:
    if transport == "ucx" and ucx_report().version is None:
        pytest.skip("ucxx is not installed")
    before = listeners()
    with local_cluster(2, transport=transport) as nodes:
        opened = listeners() - before
        ports = {int(listener.split()[1]) for listener in opened}
        assert {node.address[1] for node in nodes} <= ports
        assert len(opened) == (2 if transport == "tcp" else 4), "UCX has a port of its own for each node"
        assert all(ipaddress.ip_address(listener.split()[0]).is_loopback for listener in opened), opened
    assert listeners() <= before | opened


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7100", "example.org:7100"])
def test_a_node_that_others_can_reach_does_not_start_without_a_secret(listen: str) -> None:
    with pytest.raises(InvalidRequest, match="secret"):
        require_serviceable(ClusterSettings.model_validate({"listen": listen, "advertise": "192.0.2.7:7100"}))
