"""Compile every kernel for a Hopper GPU (sm_90) on a machine that has none, down to the GPU's own machine code.

What the interpreter cannot show, this does: that the types agree, that tensor cores are used, how wide the loads are. The
sizes are those of an 8-billion-parameter Llama. Source: Triton's ahead-of-time interface (`triton.compile` with a target).
Limits: not in a process where TRITON_INTERPRET is set: there the kernels are Python functions.

    $ python -m labcore.kernels.triton_kernels.offline bf16     # a line of JSON a kernel
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labcore.core.errors import BackendUnavailable
from labcore.kernels.triton_kernels.checks import INTERPRETED, Tiles
from labcore.kernels.triton_kernels.flash_attention import TILES, WIDE_TILES, flash_attention_kernel
from labcore.kernels.triton_kernels.int8_matmul import DEPTH, GROUP_ROWS, int8_matmul_kernel
from labcore.kernels.triton_kernels.int8_matmul import TILES as INT8_TILES
from labcore.kernels.triton_kernels.paged_attention import (
    DECODE_TILES,
    MERGED_AT_ONCE,
    merge_splits_kernel,
    paged_attention_kernel,
)
from labcore.kernels.triton_kernels.rms_norm import rms_norm_kernel
from labcore.kernels.triton_kernels.rope import rope_kernel
from labcore.kernels.triton_kernels.silu_and_mul import BLOCK, silu_and_mul_kernel
from labcore.kernels.triton_kernels.softmax import softmax_kernel
from labcore.kernels.triton_kernels.store_kv import store_kv_kernel
from labcore.kernels.triton_kernels.topk_softmax import topk_softmax_kernel

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32"}
# Arguments that are not arrays of the kernel's own type; all others that end in _ptr are.
POINTERS = {
    "positions_ptr": "*i64", "slots_ptr": "*i64", "query_start_ptr": "*i64", "tables_ptr": "*i64", "table_start_ptr": "*i64",
    "cos_ptr": "*fp32", "sin_ptr": "*fp32", "partial_ptr": "*fp32", "x_scale_ptr": "*fp32", "w_scale_ptr": "*fp32",
    "places_ptr": "*i64",
}  # fmt: skip
REALS = ("eps", "scale_log2")


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel as it is launched: constants, warps, stages, and the types of arrays that `POINTERS` does not have."""

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    types: Mapping[str, str] = field(default_factory=dict)


def cases(dtype: str) -> list[Case]:
    """Every kernel for arrays of bf16, fp16 or fp32. Raises KeyError for another type."""
    wide = {"bf16": False, "fp16": False, "fp32": True}[dtype]
    prompt = WIDE_TILES if wide else TILES
    f32 = {"weight_ptr": "*fp32"}

    def attention(name: str, tiles: Tiles, split: bool) -> Case:
        constants = {"GROUP": 4, "BLOCK_SIZE": 16, "SPLIT": split, **_tile(tiles), "DIM": 128, "WIDE": wide}
        return Case(name, paged_attention_kernel, constants, tiles.num_warps, tiles.num_stages, f32)

    flash = {**_tile(prompt), "DIM": 128, "WIDE": wide}
    int8 = {**_tile(INT8_TILES), "DEPTH": DEPTH, "GROUP": GROUP_ROWS}
    return [
        Case("rms_norm", rms_norm_kernel, {"total_ptr": None, "residual_ptr": None, "ADD": False, "BLOCK": 4096}),
        Case("add_rms_norm", rms_norm_kernel, {"ADD": True, "BLOCK": 4096}),
        Case("silu_and_mul", silu_and_mul_kernel, {"BLOCK": BLOCK}),
        Case("softmax", softmax_kernel, {"BLOCK": 4096}),
        Case("topk_softmax", topk_softmax_kernel, {"RENORMALIZE": True, "BLOCK": 512, "KEPT": 8}, num_warps=1),
        Case("rope", rope_kernel, {"HEADS": 32, "HALF": 64}),
        Case("store_kv", store_kv_kernel, {"HEADS": 8, "DIM": 128}, num_warps=1),
        Case("flash_attention", flash_attention_kernel, flash, prompt.num_warps, prompt.num_stages),
        attention("paged_attention of decodes", WIDE_TILES if wide else DECODE_TILES, split=True),
        attention("paged_attention of chunks", prompt, split=False),
        Case("merge_splits", merge_splits_kernel, {"AT_ONCE": MERGED_AT_ONCE, "DIM": 128}, num_warps=1, types=f32),
        Case("int8_matmul", int8_matmul_kernel, int8, INT8_TILES.num_warps, INT8_TILES.num_stages,
             {"x_ptr": "*i8", "w_ptr": "*i8"}),
    ]  # fmt: skip


def _tile(tiles: Tiles) -> dict[str, int]:
    return {"ROWS": tiles.rows, "COLUMNS": tiles.columns}


def compile_case(case: Case, dtype: str) -> Any:
    """Triton's compiled kernel; `.asm` has each stage: ttir, ttgir, llir, ptx, cubin. Raises BackendUnavailable, TypeError."""
    if INTERPRETED:
        raise BackendUnavailable("with TRITON_INTERPRET set nothing is compiled: use a process without it")

    def kind(name: str) -> str:
        if name in case.constants:
            return "constexpr"
        if name.endswith("_ptr"):
            return case.types.get(name) or POINTERS.get(name) or TYPES[dtype]
        return "fp32" if name in REALS else "i32"

    names = case.kernel.arg_names
    signature = {name: kind(name) for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] in "*i"}  # as at a launch
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    source = ASTSource(case.kernel, signature, constants, aligned)
    return triton.compile(source, target=TARGET, options={"num_warps": case.num_warps, "num_stages": case.num_stages})


def facts(case: Case, dtype: str) -> dict[str, Any]:
    """What the machine code of one kernel is made of."""
    compiled = compile_case(case, dtype)
    ptx = compiled.asm["ptx"]
    return {
        "kernel": case.name,
        "dtype": dtype,
        "cubin_bytes": len(compiled.asm["cubin"]),
        "shared_bytes": compiled.metadata.shared,
        "tensor_core": sorted(set(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)\b", ptx))),
        "loads_of_16_bytes": len(re.findall(r"ld\.global\S*\.v4\.b32|cp\.async\.cg\.shared\.global.*\b(?:0x10|16),", ptx)),
        "copies_ahead": "cp.async" in ptx,
    }


if __name__ == "__main__":
    for chosen in sys.argv[1:] or TYPES:
        for each in cases(chosen):
            print(json.dumps(facts(each, chosen)), flush=True)
