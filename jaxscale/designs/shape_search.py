r"""Width against depth at a fixed number of parameters, on a fixed cluster and plan.

The objective is the time to a given loss: a shape that raises the loss by a share $p$ needs $(1 + p)^{1/\gamma}$ times
the training compute to make up for it ($L \sim T^{-\gamma}$), so that

$$ \min_d \; \ln \frac{t_\mathrm{step}(d, L(d))}{B S} + \frac1\gamma \ln(1 + p(d / L)), \qquad N(d, L(d)) = N . $$

Adam finds the valley from several widths, BFGS polishes, and the best integer design is picked from the whole lattice.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
from jaxtyping import Array

from jaxscale._arrays import number
from jaxscale._compile import filter_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.designs.shape_lattice import Lattice, best_integer
from jaxscale.designs.shape_problem import ShapeProblem, log_objective, shape_at
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import ShapeLaw, compute_exponent, shape_law
from jaxscale.plan.plan import Plan
from jaxscale.plans.relaxation import TEMPERATURE
from jaxscale.plans.score import as_arrays
from jaxscale.step import step_time
from jaxscale.workload import Transformer, n_params

START_SPREAD = 1.2
"""Starts lie within this log distance of the template's width [1]."""


class ShapeSearch(NamedTuple):
    """Best shape and the way to it.

    Attributes:
        model: integer design.
        step_time: of the integer design, exact model [s].
        relaxed: width, depth, step time and log objective of the continuous optimum, by the smooth model.
        integer: the same of the integer design, by the exact model, and its parameters.
        gap: time to the same loss of the integer design over the relaxed optimum, less 1, both by the smooth model [1].
        gradient_norm: slope of the log objective in log width at the relaxed optimum [1].
        trajectory: width and depth of every start at every Adam step [start, step, 2].
        objective: log time to loss along the trajectory, up to a constant [start, step].
        template_objective: the same at the template's own shape.
        lattice: every integer design that was scored.
    """

    model: Transformer
    step_time: float
    relaxed: dict[str, float]
    integer: dict[str, float]
    gap: float
    gradient_norm: float
    trajectory: np.ndarray
    objective: np.ndarray
    template_objective: float
    lattice: Lattice

    @property
    def gain(self) -> float:
        """Time to the same loss that the integer design saves over the template [1]."""
        return 1.0 - math.exp(self.integer["objective"] - self.template_objective)


def _objective(log_width: Array, problem: ShapeProblem) -> Array:
    return log_objective(shape_at(log_width, problem), problem, TEMPERATURE)


def _descend(start: Array, problem: ShapeProblem, n_steps: int) -> tuple[Array, Array]:
    """Widths [step] and objectives [step] of an Adam run."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.05, n_steps))

    def update(
        carry: tuple[Array, optax.OptState], _: None
    ) -> tuple[tuple[Array, optax.OptState], tuple[Array, Array]]:
        width, state = carry
        value, slope = jax.value_and_grad(_objective)(width, problem)
        change, state = optimiser.update(slope, state)
        return (width + change, state), (width, value)  # pyright: ignore[reportOperatorIssue]

    _, seen = jax.lax.scan(update, (start, optimiser.init(start)), length=n_steps)
    return seen


@filter_jit
def _descend_all(problem: ShapeProblem, starts: Array, n_steps: int) -> tuple[Array, Array, Array]:
    """Lowest width found [ln], trajectory of shapes [start, step, 2], objectives [start, step]."""
    widths, values = jax.vmap(_descend, in_axes=(0, None, None))(starts, problem, n_steps)
    lowest = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    depths = jax.vmap(jax.vmap(lambda width: shape_at(width, problem).n_layers))(widths)
    return widths.ravel()[lowest], jnp.stack([jnp.exp(widths), depths], axis=-1), values


@filter_jit
def _polish(problem: ShapeProblem, start: Array) -> tuple[Array, Array]:
    """Optimum [ln width] and the slope there."""
    solver = optx.BestSoFarMinimiser(optx.BFGS(rtol=1e-8, atol=1e-10))
    best = optx.minimise(_objective, solver, start, args=problem, max_steps=64, throw=False).value
    return best, jax.grad(_objective)(best, problem)


def search_shape(
    template: Transformer,
    plan: Plan,
    cluster: Cluster,
    coefficients: Coefficients,
    *,
    params: float | int | None = None,
    law: ShapeLaw | None = None,
    head_dim: float | int = 128.0,
    tolerance: float = 0.03,
    n_starts: int = 8,
    n_steps: int = 150,
) -> ShapeSearch:
    """Best width and depth at a fixed number of parameters, by gradient.

    Args:
        template: proportions of the model, its sequence length and vocabulary.
        plan: degrees and batch, kept fixed.
        cluster: chips and network.
        coefficients: fitted parameters.
        params: N [1]; the template's own where None.
        law: rise of the loss with the aspect ratio; Kaplan's where None.
        head_dim: width of a head [1].
        tolerance: how far the integer design may be from N, relative [1].
        n_starts: starting widths [1].
        n_steps: Adam steps of each [1].

    Returns:
        The relaxed optimum, the integer design and the trajectories.

    Raises:
        InputError: no integer shape obeys the plan and fits in memory.
    """
    wanted = number(n_params(template)) if params is None else params
    if not wanted > 0:
        raise InputError(f"params = {wanted:g} is out of range; expected a number above 0")
    dtype = jnp.result_type(float)
    numbers = (wanted, compute_exponent(), head_dim)
    fixed = (template, plan, cluster, coefficients, law or shape_law())
    problem = as_arrays(ShapeProblem(*fixed, *(jnp.asarray(number, dtype) for number in numbers)))
    # The width of a model grows as the cube root of its parameters at a constant aspect ratio.
    centre = math.log(number(template.d_model)) + math.log(wanted / number(n_params(template))) / 3.0
    starts = jnp.asarray(np.linspace(centre - START_SPREAD, centre + START_SPREAD, n_starts), dtype)
    rough, trajectory, values = _descend_all(problem, starts, n_steps)
    best, slope = _polish(problem, rough)
    lattice = best_integer(problem, math.exp(float(best)), tolerance)
    optimum = shape_at(best, problem)
    smooth = [float(_per_param(shape, problem, TEMPERATURE)) for shape in (as_arrays(lattice.model), optimum)]
    return ShapeSearch(
        model=lattice.model,
        step_time=lattice.figures["step_time_s"],
        relaxed=_figures(optimum, problem),
        integer=lattice.figures,
        gap=math.expm1(smooth[0] - smooth[1]),
        gradient_norm=abs(float(slope)),
        trajectory=np.asarray(trajectory),
        objective=np.asarray(values),
        template_objective=float(_per_param(problem.template, problem, 0.0)),
        lattice=lattice,
    )


@filter_jit
def _per_param(model: Transformer, problem: ShapeProblem, temperature: float) -> Array:
    """Log objective per parameter asked for, so that models a little off in size compare."""
    return log_objective(model, problem, temperature) - jnp.log(n_params(model) / problem.params)


def _figures(model: Transformer, problem: ShapeProblem) -> dict[str, float]:
    seconds = step_time(model, problem.plan, problem.cluster, problem.coefficients, TEMPERATURE).total
    objective = _per_param(model, problem, TEMPERATURE)
    figures = {"d_model": model.d_model, "n_layers": model.n_layers, "step_time_s": seconds, "objective": objective}
    return {name: float(value) for name, value in figures.items()}
