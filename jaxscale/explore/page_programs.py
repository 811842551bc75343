"""Compiled programs of the page, one for all states: all numbers are traced, and curves have a fixed number of points.

The programs are compiled without optimisation because they run for a short time, and only when a view needs them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import with_fields
from jaxscale.base.jit import small_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.memory import Memory
from jaxscale.costs.step import StepTime, model_flops_utilisation, step_and_memory, step_time, tokens_per_step
from jaxscale.designs.design_space import WIDTH_FIELDS
from jaxscale.designs.time_to_loss import Laws, run_figures
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.sensitivity import IMPROVEMENTS, with_resource

# Memory capacity has no effect on the step time.
RESOURCES = tuple(name for name in IMPROVEMENTS if name != "memory capacity")
SIZES = ("chips", "batch", "width", "depth", "sequence length", "vocabulary")
"""Quantities with reported elasticities, in addition to the resources of the cluster."""


class RunOutcome(NamedTuple):
    """Training run of a model.

    Attributes:
        loss: final loss [nat per token].
        seconds: duration [s].
        params: N, parameters [1].
    """

    loss: Any
    seconds: Any
    params: Any


class RowFigures(NamedTuple):
    """Figures of models under plans.

    Attributes:
        times: terms of the step time [s], [row].
        peaks: terms of the peak memory [byte], [row].
        step_time: step time [s], [row].
        memory: peak memory of the fullest chip [byte], [row].
        mfu: model flops over the 16-bit peak, attention counted in full [1], [row].
        run: the whole run [row].
    """

    times: StepTime
    peaks: Memory
    step_time: Any
    memory: Any
    mfu: Any
    run: RunOutcome


def _outcome(
    model: Transformer,
    plan: Plan,
    n_chips: Float[ArrayLike, ""],
    step_seconds: Float[ArrayLike, ""],
    template: Transformer,
    laws: Laws,
    tokens: Float[ArrayLike, ""],
) -> RunOutcome:
    """Training run of a model with known step time."""
    sizes = {"small_batch_tokens": tokens, "batch_tokens": tokens_per_step(model, plan), "n_chips": n_chips}
    run = run_figures(model, template, laws, step_seconds=step_seconds, **sizes)
    return RunOutcome(run.loss, run.seconds, n_params(model))


run_outcome = small_jit(_outcome)


@small_jit
def row_figures(
    models: Transformer,
    plans: Plan,
    n_chips: Float[ArrayLike, " row"],
    template: Transformer,
    cluster: Cluster,
    coefficients: Coefficients,
    laws: Laws,
    tokens: Float[ArrayLike, ""],
) -> RowFigures:
    """Figures of models under plans on the chips of a cluster.

    Args:
        models: stacked models [row].
        plans: stacked plans [row].
        n_chips: number of chips [1], [row].
        template: reference shape for the shape dependence of the loss.
        tokens: tokens of the run in the limit of small batches [token].
    """

    def one(model: Transformer, plan: Plan, chips: Array) -> RowFigures:
        where = with_fields(cluster, {"n_chips": chips})
        times, peaks = step_and_memory(model, plan, where, coefficients)
        total = times.total
        mfu = model_flops_utilisation(model, plan, where, total)
        return RowFigures(
            times, peaks, total, peaks.total, mfu, _outcome(model, plan, chips, total, template, laws, tokens)
        )

    return jax.vmap(one)(models, plans, jnp.asarray(n_chips))


@small_jit
def step_elasticities(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients
) -> dict[str, Float[Array, ""]]:
    """Elasticities: change of the step time for one per cent more of each quantity, under a constant plan [%]."""

    def log_time(logs: dict[str, Array]) -> Array:
        factors = {name: jnp.exp(log) for name, log in logs.items()}
        return jnp.log(step_time(*with_factors(model, plan, cluster, factors), coefficients).total)

    # d ln t / d ln x at factor 1
    return jax.grad(log_time)({name: jnp.zeros(()) for name in (*SIZES, *RESOURCES)})


def with_factors(
    model: Transformer, plan: Plan, cluster: Cluster, factors: Mapping[str, ArrayLike]
) -> tuple[Transformer, Plan, Cluster]:
    """Model, plan and cluster with multiples of `SIZES` and of resources; more chips keep the batch.

    Args:
        factors: factors by name of the quantity [1].
    """
    width, chips = jnp.asarray(factors["width"]), jnp.asarray(factors["chips"])
    # Heads grow with the width; the width of a head is kept.
    sizes = {name: getattr(model, name) * width for name in ("d_model", "n_heads", "n_kv_heads", *WIDTH_FIELDS)}
    sizes["n_layers"] = model.n_layers * jnp.asarray(factors["depth"])
    sizes["seq_len"] = model.seq_len * jnp.asarray(factors["sequence length"])
    sizes["vocab_size"] = model.vocab_size * jnp.asarray(factors["vocabulary"])
    # More chips are more replicas.
    degrees = {name: getattr(plan, name) * chips for name in ("dp", "shard_group")}
    # B = b m dp
    degrees["n_microbatches"] = plan.n_microbatches * jnp.asarray(factors["batch"]) / chips
    for name in RESOURCES:
        cluster = with_resource(cluster, name, factors[name])
    cluster = with_fields(cluster, {"n_chips": cluster.n_chips * chips})
    return with_fields(model, sizes), with_fields(plan, degrees), cluster
