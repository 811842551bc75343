"""Width against depth at a fixed number of parameters, cluster and plan: problem and objective."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.designs.relaxed_shape import depth_of, stretched
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import ShapeLaw
from jaxscale.plan.plan import Plan
from jaxscale.step import step_time, tokens_per_step
from jaxscale.workload import Transformer


class ShapeProblem(eqx.Module):
    """A search over shapes; every leaf an array, so that other values do not compile anew.

    Attributes:
        template: proportions of the model.
        plan: fixed plan and batch.
        cluster: chips and network.
        coefficients: fitted parameters.
        law: rise of the loss with the aspect ratio.
        params: N, kept fixed [1].
        exponent: gamma, of the loss in compute [1].
        head_dim: width of a head [1].
    """

    template: Transformer
    plan: Plan
    cluster: Cluster
    coefficients: Coefficients
    law: ShapeLaw
    params: Float[Array, ""]
    exponent: Float[Array, ""]
    head_dim: Float[Array, ""]


def log_objective(model: Transformer, problem: ShapeProblem, temperature: float) -> Array:
    """Log of step time per token, plus the log of the extra compute that the shape's loss costs."""
    seconds = step_time(model, problem.plan, problem.cluster, problem.coefficients, temperature).total
    penalty = jnp.log1p(problem.law.penalty(model.d_model, model.n_layers)) / problem.exponent
    return jnp.log(seconds / tokens_per_step(model, problem.plan)) + penalty


def shape_at(log_width: Array, problem: ShapeProblem) -> Transformer:
    """The model of one width whose depth makes up the number of parameters."""
    width = jnp.exp(log_width)
    depth = depth_of(problem.template, width, problem.params, problem.head_dim)
    return stretched(problem.template, width, depth, problem.head_dim)
