r"""Lifetime cost of models, training and serving together, and rollouts that share chips with training.

Sardana et al. 2024 (arXiv 2401.00448) minimise $6 N D + 2 N D_{inf}$ at equal loss. Here training, prompts and answers
have prices, $p_{tr} 6 N D + 2 N (p_{in} D_{in} + p_{out} D_{out})$, or the chip time follows from an engine.

Answers of lengths $l_1 \le \dots \le l_n$ that start together take
$T = T_{prefill} + \sum_i (l_i - l_{i-1})\, T_{dec}(n - i + 1, S_{in} + (l_i + l_{i-1}) / 2)$: the batch shrinks as
answers end, and launches and reads of weights bound the time of the longest answer from below.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxscale.base.arrays import Number, as_arrays, as_float, number
from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import Fit, fit_of
from jaxscale.costs.step import step_and_memory, tokens_per_step
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN, LossLaw, ShapeLaw
from jaxscale.models.transformer import Transformer, embedding_params, n_active_params, n_params, total_layers
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import model_columns, obeys, plan_columns
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.forward_pass import decode_pass, engine_shares, prefill_pass
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_memory import weights_per_chip
from jaxscale.serving.serving_time import serving_time


class TrainingPlans(eqx.Module):
    """Candidate parallel plans for the training of various model shapes, and the chips of training.

    Attributes:
        plans: degrees and batch [plan].
        cluster: chips and network; every plan uses all chips.
        coefficients: fitted parameters of the step time.
        memory_limit: largest predicted peak of a chip [byte].
    """

    plans: Plan
    cluster: Cluster
    coefficients: Coefficients
    memory_limit: Number = eqx.field(converter=as_float)

    def chip_time(
        self, model: Transformer, may_run: Bool[ArrayLike, " plan"] | None = None
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        r"""Chip time per training token with the fastest plan that fits in memory, $n\,t_\mathrm{step} / (B S)$.

        Args:
            model: the transformer.
            may_run: plans that are valid for the model; all where None [plan].

        Returns:
            Chip time, infinite if no plan fits [s/token], and index of the plan [1].
        """

        def of_plan(plan: Plan) -> tuple[Array, Array]:
            times, peak = step_and_memory(model, plan, self.cluster, self.coefficients)
            return times.total * self.cluster.n_chips / tokens_per_step(model, plan), peak.total

        times, peaks = jax.vmap(of_plan)(self.plans)
        runs = (peaks <= self.memory_limit) & (True if may_run is None else jnp.asarray(may_run))
        # Plans beyond memory never win.
        bounded = jnp.where(runs, times, jnp.inf)
        return jnp.min(bounded), jnp.argmin(bounded)

    def valid(self, models: Transformer) -> Bool[np.ndarray, "model plan"]:
        """Whether each plan is valid for each of several models, stacked along their leading axis [model, plan]."""
        # (models, plans)
        columns = {name: np.asarray(column)[:, None] for name, column in model_columns(models).items()}
        plans = {name: np.asarray(column)[None, :] for name, column in plan_columns(self.plans).items()}
        domain = np.asarray(self.cluster.network.domain_size)[0]
        facts = {**columns, **plans, "n_chips": number(self.cluster.n_chips), "domain_size": domain}
        shape = (len(next(iter(columns.values()))), len(np.asarray(self.plans.tp)))
        return np.broadcast_to(obeys(facts), shape)

    def plan(self, place: int) -> Plan:
        """Candidate plan by index."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[place], self.plans)


def training_plans(
    cluster: Cluster,
    plans: Sequence[Plan],
    *,
    fit: Fit | str | Path = "default",
    levels: Mapping[str, str | None] | None = None,
    oom_probability: float = 0.1,
) -> TrainingPlans:
    """Candidate parallel plans for the training of various model shapes, with coefficients for step time and memory.

    Args:
        cluster: chips and network.
        plans: degrees and batches; each uses all chips.
        fit: calibration of training, or its name or file.
        levels: framework, gpu and so on, whose fitted effects apply.
        oom_probability: accepted probability of running out of memory [1].

    Raises:
        InputError: no plan, or a plan with a different number of chips.
    """
    if not plans:
        raise InputError("plans is empty; expected at least one training plan")
    n_chips = number(cluster.n_chips)
    for plan in plans:
        if number(plan.n_chips) != n_chips:
            raise InputError(
                f"plan of {number(plan.n_chips):g} chips on a cluster of {n_chips:g}; expected all of them"
            )
    record, known = fit_of(fit), levels or {}
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(known, n_chips), oom_probability)
    stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, float) for leaf in leaves]), *plans)
    return TrainingPlans(stacked, cluster, record.coefficients(known, n_chips), limit)


SERVING_FLOP = 2.0
"""Flop per parameter and token of a forward pass: a multiply-add [flop]."""


class LifetimeLoad(eqx.Module):
    """Tokens served in the lifetime of a model, and the prices of training, prompts and answers.

    Attributes:
        prompt_tokens: D_in [token].
        answer_tokens: D_out [token].
        training_price: p_tr, price of a flop of training, in any unit of cost.
        prompt_price: p_in, price of a flop of prefill.
        answer_price: p_out, price of a flop of decode.
    """

    prompt_tokens: Number = eqx.field(converter=as_float)
    answer_tokens: Number = eqx.field(converter=as_float)
    training_price: Number = eqx.field(converter=as_float, default=1.0)
    prompt_price: Number = eqx.field(converter=as_float, default=1.0)
    answer_price: Number = eqx.field(converter=as_float, default=1.0)

    def cost(self, n_params: ArrayLike, n_tokens: ArrayLike) -> Array:
        """Cost of training N parameters on D tokens and of serving, in the unit of the prices.

        $p_{tr} 6 N D + 2 N (p_{in} D_{in} + p_{out} D_{out})$.

        Args:
            n_params: N [1].
            n_tokens: D [token].
        """
        training = self.training_price * FLOP_PER_PARAM_TOKEN * n_tokens
        served = self.prompt_price * self.prompt_tokens + self.answer_price * self.answer_tokens
        # 6 N D + 2 N D_inf, each with a price.
        return jnp.multiply(n_params, training + SERVING_FLOP * served)


class LifetimeOptimum(NamedTuple):
    """Size and training tokens of the model of a given loss with the least lifetime cost.

    Attributes:
        n_params: N [1].
        n_tokens: D [token].
        cost: cost of the lifetime, in the unit of the prices.
    """

    n_params: Array
    n_tokens: Array
    cost: Array


def least_params(law: LossLaw, loss: ArrayLike) -> Array:
    """Number of parameters that reaches a loss with infinitely many tokens, (A / (l - E))^(1 / alpha) [1]."""
    return jnp.power(law.params_coefficient / jnp.subtract(loss, law.irreducible), 1.0 / law.params_exponent)


def tokens_for_loss(law: LossLaw, n_params: ArrayLike, loss: ArrayLike) -> Array:
    r"""Training tokens to reach a loss with N parameters [token].

    $D = (B / [(l - E)^{1/k} - (A N^{-\alpha})^{1/k}]^k)^{1/\beta}$ for a law with joint exponent k.
    """
    k = law.joint
    params = law.params_coefficient / jnp.power(n_params, law.params_exponent)
    # ((A N^-alpha)^(1/k) + (B D^-beta)^(1/k))^k = l - E, solved for D.
    left = jnp.power(jnp.subtract(loss, law.irreducible), 1.0 / k) - jnp.power(params, 1.0 / k)
    return jnp.power(law.tokens_coefficient / jnp.power(left, k), 1.0 / law.tokens_exponent)


def lifetime_optimum(law: LossLaw, loss: ArrayLike, load: LifetimeLoad) -> LifetimeOptimum:
    """Parameters and training tokens with the least cost of training and serving at a given loss.

    Bisection finds the minimum of the cost along the curve of equal loss; the result is differentiable by the implicit
    function theorem.

    Args:
        law: loss law.
        loss: target loss, above the irreducible loss [nat per token].
        load: tokens of the lifetime and prices.
    """
    least = least_params(law, loss)

    def log_cost(excess: Array, arguments: tuple[LossLaw, Array, LifetimeLoad, Array]) -> Array:
        own_law, own_loss, own_load, own_least = arguments
        # N = N_min (1 + e^x): every x is a model with a finite D.
        params = own_least * (1.0 + jnp.exp(excess))
        return jnp.log(own_load.cost(params, tokens_for_loss(own_law, params, own_loss)))

    arguments = (law, jnp.asarray(loss), load, least)
    solver = optx.Bisection(rtol=1e-12, atol=1e-12, flip="detect")
    # e^-12 to e^14 above the least size.
    options = {"lower": -12.0, "upper": 14.0}
    found = optx.root_find(jax.grad(log_cost), solver, jnp.asarray(0.0), arguments, options, max_steps=200, throw=False)
    params = least * (1.0 + jnp.exp(found.value))
    tokens = tokens_for_loss(law, params, loss)
    return LifetimeOptimum(params, tokens, load.cost(params, tokens))


class LifetimeCost(NamedTuple):
    """Chip time of training and serving over the lifetime of a model.

    Attributes:
        training: chip seconds of training [s].
        serving: chip seconds of all answers, prompts included [s].
        tpot: time per token after the first [s].
        n_tokens: training tokens [token].
        place: index of the fastest training plan; 0 for a given utilisation [1].
    """

    training: Array
    serving: Array
    tpot: Array
    n_tokens: Array
    place: Array

    @property
    def total(self) -> Array:
        """Total chip seconds [s]."""
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
    r"""Chip time to train a shape to a loss and to serve all its answers; differentiable in the shape.

    A shape whose loss is $1 + p$ times the loss of the best shape of its size needs the tokens of a loss $l / (1 + p)$.
    The parameters in the loss law are the active parameters, times $E^\gamma$ for E experts.

    Args:
        model: the transformer.
        engine: engine for inference.
        cluster: chips for inference, and for training at a given utilisation.
        requests: load, lengths and kind of serving.
        coefficients: coefficients of the serving software.
        law: loss law.
        loss: target loss [nat per token].
        answer_tokens: D_out of the lifetime [token].
        training: training plans for the step time, or the model flop utilisation of training [1].
        temperature: smoothing of maxima; 0 for exact values [1].
        shape: law of the shape; every shape is as good as the best where None.
        experts_exponent: gamma, 0 for experts without effect (Clark et al. 2022, equation 6) [1].
        may_run: training plans that are valid for the shape; all where None [plan].

    Returns:
        The chip time; tokens are nan where a shape does not reach the loss.
    """
    params, inner = n_active_params(model), n_params(model) - embedding_params(model)
    rise = 0.0 if shape is None else shape.penalty(model.d_model, total_layers(model), inner)
    # Effect of experts on the loss: N E^gamma.
    worth = params * jnp.power(model.n_experts, experts_exponent)
    # A shape with 1 + p times the loss needs the tokens of l / (1 + p).
    tokens = tokens_for_loss(law, worth, jnp.divide(loss, 1.0 + rise))
    times = serving_time(model, engine, cluster, requests, coefficients, temperature)
    if isinstance(training, TrainingPlans):
        per_token, place = training.chip_time(model, may_run)
    else:
        # 6 N / (MFU peak) per token.
        per_token = FLOP_PER_PARAM_TOKEN * params / (jnp.asarray(training) * cluster.chip.peak("bf16"))
        place = jnp.asarray(0)
    served = answer_tokens / times.throughput * engine.n_chips
    return LifetimeCost(per_token * tokens, served, times.tpot, tokens, place)


class RolloutTime(NamedTuple):
    """Time of a batch of answers on a copy, by cause.

    Attributes:
        prefill: prefill of the prompts [s].
        decode: decode steps until the end of the longest answer [s].
        refresh: transfer of new weights over the network [s].
        idle: share of sequence steps without an answer, 1 - mean length / longest [1].
    """

    prefill: Array
    decode: Array
    refresh: Array
    idle: Array

    @property
    def total(self) -> Array:
        """Sum of prefill, decode and refresh [s]."""
        return self.prefill + self.decode + self.refresh


def rollout_time(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    input_len: ArrayLike,
    lengths: Float[ArrayLike, " answer"],
    samples_per_prompt: ArrayLike = 1.0,
) -> RolloutTime:
    """Time of a batch of answers of unequal lengths on a copy.

    Args:
        model: the transformer.
        engine: distribution of the copy over chips.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        input_len: length of every prompt [token].
        lengths: lengths of the answers, in any order [token], [answer].
        samples_per_prompt: answers that share a prompt and its prefill [1].

    Returns:
        The time by cause.
    """
    model, engine, cluster, coefficients = as_arrays((model, engine, cluster, coefficients))
    ends = jnp.sort(jnp.asarray(lengths))
    # (answers,): interval i runs from the end of answer i - 1.
    starts = jnp.concatenate([jnp.zeros(1), ends[:-1]])
    # The batch shrinks as answers end.
    running = jnp.asarray(len(ends) - jnp.arange(len(ends), dtype=ends.dtype))
    shares = engine_shares(model, engine, cluster)

    def step(count: Array, context: Array) -> Array:
        return decode_pass(
            model, engine, cluster, coefficients,
            n_sequences=count / engine.attention_dp, context=context, shares=shares,
        ).total  # fmt: skip

    steps = jax.vmap(step)(running, jnp.asarray(input_len + 0.5 * (starts + ends)))
    # Samples of a prompt share the prefill.
    prompts = len(ends) / (samples_per_prompt * engine.attention_dp)
    prefill = prefill_pass(
        model, engine, cluster, coefficients, n_sequences=prompts, input_len=input_len, shares=shares
    ).total  # fmt: skip
    refresh = weights_per_chip(model, engine) / jnp.asarray(cluster.network.bandwidth)[..., 1]
    pace = coefficients.pace
    decode = pace * jnp.sum((ends - starts) * steps)
    return RolloutTime(pace * prefill, decode, refresh, 1.0 - jnp.mean(ends) / ends[-1])


class RolloutSplit(NamedTuple):
    """Division of chips between rollouts and training, and the resulting time of a step.

    Attributes:
        rollout_chips: chips for rollouts [1].
        training_chips: chips for training [1].
        step: step time with concurrent rollouts and training [s].
        colocated: step time with rollouts and training in turn on all chips [s].
    """

    rollout_chips: Array
    training_chips: Array
    step: Array
    colocated: Array


def rollout_split(
    n_chips: ArrayLike, rollout_chip_seconds: ArrayLike, training_chip_seconds: ArrayLike, swap: ArrayLike = 0.0
) -> RolloutSplit:
    """Division of chips between concurrent rollouts and training of equal duration.

    With chip seconds r and t of a step, $n_r = n r / (r + t)$, and a step takes $(r + t) / n$.

    Args:
        n_chips: total number of chips [1].
        rollout_chip_seconds: r, chip time of the rollouts of a step [s].
        training_chip_seconds: t, chip time of the training of a step [s].
        swap: time to swap memory between rollout and training on shared chips [s].
    """
    work = jnp.add(rollout_chip_seconds, training_chip_seconds)
    # n_r = n r / (r + t)
    share, time = jnp.divide(rollout_chip_seconds, work), jnp.divide(work, n_chips)
    return RolloutSplit(jnp.multiply(n_chips, share), jnp.multiply(n_chips, 1.0 - share), time, time + swap)
