"""Measured rows of a runs table: which can be fitted, and how they group for cross-validation."""

from dataclasses import dataclass, replace

import numpy as np

from jaxscale.errors import InputError
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import model_fields
from jaxscale.runs import Incomplete, Row, RowDescription, Runs, describe
from jaxscale.runs.arrays import Measured, RunBatch, assemble, classes
from jaxscale.runs.defaults import default_for
from jaxscale.workload import Transformer, model_flops


@dataclass(frozen=True)
class Described:
    """A runs table as the model sees it.

    Attributes:
        batch: rows that the model can answer, stacked [answered row].
        index: their positions in the table [answered row].
        descriptions: what the model was told of them [answered row].
        notes: for every row of the table, why it cannot be answered or what was assumed; empty if nothing.
    """

    batch: RunBatch | None
    index: np.ndarray
    descriptions: tuple[RowDescription, ...]
    notes: tuple[str, ...]

    @property
    def is_inferred_fsdp(self) -> np.ndarray:
        """Whether a run is taken as FSDP because its state would not fit otherwise [answered row]."""
        taken = [] if self.batch is None else np.asarray(self.batch.plan.zero_stage)
        return np.asarray(taken) != np.asarray([row.plan["zero_stage"] for row in self.descriptions])


def describe_runs(runs: Runs, hardware: Hardware | None = None) -> Described:
    """Describe every row of a table for the model; no measured column is read."""
    hardware = hardware or load_hardware()
    models = model_fields()
    outcomes = [describe(row, lambda name: models.get(name.lower())) for row in runs]
    index = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, RowDescription)]
    answered = tuple(outcome for outcome in outcomes if isinstance(outcome, RowDescription))
    notes = [o.reason if isinstance(o, Incomplete) else "; ".join(o.remarks) for o in outcomes]
    batch = assemble(answered, hardware) if answered else None
    described = Described(batch, np.asarray(index, dtype=int), answered, tuple(notes))
    for position, row, is_inferred in zip(index, answered, described.is_inferred_fsdp, strict=True):
        said = [notes[position], hardware[row.gpu].lacks(row.plan["precision"])]
        if is_inferred:
            said.append("zero_stage is empty: taken as 3, as the weights would not fit otherwise")
        notes[position] = "; ".join(text for text in said if text)
    return replace(described, notes=tuple(notes))


def measured_step_time(row: Row, description: RowDescription | None = None) -> float:
    """Measured step time of a row.

    Its own column; else batch over throughput; else, for frameworks whose flop convention is known, model flops over
    the reported flop rate.

    Args:
        row: a row of the table.
        description: its model, where it has one.

    Returns:
        Time [s]; nan where nothing was measured or the run failed.
    """
    if row["status"] not in (None, "ok"):
        return float("nan")
    if row["step_time_s"] is not None:
        return float(row["step_time_s"])
    batch, length = row["global_batch_size_seqs"], row["seq_len"]
    if not (batch and length and row["n_gpus"]):
        return float("nan")
    if row["tokens_per_s_per_gpu"]:
        return float(batch * length / (row["tokens_per_s_per_gpu"] * row["n_gpus"]))
    counts_full = default_for("flops", row["framework"], row["source"]) == "full"
    if row["tflops_per_gpu"] and counts_full and description is not None:
        flops = float(model_flops(Transformer(**description.shape))) * batch * length
        return flops / (row["tflops_per_gpu"] * 1e12 * row["n_gpus"])
    return float("nan")


def outcome(row: Row, step_time: float) -> str:
    """How a run ended: its status; `ok` where that is blank and a step time was measured, empty for a planned run."""
    return row["status"] or ("ok" if np.isfinite(step_time) else "")


def measured_times(runs: Runs, described: Described) -> np.ndarray:
    """Measured step time of every row of a table [s], [row]; nan where there is none."""
    known = dict(zip(described.index.tolist(), described.descriptions, strict=True))
    return np.asarray([measured_step_time(row, known.get(position)) for position, row in enumerate(runs)])


def measured_runs(runs: Runs, hardware: Hardware | None = None) -> tuple[Measured, np.ndarray]:
    """Rows that the model can answer and that have a measured step time.

    Args:
        runs: the table.
        hardware: catalogue; the shipped one where None.

    Returns:
        The measured rows, and their positions in the table.

    Raises:
        InputError: no row has both what the model needs and a step time.
    """
    described = describe_runs(runs, hardware)
    rows = [runs.rows[i] for i in described.index]
    times = measured_times(runs, described)[described.index]
    memory = np.asarray([1e9 * (row["peak_mem_gb"] or float("nan")) for row in rows])
    parts = np.asarray([row.measured_parts for row in described.descriptions])
    states = np.asarray([row.states_recompute for row in described.descriptions])
    levels = {
        kind: tuple(str(row.effects[kind] or "") for row in described.descriptions)
        for kind in (described.descriptions[0].effects if described.descriptions else ())
    }
    kept = np.flatnonzero(np.isfinite(times))
    if described.batch is None or not len(kept):
        incomplete = np.setdiff1d(np.arange(len(runs)), described.index)[:1]
        reasons = [f"line {runs.rows[row].line}: {described.notes[row]}" for row in incomplete]
        first = reasons[0] if reasons else "none has one"
        raise InputError(
            f"{runs.path}: no row can be fitted; expected a step time, or a throughput, in rows that have every column "
            f"the model needs ({first})"
        )
    # Runs may have recomputed what their table leaves open: then their chip's memory says nothing of what they kept.
    bound = np.where(states, np.asarray(described.batch.cluster.chip.hbm_bytes), np.inf)
    return Measured(described.batch, times, memory, bound, parts, levels).take(kept), described.index[kept]


def groups_of(measured: Measured) -> np.ndarray:
    """Group of each run for cross-validation: same model shape, chips, tp and pp are one group [row]."""
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
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    sizes = np.bincount(groups)
    loads, fold = np.zeros(n_folds), np.zeros(groups.max() + 1, dtype=int)
    # Large groups first, each into the emptiest fold: no fold is starved where a few groups hold most rows.
    for group in sorted(order, key=lambda g: -sizes[g]):
        fold[group] = int(np.argmin(loads))
        loads[fold[group]] += sizes[group]
    return fold[groups]
