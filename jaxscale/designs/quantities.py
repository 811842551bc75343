"""What a design is judged by: logarithms of time, loss, energy, memory and sizes."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import as_float
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.designs.design_space import Design, design_at
from jaxscale.designs.time_to_loss import Laws, run_figures
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan
from jaxscale.plans.relaxation import TEMPERATURE, Family
from jaxscale.power import mean_chip_power
from jaxscale.step import step_and_memory, tokens_per_step
from jaxscale.workload import Transformer, n_params

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
)
"""Natural logarithms, SI units; `excess_loss` is above the irreducible one, `memory` that of the fullest chip, and an
upper bound on `inverse_params` is a lower one on the parameters."""

N_QUANTITIES = len(QUANTITIES)


class Setting(eqx.Module):
    """What a design is judged in; every leaf an array.

    Attributes:
        template: proportions of the model.
        cluster: chips and network.
        coefficients: fitted parameters.
        laws: of loss, batch, shape, failures and power.
        family: sharding and recomputation.
        head_dim: width of a head [1].
    """

    template: Transformer
    cluster: Cluster
    coefficients: Coefficients
    laws: Laws
    family: Family
    head_dim: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)

    def design_at(self, point: Float[ArrayLike, " coordinate"]) -> Design:
        """The continuous design at a point of the unit cube."""
        return design_at(jnp.asarray(point), self.template, self.family, self.cluster.n_chips, self.head_dim)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of all `QUANTITIES` at a point of the unit cube, by the smooth model."""
        design = self.design_at(point)
        return quantities(design, costs(design.model, design.plan, self, TEMPERATURE), self)


class Costs(NamedTuple):
    """What a design costs, whatever the number of its tokens.

    Attributes:
        step_seconds: of one step [s].
        power: of all chips [W].
        peak: memory of the fullest chip [byte].
    """

    step_seconds: Array
    power: Array
    peak: Array


def costs(model: Transformer, plan: Plan, setting: Setting, temperature: float) -> Costs:
    """Step time, power and memory of a model under a plan."""
    times, peak = step_and_memory(model, plan, setting.cluster, setting.coefficients, temperature)
    power = setting.cluster.n_chips * mean_chip_power(times, setting.cluster.chip, setting.laws.power)
    return Costs(times.total, power, peak.total)


def quantities(design: Design, spent: Costs, setting: Setting) -> Float[Array, " quantity"]:
    """Logarithms of all `QUANTITIES` of one design."""
    batch = tokens_per_step(design.model, design.plan)
    run = run_figures(
        design.model,
        setting.template,
        setting.laws,
        small_batch_tokens=design.small_batch_tokens,
        batch_tokens=batch,
        step_seconds=spent.step_seconds,
        n_chips=setting.cluster.n_chips,
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
    }
    return jnp.log(jnp.stack([values[name] for name in QUANTITIES]))
