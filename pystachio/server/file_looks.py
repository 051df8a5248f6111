"""Looks at files that clients and other nodes name: file systems may hang, and nothing else may wait for them.

A thread in a system call that hangs is lost until the file system answers. So few of them are lost below one mount:
what hangs is not looked at again meanwhile, nor is anything below a mount where several looks hang.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.devices.disks import mount_points
from pystachio.planner.file_patterns import limited

R = TypeVar("R")
T = TypeVar("T")

MOST_AT_ONCE = 4
"""Looks below one mount, with those that hang: when all do, nothing below it is looked at."""
MOST_THREADS = 64
"""Of looks underway, and again of those that hang. Every mount gets one beyond either, so that none stops another."""
_OWN_SHARE = 0.75
"""Of the seconds of a look: what has more to do than that ends by itself, and does not count as hanging."""
_LATE_SECONDS = 0.1
"""A timer that is so late says nothing of file systems: this process stood still, and what was answered had no turn."""
_MOST_PLACES = 1 << 16
_ROOT = "/"


class _Look(Generic[R]):
    """What one thread does, and who waits for it."""

    def __init__(self, place: str, key: tuple[str, ...], work: Callable[[], R], answer: asyncio.Future[R]) -> None:
        self.place = place
        self.key = key
        self.work = work
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None
        """Of a look that has begun."""
        self.has_time_again = False
        self.hangs = False
        self.has_ended = False


class FileLooks:
    """Threads of their own, which nobody waits for longer than `seconds`: not even the end of the process. When
    they are over late, because all of the process stood still, they begin again, once.

    On the loop.
    """

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds
        self._places = Places()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._underway: Counter[str] = Counter()
        """Threads by place, without those that hang."""
        self._hanging: Counter[str] = Counter()
        self._hanging_keys: Counter[tuple[str, ...]] = Counter()
        self._waiting: dict[str, deque[_Look[Any]]] = {}
        """By place; those without any are left out."""

    async def look(self, work: Callable[[Sequence[T]], R], things: Sequence[T], path_of: Callable[[T], str]) -> list[R]:
        """What the function returns for runs of the things that lie below one mount each, in their order; or raises.

        Raises ResourceExhausted when that takes too long or cannot be begun; what has begun is left alone then, but
        goes through no more patterns and folders (`file_patterns.limited`).
        """
        runs = [(place, list(run)) for place, run in groupby(things, lambda thing: self._places.of(path_of(thing)))]
        if len(runs) == 1:
            return [await self._look(work, *runs[0], path_of)]
        try:
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(self._look(work, place, run, path_of)) for place, run in runs]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [each.result() for each in looks]

    async def look_at(self, work: Callable[[str], R], path: str) -> R:
        """What the function returns for the path, or raises.

        It waits for its turn as long as others below the mount get theirs. Raises ResourceExhausted as `look`.
        """
        return await self._wait_for(self._new_look(self._places.of(path), (path,), lambda: work(path)), None)

    def close(self) -> None:
        """Threads end as soon as their file systems let them."""
        for _ in range(self._threads):
            self._work.put(None)

    async def _look(
        self, work: Callable[[Sequence[T]], R], place: str, things: Sequence[T], path_of: Callable[[T], str]
    ) -> R:
        key = tuple(map(path_of, things))

        def run() -> R:
            with limited(self.seconds * _OWN_SHARE):
                result = work(things)
            self._places.learn(key)
            return result

        return await self._wait_for(self._new_look(place, key, run), self.seconds)

    def _new_look(self, place: str, key: tuple[str, ...], work: Callable[[], R]) -> _Look[R]:
        return _Look(place, key, work, asyncio.get_running_loop().create_future())

    async def _wait_for(self, look: _Look[R], seconds: float | None) -> R:
        """From when it is asked for; None: only as long as it takes once it has begun."""
        if self._is_hopeless(look):
            raise self._refusal()
        self._waiting.setdefault(look.place, deque()).append(look)
        self._begin_more()
        loop = asyncio.get_running_loop()
        try:
            began = loop.time()
            await asyncio.wait((look.answer,), timeout=seconds)
            if not look.answer.done() and _stood_still(loop.time(), began, seconds):
                await asyncio.wait((look.answer,), timeout=seconds)
            if not look.answer.done():
                # Whether it hangs is seen when it has had as long itself: it may have waited for its turn.
                raise self._refusal()
            return look.answer.result()
        finally:
            look.answer.cancel()  # nobody takes it any more
            if look.timer is None:
                self._withdraw(look)

    def _refusal(self) -> ResourceExhausted:
        return ResourceExhausted(
            f"a file system does not say which files it has within {self.seconds:g} seconds",
            setting="cluster_file_seconds",
            value=self.seconds,
            hint="a mount of the node may hang; other files can still be read",
        )

    def _is_hopeless(self, look: _Look[Any]) -> bool:
        # Until links are followed they count where they lie, often below the root: one says little of others there.
        most = MOST_THREADS // 2 if look.place == _ROOT else MOST_AT_ONCE if self._hanging.total() < MOST_THREADS else 1
        return look.key in self._hanging_keys or self._hanging[look.place] >= most

    def _begin_more(self) -> None:
        """Whatever there is room for."""
        for place in list(self._waiting):
            waiting = self._waiting[place]
            while waiting:
                if waiting[0].answer.done():
                    waiting.popleft()
                elif self._is_hopeless(waiting[0]):
                    waiting.popleft().answer.set_exception(self._refusal())
                elif self._has_room(place):
                    self._begin(waiting.popleft())
                else:
                    break
            if not waiting:
                del self._waiting[place]

    def _has_room(self, place: str) -> bool:
        if self._underway.total() >= MOST_THREADS and self._underway[place]:
            return False
        return self._underway[place] + (self._hanging[place] if place != _ROOT else 0) < MOST_AT_ONCE

    def _begin(self, look: _Look[Any]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            result, error = _outcome(look.work)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._note_end, look, result, error)

        self._underway[look.place] += 1
        if self._underway.total() + self._hanging.total() > self._threads:
            self._threads += 1
            threading.Thread(target=self._run, name="pystachio-looking", daemon=True).start()
        look.timer = loop.call_later(self.seconds, self._note_hanging, look, loop.time())
        self._work.put(run)

    def _note_hanging(self, look: _Look[Any], began: float) -> None:
        """Too much time has passed."""
        if look.timer is None or look.hangs or look.has_ended:
            return
        loop = asyncio.get_running_loop()
        if not look.has_time_again and _stood_still(loop.time(), began, self.seconds):
            look.has_time_again = True
            look.timer = loop.call_later(self.seconds, self._note_hanging, look, loop.time())
            return
        look.hangs = True
        look.timer.cancel()
        self._underway[look.place] -= 1
        self._hanging[look.place] += 1
        self._hanging_keys[look.key] += 1
        if not look.answer.done():
            look.answer.set_exception(self._refusal())
        self._begin_more()

    def _note_end(self, look: _Look[R], result: R, error: BaseException | None) -> None:
        assert look.timer is not None
        look.timer.cancel()
        look.has_ended = True
        if look.hangs:
            self._hanging[look.place] -= 1
            self._hanging_keys[look.key] -= 1
            if not self._hanging_keys[look.key]:
                del self._hanging_keys[look.key]
        else:
            self._underway[look.place] -= 1
        if not look.answer.done():
            if error is None:
                look.answer.set_result(result)
            else:
                look.answer.set_exception(error)
        self._begin_more()

    def _withdraw(self, look: _Look[Any]) -> None:
        """Nobody waits for it any more, and it has not begun."""
        waiting = self._waiting.get(look.place)
        if waiting is not None:
            with suppress(ValueError):
                waiting.remove(look)
            if not waiting:
                del self._waiting[look.place]

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class Places:
    """Below which mount a path lies, without a look at it: it may be one that hangs. For several threads."""

    def __init__(self) -> None:
        self._mounts = mount_points()
        self._found: dict[str, str] = {}

    def of(self, path: str) -> str:
        """As far as the path says, and where its links, or its folder's, led when it was last new."""
        return self._found.get(path) or self._found.get(os.path.dirname(path)) or self._mount_above(path)

    def learn(self, paths: Sequence[str]) -> None:
        """Paths that can be looked at. Blocks."""
        new = [path for path in paths if path not in self._found]
        if not new:
            return
        if len(self._found) > _MOST_PLACES:
            self._found.clear()
        self._mounts = mount_points()
        for path in new:
            self._found[path] = self._mount_above(os.path.realpath(path))

    def _mount_above(self, path: str) -> str:
        while path not in self._mounts:
            above = os.path.dirname(path)
            if above == path:
                return _ROOT
            path = above
        return path


def _stood_still(now: float, began: float, seconds: float | None) -> bool:
    """What should have taken so many seconds has taken many more."""
    return seconds is not None and now - began > seconds + _LATE_SECONDS


def _outcome(work: Callable[[], R]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # the waiter's, whatever it is
        return None, error
