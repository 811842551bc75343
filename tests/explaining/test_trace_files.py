"""Kernel traces are read as programs write them, steps are told apart, and overlap is counted once."""

import gzip
import json
import sqlite3
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_traces import STEPS, Made, made_steps, write_jax, write_kineto, write_nsight

from jaxscale.base.errors import InputError
from jaxscale.cli.main import main
from jaxscale.explaining.predicted_parts import NAMES, CollectiveGroup, kernel_term_table, parts_of, rule_of
from jaxscale.explaining.trace_files import read_traces
from jaxscale.explaining.trace_steps import MeasuredSteps, measured_steps

JAX_CPU = Path(__file__).parent / "files" / "jax_cpu.trace.json.gz"
PLAN = {"tp": 2, "pp": 1, "cp": 1, "ep": 8, "dp": 8}
EXPOSED = {
    **{"matmul": 1.0, "attention": 0.4, "memory_bound": 0.3, "optimizer": 0.1, "tensor_parallel": 0.2},
    **{"context_parallel": 0.0, "expert_parallel": 0.15, "data_parallel": 0.12, "pipeline": 0.0, "host": 0.08},
}
HIDDEN = {"tensor_parallel": 0.1, "data_parallel": 0.2}


def steps_of(path: Path, plan: dict | None = None) -> MeasuredSteps:
    """Times of the steps of a trace of one device."""
    (trace,) = read_traces(path)
    counts = np.bincount(trace.kind, minlength=len(trace.names))
    return measured_steps(trace, parts_of(trace.names, trace.groups, counts, plan or PLAN)[0])


def exposed_of(steps: MeasuredSteps) -> dict[str, float]:
    """Exposed time of each part of a step on average [s]."""
    return dict(zip(NAMES, steps.exposed.mean(axis=0).tolist(), strict=True))


@pytest.mark.parametrize("marks", [True, False], ids=["marked", "unmarked"])
@pytest.mark.parametrize("write", [write_kineto, write_nsight, write_jax])
def test_every_format_gives_back_what_was_written(write, marks: bool, tmp_path: Path):
    """Each part, exposed and hidden, with steps by their marks or by the pattern of kernels."""
    kernels, edges = made_steps(EXPOSED, HIDDEN)
    path = tmp_path / "trace.json.gz"
    if write is write_jax:
        write(path, kernels, edges)
    else:
        write(path, kernels, edges, marks=marks)
    steps = steps_of(path)
    assert len(steps.exposed) == STEPS - 1
    assert ("pattern" in steps.recognised_by) == (not marks and write is not write_jax)
    assert exposed_of(steps) == pytest.approx(EXPOSED, rel=0.02, abs=2e-3)
    hidden = (steps.busy - steps.exposed).mean(axis=0)
    for part, time in HIDDEN.items():
        assert hidden[NAMES.index(part)] == pytest.approx(time, rel=0.02)
    # Control: twice the matmuls are not the same.
    slower, edges = made_steps({**EXPOSED, "matmul": 2.0}, HIDDEN)
    assert exposed_of(steps_of(write(tmp_path / "slower.json.gz", slower, edges)))["matmul"] == pytest.approx(2.0, 0.02)


@pytest.mark.parametrize("row", ["XLA Modules", "Steps"])
def test_short_modules_of_jax_are_no_steps(row: str, tmp_path: Path):
    """A module that moves a batch before each step leaves the steps alone; numbered steps have a name each."""
    kernels, edges = made_steps(EXPOSED, HIDDEN)
    path = write_jax(tmp_path / "trace.json.gz", kernels, edges)
    alone, document = steps_of(path), json.loads(gzip.decompress(path.read_bytes()))
    steps = [event for event in document["traceEvents"] if event["name"] == "jit_train_step(7)"]
    short = [{**event, "name": "jit_move(2)", "dur": 1e-3 * event["dur"]} for event in steps]
    if row == "XLA Modules":
        document["traceEvents"] += short
    else:
        for number, event in enumerate(steps):
            event["name"] = str(number)
        document["traceEvents"][1]["args"]["name"] = row
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    np.testing.assert_allclose(steps_of(path).exposed, alone.exposed)


def test_a_microbatch_is_no_step(tmp_path: Path):
    """A trace of one step without marks: its microbatches repeat, its update does not."""
    microbatch = [
        (part, 0.1) for part in ("matmul", "attention", "memory_bound", "matmul", "memory_bound") for _ in "ab"
    ]
    kernels, now = [], 0.0
    for part, length in [*microbatch * 50, ("optimizer", 1.0), ("optimizer", 1.0)]:
        kernels.append(Made(part, 7, now, length, 0))
        now += length
    one = steps_of(write_nsight(tmp_path / "one.sqlite", kernels, [], marks=False))
    assert "one step" in one.recognised_by and one.exposed.sum() == pytest.approx(now)
    twice = [*kernels, *(kernel._replace(begin=kernel.begin + now) for kernel in kernels)]
    two = steps_of(write_nsight(tmp_path / "two.sqlite", twice, [], marks=False))
    assert f"{len(kernels)} kernels" in two.recognised_by and two.exposed.sum() == pytest.approx(now)


def test_time_is_counted_once(tmp_path: Path):
    """A collective beside compute is hidden; two kernels side by side share the time; a gap is the host's."""
    kernels = [
        Made("matmul", 7, 0.0, 2.0, 0),
        Made("data_parallel", 32, 1.0, 3.0, 0),
        Made("memory_bound", 8, 5.0, 2.0, 0),
        Made("attention", 7, 5.0, 1.0, 0),
    ]
    steps = steps_of(write_kineto(tmp_path / "trace.json", kernels, [0.0, 8.0]), {"dp": 8})
    found = exposed_of(steps)
    wanted = {"matmul": 2.0, "data_parallel": 2.0, "memory_bound": 1.5, "attention": 0.5, "host": 1.0}
    assert {name: time for name, time in found.items() if time} == pytest.approx(wanted)
    assert steps.busy[0, NAMES.index("data_parallel")] == pytest.approx(3.0)


def test_parts_are_those_of_a_count_by_moments(tmp_path: Path):
    """Kernels at random on several streams against a count at many moments."""
    random = np.random.default_rng(1)
    parts = ("matmul", "attention", "tensor_parallel", "data_parallel")
    kernels = []
    for stream, part in enumerate(parts):
        begins = np.sort(random.uniform(0.0, 10.0, 20))
        lengths = 0.9 * np.diff(np.append(begins, 10.5)) * random.uniform(0.2, 1.0, 20)
        kernels += [Made(part, 40 + stream, b, n, 0) for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)]
    found = exposed_of(steps_of(write_kineto(tmp_path / "trace.json", kernels, [0.0, 11.0])))
    first, last = min(k.begin for k in kernels), max(k.begin + k.length for k in kernels)
    moments = np.linspace(first, last, 20_001)
    runs = {
        p: sum(((k.begin <= moments) & (moments < k.begin + k.length)) for k in kernels if k.part == p) for p in parts
    }
    computes = runs["matmul"] + runs["attention"]
    for part in parts:
        among = computes if part in parts[:2] else np.where(computes == 0, runs[parts[2]] + runs[parts[3]], np.inf)
        share = np.divide(runs[part], among, out=np.zeros(len(moments)), where=np.asarray(among, float) > 0.0)
        assert found[part] == pytest.approx(float(share.mean()) * (last - first), abs=0.01)
    assert sum(found.values()) == pytest.approx(last - first)


def test_a_trace_of_jax_on_a_cpu():
    """Operations of XLA on the threads of a host, in three steps that the program annotated."""
    with gzip.open(JAX_CPU, "rt") as file:
        events = json.load(file)["traceEvents"]
    operations = [event for event in events if "hlo_op" in event.get("args", {}) and event["dur"] > 0.0]
    starts = sorted(event["ts"] for event in events if "step_num" in event.get("args", {}))
    (trace,) = read_traces(JAX_CPU)
    assert len(trace.start) == len(operations) and len(starts) == 3
    steps = steps_of(JAX_CPU)
    assert steps.recognised_by == "ranges on the host"
    assert steps.exposed.sum() == pytest.approx((starts[-1] - starts[0]) * 1e-6)
    assert exposed_of(steps)["matmul"] > 0.0


def test_the_two_files_of_a_profile_agree(tmp_path: Path):
    """What jax.profiler writes for viewers and as protocol buffer, of the same run."""
    step = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((256, 256))
    step(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(tmp_path), profiler_options=options):
        for number in range(3):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                step(x).block_until_ready()
    (shown,), (packed,) = (read_traces(next(tmp_path.rglob(pattern))) for pattern in ("*.trace.json.gz", "*.xplane.pb"))
    assert len(shown.start) == len(packed.start) > 0 and len(packed.host_marks) == 3
    assert shown.end - shown.start == pytest.approx(packed.end - packed.start, abs=2e-9)


KNOWN = {
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("collective", "all_gather"),
    "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)": ("collective", "all_reduce"),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": ("collective", "send_recv"),
    "collective-permute-done.4": ("collective", "send_recv"),
    "all-to-all.12": ("collective", "all_to_all"),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas": ("matmul", ""),
    "Cijk_Ailk_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x256x64": ("matmul", ""),
    "triton_tem_fused_mm_3": ("matmul", ""),
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Params)": ("attention", ""),
    "scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>": ("attention", ""),
    "void at::native::vectorized_elementwise_kernel<4, at::native::{lambda(float)#1}>": ("memory_bound", ""),
    "multi_tensor_apply_kernel<TensorListMetadata<2>, L2NormFunctor<float, 2>>": ("optimizer", ""),
    "input_reduce_fusion": ("memory_bound", ""),
    "Memcpy HtoD (Pageable -> Device)": ("host", ""),
    "somebodys_kernel": ("", ""),
}


@pytest.mark.parametrize("name", KNOWN)
def test_names_of_kernels(name: str):
    assert rule_of(name) == KNOWN[name]


def test_every_rule_has_a_source_and_a_part():
    table = kernel_term_table()
    for rule in (*table["rules"], *table["groups"]):
        assert rule["source"] in table["sources"]
        assert rule["term"] in (*NAMES, "collective")
    assert set(table["terms"]) == set(NAMES)


@pytest.mark.parametrize(
    ("group", "part"),
    [
        (CollectiveGroup("TENSOR_MODEL_PARALLEL_GROUP"), "tensor_parallel"),
        (CollectiveGroup("DATA_PARALLEL_GROUP_WITH_CP"), "data_parallel"),
        (CollectiveGroup("EXPERT_MODEL_PARALLEL_GROUP"), "expert_parallel"),
        (CollectiveGroup("mesh_dp_shard"), "data_parallel"),
        (CollectiveGroup("#1", size=2, stride=1), "tensor_parallel"),
        (CollectiveGroup("#2", size=2, stride=8), "data_parallel"),
    ],
)
def test_groups_of_collectives(group: CollectiveGroup, part: str):
    names = ("ncclDevKernel_AllGather_RING_LL",)
    found, known = parts_of(names, (group,), np.asarray([3]), PLAN)
    assert NAMES[found[0]] == part and known.all()


def bad_traces(folder: Path) -> dict[str, Path]:
    """Files that are no traces, or traces without kernels."""
    contents: dict[str, bytes] = {
        "empty.json": b"",
        "text.json": b"hello",
        "table.json": b"a,b\n1,2\n",
        "other.json": b'{"a": [1, 2]}',
        "no_kernels.json": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}',
        "numbers.json": b'{"traceEvents": [1, 2, 3]}',
        "cut.json": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}, {"ph"',
        "no_time.json": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": NaN}]}',
        "nested.json": b'{"traceEvents": ' + b"[" * 1_000_000,
        "objects.json": b'{"traceEvents": [' + b'{"a":' * 1_000_000,
        "cut.json.gz": gzip.compress(b'{"traceEvents": [' + b" " * 10_000)[:30],
        "not_packed.json.gz": b"\x1f\x8bno",
        "no_plane.xplane.pb": b"\x00\xff\x01",
        "broken.sqlite": b"SQLite format 3\x00" + b"\x07" * 200,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with sqlite3.connect(folder / "other.sqlite") as base:
        base.execute("CREATE TABLE people (name TEXT)")
    base.close()
    return {name: folder / name for name in (*contents, "other.sqlite", "absent.json")}


def test_bad_traces_are_refused_in_one_line(tmp_path: Path):
    for name, path in bad_traces(tmp_path).items():
        with pytest.raises(InputError) as refused:
            read_traces(path)
        assert str(path) in str(refused.value), name
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400, name


def test_the_command_refuses_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bad = bad_traces(tmp_path)["nested.json"]
    run = tmp_path / "run.csv"
    run.write_text("model,gpu,n_gpus\nllama3-8b,h100-80gb,8\n")
    assert main(["explain", str(run), "--trace", str(bad)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
