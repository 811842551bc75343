"""Integer designs: models and plans that a framework can run, near any continuous wish."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale._arrays import number, with_fields
from jaxscale.designs.shape_lattice import TILE, at_whole_sizes
from jaxscale.plan.plan import Plan
from jaxscale.plan.rules import obeys
from jaxscale.plans.enumerate import divisors
from jaxscale.plans.relaxation import INTERLEAVING
from jaxscale.workload import Transformer


class Wish(NamedTuple):
    """What a design should be like; `realise` turns it into the nearest valid one.

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


def possible(wishes: Sequence[Wish], template: Transformer, n_chips: int, domain_size: float) -> list[Wish]:
    """The wishes whose degrees can be had on chips in domains of a size; their own sizes are rounded later."""
    if not wishes:
        return []
    w = _columns(wishes)
    degrees = {name: w[name] for name in ("tp", "cp", "pp", "vpp", "ep", "zero_stage")}
    degrees["dp"] = np.maximum(n_chips // (w["tp"] * w["cp"] * w["pp"]), 1)
    # Heads, widths, layers and batch of the wishes are rounded to what their degrees divide.
    kept = {"seq_len": number(template.seq_len), "n_experts": number(template.n_experts)}
    valid = obeys({**degrees, **kept, "n_chips": n_chips, "domain_size": domain_size})
    return [wish for wish, is_valid in zip(wishes, valid, strict=True) if is_valid]


def realise(wishes: Sequence[Wish], template: Transformer, n_chips: int, head_dim: int) -> tuple[Transformer, Plan]:
    """The designs nearest to possible wishes.

    Args:
        wishes: degrees are taken as they are, sizes are rounded to what the degrees divide.
        template: proportions that are kept.
        n_chips: all of which the plans use [1].
        head_dim: width of a head [1].

    Returns:
        Models and plans of whole numbers, stacked [wish].
    """
    w = _columns(wishes)
    dp = n_chips // (w["tp"] * w["cp"] * w["pp"])
    d_model = _multiple(w["d_model"], np.lcm(TILE, head_dim * w["tp"]))
    n_layers = _multiple(w["n_layers"], w["pp"] * w["vpp"])
    micro_batch = np.maximum(np.round(w["micro_batch_size"]), 1.0)
    n_microbatches = _multiple(w["batch"] / (micro_batch * dp), np.where(w["vpp"] > 1, w["pp"], 1))
    models = _shapes(template, d_model, n_layers, w["mlp_ratio"], head_dim, w["tp"])
    degrees: dict[str, Any] = {name: w[name] for name in ("tp", "pp", "vpp", "cp", "ep", "zero_stage")}
    degrees |= {"dp": dp, "shard_group": dp, "micro_batch_size": micro_batch, "n_microbatches": n_microbatches}
    degrees |= {"sequence_parallel": w["tp"] > 1, "recompute_full": w["recompute"]}
    plans = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf, float)[None], len(wishes), axis=0), Plan())
    return models, with_fields(plans, {name: np.asarray(value, float) for name, value in degrees.items()})


def pick(stacked: Any, row: int) -> Any:
    """One module of plain numbers out of stacked ones."""
    return jax.tree.map(lambda leaf: float(leaf[row]) if leaf.ndim == 1 else leaf[row], stacked)


def _columns(wishes: Sequence[Wish]) -> dict[str, np.ndarray]:
    floats = np.asarray(wishes, float).T
    whole = ("tp", "cp", "pp", "vpp", "ep", "zero_stage", "recompute")
    return {
        name: column.astype(np.int64) if name in whole else column
        for name, column in zip(Wish._fields, floats, strict=True)
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


def neighbours(wish: Wish, n_chips: int, template: Transformer) -> list[Wish]:
    """Wishes one or two moves away, every degree to its next divisors and every size up and down.

    Args:
        wish: where to look around.
        n_chips: its divisors are the degrees.
        template: for the number of experts.

    Returns:
        Singles and pairs of moves.
    """
    singles = _moves(wish, n_chips, round(number(template.n_experts)))
    pairs = [wish._replace(**{**first, **second}) for i, first in enumerate(singles) for second in singles[:i]]
    return [*(wish._replace(**move) for move in singles), *pairs]


def _moves(wish: Wish, n_chips: int, experts: int) -> list[dict[str, Any]]:
    degrees = divisors(n_chips)
    around = {"tp": degrees, "cp": degrees, "pp": degrees, "ep": divisors(experts), "vpp": np.asarray(INTERLEAVING)}
    moves: list[dict[str, Any]] = []
    for name, options in around.items():
        current = getattr(wish, name)
        moves += [{name: int(value)} for value in (*options[options < current][-1:], *options[options > current][:1])]
    width = TILE * max(round(wish.d_model / TILE / 16.0), 1)
    moves += [{"d_model": wish.d_model + width}, {"d_model": max(wish.d_model - width, float(TILE))}]
    deeper = max(wish.pp * wish.vpp, 1)
    moves += [{"n_layers": wish.n_layers + deeper}, {"n_layers": max(wish.n_layers - deeper, float(deeper))}]
    for name, factor in (("mlp_ratio", 1.06), ("batch", 1.06), ("batch", 1.5), ("micro_batch_size", 2.0)):
        moves += [{name: getattr(wish, name) * factor}, {name: getattr(wish, name) / factor}]
    return [*moves, {"zero_stage": 4 - wish.zero_stage}, {"recompute": not wish.recompute}]


def nearest_degrees(wanted: float, whole: int, count: int) -> list[int]:
    """Divisors of a number nearest to a wanted degree, in logarithms."""
    options = divisors(whole)
    order = np.argsort(np.abs(np.log(options) - math.log(max(wanted, 1.0))), kind="stable")
    return [int(value) for value in options[order[:count]]]


def _multiple(wanted: np.ndarray, step: np.ndarray) -> np.ndarray:
    return step * np.maximum(np.round(wanted / step), 1.0)
