"""Mutated chunks and footers under the address and undefined-behaviour sanitisers; `pytest -m slow` tries many more."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pystachio.operators.kernels import native
from tests.operators.native.chunks import write_seeds
from tests.operators.parquet.test_footer_chunks import written

SOURCES = Path(native.__file__).parent
FLAGS = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-DPS_SANITISED", "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder and the harness in one program."""
    return built("fuzz", sorted(SOURCES.glob("*.c")), tmp_path_factory.mktemp("fuzz"))


def built(harness: str, sources: Sequence[Path], folder: Path) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build the fuzzer with")
    program = folder / harness
    harnessed = [Path(__file__).with_name(f"{harness}.c"), *sources]
    command = [compiler, *FLAGS, "-fno-sanitize-recover=all", f"-I{SOURCES}", *harnessed, "-o", program, "-pthread"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in ended.stderr:
        pytest.skip("this gcc has no sanitisers")
    assert ended.returncode == 0, ended.stderr
    return program


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize(
    ("mutations", "random_seed"),
    [(40_000, 1), pytest.param(2_000_000, 2, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_mutated_chunks_do_no_harm(fuzzer: Path, seeds: Path, mutations: int, random_seed: int) -> None:
    ended = subprocess.run([fuzzer, seeds, str(mutations), str(random_seed)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[:4000]
    counts = dict(pair.rsplit(" ", 1) for pair in ended.stdout.split(": ")[1].strip().split(", "))
    assert int(counts["no memory"]) == 0
    assert min(int(counts["ok"]), int(counts["corrupt"]), int(counts["not handled"])) > mutations // 20


@pytest.mark.parametrize(
    ("mutations", "random_seed"),
    [(50_000, 1), pytest.param(2_000_000, 2, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_mutated_footers_do_no_harm(tmp_path: Path, mutations: int, random_seed: int) -> None:
    program = built("fuzz_footer", [SOURCES / "footer.c", SOURCES / "thrift.c"], tmp_path)
    with (tmp_path / "seeds").open("wb") as file:
        for name in ("every type", "nested", "page index", "no statistics", "NULLs", "no rows"):
            footer, *counts = written(name, tmp_path)
            file.write(struct.pack("<3q", len(footer), *counts) + footer)
    ended = subprocess.run(
        [program, tmp_path / "seeds", str(mutations), str(random_seed)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[:4000]
    assert mutations // 20 < int(ended.stdout) < mutations


@pytest.mark.parametrize(
    ("mutations", "random_seed"),
    [(3000, 1), pytest.param(200_000, 2, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_mutated_segments_do_no_harm(tmp_path: Path, mutations: int, random_seed: int) -> None:
    sources = [SOURCES / f"{name}.c" for name in ("segments", "packing", "checksum", "bounds", "wide")]
    program = built("fuzz_segments", sources, tmp_path)
    ended = subprocess.run([program, str(mutations), str(random_seed)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[:4000]
    assert mutations // 20 < int(ended.stdout) < mutations
