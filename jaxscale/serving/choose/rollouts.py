r"""Rollouts of reinforcement learning: batches of answers of unequal length, and chips shared with training.

Answers of lengths $l_1 \le \dots \le l_n$ that start together take
$T = T_{prefill} + \sum_i (l_i - l_{i-1})\, T_{dec}(n - i + 1, S_{in} + (l_i + l_{i-1}) / 2)$: the batch shrinks as
answers end, and the longest answer alone is held up by launches and by reading weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_arrays
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.serving.calibrate.serving_coefficients import ServingCoefficients
from jaxscale.serving.engine import Engine
from jaxscale.serving.forward_pass import decode_pass, engine_shares, prefill_pass
from jaxscale.serving.serving_memory import weights_per_chip


class RolloutTime(NamedTuple):
    """Time of a batch of answers on one copy.

    Attributes:
        prefill: work on prompts [s].
        decode: steps until the longest answer has ended [s].
        refresh: new weights over the network [s].
        idle: share of the sequence steps that no answer fills, 1 - mean length / longest [1].
    """

    prefill: Array
    decode: Array
    refresh: Array
    idle: Array

    @property
    def total(self) -> Array:
        """Sum of the parts [s]."""
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
    """Time in which one copy answers a batch whose answers differ in length.

    Args:
        model: the transformer.
        engine: a copy.
        cluster: the chips.
        coefficients: of the stack.
        input_len: prompt of every answer [token].
        lengths: of the answers, in any order [token], [answer].
        samples_per_prompt: answers that share a prompt, which is worked off once [1].

    Returns:
        The time by part.
    """
    model, engine, cluster, coefficients = as_arrays((model, engine, cluster, coefficients))
    ends = jnp.sort(jnp.asarray(lengths))
    starts = jnp.concatenate([jnp.zeros(1), ends[:-1]])
    running = jnp.asarray(len(ends) - jnp.arange(len(ends), dtype=ends.dtype))
    shares = engine_shares(model, engine, cluster)

    def step(count: Array, context: Array) -> Array:
        return decode_pass(
            model, engine, cluster, coefficients,
            n_sequences=count / engine.attention_dp, context=context, shares=shares,
        ).total  # fmt: skip

    steps = jax.vmap(step)(running, jnp.asarray(input_len + 0.5 * (starts + ends)))
    prompts = len(ends) / (samples_per_prompt * engine.attention_dp)
    prefill = prefill_pass(
        model, engine, cluster, coefficients, n_sequences=prompts, input_len=input_len, shares=shares
    ).total  # fmt: skip
    refresh = weights_per_chip(model, engine) / jnp.asarray(cluster.network.bandwidth)[..., 1]
    pace = coefficients.pace
    decode = pace * jnp.sum((ends - starts) * steps)
    return RolloutTime(pace * prefill, decode, refresh, 1.0 - jnp.mean(ends) / ends[-1])


class RolloutSplit(NamedTuple):
    """Chips of rollout and of training, and the time of a step of both.

    Attributes:
        rollout_chips: for rollouts [1].
        training_chips: for training [1].
        step: where both run side by side [s].
        colocated: where all chips do one after the other [s].
    """

    rollout_chips: Array
    training_chips: Array
    step: Array
    colocated: Array


def rollout_split(
    n_chips: ArrayLike, rollout_chip_seconds: ArrayLike, training_chip_seconds: ArrayLike, swap: ArrayLike = 0.0
) -> RolloutSplit:
    """Chips for rollouts and for training such that neither waits for the other.

    With chip seconds r and t of a step, $n_r = n r / (r + t)$, and a step takes $(r + t) / n$.

    Args:
        n_chips: in all [1].
        rollout_chip_seconds: r, of the rollouts of a step [s].
        training_chip_seconds: t, of the training of a step [s].
        swap: time to swap memory between the two where they share all chips [s].

    Returns:
        The split.
    """
    work = jnp.add(rollout_chip_seconds, training_chip_seconds)
    share, time = jnp.divide(rollout_chip_seconds, work), jnp.divide(work, n_chips)
    return RolloutSplit(jnp.multiply(n_chips, share), jnp.multiply(n_chips, 1.0 - share), time, time + swap)
