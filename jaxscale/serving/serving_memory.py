"""Memory of an engine: weights, cache and buffers on a chip, and the largest batch."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.smooth import Temperature, larger
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

USABLE = 0.92
"""Share of the memory used by an engine: vLLM's gpu_memory_utilization is 0.9 by default, TensorRT-LLM gives the
cache 0.9 of the memory left by weights, SGLang's mem_fraction_static lies between 0.85 and 0.95 [1]."""

BUFFERS = 2.5e9
"""Activations, graphs and communication buffers of a chip (NVIDIA aiconfigurator 0.12, systems/*.yaml, reserves 3.5 GB,
and 0.34 to 0.41 GB for NCCL, on chips of 80 GB and more) [byte]."""

LEAST_BUFFERS = 0.04
"""Buffers as a share of the memory of a small chip [1]."""


class ServingMemory(eqx.Module):
    """Memory of a chip by purpose [byte].

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
    """Memory of a chip by purpose.

    Args:
        engine: distribution over chips.
        n_sequences: sequences in flight on each attention rank [1].
        context: tokens of each sequence [token].
        temperature: 0 for exact minima, else their smoothing [1].

    Returns:
        Bytes by purpose [byte].
    """
    model, engine, cluster = as_arrays((model, engine, cluster))
    # A stage caches the keys of the layers of the stage.
    cache = n_sequences * stored_per_sequence(model, engine, context, temperature) / engine.pp
    return ServingMemory(weights_per_chip(model, engine), cache, buffers_per_chip(cluster))


def max_batch(
    model: Transformer, engine: Engine, cluster: Cluster, context: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    """Maximum number of sequences of a given context in the memory of an attention rank, as a real number >= 0 [1].

    Args:
        engine: distribution over chips.
        context: tokens of a sequence: the final length for a static batch, the mean over its life where pages fill as
            sequences grow [token].
        temperature: 0 for exact minima, else their smoothing [1].

    Returns:
        The batch [1].
    """
    model, engine, cluster = as_arrays((model, engine, cluster))
    room = USABLE * cluster.chip.hbm_bytes - weights_per_chip(model, engine) - buffers_per_chip(cluster)
    # Weights beyond memory: no sequence.
    return larger(room, 0.0) * engine.pp / stored_per_sequence(model, engine, context, temperature)
