"""Measure the Triton kernels on a GPU: right, how fast, what share of what the GPU can do, and beside torch in the same run.

The ceilings come first: a large copy, and large products through cuBLAS. Each contender is captured into a CUDA graph of
several calls, so that the host's time for a launch does not count; the graphs take turns, and the median of their rounds is
told. What is not right is told as well, and makes the program fail.

Limits: a share above 1 means that the ceiling was measured at another clock, or that the cache helped.

    $ python3 -m labcore.bench.gpu_kernels OUT.json     # needs torch, triton, numpy and a CUDA device; 5 minutes
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton

from labcore.bench.gpu_jobs import COPY, DTYPE, GEMM, INT8, Call, Job, all_jobs

ROUNDS, SWEEP_ROUNDS = 15, 5
REPLAY_SECONDS = 1e-2  # of one graph: a launch from the host, some 10 us, is then a thousandth
MOST_CALLS = 256  # in one graph
TOLERANCE = 1e-2  # ||got - want|| / ||want|| of bfloat16

Graph = tuple[torch.cuda.CUDAGraph, int]  # and how many calls are in it


def main(path: Path) -> int:
    """Measure all jobs, writing after each; returns 1 if a kernel of ours failed or was wrong."""
    torch.manual_seed(0)
    ceilings = measure_ceilings()
    document: dict[str, Any] = {"stamp": stamp(), "ceilings": ceilings, "jobs": []}
    good = True
    for job in all_jobs():
        row = measure(job, ceilings)
        good &= any(run["name"] == "triton" and run.get("right", False) for run in row["runs"])
        document["jobs"].append(row)
        path.write_text(json.dumps(document, indent=1) + "\n")
        print_row(row)
        del job
        torch.cuda.empty_cache()
    return 0 if good else 1


def stamp() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.split()
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "driver": driver[0] if driver else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def measure_ceilings() -> dict[str, float]:
    """Bytes a second of a pass that reads 4 GiB and writes 4, and operations a second of products of 8,192, on random data.

    The pass turns every bit: a plain copy goes through the driver, which was seen to be a third slower than a kernel.
    """
    words = torch.randint(-(1 << 31), 1 << 31, (1 << 30,), dtype=torch.int32, device="cuda")
    source, target = words.view(torch.int8), torch.empty_like(words)
    a, b = (torch.randn(8192, 8192, device="cuda").to(DTYPE) for _ in range(2))
    p, q = source[: 1 << 26].view(8192, 8192), source[1 << 26 : 1 << 27].view(8192, 8192)
    calls: dict[str, Call] = {
        COPY: lambda i: torch.bitwise_not(words, out=target),
        GEMM: lambda i: a @ b.T,
        INT8: lambda i: torch._int_mm(p, q.T),
    }
    times = alternate({name: capture(call, 1, 2) for name, call in calls.items()}, ROUNDS)
    done = {COPY: 2 * source.numel(), GEMM: 2 * 8192**3, INT8: 2 * 8192**3}
    return {name: done[name] / statistics.median(times[name]) for name in calls}


def capture(call: Call, num_sets: int, count: int) -> Graph:
    """`count` calls in one CUDA graph, taking the input sets in turn; compiled and warmed up before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(max(3, num_sets)):
            call(i % num_sets)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i % num_sets)
    return graph, count


def alternate(graphs: Mapping[str, Graph], rounds: int) -> dict[str, list[float]]:
    """Seconds a call, by contender, a number a round; they take turns, and the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, (graph, count) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 1e3 / count)
    return {name: seconds[1:] for name, seconds in times.items()}


def measure(job: Job, ceilings: Mapping[str, float]) -> dict[str, Any]:
    """One row of the result: the fastest candidate is found first, then it takes turns with its peers."""
    floor = max(job.num_bytes / ceilings[COPY], job.flops / ceilings[GEMM if job.ceiling == COPY else job.ceiling])
    count = job.num_sets * max(1, min(round(REPLAY_SECONDS / floor), MOST_CALLS) // job.num_sets)
    work = job.num_bytes if job.ceiling == COPY else job.flops
    row: dict[str, Any] = {
        "kernel": job.kernel, "size": job.size, "dtype": str(DTYPE), "bytes": job.num_bytes, "flops": job.flops,
        "ceiling": job.ceiling, "floor_us": floor * 1e6, "runs": [],
    }  # fmt: skip
    contenders = dict(job.contenders)
    if job.candidates:
        graphs, failed = attempt(capture, job.candidates, job.num_sets, count)
        sweep = {name: statistics.median(seconds) for name, seconds in alternate(graphs, SWEEP_ROUNDS).items()}
        row["sweep_us"] = {name: seconds * 1e6 for name, seconds in sweep.items()} | failed
        if sweep:
            row["tiles"] = min(sweep, key=lambda name: sweep[name])
            contenders = {"triton": job.candidates[row["tiles"]], **contenders}
        del graphs
    errors, wrong = attempt(error_of, contenders, job.reference())
    graphs, failed = attempt(capture, {name: contenders[name] for name in errors}, job.num_sets, count)
    for name, seconds in alternate(graphs, ROUNDS).items():
        low, *_, high = statistics.quantiles(seconds, n=10)
        p50 = statistics.median(seconds)
        row["runs"].append({
            "name": name, "p10_us": low * 1e6, "p50_us": p50 * 1e6, "p90_us": high * 1e6, "rate": work / p50,
            "unit": "B/s" if job.ceiling == COPY else "op/s", "share": work / p50 / ceilings[job.ceiling],
            "error": errors[name], "right": errors[name] < TOLERANCE,
        })  # fmt: skip
    row["runs"] += [{"name": name, "failed": why} for name, why in (wrong | failed).items()]
    return row


def attempt(action: Callable[..., Any], calls: Mapping[str, Call], *arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """action(call, *arguments) of each, and why others have none: a peer that cannot run here must not stop the rest."""
    made, failed = {}, {}
    for name, call in calls.items():
        try:
            made[name] = action(call, *arguments)
        except Exception as error:  # whatever a library raises belongs into the result
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {str(error).strip()[:300]}"
    return made, failed


def error_of(call: Call, want: torch.Tensor) -> float:
    """||got - want|| / ||want|| in float64; memory that the result may get is filled with NaN before."""
    torch.full(want.shape, torch.nan, dtype=DTYPE, device=want.device)  # freed at once: the next of this size gets its place
    got = call(0)
    if got.shape != want.shape:
        raise ValueError(f"got shape {tuple(got.shape)}; expected {tuple(want.shape)}")
    return float((got.double() - want).norm() / want.norm())


def print_row(row: Mapping[str, Any]) -> None:
    print(f"{row['kernel']}  {row['size']}  floor {row['floor_us']:.1f} us  {row.get('tiles', '')}", flush=True)
    for run in row["runs"]:
        if "failed" in run:
            print(f"    {run['name']:34s} FAILED {run['failed'][:150]}")
        else:
            note = "" if run["right"] else "  WRONG"
            print(f"    {run['name']:34s} {run['p50_us']:9.1f} us  {run['rate'] / 1e12:8.3f} T{run['unit']}  "
                  f"{run['share']:6.1%} of {row['ceiling']}  error {run['error']:.1e}{note}")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2 or not torch.cuda.is_available():
        sys.exit("usage: python3 -m labcore.bench.gpu_kernels OUT.json, on a machine with a CUDA device")
    sys.exit(main(Path(sys.argv[1])))
