"""Checks that need several cells of a row: degrees against chips, microbatches against the batch, experts."""

import math
from collections.abc import Mapping

from jaxscale.runs.schema import Value

Values = Mapping[str, Value | int]


def number(values: Values, name: str) -> float | None:
    """Value of a numeric column, None where empty."""
    value = values.get(name)
    return None if value is None else float(value)


def degrees(values: Values) -> dict[str, float] | None:
    """The degrees dp, tp, pp and cp of a row, or None where its cells leave them open.

    An empty cp is 1. An empty degree follows from the others and n_gpus; where only pp and dp are empty, pp is 1.

    Args:
        values: cells of a row.

    Returns:
        Degrees [1] whose product is n_gpus.
    """
    chips, cp = number(values, "n_gpus"), number(values, "cp") or 1.0
    dp, tp, pp = (number(values, name) for name in ("dp", "tp", "pp"))
    if chips is None or (tp is None and dp is None):
        return None
    if tp is None and pp is None:
        tp = pp = 1.0
    elif pp is None:
        pp = 1.0 if dp is None or tp is None else chips / (dp * tp * cp)
    elif tp is None and dp is not None:
        tp = chips / (dp * pp * cp)
    if tp is None:
        return None
    dp = dp or chips / (tp * pp * cp)
    found = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    exact = math.prod(found.values()) == chips and all(degree == int(degree) for degree in found.values())
    return found if exact else None


def row_problems(values: Values) -> list[str]:
    """Contradictions within a row whose cells are each valid.

    Args:
        values: cells of the row, and what its catalogue model fills.

    Returns:
        One text for each contradiction: column, value, what would be valid.
    """
    checks = (_degree_problem, _batch_problem, _shape_problem)
    return [problem for check in checks if (problem := check(values))]


def _degree_problem(values: Values) -> str:
    """n_gpus = dp tp pp cp; the degrees that are given must divide n_gpus where one is open."""
    chips = number(values, "n_gpus")
    given = {name: degree for name in ("dp", "tp", "pp", "cp") if (degree := number(values, name)) is not None}
    if chips is None or not given:
        return ""
    product = math.prod(given.values())
    if all(name in given for name in ("dp", "tp", "pp")):
        consistent, rule = product == chips, "equal to n_gpus"
    else:
        consistent, rule = chips % product == 0, "that divides n_gpus"
    if consistent:
        return ""
    formula = f"{'*'.join(given)} = {'*'.join(f'{degree:.15g}' for degree in given.values())}"
    formula += f" = {product:.15g}" if len(given) > 1 else ""
    return f"column 'n_gpus' = '{chips:.15g}': contradicts {formula}; expected a product of degrees {rule}"


def _batch_problem(values: Values) -> str:
    """B = b m dp; where b dp does not divide B, frameworks round m up or down."""
    known, batch = degrees(values), number(values, "global_batch_size_seqs")
    if known is None or batch is None:
        return ""
    micro, count = number(values, "micro_batch_size"), number(values, "n_microbatches")
    share = batch / known["dp"]
    if share < (least := (micro or 1.0) * (count or 1.0 if micro is None else 1.0)):
        return (
            f"column 'global_batch_size_seqs' = '{batch:.15g}': less than one microbatch for each of dp = "
            f"{known['dp']:.15g} replicas; expected at least {least * known['dp']:.15g}"
        )
    if micro is None or count is None or count in (math.floor(share / micro), math.ceil(share / micro)):
        return ""
    if is_flagged(values):
        return ""
    return (
        f"column 'n_microbatches' = '{count:.15g}': contradicts global_batch_size_seqs / (micro_batch_size * dp) = "
        f"{batch:.15g} / ({micro:.15g} * {known['dp']:.15g}); expected {share / micro:.6g}"
    )


def is_flagged(values: Values) -> bool:
    """Whether the notes of a row quote its n_microbatches as the source's own figure (`stated GA=32`).

    Sources print wrong accumulation counts now and then. A row that says so is kept, and its batch decides.
    """
    count = number(values, "n_microbatches")
    words = str(values.get("notes", "")).replace(";", " ").split()
    return count is not None and any(
        first == "stated" and second in (f"GA={count:.15g}", f"n_microbatches={count:.15g}")
        for first, second in zip(words, words[1:], strict=False)
    )


def _shape_problem(values: Values) -> str:
    """Key/value heads divide query heads; no token sees more experts than there are."""
    heads, kv_heads = number(values, "n_heads"), number(values, "n_kv_heads")
    if heads and kv_heads and heads % kv_heads:
        return f"column 'n_kv_heads' = '{kv_heads:.15g}': does not divide n_heads; expected a divisor of {heads:.15g}"
    experts, top_k = number(values, "n_experts") or 1.0, number(values, "moe_top_k")
    if top_k and top_k > experts:
        return f"column 'moe_top_k' = '{top_k:.15g}': more than n_experts; expected at most {experts:.15g}"
    return ""
