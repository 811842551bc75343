"""Models and plans along the curves of the page, stacked for evaluation in one compiled call."""

from typing import NamedTuple

import jax
import numpy as np

from jaxscale.base.arrays import divisors, number, with_fields
from jaxscale.designs.whole_sizes import whole_shapes
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan

N_POINTS = 24
"""Points per curve; shorter curves repeat the last point, so that one program serves all states [point]."""

SPAN = 3.0
"""Largest ratio of widths and depths to those of the model, in each direction [1]."""


class CurveRows(NamedTuple):
    """Rows of one call: the state, then the curves of the state.

    Attributes:
        models: stacked models [row].
        plans: stacked plans [row].
        n_chips: number of chips [1], [row].
        counts: number of distinct points of the curves over chips, widths and depths.
    """

    models: Transformer
    plans: Plan
    n_chips: np.ndarray
    counts: tuple[int, int, int]

    def curve(self, index: int) -> slice:
        """Rows of a curve: 0 over chips, 1 over widths, 2 over depths."""
        start = 1 + index * N_POINTS
        return slice(start, start + self.counts[index])


def page_rows(template: Transformer, plan: Plan, width: float, depth: float) -> CurveRows:
    """Rows of a state.

    Args:
        template: model without factors.
        plan: plan of all rows; only the data-parallel degree changes along the curve over chips.
        width: factor on the width [1].
        depth: factor on the depth [1].
    """
    tp, chunk = round(number(plan.tp)), round(number(plan.pp * plan.vpp))
    heads, layers = number(template.n_heads), number(template.n_layers)
    here = (_nearest(heads, width, tp), _nearest(layers, depth, chunk))
    wide, deep = _multiples(here[0], tp), _multiples(here[1], chunk)
    # The state, then N_POINTS rows each over chips, widths and depths.
    sizes = [here] + [here] * N_POINTS + [(size, here[1]) for size in _filled(wide)]
    sizes += [(here[0], size) for size in _filled(deep)]
    all_heads, all_layers = np.asarray(sizes, float).T
    models = resized(template, all_heads, all_layers, tp)
    plans, n_chips, n_plans = _plans(plan)
    return CurveRows(models, plans, n_chips, (n_plans, len(wide), len(deep)))


def resized(template: Transformer, heads: np.ndarray, layers: np.ndarray, tp: int) -> Transformer:
    """Models with changed numbers of heads and layers, widths in proportion to the heads.

    Args:
        template: model whose proportions are kept; unchanged numbers give the template.
        heads: H [row].
        layers: L [row].
        tp: tensor-parallel degree, which divides the heads [1].

    Returns:
        Stacked models [row].
    """
    per_head = number(template.d_model) / number(template.n_heads)
    fixed = (np.full_like(heads, number(template.head_dim)), np.full(len(heads), tp))
    # Whole groups of tp heads.
    models = whole_shapes(template, per_head * heads, layers, *fixed, head_unit=1)
    # Whole sizes may round the template: unchanged rows keep the template.
    same = (heads == number(template.n_heads)) & (layers == number(template.n_layers))
    return jax.tree.map(lambda leaf, own: np.where(same, number(own), leaf), models, template)


def _nearest(size: float, factor: float, unit: int) -> float:
    """Multiple of a unit nearest to `factor * size`; the size where the factor is 1."""
    return size if factor == 1.0 else float(unit * max(round(size * factor / unit), 1))


def _multiples(size: float, unit: int) -> np.ndarray:
    """Multiples of a unit around a size, including the size [1], [point]."""
    wanted = size * np.geomspace(1.0 / SPAN, SPAN, N_POINTS - 1)
    return np.unique(np.append(unit * np.maximum(np.round(wanted / unit), 1.0), size))


def _filled(points: np.ndarray) -> np.ndarray:
    """Points of a curve, padded with the last point."""
    return np.append(points, np.repeat(points[-1:], N_POINTS - len(points)))


def _plans(plan: Plan) -> tuple[Plan, np.ndarray, int]:
    """Plans of all rows (constant except for the data-parallel degree along the curve over chips), with chip counts."""
    dp, micro = number(plan.dp), number(plan.micro_batch_size)
    # Replicas and microbatches share the batch: dp divides dp m.
    replicas = divisors(round(dp * number(plan.n_microbatches)))
    # Experts are spread over whole groups of data-, context- and tensor-parallel chips.
    replicas = replicas[(replicas * round(number(plan.cp * plan.tp))) % round(number(plan.ep)) == 0]
    if len(replicas) > N_POINTS:
        # Nearest in ratio to the replicas of the plan.
        order = np.argsort(np.abs(np.log(replicas / dp)), kind="stable")
        replicas = np.sort(replicas[order[:N_POINTS]])
    degrees = np.concatenate([[dp], _filled(replicas.astype(float)), np.full(2 * N_POINTS, dp)])
    batch = number(plan.global_batch_size_seqs)
    # A group of all replicas grows along; a smaller group is capped.
    group = np.where(number(plan.shard_group) == dp, degrees, np.minimum(number(plan.shard_group), degrees))
    # B = b m dp
    changes = {"dp": degrees, "n_microbatches": batch / (micro * degrees), "shard_group": group}
    stack = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf, float)[None], len(degrees), axis=0), plan)
    return with_fields(stack, changes), degrees * number(plan.tp * plan.pp * plan.cp), len(replicas)
