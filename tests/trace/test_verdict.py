"""What bounded a plan, on records whose story is known."""

from __future__ import annotations

import pytest

from pystachio.io_scheduler.core.request import CreditPool, Link, PriorityClass
from pystachio.runtime.tracing import MemoryRecord, WaitReason
from pystachio.trace.bottleneck import Bottleneck
from pystachio.trace.verdict import Verdict, verdict
from tests.trace.records import MIB, Device, Records

RATE = 100 * MIB


def test_storage() -> None:
    records = Records()
    ended = records.read(Device(RATE, 0.0002), 50)
    found = verdict(records.trace(ended + 0.1))
    assert found.bottleneck is Bottleneck.STORAGE
    assert found.resource == "disk 259:0 read"
    assert found.share == pytest.approx(ended / (ended + 0.1), abs=0.01)
    assert "disk 259:0 read, which was busy" in found.sentences[0]
    assert "MiB/s" in found.sentences[0]


def test_network() -> None:
    records = Records()
    ended = records.read(Device(RATE), 50, link=Link("network", "node-b"))
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.NETWORK


def test_reading_ahead_is_hidden_behind_busy_workers() -> None:
    records = Records(workers=1)
    ended = records.read(Device(RATE), 50)
    records.job(0, ended, operator="join")
    found = verdict(records.trace(ended))
    assert (found.bottleneck, found.resource) == (Bottleneck.COMPUTE, "join")
    assert "mostly in Join" in found.sentences[0]


def test_an_idle_worker_beside_a_busy_one_waits_for_bytes() -> None:
    records = Records(workers=2)
    ended = records.read(Device(RATE), 50)
    records.job(0, ended, operator="scan")
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.STORAGE


def test_a_single_job_with_nothing_awaited_is_computing() -> None:
    records = Records(workers=8)
    records.job(0, 1)
    assert verdict(records.trace(1)).bottleneck is Bottleneck.COMPUTE


def test_decode_is_the_scans_own_part_of_its_jobs() -> None:
    records = Records(workers=1)
    records.job(0, 1, operator="scan")
    records.part(0.7, 1, "join")
    found = verdict(records.trace(1))
    assert found.bottleneck is Bottleneck.DECODE
    assert found.share == pytest.approx(0.7, abs=0.01)
    assert found.shares[Bottleneck.COMPUTE] == pytest.approx(0.3, abs=0.01)


def test_memory_and_who_holds_it() -> None:
    records = Records()
    records.memory.append(MemoryRecord(0, "other", "join", "host", 7 * MIB, 7 * MIB))
    records.wait(WaitReason.MEMORY, 0, 0.9, "host", 2 * MIB)
    found = verdict(records.trace(1))
    assert found.bottleneck is Bottleneck.MEMORY
    assert "Scan lineitem waited for 2 MiB of host memory, while plan other held 7 MiB." in found.sentences[0]


def test_memory_is_not_to_blame_while_the_disk_has_a_queue() -> None:
    records = Records()
    ended = records.read(Device(RATE, window=2 * MIB), 50)
    records.wait(WaitReason.MEMORY, 0, ended, "host", MIB)
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.STORAGE


def test_transfers_parked_for_credit() -> None:
    records = Records()
    for index in range(10):
        stay = index * 0.1 + 0.09, index * 0.1 + 0.1
        records.transfer([stay], [MIB], submitted=index * 0.1, credit=CreditPool("host", 1))
    found = verdict(records.trace(1))
    assert (found.bottleneck, found.resource) == (Bottleneck.MEMORY, "host credit of stage 1")


@pytest.mark.parametrize("theirs", [PriorityClass.INTERACTIVE, PriorityClass.BATCH])
def test_behind_the_transfers_of_others(theirs: PriorityClass) -> None:
    """Others' bytes count as priority if they are of a higher class, else they are the disk's work."""
    records = Records()
    lengths = [MIB] * 50
    stays = Device(RATE, window=2 * MIB).serve(lengths)
    for position, (stay, length) in enumerate(zip(stays, lengths, strict=True)):
        mine = position % 10 == 9
        records.transfer([stay], [length], plan_id="mine" if mine else "other", priority=None if mine else theirs)
    found = verdict(records.trace(stays[-1][1]))
    goes_first = theirs is PriorityClass.INTERACTIVE
    assert found.bottleneck is (Bottleneck.PRIORITY if goes_first else Bottleneck.STORAGE)
    assert f"behind plan other ({theirs.name.lower()})" in found.sentences[-1]


@pytest.mark.parametrize("theirs", [PriorityClass.INTERACTIVE, PriorityClass.NORMAL])
def test_behind_the_jobs_of_others(theirs: PriorityClass) -> None:
    records = Records(workers=2)
    records.other_plan(theirs)
    for thread in ("worker-0", "worker-1"):
        records.other_job(0, 0.8, thread)
    records.job(0.8, 1, submitted=0)
    found = verdict(records.trace(1))
    goes_first = theirs is PriorityClass.INTERACTIVE
    assert found.bottleneck is (Bottleneck.PRIORITY if goes_first else Bottleneck.COMPUTE)
    assert "It waited 800.0 ms behind plan other" in str(found)


def test_a_slow_device_among_its_peers() -> None:
    records = Records()
    for index, rate in enumerate((RATE, RATE / 10, RATE, RATE)):
        records.read(Device(rate), 20, link=Link("disk", f"259:{index}"), path=f"/data/{index}")
    ended = max(transfer.ended_at for transfer in records.transfers)
    found = verdict(records.trace(ended))
    assert (found.bottleneck, found.resource) == (Bottleneck.SLOW_DEVICE, "disk 259:1 read")


def test_equal_devices_are_storage_whichever_ends_last() -> None:
    records = Records()
    for index, count in enumerate((20, 22, 20)):
        records.read(Device(RATE), count, link=Link("disk", f"259:{index}"), path=f"/data/{index}")
    ended = max(transfer.ended_at for transfer in records.transfers)
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.STORAGE


def straggling(slow: float, *operators: str) -> Verdict:
    """Four files after each other, one of which the device serves at a part of its rate."""
    records = Records()
    since = 0.0
    for index in range(4):
        device = Device(RATE / slow if index == 2 else RATE, window=2 * MIB)
        stays = device.serve([MIB] * 10, since)
        operator = operators[index] if operators else "scan"
        records.transfer(stays, [MIB] * 10, submitted=0, path=f"/data/part-{index}", operator=operator)
        since = stays[-1][1]
    return verdict(records.trace(since))


def test_one_straggling_file() -> None:
    found = straggling(20)
    assert (found.bottleneck, found.resource) == (Bottleneck.STRAGGLER, "/data/part-2")
    assert "part-2, whose requests took 20.0 times as long" in found.sentences[0]


def test_a_file_that_is_a_little_slower_is_no_straggler() -> None:
    assert straggling(2).bottleneck is Bottleneck.STORAGE


def test_files_of_different_operators_are_not_compared() -> None:
    assert straggling(20, "a", "b", "c", "b").bottleneck is Bottleneck.STORAGE


@pytest.mark.parametrize("mebibytes", [1, 2, 4])
def test_too_small_a_window(mebibytes: int) -> None:
    records = Records()
    ended = records.read(Device(10 * RATE, latency=0.02, window=mebibytes * MIB), 50)
    found = verdict(records.trace(ended))
    assert found.bottleneck is Bottleneck.WINDOW
    assert f"at most {mebibytes} MiB were inside the device" in found.sentences[0]


def test_one_chunk_at_a_time_is_enough_for_a_device_without_latency() -> None:
    records = Records()
    ended = records.read(Device(RATE, window=MIB), 50)
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.STORAGE


@pytest.mark.parametrize("latency", [0.0, 0.001, 0.02])
def test_a_window_that_keeps_the_device_busy_is_large_enough(latency: float) -> None:
    """As the scheduler calibrates it: half as much again as the bandwidth-delay product and a chunk."""
    window = int(1.5 * (RATE * latency + MIB))
    records = Records()
    ended = records.read(Device(RATE, latency, window), 100)
    assert verdict(records.trace(ended)).bottleneck is Bottleneck.STORAGE


def test_a_client_that_does_not_read() -> None:
    records = Records()
    records.job(0, 0.1)
    records.wait(WaitReason.CLIENT, 0.1, 1, "result")
    found = verdict(records.trace(1))
    assert found.bottleneck is Bottleneck.CLIENT
    assert found.share == pytest.approx(0.9, abs=0.01)


def test_results_that_lie_while_the_plan_works_are_not_the_clients_fault() -> None:
    records = Records(workers=1)
    records.job(0, 1)
    records.wait(WaitReason.CLIENT, 0, 1, "result")
    assert verdict(records.trace(1)).bottleneck is Bottleneck.COMPUTE


def test_nothing_that_a_resource_limits() -> None:
    found = verdict(Records().trace(1))
    assert (found.bottleneck, found.share) == (Bottleneck.NONE, 1.0)
    assert found.sentences[0].startswith("No resource bounded this plan: for 100%")


def test_a_plan_that_took_no_time() -> None:
    assert str(verdict(Records().trace(0.0))) == "Nothing bounded this plan: it took 0.0 ms."


def test_shares_add_up_and_the_next_is_named_where_none_dominates() -> None:
    records = Records(workers=1)
    records.job(0, 0.3)
    records.wait(WaitReason.MEMORY, 0.3, 0.55, "host", MIB)
    records.wait(WaitReason.CLIENT, 0.55, 0.75, "result")
    found = verdict(records.trace(1))
    assert sum(found.shares.values()) == pytest.approx(1)
    assert "Next: memory (25%), client (20%)." in found.sentences


def test_the_largest_resource_is_named_beside_much_that_none_limits() -> None:
    records = Records(workers=1)
    records.job(0, 0.3)
    found = verdict(records.trace(1))
    assert (found.bottleneck, found.sentences[1:]) == (Bottleneck.NONE, ("Next: compute (30%).",))
    assert verdict(records.trace(0.55)).bottleneck is Bottleneck.COMPUTE


def test_forgotten_records_are_admitted() -> None:
    records = Records()
    records.job(0, 1)
    assert "forgotten" in verdict(records.trace(1, complete_from=0.5)).sentences[-1]
