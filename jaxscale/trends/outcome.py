"""Throughput, power and cost of a deployment on a number of chips, at a point or along a curve."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_arrays, as_float, filled_rows, host_arrays, total_of
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import HOUR
from jaxscale.costs.memory import Memory
from jaxscale.costs.power import mean_chip_power
from jaxscale.costs.step import StepTime, names_of_kind, tokens_per_step
from jaxscale.models.transformer import model_flops
from jaxscale.trends.layout import Deployment, ParallelLayout, memory_at, plan_at, step_at


class Batch(eqx.Module):
    """Global batch B = B_0 + s n: weak scaling with B_0 = 0, strong scaling with s = 0.

    Attributes:
        per_chip: sequences per chip, s [sequence].
        fixed: constant batch, B_0 [sequence].
    """

    per_chip: Number = eqx.field(converter=as_float, default=0.0)
    fixed: Number = eqx.field(converter=as_float, default=0.0)

    def at(self, n_chips: ArrayLike) -> Array:
        """Global batch on n chips [sequence]."""
        return jnp.asarray(self.fixed + self.per_chip * n_chips)


PADDING = 64
"""Points are padded to multiples of this [1]."""

Points = Float[Array, "*batch"]


class Outcome(eqx.Module):
    """Throughput, power and cost of a deployment on a number of chips.

    Attributes:
        n_chips: number of chips n [1].
        global_batch_size_seqs: global batch B [sequence].
        times: terms of the step time [s].
        tokens_per_s: throughput of all chips [token/s].
        mfu: model flops over the dense 16-bit peak, whole attention matrix counted [1].
        chip_power: mean power of a chip [W].
        system_power: power of all chips with their servers [W].
        dollars_per_s: cost of all chips with their servers and electricity [dollar/s].
    """

    n_chips: Points
    global_batch_size_seqs: Points
    times: StepTime
    tokens_per_s: Points
    mfu: Points
    chip_power: Points
    system_power: Points
    dollars_per_s: Points

    @property
    def tokens_per_s_per_chip(self) -> Array:
        """Throughput per chip [token/s]."""
        return self.tokens_per_s / self.n_chips

    @property
    def tokens_per_joule(self) -> Array:
        """Tokens per energy of the chips, servers not counted [token/J]."""
        return self.tokens_per_s_per_chip / self.chip_power

    @property
    def tokens_per_chip_hour(self) -> Array:
        """Tokens per chip-hour [token]."""
        return self.tokens_per_s_per_chip * HOUR

    @property
    def tokens_per_dollar(self) -> Array:
        """Tokens per dollar of chips, servers and electricity [token/dollar]."""
        return self.tokens_per_s / self.dollars_per_s

    @property
    def exposed_share(self) -> Array:
        """Share of the step time in which a chip communicates or waits [1]."""
        terms = self.times.terms()
        return total_of(terms[name] for name in names_of_kind("network")) / self.times.total


def outcome_at(
    deployment: Deployment,
    layout: ParallelLayout,
    n_chips: ArrayLike,
    global_batch_size_seqs: ArrayLike,
    temperature: float = 0.0,
) -> Outcome:
    """Throughput, power and cost on n chips; differentiable in every float, the number of chips included.

    Args:
        deployment: model, chips, coefficients, power, price.
        layout: degrees.
        n_chips: n [1].
        global_batch_size_seqs: B [sequence].
        temperature: smoothing of maxima; 0 for exact maxima [1].
    """
    deployment, layout = as_arrays((deployment, layout))
    n, batch = jnp.asarray(n_chips), jnp.asarray(global_batch_size_seqs)
    times = step_at(deployment, layout, n, batch, temperature)
    plan = plan_at(deployment.software, layout, n, batch, temperature)
    tokens = tokens_per_step(deployment.model, plan) / times.total
    chip = deployment.cluster.chip
    watts = mean_chip_power(times, chip, deployment.power, deployment.power_cap)
    with_server = watts + deployment.power.host_power
    return Outcome(
        n_chips=n,
        global_batch_size_seqs=batch,
        times=times,
        tokens_per_s=tokens,
        mfu=model_flops(deployment.model) * tokens / (n * chip.peak("bf16")),
        chip_power=watts,
        system_power=n * with_server,
        dollars_per_s=deployment.price.rate(with_server) * n,
    )


@filter_jit
def _along(
    deployment: Deployment, layouts: ParallelLayout, n_chips: Array, batches: Array, temperature: float
) -> Outcome:
    def one(layout: ParallelLayout, n: Array, batch: Array) -> Outcome:
        return outcome_at(deployment, layout, n, batch, temperature)

    return jax.vmap(one)(layouts, n_chips, batches)


def scaling_outcomes(
    deployment: Deployment,
    layout: ParallelLayout,
    n_chips: ArrayLike,
    global_batch_size_seqs: ArrayLike,
    temperature: float = 0.0,
) -> Outcome:
    """Throughput, power and cost at many points, in one compiled call.

    Args:
        deployment: model, chips, coefficients, power, price.
        layout: degrees, common or by point.
        n_chips: chips [point].
        global_batch_size_seqs: batch, common or by point [sequence].
        temperature: smoothing of maxima; 0 for exact maxima [1].

    Returns:
        Outcomes; every leaf [point].
    """
    n = np.atleast_1d(np.asarray(n_chips, float))
    # Padded to few shapes: few compilations.
    rows = filled_rows(n.size, PADDING)
    per_point = (layout, n, np.asarray(global_batch_size_seqs, float))
    layouts, chips, batches = jax.tree.map(lambda leaf: np.broadcast_to(leaf, n.shape)[rows], host_arrays(per_point))
    outcomes = _along(host_arrays(deployment), layouts, chips, batches, temperature)
    # Cut on the host: a slice of an array of JAX would compile a program for every number of points.
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[: n.size]), outcomes)


@filter_jit
def _peaks(deployment: Deployment, layout: ParallelLayout, n_chips: Array, batches: Array) -> Memory:
    return jax.vmap(lambda n, batch: memory_at(deployment, layout, n, batch))(n_chips, batches)


def peak_memory(
    deployment: Deployment, layout: ParallelLayout, n_chips: ArrayLike, global_batch_size_seqs: ArrayLike
) -> Memory:
    """Peak memory of the fullest chip at many points, even above its capacity.

    Args:
        deployment: model, chips, coefficients.
        layout: degrees at all points.
        n_chips: chips [point].
        global_batch_size_seqs: batch [point] [sequence].

    Returns:
        Terms [byte], [point].
    """
    return _peaks(*host_arrays((deployment, layout, n_chips, global_batch_size_seqs)))


TENSOR_DEGREES = (1.0, 2.0, 4.0, 8.0)
"""Tensor-parallel degrees inside a domain of eight chips [1]."""


def weak_scaling(
    deployment: Deployment,
    n_chips: Sequence[float | int] | np.ndarray,
    sequences_per_chip: float | int,
    layout: ParallelLayout | None = None,
    temperature: float = 0.0,
) -> Outcome:
    """Throughput, power and cost under weak scaling, B = s n.

    Args:
        deployment: model, chips, coefficients, power, price.
        n_chips: n [point].
        sequences_per_chip: s, sequences per chip and step [sequence].
        layout: degrees; pure FSDP where None.
        temperature: smoothing of maxima; 0 for exact maxima [1].

    Returns:
        Outcomes; every leaf [point].
    """
    n = np.asarray(n_chips, float)
    return scaling_outcomes(deployment, layout or ParallelLayout(), n, sequences_per_chip * n, temperature)


def best_tensor_degree(
    deployment: Deployment,
    n_chips: Sequence[float | int] | np.ndarray,
    global_batch_size_seqs: Sequence[float | int] | np.ndarray,
) -> tuple[np.ndarray, Outcome]:
    """Fastest of `TENSOR_DEGREES` at each point, among degrees with at least one sequence per replica.

    Args:
        deployment: model, chips, coefficients, power, price.
        n_chips: n [point].
        global_batch_size_seqs: B [sequence], [point].

    Returns:
        The degree [point], and the outcomes with that degree.

    Raises:
        ValueError: a batch too small for any degree.
    """
    n, batch = np.broadcast_arrays(np.asarray(n_chips, float), np.asarray(global_batch_size_seqs, float))
    degree, points = (grid.ravel() for grid in np.meshgrid(TENSOR_DEGREES, np.arange(n.size), indexing="ij"))
    outcomes = scaling_outcomes(deployment, ParallelLayout(tp=degree), n[points], batch[points])
    # Sequences of a replica: B t / n.
    per_replica = batch[points] * degree / n[points]
    speed = np.where(per_replica >= 1.0, np.asarray(outcomes.tokens_per_s), -np.inf).reshape(
        len(TENSOR_DEGREES), n.size
    )
    if not np.isfinite(speed.max(axis=0)).all():
        raise ValueError(f"batch {batch.min():g} is below one sequence per {TENSOR_DEGREES[-1]:g} of {n.max():g} chips")
    best = np.argmax(speed, axis=0)
    # Rows are in the order (degree, point).
    rows = best * n.size + np.arange(n.size)
    return np.asarray(TENSOR_DEGREES)[best], jax.tree.map(lambda leaf: leaf[rows], outcomes)
