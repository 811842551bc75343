"""Quantities of a design: logarithms of time, loss, energy, memory and sizes of a training run."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float, number
from jaxscale.base.units import DAY, GB, HOUR
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.power import mean_chip_power
from jaxscale.costs.step import step_and_memory, tokens_per_step
from jaxscale.designs.design_space import Design, design_at
from jaxscale.designs.time_to_loss import Laws, run_figures
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_problem import TEMPERATURE, Family

QUANTITIES: tuple[str, ...] = (
    "time",
    "excess_loss",
    "energy",
    "memory",
    "params",
    "tokens",
    "batch",
    "batch_over_critical",
    "step_time",
    "inverse_params",
    "serving_memory",
    "expert_chips",
)
"""Natural logarithms, SI units; `excess_loss` is above the irreducible loss, `memory` is the peak of the fullest
chip, and an upper bound on `inverse_params` is a lower bound on the parameters. `params` counts all experts;
`serving_memory` is the memory of all weights in 16 bits, and `expert_chips` the number of chips that share the
experts of a layer, ep."""

SERVED_BYTES = 2.0
"""Bytes of a weight in serving [byte]."""

JOULE_PER_MWH = 3.6e9
"""Joules of a megawatt hour [J]."""


class DesignProblem(eqx.Module):
    """Search over models, batches and plans; every leaf an array.

    Attributes:
        template: proportions of the model.
        cluster: chips and network.
        coefficients: fitted parameters.
        laws: laws of loss, batch, shape, failures and power.
        family: sharding and recomputation.
        head_dim: width of a head [1].
        software: a plan with the fields other than degrees, common to all plans.
    """

    template: Transformer
    cluster: Cluster
    coefficients: Coefficients
    laws: Laws
    family: Family
    head_dim: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    software: Plan = eqx.field(default_factory=Plan)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the log quantities: `QUANTITIES`."""
        return QUANTITIES

    def design_at(self, point: Float[ArrayLike, " coordinate"]) -> Design:
        """Continuous design at a point of the unit cube."""
        fixed = (self.template, self.family, self.cluster.n_chips, self.head_dim, self.software)
        return design_at(jnp.asarray(point), *fixed)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of all `QUANTITIES` at a point of the unit cube, by the smooth model."""
        design = self.design_at(point)
        return quantities(design, costs(design.model, design.plan, self, TEMPERATURE), self)

    def figures(self, values: Float[ArrayLike, " quantity"]) -> dict[str, float]:
        """Quantities of a design in the units of documents."""
        plain = dict(zip(QUANTITIES, np.exp(values).tolist(), strict=True))
        return {
            "params": plain["params"],
            "serving_memory_gb": plain["serving_memory"] / GB,
            "tokens": plain["tokens"],
            # The quantity is the excess.
            "loss": plain["excess_loss"] + number(self.laws.loss.irreducible),
            "global_batch_tokens": plain["batch"],
            "critical_batch_tokens": plain["batch"] / plain["batch_over_critical"],
            "step_time_s": plain["step_time"],
            "training_days": plain["time"] / DAY,
            "chip_hours": plain["time"] * number(self.cluster.n_chips) / HOUR,
            "energy_mwh": plain["energy"] / JOULE_PER_MWH,
            "memory_gb": (plain["memory"] - number(self.coefficients.framework_bytes)) / GB,
        }

    def outcome(self, values: Float[ArrayLike, " quantity"]) -> str:
        """Loss, time and tokens of a design in a few words."""
        run = self.figures(values)
        return f"loss {run['loss']:.4f} in {run['training_days']:.1f} days, {run['tokens']:.3g} tokens"


class Costs(NamedTuple):
    """Costs of a design independent of the number of its tokens.

    Attributes:
        step_seconds: time of a step [s].
        power: power of all chips [W].
        peak: memory of the fullest chip [byte].
    """

    step_seconds: Array
    power: Array
    peak: Array


def costs(model: Transformer, plan: Plan, problem: DesignProblem, temperature: float) -> Costs:
    """Step time, power and memory of a model under a plan."""
    times, peak = step_and_memory(model, plan, problem.cluster, problem.coefficients, temperature)
    # All chips [W].
    power = problem.cluster.n_chips * mean_chip_power(times, problem.cluster.chip, problem.laws.power)
    return Costs(times.total, power, peak.total)


def quantities(design: Design, spent: Costs, problem: DesignProblem) -> Float[Array, " quantity"]:
    """Logarithms of all `QUANTITIES` of a design."""
    batch = tokens_per_step(design.model, design.plan)
    run = run_figures(
        design.model,
        problem.template,
        problem.laws,
        small_batch_tokens=design.small_batch_tokens,
        batch_tokens=batch,
        step_seconds=spent.step_seconds,
        n_chips=problem.cluster.n_chips,
    )
    values = {
        "time": run.seconds,
        "excess_loss": run.excess,
        "energy": run.seconds * spent.power,
        "memory": spent.peak,
        "params": n_params(design.model),
        "tokens": run.tokens,
        "batch": batch,
        "batch_over_critical": batch / run.critical_batch,
        "step_time": spent.step_seconds,
        "inverse_params": 1.0 / n_params(design.model),
        "serving_memory": SERVED_BYTES * n_params(design.model),
        "expert_chips": jnp.asarray(design.plan.ep),
    }
    return jnp.log(jnp.stack([values[name] for name in QUANTITIES]))
