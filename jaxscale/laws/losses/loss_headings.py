"""Headings and cells of tables of losses as other tools write them, and what columns tell together.

`Params (B)`, `tokens_m`, `7B`, `perplexity` and `bits_per_byte` are understood; tokens follow from compute and
parameters, or from steps and batch, where no column states them.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.losses.loss_columns import LOSS_COLUMN
from jaxscale.tables.schema import ColumnHeading
from jaxscale.tables.table import AbstractTable

OTHER_NAMES = {
    **dict.fromkeys(("n", "param", "params", "num_params", "parameters", "model_size", "size"), "n_params"),
    **dict.fromkeys(("model_params", "param_count", "parameter_count", "n_parameters", "num_parameters"), "n_params"),
    **dict.fromkeys(("d", "n_tokens", "num_tokens", "data", "train_tokens", "training_tokens"), "tokens"),
    **dict.fromkeys(("tokens_seen", "token_count", "total_tokens", "dataset_size"), "tokens"),
    **dict.fromkeys(("c", "flop", "compute", "train_flops", "training_flop", "training_flops"), "flops"),
    **dict.fromkeys(("compute_flop", "compute_flops", "total_flops"), "flops"),
    **dict.fromkeys(("final_loss", "val_loss", "eval_loss", "test_loss", "validation_loss", "train_loss"), "loss"),
    **dict.fromkeys(("cross_entropy", "ce_loss", "nll", "loss_nats"), "loss"),
    **{"unique_tokens": "epochs_unique_tokens", "batch_size_tokens": "batch_tokens", "learning_rate": "lr"},
    **{"depth": "n_layers", "width": "d_model", "num_layers": "n_layers", "hidden_size": "d_model"},
    **{"n_steps": "steps", "num_steps": "steps", "experts": "n_experts", "num_experts": "n_experts"},
}
"""Headings that other tools write, in lower case with underscores, and the columns that they mean."""

PERPLEXITY, BITS_PER_BYTE, BITS = "perplexity", "bits per byte", "bits per token"

OTHER_LOSSES = {
    **dict.fromkeys(("ppl", "perplexity", "val_ppl", "eval_ppl", "val_perplexity", "eval_perplexity"), PERPLEXITY),
    **dict.fromkeys(("bpb", "bits_per_byte", "val_bpb", "eval_bpb"), BITS_PER_BYTE),
    **dict.fromkeys(("bits_per_token", "bpt", "loss_bits"), BITS),
}
"""Headings of losses in another unit, and the unit."""

FACTORS = {
    **dict.fromkeys(("k", "thousand", "thousands"), 1e3),
    **dict.fromkeys(("m", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "g", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "trillion", "trillions"), 1e12),
}
"""Factors that end a heading or a cell [1]."""

COUNTED = ("n_params", "n_params_alt", "tokens", "epochs_unique_tokens", "batch_tokens", "flops")
"""Columns whose headings and cells may have a factor."""

ALSO = {"n_params": "or flops and tokens", "tokens": "or flops, or steps and batch_tokens"}
ALSO["loss"] = "or perplexity, bits_per_byte"
"""What may stand in place of a required column."""

_CELL = re.compile(r"([0-9.,]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


def meaning(heading: str) -> ColumnHeading:
    """Column, factor and unit that a heading means; any case, blanks and brackets will do."""
    text = heading.strip().lower()
    if text in LOSS_COLUMN:
        return ColumnHeading(text)
    words = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    # `eval/loss` of a logger: what stands before the stroke is a group of its figures.
    words = re.sub(r"^(eval|val|validation|train|test)_(?=(loss|ppl|perplexity|bpb)$)", "", words)
    if words in OTHER_LOSSES:
        return ColumnHeading("loss", unit=OTHER_LOSSES[words])
    name, _, factor = words.rpartition("_")
    for whole, scale in ((words, 1.0), (name, FACTORS.get(factor, 0.0))):
        column = whole if whole in LOSS_COLUMN else OTHER_NAMES.get(whole, "")
        if column and scale and (scale == 1.0 or column in COUNTED):
            return ColumnHeading(column, scale)
    return ColumnHeading(heading.strip())


def meanings(header: Sequence[str]) -> list[ColumnHeading]:
    """Meanings of all headings; a column under its own name leaves other names of it as they are."""
    stated = {heading.strip().lower() for heading in header}
    found = [meaning(heading) for heading in header]
    return [
        ColumnHeading(heading.strip()) if one.column in stated and heading.strip().lower() != one.column else one
        for heading, one in zip(header, found, strict=True)
    ]


def plain_cell(cell: str) -> str:
    """A cell with `7B`, `300 M` or `1.4T` written out; any other as it is."""
    found = _CELL.fullmatch(cell)
    if found is None or found[2].lower() not in FACTORS or found[1].replace(",", "").count(".") > 1:
        return cell
    return f"{float(found[1].replace(',', '')) * FACTORS[found[2].lower()]:.12g}"


def in_nats(values: Float[np.ndarray, " row"], unit: str) -> Float[np.ndarray, " row"]:
    """Losses in nats from another unit [row]."""
    if unit == PERPLEXITY:
        return np.log(values)
    return values * np.log(2.0) if unit else values


def derived(table: AbstractTable) -> tuple[dict[str, np.ndarray], list[str]]:
    """Parameters and tokens where their own cells are empty, and a note on each.

    Returns:
        The columns that changed, nan where a cell stays empty, and the notes.
    """
    params, tokens, flop, steps, batch = map(table.numbers, ("n_params", "tokens", "flops", "steps", "batch_tokens"))
    changes, notes = {}, []
    sources = (
        ("tokens", tokens, steps * batch, "steps times batch_tokens"),
        ("tokens", tokens, flop / (FLOP_PER_PARAM_TOKEN * params), "flops / (6 n_params)"),
        ("n_params", params, flop / (FLOP_PER_PARAM_TOKEN * tokens), "flops / (6 tokens)"),
    )
    for name, stated, other, told in sources:
        filled = ~np.isfinite(changes.get(name, stated)) & np.isfinite(other)
        if filled.any():
            changes[name] = np.where(filled, other, changes.get(name, stated))
            notes.append(f"{name} of {int(filled.sum())} rows are {told}: no cell states them")
    return changes, notes


def unit_notes(unit: str) -> list[str]:
    """What a loss in another unit was taken for."""
    if not unit:
        return []
    told = "the logarithms of the perplexities" if unit == PERPLEXITY else f"{unit} times ln 2"
    per = "byte" if unit == BITS_PER_BYTE else "token"
    return [f"losses are {told}: nat per {per}, as are predictions"]
