"""Limits of strong scaling: batch, number of GPUs and time to a target accuracy for a given critical batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.burst.burst_plan import plan_burst, plan_data_parallel
from jaxscale.burst.layer_graph import LayerGraph
from jaxscale.burst.layer_time import AbstractLayerTime
from jaxscale.burst.step_costs import BurstJob


class Convergence(eqx.Module):
    """Number of steps to a target accuracy as a function of the batch.

    Attributes:
        min_steps: steps at an infinite batch, S_min [1].
        critical_batch: B_crit, batch with twice the least number of steps and of samples [sample].
    """

    min_steps: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    critical_batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)

    def steps(self, batch: ArrayLike) -> Array:
        """Number of steps to the target accuracy, $S = S_{min} (1 + B_{crit} / B)$ [1].

        Reference:
            McCandlish et al., arXiv 1812.06162, equation 5.4: $(S/S_{min} - 1)(E/E_{min} - 1) = 1$, E = B S.
        """
        # S = S_min (1 + B_crit / B)
        return jnp.asarray(self.min_steps) * (1.0 + jnp.asarray(self.critical_batch) / jnp.asarray(batch))


def time_to_accuracy(iteration_time: ArrayLike, batch: ArrayLike, convergence: Convergence) -> Array:
    """Training time to the target accuracy: number of steps times iteration time [s]."""
    return convergence.steps(batch) * jnp.asarray(iteration_time)


class BatchSurvey(eqx.Module):
    r"""Best batch for every cluster size under burst plans or data parallelism.

    Attributes:
        batch: batch B* of least time to accuracy, by cluster size [sample].
        time: time to accuracy at the best batch [s].
        chip_seconds: GPU-time of the whole training run at the best batch [s].
        marginal: $-d \ln T / d \ln G$ of the time T between successive numbers of GPUs G [1]; 1 is perfect scaling.
        growth: $d \ln B^* / d \ln G$ between successive sizes [1]; below 1 the samples per GPU shrink (strong scaling).
    """

    batch: Float[Array, " size"]
    time: Float[Array, " size"]
    chip_seconds: Float[Array, " size"]
    marginal: Float[Array, " pair"]
    growth: Float[Array, " pair"]


def survey_batches(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    convergence: Convergence,
    n_chips: ArrayLike,
    batches: ArrayLike,
    n_options: int,
    burst: bool = False,
) -> BatchSurvey:
    """Time to accuracy over cluster sizes and batches, and the best batch of every size.

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        job: bandwidth, latency and limit; batch and number of GPUs are replaced.
        convergence: number of steps as a function of the batch.
        n_chips: cluster sizes, increasing powers of two [1].
        batches: candidate batches [sample].
        n_options: see `step_costs`.
        burst: whether plans are burst-parallel; else data parallelism.

    Returns:
        Best batch, time and marginal speed-up by cluster size.
    """
    planner = plan_burst if burst else plan_data_parallel
    # Fields of a job are float leaves.
    sizes, batches = jnp.asarray(n_chips, jnp.result_type(float)), jnp.asarray(batches, jnp.result_type(float))

    def one(size: Array, batch: Array) -> tuple[Array, Array]:
        here = eqx.tree_at(lambda s: (s.batch, s.n_chips), job, (batch, size))
        plan = planner(graph, layer_time, here, n_options)
        return plan.time, plan.chip_seconds

    # (sizes, batches)
    iteration, used = jax.vmap(lambda size: jax.vmap(lambda batch: one(size, batch))(batches))(sizes)
    total = time_to_accuracy(iteration, batches, convergence)
    best = jnp.argmin(total, 1)
    rows = jnp.arange(len(sizes))
    time, batch = total[rows, best], batches[best]
    # ln 2 for successive powers of two.
    doublings = jnp.diff(jnp.log(sizes))
    chip_seconds = used[rows, best] * convergence.steps(batch)
    return BatchSurvey(
        batch, time, chip_seconds, -jnp.diff(jnp.log(time)) / doublings, jnp.diff(jnp.log(batch)) / doublings
    )


def best_chips(survey: BatchSurvey, n_chips: ArrayLike, efficiency: float) -> Array:
    """Largest cluster whose last doubling achieved at least the share `efficiency` of perfect scaling [1]."""
    sizes = jnp.asarray(n_chips, jnp.result_type(float))
    # The product ends at the first doubling below the efficiency.
    worth = jnp.cumprod(survey.marginal >= efficiency)
    return sizes[worth.sum().astype(jnp.int32)]
