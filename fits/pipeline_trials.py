r"""Measured pipelines over unequal nodes: AMP's trials, predicted from its layer profiles and a few numbers.

With $f_l$ the profiled forward seconds of one sample through layer l on the chips of a stage, a stage takes for a
microbatch of b samples

$$ t_s = \max_\text{chips} \sum_{l \in s} \left( 3 b\, \phi f_l / \mathrm{tp}
   + \lambda (1 + \lambda_t [\mathrm{tp} > 1]) + b\, \kappa\, 2 (\mathrm{tp} - 1) / \mathrm{tp} \right), $$

a hop between nodes h for its bytes and w for its launch, and a step of m microbatches over c crossings

$$ T = T_0 + \sum_s t_s + c (2 h + w) + (m - 1) (\max_s t_s + 2 h + w) + g , $$

g the ring of gradients where data-parallel groups leave a node, whose tensor-parallel rings share one network card.
Sends block both stages, as the software of the trials does.

Reference: Li et al. 2022, arXiv 2210.07297, section 4 and its repository (profiles and trials).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from robust_fit import bounded, least_squares_fit

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import GBIT

CHIPS = ("T4", "V100-16gb")
"""Chips of the trials, in the order of the arrays."""

LEAST_LAYER = 1e-3
"""Profiled seconds from which a layer has launches of its own: a transformer block, not a reshape [s]."""

REFERENCE_LINK = 10.0 * GBIT
"""Bandwidth at which the wait of a hop is stated [byte/s]."""


class TrialCosts(eqx.Module):
    """Numbers that trials of one cluster share.

    Attributes:
        fixed: T_0, time of a step that no plan changes [s].
        compute: phi, time over that of the profile, by chip of `CHIPS` [1], [chip].
        launch: lambda, of one layer and microbatch [s].
        tensor_launch: lambda_t, launches that tensor parallelism adds [1].
        tensor_volume: kappa, of one layer and sample, by chip [s], [chip].
        gradient_volume: bytes of gradients over 4 N, at the nominal bandwidth [1].
        hop_volume: bytes of activations over 2 b S d, at the nominal bandwidth [1].
        hop_wait: w, of a hop between nodes at 10 Gbit/s [s].
    """

    fixed: Number = eqx.field(converter=as_float)
    compute: Float[Array, " chip"]
    launch: Number = eqx.field(converter=as_float)
    tensor_launch: Number = eqx.field(converter=as_float)
    tensor_volume: Float[Array, " chip"]
    gradient_volume: Number = eqx.field(converter=as_float)
    hop_volume: Number = eqx.field(converter=as_float)
    hop_wait: Number = eqx.field(converter=as_float)


class PipelineTrials(NamedTuple):
    """Trials as columns.

    Attributes:
        forward: profiled forward time of one sample on each stage, 0 for chips that it lacks [trial, stage, chip].
        layers: layers with launches of their own, likewise [trial, stage, chip].
        micro_batch: b [sample], [trial].
        microbatches: m [1], [trial].
        tp: tensor-parallel degree [1], [trial].
        crossings: hops between nodes [1], [trial].
        hop_bytes: of one microbatch over a hop, one way [byte], [trial].
        ring_bytes: of gradients over a network card, 0 where groups stay in a node [byte], [trial].
        bandwidth: of the network card of a node [byte/s], [trial].
        group: trials of the same degrees, which are left out together, [trial].
        measured: time of a step; inf for a trial that failed [s], [trial].
    """

    forward: Float[np.ndarray, "trial stage chip"]
    layers: Float[np.ndarray, "trial stage chip"]
    micro_batch: Float[np.ndarray, " trial"]
    microbatches: Float[np.ndarray, " trial"]
    tp: Float[np.ndarray, " trial"]
    crossings: Float[np.ndarray, " trial"]
    hop_bytes: Float[np.ndarray, " trial"]
    ring_bytes: Float[np.ndarray, " trial"]
    bandwidth: Float[np.ndarray, " trial"]
    group: np.ndarray
    measured: Float[np.ndarray, " trial"]

    def rows(self, kept: Any) -> "PipelineTrials":
        """Some of the trials.

        Args:
            kept: positions or a mask, [trial].

        Returns:
            The columns of those trials.
        """
        return PipelineTrials(*(column[kept] for column in self))


@functools.cache
def _stated() -> dict[str, Any]:
    return read_toml(data_path("islands.toml"))["trials"]


MOST_STAGES = 16
"""Stages of a trial at most: one for each chip [1]."""


def pipeline_trials(table: Sequence[Mapping[str, str]], profiles: Sequence[Mapping[str, str]]) -> PipelineTrials:
    """Columns of a table of trials, in the schemas of `data/restricted/amp_trials.csv` and `amp_layer_forward.csv`.

    Args:
        table: rows of cells of the trials.
        profiles: rows of cells of the layer profiles.

    Returns:
        The trials.

    Raises:
        InputError: an experiment whose cluster is not stated; says which are.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for cells in profiles:
        if int(cells["tp"]) == 1:
            times.setdefault((cells["model"], cells["chip"]), []).append(float(cells["forward_s_per_sample"]))
    rows = [_trial(cells, {name: np.asarray(layers) for name, layers in times.items()}) for cells in table]
    return PipelineTrials(*(np.stack(column) for column in zip(*rows, strict=True)))


def _trial(cells: Mapping[str, str], profiles: Mapping[tuple[str, str], np.ndarray]) -> tuple[Any, ...]:
    """Columns of one trial."""
    clusters = {name: entry for name, entry in _stated().items() if name != "prior"}
    if cells["experiment"] not in clusters:
        clusters_stated = ", ".join(clusters)
        raise InputError(f"experiment {cells['experiment']!r} has no stated cluster; expected one of {clusters_stated}")
    cluster = clusters[cells["experiment"]]
    b, tp, dp, pp = (int(cells[name]) for name in ("micro_batch_size", "tp", "dp", "pp"))
    nodes, per_node = cluster["nodes"], cluster["chips_per_node"]
    ends = [int(end) for end in cells["layer_boundaries"].split()]
    per_stage = len(nodes) * per_node // pp
    forward, layers = np.zeros((2, MOST_STAGES, len(CHIPS)))
    for stage in range(pp):
        chips = {nodes[place // per_node] for place in range(stage * per_stage, (stage + 1) * per_stage)}
        for chip in chips:
            times = profiles[cluster["profile"], chip][ends[stage] : ends[stage + 1]]
            forward[stage, CHIPS.index(chip)] = times.sum()
            layers[stage, CHIPS.index(chip)] = np.sum(times > LEAST_LAYER)
    crossings = sum(1 for stage in range(1, pp) if stage * per_stage % per_node == 0)
    leaves_node = dp > 1 and dp * tp > per_node
    shared = min(tp, per_node) / (
        tp * pp
    )  # rings of the ranks of a node over one card, each for its part of the weights
    ring = 2.0 * (dp - 1) / dp * 4.0 * cluster["n_params"] * shared if leaves_node else 0.0
    hop = 2.0 * b * cluster["seq_len"] * cluster["d_model"]
    microbatches = float(int(cells["global_batch"]) // (b * dp))
    group = f"{cells['experiment']} {tp} {dp} {pp}"
    bandwidth, measured = cluster["gbit_per_s"] * GBIT, float(cells["measured_s"])
    numbers = (float(b), microbatches, float(tp), float(crossings), hop, ring, bandwidth)
    return (forward, layers, *map(np.asarray, numbers), np.asarray(group), np.asarray(measured))


def predicted_trials(trials: PipelineTrials, costs: TrialCosts) -> Array:
    """Time of a step of each trial [s], [trial].

    Args:
        trials: their plans and profiles; measured times are not read.
        costs: of the cluster.

    Returns:
        Times.
    """
    b, tp = jnp.asarray(trials.micro_batch)[:, None, None], jnp.asarray(trials.tp)[:, None, None]
    split = jnp.where(tp > 1.0, 1.0, 0.0)
    compute = 3.0 * b * costs.compute * trials.forward / tp
    launches = costs.launch * (1.0 + costs.tensor_launch * split) * trials.layers
    collectives = b * costs.tensor_volume * 2.0 * (tp - 1.0) / tp * trials.layers
    stages = jnp.max(compute + launches + collectives, axis=-1)
    slow = REFERENCE_LINK / jnp.asarray(trials.bandwidth)
    hop = 2.0 * costs.hop_volume * trials.hop_bytes / trials.bandwidth + costs.hop_wait * slow
    crosses = jnp.where(jnp.asarray(trials.crossings) > 0.0, 1.0, 0.0)
    slot = jnp.max(stages, axis=-1) + crosses * hop
    ring = costs.gradient_volume * trials.ring_bytes / trials.bandwidth
    filled = jnp.sum(stages, axis=-1) + trials.crossings * hop
    return costs.fixed + filled + (jnp.asarray(trials.microbatches) - 1.0) * slot + ring


SCATTER = 0.15
"""Relative error of a trial from which it counts linearly; single runs, without repeats [1]."""


def _costs(logs: Array) -> TrialCosts:
    """Costs from logarithms in the order of `_prior`."""
    values, chips = jnp.exp(logs), len(CHIPS)
    fixed, launch, tensor_launch, gradients, hops, wait = values[:6]
    compute, tensor_volume = values[6 : 6 + chips], values[6 + chips :]
    return TrialCosts(fixed, compute, launch, tensor_launch, tensor_volume, gradients, hops, wait)


def _prior() -> tuple[np.ndarray, np.ndarray]:
    """Medians and spreads of the logarithms of the costs."""
    entries, chips = _stated()["prior"], len(CHIPS)
    names = ["fixed", "launch", "tensor_launch", "gradient_volume", "hop_volume", "hop_wait"]
    names += ["compute"] * chips + ["tensor_volume"] * chips
    median, spread = (np.asarray([entries[name][key] for name in names], float) for key in ("median", "spread"))
    return np.log(median), spread


@filter_jit
def _fitted(trials: PipelineTrials, weight: Array, prior: tuple[Array, Array]) -> Array:
    def misses(logs: Array, _: Any) -> Array:
        miss = jnp.log(predicted_trials(trials, _costs(logs)) / trials.measured)
        return jnp.concatenate([weight * bounded(miss / SCATTER), (logs - prior[0]) / prior[1]])

    return least_squares_fit(misses, prior[0], None)


def fit_trials(trials: PipelineTrials, counts: np.ndarray | None = None) -> TrialCosts:
    """Costs of a cluster from its trials, with weak priors.

    Args:
        trials: of one cluster.
        counts: whether each trial counts; those that ran where None, [trial].

    Returns:
        The costs.
    """
    ran = np.isfinite(trials.measured)
    weight = np.where(ran if counts is None else ran & counts, 1.0, 0.0)
    # One shape of program for all folds: trials that are left out have no weight.
    complete = trials._replace(measured=np.where(ran, trials.measured, 1.0), group=np.zeros(len(ran)))
    median, spread = (jnp.asarray(column) for column in _prior())
    logs = _fitted(complete, jnp.asarray(weight), (median, spread))
    return _costs(jnp.asarray(logs))


def degrees_left_out(trials: PipelineTrials, folds: int = 5, seed: int = 0) -> Float[np.ndarray, " trial"]:
    """Times of trials predicted from trials of other degrees: all micro-batches of tp, dp and pp are left out together.

    Args:
        trials: of one cluster.
        folds: parts that are left out in turn [1].
        seed: of the division.

    Returns:
        Predictions [s], [trial].
    """
    groups, place = np.unique(trials.group, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(groups))[place] % folds
    predicted = np.zeros(len(place))
    for part in range(folds):
        costs = fit_trials(trials, fold != part)
        rows = fold == part
        predicted[rows] = np.asarray(predicted_trials(trials.rows(rows), costs))
    return predicted
