r"""Time to a loss: steps times step time, with the extra tokens of large batches and the time lost to failures.

For a run of $D_0$ tokens with small batches, the tokens D, time t and loss L with batches of B tokens are

$$ D = D_0 \left(1 + \frac{B}{B_\mathrm{crit}(N, D_0)}\right), \qquad
   t = \frac{D}{B}\, t_\mathrm{step}\, \frac{1}{\mathrm{goodput}}, \qquad
   L = (E + A N^{-\alpha} + B D_0^{-\beta}) (1 + p_\mathrm{shape}) . $$

All equations are explicit in $D_0$. Reference: McCandlish et al. 2018, equation 2.11.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.errors import InputError
from jaxscale.base.units import DAY
from jaxscale.costs.power import ChipPower
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import (
    FLOP_PER_PARAM_TOKEN,
    BatchLaw,
    ExpertsLaw,
    FailureLaw,
    LossLaw,
    ShapeLaw,
    batch_law,
    experts_law,
    failure_law,
    law_table,
    loss_law,
    shape_law,
)
from jaxscale.laws.loss_forms import SIGNED, law_of, number_names
from jaxscale.models.transformer import Transformer, embedding_params, is_dense, n_active_params, n_params, total_layers


class Laws(eqx.Module):
    """Laws of a training run besides the step time: loss, critical batch, shape, failures, power.

    Attributes:
        loss: loss as a function of parameters and tokens.
        batch: critical batch size as a function of parameters, tokens or loss.
        shape: relative rise of the loss with the aspect ratio (width over depth).
        mlp_kappa: relative rise of the loss per squared log of the MLP ratio over the template's [1].
        failure: rate of failures, and time of checkpoints and restarts.
        power: power of a chip by activity.
        embeddings: share of the embeddings counted among the parameters by the law of the loss [1].
        experts: dense parameters equivalent to an active parameter of a mixture.
    """

    loss: LossLaw
    batch: BatchLaw
    shape: ShapeLaw
    mlp_kappa: Float[ArrayLike, ""] = eqx.field(converter=as_float)
    failure: FailureLaw
    power: ChipPower
    embeddings: Float[ArrayLike, ""] = eqx.field(converter=as_float, default=1.0)
    experts: ExpertsLaw = eqx.field(default_factory=experts_law)


def default_laws() -> Laws:
    """Default laws: Besiroglu's loss, Bergsma's batch, Gemstones' shape, failures of Llama 3, Fernandez' power."""
    mlp_kappa = law_table("mlp", "kaplan")["kappa"]
    power = ChipPower(**law_table("power", "fernandez"))
    return Laws(loss_law(), batch_law(), shape_law(), mlp_kappa, failure_law(), power)


EMBEDDINGS = {"total": 1.0, "": 1.0, "active": 1.0, "non-embedding": 0.0, "active, non-embedding": 0.0}
EMBEDDINGS["total less input embedding"] = 0.5
"""Share of the embeddings that each count of parameters holds [1]."""


def laws_of(law: FittedLaw | Laws | None, draw: int | None = None) -> Laws:
    """Laws of a design: default laws with the loss, shape and batch terms of a fitted law.

    Args:
        law: fitted law; `Laws` are returned unchanged; None for `default_laws`.
        draw: index of a random draw of the fitted law; None for the best fit.

    Raises:
        InputError: the fitted law counts parameters in an unsupported way.
    """
    if not isinstance(law, FittedLaw):
        return default_laws() if law is None else law
    if law.count not in EMBEDDINGS:
        known = ", ".join(name for name in EMBEDDINGS if name)
        raise InputError(f"the law counts parameters as {law.count!r}; a design needs one of {known}")
    numbers = law.fitted.numbers if draw is None else law.fitted.draws[draw]
    names = number_names(law.terms)
    named = {
        # Fits hold logs of positive numbers.
        name: float(value if name in SIGNED else np.exp(value))
        for name, value in zip(names, numbers, strict=True)
    }
    with jax.enable_x64(True):
        loss = jax.tree.map(float, law_of(numbers))
    base = default_laws()
    shape, batch = base.shape, base.batch
    if "shape" in law.terms:
        shape = ShapeLaw(named["shape_kappa"], named["shape_ratio"], named["shape_drift"])
    if "batch" in law.terms:
        batch = BatchLaw(named["batch_coefficient"], tokens_exponent=named["batch_exponent"])
    return Laws(loss, batch, shape, base.mlp_kappa, base.failure, base.power, EMBEDDINGS[law.count])


def with_interruptions(laws: Laws, per_chip_day: float | None) -> Laws:
    """Copy of the laws with a different rate of failures; None leaves the laws unchanged.

    Args:
        laws: laws of a run.
        per_chip_day: unexpected interruptions per chip and day [1/d].

    Raises:
        InputError: a rate out of range.
    """
    if per_chip_day is None:
        return laws
    if not 0.0 < per_chip_day <= 10.0:
        raise InputError(
            f"interruptions = {per_chip_day:g} is out of range; expected above 0, at most 10 a chip and day"
        )
    # From 1/d to 1/s.
    return eqx.tree_at(lambda every: every.failure.failures_per_chip_second, laws, per_chip_day / DAY)


class RunFigures(NamedTuple):
    """Loss, tokens and duration of a whole run.

    Attributes:
        loss: final loss [nat per token].
        excess: loss above the irreducible loss [nat per token].
        tokens: training tokens [token].
        critical_batch: critical batch size [token].
        slowdown: time of the run over time of all steps [1].
        seconds: time from start to end [s].
    """

    loss: Array
    excess: Array
    tokens: Array
    critical_batch: Array
    slowdown: Array
    seconds: Array


def mlp_ratio(model: Transformer) -> Array:
    """MLP width over model width; for a mixture, width of an expert over model width [1]."""
    # d_ff in a dense model, d_ff_expert in a mixture.
    width = model.d_ff_expert + is_dense(model.n_experts) * (model.d_ff - model.d_ff_expert)
    return jnp.asarray(width / model.d_model)


def shape_factor(model: Transformer, template: Transformer, laws: Laws) -> Array:
    """Loss of a shape over the loss of the best shape of equal size [1]."""
    stretch = jnp.log(mlp_ratio(model) / mlp_ratio(template))
    # The law of the shape counts parameters without embeddings.
    inner = n_active_params(model) - embedding_params(model)
    # 1 + p_shape + kappa ln(ratio)^2
    return 1.0 + laws.shape.penalty(model.d_model, total_layers(model), inner) + laws.mlp_kappa * stretch**2


def expert_leverage(model: Transformer, laws: Laws, training_flop: ArrayLike) -> Array:
    """Dense parameters equivalent to an active parameter of a mixture; 1 for a dense model [1]."""
    # Experts per token over all experts, shared experts in each count.
    seen, every = model.moe_top_k + model.n_shared_experts, model.n_experts + model.n_shared_experts
    leverage = laws.experts.leverage(seen / every, 2.0 * model.d_model / model.d_ff_expert, training_flop)
    # 1 for a dense model, without a branch under tracing.
    return jnp.asarray(1.0 + (1.0 - is_dense(model.n_experts)) * (leverage - 1.0))


def loss_of_template(laws: Laws, template: Transformer) -> LossLaw:
    """Law of the loss as a function of active parameters, for models with the experts of a template.

    The leverage of the experts is taken at the largest training flop of the fitted data.
    """
    leverage = expert_leverage(template, laws, laws.experts.largest_flop)
    # A (e N)^-alpha = A e^-alpha N^-alpha
    scale = leverage ** -jnp.asarray(laws.loss.params_exponent)
    return eqx.tree_at(lambda law: law.params_coefficient, laws.loss, laws.loss.params_coefficient * scale)


def run_figures(
    model: Transformer,
    template: Transformer,
    laws: Laws,
    *,
    small_batch_tokens: ArrayLike,
    batch_tokens: ArrayLike,
    step_seconds: ArrayLike,
    n_chips: ArrayLike,
) -> RunFigures:
    """Loss, tokens and duration of a run, by the equations of the module.

    The loss law counts the active parameters of a token, for a mixture as equivalent dense parameters.

    Args:
        model: the transformer.
        template: model with the MLP ratio of no penalty.
        laws: laws of loss, batch, shape and failures.
        small_batch_tokens: D_0, tokens of an equivalent run with small batches [token].
        batch_tokens: B, tokens per step [token].
        step_seconds: time of a step [s].
        n_chips: chips of the job [1].

    Returns:
        The results of the run.
    """
    # Parameters in the count of the law.
    active = n_active_params(model) - (1.0 - laws.embeddings) * embedding_params(model)
    # C = 6 N D_0
    work = FLOP_PER_PARAM_TOKEN * active * jnp.asarray(small_batch_tokens)
    ideal = laws.loss.loss(active * expert_leverage(model, laws, work), small_batch_tokens)
    # L = (E + A N^-alpha + B D_0^-beta) (1 + p_shape)
    loss = ideal * shape_factor(model, template, laws)
    critical = laws.batch.critical(active, small_batch_tokens, ideal)
    # D = D_0 (1 + B / B_crit)
    tokens = jnp.asarray(small_batch_tokens * (1.0 + batch_tokens / critical))
    # A checkpoint holds all parameters, idle experts too.
    slowdown = laws.failure.slowdown(n_params(model), n_chips)
    # t = D / B t_step / goodput
    seconds = jnp.asarray(tokens / batch_tokens * step_seconds * slowdown)
    return RunFigures(loss, loss - laws.loss.irreducible, tokens, critical, slowdown, seconds)


def compute_optimal_loss(law: LossLaw, training_flop: ArrayLike) -> Array:
    """Loss at a given training compute with optimal parameters, small batches and best shape [nat per token]."""
    return law.loss(*law.optimum(training_flop))


def compute_optimal_flop(law: LossLaw, params: ArrayLike) -> Array:
    r"""Training compute for which a number of parameters is optimal under `LossLaw.optimum` [flop].

    $T = 6 (N / G)^{(\alpha + \beta) / \beta}$.
    """
    exponents = jnp.add(law.params_exponent, law.tokens_exponent)
    # ln (N / G)^((alpha + beta) / beta)
    log_work = (exponents * jnp.log(params) - law.log_balance()) / law.tokens_exponent
    return FLOP_PER_PARAM_TOKEN * jnp.exp(log_work)
