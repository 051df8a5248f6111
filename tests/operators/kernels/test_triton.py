"""Triton's kernels against torch's on random and on awkward input, and who uses them.

They run under Triton's interpreter, or compiled on a CUDA device where there is one.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from pystachio.operators.kernels import cuda, hash_rounds, hash_triton, portable, primitives, triton_library
from pystachio.operators.kernels.numbering import capacity_for

CPU = torch.device("cpu")
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
SIZES = (0, 1, 31, 1023, 1024, 1025, 4000)


class Launchers:
    """`triton_launch` for CPU tensors: interpreted, or on a CUDA device where there is one."""

    def __init__(self) -> None:
        self._module = import_module("pystachio.operators.kernels.triton_launch")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._module, name)
        return lambda *arguments: self._moved(function(*self._moved(arguments, self._device)), torch.device("cpu"))

    @staticmethod
    def _moved(values: Any, device: torch.device) -> Any:
        return tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, values)


@pytest.fixture(scope="module")
def launch() -> Launchers:
    pytest.importorskip("triton")
    return Launchers()


def random_mask(rows: int, share: float, seed: int) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < share


def random_numbers(rows: int, seed: int, low: int = SMALLEST, high: int = LARGEST) -> torch.Tensor:
    return torch.randint(low, high, (rows,), generator=torch.Generator().manual_seed(seed))


def require_same(mine: object, other: object) -> None:
    for one, two in zip(as_tuple(mine), as_tuple(other), strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)


def as_tuple(result: object) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)  # type: ignore[call-overload]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("slots", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("is_masked", [False, True])
def test_sums_wrap_like_torchs(launch: Launchers, rows: int, slots: int, is_masked: bool) -> None:
    values, codes = random_numbers(rows, 1), random_numbers(rows, 2, 0, slots).to(torch.int8)
    kept = random_mask(rows, 0.3, 3) if is_masked else None
    require_same(launch.group_sums(values, codes, slots, kept), portable.group_sums(values, codes, slots, kept))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_sums_of_narrow_integers_are_wide(launch: Launchers, dtype: torch.dtype) -> None:
    values = torch.full((3000,), torch.iinfo(dtype).max, dtype=dtype)
    codes = torch.zeros(3000, dtype=torch.int64)
    assert launch.group_sums(values, codes, 1).tolist() == [((3000 * torch.iinfo(dtype).max + 2**63) % 2**64) - 2**63]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("slots", [1, 5, 64])
def test_groups_have_their_rows(launch: Launchers, rows: int, slots: int) -> None:
    codes = random_numbers(rows, 4, 0, max(1, slots - 1)).to(torch.int32)
    counts, holders = launch.group_rows(codes, slots)
    require_same(counts, portable.group_rows(codes, slots)[0])
    for code, holder in enumerate(holders.tolist()):
        assert (holder == 0) == (code not in codes)
        assert holder == 0 or codes[holder - 1] == code


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.1])
def test_rows_are_compacted_in_order(launch: Launchers, rows: int, share: float) -> None:
    mask = random_mask(rows, share, 5)
    columns = [random_numbers(rows, 6).to(dtype) for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)]
    columns += [torch.rand(rows, dtype=torch.float64), random_mask(rows, 0.5, 7)]
    require_same(launch.indices_of_true(mask), portable.indices_of_true(mask))
    require_same(launch.compact(mask, columns), portable.compact(mask, columns))


def test_views_with_steps_are_read_as_they_are(launch: Launchers) -> None:
    """Columns may be parts of other tensors."""
    mask, values = random_mask(3000, 0.5, 8)[::2], random_numbers(4500, 9)[::3]
    codes = random_numbers(3000, 10, 0, 9)[::2]
    require_same(launch.compact(mask, [values]), portable.compact(mask, [values]))
    require_same(launch.group_sums(values, codes, 9, mask), portable.group_sums(values, codes, 9, mask))


EDGES = st.sampled_from((SMALLEST, SMALLEST + 1, -1, 0, 1, LARGEST - 1, LARGEST))


@settings(max_examples=60)
@given(
    low=st.one_of(EDGES, st.integers(SMALLEST, LARGEST)),
    span=st.integers(1, 50),
    keys=st.lists(st.one_of(EDGES, st.integers(SMALLEST, LARGEST), st.integers(-60, 60)), max_size=40),
    near=st.lists(st.integers(-3, 53), max_size=40),
    is_masked=st.booleans(),
)
def test_keys_find_what_the_table_holds(
    launch: Launchers, low: int, span: int, keys: list[int], near: list[int], is_masked: bool
) -> None:
    low = min(low, LARGEST - span + 1)
    numbers = keys + [low + step for step in near if SMALLEST <= low + step <= LARGEST]
    table = torch.arange(1, span + 2, dtype=torch.int32)
    kept = torch.arange(len(numbers)) % 3 != 0 if is_masked else None
    expected = [
        1 + number - low if 0 <= number - low < span and (kept is None or bool(kept[row])) else span + 1
        for row, number in enumerate(numbers)
    ]
    for module in (launch, portable, primitives(CPU)):
        assert module.lookup_within(table, torch.tensor(numbers, dtype=torch.int64), low, kept).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_narrow_keys_may_have_a_range_beyond_them(launch: Launchers, dtype: torch.dtype) -> None:
    """The build's keys may need more bits than the batch's."""
    table, keys = torch.arange(100_000, dtype=torch.int64), torch.tensor([-128, -1, 0, 5, 127], dtype=dtype)
    for module in (launch, portable, primitives(CPU)):
        found = module.lookup_within(table, keys, -100).tolist()
        assert found == [99_999, 99, 100, 105, 227]


KINDS = {
    "anything": lambda rows: random_numbers(rows, 15),
    "few": lambda rows: random_numbers(rows, 16) % 5,
    "one": lambda rows: torch.full((rows,), SMALLEST),
    "in a row": lambda rows: torch.arange(rows) - 3,
    "edges": lambda rows: torch.tensor([SMALLEST, LARGEST, 0, -1])[torch.arange(rows) % 4],
    "every other one many times": lambda rows: torch.where(torch.arange(rows) % 2 == 0, 7, random_numbers(rows, 17)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 64, 255, 257, 1500])
def test_keys_are_numbered_and_found(launch: Launchers, rows: int, kind: str) -> None:
    keys = KINDS[kind](rows)
    numbering = hash_triton.number_keys(launch, keys)
    numbers, first = numbering.numbers.tolist(), numbering.first.tolist()
    listed = keys.tolist()
    assert [listed[first[number]] for number in numbers] == listed
    assert first == sorted(first)
    assert len(first) == len(set(listed))
    wanted = [*listed, SMALLEST, SMALLEST + 1, -1, 0, 1, LARGEST, *random_numbers(50, 18).tolist()]
    expected = {key: number + 1 for key, number in zip(listed, numbers, strict=True)}
    table = numbering.table()
    assert table.lookup(torch.tensor(wanted)).tolist() == [expected.get(key, 0) for key in wanted]
    assert table.nbytes > 0


def test_a_full_run_of_slots_is_searched_to_its_end(launch: Launchers) -> None:
    """Keys with one home, the last slot of the table: each search goes past its end."""
    capacity = capacity_for(40)
    candidates = torch.arange(200_000)
    keys = candidates[hash_rounds.first_slots(candidates, capacity) == capacity - 1][:40]
    assert len(keys) == 40
    numbering = hash_triton.number_keys(launch, keys)
    assert sorted(numbering.numbers.tolist()) == list(range(40))
    assert torch.equal(numbering.table().lookup(keys), numbering.numbers + 1)


def test_kernels_are_checked_on_the_device_before_their_first_use(
    launch: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triton_library.disagreements(launch, CPU) == []
    wrong = ModuleType("wrong")
    for name in ("group_sums", "indices_of_true", "compact", "lookup_within", "insert_keys", "find_keys", "group_rows"):
        setattr(wrong, name, getattr(launch, name))
    wrong.group_sums = lambda values, codes, slots, kept: launch.group_sums(values, codes, slots)
    wrong.compact = lambda mask, columns: launch.compact(~mask, columns)
    wrong.find_keys = lambda table, keys: launch.find_keys(table, keys ^ 1)
    wrong.group_rows = lambda codes, slots: tuple(each + 1 for each in launch.group_rows(codes, slots))
    assert triton_library.disagreements(wrong, CPU) == ["group_sums", "compact", "group_rows", "number_keys"]


def test_without_a_device_torch_does_it_and_the_reason_is_told() -> None:
    mask = random_mask(100, 0.5, 11)
    assert "no CUDA device" in str(triton_library.problem(CPU)) or "not installed" in str(triton_library.problem(CPU))
    require_same(cuda.indices_of_true(mask), portable.indices_of_true(mask))


def test_with_triton_the_device_uses_it_for_what_it_is_made_for(
    launch: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    watched = ModuleType("watched")
    for name in ("compact", "group_sums", "insert_keys", "lookup_within"):
        call = getattr(launch, name)
        setattr(watched, name, lambda *arguments, name=name, call=call: used.append(name) or call(*arguments))
    monkeypatch.setitem(triton_library._FOUND, CPU, watched)
    numbers, codes, mask = random_numbers(50, 12), random_numbers(50, 13, 0, 9), random_mask(50, 0.5, 14)
    for call, twin, arguments in (
        (cuda.group_sums, portable.group_sums, (numbers, codes, 9, mask)),
        (cuda.group_sums, portable.group_sums, (numbers, codes, 65, None)),
        (cuda.compact, portable.compact, (mask, [numbers])),
        (cuda.lookup_within, portable.lookup_within, (torch.arange(9), codes, 2, mask)),
    ):
        require_same(call(*arguments), twin(*arguments))
    assert len(cuda.number_keys(codes).first) == len(codes.unique())
    assert used == ["group_sums", "compact", "lookup_within", "insert_keys"]


@pytest.mark.slow
def test_all_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """To machine code, where there is no GPU to run it; the interpreter accepts more than the compiler does."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        (sys.executable, "-m", "tests.operators.kernels.compiled"),
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    sizes = [line.split() for line in done.stdout.splitlines()]
    programs = ast.parse((Path(triton_library.__file__).parent / "triton_programs.py").read_text())
    kernels = {node.name for node in programs.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    assert {name for name, _ in sizes} == kernels
    assert all(int(size) > 0 for _, size in sizes)
