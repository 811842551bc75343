"""Integer designs: a model and a plan that a framework can run, near any continuous wish."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxscale.choose._host import number
from jaxscale.choose.enumerate import divisors
from jaxscale.choose.relaxed import with_fields
from jaxscale.choose.shape_lattice import TILE
from jaxscale.plan import Plan
from jaxscale.workload import Transformer

INTERLEAVING = (1, 2, 3, 4, 6, 8)
"""Virtual stages per chip that are tried [1]."""


@dataclass(frozen=True)
class Wish:
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


def realise(wish: Wish, template: Transformer, n_chips: int, head_dim: int) -> tuple[Transformer, Plan] | None:
    """The valid design nearest to a wish; None where its degrees cannot be had.

    Args:
        wish: degrees are taken as they are, sizes are rounded to what the degrees divide.
        template: proportions that are kept.
        n_chips: all of which the plan uses [1].
        head_dim: width of a head [1].

    Returns:
        Model and plan of whole numbers.
    """
    taken = wish.tp * wish.cp * wish.pp
    if n_chips % taken or (wish.zero_stage > 1 and wish.pp > 1) or (wish.vpp > 1 and wish.pp == 1):
        return None
    dp, experts = n_chips // taken, round(number(template.n_experts))
    if experts % wish.ep or (dp * wish.cp * wish.tp) % wish.ep or (wish.cp > 1 and template.seq_len % (2 * wish.cp)):
        return None
    d_model = _multiple(wish.d_model, math.lcm(TILE, head_dim * wish.tp))
    n_layers = _multiple(wish.n_layers, wish.pp * wish.vpp)
    micro_batch = max(round(wish.micro_batch_size), 1)
    per_replica = wish.batch / (micro_batch * dp)
    n_microbatches = _multiple(per_replica, wish.pp if wish.vpp > 1 else 1)
    model = shape(template, d_model, n_layers, wish.mlp_ratio, head_dim, math.lcm(TILE, wish.tp))
    plan = Plan(
        dp=dp,
        tp=wish.tp,
        pp=wish.pp,
        vpp=wish.vpp,
        cp=wish.cp,
        ep=wish.ep,
        zero_stage=wish.zero_stage,
        micro_batch_size=micro_batch,
        n_microbatches=n_microbatches,
        sequence_parallel=wish.tp > 1,
        recompute="full" if wish.recompute else "none",
        schedule="interleaved" if wish.vpp > 1 else "1f1b",
    )
    return model, plan


def shape(
    template: Transformer, d_model: int, n_layers: int, mlp_ratio: float, head_dim: int, tile: int
) -> Transformer:
    """The template at whole width and depth, with MLP widths in whole tiles and key/value heads that divide."""
    wider, deeper = d_model / number(template.d_model), n_layers / number(template.n_layers)
    heads, scale = d_model // head_dim, head_dim / number(template.head_dim)
    changes: dict[str, float] = {"d_model": d_model, "n_layers": n_layers, "n_heads": heads, "head_dim": head_dim}
    changes["n_kv_heads"] = _nearest(divisors(heads), heads * number(template.n_kv_heads / template.n_heads))
    for name in ("v_head_dim", "rope_head_dim"):
        changes[name] = number(getattr(template, name)) * scale
    for name in ("d_ff", "d_ff_expert"):
        changes[name] = _multiple(number(getattr(template, name)) * wider * mlp_ratio, tile)
    changes["ssm_d_inner"] = tile * round(number(template.ssm_d_inner) * wider / tile)
    for name in ("n_dense_layers", "n_attention_layers", "n_mlp_layers", "n_ssm_layers"):
        changes[name] = round(number(getattr(template, name)) * deeper)
    return with_fields(template, {name: float(value) for name, value in changes.items()})


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
    pairs = [replace(wish, **{**first, **second}) for i, first in enumerate(singles) for second in singles[:i]]
    return [*(replace(wish, **move) for move in singles), *pairs]


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


def _multiple(wanted: float, step: int) -> int:
    return step * max(round(wanted / step), 1)


def _nearest(options: Sequence[float] | np.ndarray, wanted: float) -> float:
    return float(min(options, key=lambda option: abs(math.log(option / wanted))))
