"""Sensitivity of runs to coefficients, and bounds on peak memory from completed runs and runs out of memory.

A level gets an effect on a coefficient only if some run of the level is sensitive to the coefficient. Most
tables state step times alone. A completed run bounds the peak by the memory of the chip, if the table states the
activations kept for the backward pass: the excess of the predicted peak over the chip's memory counts as an error, a
lower prediction does not (a censored observation; Tobin 1958, Econometrica 26, 24-36). A run out of memory gives a
lower bound.
"""

import functools
from collections.abc import Callable, Mapping

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration.coefficients import MEMORY_COEFFICIENTS, names
from jaxscale.fitting.objective import SHARP, compiled_logs_with_gradients
from jaxscale.hardware.formats import FORMATS
from jaxscale.models.transformer import ssm_layers
from jaxscale.plans.local import sharding
from jaxscale.runs.arrays import Measured, RunBatch, padded


def _multiplies_with(batch: RunBatch, efficiency: str) -> np.ndarray:
    """Whether matrix products of the weights use a number format with the efficiency."""
    has_it = np.asarray([entry.efficiency == efficiency for entry in FORMATS])
    return np.any(np.asarray(batch.plan.precision)[:, has_it] > 0.0, axis=1)


def _spans_nodes(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.cluster.n_chips) > np.asarray(batch.cluster.network.domain_size)[:, 0]


def _has_experts(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.model.n_experts) > 1.0


def _launches_each_kernel(batch: RunBatch) -> np.ndarray:
    return (np.asarray(batch.plan.compiled) < 1.0) & (np.asarray(batch.plan.cuda_graphs) < 1.0)


def _exchanges_tokens(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.plan.ep) > 1.0


def _is_pipelined(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.plan.pp) > 1.0


def _has_replicas(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.plan.dp * batch.plan.cp) > 1.0


def _gathers_weights(batch: RunBatch) -> np.ndarray:
    return np.asarray(sharding(batch.plan, 3)) > 0.0


def _splits_tensors(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.plan.tp) > 1.0


def _splits_tensors_across_nodes(batch: RunBatch) -> np.ndarray:
    return np.asarray(batch.plan.tp) > np.asarray(batch.cluster.network.domain_size)[:, 0]


_CONDITIONS: Mapping[str, Callable[[RunBatch], np.ndarray]] = {
    **{
        entry.efficiency: functools.partial(_multiplies_with, efficiency=entry.efficiency)
        for entry in FORMATS
        if entry.efficiency
    },
    "scan_efficiency": lambda batch: np.asarray(ssm_layers(batch.model)) > 0.0,
    "routed_passes": _has_experts,
    "bias_passes": lambda batch: _has_experts(batch) & (np.asarray(batch.model.expert_bias) > 0.0),
    "score_bytes": lambda batch: np.asarray(batch.plan.flash_attention) < 1.0,
    "host_time_tp_network": lambda batch: _splits_tensors(batch) & _spans_nodes(batch),
    "host_time_tp_node": _splits_tensors_across_nodes,
    "tp_overlap": _splits_tensors,
    "scale_out_efficiency": _spans_nodes,
    "network_latency_scale": _spans_nodes,
    "straggler": _spans_nodes,
    "dp_overlap": lambda batch: _has_replicas(batch) & (np.asarray(batch.plan.overlap_gradients) > 0.0),
    "dp_congestion": lambda batch: _has_replicas(batch) & _spans_nodes(batch),
    "dp_buckets": _has_replicas,
    "reduce_rings": lambda batch: _has_replicas(batch) & (np.asarray(sharding(batch.plan, 1)) < 1.0),
    "fsdp_bytes": _gathers_weights,
    "fsdp_overlap": _gathers_weights,
    "cp_overlap": lambda batch: np.asarray(batch.plan.cp) > 1.0,
    "ep_overlap": _exchanges_tokens,
    "moe_expert_time": _has_experts,
    "host_time_mixture": lambda batch: _has_experts(batch) & _launches_each_kernel(batch),
    "collective_launch": lambda batch: np.asarray(batch.cluster.n_chips) > 1.0,
    "link_latency_scale": lambda batch: np.asarray(batch.cluster.n_chips) > 1.0,
    "scale_up_efficiency": lambda batch: np.asarray(batch.cluster.n_chips) > 1.0,
    "pp_exposed": _is_pipelined,
    "pp_slot_time": _is_pipelined,
    "queued_bytes": _splits_tensors,
    "framework_bytes": lambda batch: np.asarray(batch.counted) > 0.0,
}


BOUNDED = "activation_factor"
"""Memory coefficient informed by runs of which only completion is known: the coefficient to which the peak is most
sensitive, since a bound determines no more than one coefficient."""


def informs(batch: RunBatch, name: str) -> np.ndarray:
    """Whether the predicted step time of each run is sensitive to a coefficient [row]."""
    condition = _CONDITIONS.get(name)
    return np.ones(len(batch), dtype=bool) if condition is None else np.asarray(condition(batch))


def informed_coefficients(measured: Measured, bounds: np.ndarray) -> np.ndarray:
    """Whether the measured step time or peak memory of each run is sensitive to each coefficient.

    Args:
        measured: the runs.
        bounds: whether the peak of a run is known only by a bound [row].

    Returns:
        Array of booleans [row, coefficient].
    """
    has_memory = np.isfinite(np.asarray(measured.peak_memory))
    columns = []
    for name in names():
        inside = informs(measured.batch, name)
        if name in MEMORY_COEFFICIENTS:
            # A bound determines a single coefficient.
            inside = inside & (has_memory | bounds if name == BOUNDED else has_memory)
        columns.append(inside)
    return np.stack(columns, axis=1)


NEAR_CAPACITY = 0.5
"""Predicted peak before a fit over the chip's memory, up to which the outcome of a run is uninformative: no fit raises
a prediction far enough for the bound to matter. Of a failed run, a peak above the inverse is uninformative too [1]."""


def log_use(batch: RunBatch, unconstrained: np.ndarray) -> np.ndarray:
    """Natural log of predicted peak memory over the chip's memory [1], [row].

    Args:
        batch: the runs, at least one.
        unconstrained: unconstrained coefficients of the runs [row, coefficient].

    Returns:
        Logs [1], [row].
    """
    n = len(batch)
    # Completion bounds all memory of the chip, the driver's included.
    whole = eqx.tree_at(lambda runs: runs.counted, batch, np.ones(n))
    runs, rows = padded((whole, unconstrained), n)
    (_, log_peak), _ = compiled_logs_with_gradients(runs, rows, jnp.asarray(SHARP))
    return np.asarray(log_peak)[:n] - np.log(np.asarray(batch.cluster.chip.hbm_bytes))


def bounds_memory(measured: Measured, base: np.ndarray) -> np.ndarray:
    """Whether the peak of each run is known only by an informative bound, from completion or running out of memory.

    Args:
        measured: the runs, completed or out of memory.
        base: unconstrained coefficients before a fit [row, coefficient].

    Returns:
        Booleans [row].
    """
    bounds = np.isfinite(measured.peak_bound) & ~np.isfinite(measured.peak_memory)
    if bounds.any():
        # Far below capacity, no fit lifts the prediction to the bound.
        use = log_use(measured.batch, base)
        bounds &= use > np.log(NEAR_CAPACITY)
        bounds &= ~np.asarray(measured.ran_out) | (use < -np.log(NEAR_CAPACITY))
    return bounds
