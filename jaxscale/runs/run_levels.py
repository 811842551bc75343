"""Levels of the rows of a table: software, chip, model and settings with separate effects in a fit."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.calibration.levels import COMPANY, GUESSES, NO_LEVEL, Levels
from jaxscale.models.transformer import Transformer
from jaxscale.runs.defaults import EmptyCells, answered_as
from jaxscale.runs.schema import Runs
from jaxscale.runs.shapes import Shapes
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import translate

OF_MODELS = ("mixture", "architecture", "sequences")
"""Kinds of level that follow from the model and its sequence length."""

GUESSED = {
    "activation_recompute": (("activation_recompute", "recompute_modules"), ("activation_recompute",)),
    "optimizer_bytes": (("optimizer_bytes",), ("optimizer_bytes", "wide_weights", "kept_gradients")),
    "adapter_bytes": (("adapter_bytes", "lora_rank"), ("adapter_bytes",)),
    "loss_bytes": (("loss_bytes", "chunked_loss"), ("loss_bytes", "chunked_loss")),
}
"""Facts of memory that a row may leave to a guess: columns that state each, and defaults that say that it is known."""

OF_PLANS = ("local_shape", "recompute", "parallelism")
"""Kinds of level that follow from degrees and recomputation."""


def run_levels(
    runs: Runs,
    empty: EmptyCells,
    shapes: Shapes,
    plan: Mapping[str, np.ndarray],
    recompute: Categorical,
) -> Levels:
    """Levels of complete rows by factor, for which a fit has effects: software, chip, model, plan and settings.

    Args:
        runs: complete rows.
        empty: default values of empty cells.
        shapes: arguments of `Transformer` [row].
        plan: numeric arguments of `Plan` [argument][row].
        recompute: recomputation of each row.
    """
    gpu, release, precision = runs.categories("gpu"), empty.filled("release"), empty.filled("precision")
    sizes = _sizes(shapes)
    columns = {
        "source": together(runs.categories("source"), runs.categories("framework"), empty.default("apart")).map(
            setup_name
        ),
        "framework": runs.categories("framework").map(answered_as),
        "release": release,
        "gpu": gpu,
        "precision": precision.map(lambda word: translate("precisions", str(word))),
        "attention_kernel": runs.categories("attention_kernel"),
        "fused_norm": runs.categories("fused_norm").map(lambda flag: None if flag is None else str(flag).lower()),
        "number_format": precision.map(_number_format),
        # Kernels are tuned for one generation of chips at a time.
        "release_gpu": together(release, gpu).map(lambda pair: f"{pair[0]}/{pair[1]}" if pair[0] else None),
        "mixture": sizes.map(lambda row: _architecture(row) if row[2] > 1.0 else None),
        "architecture": sizes.map(_architecture),
        "local_shape": _local_shape(runs, shapes, plan, recompute),
        "sequences": _argument(shapes, "seq_len").map(_length),
        "recompute": recompute,
        "parallelism": _parallelism(plan),
        "stack": together(runs.categories("source"), runs.categories("framework")).map(setup_name),
        "recipe": empty.default("recipe"),
        "company": company_of(runs),
        "unstated": unstated(runs, empty, (shapes.column("trainable_share") == 0.0) | (plan["lora_rank"] > 0.0)),
        "execution": _launches(runs, empty),
    }
    return _as_levels(columns, len(runs))


def unstated(runs: Runs, empty: EmptyCells, is_frozen: np.ndarray) -> Categorical:
    """Facts about memory that a row leaves unknown, named by the deciding columns; None for none.

    A fact is unknown where neither cell nor framework nor table states a value. Frozen weights have no optimizer state.
    """
    columns = []
    for fact, (cells, defaults) in GUESSED.items():
        told = together(*(runs.categories(name) for name in cells))
        says = told.matches(lambda row: any(cell is not None for cell in row)) | empty.is_known(defaults)
        # Frozen weights have no optimizer state, trained weights no adapters.
        says |= is_frozen if fact == "optimizer_bytes" else ~is_frozen & (fact == "adapter_bytes")
        columns.append(Categorical(says.astype(int), (fact, "")))
    return together(*columns).map(lambda facts: GUESSES.join(fact for fact in facts if fact) or None)


def _launches(runs: Runs, empty: EmptyCells) -> Categorical:
    """Execution mode of each row, as stated or known of its framework; None where unknown."""
    is_guess = runs.categories("execution").matches(lambda word: word is None) & ~empty.is_known(("execution",))
    words = empty.filled("execution").map(lambda word: translate("execution", str(word)))
    return words.where(is_guess, None)


def company_of(runs: Runs) -> Categorical:
    """Level of concurrency of each row: whether collectives run concurrently with kernels, as with several chips."""
    return Categorical((runs.numbers("n_gpus") > 1.0).astype(int), COMPANY)


def _as_levels(columns: Mapping[str, Categorical], n_rows: int) -> Levels:
    codes, names = {}, {}
    for kind, column in columns.items():
        named = list(dict.fromkeys(value for value in column.values if value))
        places = {name: code for code, name in enumerate(named)}
        recode = np.asarray([places.get(value, NO_LEVEL) if value else NO_LEVEL for value in column.values], dtype=int)
        codes[kind], names[kind] = recode[column.codes], tuple(named)
    return Levels(codes, names, n_rows)


def setup_name(parts: tuple[str | None, ...]) -> str | None:
    """Name of a software stack on a system: source, framework and further distinctions."""
    return "/".join(part for part in parts if part) if parts[0] else None


def _number_format(word: Any) -> str:
    """Canonical name of the number format of matmuls, in lower case."""
    word = str(word).lower()
    return translate("number_formats", word) or word


def _argument(shapes: Shapes, name: str) -> Categorical:
    """An argument of the shape of each row."""
    distinct = Categorical.of_numbers(shapes.arguments[name])
    return Categorical(distinct.codes[shapes.codes], distinct.values)


def _sizes(shapes: Shapes) -> Categorical:
    """Width, heads, experts and state-space layers, which decide how well kernels suit the layers of a model."""
    usual = {"d_model": math.nan, "n_heads": math.nan, "n_experts": 1.0, "n_ssm_layers": 0.0}
    columns = [np.where(np.isnan(shapes.arguments[name]), size, shapes.arguments[name]) for name, size in usual.items()]
    distinct = together(*map(Categorical.of_numbers, columns))
    return Categorical(distinct.codes[shapes.codes], distinct.values)


def _architecture(sizes: tuple[float, ...]) -> str:
    return "d{:g} h{:g} e{:g} s{:g}".format(*sizes)


def _local_shape(runs: Runs, shapes: Shapes, plan: Mapping[str, np.ndarray], recompute: Categorical) -> Categorical:
    """Level of the local matmul shape: chip, width, tensor-parallel share and tokens."""
    columns = (
        runs.categories("gpu"),
        _argument(shapes, "d_model"),
        Categorical.of_numbers(plan["tp"]),
        Categorical.of_numbers(plan["micro_batch_size"]),
        runs.categories("seq_len"),
        recompute,
    )
    sizes = together(*columns)
    return sizes.map(lambda row: "{} d{:g} tp{:g} b{:g} s{:g} {}".format(*row))


def model_levels(model: Transformer) -> dict[str, str | None]:
    """Levels of a run that follow from its model, by the factors of `OF_MODELS`: mixture, architecture, sequences."""
    sizes = tuple(number(getattr(model, name)) for name in ("d_model", "n_heads", "n_experts", "n_ssm_layers"))
    architecture = _architecture(sizes)
    return {
        "mixture": architecture if sizes[2] > 1.0 else None,
        "architecture": architecture,
        "sequences": _length(number(model.seq_len)),
    }


def _length(seq_len: float) -> str:
    """Sequence length to the nearest power of two."""
    # Lengths within a factor of sqrt 2 share a level.
    return f"s{2 ** round(math.log2(seq_len))}"


def _parallelism(plan: Mapping[str, np.ndarray]) -> Categorical:
    """The kinds of parallelism beside dp."""
    kinds = ("tp", "pp", "cp", "ep")
    split = together(*(Categorical((plan[kind] > 1.0).astype(int), ("", kind)) for kind in kinds))
    return split.map(lambda row: " ".join(kind for kind in row if kind) or "dp")
