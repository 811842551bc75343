"""Measured rows of a runs table for a fit, and their groups for cross-validation."""

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import GB
from jaxscale.calibration.levels import Levels
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import catalogue_model
from jaxscale.models.transformer import model_flops, n_params
from jaxscale.plans.adapters import adapter_widths
from jaxscale.runs.arrays import FSDP_FROM, Measured, RunBatch, assemble, classes, padded
from jaxscale.runs.defaults import EmptyCells
from jaxscale.runs.description import Description, describe_rows
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together

FLOPS_OF = {"full": 1.0, "full, recomputed": 4.0 / 3.0}
"""Flops that a source counts over 6 x matmul parameters and full attention: a recomputed forward pass is a third more
[1]."""


@dataclass(frozen=True)
class Described:
    """Runs table as stacked arguments of the model.

    Attributes:
        batch: complete rows, stacked; None without any [answered row].
        index: positions of the complete rows in the table [answered row].
        levels: levels of each row by factor [answered row].
        measured_parts: number of timings behind the rows of a setup whose steps are composed of timings [1],
            [answered row].
        states_recompute: whether a row states its recomputation [answered row].
        is_inferred_fsdp: whether FSDP is assumed because of the size of the state [answered row].
        notes: for every row of the table, missing columns or assumptions; may be empty [row].
    """

    batch: RunBatch | None
    index: np.ndarray
    levels: Levels
    measured_parts: np.ndarray
    states_recompute: np.ndarray
    is_inferred_fsdp: np.ndarray
    notes: Categorical


def describe_runs(runs: Runs, hardware: Hardware | None = None) -> Described:
    """Stacked models, plans and clusters of a table, with notes on every row; no measured column is read."""
    hardware = hardware or load_hardware()
    described = describe_rows(runs, catalogue_model)
    batch = assemble(described, hardware) if len(described.index) else None
    if batch is not None:
        _check_shares(runs, described.index, batch)
    zero_stage = described.numbers["zero_stage"]
    # FSDP was assumed where the assembled stage differs.
    is_inferred = np.zeros(0, dtype=bool) if batch is None else batch.plan.zero_stage != zero_stage
    return Described(
        batch,
        described.index,
        described.levels,
        described.measured_parts,
        described.states_recompute,
        np.asarray(is_inferred),
        _notes(described, np.asarray(is_inferred), hardware),
    )


AGREEING = 0.1
"""Relative difference up to which a stated share of trained weights is that of its adapters [1]."""


def _check_shares(runs: Runs, index: np.ndarray, batch: RunBatch) -> None:
    """Raise an error for rows whose `trainable_share` is neither 0 nor the share of their adapters.

    Raises:
        InputError: names the line and the share of its adapters.
    """
    stated = np.nan_to_num(runs.numbers("trainable_share")[index])
    rows = np.flatnonzero((batch.plan.lora_rank > 0.0) & (stated > 0.0))
    if not len(rows):
        return
    some = batch.take(rows)
    widths = adapter_widths(some.model, some.plan.lora_targets)
    # r (d_in + d_out) per matmul.
    weights = np.asarray(some.plan.lora_rank * (widths.dense + widths.routed))
    share = weights / (np.asarray(n_params(some.model)) + weights)
    for row in np.flatnonzero(np.abs(stated[rows] / share - 1.0) > AGREEING)[:1].tolist():
        raise InputError(
            f"{runs.path}:{runs.lines[index[rows[row]]]}: column 'trainable_share' = '{stated[rows[row]]:g}': "
            f"contradicts the adapters, which are {share[row]:.3g} of the weights; expected that, 0 or an empty cell"
        )


def _notes(described: Description, is_inferred_fsdp: np.ndarray, hardware: Hardware) -> Categorical:
    """Notes on every row, with notes on chip and sharding [row]."""
    chip_and_format = together(described.machine, described.words["precision"])
    lacks = chip_and_format.map(lambda pair: hardware[pair[0][0]].lacks(pair[1]))
    whole = "weights, gradients and optimizer would take more than"
    sharded = f"zero_stage is empty: taken as 3, as {whole} {100 * FSDP_FROM:.0f} % of the memory"
    inferred = Categorical(is_inferred_fsdp.astype(int), ("", sharded))
    n_rows = len(described.notes)
    return joined([described.notes, *(column.spread(described.index, n_rows, "") for column in (lacks, inferred))])


def measured_times(runs: Runs, described: Described) -> np.ndarray:
    """Measured step time of every row of a table.

    The column of step time; else batch over throughput; else, for frameworks with a known flop convention, model flops
    over the reported flop rate.

    Args:
        runs: the table.
        described: description of the table's rows.

    Returns:
        Time [s], nan for planned and failed runs [row].
    """
    times = runs.numbers("step_time_s")
    n_gpus = runs.numbers("n_gpus")
    tokens = runs.numbers("global_batch_size_seqs") * runs.numbers("seq_len")
    # T = B S / (tokens per second and chip * n)
    times = np.where(np.isnan(times), tokens / (runs.numbers("tokens_per_s_per_gpu") * n_gpus), times)
    rate = runs.numbers("tflops_per_gpu")
    has_rate_alone = np.isnan(times[described.index]) & ~np.isnan(rate[described.index])
    # What rows leave open is asked of them alone: most tables have none.
    if described.batch is not None and has_rate_alone.any():
        rows = described.index[has_rate_alone]
        convention = EmptyCells(runs.take(rows)).default("flops")
        with jax.enable_x64(True):
            models = padded(described.batch.take(has_rate_alone).model, len(rows))
            flops = np.asarray(_model_flops(models))[: len(rows)]
        flops = flops * convention.numbers(FLOPS_OF.get)  # nan where the source counts in another way
        # Flop of a step over the flop rate of all chips; Tflop/s to flop/s.
        times[rows] = flops * tokens[rows] / (rate[rows] * 1e12 * n_gpus[rows])
    # The time of a failed run is no step time.
    has_ended = runs.categories("status").matches(lambda status: status in (None, "ok"))
    return np.where(has_ended, times, np.nan)


_model_flops = filter_jit(model_flops)
"""Model flops per token of many models, by one program: eager, each operation compiles one of its own."""


def run_status(runs: Runs, step_time: np.ndarray) -> Categorical:
    """Outcome of each run: the stated status; else `ok` with a measured step time, else empty."""
    is_timed = Categorical(np.isfinite(step_time).astype(int), ("", "ok"))
    return together(runs.categories("status"), is_timed).map(lambda pair: pair[0] or pair[1])


def measured_memory(runs: Runs) -> np.ndarray:
    """Measured peak memory of every row of a table, nan if absent [byte], [row]."""
    return GB * runs.numbers("peak_mem_gb")


def measured_runs(runs: Runs, hardware: Hardware | None = None) -> tuple[Measured, np.ndarray]:
    """Complete rows of a table with a measured step time.

    Args:
        runs: the table.
        hardware: catalogue; the shipped catalogue where None.

    Returns:
        The measured rows, and their positions in the table.

    Raises:
        InputError: no complete row has a step time.
    """
    return measured_of(runs, describe_runs(runs, hardware))


def measured_of(runs: Runs, described: Described) -> tuple[Measured, np.ndarray]:
    """Complete rows with a measured step time, from a described table; see `measured_runs`.

    Args:
        runs: the table.
        described: description of the table's rows.

    Returns:
        The measured rows, and their positions in the table.

    Raises:
        InputError: no row has both the columns that the model needs and a step time.
    """
    times = measured_times(runs, described)[described.index]
    kept = np.flatnonzero(np.isfinite(times))
    if described.batch is None or not len(kept):
        incomplete = np.setdiff1d(np.arange(len(runs)), described.index)[:1]
        reasons = [f"line {runs.lines[row]}: {described.notes[row]}" for row in incomplete.tolist()]
        first = reasons[0] if reasons else "none has one"
        raise InputError(
            f"{runs.path}: no row can be fitted; expected a step time, or a throughput, in rows that have every column "
            f"the model needs ({first})"
        )
    # Runs may have recomputed what their table leaves open: then their chip's memory says nothing of what they kept.
    bound = np.where(described.states_recompute, np.asarray(described.batch.cluster.chip.hbm_bytes), np.inf)
    memory = measured_memory(runs)[described.index]
    # A run that ended says of all that stands on its chip that it fitted.
    counted = np.where(np.isfinite(memory), np.asarray(described.batch.counted), 1.0)
    batch = eqx.tree_at(lambda runs: runs.counted, described.batch, counted)
    ran_out = np.zeros(len(times), dtype=bool)
    measured = Measured(batch, times, memory, bound, ran_out, described.measured_parts, described.levels)
    return measured.take(kept), described.index[kept]


def groups_of(measured: Measured) -> np.ndarray:
    """Group of each run for cross-validation: runs with equal model shape, chips, tp and pp share a group [row]."""
    batch = measured.batch
    columns = (
        batch.model.n_layers,
        batch.model.d_model,
        batch.model.n_experts,
        batch.cluster.n_chips,
        batch.plan.tp,
        batch.plan.pp,
    )
    return classes(columns, [])


def fold_of(groups: np.ndarray, n_folds: int, seed: int = 0) -> np.ndarray:
    """Fold of each run: whole groups, dealt at random into folds of about equal size [row]."""
    # Ties of size are broken at random, with a fixed seed.
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    sizes = np.bincount(groups)
    loads, fold = np.zeros(n_folds), np.zeros(groups.max() + 1, dtype=int)
    # Large groups first, each into the emptiest fold: no fold is starved where a few groups hold most rows.
    for group in sorted(order, key=lambda g: -sizes[g]):
        fold[group] = int(np.argmin(loads))
        loads[fold[group]] += sizes[group]
    return fold[groups]
