"""Collectives of plans over dimension classes: closed forms, a compiled program, invariants of time and memory."""

import functools
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.examples import decoder_steps, recommendation_steps, vision_steps
from jaxscale.tracing.class_plan import ClassExchanges, batch_class, class_exchanges, class_plan_checked, tensor_classes
from jaxscale.tracing.traced_workload import Workload

COEFFICIENTS = js.prior_medians()
D, F, V, TOKENS = 2048, 8192, 32000, 2048


@functools.cache
def decoder(**setting: Any) -> Workload:
    """A decoder of four layers with four key heads."""
    return js.trace(*decoder_steps.decoder(n_layers=4, n_kv_heads=4, gated_mlp=True, micro_batch=64, **setting))


@functools.cache
def dlrm() -> Workload:
    """The recommendation model of MLPerf."""
    return js.trace(*recommendation_steps.dlrm(65536))


def exchanges(work: Workload, **plan: Any) -> ClassExchanges:
    """Exchanges of a plan."""
    return class_exchanges(work, js.class_plan(work, **plan))


MLP, HEADS = "state.0.down[1]", "state.0.key[2].0"
LAYERS = 4 * (2 * D * D + 2 * D * 512 + 3 * D * F)
NORMS = 9 * D


def test_the_batch_is_found():
    assert decoder().tables.class_names[batch_class(decoder())] == "tokens[1]"
    assert dlrm().tables.class_names[batch_class(dlrm())] == "numbers[0]"


def test_data_parallelism_reduces_every_gradient_once():
    found = exchanges(decoder(), data=16)
    # In 16 bits: matrices of the layers, logits head, embedding; in 32 bits the gains of norms.
    matrices = 2 * (LAYERS + 2 * V * D)
    assert float(found.gradients.volume) == pytest.approx(matrices + 4 * NORMS, rel=1e-3)
    assert float(found.gradients.count) == 9 * 4 + 3
    assert float(found.gathers.volume) == float(found.tensor_forward.volume) == 0
    assert float(exchanges(decoder(), data=1).gradients.volume) == 0


def test_full_sharding_gathers_layers_twice_and_the_ends_once():
    found = exchanges(decoder(), data=16, shard=16)
    gathered = 2 * (2 * LAYERS + 2 * V * D)
    assert float(found.gathers.volume) == pytest.approx(gathered + 4 * 2 * NORMS, rel=1e-3)
    assert float(found.scatters.volume) == pytest.approx(2 * (LAYERS + 2 * V * D) + 4 * NORMS, rel=1e-3)
    assert float(found.gradients.volume) == 0
    hybrid = exchanges(decoder(), data=16, shard=8)
    assert float(hybrid.gradients.volume) == pytest.approx(float(found.scatters.volume) / 8, rel=1e-6)


@pytest.mark.parametrize("tensor", [2, 4])
def test_tensor_parallelism_adds_up_two_activations_a_layer_each_way(tensor: int):
    found = exchanges(decoder(), data=16, tensor=tensor, split=[MLP, HEADS])
    activation = 64 / 16 * TOKENS * D * 2
    for direction in (found.tensor_forward, found.tensor_backward):
        assert float(direction.volume) == pytest.approx(2 * 4 * activation, rel=1e-6)
        assert float(direction.count) == 2 * 4
    half = exchanges(decoder(), data=16, tensor=tensor, split=[MLP])
    assert float(half.tensor_forward.count) == 4
    # Each chip reduces the gradients of its part of the matrices.
    parts = 2 * (LAYERS / tensor + 2 * V * D)
    assert float(found.gradients.volume) == pytest.approx(parts + 4 * NORMS, rel=1e-3)


def test_recomputation_adds_up_again():
    again = exchanges(decoder(recompute=True), tensor=4, split=[MLP, HEADS])
    # The last product of a layer is not computed again, nor are its partial sums.
    assert float(again.tensor_forward.count) == 3 * 4


def test_microbatches_gather_again_and_reduce_once():
    one, four = (exchanges(decoder(), data=16, shard=shard, n_microbatches=4) for shard in (1, 16))
    assert float(one.gradients.volume) == float(exchanges(decoder(), data=16).gradients.volume)
    assert float(four.gathers.volume) == 4 * float(exchanges(decoder(), data=16, shard=16).gathers.volume)


def test_tables_exchange_pooled_look_ups():
    batch, pooled = 65536 / 64, 26 * 128 * 2
    dense = 2 * (13 * 512 + 512 * 256 + 256 * 128 + 3 * 2 * 3456 * 512)
    dense += 2 * (3456 * 1024 + 1024**2 + 1024 * 512 + 512 * 256 + 256)
    apart = exchanges(dlrm(), data=64, tables="table")
    assert float(apart.look_ups.volume) == pytest.approx(2 * batch * pooled, rel=1e-6)
    assert float(apart.gradients.volume) == pytest.approx(dense, rel=1e-3)
    rows = exchanges(dlrm(), data=64, tables="row")
    # Every chip has partial sums of all samples, forward, and needs the gradients of all of them, backward.
    assert float(rows.partial_look_ups.volume) == pytest.approx(2 * 65536 * pooled, rel=1e-6)
    copies = exchanges(dlrm(), data=64)
    assert float(copies.gradients.volume) > 100e9  # whole tables: what the placements are for


@pytest.mark.parametrize("microbatches", [1, 4])
def test_look_ups_travel_once_each_way_in_a_microbatch_by_their_own_placement(microbatches: int):
    """All tables of a chip in one exchange, rows of each of the 26 tables in one of their own; copies need neither."""
    expected = {"table": (2, 0), "row": (0, 2 * 26), None: (0, 0)}
    for placement, counts in expected.items():
        tables = {} if placement is None else {"tables": placement}
        found = exchanges(dlrm(), data=64, n_microbatches=microbatches, **tables)
        kinds = (found.look_ups, found.partial_look_ups)
        assert [float(kind.count) for kind in kinds] == [microbatches * count for count in counts]
        assert [float(kind.volume) > 0.0 for kind in kinds] == [count > 0 for count in counts]
    alone = exchanges(dlrm(), data=1, n_microbatches=microbatches, tables="row")
    assert not any(float(leaf) for kind in (alone.look_ups, alone.partial_look_ups) for leaf in jax.tree.leaves(kind))


def test_statistics_of_batch_norms_are_told_from_gradients():
    work = js.trace(*vision_steps.resnet50(batch=64))
    found = exchanges(work, data=8)
    assert float(found.gradients.volume) == pytest.approx(2 * 25.5e6, rel=0.01)
    assert 0 < float(found.statistics.volume) < 0.02 * float(found.gradients.volume)
    alone = class_exchanges(work, js.class_plan(work, data=8, joint_statistics=False))
    assert float(alone.statistics.volume) == 0


COMPILED = """
import json
import jax, jax.numpy as jnp
import jaxscale as js
from jaxscale.tracing.compile_step import compile_on
from jaxscale.tracing.class_plan import class_exchanges

def loss(w, x):
    for layer in range(2):
        x = x + jnp.tanh(x @ w[f"up{layer}"]) @ w[f"down{layer}"]
    return jnp.mean(x * x)

def step(w, x):
    return jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(loss)(w, x))

array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
w = {}
for layer in range(2):
    w[f"up{layer}"], w[f"down{layer}"] = array(64, 256), array(256, 64)
x = array(32, 64)
work = js.trace(step, w, x)
inner = [name for name, size in work.classes().items() if size == 256]
plan = js.class_plan(work, data=4, tensor=2, split=inner)
made = compile_on(step, [w, x], jax.devices(), 0, plan)
ours = class_exchanges(work, plan)
exchanges = {name: [float(one.volume), float(one.count)] for name, one in ours._asdict().items()}
print(json.dumps([[list(one) for one in made.collectives], exchanges]))
"""


def test_a_compiled_program_on_eight_devices_has_the_same_collectives():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_ENABLE_X64", None)
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    made, ours = json.loads(done.stdout.splitlines()[-1])
    found = {(kind, members): [size, count] for kind, members, _, count, size in made}
    assert set(found) == {("all-reduce", 2), ("all-reduce", 4)}
    forward, backward = np.array(ours["tensor_forward"]), np.array(ours["tensor_backward"])
    assert found["all-reduce", 2] == (forward + backward).tolist()
    assert found["all-reduce", 4] == ours["gradients"]


CLUSTER = js.cluster("h100-80gb", 64)


def seconds(work: Workload, **plan: Any) -> float:
    """Step time [s] on 64 H100."""
    return float(js.step_time(work, js.class_plan(work, **plan), CLUSTER, COEFFICIENTS).total)


def test_one_chip_has_no_network_terms_and_all_chips_share_the_work():
    one = js.step_time(decoder(), js.class_plan(decoder()), js.cluster("h100-80gb", 1), COEFFICIENTS)
    assert {name for name, value in one.terms().items() if float(value) > 1e-9} == {
        *("matmul", "attention", "memory_bound", "launch_gaps", "optimizer", "host_per_step")
    }
    many = js.step_time(decoder(), js.class_plan(decoder(), data=64), CLUSTER, COEFFICIENTS)
    assert float(many.matmul) == pytest.approx(float(one.matmul) / 64, rel=0.1)
    assert float(many.data_parallel) > 0


def test_a_pipeline_has_its_bubble():
    plan = js.class_plan(decoder(), data=4, pipeline=4, n_microbatches=8)
    terms = js.step_time(decoder(), plan, js.cluster("h100-80gb", 16), COEFFICIENTS)
    few = js.class_plan(decoder(), data=4, pipeline=4, n_microbatches=2)
    assert float(terms.pipeline_bubble) > 0
    assert float(js.step_time(decoder(), few, js.cluster("h100-80gb", 16), COEFFICIENTS).pipeline_bubble) > float(
        terms.pipeline_bubble
    )
    assert float(terms.pipeline_transfer) > 0


def test_sharding_and_splitting_save_memory():
    def peak(**plan: Any) -> dict[str, float]:
        terms = js.memory(decoder(), js.class_plan(decoder(), **plan), CLUSTER, COEFFICIENTS).terms()
        return {name: float(value) for name, value in terms.items()}

    whole, sharded, split = peak(data=16), peak(data=16, shard=16), peak(data=16, tensor=4, split=[MLP, HEADS])
    assert sharded["weights"] == pytest.approx(whole["weights"] / 16)
    assert sharded["optimizer"] == pytest.approx(whole["optimizer"] / 16)
    assert whole["optimizer"] == pytest.approx(2 * whole["weights"], rel=0.01)
    assert split["weights"] < 0.6 * whole["weights"]
    assert split["activations"] < whole["activations"]


def test_time_differentiates_by_degrees_sizes_and_links():
    work = decoder()
    plan = js.class_plan(work, data=16, shard=16, tensor=4, split=[MLP, HEADS], n_microbatches=2)

    def total(plan: js.ClassPlan, cluster: js.Cluster, sizes: jax.Array) -> jax.Array:
        return js.step_time(Workload(sizes, work.tables), plan, cluster, COEFFICIENTS).total

    slopes = jax.grad(total, (0, 1, 2))(plan, CLUSTER, jnp.asarray(work.sizes, float))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slopes))
    assert float(slopes[1].chip.hbm_bandwidth) < 0
    assert float(slopes[2][work.place_of("tokens[1]")]) > 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"tensor": 2}, "tensor = 2 has no class to divide"),
        ({"data": 6, "shard": 4}, "shard = 4 does not divide data = 6"),
        ({"tensor": 2, "split": ["tokens[2]"]}, r"class 'tokens\[2\]' cannot be split over tensor"),
        ({"tensor": 2, "split": ["layers"]}, "class 'layers' is unknown"),
        ({"tensor": 2, "split": [MLP, "state.0.down[2]"]}, "meet in one product"),
    ],
)
def test_plans_that_are_none(plan: dict[str, Any], message: str):
    with pytest.raises(js.InputError, match=message):
        js.class_plan(decoder(), **plan)


def test_the_wrong_plan_is_named():
    plan: Any = {"data": 4}
    with pytest.raises(TypeError, match="takes a ClassPlan, not a dict"):
        class_plan_checked(plan)
    assert MLP in tensor_classes(decoder())
