r"""Optimisation of width and depth at a fixed number of parameters, on a fixed cluster and plan.

The objective is the time to a given loss: a shape that raises the loss by a share $p$ needs $(1 + p)^{1/\gamma}$ times
the training compute for equal loss ($L \sim T^{-\gamma}$), so that

$$ \min_d \; \ln \frac{t_\mathrm{step}(d, L(d))}{B S} + \frac1\gamma \ln(1 + p(d / L)), \qquad N(d, L(d)) = N . $$
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float, number
from jaxscale.base.units import GB
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.step import step_and_memory, tokens_per_step
from jaxscale.designs.quantities import Design, depth_of, stretched
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import ShapeLaw
from jaxscale.models.transformer import Transformer, embedding_params, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxed_search import TEMPERATURE

SHAPE_QUANTITIES = ("time_to_loss", "memory", "step_time", "params")
"""Natural logarithms; `time_to_loss` of a shape is relative to further shapes [1], all further quantities in SI
units."""

REACH = 2.5
"""Log range of the width about the template's width at the target number of parameters [1]."""


class ShapeProblem(eqx.Module):
    """Optimisation problem over width and depth under a fixed plan; every leaf is an array.

    Attributes:
        template: proportions of the model.
        plan: fixed degrees and batch.
        cluster: chips and network.
        coefficients: fitted parameters.
        law: relative rise of the loss with the aspect ratio (width over depth).
        params: N, fixed number of parameters [1].
        exponent: gamma, exponent of the loss in compute [1].
        head_dim: width of a head [1].
    """

    template: Transformer
    plan: Plan
    cluster: Cluster
    coefficients: Coefficients
    law: ShapeLaw
    params: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    exponent: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    head_dim: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities, `SHAPE_QUANTITIES`."""
        return SHAPE_QUANTITIES

    def design_at(self, point: Float[ArrayLike, " 1"]) -> Design:
        """Model at a point of the unit interval of log widths, with the depth that gives the number of parameters."""
        # At a constant aspect ratio the width is proportional to the cube root of the parameters.
        scale = jnp.log(self.params / n_params(self.template)) / 3.0
        centre = jnp.log(self.template.d_model) + scale
        width = jnp.exp(centre + REACH * (2.0 * jnp.asarray(point)[0] - 1.0))
        depth = depth_of(self.template, width, self.params, self.head_dim)
        return Design(stretched(self.template, width, depth, self.head_dim), self.plan)

    def log_quantities(self, point: Float[Array, " 1"]) -> Float[Array, " quantity"]:
        """Logarithms of `SHAPE_QUANTITIES` at a point of the unit interval, by the smooth model."""
        return self.quantities(self.design_at(point).model, TEMPERATURE)

    def quantities(self, model: Transformer, temperature: float) -> Float[Array, " quantity"]:
        """Logarithms of `SHAPE_QUANTITIES` of a model: time to equal loss, memory, step time, parameters."""
        times, peak = step_and_memory(model, self.plan, self.cluster, self.coefficients, temperature)
        seconds, params = times.total, n_params(model)
        # The law of the shape counts parameters without embeddings.
        rise = self.law.penalty(model.d_model, model.n_layers, params - embedding_params(model))
        # ln (1 + p)^(1 / gamma): compute for equal loss.
        penalty = jnp.log1p(rise) / self.exponent
        # ln(t_step / (B S)) + ln(1 + p) / gamma
        per_token = jnp.log(seconds / tokens_per_step(model, self.plan)) + penalty
        others = jnp.log(jnp.stack([peak.total, seconds, params]))
        # Larger shapes take longer but learn more: time per target parameter.
        return jnp.concatenate([(per_token - jnp.log(params / self.params))[None], others])

    def figures(self, values: Float[ArrayLike, " quantity"]) -> dict[str, float]:
        """Parameters, step time [s] and memory [GB] of a shape by name, from log quantities."""
        _, peak, seconds, params = np.exp(np.asarray(values)).tolist()
        # Documents state memory without the bytes of the framework.
        printed = peak - number(self.coefficients.framework_bytes)
        return {"params": params, "step_time_s": seconds, "memory_gb": printed / GB}

    def outcome(self, values: Float[ArrayLike, " quantity"]) -> str:
        """Text with step time and memory of a shape."""
        shape = self.figures(values)
        return f"step {shape['step_time_s']:.4g} s, {shape['memory_gb']:.1f} GB"
