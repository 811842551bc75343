"""From the columns of a runs table to the arguments of the model, with defaults filled in and named."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxscale.calibration.levels import Levels
from jaxscale.runs.categorical import Categorical, together
from jaxscale.runs.checks import degrees
from jaxscale.runs.defaults import EmptyCells, is_fused, translate
from jaxscale.runs.remarks import incomplete, remarks_on
from jaxscale.runs.run_levels import run_levels
from jaxscale.runs.schema import SHAPE
from jaxscale.runs.shapes import ModelLookup, Shapes, shapes_of
from jaxscale.runs.table import Runs

REQUIRED_BESIDE_SHAPE = ("seq_len", "gpu", "n_gpus", "global_batch_size_seqs")
"""Columns of which every cell must be filled, whatever the row's model."""


@dataclass(frozen=True)
class Description:
    """Rows of a runs table as the model takes them.

    Attributes:
        index: positions in the table of the rows that are complete [answered row].
        shapes: arguments of `Transformer` [answered row].
        numbers: numeric arguments of `Plan` [argument][answered row].
        words: arguments of `Plan` that are words [argument][answered row].
        machine: catalogue id of the chip, chips in a scale-up domain [1] and scale-out bandwidth [Gbit/s] of each row,
            the last two None for the catalogue's [answered row].
        n_chips: chips [1], [answered row].
        levels: levels of each row by kind [answered row].
        measured_parts: how many timings are behind all rows of a row's setup, where steps are composed of them [1],
            [answered row].
        states_zero_stage: whether a row names its ZeRO stage itself [answered row].
        states_recompute: whether it names what it recomputes [answered row].
        notes: for every row of the table, why it is incomplete, or what was assumed beyond the documented defaults;
            empty if nothing [row].
    """

    index: np.ndarray
    shapes: Shapes
    numbers: Mapping[str, np.ndarray]
    words: Mapping[str, Categorical]
    machine: Categorical
    n_chips: np.ndarray
    levels: Levels
    measured_parts: np.ndarray
    states_zero_stage: np.ndarray
    states_recompute: np.ndarray
    notes: Categorical


def describe_rows(runs: Runs, lookup: ModelLookup) -> Description:
    """Describe the rows of a table for the model, or say what they lack.

    No measured column is read.

    Args:
        runs: a checked table.
        lookup: fields of a catalogue model by name, None for an unknown name.

    Returns:
        The description.
    """
    empty = EmptyCells(runs)
    shapes = shapes_of(runs, lookup, empty)
    lacks = _lacking(runs, shapes, empty)
    index = np.flatnonzero(lacks.matches(lambda reason: reason is None))
    complete = runs
    if len(index) < len(runs):
        complete = runs.take(index)
        empty = EmptyCells(complete)
        shapes = shapes.take(index)
    numbers, words = _plan_numbers(complete, empty), _plan_words(complete, empty)
    assumed = remarks_on(complete, shapes.column("seq_len"), numbers).spread(index, len(runs), "")
    return Description(
        index=index,
        shapes=shapes,
        numbers=numbers,
        words=words,
        machine=together(
            *(complete.categories(name) for name in ("gpu", "gpus_per_node", "inter_node_gbit_per_s_per_gpu"))
        ),
        n_chips=complete.numbers("n_gpus"),
        levels=run_levels(complete, empty, shapes, numbers, words["recompute"]),
        measured_parts=empty.default("measured_parts").numbers(),
        states_zero_stage=~np.isnan(complete.numbers("zero_stage")),
        states_recompute=complete.categories("activation_recompute").matches(lambda word: word is not None),
        notes=together(lacks, assumed).map(lambda pair: pair[1] if pair[0] is None else pair[0]),
    )


def _lacking(runs: Runs, shapes: Shapes, empty: EmptyCells) -> Categorical:
    """What keeps each row of a table from being answered, None where nothing does."""
    known = degrees(runs)
    is_open = np.isnan(known["dp"])
    missing = {name: np.isnan(shapes.column(name)) for name in SHAPE}
    missing |= {name: runs.categories(name).matches(lambda value: value is None) for name in REQUIRED_BESIDE_SHAPE}
    missing |= {name: is_open & np.isnan(runs.numbers(name)) for name in ("tp", "pp")}
    # A framework may cut a step into microbatches of a size of its own choice, a pipeline must.
    may_accumulate = (empty.default("accumulates").numbers() > 0.0) | (known["pp"] > 1.0)
    is_uncut = np.isnan(runs.numbers("micro_batch_size")) & np.isnan(runs.numbers("n_microbatches"))
    missing["micro_batch_size (or n_microbatches)"] = is_uncut & may_accumulate
    return incomplete(missing, is_open, runs.categories("model"))


def _plan_numbers(runs: Runs, empty: EmptyCells) -> dict[str, np.ndarray]:
    """Numeric arguments of `Plan` [argument][row]."""
    known = degrees(runs)
    vpp, ep = empty.filled_numbers("vpp"), runs.numbers("ep")
    kernel = empty.filled("attention_kernel")
    switches = ("sequence_parallel", "overlap_gradients", "fused_glu")
    is_on = {name: (empty.filled_numbers(name) > 0.0).astype(float) for name in switches}
    return {
        **known,
        "vpp": np.where(np.isnan(vpp), 1.0, vpp),
        "ep": np.where(np.isnan(ep), 1.0, ep),
        **_microbatches(runs, known["dp"]),
        "zero_stage": empty.filled_numbers("zero_stage"),
        "sequence_parallel": is_on["sequence_parallel"] * (known["tp"] > 1.0),
        "flash_attention": kernel.matches(lambda name: is_fused(str(name))).astype(float),
        "overlap_gradients": is_on["overlap_gradients"],
        "balanced_stages": empty.filled_numbers("balanced_stages"),
        "gradient_bytes": empty.filled_numbers("gradient_bytes"),
        "fused_glu": is_on["fused_glu"],
    }


def _microbatches(runs: Runs, dp: np.ndarray) -> dict[str, np.ndarray]:
    """Microbatch b and count m with b m dp = B; m is not whole where the last microbatch of a step is short."""
    share = runs.numbers("global_batch_size_seqs") / dp
    micro, count = runs.numbers("micro_batch_size"), runs.numbers("n_microbatches")
    even = share / np.where(np.isnan(count), 1.0, count)
    micro = np.where(np.isnan(micro), even, micro)
    return {"micro_batch_size": micro, "n_microbatches": share / micro}


def _plan_words(runs: Runs, empty: EmptyCells) -> dict[str, Categorical]:
    """Arguments of `Plan` that are words [argument][row]."""
    is_interleaved = empty.filled_numbers("vpp") > 1.0
    return {
        "recompute": empty.filled("activation_recompute").map(lambda word: translate("recompute", str(word))),
        "schedule": Categorical(is_interleaved.astype(int), ("1f1b", "interleaved")),
        "precision": empty.filled("precision").map(lambda word: translate("precisions", str(word))),
    }
