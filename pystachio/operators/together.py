"""Several jobs of an operator, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of it at once; an error of a single one is not wrapped."""
    if len(work) == 1:
        return [await work[0]]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]
