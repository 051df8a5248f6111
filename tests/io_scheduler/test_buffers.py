from __future__ import annotations

import gc
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import ResourceExhausted
from pystachio.io_scheduler.buffers import HUGE_PAGE_BYTES, PAGE_BYTES, BufferPool, Slab, SpareSlabs

MIB = 1 << 20


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_buffers_are_exact_page_aligned_and_writable() -> None:
    pool = BufferPool()
    views = [pool.acquire(length) for length in (1, 4096, 4097, 300_000)]
    assert [len(view) for view in views] == [1, 4096, 4097, 300_000]
    assert all(address(view) % PAGE_BYTES == 0 and not view.readonly and view.format == "B" for view in views)
    # First-fit from a slab's aligned start.
    assert address(views[0]) % HUGE_PAGE_BYTES == 0


def test_adjacent_buffers_return_one_by_one_and_not_under_the_whole() -> None:
    pool = BufferPool(slab_bytes=4 * MIB)
    lengths = [PAGE_BYTES, 3 * PAGE_BYTES, 2 * PAGE_BYTES]
    whole, parts = pool.acquire_adjacent(lengths)
    assert [len(part) for part in parts] == lengths
    assert len(whole) == sum(lengths)
    starts = [address(part) - address(whole) for part in parts]
    assert starts == [0, PAGE_BYTES, 4 * PAGE_BYTES]
    whole[PAGE_BYTES] = 7
    assert parts[1][0] == 7
    assert pool.statistics().used_bytes == sum(lengths)
    kept, begin = parts[1], address(whole)
    del parts
    gc.collect()
    assert pool.statistics().used_bytes == sum(lengths), "the whole may still be written to"
    del whole
    gc.collect()
    assert pool.statistics().used_bytes == lengths[1]
    # What is free is given out again, around what is not.
    assert address(pool.acquire(PAGE_BYTES)) == begin
    assert kept[0] == 7
    del kept
    gc.collect()
    assert (pool.statistics().used_bytes, pool.statistics().blocks) == (0, 0)


def test_memory_is_reused_and_not_mapped_again() -> None:
    pool = BufferPool(slab_bytes=4 * MIB)
    seen = set()
    for _ in range(10):
        view = pool.acquire(3 * MIB)
        seen.add(address(view))
        del view
    assert len(seen) == 1
    statistics = pool.statistics()
    assert (statistics.fresh_slabs, statistics.acquired_blocks, statistics.blocks) == (1, 10, 0)


@pytest.mark.parametrize("keep", [memoryview, pa.py_buffer, lambda view: torch.frombuffer(view, dtype=torch.uint8)])
def test_a_view_of_any_library_keeps_the_memory(keep: object) -> None:
    pool = BufferPool()
    view = pool.acquire(1000)
    view[:] = b"x" * 1000
    kept = keep(view[10:20])  # type: ignore[operator]
    del view
    assert pool.statistics().used_bytes == PAGE_BYTES
    other = pool.acquire(1000)
    other[:] = b"y" * 1000
    assert bytes(kept.numpy() if isinstance(kept, torch.Tensor) else kept) == b"x" * 10
    del kept, other
    gc.collect()
    assert pool.statistics().used_bytes == 0


def test_a_request_larger_than_a_slab_gets_its_own() -> None:
    pool = BufferPool(slab_bytes=2 * MIB)
    view = pool.acquire(5 * MIB)
    assert len(view) == 5 * MIB
    assert pool.statistics().idle_bytes == 1 * MIB


def test_idle_memory_is_bounded() -> None:
    pool = BufferPool(slab_bytes=2 * MIB, idle_bytes=4 * MIB)
    views = [pool.acquire(2 * MIB) for _ in range(10)]
    assert pool.statistics().used_bytes == 20 * MIB
    del views
    assert pool.statistics().idle_bytes == 4 * MIB
    pool.close()
    assert pool.statistics().slabs == 0


def test_a_closed_pool_leaves_its_memory_to_the_next() -> None:
    spare = SpareSlabs(16 * MIB)
    first = BufferPool(slab_bytes=2 * MIB, spare=spare)
    views = [first.acquire(2 * MIB) for _ in range(3)]
    addresses = {address(view) for view in views}
    kept = views.pop()
    del views
    first.close()
    assert spare.nbytes == 4 * MIB, "what is in use is not given away"
    kept[:4] = b"kept"
    second = BufferPool(slab_bytes=2 * MIB, spare=spare)
    taken = [second.acquire(2 * MIB) for _ in range(2)]
    assert {address(view) for view in taken} == addresses - {address(kept)}
    for view in taken:
        view[:] = b"\1" * len(view)
    assert bytes(kept[:4]) == b"kept"
    assert second.statistics().fresh_slabs == 0
    del kept, view
    assert address(second.acquire(2 * MIB)) in addresses, "what a closed pool had in use follows when it is free"


def test_spare_memory_is_bounded_and_of_the_right_size() -> None:
    spare = SpareSlabs(5 * MIB)
    pool = BufferPool(slab_bytes=2 * MIB, spare=spare)
    del [pool.acquire(2 * MIB) for _ in range(4)][:]
    pool.close()
    assert spare.nbytes == 4 * MIB
    assert spare.take(4 * MIB) is None
    assert spare.take(2 * MIB) is not None
    assert spare.nbytes == 2 * MIB


def test_the_last_block_of_a_closed_pool_may_die_while_spare_slabs_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector runs anywhere, also where the lock is held that the freed slab needs."""
    spare = SpareSlabs(16 * MIB)
    closed, closing = (BufferPool(slab_bytes=2 * MIB, spare=spare) for _ in range(2))
    cycle: list[object] = [closed.acquire(2 * MIB)]
    cycle.append(cycle)
    closed.close()
    last = closing.acquire(2 * MIB)
    closing.close()
    monkeypatch.setattr(Slab, "give_up", lambda slab: gc.collect())

    def let_go() -> None:
        nonlocal last, cycle
        cycle = []
        last = memoryview(b"")

    gc.disable()
    try:
        thread = threading.Thread(target=let_go, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert spare.nbytes == 4 * MIB


def test_a_pool_leaves_no_more_than_it_may_keep_itself() -> None:
    spare = SpareSlabs(16 * MIB)
    pool = BufferPool(slab_bytes=2 * MIB, idle_bytes=4 * MIB, spare=spare)
    views = [pool.acquire(2 * MIB) for _ in range(5)]
    pool.close()
    del views
    assert spare.nbytes == 4 * MIB


def test_a_closed_pool_still_serves() -> None:
    spare = SpareSlabs(16 * MIB)
    pool = BufferPool(slab_bytes=2 * MIB, spare=spare)
    held = pool.acquire(2 * MIB)
    pool.close()
    late = pool.acquire(1 * MIB)
    late[:] = b"\2" * len(late)
    del held, late
    assert spare.nbytes == 4 * MIB


def test_memory_that_the_system_does_not_have() -> None:
    with pytest.raises(ResourceExhausted) as caught:
        BufferPool().acquire(1 << 55)
    assert caught.value.setting == "memory"


def test_buffers_may_die_on_any_thread() -> None:
    pool = BufferPool(slab_bytes=2 * MIB, idle_bytes=0)

    def churn(seed: int) -> None:
        generator = np.random.default_rng(seed)
        held: list[memoryview] = []
        for _ in range(300):
            length = int(generator.integers(1, 100_000))
            view = pool.acquire(length)
            view[:] = bytes([seed]) * length
            held.append(view)
            if len(held) > 20:
                victim = held.pop(int(generator.integers(0, 20)))
                assert victim.tobytes() == bytes([seed]) * len(victim)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.statistics().blocks == 0
    assert pool.statistics().used_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_a_slab_hands_out_each_byte_once_and_joins_what_returns(steps: list[tuple[bool, int]]) -> None:
    slab = Slab(HUGE_PAGE_BYTES)
    held: list[tuple[int, int]] = []
    for take, size in steps:
        if take or not held:
            length = size * HUGE_PAGE_BYTES // 16
            offset = slab.take(length)
            if offset is None:
                continue
            assert all(offset + length <= start or start + taken <= offset for start, taken in held)
            assert offset + length <= slab.nbytes
            held.append((offset, length))
        else:
            slab.give(*held.pop(size % len(held)))
        assert slab.free_bytes == slab.nbytes - sum(length for _, length in held)
    for block in held:
        slab.give(*block)
    assert slab.take(slab.nbytes) == 0
