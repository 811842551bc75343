"""Notes on the rows of a table: missing columns of incomplete rows, assumptions for complete rows."""

from collections.abc import Callable, Mapping

import numpy as np

from jaxscale.models.model_catalogue import variant_note
from jaxscale.runs.checks import quotes_count
from jaxscale.runs.defaults import answer_note
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together
from jaxscale.tables.names import SHAPE


def incomplete(missing: Mapping[str, np.ndarray], is_open: np.ndarray, models: Categorical) -> Categorical:
    """Reasons why rows cannot be predicted, None for complete rows.

    Args:
        missing: whether a row lacks a column, by name of the column [column][row].
        is_open: whether the degrees of a row do not follow from its cells [row].
        models: name of each row's model.

    Returns:
        The reasons.
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
    runs: Runs, mean_seq_len: np.ndarray, plan: Mapping[str, np.ndarray], targets: Categorical
) -> Categorical:
    """Assumptions for rows beyond the documented defaults, may be empty.

    Args:
        runs: complete rows.
        mean_seq_len: mean length of a sequence [token], [row].
        plan: numeric arguments of `Plan` [argument][row].
        targets: matmuls with adapters [row].

    Returns:
        The notes on each row, joined.
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
