"""Quantities of a design (logarithms of time, loss, energy, memory and sizes), and the coordinates of the search.

Each coordinate is the share of the range left by the preceding coordinates, in logarithms (stick-breaking). Every
point of the unit cube then obeys all linear bounds, `dp * tp * pp * cp = n_chips`, `pp * vpp <= L`, `tp <= heads`,
`b * m * dp = B`, and only the constraints on time, loss and memory remain.

A shape is a model scaled in width and depth, with all proportions fixed.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float, number, with_fields
from jaxscale.base.units import DAY, GB, HOUR
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.power import mean_chip_power
from jaxscale.costs.step import step_and_memory, tokens_per_step
from jaxscale.designs.time_to_loss import Laws, run_figures
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxed_search import TEMPERATURE, Family, plan_with, splits

WIDTH_FIELDS = ("d_ff", "d_ff_expert", "moe_latent_size", "ssm_d_inner")
"""Fields proportional to the width."""


def head_share(template: Transformer) -> float:
    """Width of all query heads over the width of the model, rounded to three digits [1]."""
    return round(number(template.n_heads * template.head_dim / template.d_model), 3)


def stretched(
    template: Transformer, d_model: ArrayLike, n_layers: ArrayLike, head_dim: ArrayLike = 128.0
) -> Transformer:
    """Template scaled to a different width and depth, with fixed ratios of MLP and heads to the width.

    Args:
        template: model with the proportions; the number of key/value heads is fixed, or equal to the query heads.
        d_model: d, any positive number [1].
        n_layers: L, any positive number [1].
        head_dim: width of a head; the number of heads follows [1].

    Returns:
        The model; exact for integer sizes, the continuous relaxation between integers.
    """
    wider, scale = d_model / template.d_model, head_dim / template.head_dim
    # A fixed share of the width for the heads.
    n_heads = template.n_heads * wider / scale
    changed = {name: getattr(template, name) * wider for name in WIDTH_FIELDS}
    # Multi-head attention stays multi-head.
    is_full = template.n_kv_heads == template.n_heads
    heads = {
        "n_heads": n_heads,
        "n_kv_heads": jnp.where(is_full, n_heads, jnp.minimum(template.n_kv_heads, n_heads)),
        "head_dim": head_dim,
        "v_head_dim": scale * template.v_head_dim,
        "rope_head_dim": scale * template.rope_head_dim,
    }
    return with_fields(template, {"d_model": d_model, "n_layers": n_layers, **changed, **heads})


def depth_of(template: Transformer, d_model: ArrayLike, params: ArrayLike, head_dim: ArrayLike = 128.0) -> Array:
    """Depth at which the scaled template has a given number of parameters, which are affine in depth [1]."""
    one = n_params(stretched(template, d_model, jnp.asarray(1.0), head_dim))
    two = n_params(stretched(template, d_model, jnp.asarray(2.0), head_dim))
    # Affine in depth: N(L) = N(1) + (L - 1) (N(2) - N(1)).
    return jnp.asarray(1.0 + (params - one) / (two - one))


COORDINATES = ("d_model", "n_layers", "d_ff", "tokens", "tp", "cp", "pp", "batch", "micro_batch_size", "vpp", "ep")
"""Sizes and degrees of the coordinates, in order."""

N_COORDINATES = len(COORDINATES)

LOWEST = {"d_model": 256.0, "n_layers": 2.0, "d_ff": 0.25, "tokens": 1e7}
HIGHEST = {"d_model": 262144.0, "n_layers": 1024.0, "d_ff": 4.0, "tokens": 1e16}
"""Range of the coordinates without further bounds; the MLP ratio relative to the template's [1] or [token]."""

LARGEST_BATCH = 1e12
"""Upper bound of the batch, beyond every critical batch of the shipped laws [token]."""


class Design(NamedTuple):
    """Model, plan and number of tokens of a run.

    Attributes:
        model: the transformer.
        plan: degrees and batch.
        small_batch_tokens: tokens of an equivalent run with small batches; nan if not chosen [token].
    """

    model: Transformer
    plan: Plan
    small_batch_tokens: ArrayLike = math.nan


def _between(share: Array, name: str) -> Array:
    # Even in the logarithm.
    low, high = jnp.log(LOWEST[name]), jnp.log(HIGHEST[name])
    return jnp.exp(low + share * (high - low))


def design_at(
    point: Float[Array, " coordinate"],
    template: Transformer,
    family: Family,
    n_chips: ArrayLike,
    head_dim: ArrayLike,
    software: Plan | None = None,
) -> Design:
    """Continuous design at a point of the unit cube of coordinates.

    Args:
        point: shares of the remaining range, in the order of `COORDINATES` [1].
        template: proportions of the model: heads, experts, vocabulary, sequence length.
        family: choice of sharding and recomputation.
        n_chips: number of chips, all used by the plan [1].
        head_dim: width of a head [1].
        software: a plan with all fields except degrees; by default for an unnamed framework.

    Returns:
        The continuous design.
    """
    share = {name: point[index] for index, name in enumerate(COORDINATES)}
    d_model, n_layers = _between(share["d_model"], "d_model"), _between(share["n_layers"], "n_layers")
    model = stretched(template, d_model, n_layers, head_dim)
    ratio = _between(share["d_ff"], "d_ff")
    # Dense MLPs and experts share a ratio to the template.
    model = with_fields(model, {"d_ff": model.d_ff * ratio, "d_ff_expert": model.d_ff_expert * ratio})
    # ln dp + ln tp + ln pp + ln cp = ln n_chips
    room = jnp.log(n_chips)
    split = splits(share, family, model, jnp.log(model.n_heads), room)
    # ln(b m) as a share of ln(B_max / S) - ln dp
    replica_batch = share["batch"] * (jnp.log(LARGEST_BATCH / model.seq_len) - split["dp"])
    plan = plan_with(share, split, replica_batch, family, software)
    return Design(model, plan, _between(share["tokens"], "tokens"))


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
    """Optimisation problem over models, batches and plans on a cluster; every leaf is an array.

    Attributes:
        template: proportions of the model.
        cluster: chips and network.
        coefficients: fitted parameters.
        laws: laws of loss, batch, shape, failures and power.
        family: choice of sharding and recomputation.
        head_dim: width of a head [1].
        software: a plan with all fields except degrees, common to all plans.
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
        """Names of the quantities, `QUANTITIES`."""
        return QUANTITIES

    def design_at(self, point: Float[ArrayLike, " coordinate"]) -> Design:
        """Continuous design at a point of the unit cube of coordinates."""
        fixed = (self.template, self.family, self.cluster.n_chips, self.head_dim, self.software)
        return design_at(jnp.asarray(point), *fixed)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of the `QUANTITIES` at a point of the unit cube, by the smooth model."""
        design = self.design_at(point)
        return quantities(design, costs(design.model, design.plan, self, TEMPERATURE), self)

    def figures(self, values: Float[ArrayLike, " quantity"]) -> dict[str, float]:
        """Quantities of a design by name, in the units of the JSON document (GB, day, MWh), from log quantities."""
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
        """Text with loss, time and tokens of a design."""
        run = self.figures(values)
        return f"loss {run['loss']:.4f} in {run['training_days']:.1f} days, {run['tokens']:.3g} tokens"


class Costs(NamedTuple):
    """Step time, power and memory of a design, for any number of tokens.

    Attributes:
        step_seconds: time of a step [s].
        power: power of all chips [W].
        peak: memory of the fullest chip [byte].
    """

    step_seconds: Array
    power: Array
    peak: Array


def costs(model: Transformer, plan: Plan, problem: DesignProblem, temperature: float) -> Costs:
    """Step time, power and peak memory of a model under a plan."""
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
