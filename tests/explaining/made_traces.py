"""Kernel traces of predicted steps, written as PyTorch's profiler, JAX and Nsight Systems write theirs.

The kernels of a step have the predicted time of their part, with scatter; what a test plants is a changed time.
"""

import gzip
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

LAYERS, STEPS = 12, 3

# ruff: noqa: E501 - names as the programs write them
TORCH_NAMES = {
    "matmul": (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
    ),
    "attention": (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false>, false, true>(Flash_fwd_params)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<128>>()",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_128x64x128_4x1x1_kernel0_0",
    ),
    "memory_bound": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::mul_functor<float>, at::detail::Array<char*, 3>>()",
        "triton_poi_fused__to_copy_add_mul_silu_7",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*, float const*, int)",
    ),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>()",
    ),
    "tensor_parallel": (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "context_parallel": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",),
    "expert_parallel": (
        "void deep_ep::internode::dispatch<false, 4, true, 12288>(int4*)",
        "void deep_ep::internode::combine<false>(int4*)",
    ),
    "data_parallel": ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)",),
    "pipeline": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",),
}
"""Names of kernels of each part as CUPTI gives them."""

XLA_NAMES = {
    "matmul": ("cutlass_gemm_with_upcast", "gemm_fusion_dot_12", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"),
    "attention": ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",),
    "memory_bound": ("loop_add_fusion", "input_reduce_fusion_3", "loop_convert_fusion_11", "wrapped_transpose"),
    "optimizer": ("loop_fused_adam_update_fusion",),
    "tensor_parallel": ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce-scatter.3"),
    "context_parallel": ("collective-permute-start.2",),
    "expert_parallel": ("all-to-all.4",),
    "data_parallel": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
    "pipeline": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",),
}
"""Names of kernels of each part as JAX gives them."""

STREAMS = {"tensor_parallel": 20, "context_parallel": 24, "expert_parallel": 28, "data_parallel": 32, "pipeline": 36}


class Made(NamedTuple):
    """A kernel of a made trace: part, stream, begin [s], length [s], its number within its part."""

    part: str
    stream: int
    begin: float
    length: float
    number: int


def made_step(
    begin: float,
    exposed: Mapping[str, float],
    hidden: Mapping[str, float],
    random: np.random.Generator,
    skew: float = 0.0,
    host_gap_at_once: bool = False,
) -> tuple[list[Made], float]:
    """Kernels of one step, and its end [s].

    Args:
        begin: of the step [s].
        exposed: time of each part that nothing else hides [s].
        hidden: time of the collectives of each part beside compute [s].
        random: of the scatter.
        skew: spread of the lengths of the exchanges of experts, whose mean stays [1].
        host_gap_at_once: the host's time before the first kernel, as of a data loader.
    """
    kernels: list[Made] = []
    numbers: dict[str, int] = {}
    now = begin + (exposed["host"] if host_gap_at_once else 0.0)

    def run(part: str, length: float, start: float, stream: int = 7) -> float:
        if length <= 0.0:
            return start
        numbers[part] = numbers.get(part, -1) + 1
        kernels.append(Made(part, STREAMS.get(part, stream), start, length, numbers[part]))
        return start + length

    for _ in range(LAYERS):
        # Four pieces, as many as there are names of a part.
        started = now
        for piece in range(4):
            for part in ("matmul", "attention", "memory_bound"):
                length = exposed[part] / LAYERS / 4 * random.uniform(0.95, 1.05)
                now = run(part, length, now)
            if piece % 2 == 0:
                now = run("tensor_parallel", exposed["tensor_parallel"] / LAYERS / 2, now)
                spread = np.exp(skew * random.standard_normal() - 0.5 * skew**2)
                now = run("expert_parallel", exposed["expert_parallel"] / LAYERS / 2 * spread, now)
            if not host_gap_at_once:
                now += exposed["host"] / LAYERS / 4
        for part, time in hidden.items():
            # Beside the compute of the layer; nothing else of it is hidden.
            n = 4 if part == "tensor_parallel" else 1
            for piece in range(n):
                own = [kernel for kernel in kernels if kernel.begin >= started and kernel.part == "matmul"]
                run(part, min(time / LAYERS / n, own[piece].length), own[piece].begin)
        now = run("context_parallel", exposed["context_parallel"] / LAYERS, now)
        now = run("pipeline", exposed["pipeline"] / LAYERS, now)
    for part in ("data_parallel", "optimizer"):
        for _ in range(2):
            now = run(part, exposed[part] / 2, now)
    return kernels, now


def made_steps(
    exposed: Mapping[str, float],
    hidden: Mapping[str, float] | None = None,
    seed: int = 0,
    skew: float = 0.0,
    host_gap_at_once: bool = False,
) -> tuple[list[Made], list[float]]:
    """Kernels of several steps, and their edges [s]."""
    random, edges, kernels = np.random.default_rng(seed), [0.5], []
    for _ in range(STEPS):
        own, end = made_step(edges[-1], exposed, hidden or {}, random, skew, host_gap_at_once)
        kernels += own
        edges.append(end)
    return kernels, edges


def ranks_of(part: str, tp: int) -> list[int]:
    """Ranks of the group of a collective: those of a tensor-parallel group are neighbours."""
    return list(range(tp)) if part == "tensor_parallel" else [0, tp, 2 * tp, 3 * tp]


def write_kineto(path: Path, kernels: list[Made], edges: list[float], tp: int = 2, marks: bool = True) -> Path:
    """A trace of PyTorch's profiler, packed where the name ends in .gz."""
    events = []
    for place, kernel in enumerate(kernels):
        names = TORCH_NAMES[kernel.part]
        args = {"device": 0, "stream": kernel.stream, "correlation": place + 1}
        if kernel.part in STREAMS and "nccl" in names[0]:
            args |= {
                "Collective name": "_allgather_base",
                "Process Group Name": str(STREAMS[kernel.part]),
                "Process Group Ranks": str(ranks_of(kernel.part, tp)),
                "Group size": len(ranks_of(kernel.part, tp)),
            }
        event = {"ph": "X", "cat": "kernel", "name": names[kernel.number % len(names)], "pid": 0, "tid": kernel.stream}
        events.append({**event, "ts": 1e6 * kernel.begin, "dur": 1e6 * kernel.length, "args": args})
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "dur": 2.0}
        # The host is ahead of the device by a fifth of a step.
        ahead = 0.2 * (edges[1] - edges[0])
        events.append({**launch, "ts": 1e6 * (kernel.begin - ahead), "args": {"correlation": place + 1}})
    if marks:
        for step, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            span = {"ts": 1e6 * (begin - ahead), "dur": 1e6 * (end - begin)}
            events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step + 5}", "pid": 9, **span})
    document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events}
    text = json.dumps(document)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_jax(path: Path, kernels: list[Made], edges: list[float]) -> Path:
    """A trace of JAX on a GPU: streams of a device, and runs of the compiled step."""
    pid, threads = 1, {stream: f"Stream #{stream}(Compute)" for stream in {kernel.stream for kernel in kernels}}
    events = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": pid, "tid": 1, "name": "thread_name", "args": {"name": "XLA Modules"}},
        *({"ph": "M", "pid": pid, "tid": t, "name": "thread_name", "args": {"name": n}} for t, n in threads.items()),
    ]
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        span = {"ts": 1e6 * begin, "dur": 1e6 * (end - begin)}
        events.append({"ph": "X", "pid": pid, "tid": 1, "name": "jit_train_step(7)", **span})
    for kernel in kernels:
        names = XLA_NAMES[kernel.part]
        span = {"ts": 1e6 * kernel.begin, "dur": 1e6 * kernel.length, "name": names[kernel.number % len(names)]}
        events.append({"ph": "X", "pid": pid, "tid": kernel.stream, **span})
    path.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()))
    return path


def write_nsight(path: Path, kernels: list[Made], edges: list[float], marks: bool = True) -> Path:
    """A SQLite export of Nsight Systems, whose collectives tell nothing of their groups."""
    names = sorted({name for part in TORCH_NAMES.values() for name in part})
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            " correlationId INTEGER, demangledName INTEGER, shortName INTEGER)"
        )
        rows = []
        for place, kernel in enumerate(kernels):
            own = TORCH_NAMES[kernel.part]
            name = names.index(own[kernel.number % len(own)])
            begin, end = round(1e9 * kernel.begin), round(1e9 * (kernel.begin + kernel.length))
            rows.append((begin, end, 0, kernel.stream, place, name, name))
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        if marks:
            base.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER)")
            for step, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
                row = (round(1e9 * begin), round(1e9 * end), f"iteration {step}")
                base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL)", row)
    base.close()
    return path
