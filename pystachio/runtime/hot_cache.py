"""Values that took time to make, kept in memory that nobody needs at the moment.

What a value is worth is how often it was asked for lately, times the seconds it took to make, for each of its bytes. A
newcomer displaces the least valuable of a few random ones, and only when it is worth more, as in TinyLFU (Einziger,
Friedman, Manes: "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage 13(4), 2017): a scan
of more than there is room for keeps a part of it, instead of displacing everything and keeping nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

V = TypeVar("V")

_SAMPLE = 8
_LEAST_REMEMBERED = 1 << 14
"""Keys whose uses are counted, whether kept or not; uses are halved when there are more than a few per kept key."""
_REMEMBERED_PER_ENTRY = 4
_FEW_GROUPS = 16
"""An entry that has as many, or twice as many as it needed last, lets go of those that nobody holds any more."""
_MOST_ASKED = 32
"""Groups whose uses are not counted for each key yet; the cache holds them as long."""


@dataclass(frozen=True, slots=True)
class HotCacheStatistics:
    """`hits` and `misses` count calls of `get`."""

    nbytes: int
    entries: int
    hits: int
    misses: int
    evicted: int


class HotGroup(Generic[V]):
    """Values that are asked for together, by somebody who holds the group: all that were kept under the `keys`.

    `derived` is what others have made of the values. Both are empty once one of the values is not kept any more.
    """

    def __init__(self, keys: Sequence[Hashable], values: Sequence[V], nbytes: int) -> None:
        self.keys = tuple(keys)
        self.values = tuple(values)
        self.nbytes = nbytes
        self.derived: dict[Hashable, object] = {}
        self.is_whole = True
        self.uses = 0
        """That the cache has not counted for each key."""

    def break_up(self) -> None:
        """By the cache: who works with the values holds them."""
        self.is_whole = False
        self.values, self.derived = (), {}


@dataclass(slots=True, eq=False)
class _Entry(Generic[V]):
    value: V
    nbytes: int
    seconds: float
    position: int
    """In the list of keys."""
    groups: list[ReferenceType[HotGroup[V]]] = field(default_factory=list)
    most_groups: int = _FEW_GROUPS


class HotCache(Generic[V]):
    """Keeps at most `most_bytes`, and no more than there is `room` for. Safe for several threads."""

    def __init__(self, most_bytes: int, room: Callable[[], int] | None = None) -> None:
        """`room` says how many bytes the others leave, now."""
        self._most_bytes = most_bytes
        self._room = room
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry[V]] = {}
        self._keys: list[Hashable] = []
        self._uses: dict[Hashable, int] = {}
        self._asked: list[HotGroup[V]] = []
        """Groups with uses that are not counted for each key."""
        self._random = Random(0)
        self._hits = 0
        self._misses = 0
        self._evicted = 0
        self.nbytes = 0

    @property
    def enabled(self) -> bool:
        return self._most_bytes > 0

    def get(self, key: Hashable) -> V | None:
        """The value; None when it is not kept. Either way the key counts as asked for."""
        found = self.get_all((key,))[0]
        return None if found is None else found[0]

    def get_all(self, keys: Sequence[Hashable]) -> list[tuple[V, int] | None]:
        """As `get` for each key: the values with their bytes."""
        with self._lock:
            uses = self._uses
            for key in keys:
                uses[key] = uses.get(key, 0) + 1
            entries = list(map(self._entries.get, keys))
            missed = entries.count(None)
            self._misses += missed
            self._hits += len(entries) - missed
        return [None if entry is None else (entry.value, entry.nbytes) for entry in entries]

    def group(self, keys: Sequence[Hashable]) -> HotGroup[V] | None:
        """The values of all these keys as one; None, and nothing counts as asked for, when one of them is not kept."""
        with self._lock:
            entries: list[_Entry[V]] = []
            for key in keys:
                entry = self._entries.get(key)
                if entry is None:
                    return None
                entries.append(entry)
            group = HotGroup(keys, [entry.value for entry in entries], sum(entry.nbytes for entry in entries))
            known = ref(group)
            for entry in entries:
                if len(entry.groups) >= entry.most_groups:
                    entry.groups = [each for each in entry.groups if each() is not None]
                    entry.most_groups = max(_FEW_GROUPS, 2 * len(entry.groups))
                entry.groups.append(known)
        return group if self.ask_again(group) else None

    def ask_again(self, group: HotGroup[V]) -> bool:
        """As `get` for each of its keys, in one step: whether all of them are still kept."""
        with self._lock:
            if not group.is_whole:
                return False
            if not group.uses:
                if len(self._asked) >= _MOST_ASKED:
                    self._count_uses_of_groups()
                self._asked.append(group)
            group.uses += 1
            self._hits += len(group.keys)
            return True

    def offer(self, key: Hashable, value: V, *, nbytes: int, seconds: float) -> bool:
        """Keep a value that took so long to make, if it is worth its bytes; says whether it is kept."""
        with self._lock:
            if not 0 < nbytes <= self._most_bytes:
                return False
            self._count_uses_of_groups()
            self._forget_old_uses()
            if key in self._entries:
                self._remove(key)
            if not self._make_room(nbytes, self._worth(key, nbytes, seconds)):
                return False
            self._entries[key] = _Entry(value, nbytes, seconds, len(self._keys))
            self._keys.append(key)
            self.nbytes += nbytes
            return True

    def shrink_to(self, nbytes: int) -> None:
        """Others need the memory: keep no more than so many bytes."""
        if self.nbytes <= nbytes:
            return
        with self._lock:
            self._count_uses_of_groups()
            while self._keys and self.nbytes > nbytes:
                self._evict(self._least_valuable())

    def clear(self) -> None:
        with self._lock:
            self._evicted += len(self._entries)
            for entry in self._entries.values():
                _break_up(entry)
            self._asked.clear()
            self._entries.clear()
            self._keys.clear()
            self.nbytes = 0

    def statistics(self) -> HotCacheStatistics:
        with self._lock:
            return HotCacheStatistics(self.nbytes, len(self._entries), self._hits, self._misses, self._evicted)

    def _make_room(self, nbytes: int, worth: float) -> bool:
        limit = self._most_bytes if self._room is None else min(self._most_bytes, self._room())
        while self.nbytes + nbytes > limit:
            if not self._keys:
                return False
            victim = self._least_valuable()
            entry = self._entries[victim]
            if self._worth(victim, entry.nbytes, entry.seconds) >= worth:
                return False
            self._evict(victim)
        return True

    def _least_valuable(self) -> Hashable:
        sample = [self._keys[self._random.randrange(len(self._keys))] for _ in range(_SAMPLE)]
        return min(sample, key=self._worth_of_kept)

    def _worth_of_kept(self, key: Hashable) -> float:
        entry = self._entries[key]
        return self._worth(key, entry.nbytes, entry.seconds)

    def _worth(self, key: Hashable, nbytes: int, seconds: float) -> float:
        return self._uses.get(key, 0) * seconds / nbytes

    def _evict(self, key: Hashable) -> None:
        self._remove(key)
        self._evicted += 1

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key)
        _break_up(entry)
        last = self._keys.pop()
        if last != key:
            self._keys[entry.position] = last
            self._entries[last].position = entry.position
        self.nbytes -= entry.nbytes

    def _count_uses_of_groups(self) -> None:
        for group in self._asked:
            for key in group.keys:
                self._uses[key] = self._uses.get(key, 0) + group.uses
            group.uses = 0
        self._asked.clear()

    def _forget_old_uses(self) -> None:
        if len(self._uses) > max(_LEAST_REMEMBERED, _REMEMBERED_PER_ENTRY * len(self._entries)):
            self._uses = {key: uses // 2 for key, uses in self._uses.items() if uses > 1}


def _break_up(entry: _Entry[V]) -> None:
    for known in entry.groups:
        group = known()
        if group is not None:
            group.break_up()
