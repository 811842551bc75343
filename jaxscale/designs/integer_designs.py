"""Integer designs: practical model sizes and batches on a lattice, under plans that a framework can run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxscale.base.arrays import divisors, number, with_columns
from jaxscale.designs.quantities import HIGHEST, LOWEST, WIDTH_FIELDS, Design, DesignProblem, head_share
from jaxscale.models.transformer import LAYER_SHARES, Transformer
from jaxscale.plans.enumerate import FIELDS, PlanSpace, within_domains
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import find_plans
from jaxscale.plans.rules import BATCH_RULE, model_columns, obeys, shares_key_values
from jaxscale.plans.score import PlanTask

TILE = 128
"""Unit of widths: the tile of matmul kernels (NVIDIA, Matrix Multiplication Background, 2023) [1]."""

HEAD_WIDTHS = (64, 96, 128)
"""Widths of a head in published models, all with kernels [1]."""

HEADS = 8
"""Unit of the number of query heads: the chips of a node, over which tensor parallelism splits the heads [1]."""

KEY_VALUE_HEADS = (4, 8, 16)
"""Alternative numbers of key/value heads, if the template's number does not suit the chips [1]."""


def width_step(template: Transformer, head_dim: np.ndarray, tp: np.ndarray) -> np.ndarray:
    """Step between model widths: whole tiles, and whole groups of heads if the heads fill the width [1], [shape].

    Args:
        template: model with the share of the heads in the width.
        head_dim: width of a head, integer [shape].
        tp: tensor-parallel degrees [shape].
    """
    if head_share(template) != 1.0:
        return np.full(np.broadcast(head_dim, tp).shape, 2 * TILE)
    return np.lcm(TILE, np.asarray(head_dim, int) * np.lcm(HEADS, np.asarray(tp, int)))


def whole_shapes(
    template: Transformer,
    d_model: np.ndarray,
    n_layers: np.ndarray,
    head_dim: np.ndarray,
    tp: np.ndarray,
    mlp_ratio: np.ndarray | float = 1.0,
    head_unit: int = HEADS,
) -> Transformer:
    """Template scaled to integer widths and depths: MLP widths in whole tiles, heads divisible by tp.

    Args:
        template: proportions of the model, and its number of key/value heads.
        d_model: d [shape].
        n_layers: L, integer [shape].
        head_dim: width of a head [shape].
        tp: tensor-parallel degrees, which divide heads and MLPs [shape].
        mlp_ratio: MLP width over model width, relative to the template's [shape].
        head_unit: divisor of the number of heads, if the heads do not fill the width [1].

    Returns:
        Models, stacked [shape].
    """
    tp, scale = np.asarray(tp, int), head_dim / number(template.head_dim)
    tile, wider, share = np.lcm(TILE, tp), d_model / number(template.d_model), head_share(template)
    # At a share of 1 the width determines the heads.
    group = np.ones_like(tp) if share == 1.0 else np.lcm(head_unit, tp)
    n_heads = group * np.maximum(np.round(d_model * share / (head_dim * group)), 1.0)
    changes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads}
    changes["n_kv_heads"] = kept_key_value_heads(template, n_heads, tp)
    for name in ("head_dim", "v_head_dim", "rope_head_dim"):
        changes[name] = number(getattr(template, name)) * scale
    for name in WIDTH_FIELDS:
        ratio = mlp_ratio if name in ("d_ff", "d_ff_expert") else 1.0
        widest = number(getattr(template, name)) * wider * ratio
        # A tile at least, unless the template has none.
        changes[name] = tile * np.maximum(np.round(widest / tile), np.sign(widest))
    for name in LAYER_SHARES:
        # Whole layers of a share.
        changes[name] = np.round(number(getattr(template, name)) * n_layers) / n_layers
    plain = jax.tree.map(lambda leaf: np.full(len(d_model), number(leaf)), template)
    return with_columns(plain, {name: np.broadcast_to(value, len(d_model)) for name, value in changes.items()})


def kept_key_value_heads(template: Transformer, n_heads: np.ndarray, tp: np.ndarray) -> np.ndarray:
    """Number of key/value heads: the template's, or a usual number that divides the heads and suits tp [1], [shape].

    Args:
        template: model; with a key/value head per query head, the result is `n_heads`.
        n_heads: H [shape].
        tp: tensor-parallel degrees [shape].
    """
    own = number(template.n_kv_heads)
    if own == number(template.n_heads):
        return n_heads
    # Few distinct pairs among many shapes.
    pairs, which = np.unique(np.stack([n_heads, tp * np.ones_like(n_heads)], axis=1), axis=0, return_inverse=True)
    counts = []
    for heads, degree in pairs.tolist():
        usual = np.asarray((own, *KEY_VALUE_HEADS))
        usual = usual[(heads % usual == 0) & shares_key_values(degree, usual)]
        every = divisors(heads)
        options = usual if len(usual) else every[shares_key_values(degree, every)]
        # Nearest in ratio to the number of the template.
        counts.append(float(options[np.argmin(np.abs(np.log(options / own)))]))
    return np.asarray(counts)[which.ravel()]


Rows = dict[str, np.ndarray]
"""Designs as columns: `SIZES`, and the decisions `FIELDS` of their plans [design]."""

SIZES = ("d_model", "n_layers", "head_dim", "mlp_ratio")
"""Width [1], depth [1], width of a head [1], MLP width over model width relative to the template's [1]."""

FEW, MANY = (0.9, 1.0, 1.1), (0.82, 0.92, 1.0, 1.09, 1.22)
"""Factors on the MLP ratio and on the batch of a replica, around many designs and around the best designs [1]."""

KIND = ("tp", "cp", "pp", "ep", "zero_stage", "recompute_full")
"""Decisions that distinguish the kinds of plans."""

CONSIDERED = 4000
"""Number of plans or designs in the search for different kinds [1]."""

UNLIKE = 16
"""Number of plans of different kinds of a model and batch around which sizes are tried [1]."""


class IntegerSpace(NamedTuple):
    """Search space of integer designs.

    Attributes:
        problem: cluster, coefficients, laws and template.
        space: choices of plans, and features of the software.
        head_dims: widths of a head [1].
        memory_limit: largest peak of a chip [byte].
        model: fixed model, for a search over plans and batches only; None for open sizes.
    """

    problem: DesignProblem
    space: PlanSpace
    head_dims: tuple[float, ...]
    memory_limit: float
    model: Transformer | None = None

    @property
    def n_chips(self) -> int:
        """Number of chips of the cluster, all in use under every plan [1]."""
        return round(number(self.problem.cluster.n_chips))


def built(rows: Rows, where: IntegerSpace) -> tuple[Transformer, Plan]:
    """Models and plans from a table of designs, stacked [design]."""
    count = len(rows["tp"])
    own, software = (
        jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf, float)[None], count, axis=0), part)
        for part in (where.model, where.space.base)
    )
    sizes = (rows["d_model"], rows["n_layers"], rows["head_dim"], rows["tp"], rows["mlp_ratio"])
    models = whole_shapes(where.problem.template, *sizes) if where.model is None else own
    return models, with_columns(software, {name: rows[name] for name in FIELDS})


def row_of(stacked: Any, row: int) -> Any:
    """Module of plain numbers from a row of a stacked module."""
    return jax.tree.map(lambda leaf: float(leaf[row]) if leaf.ndim == 1 else leaf[row], stacked)


def sizes_near(design: Design, where: IntegerSpace) -> list[dict[str, float]]:
    """Integer sizes and batches near a continuous design, with many divisors."""
    model, template = where.model or design.model, where.problem.template
    ratio = number(model.d_ff / model.d_model) / number(template.d_ff / template.d_model)
    head_dim = where.head_dims[-1]
    step = float(width_step(template, np.full(1, int(head_dim)), np.ones(1, int))[0])
    depth, batch = number(model.n_layers), number(design.plan.global_batch_size_seqs)
    size = {"d_model": _multiple(number(model.d_model), step), "head_dim": head_dim, "mlp_ratio": ratio}
    # Depths with many divisors.
    size["n_layers"] = depth if where.model else _multiple(depth, 8.0 if depth > 24.0 else 4.0)
    return [{**size, "batch": wide} for wide in _batches(batch, where.n_chips)]


def _batches(wanted: float, n_chips: int) -> list[float]:
    """Batches on either side of a target with many divisors in common with the number of chips [sequence]."""
    # Odd factor of the number of chips.
    odd = float(n_chips // (n_chips & -n_chips))
    # Between an eighth and a quarter of the target: a power of two times the odd factor.
    step = odd * 2.0 ** max(math.floor(math.log2(max(wanted / odd, 1.0))) - 2, 0)
    below = step * max(math.floor(wanted / step), 1)
    return [below, below + step]


def _multiple(wanted: float, step: float) -> float:
    return float(step * max(round(wanted / step), 1))


def plans_of_sizes(sizes: Sequence[Mapping[str, float]], where: IntegerSpace) -> Rows:
    """Fastest plans with distinct values of the fields `KIND`, for each of several models and batches [design].

    Args:
        sizes: `SIZES` and `batch`, in sequences, of each model.
        where: cluster, software and template.
    """
    problem = where.problem
    space = within_domains(where.space, problem.cluster)
    tasks = []
    for size in sizes:
        columns = {name: np.full(1, size[name]) for name in SIZES}
        plain = {name: np.ones(1) for name in FIELDS}
        model, _ = row_of(built({**columns, **plain}, where), 0)
        fixed = (problem.coefficients, where.memory_limit, space)
        tasks.append(PlanTask(model, problem.cluster, round(size["batch"]), *fixed))
    found = []
    for size, plans in zip(sizes, find_plans(tasks), strict=True):
        rows = best_of_kinds(plans.table.columns, plans.merits)[:UNLIKE]
        own = {name: np.asarray(plans.table.columns[name][rows], float) for name in FIELDS}
        found.append({**{name: np.full(len(rows), size[name]) for name in SIZES}, **own})
    return put_together(found)


def best_of_kinds(columns: Mapping[str, np.ndarray], merits: np.ndarray) -> np.ndarray:
    """Rows of the best plan for each combination of the fields `KIND`, among the best `CONSIDERED` plans by merit."""
    order = np.argsort(merits, kind="stable")[:CONSIDERED]
    kinds: dict[tuple[float, ...], int] = {}
    for place, *kind in zip(order.tolist(), *(columns[name][order].tolist() for name in KIND), strict=True):
        # The first plan of a kind has the least merit.
        kinds.setdefault(tuple(kind), place)
    return np.asarray(list(kinds.values()), int)


def around(rows: Rows, where: IntegerSpace, factors: Sequence[float]) -> Rows:
    """Valid designs on a lattice around each of several designs: neighbouring sizes, head widths and batches [design].

    Pipeline stages divide the layers, heads fill the width, and the degrees of the plans are unchanged.

    Args:
        rows: the central designs.
        where: cluster, software and template.
        factors: factors on the MLP ratio and on the batch of a replica [1].
    """
    count = len(rows["tp"])
    lattice = [
        _lattice({name: float(column[row]) for name, column in rows.items()}, where, factors) for row in range(count)
    ]
    found = put_together(lattice)
    facts = {**model_columns(built(found, where)[0]), **{name: found[name] for name in FIELDS}}
    facts |= {"n_chips": where.n_chips, "domain_size": number(where.problem.cluster.network.level(0)[0])}
    # The batch follows from the plan here.
    valid = obeys(facts, rules=[rule for rule in where.space.rules if rule is not BATCH_RULE])
    return {name: column[valid] for name, column in found.items()}


def _lattice(middle: Mapping[str, float], where: IntegerSpace, factors: Sequence[float]) -> Rows:
    """Designs around a central design, valid or not [design]."""
    # Layers come in pp * vpp equal chunks.
    template, tp, chunk = where.problem.template, int(middle["tp"]), middle["pp"] * middle["vpp"]
    batches = _splits(middle, where.space, factors)
    if where.model is not None:
        columns = {name: np.full(len(batches), value) for name, value in middle.items()}
        columns["micro_batch_size"], columns["n_microbatches"] = np.asarray(batches).T
        return columns
    widths: list[tuple[float, float]] = []
    for head_dim in where.head_dims:
        step = float(width_step(template, np.full(1, int(head_dim)), np.full(1, tp))[0])
        centre = _multiple(middle["d_model"], step)
        widths += [(width, head_dim) for width in (centre - step, centre, centre + step) if width >= step]
    # About a twenty-fourth of the depth, in whole chunks.
    deeper = chunk * max(round(middle["n_layers"] / chunk / 24.0), 1)
    depth = _multiple(middle["n_layers"], chunk)
    depths = [deep for deep in (depth - deeper, depth, depth + deeper) if deep >= chunk]
    ratios = np.clip(middle["mlp_ratio"] * np.asarray(factors), LOWEST["d_ff"], HIGHEST["d_ff"])
    # (widths, depths, ratios, batches)
    grid = np.meshgrid(*(np.arange(len(part)) for part in (widths, depths, ratios, batches)), indexing="ij")
    wide, deep, high, split = (place.ravel() for place in grid)
    columns = {name: np.full(len(wide), value) for name, value in middle.items()}
    columns["d_model"], columns["head_dim"] = np.asarray(widths)[wide].T
    columns["n_layers"], columns["mlp_ratio"] = np.asarray(depths, float)[deep], ratios[high]
    columns["micro_batch_size"], columns["n_microbatches"] = np.asarray(batches)[split].T
    return columns


def _splits(middle: Mapping[str, float], space: PlanSpace, factors: Sequence[float]) -> list[tuple[float, float]]:
    """Microbatch sizes and numbers of microbatches near a plan's, within a space."""
    per_replica, size = middle["micro_batch_size"] * middle["n_microbatches"], middle["micro_batch_size"]
    # Interleaved schedules take microbatches in multiples of pp.
    unit, found = middle["pp"] if middle["vpp"] > 1 else 1.0, set()
    for micro in (size, 2.0 * size, size / 2.0) if len(factors) > len(FEW) else (size,):
        if micro != round(micro) or (space.micro_batch_size and micro not in space.micro_batch_size):
            continue
        for factor in factors:
            number_of = _multiple(per_replica * factor / micro, unit)
            for count in (number_of, number_of + unit) if factor == 1.0 else (number_of,):
                if not space.n_microbatches or count in space.n_microbatches:
                    found.add((micro, count))
    return sorted(found) or [(size, middle["n_microbatches"])]


def put_together(tables: Sequence[Rows]) -> Rows:
    """Concatenation of tables of designs."""
    return {name: np.concatenate([table[name] for table in tables]) for name in (*SIZES, *FIELDS)}
