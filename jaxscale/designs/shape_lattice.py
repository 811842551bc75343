"""Every integer shape near a number of parameters, scored by the exact model in one `vmap`."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale._arrays import number, with_fields
from jaxscale._compile import filter_jit
from jaxscale.designs.relaxed_shape import LAYER_SHARES, WIDTH_FIELDS, depth_of
from jaxscale.designs.shape_problem import ShapeProblem, log_objective
from jaxscale.errors import InputError
from jaxscale.plan.rules import shares_key_values
from jaxscale.plans.enumerate import divisors
from jaxscale.step import step_and_memory
from jaxscale.workload import Transformer, n_params

TILE = 128
"""Widths are multiples of this: the tile of matmul kernels (NVIDIA, Matrix Multiplication Background, 2023) [1]."""

WIDEST = 4.0
"""The lattice reaches this many times the relaxed optimum's width [1]."""


class Lattice(NamedTuple):
    """Integer shapes and the best of them.

    Attributes:
        d_model: widths [shape].
        n_layers: depths [shape].
        params: parameters [shape].
        step_time: exact model [s], [shape].
        objective: log time to the same loss, per parameter asked for, exact model [shape].
        admitted: close enough in parameters, and within memory [shape].
        model: the best shape.
        best: its row.
    """

    d_model: Float[np.ndarray, " shape"]
    n_layers: Float[np.ndarray, " shape"]
    params: Float[np.ndarray, " shape"]
    step_time: Float[np.ndarray, " shape"]
    objective: Float[np.ndarray, " shape"]
    admitted: np.ndarray
    model: Transformer
    best: int

    @property
    def figures(self) -> dict[str, float]:
        """Numbers of the best shape."""
        names = {"d_model": self.d_model, "n_layers": self.n_layers, "params": self.params}
        names |= {"step_time_s": self.step_time, "objective": self.objective}
        return {name: float(column[self.best]) for name, column in names.items()}


def integer_shapes(problem: ShapeProblem, width: float) -> Transformer:
    """Integer shapes on either side of the curve of constant parameters, as one batched model.

    Heads divide over tp, layers over pp * vpp, widths of MLPs over tiles and tp; key/value heads divide the heads.

    Args:
        problem: template and plan.
        width: relaxed optimum [1].

    Returns:
        Models [shape].
    """
    template, plan = problem.template, problem.plan
    head_dim, tp = round(number(problem.head_dim)), round(number(plan.tp))
    step, chunk = math.lcm(TILE, head_dim) * tp, round(number(plan.pp * plan.vpp))
    widths = step * np.arange(1.0, max(WIDEST * width / step, 4.0))
    depths = np.asarray(
        jax.vmap(lambda d: depth_of(template, d, problem.params, problem.head_dim))(jnp.asarray(widths))
    )
    below = chunk * np.floor(depths / chunk)
    d_model = np.repeat(widths, 2)
    n_layers = np.stack([below, below + chunk], axis=1).ravel()
    possible = n_layers >= chunk
    return _batched(template, d_model[possible], n_layers[possible], head_dim, tp)


def _batched(template: Transformer, d_model: np.ndarray, n_layers: np.ndarray, head_dim: int, tp: int) -> Transformer:
    tile = math.lcm(TILE, tp)
    wider = d_model / number(template.d_model)
    widths = {name: tile * np.round(number(getattr(template, name)) * wider / tile) for name in WIDTH_FIELDS}
    model = with_fields(at_whole_sizes(template, d_model, n_layers, head_dim, np.full(len(d_model), tp)), widths)
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), model)


def at_whole_sizes(
    template: Transformer, d_model: np.ndarray, n_layers: np.ndarray, head_dim: int, tp: np.ndarray
) -> Transformer:
    """The template at whole widths and depths: heads that divide each other and suit tp, whole layers of each kind.

    Args:
        template: proportions that are kept; widths of MLPs and the like stay as they are.
        d_model: d, whole multiples of `head_dim` [shape].
        n_layers: L, whole [shape].
        head_dim: width of a head [1].
        tp: tensor-parallel degrees, which divide the heads [shape].

    Returns:
        Models, stacked [shape].
    """
    n_heads, scale = d_model / head_dim, head_dim / number(template.head_dim)
    share = number(template.n_kv_heads / template.n_heads)
    changes = {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": np.asarray([_kv_heads(h, t, share) for h, t in zip(n_heads.tolist(), tp.tolist(), strict=True)]),
        "head_dim": np.full_like(d_model, head_dim),
        "v_head_dim": np.full_like(d_model, number(template.v_head_dim) * scale),
        "rope_head_dim": np.full_like(d_model, number(template.rope_head_dim) * scale),
    }
    for name in LAYER_SHARES:
        changes[name] = np.round(number(getattr(template, name)) * n_layers) / n_layers
    return with_fields(jax.tree.map(lambda leaf: np.full_like(d_model, number(leaf)), template), changes)


@functools.lru_cache(maxsize=4096)
def _kv_heads(heads: float, tp: int, share: float) -> float:
    """Divisor of the heads, nearest to a share of them, that tensor-parallel ranks hold in whole heads or copies."""
    options = divisors(heads)
    options = options[shares_key_values(tp, options)]
    return float(options[np.argmin(np.abs(np.log(options) - math.log(heads * share)))])


@filter_jit
def _score(models: Transformer, problem: ShapeProblem) -> tuple[Array, ...]:
    def one(model: Transformer) -> tuple[Array, ...]:
        times, peak = step_and_memory(model, problem.plan, problem.cluster, problem.coefficients)
        objective = log_objective(model, problem, 0.0) - jnp.log(n_params(model) / problem.params)
        return n_params(model), times.total, objective, peak.fits

    return jax.vmap(one)(models)


def best_integer(problem: ShapeProblem, width: float, tolerance: float) -> Lattice:
    """The best integer shape of the lattice.

    A shape with a few more parameters than asked for takes longer but learns more: times are compared per parameter.

    Args:
        problem: what is searched.
        width: relaxed optimum [1].
        tolerance: how far the parameters may be off, relative; the nearest shapes count where none is that near [1].

    Returns:
        The lattice with its best shape.

    Raises:
        InputError: no shape obeys the plan and fits in memory.
    """
    models = integer_shapes(problem, width)
    count = np.size(models.d_model)
    if not count:
        raise InputError(
            f"no integer shape: pp * vpp = {number(problem.plan.pp * problem.plan.vpp):g} exceeds the layers"
        )
    size = 1 << (count - 1).bit_length()
    padded = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], size - count)]), models)
    params, seconds, objective, fits = (np.asarray(c)[:count] for c in _score(padded, problem))
    if not fits.any():
        capacity = number(problem.cluster.chip.hbm_bytes) / 1e9
        raise InputError(f"no shape of {number(problem.params):.3g} parameters fits in {capacity:g} GB with this plan")
    off = np.abs(np.log(params / number(problem.params)))
    near = off <= max(tolerance, 1.001 * float(np.min(off[fits])))
    best = int(np.argmin(np.where(near & fits, objective, np.inf)))
    model = jax.tree.map(lambda leaf: number(leaf[best]), models)
    widths, depths = np.asarray(models.d_model), np.asarray(models.n_layers)
    return Lattice(widths, depths, params, seconds, objective, near & fits, model, best)
