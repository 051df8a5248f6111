"""A single-assignment value that tasks of one plan wait for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Set once, awaited by any number of tasks on the same loop."""

    def __init__(self) -> None:
        self.is_set = False
        self._value: T
        self._was_set: asyncio.Event | None = None
        """Once somebody waits."""

    def set(self, value: T) -> None:
        assert not self.is_set, "a slot is assigned once"
        self._value = value
        self.is_set = True
        if self._was_set is not None:
            self._was_set.set()

    async def wait(self) -> T:
        if not self.is_set:
            if self._was_set is None:
                self._was_set = asyncio.Event()
            await self._was_set.wait()
        return self._value
