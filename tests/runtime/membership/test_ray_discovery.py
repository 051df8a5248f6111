"""What a supervisor tells its node."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pystachio.errors import InternalError, InvalidRequest
from pystachio.runtime.membership.ray_discovery import RayDiscovery, addresses_in, line_of
from pystachio.runtime.membership.views import Address
from tests import virtual_time

A, B = Address("a", "10.0.0.1", 1), Address("b", "::1", 2)


def test_lines_are_read() -> None:
    assert addresses_in(line_of(["a=10.0.0.1:1", "b=[::1]:2"])) == (A, B)
    assert addresses_in(line_of([])) == ()


@pytest.mark.parametrize("line", [b"\xff=h:1\n", b"a=h:0\n", b"a=h:1 nothing\n", b"{}\n"])
def test_other_lines_are_refused_and_change_nothing(line: bytes) -> None:
    discovery = RayDiscovery()
    discovery.tell(b"a=10.0.0.1:1\n")
    with pytest.raises(InvalidRequest):
        discovery.tell(line)

    async def main() -> None:
        assert await anext(discovery.addresses()) == (A,)

    virtual_time.run(main())


async def test_all_addresses_at_each_change_from_another_thread() -> None:
    discovery = RayDiscovery()
    told = discovery.addresses()

    def tell(line: bytes) -> None:
        thread = threading.Thread(target=discovery.tell, args=(line,))
        thread.start()
        thread.join()

    async with asyncio.timeout(10):
        first = asyncio.ensure_future(anext(told))
        await asyncio.sleep(0)
        assert not first.done(), "nothing is known yet"
        tell(b"a=10.0.0.1:1\n")
        assert await first == (A,)
        tell(b"a=10.0.0.1:1\n")
        tell(b"a=10.0.0.1:1 b=[::1]:2\n")
        assert await anext(told) == (A, B)
        tell(b"\n")
        assert await anext(told) == ()


async def test_only_one_task_reads() -> None:
    discovery = RayDiscovery()
    discovery.tell(b"a=10.0.0.1:1\n")
    assert await anext(discovery.addresses()) == (A,)
    with pytest.raises(InternalError):
        await anext(discovery.addresses())


def test_a_node_that_has_ended_is_told_in_vain() -> None:
    discovery = RayDiscovery()
    discovery.tell(b"a=10.0.0.1:1\n")

    async def main() -> None:
        assert await anext(discovery.addresses()) == (A,)

    asyncio.run(main())
    discovery.tell(b"b=[::1]:2\n")
