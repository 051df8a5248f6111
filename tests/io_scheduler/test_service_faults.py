"""Faults of devices, through the service: exactly the plans concerned fail, with typed errors; nobody else notices.

Time is virtual. Every disk moves 100,000 bytes a second in chunks of 1,000.
"""

from __future__ import annotations

import asyncio
import errno

import pytest

from pystachio.errors import Cancelled, DataError, NotFound, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.core.request import CreditPool, Extent, Lease, PriorityClass
from pystachio.io_scheduler.devices.faulty import Fail, Fault, Short, Slow, Stall, Vanish, during, scripted
from pystachio.io_scheduler.submission import Request
from tests import virtual_time
from tests.io_scheduler.memory_disk import content, disks

MIB = 1 << 20
SIZE = 20_000
FILES = {path: content(path, SIZE) for path in ("/a/f", "/a/g", "/b/f")}
WHOLE = Extent(0, SIZE)


async def outcome(work: asyncio.Future[list[bytes]] | asyncio.Task[list[bytes]]) -> list[bytes] | PystachioError:
    try:
        return await work
    except PystachioError as error:
        return error


def test_a_chunk_that_stalls_holds_up_nobody_else() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": scripted({0: Stall(3.0)})}) as node:
            hit = asyncio.create_task(node.read("hit", "/a/f", WHOLE))
            await asyncio.sleep(0)
            assert await node.read("other", "/a/g", WHOLE) == [FILES["/a/g"]]
            other_ended = loop.time()
            assert await hit == [FILES["/a/f"]]
            return other_ended, loop.time()

    other_ended, hit_ended = virtual_time.run(main())
    # The disk's latency was to be measured with that very chunk; after a second it counts as stuck.
    assert other_ended < 1.5
    assert 3.0 <= hit_ended < 3.1


def test_chunks_that_stall_one_after_another_leave_room_for_others() -> None:
    """Every hundredth chunk takes three seconds; the disk itself goes on meanwhile."""

    async def main() -> float:
        async with disks(FILES, {"a": lambda number, now: Stall(3.0) if number % 100 == 50 else None}) as node:
            for _ in range(10):
                await asyncio.gather(*(node.read(f"p{i}", "/a/f", WHOLE) for i in range(4)))
            return asyncio.get_running_loop().time()

    # 800 chunks take eight seconds; without the stalled ones' room they would take 24 more.
    assert virtual_time.run(main()) < 8.0 + 10 * 4.0


def test_what_stalls_for_ever_times_out_and_its_memory_is_kept_until_the_device_lets_go() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": scripted({0: Stall()})}) as node:
            hit = asyncio.create_task(node.read("hit", "/a/f", WHOLE))
            await asyncio.sleep(0)
            for _ in range(30):
                assert await node.read("other", "/a/g", WHOLE) == [FILES["/a/g"]]
            error = await outcome(hit)
            assert isinstance(error, ResourceExhausted)
            assert (error.setting, error.plan_id) == ("io_timeout", "hit")
            # The time-out, and as long again for the device to react.
            assert 10.0 <= loop.time() < 13.0
            statistics = node.service.statistics()
            assert (statistics.written_off, statistics.chunks, statistics.open_files) == (1, 0, 1)
            assert statistics.buffers.used_bytes >= SIZE, "the device may still write there"
            node.faulty[node.link("a")].release()
            await asyncio.sleep(0.1)
            statistics = node.service.statistics()
            assert (statistics.written_off, statistics.open_files, statistics.buffers.blocks) == (0, 0, 0)
            assert await node.read("hit", "/a/f", WHOLE) == [FILES["/a/f"]]

    virtual_time.run(main())


def test_a_far_timer_does_not_hide_a_near_one() -> None:
    """The end of a lease is due long before anything can time out, when nothing is under way."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": scripted({0: Stall()})}) as node:
            node.service.set_lease(Lease(1, 1, 60.0, ()))
            await asyncio.sleep(0.1)
            error = await outcome(asyncio.create_task(node.read("hit", "/a/f", WHOLE)))
            assert isinstance(error, ResourceExhausted)
            assert 10.0 <= loop.time() < 13.0

    virtual_time.run(main())


def test_a_slow_disk_slows_no_other() -> None:
    async def main() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        seconds: dict[str, float] = {}
        async with disks(FILES, {"a": during(Slow(4.0), since=0.5)}) as node:

            async def timed(plan_id: str, path: str) -> None:
                start = loop.time()
                for _ in range(5):
                    assert await node.read(plan_id, path, WHOLE) == [FILES[path]]
                seconds[plan_id] = loop.time() - start

            await timed("before", "/b/f")
            async with asyncio.TaskGroup() as group:
                group.create_task(timed("slow", "/a/f"))
                group.create_task(timed("healthy", "/b/f"))
        return seconds["before"], seconds["healthy"], seconds["slow"]

    before, healthy, slow = virtual_time.run(main())
    assert healthy == pytest.approx(before, rel=0.02)
    assert slow == pytest.approx(4 * before, rel=0.1)


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ENOMEM])
def test_errors_that_pass_are_tried_again(number: int) -> None:
    async def main() -> float:
        # The first two attempts of the third chunk; when nothing else is inside, the retries are the next to start.
        faults: dict[int, Fault] = {2: Fail(number, after_bytes=500), 20: Fail(number)}
        async with disks(FILES, {"a": scripted(faults)}) as node:
            assert await node.read("p", "/a/f", WHOLE) == [FILES["/a/f"]]
            totals = node.service.ledger.plan("p")
            assert totals.useful_bytes == SIZE
            assert totals.transferred_bytes == SIZE + 500, "what an attempt moved is not forgotten"
            return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) < 1.5


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fail(errno.EIO), DataError),
        (Fail(errno.ESTALE), DataError),
        (Fail(errno.EACCES), Unauthorized),
        (Fail(errno.ENOENT), NotFound),
        (Short(300), DataError),
    ],
    ids=str,
)
def test_an_error_that_stays_fails_exactly_the_plans_that_read_there(fault: Fault, kind: type[PystachioError]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": during(fault, since=0.05, until=4.0)}) as node:
            one, two, other = (
                asyncio.create_task(node.read(plan_id, path, WHOLE))
                for plan_id, path in (("one", "/a/f"), ("two", "/a/g"), ("other", "/b/f"))
            )
            for plan_id, hit in (("one", one), ("two", two)):
                error = await outcome(hit)
                assert type(error) is kind
                assert error.plan_id == plan_id
            assert loop.time() < 3.0
            assert await other == [FILES["/b/f"]]
            assert node.service.statistics().buffers.blocks == 0
            await asyncio.sleep(4.0)
            assert await node.read("one", "/a/f", WHOLE) == [FILES["/a/f"]], "the plan may try again"

    virtual_time.run(main())


def test_a_disk_that_vanishes_fails_what_is_on_it_at_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": scripted({5: Vanish()})}) as node:
            reads = [asyncio.create_task(node.read(f"p{i}", "/a/f", WHOLE)) for i in range(3)]
            other = asyncio.create_task(node.read("other", "/b/f", WHOLE))
            for read in reads:
                error = await outcome(read)
                assert type(error) is DataError
                assert "gone" in str(error)
            assert loop.time() < 0.2
            assert await other == [FILES["/b/f"]]
            with pytest.raises(DataError):
                await node.read("late", "/a/g", WHOLE)

    virtual_time.run(main())


def test_a_full_disk_fails_the_writer_and_spares_the_readers() -> None:
    async def main() -> None:
        full = during(Fail(errno.ENOSPC), since=0.1)
        async with disks(FILES, {"a write": full}) as node:
            write = asyncio.create_task(node.write("writer", "/a/spill", 0, content("spill", SIZE)))
            read = asyncio.create_task(node.read("reader", "/a/f", WHOLE))
            with pytest.raises(ResourceExhausted) as caught:
                await write
            assert (caught.value.setting, caught.value.plan_id) == ("disk", "writer")
            assert await read == [FILES["/a/f"]]

    virtual_time.run(main())


def test_writes_that_are_tried_again_put_every_byte_in_its_place_once() -> None:
    async def main() -> None:
        faults: dict[int, Fault] = {1: Fail(errno.EIO, after_bytes=400), 3: Fail(errno.EAGAIN), 7: Stall(0.5)}
        data = content("spill", SIZE)
        async with disks({}, {"a write": scripted(faults)}) as node:
            await node.write("p", "/a/spill", 0, data)
            assert node.files["/a/spill"] == data
            assert await node.read("p", "/a/spill", WHOLE) == [data]
            assert node.service.ledger.plan("p").useful_bytes == 2 * SIZE

    virtual_time.run(main())


def test_a_file_that_is_shorter_than_it_was_fails_its_reader() -> None:
    async def main() -> None:
        async with disks(FILES) as node:
            read = asyncio.create_task(node.read("p", "/a/f", WHOLE))
            other = asyncio.create_task(node.read("other", "/a/g", WHOLE))
            await asyncio.sleep(0.05)
            del node.files["/a/f"][12_345:]
            error = await outcome(read)
            assert type(error) is DataError
            assert await other == [FILES["/a/g"]]

    virtual_time.run(main())


def test_a_plan_is_cancelled_with_transfers_in_flight() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with disks(FILES, {"a": scripted({3: Stall(1.0)})}, latency_seconds=0.005) as node:
            hit = [asyncio.create_task(node.read("hit", "/a/f", Extent(i, 5000), Extent(10_000, i))) for i in range(9)]
            other = asyncio.create_task(node.read("other", "/a/g", WHOLE))
            await asyncio.sleep(0.1)
            node.service.cancel_plan("hit")
            for read in hit:
                assert type(await outcome(read)) is Cancelled
            assert loop.time() < 1.2, "the stalled chunk had to leave its buffer"
            assert node.service.activity().moved_by["hit"]
            assert [use for use in node.service.activity().uses if use.plan_id == "hit"] == []
            assert await other == [FILES["/a/g"]]
            with pytest.raises(Cancelled):
                await node.read("hit", "/a/f", WHOLE)

    virtual_time.run(main())


def test_a_request_larger_than_the_budget_is_refused_with_what_it_needs() -> None:
    pool = CreditPool("host", 1)

    async def main() -> None:
        async with disks(FILES) as node:
            node.service.open_pool(pool, 8000)
            node.service.client("p", PriorityClass.NORMAL)
            link = await node.service.locate("/a/f")
            fits = node.service.submit("p", "/a/f", link, [Request(Extent(0, 4000), None, 4000, 4000, pool)])
            too_large = node.service.submit("p", "/a/f", link, [Request(Extent(0, 9000), None, 9000, 9000, pool)])
            with pytest.raises(ResourceExhausted) as caught:
                await too_large.ended
            assert (caught.value.value, caught.value.needed) == (8000, 9000)
            await fits.ended
            assert bytes(fits.buffers[0]) == FILES["/a/f"][:4000]
            node.service.release_credit(pool, 4000)

    virtual_time.run(main())


def test_a_consumer_that_never_reads_stops_itself_and_nobody_else() -> None:
    """Its chunks fill the pool; another stage's pool, and reads without credit, go on. Its cancellation frees it."""
    stuck, free = CreditPool("host", 1), CreditPool("host", 2)

    async def main() -> None:
        async with disks(FILES) as node:
            service = node.service
            service.open_pool(stuck, 4000)
            service.open_pool(free, 4000)
            for plan_id in ("stuck", "free"):
                service.client(plan_id, PriorityClass.NORMAL)
            link = await service.locate("/a/f")
            delivered: list[Extent] = []
            request = Request(WHOLE, memoryview(bytearray(SIZE)), SIZE, SIZE, stuck, True, delivered.append)
            waiting = service.submit("stuck", "/a/f", link, [request])
            destination = bytearray(SIZE)

            def pass_on(chunk: Extent) -> None:
                service.release_credit(free, chunk.length)

            request = Request(WHOLE, memoryview(destination), SIZE, SIZE, free, True, pass_on)
            await service.submit("free", "/a/f", link, [request]).ended
            assert destination == FILES["/a/f"]
            assert await node.read("other", "/a/g", WHOLE) == [FILES["/a/g"]]
            await asyncio.sleep(60.0)
            used = {pool.pool: pool.used_bytes for pool in service.statistics().core.pools}
            assert 0 < sum(chunk.length for chunk in delivered) == used[stuck] <= 4000
            assert used[free] == 0
            assert not waiting.ended.done()
            service.cancel_plan("stuck")
            with pytest.raises(Cancelled):
                await waiting.ended
            service.release_credit(stuck, used[stuck])
            await asyncio.sleep(0)
            assert all(pool.used_bytes == 0 for pool in service.statistics().core.pools)

    virtual_time.run(main())


def test_a_hundred_thousand_requests_at_once_starve_nobody() -> None:
    count = 100_000

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with disks(FILES, checked=False) as node:
            service = node.service
            service.client("flood", PriorityClass.BATCH)
            link = await service.locate("/a/f")
            destination = memoryview(bytearray(count))
            requests = [Request(Extent(i % SIZE, 1), destination[i : i + 1], 1, 1) for i in range(count)]
            flood = service.submit("flood", "/a/f", link, requests)
            await asyncio.sleep(0.2)
            start = loop.time()
            service.client("urgent", PriorityClass.INTERACTIVE)
            assert await node.read("urgent", "/a/g", Extent(0, 10_000)) == [FILES["/a/g"][:10_000]]
            seconds = loop.time() - start
            await flood.ended
            assert bytes(destination) == FILES["/a/f"] * (count // SIZE)
            assert node.disks[link].moved == {"/a/f": count, "/a/g": 10_000}
            return seconds, loop.time()

    urgent, everything = virtual_time.run(main())
    # Alone it takes 0.1 seconds.
    assert urgent < 0.15
    assert everything < 1.5
