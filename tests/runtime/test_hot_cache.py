"""What is kept while nobody needs the memory: the bounds, and what is worth keeping."""

from __future__ import annotations

import threading
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.runtime.hot_cache import HotCache, HotGroup


def fill(cache: HotCache[int], keys: range, *, nbytes: int = 10, seconds: float = 1.0) -> None:
    for key in keys:
        if cache.get(key) is None:
            cache.offer(key, key, nbytes=nbytes, seconds=seconds)


def kept(cache: HotCache[int], keys: range) -> set[int]:
    return {key for key in keys if cache.get(key) == key}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.integers(0, 9), st.integers(1, 60)),
            st.tuples(st.just("get"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("shrink"), st.integers(0, 120), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(0, 120),
)
def test_it_never_holds_more_than_it_may_nor_answers_what_it_was_not_given(
    steps: list[tuple[str, int, int]], room: int
) -> None:
    cache: HotCache[tuple[int, int]] = HotCache(100, lambda: room)
    given_last: dict[int, tuple[int, int]] = {}
    for number, (what, key, nbytes) in enumerate(steps):
        if what == "offer":
            if cache.offer(key, (key, number), nbytes=nbytes, seconds=0.1):
                given_last[key] = (key, number)
        elif what == "get":
            assert cache.get(key) in (None, given_last.get(key))
        else:
            cache.shrink_to(key)
            assert cache.nbytes <= key
        assert cache.nbytes <= min(100, room)
    assert cache.statistics().nbytes == cache.nbytes


def test_a_scan_of_twice_as_much_keeps_a_part() -> None:
    """The least recently used would keep nothing."""
    cache: HotCache[int] = HotCache(500)
    for _ in range(5):
        fill(cache, range(100))
    assert len(kept(cache, range(100))) >= 45


def test_what_is_asked_for_often_stays_beside_a_scan() -> None:
    cache: HotCache[int] = HotCache(500)
    for _ in range(5):
        fill(cache, range(40))
    fill(cache, range(1000, 1200))
    assert kept(cache, range(40)) == set(range(40))


def test_what_costs_more_to_make_displaces_what_costs_less() -> None:
    cache: HotCache[int] = HotCache(100)
    fill(cache, range(10), seconds=0.1)
    fill(cache, range(10, 20), seconds=1.0)
    assert len(kept(cache, range(10, 20))) >= 8, "the victim is the least valuable of a few"


def test_old_habits_are_forgotten() -> None:
    cache: HotCache[int] = HotCache(100)
    for _ in range(50):
        fill(cache, range(10))
    for start in range(1000, 200_000, 1000):
        fill(cache, range(start, start + 1000))
    fill(cache, range(500, 510))
    for _ in range(5):
        fill(cache, range(500, 510))
    assert len(kept(cache, range(500, 510))) == 10


def test_what_is_too_large_or_switched_off_is_not_kept() -> None:
    cache: HotCache[int] = HotCache(100)
    cache.get(1)
    assert not cache.offer(1, 1, nbytes=101, seconds=1.0)
    assert not cache.offer(1, 1, nbytes=0, seconds=1.0)
    off: HotCache[int] = HotCache(0)
    assert not off.enabled
    assert not off.offer(1, 1, nbytes=1, seconds=1.0)


def test_hits_and_misses_are_counted() -> None:
    cache: HotCache[int] = HotCache(100)
    fill(cache, range(3))
    fill(cache, range(3))
    seen = cache.statistics()
    assert (seen.entries, seen.nbytes, seen.hits, seen.misses) == (3, 30, 3, 3)
    cache.clear()
    assert cache.statistics().evicted == 3


def group_of(cache: HotCache[int], keys: range) -> HotGroup[int]:
    group = cache.group(keys)
    assert group is not None
    return group


def test_a_group_is_all_of_its_values_or_nothing() -> None:
    cache: HotCache[int] = HotCache(1000)
    fill(cache, range(10))
    before = cache.statistics()
    assert cache.group([*range(10), 10]) is None
    assert cache.statistics() == before, "nothing was asked for"
    group = group_of(cache, range(3, 7))
    group.derived["sum"] = sum(group.values)
    assert (group.values, group.nbytes) == ((3, 4, 5, 6), 40)
    assert cache.ask_again(group)
    assert group.derived == {"sum": 18}
    assert cache.statistics().hits == before.hits + 8, "each key counts, each time"


@pytest.mark.parametrize("how", ["evicted", "replaced", "cleared"])
def test_a_group_breaks_up_with_the_first_value_that_goes(how: str) -> None:
    cache: HotCache[int] = HotCache(1000)
    fill(cache, range(10))
    whole, other = group_of(cache, range(10)), group_of(cache, range(1, 10))
    whole.derived["something"] = object()
    if how == "evicted":
        cache.shrink_to(95)
    elif how == "replaced":
        cache.offer(0, -1, nbytes=10, seconds=1.0)
    else:
        cache.clear()
    assert not cache.ask_again(whole)
    assert (whole.values, whole.derived) == ((), {})
    assert cache.ask_again(other) == (kept(cache, range(1, 10)) == set(range(1, 10))) == (how != "cleared")
    again = cache.group(range(10))
    assert (None if again is None else again.values[0]) == (-1 if how == "replaced" else None)


def test_what_is_asked_for_in_groups_stays_beside_a_scan() -> None:
    cache: HotCache[int] = HotCache(500)
    fill(cache, range(40))
    group = group_of(cache, range(40))
    for _ in range(5):
        assert cache.ask_again(group)
    fill(cache, range(1000, 1200))
    assert cache.ask_again(group)


def test_a_group_that_nobody_holds_is_gone() -> None:
    cache: HotCache[int] = HotCache(1000)
    fill(cache, range(10))
    kept_one = group_of(cache, range(10))
    known = [ref(group_of(cache, range(10))) for _ in range(1000)]
    assert sum(group() is not None for group in known) < 100, "though nothing was offered since"
    assert max(len(entry.groups) for entry in cache._entries.values()) < 200
    cache.offer(50, 50, nbytes=1, seconds=1.0)
    assert not any(group() for group in known)
    assert cache.ask_again(kept_one)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.integers(0, 5), st.integers(1, 40)),
            st.tuples(st.just("group"), st.integers(0, 5), st.integers(1, 6)),
            st.tuples(st.just("shrink"), st.integers(0, 120), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_a_whole_group_has_what_is_kept(steps: list[tuple[str, int, int]]) -> None:
    cache: HotCache[tuple[int, int]] = HotCache(100)
    groups: list[HotGroup[tuple[int, int]]] = []
    for number, (what, key, size) in enumerate(steps):
        if what == "offer":
            cache.offer(key, (key, number), nbytes=size, seconds=0.1)
        elif what == "group":
            made = cache.group(range(key, min(6, key + size)))
            groups += [] if made is None else [made]
        else:
            cache.shrink_to(key)
        for group in groups:
            now = tuple(cache.get(key) for key in group.keys)
            assert cache.ask_again(group) == (len(group.values) > 0)
            assert group.values in ((), now)


def test_many_threads() -> None:
    cache: HotCache[int] = HotCache(1000)

    def work(seed: int) -> None:
        for step in range(3000):
            key = (step * 7 + seed) % 300
            value = cache.get(key)
            assert value in (None, key)
            cache.offer(key, key, nbytes=1 + key % 20, seconds=0.01)
            if step % 100 == 0:
                cache.shrink_to(500)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = cache.statistics()
    assert 0 < seen.nbytes <= 1000
    assert seen.hits + seen.misses == 12_000
