"""Arguments of `Transformer`, `Plan` and `Cluster` from the columns of a runs table, with defaults for empty cells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxscale.base.arrays import stated_or
from jaxscale.calibration.levels import Levels
from jaxscale.models.model_catalogue import variant_note
from jaxscale.plans.optimizers import MASTER_BYTES, mixed_precision_bytes
from jaxscale.plans.plan import END_STAGES, FLAGS, ROUTING, SOFTWARE_CHOICES
from jaxscale.plans.stages import shortened_ends
from jaxscale.runs.checks import degrees, quotes_count
from jaxscale.runs.defaults import EmptyCells, answer_note, attention_rate, is_fused, recomputation
from jaxscale.runs.row_kinds import of_a_kind
from jaxscale.runs.run_levels import run_levels
from jaxscale.runs.schema import Runs
from jaxscale.runs.shapes import ModelLookup, Shapes, shapes_of
from jaxscale.tables.categorical import Categorical, joined, together
from jaxscale.tables.cells import SHAPE, Value, translate


def incomplete(missing: Mapping[str, np.ndarray], is_open: np.ndarray, models: Categorical) -> Categorical:
    """Reasons why rows cannot be predicted, None for complete rows.

    Args:
        missing: whether a row lacks a column, by name of the column [column][row].
        is_open: whether the degrees of a row do not follow from its cells [row].
        models: name of each row's model.
    """
    flags = [Categorical(np.asarray(lacks, dtype=int), (False, True)) for lacks in (is_open, *missing.values())]

    def reason(row: tuple) -> str | None:
        model, without_degrees, *lacks = row
        absent = [name for name, is_absent in zip(missing, lacks, strict=True) if is_absent]
        if not absent and not without_degrees:
            return None
        if not absent:
            return "no degrees dp, tp, pp and cp whose product is n_gpus"
        # A missing shape beside a name: the catalogue lacks the name.
        is_unknown = bool(model) and any(name in SHAPE for name in absent)
        return f"missing {', '.join(absent)}" + (f"; model {model!r} is not in the catalogue" if is_unknown else "")

    return together(models, *flags).map(reason)


def remarks_on(
    runs: Runs, mean_seq_len: np.ndarray, plan: Mapping[str, np.ndarray], targets: Categorical, is_dense: np.ndarray
) -> Categorical:
    """Notes on assumptions for rows beyond the documented defaults, and on cells without effect.

    Args:
        runs: complete rows.
        mean_seq_len: mean length of a sequence [token], [row].
        plan: numeric arguments of `Plan` [argument][row].
        targets: matmuls with adapters [row].
        is_dense: models without experts [row].

    Returns:
        The notes on each row, joined; empty for none.
    """
    count, seq_len = runs.numbers("n_microbatches"), runs.numbers("seq_len")
    is_counted = ~np.isnan(count)
    is_uncut = np.isnan(runs.numbers("micro_batch_size")) & ~is_counted
    # The batch decides where counts contradict.
    is_other = is_counted & (count != plan["n_microbatches"])
    is_quoted = np.zeros(len(runs), dtype=bool)
    is_quoted[is_other] = quotes_count(count[is_other], runs.categories("notes").take(is_other))
    micro, slots = plan["micro_batch_size"], plan["n_microbatches"]
    return joined(
        [
            *(
                _said(np.isnan(runs.numbers(name)), f"{name} is empty: taken as {{:g}}".format, plan[name])
                for name in ("tp", "pp")
            ),
            _said(is_uncut, "n_microbatches is empty: taken as 1, as the framework accumulates no gradients".format),
            _said(
                mean_seq_len != seq_len,
                "seq_len = {:g} is the longest sequence: the mean of {:g} used".format,
                seq_len,
                mean_seq_len,
            ),
            _said(is_other & is_quoted, "n_microbatches = {:g} contradicts the batch: {:g} used".format, count, slots),
            _said(is_other & ~is_quoted, "n_microbatches = {:g} is rounded: {:g} used".format, count, slots),
            _said(micro % 1.0 > 0.0, "microbatches do not divide the batch: {:g} sequences in each".format, micro),
            _said(
                ~is_counted & (slots % 1.0 > 0.0),
                "microbatches of {:g} do not divide the batch: the last one is short".format,
                micro,
            ),
            *(
                _said(is_dense & runs.categories(name).matches(_is_stated), (name + NO_EXPERTS).format)
                for name in OF_EXPERTS
            ),
            runs.categories("framework").map(answer_note),
            runs.categories("model").map(variant_note),
            runs.categories("precision").map(
                lambda word: "precision = int8 is taken as fp8" if "int8" in str(word).lower() else ""
            ),
            _said(
                (plan["lora_rank"] > 0.0) & np.isnan(runs.numbers("lora_rank")),
                "lora_rank is empty: taken as {:g}".format,
                plan["lora_rank"],
            ),
            _said(
                (runs.numbers("trainable_share") == 0.0) & (plan["lora_rank"] == 0.0),
                "trainable_share = 0: adapters are left out; state lora_rank and lora_targets".format,
            ),
            together(Categorical.of_numbers(plan["lora_rank"]), runs.categories("lora_targets"), targets).map(
                lambda row: f"lora_targets is empty: taken as {row[2]}" if row[0] > 0.0 and row[1] is None else ""
            ),
            runs.categories("attention_kernel").map(
                lambda word: (
                    "attention_kernel = fused is taken to write its scores to memory; where it does not, say flash"
                    if str(word).lower() == "fused"
                    else ""
                )
            ),
        ]
    )


OF_EXPERTS = ("moe_dispatcher", "moe_overlap", *ROUTING)
"""Columns of a plan that say something of mixtures alone."""


NO_EXPERTS = " has no effect: no experts"
"""Remark on such a column of a dense model."""


def without_experts(cells: Mapping[str, Value | None]) -> list[str]:
    """Remarks on stated cells that have no effect in a dense model, such as `moe_dispatcher`."""
    return [name + NO_EXPERTS for name in OF_EXPERTS if _is_stated(cells.get(name))]


def _is_stated(cell: Value | None) -> bool:
    """Whether a cell asks for something: a word but none, a flag that is set, a number above 0."""
    return bool(cell) and cell != "none"


def _said(concerned: np.ndarray, text: Callable[..., str], *numbers: np.ndarray) -> Categorical:
    """Text from the numbers of each selected row; empty for the remaining rows."""
    rows = np.flatnonzero(concerned)
    codes, values = np.zeros(len(concerned), dtype=int), ("",)
    if len(rows):
        columns = [Categorical.of_numbers(column[rows]) for column in numbers] or [
            Categorical.constant(None, len(rows))
        ]
        distinct = together(*columns)
        values += tuple(text(*row) for row in distinct.values)
        # Code 0 is the empty text.
        codes[rows] = distinct.codes + 1
    return Categorical(codes, values)


REQUIRED_BESIDE_SHAPE = ("seq_len", "gpu", "n_gpus", "global_batch_size_seqs")
"""Columns of which every cell must be filled, whatever the row's model."""


HELD_SIZES = (
    "loss_bytes",
    "adapter_bytes",
    "dequantised_bytes",
    "gradient_copy_bytes",
    "held_bytes",
    "cached_share",
    "host_time_layer",
    *ROUTING,
)
"""Numbers by which the memory of software is counted, and the time of its host; and the load of experts."""

OF_A_WORKLOAD = "names a traced workload, which has no shape"
"""Why a row with a traced workload is none of a transformer: `predict` takes it in its own way."""


@dataclass(frozen=True)
class Description:
    """Rows of a runs table as arguments of the model.

    Attributes:
        index: positions of the complete rows in the table [answered row].
        shapes: arguments of `Transformer` [answered row].
        numbers: numeric arguments of `Plan` [argument][answered row].
        words: text arguments of `Plan` [argument][answered row].
        machine: catalogue id of the chip, chips in a scale-up domain [1] and scale-out bandwidth [Gbit/s] of each row;
            None for the catalogue's domain or bandwidth [answered row].
        n_chips: chips [1], [answered row].
        levels: levels of each row by factor [answered row].
        measured_parts: number of timings behind the rows of a setup whose steps are composed of timings [1],
            [answered row].
        counted: code of the memory that a measured peak includes, as in `Memory.measured` [answered row].
        states_zero_stage: whether a row states its ZeRO stage [answered row].
        states_recompute: whether a row states its recomputation [answered row].
        notes: for every row of the table, missing columns, or assumptions beyond the documented defaults; empty for
            none [row].
    """

    index: np.ndarray
    shapes: Shapes
    numbers: Mapping[str, np.ndarray]
    words: Mapping[str, Categorical]
    machine: Categorical
    n_chips: np.ndarray
    levels: Levels
    measured_parts: np.ndarray
    counted: np.ndarray
    states_zero_stage: np.ndarray
    states_recompute: np.ndarray
    notes: Categorical


def describe_rows(runs: Runs, lookup: ModelLookup) -> Description:
    """Arguments of the model for the rows of a table, with a note for rows that lack columns.

    No measured column is read.

    Args:
        runs: a checked table.
        lookup: fields of a catalogue model by name, None for an unknown name.

    Returns:
        The description.
    """
    empty = EmptyCells(runs)
    shapes = shapes_of(runs, lookup, empty)
    lacks = _lacking(runs, shapes, empty).where(of_a_kind(runs), OF_A_WORKLOAD)
    index = np.flatnonzero(lacks.matches(lambda reason: reason is None))
    # Tables without gaps are not copied.
    complete = runs
    if len(index) < len(runs):
        complete = runs.take(index)
        empty = EmptyCells(complete)
        shapes = shapes.take(index)
    recomputed = _recomputations(complete, empty)
    is_mixture = shapes.column("n_experts") > 1.0
    numbers = _plan_numbers(complete, empty, recomputed, is_mixture, shapes.column("n_layers"))
    words = _plan_words(empty, recomputed)
    assumed = remarks_on(complete, shapes.column("seq_len"), numbers, words["lora_targets"], ~is_mixture)
    assumed = assumed.spread(index, len(runs), "")
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
        counted=empty.filled("mem_kind").numbers(_counted),
        states_zero_stage=~np.isnan(complete.numbers("zero_stage")),
        states_recompute=complete.categories("activation_recompute").matches(lambda word: word is not None),
        notes=together(lacks, assumed).map(lambda pair: pair[1] if pair[0] is None else pair[0]),
    )


def _counted(word: Value | None) -> float:
    """`RunBatch.counted` of a `mem_kind` [1]."""
    return {"driver": 1.0, "reserved": 0.5, "first-stage": -1.0}.get(translate("mem_kind", str(word)) or "", 0.0)


def _lacking(runs: Runs, shapes: Shapes, empty: EmptyCells) -> Categorical:
    """Missing columns of each row, None for complete rows."""
    known = degrees(runs)
    is_open = np.isnan(known["dp"])
    missing = {name: np.isnan(shapes.column(name)) for name in SHAPE}
    missing |= {name: runs.categories(name).matches(lambda value: value is None) for name in REQUIRED_BESIDE_SHAPE}
    # Open degrees are told by the columns to state.
    missing |= {name: is_open & np.isnan(runs.numbers(name)) for name in ("tp", "pp")}
    # A framework may cut a step into microbatches of a size of its own choice, a pipeline must.
    may_accumulate = (empty.default("accumulates").numbers() > 0.0) | (known["pp"] > 1.0)
    is_uncut = np.isnan(empty.filled_numbers("micro_batch_size")) & np.isnan(runs.numbers("n_microbatches"))
    missing["micro_batch_size (or n_microbatches)"] = is_uncut & may_accumulate
    return incomplete(missing, is_open, runs.categories("model"))


def _plan_numbers(
    runs: Runs, empty: EmptyCells, recomputed: Categorical, is_mixture: np.ndarray, n_layers: np.ndarray
) -> dict[str, np.ndarray]:
    """Numeric arguments of `Plan` [argument][row]."""
    stated, vpp = degrees(runs), stated_or(empty.filled_numbers("vpp"), 1.0)
    kernel = empty.filled("attention_kernel")
    switches = (name for name in FLAGS if name not in ("flash_attention", "balanced_stages"))
    is_on = {name: (empty.filled_numbers(name) > 0.0).astype(float) for name in ("sequence_parallel", *switches)}
    return {
        **stated,
        "vpp": vpp,
        "ep": stated_or(runs.numbers("ep"), 1.0),
        "etp": stated_or(empty.filled_numbers("etp"), 0.0),
        **_end_stages(empty, stated["pp"], stated["pp"] * vpp, n_layers),
        # A shard group beyond the replicas is all replicas.
        "shard_group": np.minimum(stated_or(empty.filled_numbers("shard_group"), stated["dp"]), stated["dp"]),
        **_microbatches(runs, empty, stated["dp"]),
        "zero_stage": empty.filled_numbers("zero_stage"),
        **is_on,
        # Without a tensor group, no norm is split.
        "sequence_parallel": is_on["sequence_parallel"] * (stated["tp"] > 1.0),
        "flash_attention": kernel.matches(lambda name: is_fused(str(name))).astype(float),
        "attention_rate": np.where(
            # "flash" names no version: the rate is the framework's.
            kernel.matches(lambda name: str(name).lower() == "flash"),
            empty.default("attention_rate").numbers(),
            kernel.numbers(lambda name: attention_rate(str(name))),
        ),
        "balanced_stages": empty.filled_numbers("balanced_stages"),
        **{name: empty.filled_numbers(name) for name in HELD_SIZES},
        **_recomputed_shares(recomputed, is_mixture),
        **_state_bytes(runs, empty, is_on["wide_weights"]),
        "lora_rank": np.where(
            # adapter = none switches a default rank off.
            adapters_of(runs).matches(lambda word: word == "none"),
            0.0,
            empty.filled_numbers("lora_rank"),
        ),
        **_offloaded(empty),
    }


def _end_stages(
    empty: EmptyCells, stages: np.ndarray, chunks: np.ndarray, n_layers: np.ndarray
) -> dict[str, np.ndarray]:
    """Layers of the first and the last stage, 0 for their share: as stated, else one less where chunks exceed layers.

    More chunks than layers leave one reading: the embedding and the logits head each take the place of a layer.
    """
    stated = {name: empty.filled_numbers(name) for name in END_STAGES}
    is_short = (chunks > n_layers) & np.all([np.isnan(column) for column in stated.values()], axis=0)
    is_short &= np.mod(n_layers + 2.0, chunks) == 0.0
    # One stage holds all layers.
    less = shortened_ends(n_layers, np.where(is_short, stages, 1.0))
    return {name: stated_or(column, less) for name, column in stated.items()}


def _recomputations(runs: Runs, empty: EmptyCells) -> Categorical:
    """Recomputation of each row; a stated word overrides the modules of a default."""
    stated, words = runs.categories("recompute_modules"), empty.filled("activation_recompute")
    return together(words, stated, runs.categories("framework")).map(
        lambda row: recomputation(str(row[0]), row[1], row[2])
    )


def _recomputed_shares(recomputed: Categorical, is_mixture: np.ndarray) -> dict[str, np.ndarray]:
    """Share of the activations that is dropped, and ratio of recomputed forward pass to that share [1], [row]."""
    dense, of_mixtures = (recomputed.numbers(lambda entry, key=key: entry[key]) for key in (1, 2))
    dropped = np.where(is_mixture, of_mixtures, dense)
    again = recomputed.numbers(lambda entry: entry.again)
    return {
        "recompute_full": dropped,
        # Recomputed forward pass over dropped share; 1 where nothing is dropped.
        "recompute_cost": np.where(dropped > 0.0, again / np.maximum(dropped, 1e-9), 1.0),
    }


def adapters_of(runs: Runs) -> Categorical:
    """Adapter of each row: none, lora or qlora; an empty cell means lora with a positive rank or stated targets."""
    rank = runs.numbers("lora_rank")
    stated = np.where(np.isnan(rank), runs.categories("lora_targets").matches(bool), rank > 0.0)
    words = together(runs.categories("adapter"), Categorical(stated.astype(int), ("none", "lora")))
    return words.map(lambda row: translate("adapter", str(row[0])) if row[0] else row[1])


QLORA_BYTES = 0.5
"""Of a frozen weight beside adapters that train it in 4 bits, its scale left out (arXiv 2305.14314) [byte]."""


def _state_bytes(runs: Runs, empty: EmptyCells, is_wide: np.ndarray) -> dict[str, np.ndarray]:
    """Bytes of a gradient, of the optimizer's state and of a weight: as stated, else by precision and optimizer."""
    precision = empty.filled("precision").map(lambda word: translate("precisions", str(word)))
    optimizer = empty.filled("optimizer").map(lambda word: translate("optimizer", str(word)))
    usual = together(precision, optimizer).map(lambda row: mixed_precision_bytes(*row))
    state = stated_or(empty.filled_numbers("optimizer_bytes"), usual.numbers(lambda entry: entry.optimizer))
    # A row that states the width of its weights says itself what is kept of them, and a small state has no master copy.
    by_habit = is_wide * np.isnan(runs.numbers("weight_bytes")) * (state > MASTER_BYTES)
    # A stated cell beats the habit of the framework.
    is_wide = np.where(np.isnan(runs.numbers("wide_weights")), by_habit, is_wide)
    weight = stated_or(empty.filled_numbers("weight_bytes"), usual.numbers(lambda entry: entry.weight))
    is_qlora = adapters_of(runs).matches(lambda word: word == "qlora") & np.isnan(runs.numbers("weight_bytes"))
    return {
        "gradient_bytes": empty.filled_numbers("gradient_bytes"),
        "optimizer_bytes": state,
        "weight_bytes": np.where(is_qlora, QLORA_BYTES, weight),
        "wide_weights": is_wide,
    }


def _offloaded(empty: EmptyCells) -> dict[str, np.ndarray]:
    """Shares of activations and of the optimizer's state in the memory of the host [1], [row]."""
    words = empty.filled("offload").map(lambda word: tuple(str(word or "none").lower().split("+")))
    return {
        f"offload_{part}": words.matches(lambda parts, part=part: part in parts).astype(float)
        for part in ("activations", "optimizer")
    }


def _microbatches(runs: Runs, empty: EmptyCells, dp: np.ndarray) -> dict[str, np.ndarray]:
    """Microbatch b and count m with b m dp = B; m is not whole where the last microbatch of a step is short."""
    share = runs.numbers("global_batch_size_seqs") / dp
    micro, count = empty.filled_numbers("micro_batch_size"), runs.numbers("n_microbatches")
    # Without a microbatch, the replica's batch over the stated count.
    even = share / np.where(np.isnan(count), 1.0, count)
    micro = np.where(np.isnan(micro), even, micro)
    # m = B / (b dp), not whole where the last microbatch is short.
    return {"micro_batch_size": micro, "n_microbatches": share / micro}


def _plan_words(empty: EmptyCells, recomputed: Categorical) -> dict[str, Categorical]:
    """Arguments of `Plan` that are words [argument][row]."""
    is_interleaved = Categorical((empty.filled_numbers("vpp") > 1.0).astype(int), ("1f1b", "interleaved"))
    schedule = together(empty.filled("schedule"), is_interleaved)
    return {
        "recompute": recomputed.map(lambda entry: entry.word),
        "schedule": schedule.map(lambda row: translate("schedule", str(row[0])) if row[0] else row[1]),
        "precision": empty.filled("precision").map(lambda word: translate("precisions", str(word))),
        "lora_targets": empty.filled("lora_targets").map(lambda word: str(word).lower()),
        **{
            name: empty.filled(name).map(lambda word, name=name: translate(name, str(word)))
            for name in SOFTWARE_CHOICES
        },
    }
