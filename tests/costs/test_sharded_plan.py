"""Plans read from shardings of arguments: the plan that made them, closed forms of collectives, clear refusals."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import jaxscale as js
from jaxscale.tracing.class_plan import class_exchanges
from jaxscale.tracing.tracer import trace_sharded

D, F, BATCH = 64, 256, 96
MESH = AbstractMesh((8, 4), ("x", "y"))


def step(w: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    """Descent of a residual network of two layers."""

    def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for layer in range(2):
            x = x + jnp.tanh(x @ w[f"up{layer}"]) @ w[f"down{layer}"]
        return jnp.mean(x * x)

    return jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(loss)(w, x))


def array(shape: tuple[int, ...], *spec: Any, mesh: AbstractMesh = MESH) -> jax.ShapeDtypeStruct:
    """An abstract array that axes of the mesh divide."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def weights(up: tuple[Any, ...], down: tuple[Any, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    """Weights with the same division in both layers."""
    layers = range(2)
    return {f"up{one}": array((D, F), *up) for one in layers} | {f"down{one}": array((F, D), *down) for one in layers}


@functools.cache
def unsharded() -> js.Workload:
    """The trace without shardings."""
    plain = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), weights((), ()))
    return js.trace(step, plain, jax.ShapeDtypeStruct((BATCH, D), jnp.float32))


def test_plain_and_sharded_weights_of_data_parallelism():
    whole = trace_sharded(step, weights((), ()), array((BATCH, D), ("x", "y"))).plan
    assert (whole.data, whole.shard, whole.tensor) == (32, 1, 1)
    spread = trace_sharded(step, weights(("x",), ("x",)), array((BATCH, D), ("x", "y"))).plan
    assert (spread.data, spread.shard) == (32, 8)
    work, plan = trace_sharded(step, weights(("x", "y"), ("x", "y")), array((BATCH, D), ("x", "y")))
    assert (plan.data, plan.shard, plan.tensor) == (32, 32, 1)
    found = class_exchanges(work, plan)
    assert float(found.scatters.volume) == 4 * 4 * D * F
    assert float(class_exchanges(work, whole).gradients.volume) == 4 * 4 * D * F


def test_other_axes_of_weights_are_tensor_parallelism():
    work, plan = trace_sharded(step, weights((None, "y"), ("y", None)), array((BATCH, D), "x"))
    assert (plan.data, plan.shard, plan.tensor) == (8, 1, 4)
    inner = [name for name, size in unsharded().classes().items() if size == F]
    by_hand = js.class_plan(unsharded(), data=8, tensor=4, split=inner)
    assert plan.split.tolist() == by_hand.split.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    found = class_exchanges(work, plan)
    activation = 4 * BATCH / 8 * D
    assert float(found.tensor_forward.volume) == 2 * activation
    cluster, c = js.cluster("h100-80gb", 32), js.prior_medians()
    ours, theirs = (js.step_time(one, two, cluster, c).total for one, two in ((work, plan), (unsharded(), by_hand)))
    assert float(ours) == float(theirs)
    both = trace_sharded(step, weights(("x", "y"), ("y", "x")), array((BATCH, D), "x")).plan
    assert (both.data, both.shard, both.tensor) == (8, 8, 4)


def adam(state: Any, x: jax.Array) -> Any:
    """A step with a moment of each weight."""
    w, m = state
    new = step(w, x)
    return new, jax.tree.map(lambda a, b, c: 0.9 * a + b - c, m, w, new)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: (step, unsharded_weights(), jnp_shape((BATCH, D))), "no argument has a sharding over a mesh"),
        (
            lambda: (step, weights((), ()), array((BATCH, D), "x", "y")),
            "data are divided along .* and .*; expected one",
        ),
        (lambda: (step, weights((), ()), array((BATCH, D), "x")), "axis 'y' of the mesh divides no argument"),
        (
            lambda: (adam, (weights((), ()), weights(("x",), ("x",))), array((BATCH, D), ("x", "y"))),
            "axis 'x' of the mesh spreads state but no weights",
        ),
        (
            lambda: (
                step,
                weights((), ()),
                array((BATCH, D), "x", mesh=AbstractMesh((8,), ("x",))),
            ),
            "shardings over different meshes",
        ),
    ],
)
def test_shardings_that_no_plan_says_are_refused_in_one_line(make: Callable[[], Any], told: str):
    with pytest.raises(js.InputError, match=told) as error:
        trace_sharded(*make())
    assert "\n" not in str(error.value)


def unsharded_weights() -> dict[str, jax.ShapeDtypeStruct]:
    """Weights without a mesh."""
    return jax.tree.map(lambda one: jnp_shape(one.shape), weights((), ()))


def jnp_shape(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """An abstract array without a mesh."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
