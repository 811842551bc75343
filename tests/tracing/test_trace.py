"""Traces: what is read of loops, names, sizes and memory, what is refused, and files."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import jaxscale as js
from jaxscale.cli.main import main
from jaxscale.examples import decoder_steps, other_steps, recommendation_steps
from jaxscale.tracing.program import Axis, atoms, make_equal
from jaxscale.tracing.traced_workload import Workload

SMALL = {"n_layers": 4, "d_model": 256, "n_heads": 8, "n_kv_heads": 2, "d_ff": 640, "vocab_size": 1000, "seq_len": 128}


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def test_factors_of_axes_find_their_common_refinement():
    left, right = [Axis(4), Axis(6)], [Axis(8), Axis(3)]
    make_equal(left, right)
    assert [axis.size for axis in atoms(left)] == [4, 2, 3]
    assert atoms(left) == atoms(right)
    other, strange = [Axis(4), Axis(9)], [Axis(6), Axis(6)]
    make_equal(other, strange)
    assert not set(atoms(other)) & set(atoms(strange))


def test_classes_of_a_decoder():
    work = js.trace(*decoder_steps.decoder(**SMALL, gated_mlp=True))
    classes = work.classes()
    assert classes["tokens[1]"] == 4
    assert classes["tokens[2]"] == 128
    sizes = sorted(size for name, size in classes.items() if name.startswith("state"))
    # Width, key heads, queries of a key, width of a head, MLP, vocabulary of embedding and head, depth.
    assert {4.0, 32.0, 256.0, 640.0, 1000.0, 2.0} <= set(sizes)
    assert len(sizes) <= 10


def matches(small: Workload, large: Workload, name: str) -> float:
    """Largest difference between a column of a workload at the sizes of another one and that one's own column."""
    moved = small.with_sizes(large.classes())
    ours, theirs = np.asarray(getattr(moved.columns(), name)), np.asarray(getattr(large.columns(), name))
    assert moved.tables.kinds == large.tables.kinds
    return float(np.max(np.abs(ours - theirs) / (1.0 + np.abs(theirs))))


CHANGES = [
    {"micro_batch": 8},
    {"seq_len": 256},
    {"d_model": 512, "n_heads": 16, "n_kv_heads": 4},
    {"d_ff": 1280},
    {"n_layers": 8},
    {"vocab_size": 2000},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_sizes_of_classes_say_what_tracing_again_says(change: dict[str, int]):
    small = js.trace(*decoder_steps.decoder(**SMALL, gated_mlp=True))
    large = js.trace(*decoder_steps.decoder(**{**SMALL, **change}, gated_mlp=True))
    assert matches(small, large, "flop") < 1e-5
    # Targets are a slice of the tokens and an end: an axis of their own, of next to no bytes.
    assert matches(small, large, "bytes") < 0.01
    assert matches(small, small, "flop") == 0
    assert float(large.flop()) > 1.05 * float(small.flop())
    assert float(small.with_sizes(large.classes()).peak_bytes()) == pytest.approx(float(large.peak_bytes()), rel=0.05)


def test_flop_differentiate_by_sizes():
    work = js.trace(*decoder_steps.decoder(**SMALL))

    def total(log_size: jax.Array, name: str) -> jax.Array:
        return jnp.log(work.with_sizes({name: jnp.exp(log_size)}).flop())

    batch = jax.grad(total)(jnp.log(4.0), "tokens[1]")
    length = jax.grad(total)(jnp.log(128.0), "tokens[2]")
    assert float(batch) == pytest.approx(1.0, rel=1e-4)
    assert 1.0 < float(length) < 2.0  # attention grows by its square


def test_a_rolled_loop_moves_more_and_counts_the_same():
    unrolled = js.trace(*decoder_steps.decoder(**SMALL))
    rolled = js.trace(*decoder_steps.decoder(**SMALL, unroll=False))
    assert float(rolled.flop()) == pytest.approx(float(unrolled.flop()), rel=1e-6)
    assert float(rolled.columns().bytes.sum()) > 1.2 * float(unrolled.columns().bytes.sum())
    assert float(rolled.stored_bytes()) > float(unrolled.stored_bytes())


def test_fusion_of_elementwise_work():
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x * weights + 1.0) * 2.0

    work = js.trace(step, array(1024, 1024), array(1024, 1024))
    assert work.tables.kinds == ("elementwise",)
    assert float(work.columns().bytes[0]) == 3 * 4 * 1024**2  # two arrays read, one written


def test_adam_moves_28_bytes_a_weight():
    step, state, tokens = decoder_steps.decoder(**SMALL)
    work = js.trace(step, state, tokens)
    columns, phases = work.columns(), np.array(work.tables.phases)
    moved = float(columns.bytes[phases == "update"].sum())
    # Weight and two moments read and written, the gradient read, in 16 bits before it is summed up.
    assert 26 * float(work.n_weights()) < moved < 40 * float(work.n_weights())


def test_names_of_the_user_are_groups():
    work = js.trace(*decoder_steps.decoder(**SMALL))
    assert any(group.endswith("/mlp") for group in work.tables.groups)
    assert set(work.tables.phases) == {"forward", "backward", "update"}
    text = str(work)
    assert "attention backward" in text
    assert "tokens[1] = 4" in text


def test_renamed_classes():
    work = js.trace(*decoder_steps.decoder(**SMALL), names={"tokens[1]": "batch"})
    assert work.classes()["batch"] == 4
    with pytest.raises(js.InputError, match="'bach' is unknown to this workload; did you mean batch"):
        work.with_sizes({"bach": 8})
    with pytest.raises(js.InputError, match="stands for two classes"):
        work.renamed({"tokens[2]": "batch"})


def test_equinox_models_and_conv_nets_trace():
    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.LayerNorm
        mlp: eqx.nn.MLP

        def __init__(self, key: jax.Array):
            self.conv = eqx.nn.Conv2d(3, 8, 3, key=key)
            self.norm = eqx.nn.LayerNorm(8)
            self.mlp = eqx.nn.MLP(8, 10, 32, 2, key=key)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.mlp(self.norm(jnp.mean(jax.nn.relu(self.conv(x)), (1, 2))))

    def step(net: Net, images: jax.Array) -> Net:
        grads = eqx.filter_grad(lambda net: jnp.sum(jax.vmap(net)(images)))(net)
        return eqx.apply_updates(net, grads)

    work = js.trace(step, eqx.filter_eval_shape(Net, jax.random.key(0)), array(16, 3, 32, 32, dtype=float))
    assert float(work.flop("conv")) == pytest.approx(2 * 2 * 16 * 30 * 30 * 8 * 27)
    assert "net.mlp.layers.0.weight" in work.tables.weight_names


def test_branches_count_the_largest():
    def step(flag: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(flag, lambda x: x @ x @ x, lambda x: x, x)

    assert float(js.trace(step, array(dtype=jnp.bool_), array(64, 64)).flop()) == 2 * 2 * 64**3


def test_loops_without_an_end_are_refused_and_stated_ones_count():
    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("search"):
            return lax.while_loop(lambda x: jnp.sum(x) < 1.0, lambda x: x @ x, x)

    with pytest.raises(js.InputError, match=r"while in scope 'search': .*turns=\{'search': 10\}"):
        js.trace(step, array(64, 64))
    assert float(js.trace(step, array(64, 64), turns={"search": 7}).flop("matmul")) == 7 * 2 * 64**3


def test_shards_count_with_their_collectives():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    spec = jax.sharding.PartitionSpec

    def shard(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.psum(x @ w, "data")

    mapped = jax.shard_map(shard, mesh=mesh, in_specs=(spec(None, "data"), spec("data")), out_specs=spec())
    work = js.trace(mapped, array(8, 64), array(64, 32))
    assert float(work.flop("matmul")) == 2 * 8 * 64 * 32
    assert "all_reduce" in work.tables.kinds


def mystery(name: str) -> Any:
    """Function of a primitive that nobody knows."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    return primitive.bind


def test_unknown_primitives_are_named_and_can_be_registered():
    work = mystery("stencil_of_mine")
    with pytest.raises(js.InputError, match=r"stencil_of_mine.*jaxscale.tracing.custom_call\('stencil_of_mine'\)"):
        js.trace(lambda x: work(x), array(32, 32))

    @js.tracing.custom_call("stencil_of_mine")
    def flop(inputs: Any, outputs: Any, params: Any) -> float:
        return 9.0 * np.prod(outputs[0].shape)

    assert float(js.trace(lambda x: work(x), array(32, 32)).flop("custom")) == 9 * 32 * 32


def test_donated_state_and_liveness():
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights - jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(weights)

    work = js.trace(step, array(512, 512), array(2048, 512))
    weights, data = 4 * 512 * 512, 4 * 2048 * 512
    # Product, its gradient in its place, and the gradient of the weights; the new weights take the place of the old.
    assert float(work.peak_bytes()) == pytest.approx(2 * weights + data + 4 * 2048 * 512, rel=0.01)


@pytest.mark.parametrize("make", [lambda: decoder_steps.decoder(**SMALL), lambda: recommendation_steps.dlrm(64)])
def test_files_hold_all_and_no_code(make: Any, tmp_path: Path):
    work = js.trace(*make())
    work.save(tmp_path / "work.json")
    again = js.load_workload(tmp_path / "work.json")
    assert str(again) == str(work)
    for name in ("flop", "bytes", "m", "launches"):
        assert np.array_equal(getattr(again.columns(), name), getattr(work.columns(), name))
    assert float(again.peak_bytes()) == float(work.peak_bytes())
    document = json.loads((tmp_path / "work.json").read_text())
    assert all(isinstance(value, str | int | float | list | dict) for value in document.values())


def test_files_that_are_no_workload(tmp_path: Path):
    with pytest.raises(js.InputError, match="no such file"):
        js.load_workload(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(js.InputError, match="holds no workload"):
        js.load_workload(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text('{"format": "jaxscale workload 1", "sizes": [1]}')
    with pytest.raises(js.InputError, match="is incomplete"):
        js.load_workload(tmp_path / "bad.json")


GRAPH = "jaxscale.examples.other_steps:graph_network"


def test_the_command_writes_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "graph.json"
    assert main(["trace", GRAPH, "--set", "nodes=1000", "edges=8000", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    work = js.load_workload(out)
    assert document["flop"] == pytest.approx(float(work.flop()))
    assert document["flop"] == pytest.approx(float(js.trace(*other_steps.graph_network(1000, 8000)).flop()))
    assert main(["trace", GRAPH, "--set", "nodes=1000", "edges=8000"]) == 0
    assert "total" in capsys.readouterr().out


def test_the_command_times_a_step(capsys: pytest.CaptureFixture[str]):
    setting = [GRAPH, "--set", "nodes=100000", "edges=1000000", "--gpu", "h100-80gb", "--fit", "prior"]
    assert main(["trace", *setting, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step_time_s"] == pytest.approx(sum(document["terms_s"].values()))
    # No faster than its bytes at one and a half times the memory bandwidth.
    assert document["step_time_s"] > document["bytes"] / (1.5 * 3.35e12)
    assert main(["trace", *setting]) == 0
    assert "step on 1 h100-80gb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "expected MODULE:FUNCTION"),
        (["jaxscale.examples.absent:f"], "module 'jaxscale.examples.absent' is missing"),
        (["jaxscale.examples.other_steps:absent"], "has no function 'absent'"),
        ([GRAPH, "--set", "nodes"], "expected NAME=VALUE"),
        ([GRAPH, "--set", "vertices=3"], "unexpected keyword argument 'vertices'"),
        (["jaxscale.base.units:to_si"], "jaxscale.base.units"),
        ([GRAPH, "--set", "nodes=1000", "--gpu", "gpu-of-nobody"], "gpu-of-nobody"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_selection_reads_its_part_of_the_table_and_the_whole_index():
    """512 of 4096 rows of 256 numbers in 32 bits are read and written, and the 512 indices that choose them read."""
    rows = 512 * 256 * 4
    table, index = array(4096, 256), jax.ShapeDtypeStruct((512,), jnp.int32)
    taken = js.trace(lambda table, index: 2.0 * jnp.take(table, index, axis=0), table, index)
    assert float(taken.columns().bytes[0]) == 2 * rows + 512 * 4
    place = jax.ShapeDtypeStruct((), jnp.int32)
    cut = js.trace(lambda table, at: 2.0 * jax.lax.dynamic_slice(table, (at, 0 * at), (512, 256)), table, place)
    assert float(cut.columns().bytes[0]) == 2 * rows + 4
    # A sum reads all that it adds up, though it writes as little as a selection.
    summed = js.trace(lambda table: jnp.sum(table, axis=0), table)
    assert float(summed.columns().bytes.sum()) == 4096 * 256 * 4 + 256 * 4
