"""What a design is judged by, with its slopes, for many points of many problems in one compiled `vmap`.

Points go through in blocks of one fixed size, each with its own problem: every search, every budget and every
perturbed problem shares one compilation.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale._types import as_float
from jaxscale.choose._quick_compile import quick_jit
from jaxscale.choose.design_space import Design, Family, design_at
from jaxscale.choose.shape import TEMPERATURE
from jaxscale.choose.time_to_loss import Laws, run_figures
from jaxscale.coefficients import Coefficients
from jaxscale.hardware import Cluster
from jaxscale.memory import memory
from jaxscale.plan import Plan
from jaxscale.step import step_time, tokens_per_step
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
)
"""Natural logarithms, SI units; `excess_loss` is above the irreducible one, `memory` that of the fullest chip."""

N_QUANTITIES = len(QUANTITIES)

BLOCK = 48
"""Points per call: enough to keep the processor busy, few enough to waste little on padding [point]."""


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
    arguments = (model, plan, setting.cluster, setting.coefficients, temperature)
    times = step_time(*arguments)
    power = setting.cluster.n_chips * setting.laws.power.chip_power(setting.cluster.chip, times)
    return Costs(times.total, power, memory(*arguments).total)


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
    }
    return jnp.log(jnp.stack([values[name] for name in QUANTITIES]))


def _relaxed(point: Array, setting: Setting) -> tuple[Array, Array]:
    design = design_at(point, setting.template, setting.family, setting.cluster.n_chips, setting.head_dim)
    values = quantities(design, costs(design.model, design.plan, setting, TEMPERATURE), setting)
    return values, values


@quick_jit
def _block(points: ArrayLike, settings: Setting) -> tuple[Array, Array]:
    slopes, values = jax.vmap(jax.jacfwd(_relaxed, has_aux=True))(points, settings)
    return values, slopes


def evaluate(points: np.ndarray, settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Quantities and their slopes at points of the unit cube, in double precision.

    Args:
        points: [point, coordinate].
        settings: one for each point, stacked [point, ...].

    Returns:
        Values [point, quantity] and slopes [point, quantity, coordinate].
    """
    count = len(points)
    rows = np.minimum(np.arange(-(-count // BLOCK) * BLOCK), count - 1)
    with jax.enable_x64(True):
        blocks = []
        for start in range(0, len(rows), BLOCK):
            picked = rows[start : start + BLOCK]
            block = jax.tree.map(lambda leaf, picked=picked: np.asarray(leaf, np.float64)[picked], settings)
            blocks.append(_block(np.asarray(points, np.float64)[picked], block))
        values, slopes = (np.concatenate([np.asarray(block[part]) for block in blocks]) for part in (0, 1))
    return values[:count], slopes[:count]


def stack(settings: list[Setting]) -> Any:
    """Settings as one module of arrays [setting, ...]."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *settings)


def take(settings: Any, rows: np.ndarray) -> Any:
    """Rows of stacked settings."""
    return jax.tree.map(lambda leaf: leaf[rows], settings)
