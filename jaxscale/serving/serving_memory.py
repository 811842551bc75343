r"""Memory of an engine: weights, cache and buffers on a chip, the largest batch, and the prefixes that stay cached.

Sequences that begin with one of G prefixes share its keys and values: n sequences hold

$$ D(n) = G (1 - (1 - 1 / G)^n) $$

distinct prefixes, and spare memory keeps further prefixes. The probability that a request finds its prefix is the share
of the G prefixes in memory.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.smooth import Temperature, larger, smaller
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import (
    Transformer,
    dense_layer_params,
    embedding_params,
    expert_params,
    moe_layers,
    router_params,
)
from jaxscale.serving.engine import Engine
from jaxscale.serving.forward_pass import stored_per_sequence

BUFFERS = 2.5e9
"""Activations, graphs and communication buffers of a chip (NVIDIA aiconfigurator 0.12, systems/*.yaml, reserves 3.5 GB,
and 0.34 to 0.41 GB for NCCL, on chips of 80 GB and more) [byte]."""

LEAST_BUFFERS = 0.04
"""Buffers as a share of the memory of a small chip [1]."""


class ServingMemory(eqx.Module):
    """Memory of a chip of an engine, by purpose [byte].

    Attributes:
        weights: weights of the layers and embeddings.
        cache: keys and values of the sequences in flight.
        buffers: activations, graphs, communication.
    """

    weights: Number
    cache: Number
    buffers: Number

    @property
    def total(self) -> Array:
        """Sum of all purposes [byte]."""
        return self.weights + self.cache + self.buffers


def weights_per_chip(model: Transformer, engine: Engine) -> Array:
    """Weights of a model on a chip of its engine [byte]."""
    layers = dense_layer_params(model) / engine.tp
    mixtures = moe_layers(model)
    experts = mixtures * model.n_experts * expert_params(model) / (engine.tp * engine.attention_dp)
    # Embeddings and router in 16 bits.
    wide = 2.0 * (embedding_params(model) + mixtures * router_params(model)) / engine.tp
    return ((layers + experts) * engine.weight_bytes + wide) / engine.pp


def usable_bytes(engine: Engine, cluster: Cluster) -> Number:
    """Memory of a chip that an engine may use for weights, cache and buffers [byte]."""
    return engine.memory_share * cluster.chip.hbm_bytes


def buffers_per_chip(cluster: Cluster) -> Array:
    """Buffers of an engine on a chip: a fixed size, smaller on small chips [byte]."""
    size = jnp.asarray(cluster.chip.hbm_bytes)
    # 2.5e9 byte on large chips, at most 4 % of a small chip.
    return BUFFERS * size / (size + BUFFERS / LEAST_BUFFERS)


def serving_memory(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    *,
    n_sequences: ArrayLike,
    context: ArrayLike,
    temperature: Temperature = 0.0,
) -> ServingMemory:
    """Memory of a chip of an engine, by purpose.

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips.
        n_sequences: sequences in flight on each attention rank [1].
        context: tokens of each sequence [token].
        temperature: smoothing of minima; 0 for exact values [1].

    Returns:
        Size by purpose [byte].
    """
    model, engine, cluster = as_arrays((model, engine, cluster))
    # A stage caches the keys of the layers of the stage.
    cache = n_sequences * stored_per_sequence(model, engine, context, temperature) / engine.pp
    return ServingMemory(weights_per_chip(model, engine), cache, buffers_per_chip(cluster))


def max_batch(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    context: ArrayLike,
    temperature: Temperature = 0.0,
    shared: "SharedPrefixes | None" = None,
) -> Array:
    """Largest number of sequences of a given context in the memory of an attention rank, as a real number >= 0 [1].

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips.
        context: tokens of a sequence: the final length for a static batch, the mean over time for a paged cache
            [token].
        temperature: smoothing of minima; 0 for exact values [1].
        shared: prefixes shared by sequences; none where None.
    """
    model, engine, cluster = as_arrays((model, engine, cluster))
    each = stored_per_sequence(model, engine, context, temperature)
    room = cache_room(model, engine, cluster)
    if shared is None:
        return room / each
    prefix = shared.bytes_each(model, engine, temperature)

    def beside(_: ArrayLike, batch: Array) -> Array:
        return room / (each - prefix + prefix * shared.held(batch) / larger(batch, 1.0))

    # From below: the more sequences, the fewer bytes of prefixes for each.
    return jax.lax.fori_loop(0, SHARING_STEPS, beside, room / each)


def cache_room(model: Transformer, engine: Engine, cluster: Cluster) -> Array:
    """Memory for the cache of a rank, over all pipeline stages; 0 if the weights exceed the memory [byte]."""
    room = usable_bytes(engine, cluster) - weights_per_chip(model, engine) - buffers_per_chip(cluster)
    return larger(room, 0.0) * engine.pp


SHARING_STEPS = 8
"""Steps to the batch whose prefixes and own tokens fill memory [1]."""


class SharedPrefixes(eqx.Module):
    """Prompt prefixes shared by the requests of a rank.

    Attributes:
        length: tokens of a prefix [token].
        groups: G, distinct prefixes; 0 where the prefix of every request is always cached [1].
    """

    length: Number
    groups: Number

    def bytes_each(self, model: Transformer, engine: Engine, temperature: Temperature = 0.0) -> Array:
        """Cache of one prefix on a chip of its rank; 0 without groups [byte]."""
        empty = stored_per_sequence(model, engine, 0.0, temperature)
        stored = stored_per_sequence(model, engine, self.length, temperature) - empty
        return smaller(self.groups, 1.0) * stored

    def held(self, n_sequences: ArrayLike) -> Array:
        """Number D of distinct prefixes among sequences [1]."""
        groups = larger(self.groups, 1.0)
        # The logarithm of 0 for a single prefix.
        return -groups * jnp.expm1(n_sequences * jnp.log1p(-smaller(1.0 / groups, 1.0 - 1e-6)))

    def found(self, each: Array, room: Array, n_sequences: Array, context_bytes: Array) -> Array:
        """Share of the requests whose prefix is in the cache [1].

        Args:
            each: cache of a prefix [byte].
            room: memory of the cache of a rank [byte].
            n_sequences: sequences in flight on the rank [1].
            context_bytes: cache of a sequence, its prefix included [byte].
        """
        running = self.held(n_sequences)
        spare = larger(room - n_sequences * (context_bytes - each) - running * each, 0.0)
        share = smaller((running + spare / larger(each, 1.0)) / larger(self.groups, 1.0), 1.0)
        return share + (1.0 - smaller(self.groups, 1.0)) * (1.0 - share)
