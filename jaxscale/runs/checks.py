"""Checks that involve several cells of a row: degrees against chips, microbatches against the batch, heads, experts."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from jaxscale.base.arrays import stated_or
from jaxscale.base.domains import Broken, Relation
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import customary
from jaxscale.plans.plan import END_STAGES
from jaxscale.runs.schema import Runs
from jaxscale.runs.shapes import Shapes, shapes_of
from jaxscale.tables.categorical import Categorical
from jaxscale.tables.cells import SHAPE, ModelLookup, translate
from jaxscale.tables.schema import Check

Numbers = Mapping[str, np.ndarray]
DEGREES = ("dp", "tp", "pp", "cp")


def row_checks(runs: Runs, lookup: ModelLookup) -> list[Check]:
    """Checks of every row of a table, in the order of their messages.

    Args:
        runs: the table.
        lookup: fields of a catalogue model by name, None for an unknown name.
    """
    shapes = shapes_of(runs, lookup)
    checks = [_degree_check(runs), *_batch_checks(runs), *shape_checks(shapes)]
    return [*checks, *_adapter_checks(runs), _stage_check(runs, shapes)]


def degrees(runs: Runs) -> dict[str, np.ndarray]:
    """Degrees dp, tp, pp and cp of every row, nan where the cells leave the degrees open.

    An empty cp is 1. An empty degree follows from the stated degrees and n_gpus; if only pp and dp are empty, pp is 1.

    Args:
        runs: the table.

    Returns:
        Degrees whose product is n_gpus [1], [degree][row].
    """
    chips, cp = runs.numbers("n_gpus"), stated_or(runs.numbers("cp"), 1.0)
    dp, tp, pp = (runs.numbers(name) for name in ("dp", "tp", "pp"))
    no_dp, no_tp, no_pp = (np.isnan(degree) for degree in (dp, tp, pp))
    # tp = n / (dp pp cp), with pp = 1 where stated nowhere.
    whole_tp = np.where(no_tp, np.where(no_pp, 1.0, chips / (dp * pp * cp)), tp)
    # pp = n / (dp tp cp)
    whole_pp = np.where(no_pp, np.where(no_tp | no_dp, 1.0, chips / (dp * tp * cp)), pp)
    # dp = n / (tp pp cp)
    whole_dp = np.where(no_dp, chips / (whole_tp * whole_pp * cp), dp)
    stated = {"dp": whole_dp, "tp": whole_tp, "pp": whole_pp, "cp": cp}
    # With tp and dp open, the split is open.
    is_exact = (whole_dp * whole_tp * whole_pp * cp == chips) & ~(no_tp & no_dp)
    for degree in stated.values():
        is_exact &= degree == np.floor(degree)
    return {name: np.where(is_exact, degree, np.nan) for name, degree in stated.items()}


def _degree_check(runs: Runs) -> Check:
    """Check of n_gpus = dp tp pp cp; where a degree is open, the stated degrees must divide n_gpus."""
    chips = runs.numbers("n_gpus")
    given = {name: runs.numbers(name) for name in DEGREES}
    dp, tp, pp, cp = (stated_or(degree, 1.0) for degree in given.values())
    product = dp * tp * pp * cp
    is_complete = ~np.isnan(given["dp"] * given["tp"] * given["pp"])
    is_consistent = np.where(is_complete, product == chips, chips % product == 0)

    def problem(row: int) -> str:
        stated = {name: degree[row] for name, degree in given.items() if not np.isnan(degree[row])}
        formula = f"{'*'.join(stated)} = {'*'.join(f'{degree:.15g}' for degree in stated.values())}"
        formula += f" = {product[row]:.15g}" if len(stated) > 1 else ""
        rule = "equal to n_gpus" if is_complete[row] else "that divides n_gpus"
        return f"column 'n_gpus' = '{chips[row]:.15g}': contradicts {formula}; expected a product of degrees {rule}"

    return Check(~is_consistent & ~np.isnan(chips), problem)


def _batch_checks(runs: Runs) -> list[Check]:
    """B = b m dp; where b dp does not divide B, frameworks round m up or down."""
    dp, batch = degrees(runs)["dp"], runs.numbers("global_batch_size_seqs")
    micro, count = runs.numbers("micro_batch_size"), runs.numbers("n_microbatches")
    # b m = B / dp
    share = batch / dp
    least = stated_or(micro, stated_or(count, 1.0))
    is_short = share < least
    slots = share / micro
    # Frameworks round a short last microbatch up or down.
    is_other = ~((count == np.floor(slots)) | (count == np.ceil(slots))) & ~np.isnan(slots) & ~np.isnan(count)
    candidates = np.flatnonzero(is_other & ~is_short)
    quoted = quotes_count(count[candidates], runs.categories("notes").take(candidates))
    contradicts = np.zeros(len(runs), dtype=bool)
    contradicts[candidates[~quoted]] = True

    def short(row: int) -> str:
        return (
            f"column 'global_batch_size_seqs' = '{batch[row]:.15g}': less than one microbatch of "
            f"{least[row]:.15g} for each of dp = {dp[row]:.15g} replicas; expected at least {least[row] * dp[row]:.15g}"
        )

    def contradiction(row: int) -> str:
        return (
            f"column 'n_microbatches' = '{count[row]:.15g}': contradicts global_batch_size_seqs / (micro_batch_size * "
            f"dp) = {batch[row]:.15g} / ({micro[row]:.15g} * {dp[row]:.15g}); expected {slots[row]:.6g}"
        )

    return [Check(is_short, short), Check(contradicts, contradiction)]


def quotes_count(counts: np.ndarray, notes: Categorical) -> np.ndarray:
    """Whether the notes of a row quote n_microbatches from the source (`stated GA=32`).

    Some sources print wrong accumulation counts. A row with such a quote is kept, with n_microbatches from its batch.

    Args:
        counts: n_microbatches [1], [row].
        notes: notes of the rows.

    Returns:
        The answer for each row.
    """
    return np.asarray([_quotes(count, notes[row]) for row, count in enumerate(counts.tolist())], dtype=bool)


def _quotes(count: float, note: str | None) -> bool:
    words = (note or "").replace(";", " ").split()
    return any(
        first == "stated" and second in (f"GA={count:.15g}", f"n_microbatches={count:.15g}")
        for first, second in zip(words, words[1:], strict=False)
    )


def _stage_check(runs: Runs, shapes: Shapes) -> Check:
    """The layers of both ends of a pipeline are there."""
    layers = shapes.column("n_layers")
    ends = sum((np.nan_to_num(runs.numbers(name)) for name in END_STAGES), start=np.zeros(len(layers)))
    return Check(
        (ends > layers) & (ends > 0.0),
        lambda row: (
            f"columns {' and '.join(map(repr, END_STAGES))} name {ends[row]:g} layers; "
            f"expected at most n_layers = {layers[row]:g}"
        ),
    )


def _adapter_checks(runs: Runs) -> list[Check]:
    """Checks of adapters: a stated adapter has a rank, and QLoRA has narrow frozen weights."""
    words = runs.categories("adapter").map(lambda word: word and translate("adapter", str(word)))
    weight, is_none = runs.numbers("weight_bytes"), words.matches(lambda word: word == "none")
    ranked = np.nan_to_num(runs.numbers("lora_rank")) > 0.0
    # Adapters of QLoRA lie beside weights of at most 8 bits.
    is_wide = words.matches(lambda word: word == "qlora") & (np.nan_to_num(weight) > 1.0)
    return [
        Check(
            is_none & (ranked | ~runs.categories("lora_targets").matches(lambda word: word is None)),
            lambda row: "column 'adapter' = 'none': contradicts lora_rank or lora_targets; expected lora or qlora",
        ),
        Check(
            is_wide,
            lambda row: (
                f"column 'weight_bytes' = '{weight[row]:g}': contradicts adapter = qlora; expected at most 1, or lora"
            ),
        ),
    ]


def shape_checks(shapes: Shapes) -> list[Check]:
    """Checks of bounds and relations of model shapes, for rows with a shape.

    Args:
        shapes: shapes of the rows, from cells, files and the catalogue.
    """
    stated = shapes.arguments
    # Rows without a shape get a placeholder, and no problem is told.
    missing = np.any([np.isnan(stated[name]) for name in SHAPE], axis=0)
    numbers = customary({name: np.where(missing, 1.0, column) for name, column in stated.items()}, len(missing))
    width = stated_or(stated["head_dim"], np.where(missing, 1.0, numbers["head_dim"]))
    whole = Relation(
        ("n_heads", "d_model", "head_dim"),
        lambda heads, d, width: np.mod(width, 1.0) == 0.0,
        lambda heads, d, width: f"does not divide d_model = {d:.15g}; expected a divisor of it, or a stated head_dim",
        "",
    )
    domain = replace(MODEL, relations=(whole, *MODEL.relations))
    told = ~missing
    checks = []
    for broken in domain.broken({**numbers, "head_dim": width}):
        # One problem of a shape is told at a time.
        rows, told = broken.rows & told, told & ~broken.rows
        checks.append(Check(rows[shapes.codes], partial(_shape_problem, broken, numbers[broken.name], shapes.codes)))
    return checks


def _shape_problem(broken: Broken, values: np.ndarray, codes: np.ndarray, row: int) -> str:
    """Error of the shape of a row."""
    shape = int(codes[row])
    return f"column {broken.name!r} = '{values[shape]:.15g}': {broken.problem(shape)}"
