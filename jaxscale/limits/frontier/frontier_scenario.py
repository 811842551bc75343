"""Assumptions of the data-movement model: one float leaf each, so that scenarios stack, differentiate and sweep."""

import dataclasses
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import numpy as np

from jaxscale.base.arrays import Number, as_float, host_arrays, stacked


class FrontierScenario(eqx.Module):
    """Hardware, words, scaling laws and run of one scenario.

    Attributes:
        peak_flops: peak of one chip, two flop for a multiply-add [flop/s].
        max_utilisation: largest share of the peak that a matmul sustains [1].
        memory_bandwidth: of the chip's DRAM [byte/s].
        memory_bytes: of the chip's DRAM [byte].
        domain_size: chips in a scale-up domain [1].
        link_bandwidth: inside a domain, per chip and direction [byte/s].
        network_bandwidth: between domains, likewise [byte/s].
        link_latency: of a hop inside a domain [s].
        network_latency: of a hop between domains [s].
        kernel_latency: from the start of one matmul to the start of the next, at least [s].
        weight_bytes: of a weight [byte].
        activation_bytes: of an activation, in memory and on the wire [byte].
        gradient_bytes: of a gradient on the wire [byte].
        optimizer_bytes: of the optimizer's state, per parameter [byte].
        tokens_per_param: training tokens per active parameter [1].
        reference_batch: batch at `reference_flop` [token].
        reference_flop: training compute at which the batch is known [flop].
        batch_exponent: growth of the batch with training compute [1].
        batch_multiplier: factor on the batch [1].
        batch_sparsity_exponent: growth of the batch with the sparsity [1].
        sparsity: experts for each expert that a token visits, E / k [1].
        active_experts: experts that a token visits, k [1].
        reference_layers: depth at `reference_params` [1].
        reference_params: active parameters at which the depth is known [1].
        depth_exponent: growth of the depth with the active parameters [1].
        log_depth: layers per e-fold of width, added to the power law; zero without [1].
        log_depth_width: width at which that addition is zero [1].
        ff_ratio: MLP width over model width [1].
        training_time: longest run [s].
        overlap_exponent: exponent of the norm that joins what overlaps: one adds up, infinity takes the longest [1].
        pipeline_wait: share of a lone microbatch's way through the stages that is waited for: one in a real pipeline,
            zero where bubbles are reckoned as if microbatches were plenty [1].
    """

    peak_flops: Number = eqx.field(converter=as_float)
    max_utilisation: Number = eqx.field(converter=as_float)
    memory_bandwidth: Number = eqx.field(converter=as_float)
    memory_bytes: Number = eqx.field(converter=as_float)
    domain_size: Number = eqx.field(converter=as_float)
    link_bandwidth: Number = eqx.field(converter=as_float)
    network_bandwidth: Number = eqx.field(converter=as_float)
    link_latency: Number = eqx.field(converter=as_float)
    network_latency: Number = eqx.field(converter=as_float)
    kernel_latency: Number = eqx.field(converter=as_float)
    weight_bytes: Number = eqx.field(converter=as_float)
    activation_bytes: Number = eqx.field(converter=as_float)
    gradient_bytes: Number = eqx.field(converter=as_float)
    optimizer_bytes: Number = eqx.field(converter=as_float)
    tokens_per_param: Number = eqx.field(converter=as_float)
    reference_batch: Number = eqx.field(converter=as_float)
    reference_flop: Number = eqx.field(converter=as_float)
    batch_exponent: Number = eqx.field(converter=as_float)
    batch_multiplier: Number = eqx.field(converter=as_float)
    batch_sparsity_exponent: Number = eqx.field(converter=as_float)
    sparsity: Number = eqx.field(converter=as_float)
    active_experts: Number = eqx.field(converter=as_float)
    reference_layers: Number = eqx.field(converter=as_float)
    reference_params: Number = eqx.field(converter=as_float)
    depth_exponent: Number = eqx.field(converter=as_float)
    log_depth: Number = eqx.field(converter=as_float)
    log_depth_width: Number = eqx.field(converter=as_float)
    ff_ratio: Number = eqx.field(converter=as_float)
    training_time: Number = eqx.field(converter=as_float)
    overlap_exponent: Number = eqx.field(converter=as_float)
    pipeline_wait: Number = eqx.field(converter=as_float)


def stack_scenarios(scenarios: Sequence[FrontierScenario]) -> FrontierScenario:
    """Scenarios as one, every leaf an array [scenario]."""
    return host_arrays(stacked(scenarios))


def repeated(scenario: FrontierScenario, changes: Mapping[str, np.ndarray]) -> FrontierScenario:
    """A scenario as many that differ in some fields, every leaf an array [scenario].

    Args:
        scenario: where nothing is changed.
        changes: values by field, all equally many [scenario].

    Returns:
        The scenarios.
    """
    count = len(next(iter(changes.values())))
    return dataclasses.replace(jax.tree.map(lambda leaf: np.full(count, leaf), scenario), **changes)
