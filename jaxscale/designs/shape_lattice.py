"""Integer shapes near a number of parameters under a fixed plan, evaluated by the exact model in a single `vmap`."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import GB
from jaxscale.designs.budgets import PARAMS_TOLERANCE
from jaxscale.designs.integer_designs import row_of, whole_shapes, width_step
from jaxscale.designs.quantities import Design, depth_of
from jaxscale.designs.rounding import Rounded
from jaxscale.designs.shape_problem import SHAPE_QUANTITIES, ShapeProblem
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.optimise.problems import Goals, LeafLayout, in_blocks, leaf_matrix
from jaxscale.plans.relaxed_search import TEMPERATURE

WIDEST = 4.0
"""Largest width of the lattice over the width of the relaxed optimum [1]."""

BLOCK = 128
"""Shapes per call of the exact model [shape]."""


class ShapeLattice(NamedTuple):
    """Integer shapes near a number of parameters, with the quantities of each.

    Attributes:
        models: stacked models [shape].
        values: logarithms of `SHAPE_QUANTITIES` by the exact model [shape, quantity].
        admitted: whether the number of parameters is close enough and all bounds are met [shape].
    """

    models: Transformer
    values: Float[np.ndarray, "shape quantity"]
    admitted: np.ndarray

    @property
    def best(self) -> int:
        """Row of the admitted shape with the least time to equal loss."""
        times = self.values[:, SHAPE_QUANTITIES.index("time_to_loss")]
        return int(np.argmin(np.where(self.admitted, times, np.inf)))


def shape_lattice(problem: ShapeProblem, width: float, wanted: Goals) -> ShapeLattice:
    """Integer shapes on either side of the curve of constant parameters, with the quantities of each.

    Args:
        problem: template, plan, cluster and number of parameters.
        width: width of the relaxed optimum [1].
        wanted: bounds on the shapes.

    Returns:
        The lattice, with admitted shapes within `PARAMS_TOLERANCE`, else the nearest; empty if the plan has more
        pipeline chunks than any shape has layers.
    """
    models = integer_shapes(problem, width)
    values = shape_quantities(models, problem)
    fits = (wanted.residuals(values) <= 0.0).all(axis=-1)
    off = np.abs(values[:, SHAPE_QUANTITIES.index("params")] - math.log(number(problem.params)))
    nearest = np.min(off[fits], initial=np.inf)
    # The factor guards against rounding of the distance.
    return ShapeLattice(models, values, fits & (off <= max(PARAMS_TOLERANCE, 1.001 * nearest)))


def round_shape(relaxed: list[Design], problem: ShapeProblem, wanted: Goals) -> Rounded:
    """Best integer shape under the plan of the problem, near the best relaxed design.

    Args:
        relaxed: continuous designs, the best first.
        problem: template, plan, cluster and number of parameters.
        wanted: objective and bounds; the shape meets the bounds under the exact model.

    Returns:
        The design.

    Raises:
        InputError: no shape is possible with the plan, or no shape meets the bounds.
    """
    lattice = shape_lattice(problem, number(relaxed[0].model.d_model), wanted)
    if not len(lattice.values):
        chunks = number(problem.plan.pp * problem.plan.vpp)
        raise InputError(f"no integer shape: pp * vpp = {chunks:g} exceeds the layers")
    if not lattice.admitted.any():
        limit = math.exp(wanted.bound("memory")) / GB
        raise InputError(f"no shape of {number(problem.params):.3g} parameters fits in {limit:.1f} GB with this plan")
    best = lattice.best
    model, values = row_of(lattice.models, best), lattice.values[best]
    (smooth,) = shape_quantities(jax.tree.map(lambda leaf: leaf[best, None], lattice.models), problem, TEMPERATURE)
    objectives = float(wanted.objective(values)), float(wanted.objective(smooth))
    return Rounded(model, problem.plan, values, *objectives, len(lattice.values))


def integer_shapes(problem: ShapeProblem, width: float) -> Transformer:
    """Integer shapes on either side of the curve of constant parameters, up to `WIDEST` times a width, stacked [shape].

    Heads are divisible by tp, layers by pp * vpp, MLP widths by the tile and tp, and heads by the key/value heads.
    """
    template, plan = problem.template, problem.plan
    head_dim, tp = np.full(1, round(number(problem.head_dim))), np.full(1, round(number(plan.tp)))
    (step,), chunk = width_step(template, head_dim, tp).tolist(), round(number(plan.pp * plan.vpp))
    # Four widths at least.
    widths = step * np.arange(1.0, max(WIDEST * width / step, 4.0))
    depths = np.asarray(
        jax.vmap(lambda d: depth_of(template, d, problem.params, problem.head_dim))(jnp.asarray(widths))
    )
    # Depths on either side of the curve, in whole chunks.
    below = chunk * np.floor(depths / chunk)
    d_model = np.repeat(widths, 2)
    n_layers = np.stack([below, below + chunk], axis=1).ravel()
    # A chunk has a layer at least.
    possible = n_layers >= chunk
    models = whole_shapes(template, d_model[possible], n_layers[possible], head_dim, tp)
    # The template, a built model, is a candidate even off the lattice.
    is_as_large = abs(math.log(number(n_params(template)) / number(problem.params))) <= PARAMS_TOLERANCE
    if not is_as_large or number(template.n_layers) < chunk or number(template.n_heads) % tp[0]:
        return models
    return jax.tree.map(lambda leaf, own: np.append(leaf, np.asarray(own, float)), models, template)


def shape_quantities(models: Transformer, problem: ShapeProblem, temperature: float = 0.0) -> np.ndarray:
    """Logarithms of `SHAPE_QUANTITIES` of models under the plan of a problem [shape, quantity].

    Args:
        models: stacked models [shape].
        problem: plan, cluster, coefficients and law.
        temperature: smoothing of the model, 0 for the exact model [1].
    """
    rows, layout = leaf_matrix(models, len(models.d_model))
    if not len(rows):
        return np.zeros((0, len(SHAPE_QUANTITIES)))
    fixed = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem)
    (values,) = in_blocks(_block, BLOCK, (rows,), fixed, layout, temperature)
    return values


@filter_jit
def _block(rows: ArrayLike, problem: ShapeProblem, layout: LeafLayout, temperature: float) -> tuple[Array]:
    return (jax.vmap(lambda row: problem.quantities(layout.module(row), temperature))(jnp.asarray(rows)),)
