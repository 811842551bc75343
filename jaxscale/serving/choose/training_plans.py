"""Training of shapes that are compared: plans on which they may train, and the chip time of a token on the best."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxscale.base.arrays import Number, as_float, number
from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.costs.step import step_and_memory, tokens_per_step
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import model_columns, obeys, plan_columns


class TrainingPlans(eqx.Module):
    """Plans on which shapes may train, and the chips that train them.

    Attributes:
        plans: degrees and batch [plan].
        cluster: chips and network; every plan uses all chips.
        coefficients: fitted parameters of the step time.
        memory_limit: largest predicted peak of a chip [byte].
    """

    plans: Plan
    cluster: Cluster
    coefficients: Coefficients
    memory_limit: Number = eqx.field(converter=as_float)

    def chip_time(
        self, model: Transformer, may_run: Bool[ArrayLike, " plan"] | None = None
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        r"""Chip time of a training token on the fastest plan that fits into memory: $n\,t_\mathrm{step} / (B S)$.

        Args:
            model: the shape.
            may_run: plans that are valid for it; all where None [plan].

        Returns:
            The chip time, infinite where no plan fits [s/token], and the place of the plan [1].
        """

        def of_plan(plan: Plan) -> tuple[Array, Array]:
            times, peak = step_and_memory(model, plan, self.cluster, self.coefficients)
            return times.total * self.cluster.n_chips / tokens_per_step(model, plan), peak.total

        times, peaks = jax.vmap(of_plan)(self.plans)
        runs = (peaks <= self.memory_limit) & (True if may_run is None else jnp.asarray(may_run))
        bounded = jnp.where(runs, times, jnp.inf)
        return jnp.min(bounded), jnp.argmin(bounded)

    def valid(self, models: Transformer) -> Bool[np.ndarray, "model plan"]:
        """Whether each plan is valid for each of several models, stacked along their leading axis [model, plan]."""
        columns = {name: np.asarray(column)[:, None] for name, column in model_columns(models).items()}
        plans = {name: np.asarray(column)[None, :] for name, column in plan_columns(self.plans).items()}
        domain = np.asarray(self.cluster.network.domain_size)[0]
        facts = {**columns, **plans, "n_chips": number(self.cluster.n_chips), "domain_size": domain}
        shape = (len(next(iter(columns.values()))), len(np.asarray(self.plans.tp)))
        return np.broadcast_to(obeys(facts), shape)

    def plan(self, place: int) -> Plan:
        """One of the plans."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[place], self.plans)


def training_plans(
    cluster: Cluster,
    plans: Sequence[Plan],
    *,
    fit: Fit | str | Path = "default",
    levels: Mapping[str, str | None] | None = None,
    oom_probability: float = 0.1,
) -> TrainingPlans:
    """Plans on which shapes may train, with what a fit says of their step time and memory.

    Args:
        cluster: chips of training.
        plans: degrees and batches; each uses all chips.
        fit: a fit, or the name or file of a fit.
        levels: framework, gpu and so on, whose fitted effects apply.
        oom_probability: accepted probability of running out of memory [1].

    Returns:
        The plans.

    Raises:
        InputError: no plan, or a plan of another number of chips.
    """
    if not plans:
        raise InputError("plans is empty; expected at least one training plan")
    n_chips = number(cluster.n_chips)
    for plan in plans:
        if number(plan.n_chips) != n_chips:
            raise InputError(
                f"plan of {number(plan.n_chips):g} chips on a cluster of {n_chips:g}; expected all of them"
            )
    record, known = fit_of(fit), levels or {}
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(known, n_chips), oom_probability)
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, float) for leaf in leaves]), *plans)
    return TrainingPlans(stacked, cluster, record.coefficients(known, n_chips), limit)
