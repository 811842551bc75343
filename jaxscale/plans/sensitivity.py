r"""Sensitivity of predictions: elasticities, and the gain from a resource increased by a tenth.

The elasticity $\partial \ln f / \partial \ln x$ of every leaf comes from one reverse pass.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import host_arrays, number
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.best_plan import answered, question_of_levels
from jaxscale.plans.choice import PlanChoice
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import Plan


def elasticity(fn: Callable[..., Any], args: Any) -> Any:
    r"""Elasticity of a positive function with respect to every leaf of the arguments.

    $\partial \ln f / \partial \ln x = (x / f) \, \partial f / \partial x$; a leaf at zero has elasticity zero.

    Args:
        fn: function that returns one positive number.
        args: arguments of the function: a tuple, or a single argument.

    Returns:
        Elasticities in the structure of `args` [1]; leaves that are not numbers are unchanged.

    Raises:
        InputError: the function is not positive and finite at `args`.
    """
    arguments = args if type(args) is tuple else (args,)
    numbers, rest = eqx.partition(arguments, _is_number)
    # The slope at the default precision, for every mixture of number types in the arguments.
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), numbers)
    value, slopes = _value_and_slopes(fn, numbers, rest)
    if not (np.isfinite(number(value)) and number(value) > 0.0):
        raise InputError(f"elasticity: the function is {number(value):g} here; expected a positive finite number")
    # (x / f) df / dx; 0 at x = 0, where 0 * inf has no value.
    scaled = jax.tree.map(lambda leaf, slope: jnp.where(leaf == 0.0, 0.0, leaf * slope / value), numbers, slopes)
    result = eqx.combine(scaled, rest)
    return result if type(args) is tuple else result[0]


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | np.ndarray | jax.Array | np.number) and not isinstance(leaf, bool)


@filter_jit
def _value_and_slopes(fn: Callable[..., Any], numbers: Any, rest: Any) -> tuple[Array, Any]:
    return jax.value_and_grad(lambda leaves: fn(*eqx.combine(leaves, rest)))(numbers)


def named_elasticities(elasticities: Any, names: tuple[str, ...] = ()) -> list[tuple[str, float]]:
    """Elasticities as a flat list for a bar plot, the largest magnitude first.

    Args:
        elasticities: result of `elasticity`.
        names: names of the arguments, for a tuple of arguments.

    Returns:
        Pairs such as `("cluster.chip.hbm_bandwidth", -0.08)` [1].
    """
    pairs = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(elasticities)[0]:
        if not _is_number(leaf):
            continue
        steps = [_step(key) for key in path]
        if names and isinstance(path[0], jax.tree_util.SequenceKey):
            steps[0] = names[path[0].idx]
        values = np.atleast_1d(np.asarray(leaf))
        for index, value in np.ndenumerate(values):
            suffix = "".join(f"[{i}]" for i in index) if np.ndim(leaf) else ""
            pairs.append((".".join(steps) + suffix, float(value)))
    return sorted(pairs, key=lambda pair: -abs(pair[1]))


def _step(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


@dataclass(frozen=True)
class Improvement:
    """Gain from a better chip or network.

    Attributes:
        what: name of the improved quantity.
        same_plan: step time saved with the old plan [1].
        new_plan: step time saved with the best plan for the better cluster [1].
        choice: the new plan.
    """

    what: str
    same_plan: float
    new_plan: float
    choice: PlanChoice


IMPROVEMENTS: Mapping[str, tuple[Callable[[Cluster], Any], int | None, bool]] = {
    "peak flop/s": (lambda c: c.chip.peak_flops, None, True),
    "memory bandwidth": (lambda c: c.chip.hbm_bandwidth, None, True),
    "memory capacity": (lambda c: c.chip.hbm_bytes, None, True),
    "scale-up bandwidth": (lambda c: c.network.bandwidth, 0, True),
    "scale-out bandwidth": (lambda c: c.network.bandwidth, 1, True),
    "spine bandwidth": (lambda c: c.network.bandwidth, 2, True),
    "scale-up latency": (lambda c: c.network.latency, 0, False),
    "scale-out latency": (lambda c: c.network.latency, 1, False),
    "spine latency": (lambda c: c.network.latency, 2, False),
}
"""Resources that can be improved: accessor in a cluster, network level, and whether more is better."""


def with_resource(cluster: Cluster, what: str, factor: Any) -> Cluster:
    """Cluster with one resource multiplied by a factor, which may be traced.

    Args:
        cluster: chips and network.
        what: name of the resource in `IMPROVEMENTS`.
        factor: factor of the resource [1].
    """
    path, index, _ = IMPROVEMENTS[what]

    def changed(leaf: Any) -> Any:
        if index is None:
            return leaf * factor
        # Numbers of a network have one entry per level.
        return leaf * (1.0 + (factor - 1.0) * (np.arange(np.shape(leaf)[-1]) == index))

    return eqx.tree_at(path, cluster, replace_fn=changed)


def improvements(
    model: Transformer,
    cluster: Cluster,
    global_batch_size_seqs: float | int,
    *,
    share: float = 0.1,
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
) -> list[Improvement]:
    """Gains from an increase of each rate, or a decrease of each latency, by a tenth, with the old and with a new plan.

    The number of chips is constant. The difference of the two gains is due to the new choice of the plan: small for
    rates and latencies (envelope theorem), the whole gain for the memory capacity.

    Args:
        model: the transformer.
        cluster: chips and network without improvement.
        global_batch_size_seqs: B [sequence].
        share: relative increase [1].
        fit: a fit, or the name or file of a fit.
        levels: framework, gpu and so on of the run, whose fitted effects apply.
        space: open choices; where None, every valid plan that the framework can run.

    Returns:
        Gains, the largest first.
    """
    if not 0.0 < share < 10.0:
        raise InputError(f"share = {share:g} is out of range; expected a number above 0 and below 10")
    record = fit_of(fit)
    # Levels name the present chip: an improved chip has no fitted effects.
    levels = {"gpu": load_hardware().chip_id(cluster), **(levels or {})}
    question = question_of_levels(model, cluster, global_batch_size_seqs, levels, space)
    today = answered(question, record).best
    fitted = record.coefficients(question.levels, question.n_chips)
    # A single sample: the program for samples serves.
    alone = jax.tree.map(lambda leaf: np.asarray([leaf]), fitted)
    table = []
    for what, (_, _, more) in IMPROVEMENTS.items():
        # A lower latency is better.
        better = with_resource(cluster, what, 1.0 + share if more else 1.0 / (1.0 + share))
        same = float(sampled_seconds(model, today.plan, better, alone)[0])
        choice = answered(question._replace(cluster=better), record)
        table.append(
            Improvement(what, 1.0 - same / today.step_time, 1.0 - choice.best.step_time / today.step_time, choice)
        )
    return sorted(table, key=lambda improvement: -improvement.new_plan)


@filter_jit
def _seconds(model: Transformer, plan: Plan, cluster: Cluster, samples: Coefficients) -> Array:
    return jax.vmap(lambda sample: step_time(model, plan, cluster, sample).total)(samples)


def sampled_seconds(model: Transformer, plan: Plan, cluster: Cluster, samples: Coefficients) -> np.ndarray:
    """Step time of one plan under each sample of the coefficients [s], [sample]."""
    return np.asarray(_seconds(*host_arrays((model, plan, cluster, samples))))
