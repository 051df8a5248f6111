"""A single-assignment value that tasks of one plan wait for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Set once, awaited by any number of tasks on the same loop."""

    def __init__(self) -> None:
        self._set = asyncio.Event()
        self._value: T

    @property
    def is_set(self) -> bool:
        return self._set.is_set()

    def set(self, value: T) -> None:
        assert not self._set.is_set(), "a slot is assigned once"
        self._value = value
        self._set.set()

    async def wait(self) -> T:
        await self._set.wait()
        return self._value
