r"""Time of generation in a step of reinforcement learning, and its share due to unequal lengths of answers.

$$ T_{gen} = T_{prefill} + (w - 1)\,\bar l\,T_{dec}(b, S_{in} + \overline{l^2} / 2 \bar l)
   + \int_0^M P(s)\,T_{dec}(b(s), S_{in} + s)\,ds $$

A copy of the engine generates B answers in w waves of b answers, as many as fit in memory. P(s) is the probability
that any answer is longer than s, and b(s) is the number of answers still running then on the rank with the longest
answer. The integral is exact for decode times that are affine in batch and context; the integral of P is the expected
longest answer.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.jit import concrete_jit
from jaxscale.base.smooth import larger, smaller
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.rollouts.rollout_batch import RolloutBatch, any_running, even_positions, running_beside_longest
from jaxscale.serving import Engine, ServingCoefficients, decode_pass, max_batch, prefill_pass


class GenerationTime(eqx.Module):
    """Time of generation in a step of reinforcement learning, by cause.

    Attributes:
        prefill: time of the prompts, each computed once for all its answers [s].
        decode: decode time if all answers had the mean length [s].
        tail: additional decode time due to unequal lengths of answers [s].
        in_flight: concurrent answers of a copy [1].
        room: answers that fit in the memory of a copy; below 1 where the weights do not fit [1].
        longest_len: expected length of the longest answer of the last wave [token].
    """

    prefill: Number
    decode: Number
    tail: Number
    in_flight: Number
    room: Number
    longest_len: Number

    @property
    def total(self) -> Array:
        """Sum of prefill, decode and tail [s]."""
        return self.prefill + self.decode + self.tail


@concrete_jit
def generation_time(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    batch: RolloutBatch,
) -> GenerationTime:
    """Time for the copies of an engine to generate a batch of answers; differentiable in every number.

    Args:
        model: the transformer that generates.
        engine: number of copies, which share the answers evenly, and degrees of each copy.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        batch: prompts, answers and lengths.

    Returns:
        The time by cause.
    """
    model, engine, cluster, coefficients, batch = as_arrays((model, engine, cluster, coefficients, batch))
    ranks, mean = engine.pp * engine.attention_dp, batch.mean_len
    room = max_batch(model, engine, cluster, batch.input_len + mean) * engine.attention_dp
    in_copy = larger(batch.n_answers / engine.copies, 1.0)
    in_flight = smaller(in_copy, larger(room, 1.0))
    waves = in_copy / in_flight

    # Stages of a pipeline and attention ranks share the answers of a copy; each has one at least.
    on_rank = larger(in_flight / ranks, 1.0)

    def step(count: Array, place: Array) -> Array:
        context = batch.input_len + place
        return decode_pass(model, engine, cluster, coefficients, n_sequences=count, context=context).total

    places, weights = even_positions(mean)
    equal = jnp.sum(weights * jax.vmap(step, (None, 0))(on_rank, places))
    at, n_last = batch.positions(), in_flight * engine.copies
    running = at.weight * any_running(at.z, n_last)
    last = jnp.sum(running * jax.vmap(step)(running_beside_longest(at.z, n_last, on_rank), at.place))
    refilled = (waves - 1.0) * mean * step(on_rank, 0.5 * batch.mean_square_len / mean)
    prompts = larger(batch.prompts / (engine.copies * ranks), 1.0)
    work = {"n_sequences": prompts, "input_len": batch.input_len}
    prefill = prefill_pass(model, engine, cluster, coefficients, **work).total
    pace = coefficients.pace
    return GenerationTime(
        prefill=pace * prefill,
        decode=pace * waves * equal,
        tail=pace * (refilled + last - waves * equal),
        in_flight=in_flight,
        room=room,
        longest_len=jnp.sum(running),
    )
