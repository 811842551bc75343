"""Integer designs: models and plans that a framework can run, near any continuous design."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale.base.arrays import divisors, number, with_fields
from jaxscale.designs.whole_sizes import TILE, at_whole_sizes
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxation import INTERLEAVING
from jaxscale.plans.rules import obeys


class Candidate(NamedTuple):
    """Sizes and degrees of a design, sizes before rounding; `round_candidates` gives the nearest valid design.

    Attributes:
        d_model: width [1].
        n_layers: depth [1].
        mlp_ratio: MLP width over model width, relative to the template's [1].
        batch: sequences of a step [sequence].
        micro_batch_size: [sequence].
        tp: tensor-parallel degree, exact [1].
        cp: context-parallel degree, exact [1].
        pp: stages, exact [1].
        vpp: virtual stages per chip, exact [1].
        ep: expert-parallel degree, exact [1].
        zero_stage: 1 or 3.
        recompute: whether whole layers are recomputed.
    """

    d_model: float
    n_layers: float
    mlp_ratio: float
    batch: float
    micro_batch_size: float
    tp: int
    cp: int
    pp: int
    vpp: int
    ep: int
    zero_stage: int
    recompute: bool


def possible(
    candidates: Sequence[Candidate], template: Transformer, n_chips: int, domain_size: float
) -> list[Candidate]:
    """Candidates whose degrees obey the rules on chips in scale-up domains of a size."""
    if not candidates:
        return []
    c = _columns(candidates)
    degrees = {name: c[name] for name in ("tp", "cp", "pp", "vpp", "ep", "zero_stage")}
    degrees["dp"] = np.maximum(n_chips // (c["tp"] * c["cp"] * c["pp"]), 1)
    # Heads, widths, layers and batch are rounded later, to what the degrees divide.
    kept = {"seq_len": number(template.seq_len), "n_experts": number(template.n_experts)}
    valid = obeys({**degrees, **kept, "n_chips": n_chips, "domain_size": domain_size})
    return [candidate for candidate, is_valid in zip(candidates, valid, strict=True) if is_valid]


def round_candidates(
    candidates: Sequence[Candidate], template: Transformer, n_chips: int, head_dim: int
) -> tuple[Transformer, Plan]:
    """Whole models and plans nearest to possible candidates.

    Args:
        candidates: degrees are kept, sizes are rounded to multiples that the degrees divide.
        template: proportions that are kept.
        n_chips: all of which the plans use [1].
        head_dim: width of a head [1].

    Returns:
        Models and plans of whole numbers, stacked [candidate].
    """
    c = _columns(candidates)
    dp = n_chips // (c["tp"] * c["cp"] * c["pp"])
    d_model = _multiple(c["d_model"], np.lcm(TILE, head_dim * c["tp"]))
    n_layers = _multiple(c["n_layers"], c["pp"] * c["vpp"])
    micro_batch = np.maximum(np.round(c["micro_batch_size"]), 1.0)
    n_microbatches = _multiple(c["batch"] / (micro_batch * dp), np.where(c["vpp"] > 1, c["pp"], 1))
    models = _shapes(template, d_model, n_layers, c["mlp_ratio"], head_dim, c["tp"])
    degrees: dict[str, Any] = {name: c[name] for name in ("tp", "pp", "vpp", "cp", "ep", "zero_stage")}
    degrees |= {"dp": dp, "shard_group": dp, "micro_batch_size": micro_batch, "n_microbatches": n_microbatches}
    degrees |= {"sequence_parallel": c["tp"] > 1, "recompute_full": c["recompute"]}
    plans = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf, float)[None], len(candidates), axis=0), Plan())
    return models, with_fields(plans, {name: np.asarray(value, float) for name, value in degrees.items()})


def row_of(stacked: Any, row: int) -> Any:
    """Module of plain numbers in one row of a stacked module."""
    return jax.tree.map(lambda leaf: float(leaf[row]) if leaf.ndim == 1 else leaf[row], stacked)


def _columns(candidates: Sequence[Candidate]) -> dict[str, np.ndarray]:
    floats = np.asarray(candidates, float).T
    whole = ("tp", "cp", "pp", "vpp", "ep", "zero_stage", "recompute")
    return {
        name: column.astype(np.int64) if name in whole else column
        for name, column in zip(Candidate._fields, floats, strict=True)
    }


def _shapes(
    template: Transformer, d_model: np.ndarray, n_layers: np.ndarray, ratio: np.ndarray, head_dim: int, tp: np.ndarray
) -> Transformer:
    """The template at whole widths and depths, with MLP widths in whole tiles and key/value heads that divide."""
    tile = np.lcm(TILE, tp)
    wider = d_model / number(template.d_model)
    changes = {}
    for name in ("d_ff", "d_ff_expert"):
        changes[name] = _multiple(number(getattr(template, name)) * wider * ratio, tile)
    for name in ("moe_latent_size", "ssm_d_inner"):
        changes[name] = tile * np.round(number(getattr(template, name)) * wider / tile)
    return with_fields(at_whole_sizes(template, d_model, n_layers, head_dim, tp), changes)


def neighbouring(candidate: Candidate, n_chips: int, template: Transformer) -> list[Candidate]:
    """Candidates one or two moves away: every degree to the next divisors, every size up and down.

    Args:
        candidate: where to look around.
        n_chips: chips, whose divisors are the degrees [1].
        template: for the number of experts.

    Returns:
        Singles and pairs of moves.
    """
    singles = _moves(candidate, n_chips, round(number(template.n_experts)))
    pairs = [candidate._replace(**{**first, **second}) for i, first in enumerate(singles) for second in singles[:i]]
    return [*(candidate._replace(**move) for move in singles), *pairs]


def _moves(candidate: Candidate, n_chips: int, experts: int) -> list[dict[str, Any]]:
    degrees = divisors(n_chips)
    around = {"tp": degrees, "cp": degrees, "pp": degrees, "ep": divisors(experts), "vpp": np.asarray(INTERLEAVING)}
    moves: list[dict[str, Any]] = []
    for name, options in around.items():
        current = getattr(candidate, name)
        moves += [{name: int(value)} for value in (*options[options < current][-1:], *options[options > current][:1])]
    width = TILE * max(round(candidate.d_model / TILE / 16.0), 1)
    moves += [{"d_model": candidate.d_model + width}, {"d_model": max(candidate.d_model - width, float(TILE))}]
    deeper = max(candidate.pp * candidate.vpp, 1)
    moves += [{"n_layers": candidate.n_layers + deeper}, {"n_layers": max(candidate.n_layers - deeper, float(deeper))}]
    for name, factor in (("mlp_ratio", 1.06), ("batch", 1.06), ("batch", 1.5), ("micro_batch_size", 2.0)):
        moves += [{name: getattr(candidate, name) * factor}, {name: getattr(candidate, name) / factor}]
    return [*moves, {"zero_stage": 4 - candidate.zero_stage}, {"recompute": not candidate.recompute}]


def nearest_degrees(wanted: float, whole: int, count: int) -> list[int]:
    """Divisors of a number nearest to a wanted degree, in logarithms."""
    options = divisors(whole)
    order = np.argsort(np.abs(np.log(options) - math.log(max(wanted, 1.0))), kind="stable")
    return [int(value) for value in options[order[:count]]]


def _multiple(wanted: np.ndarray, step: np.ndarray) -> np.ndarray:
    return step * np.maximum(np.round(wanted / step), 1.0)
