r"""Models for a lifetime: training and serving together.

Sardana et al. 2024 (arXiv 2401.00448) minimise $6 N D + 2 N D_{inf}$ at equal loss. Here each kind of work has a price:
$p_{tr} 6 N D + 2 N (p_{in} D_{in} + p_{out} D_{out})$, or the chip time follows from an engine that answers.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Bool

from jaxscale.base.arrays import Number, as_float
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN, LossLaw, ShapeLaw
from jaxscale.models.transformer import Transformer, embedding_params, n_active_params, n_params, total_layers
from jaxscale.serving.calibrate.serving_coefficients import ServingCoefficients
from jaxscale.serving.choose.training_plans import TrainingPlans
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.serving_time import serving_time

SERVING_FLOP = 2.0
"""Flop per parameter and token of a forward pass: one multiply-add [flop]."""


class LifetimeLoad(eqx.Module):
    """Tokens of a lifetime and the price of each kind of work.

    Attributes:
        prompt_tokens: D_in [token].
        answer_tokens: D_out [token].
        training_price: p_tr, of a flop of training, in any unit of cost.
        prompt_price: p_in, of a flop of prefill.
        answer_price: p_out, of a flop of decode.
    """

    prompt_tokens: Number = eqx.field(converter=as_float)
    answer_tokens: Number = eqx.field(converter=as_float)
    training_price: Number = eqx.field(converter=as_float, default=1.0)
    prompt_price: Number = eqx.field(converter=as_float, default=1.0)
    answer_price: Number = eqx.field(converter=as_float, default=1.0)

    def cost(self, n_params: ArrayLike, n_tokens: ArrayLike) -> Array:
        """Cost of training N parameters on D tokens and serving them, in the unit of the prices."""
        training = self.training_price * FLOP_PER_PARAM_TOKEN * n_tokens
        served = self.prompt_price * self.prompt_tokens + self.answer_price * self.answer_tokens
        return jnp.multiply(n_params, training + SERVING_FLOP * served)


class LifetimeOptimum(NamedTuple):
    """Cheapest model of a loss.

    Attributes:
        n_params: N [1].
        n_tokens: D [token].
        cost: of the lifetime, in the unit of the prices.
    """

    n_params: Array
    n_tokens: Array
    cost: Array


def least_params(law: LossLaw, loss: ArrayLike) -> Array:
    """Parameters that reach a loss with tokens without end: (A / (l - E))^(1 / alpha) [1]."""
    return jnp.power(law.params_coefficient / jnp.subtract(loss, law.irreducible), 1.0 / law.params_exponent)


def tokens_for_loss(law: LossLaw, n_params: ArrayLike, loss: ArrayLike) -> Array:
    r"""Tokens with which N parameters reach a loss [token].

    $D = (B / [(l - E)^{1/k} - (A N^{-\alpha})^{1/k}]^k)^{1/\beta}$ for a law with joint exponent k.
    """
    k = law.joint
    params = law.params_coefficient / jnp.power(n_params, law.params_exponent)
    left = jnp.power(jnp.subtract(loss, law.irreducible), 1.0 / k) - jnp.power(params, 1.0 / k)
    return jnp.power(law.tokens_coefficient / jnp.power(left, k), 1.0 / law.tokens_exponent)


def lifetime_optimum(law: LossLaw, loss: ArrayLike, load: LifetimeLoad) -> LifetimeOptimum:
    """Parameters and tokens that reach a loss at the least cost of training and serving.

    The slope of the cost along the curve of equal loss is zero; it is found by bisection, and differentiates by the
    implicit function theorem.

    Args:
        law: of the loss.
        loss: above the irreducible one [nat per token].
        load: tokens of the lifetime and prices.

    Returns:
        The optimum.
    """
    least = least_params(law, loss)

    def log_cost(excess: Array, arguments: tuple[LossLaw, Array, LifetimeLoad, Array]) -> Array:
        own_law, own_loss, own_load, own_least = arguments
        params = own_least * (1.0 + jnp.exp(excess))
        return jnp.log(own_load.cost(params, tokens_for_loss(own_law, params, own_loss)))

    arguments = (law, jnp.asarray(loss), load, least)
    solver = optx.Bisection(rtol=1e-12, atol=1e-12, flip="detect")
    options = {"lower": -12.0, "upper": 14.0}
    found = optx.root_find(jax.grad(log_cost), solver, jnp.asarray(0.0), arguments, options, max_steps=200, throw=False)
    params = least * (1.0 + jnp.exp(found.value))
    tokens = tokens_for_loss(law, params, loss)
    return LifetimeOptimum(params, tokens, load.cost(params, tokens))


class LifetimeCost(NamedTuple):
    """Chip time of a lifetime.

    Attributes:
        training: chip seconds of training [s].
        serving: chip seconds of all answers, prompts included [s].
        tpot: time per token [s].
        n_tokens: training tokens [token].
        place: of the training plan that is fastest; 0 where a utilisation counts [1].
    """

    training: Array
    serving: Array
    tpot: Array
    n_tokens: Array
    place: Array

    @property
    def total(self) -> Array:
        """Chip seconds in all [s]."""
        return self.training + self.serving


def lifetime_cost(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    law: LossLaw,
    loss: ArrayLike,
    answer_tokens: ArrayLike,
    training: ArrayLike | TrainingPlans = 0.4,
    temperature: float = 0.0,
    shape: ShapeLaw | None = None,
    experts_exponent: ArrayLike = 0.0,
    may_run: Bool[ArrayLike, " plan"] | None = None,
) -> LifetimeCost:
    r"""Chip time of training a shape to a loss and of serving all its answers; differentiates by the shape.

    A shape whose loss is $1 + p$ times that of the best shape of its size needs the tokens of a loss $l / (1 + p)$. The
    law counts the parameters of a token, times $E^\gamma$ for E experts.

    Args:
        model: the shape.
        engine: on which it answers.
        cluster: the chips, of training as well.
        requests: load of the engine.
        coefficients: of the stack.
        law: of the loss.
        loss: to train to [nat per token].
        answer_tokens: D_out of the lifetime [token].
        training: plans whose step time counts, or the model flop utilisation of training [1].
        temperature: 0 for exact maxima, else their smoothing [1].
        shape: law of the shape; every shape is as good as the best where None.
        experts_exponent: gamma, 0 where experts are worth nothing (Clark et al. 2022, equation 6) [1].
        may_run: training plans that are valid for the shape; all where None [plan].

    Returns:
        The chip time; tokens are nan where a shape does not reach the loss.
    """
    params, inner = n_active_params(model), n_params(model) - embedding_params(model)
    rise = 0.0 if shape is None else shape.penalty(model.d_model, total_layers(model), inner)
    worth = params * jnp.power(model.n_experts, experts_exponent)
    tokens = tokens_for_loss(law, worth, jnp.divide(loss, 1.0 + rise))
    times = serving_time(model, engine, cluster, requests, coefficients, temperature)
    if isinstance(training, TrainingPlans):
        per_token, place = training.chip_time(model, may_run)
    else:
        per_token = FLOP_PER_PARAM_TOKEN * params / (jnp.asarray(training) * cluster.chip.peak("bf16"))
        place = jnp.asarray(0)
    served = answer_tokens / times.throughput * engine.n_chips
    return LifetimeCost(per_token * tokens, served, times.tpot, tokens, place)
