"""Compiled steps: kernels, memory and collectives as a compiler makes them, against the trace and closed forms."""

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

import jaxscale as js
from jaxscale.examples import decoder_steps
from jaxscale.tracing import absent_devices
from jaxscale.tracing.absent_devices import compile_targets, slice_shape, target_text
from jaxscale.tracing.compile_step import compile_on
from jaxscale.tracing.program_tables import array_bytes, compiled_collectives, compiled_kernels, executed, program_text

SHAPE = {"n_layers": 2, "d_model": 64, "n_heads": 4, "n_kv_heads": 4, "d_ff": 256, "vocab_size": 512, "seq_len": 32}
N_WEIGHTS = 2 * (4 * 64**2 + 2 * 64 * 256 + 2 * 64) + 2 * 512 * 64 + 64

DEVICES = """
import json, sys
import jax, jax.numpy as jnp
import jaxscale as js
from jaxscale.tracing.absent_devices import slice_shape
from jaxscale.tracing.compile_step import compile_on
from jaxscale.examples import decoder_steps

setting = json.loads(sys.argv[1]) | {"dtype": jnp.float32, "attention": "xla", "micro_batch": 16}
step, *args = decoder_steps.decoder(**setting)
work = js.trace(step, *args)
split = ["state.0.down[1]", "state.0.key[2].0"]
plans = {
    "one": dict(data=1), "data": dict(data=8), "shard": dict(data=8, shard=8), "hybrid": dict(data=8, shard=2),
    "tensor": dict(data=4, tensor=2, split=split),
}
found = {}
for name, plan in plans.items():
    chips = plan["data"] * plan.get("tensor", 1)
    made = compile_on(step, args, jax.devices()[:chips], 0, js.class_plan(work, **plan))
    rows = {row.name: [row.compiled, row.traced] for row in made.beside_trace()}
    memory = [made.argument_bytes, made.result_bytes, made.temporary_bytes]
    found[name] = [rows, memory, [list(one) for one in made.collectives], str(made)]
print(json.dumps(found))
"""


@functools.cache
def on_devices() -> dict[str, Any]:
    """A decoder compiled under several plans, on eight devices that share this processor."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_ENABLE_X64", None)
    command = [sys.executable, "-c", DEVICES, json.dumps(SHAPE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def collectives(name: str) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Count and bytes of the collectives of a plan by kind, members and stride."""
    return {(kind, members, stride): (count, size) for kind, members, stride, count, size in on_devices()[name][2]}


def test_data_parallelism_reduces_each_gradient_once_among_all():
    found = collectives("data")
    assert set(found) == {("all-reduce", 8, 1)}
    assert found["all-reduce", 8, 1][1] == pytest.approx(4 * N_WEIGHTS)
    compiled, traced = on_devices()["data"][0]["reduced [GB]"]
    assert compiled == pytest.approx(traced, rel=1e-6)
    assert not collectives("one")


def test_shards_are_gathered_and_hybrid_ones_in_small_groups():
    gathered = collectives("shard")["all-gather", 8, 1][1]
    assert 4 * N_WEIGHTS * 0.9 < gathered <= 2.01 * 4 * N_WEIGHTS
    hybrid = collectives("hybrid")
    assert hybrid["all-gather", 2, 1][1] == pytest.approx(gathered, rel=0.3)
    assert ("all-gather", 8, 1) not in hybrid
    arguments = {name: on_devices()[name][1][0] for name in ("data", "shard", "hybrid")}
    state = 3 * 4 * N_WEIGHTS
    assert arguments["data"] == pytest.approx(state, rel=0.02)
    assert arguments["shard"] == pytest.approx(state / 8, rel=0.1)
    assert arguments["hybrid"] == pytest.approx(state / 2, rel=0.05)


def test_tensor_parallelism_adds_up_activations_in_pairs():
    found = collectives("tensor")
    activation = 4 * 16 / 4 * SHAPE["seq_len"] * SHAPE["d_model"]
    count, size = found["all-reduce", 2, 1]
    # Forward two of a layer; backward one of the MLP, and up to one for each of query, key and value.
    assert size / activation == count and 4 * 2 <= count <= 6 * 2
    # Gradients of parts of matrices, among chips that hold the same part.
    assert found["all-reduce", 4, 2][1] < 4 * N_WEIGHTS * 0.8


def test_kernels_and_text_hang_together():
    rows, memory, _, text = on_devices()["one"]
    compiled, traced = rows["matmul kernels"]
    assert compiled == pytest.approx(traced, rel=0.1)
    assert memory[1] < 0.01 * memory[0]  # the new state takes the place of the old one
    assert "GB at the peak" in text and "matmul kernels" in text
    assert on_devices()["data"][0]["traffic [GB]"][0] < rows["traffic [GB]"][0]


def test_a_fusion_moves_its_operands_and_its_result():
    import jax
    import jax.numpy as jnp

    one = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    text = jax.jit(lambda x, y: jnp.exp(x) * 2.0 + y).lower(one, one).compile().as_text()
    kernels = compiled_kernels(program_text(text or ""))
    assert len(kernels) == 1
    assert kernels[0].bytes == pytest.approx(3 * 4 * 2**20)


def test_loops_count_by_their_turns():
    import jax

    def launches(unroll: bool) -> float:
        step, *args = decoder_steps.decoder(**SHAPE, attention="xla", unroll=unroll)
        return compile_on(step, args, jax.devices()[:1]).launches("matmul")

    rolled, unrolled = launches(False), launches(True)
    assert rolled == pytest.approx(unrolled, rel=0.05) and unrolled > 2 * 12


def test_a_step_without_a_new_state_needs_room_for_its_results():
    import jax
    import jax.numpy as jnp

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    same = compile_on(lambda w, x: w + x @ w, [shape, shape], jax.devices()[:1])
    wider = compile_on(lambda w, x: jnp.concatenate([w, x @ w, x]), [shape, shape], jax.devices()[:1])
    assert same.result_bytes < 1000.0 and wider.result_bytes == pytest.approx(3 * 4 * 256**2, rel=0.01)
    assert same.fits and not compile_on(lambda w: w + 1.0, [shape], jax.devices()[:1], capacity=1e3).fits


PROGRAM = """HloModule step, is_scheduled=true

%scatter_sum (a: f32[8,64]) -> f32[1,64] {
  %a = f32[8,64]{1,0} parameter(0)
  ROOT %rs = f32[1,64]{1,0} reduce-scatter(%a), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, to_apply=%sum
}

%part (p0: f32[16,64], p1: s32[]) -> f32[1,64] {
  %p0 = f32[16,64]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %row = f32[1,64]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,64}
}

%body (t: (s32[], f32[16,64])) -> (s32[], f32[16,64]) {
  %t = (s32[], f32[16,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[16,64]{1,0} get-tuple-element(%t), index=1
  %one = f32[1,64]{1,0} fusion(%x, %i), kind=kLoop, calls=%part, metadata={op_name="jit(f)/jvp()/slice"}
  ROOT %out = (s32[], f32[16,64]{1,0}) tuple(%i, %x)
}

ENTRY %main (w: f32[16,64], s: s32[]) -> f32[16,64] {
  %w = f32[16,64]{1,0} parameter(0)
  %s = s32[] parameter(1)
  %t0 = (s32[], f32[16,64]{1,0}) tuple(%s, %w)
  %loop = (s32[], /*index=1*/f32[16,64]{1,0}) while(%t0), body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %gemm = (bf16[16,32]{1,0}, s8[1024]{0}) custom-call(%w, %w), custom_call_target="__cublas$gemm", OPNAME
  %start = (f32[16,64]{1,0}, f32[128,64]{1,0}) all-gather-start(%w), replica_groups=[4,2]<=[2,4]T(1,0)
  %done = f32[128,64]{1,0} all-gather-done(%start)
  %async = ((f32[8,64]{1,0}), f32[1,64]{1,0}) async-start(%w), calls=%scatter_sum
  %number = f32[] all-reduce(%s), replica_groups={{0,1}}, to_apply=%sum
  ROOT %sum2 = f32[16,64]{1,0} all-reduce(%w), replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}
}
""".replace("OPNAME", 'metadata={op_name="jit(f)/transpose(jvp())/dot"}')


def test_a_program_is_read_from_its_text():
    program = program_text(PROGRAM)
    runs = [(one.name, times) for one, _, times in executed(program)]
    assert ("one", 5.0) in runs and ("rs", 1.0) in runs and ("loop", 1.0) not in runs
    kernels = {one.name: one for one in compiled_kernels(program)}
    assert set(kernels) == {"one", "gemm"}
    assert kernels["one"].bytes == 5 * (2 * 64 * 4 + 4) and kernels["one"].phase == "forward"
    assert kernels["gemm"].kind == "matmul" and kernels["gemm"].phase == "backward"
    found = {(one.kind, one.members, one.stride): (one.count, one.bytes) for one in compiled_collectives(program)}
    assert found == {
        ("all-gather", 2, 4): (1.0, 4 * 128 * 64),
        ("reduce-scatter", 8, 1): (1.0, 4 * 8 * 64),
        ("all-reduce", 4, 2): (1.0, 4 * 16 * 64),
    }
    assert array_bytes("(bf16[2,3]{1,0:T(8,128)}, pred[], f8e4m3fn[4], s4[4])") == [12.0, 1.0, 4.0, 2.0]
    assert array_bytes("(f32[8]{0:T(256)S(1)}, f32[8]{0:T(256)}, f32[8])", in_memory=True) == [0.0, 32.0, 32.0]
    with pytest.raises(js.InputError, match="holds no compiled program"):
        program_text("nothing")


def test_missing_compilers_gpus_and_plans_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    step, *args = decoder_steps.decoder(**SHAPE)
    monkeypatch.setattr(absent_devices, "PLUGIN", "jax_plugins.no_such_compiler")
    with pytest.raises(
        js.InputError, match=r"compiler of NVIDIA GPUs, .* expected `pip install 'jaxscale\[aot\]'"
    ) as told:
        js.compile_for(step, *args, gpu="h100-80gb")
    assert "\n" not in str(told.value)
    with pytest.raises(js.InputError, match="'v100-16gb' has no description for the compiler"):
        js.compile_for(step, *args, gpu="v100-16gb")
    monkeypatch.setattr(absent_devices, "COMPILER", "no_such_compiler")
    with pytest.raises(js.InputError, match=r"compiler of TPUs, .* expected `pip install 'jaxscale\[aot-tpu\]'"):
        js.compile_for(step, *args, gpu="v5p")
    import jax

    work = js.trace(step, *args)
    with pytest.raises(js.InputError, match="stages and microbatches are part of a program"):
        compile_on(step, args, jax.devices()[:1], 0, js.class_plan(work, n_microbatches=2))
    with pytest.raises(js.InputError, match="the plan has 2 chips; expected one of n = 1"):
        compile_on(step, args, jax.devices()[:1], 0, js.class_plan(work, data=2))


def test_descriptions_agree_with_the_catalogue():
    for gpu in compile_targets()["targets"]:
        text, chip = target_text(gpu), js.chip(gpu)
        assert text.count("{") == text.count("}")
        said = {line.split(": ")[0].strip(): line.split(": ")[1] for line in text.splitlines() if ": " in line}
        assert float(said["memory_bandwidth"]) == pytest.approx(float(chip.hbm_bandwidth), rel=0.02)
        assert float(said["device_memory_size"]) == pytest.approx(float(chip.hbm_bytes), rel=0.07)


def test_slices_of_tpus_are_near_to_squares_and_cubes():
    shapes = {(n, axes): slice_shape(n, axes) for n in (1, 2, 4, 8, 12, 32, 64, 256) for axes in (2, 3)}
    assert all(math.prod(shape) == n and len(shape) == axes for (n, axes), shape in shapes.items())
    assert shapes[32, 2] == (4, 8) and shapes[256, 2] == (16, 16) and shapes[64, 3] == (4, 4, 4)
    assert shapes[4, 3] == (2, 2, 1) and shapes[12, 3] == (2, 2, 3) and shapes[1, 2] == (1, 1)
    with pytest.raises(js.InputError, match="n = 6 chips are no slice of TPUs; expected 1, 2 or a multiple of 4"):
        slice_shape(6, 2)


TPU_PROGRAM = """
%fused (p0: bf16[8,64], p1: bf16[64,32]) -> bf16[8,32] {
  %p0 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p1 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %c = bf16[8,32]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_io->bf, metadata={op_name="jit(f)/OPERATION"}
}

ENTRY %main (x: bf16[8,64], w: bf16[64,32]) -> bf16[8,32] {
  %x = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %w = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %product = bf16[8,32]{1,0:T(8,128)} fusion(%x, %w), kind=kOutput, calls=%fused
}
"""


@pytest.mark.parametrize(("operation", "kind"), [("dot_general", "matmul"), ("conv_general_dilated", "conv")])
def test_a_program_of_a_tpu_says_which_convolutions_are_matmuls(operation: str, kind: str):
    """Its operand in the memory of the core is no traffic."""
    (product,) = compiled_kernels(program_text(TPU_PROGRAM.replace("OPERATION", operation)))
    assert product.kind == kind and product.bytes == 2 * (64 * 32 + 8 * 32)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra aot-tpu")
def test_an_absent_tpu_is_compiled_for():
    step, *args = decoder_steps.decoder(**SHAPE, micro_batch=8, attention="xla")
    work = js.trace(step, *args)
    made = js.compile_for(step, *args, gpu="tpu-v5p", n=8, plan=js.class_plan(work, data=8, shard=8))
    rows = {row.name: row for row in made.beside_trace()}
    assert rows["matmul kernels"].compiled == rows["matmul kernels"].traced
    # Gradients that the trace adds in 32 bits are added in 16 where the weights are small.
    assert rows["reduced [GB]"].compiled == pytest.approx(rows["reduced [GB]"].traced, rel=0.25)
    assert {one.kind for one in made.collectives} >= {"all-gather", "all-reduce"}


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs the extra aot")
def test_an_absent_gpu_is_compiled_for():
    step, *args = decoder_steps.decoder(n_layers=2, d_model=512, n_heads=4, n_kv_heads=4, d_ff=2048, micro_batch=16)
    work = js.trace(step, *args)
    made = js.compile_for(step, *args, gpu="h100-80gb", n=8, plan=js.class_plan(work, data=8, shard=8))
    rows = {row.name: row for row in made.beside_trace()}
    # The compiler joins products that read the same, such as those of query, key and value.
    assert 0.7 < rows["matmul kernels"].compiled / rows["matmul kernels"].traced <= 1.0
    assert rows["attention kernels"].compiled == rows["attention kernels"].traced == 4
    assert rows["peak memory [GB]"].compiled == pytest.approx(rows["peak memory [GB]"].traced, rel=0.1)
    assert rows["reduced [GB]"].compiled == pytest.approx(rows["reduced [GB]"].traced, rel=0.01)
    assert {one.kind for one in made.collectives} >= {"all-gather", "reduce-scatter"}
    assert made.peak_bytes < js.compile_for(step, *args, gpu="h100-80gb").peak_bytes
