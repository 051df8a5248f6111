"""Compiles every kernel of `triton_programs` for an H100's instructions; needs Triton's own compiler and no GPU.

Run by itself: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pystachio.operators.kernels import triton_launch as launch
from pystachio.operators.kernels import triton_programs as programs

HOPPER = GPUTarget("cuda", 90, 32)
HASHING = launch._hashing(1 << 20)

Types = Mapping[str, str]
GROUPS: Types = {"values": "*i32", "codes": "*i32", "kept": "*u8", "partial": "*i64", "rows": "i32"}
COUNTS: Types = {"codes": "*i8", "counts": "*i64", "last": "*i64", "rows": "i32"}
KEPT: Types = {"kept": "*u8", "ends": "*i64", "rows": "i32"}
LOOKUP: Types = {"values": "*i16", "kept": "*u8", "low": "i64", "high": "i64", "rows": "i32"}
INSERT: Types = {"keys": "*i64", "occupants": "*i32", "winners": "*i32", "rows": "i32"}
FIND: Types = {
    "table_keys": "*i64",
    "table_values": "*i32",
    "keys": "*i64",
    "found": "*i32",
    "empty": "i64",
    "rows": "i32",
}

CASES: list[tuple[Any, Types, Mapping[str, Any]]] = [
    (programs.sum_by_code, GROUPS, {"BLOCK": launch._block(2), "SLOTS": 2, "MASKED": False}),
    (programs.sum_by_code, GROUPS, {"BLOCK": launch._block(64), "SLOTS": 64, "MASKED": True}),
    (programs.count_by_code, COUNTS, {"BLOCK": launch._block(64), "SLOTS": 64}),
    (programs.count_kept, {"kept": "*u8", "counts": "*i32", "rows": "i32"}, {"BLOCK": launch._BLOCK}),
    (programs.write_positions, {**KEPT, "positions": "*i64"}, {"BLOCK": launch._BLOCK}),
    (programs.write_values, {**KEPT, "values": "*u8", "chosen": "*u8"}, {"BLOCK": launch._BLOCK}),
    (programs.write_values, {**KEPT, "values": "*fp64", "chosen": "*fp64"}, {"BLOCK": launch._BLOCK}),
    (programs.lookup_between, {**LOOKUP, "table": "*u8", "found": "*u8"}, {"BLOCK": launch._BLOCK, "MASKED": False}),
    (programs.lookup_between, {**LOOKUP, "table": "*i64", "found": "*i64"}, {"BLOCK": launch._BLOCK, "MASKED": True}),
    (programs.insert_keys, INSERT, {"BLOCK": launch._PROBING_BLOCK, **HASHING}),
    (programs.find_keys, FIND, {"BLOCK": launch._PROBING_BLOCK, **HASHING}),
]


def main() -> None:
    """Prints each kernel's name and the bytes of its machine code."""
    for kernel, types, constants in CASES:
        signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        compiled = triton.compile(ASTSource(kernel, signature, places), target=HOPPER)
        sys.stdout.write(f"{kernel.__name__} {len(compiled.asm['cubin'])}\n")


if __name__ == "__main__":
    main()
