"""An exchange whose consumer wants no rows: whoever would send some is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.exchanges.stream import BLOCKS_ON_THEIR_WAY
from pystachio.operators.values import Values
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Memory, Tier
from pystachio.runtime.metrics import OperatorMetrics
from pystachio.runtime.plan_entry import PlanEntry


class Peers:
    """Two others, who offer nothing yet."""

    here = 0
    nodes = ("a", "b", "c")
    others = (1, 2)

    def __init__(self) -> None:
        self.declined: list[tuple[int, int]] = []

    async def offered(self, node: int, name: str, number: int) -> int:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def decline(self, node: int, name: str, number: int) -> None:
        self.declined.append((node, number))


class NoRows:
    """The exchange's input here."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration

    def close(self) -> None:
        """Nothing comes of it."""


@pytest.mark.parametrize("is_memory_scarce", [False, True])
@pytest.mark.parametrize("turns", range(4))
async def test_everybody_is_declined_however_early_nobody_wants_rows(turns: int, is_memory_scarce: bool) -> None:
    class Unwanted:
        async def until_unwanted(self) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

    peers, metrics = Peers(), OperatorMetrics("exchange", SystemClock())
    memory = Memory({Tier.HOST: 1000}, SystemClock())
    plans = [PlanEntry(name, 1, number, lambda: None) for number, name in enumerate(("p", "holder", "waiter"))]
    own, holder, waiter = (memory.operator(plan, "exchange", metrics) for plan in plans)
    reservation = await holder.reserve(600 if is_memory_scarce else 0)
    waiting = asyncio.create_task(waiter.reserve(500))
    await asyncio.sleep(0)
    assert waiting.done() is not is_memory_scarce
    ctx = SimpleNamespace(peers=peers, memory=own, metrics=metrics)
    exchange = Exchange(Values((), ()), ExchangeKind.GATHER, 0)
    running = asyncio.create_task(exchange.run(cast(Context, ctx), (cast(Any, NoRows()),), cast(Any, Unwanted())))
    await asyncio.wait((running,), timeout=0.05)
    expected = {(node, number) for node in peers.others for number in range(BLOCKS_ON_THEIR_WAY + 1)}
    assert set(peers.declined) == expected
    reservation.release()
    async with asyncio.timeout(10):
        await asyncio.gather(running, waiting)
