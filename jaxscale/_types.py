"""Array types shared by every module, and the conversion of arguments to float leaves."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

Tree = TypeVar("Tree")

if TYPE_CHECKING:
    # Static checkers know no arithmetic between floats and arrays of any backend; the run-time check below does.
    Number = PerPrecision = PerLevel = Any
else:
    Number = Float[ArrayLike, "*batch"]
    """A float leaf of a module: one number, or one for each row of a batch."""

    PerPrecision = Float[ArrayLike, "*batch precision"]
    """One number for each of `PRECISIONS`."""

    PerLevel = Float[ArrayLike, "*batch level"]
    """One number for each network level."""

Temperature = float | Float[Array, ""]
"""Smoothing of maxima [1]. A Python number chooses their form when a function is traced: 0 the exact one, above 0 the
smooth one. An array is above 0, so that one compiled function serves any smoothing."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp8", "fp4")
"""Order of `Chip.peak_flops` and `Plan.precision`; `bf16` stands for every 16-bit format."""

N_LEVELS = 3
"""Network levels: 0 scale-up domain (NVLink, ICI), 1 scale-out (InfiniBand, RoCE, DCN), 2 spine."""


def as_float(value: Any) -> Any:
    """Turn a Python or numpy number into a float leaf; pass arrays and tracers through.

    Integers become floats so that `jax.grad` works on every leaf of every module.

    Args:
        value: a number, an array or a tracer.

    Returns:
        A Python float for a scalar number, else the value as a floating array.
    """
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return float(value)
    if isinstance(value, np.ndarray) and not np.issubdtype(value.dtype, np.floating):
        return value.astype(float)
    return value


def as_arrays(tree: Tree) -> Tree:
    """The same tree with arrays for leaves: plain numbers obey neither shapes nor `.dtype`."""
    return jax.tree.map(jnp.asarray, tree)


def with_fields(module: Tree, changes: Mapping[str, Any]) -> Tree:
    """A copy of a module with some fields changed, traced values included."""
    values = [as_float(value) for value in changes.values()]
    return eqx.tree_at(lambda tree: [getattr(tree, name) for name in changes], module, values)


def stacked(trees: Sequence[Tree]) -> Tree:
    """Equal trees as one, on the host in double precision: their leaves along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *trees)


def is_exact(temperature: Temperature) -> bool:
    """Whether a temperature asks for exact maxima."""
    return isinstance(temperature, int | float) and temperature == 0.0


def larger(first: ArrayLike, second: ArrayLike) -> Array:
    """Larger of two numbers; where they are equal, half of the gradient goes to each.

    The gradient of `jnp.maximum` goes to what equals the maximum. A compiler may compute an argument once more on the
    way back, and round it otherwise: then neither does, and the gradient is lost.
    """
    return _chosen(jnp.greater(first, second), jnp.less(first, second), first, second)


def smaller(first: ArrayLike, second: ArrayLike) -> Array:
    """Smaller of two numbers, with the gradient of `larger`."""
    return _chosen(jnp.less(first, second), jnp.greater(first, second), first, second)


def _chosen(is_first: Array, is_second: Array, first: ArrayLike, second: ArrayLike) -> Array:
    tied = jnp.multiply(0.5, first) + jnp.multiply(0.5, second)
    return jnp.where(is_first, first, jnp.where(is_second, second, tied))


def smooth_max(first: ArrayLike, second: ArrayLike, temperature: Temperature) -> Array:
    r"""Larger of two non-negative numbers, exact or smooth.

    $\max(a, b)$ at `temperature` 0; else
    $\tfrac12\left(a + b + \sqrt{(a - b)^2 + (T (a + b))^2}\right)$, which exceeds the maximum by at most $T (a + b)/2$.

    Args:
        first: a, any non-negative quantity.
        second: b, in the unit of a.
        temperature: T [1].

    Returns:
        The maximum, in the unit of the arguments.
    """
    if is_exact(temperature):
        return larger(first, second)
    total = jnp.add(first, second)
    gap = jnp.subtract(first, second)
    # The tiny floor keeps the square root differentiable where both arguments are zero.
    return 0.5 * (total + jnp.sqrt(gap * gap + (temperature * total) ** 2 + 1e-30))


def smooth_min(first: ArrayLike, second: ArrayLike, temperature: Temperature) -> Array:
    """Smaller of two positive numbers, exact or smooth: their product over `smooth_max`, in their unit."""
    if is_exact(temperature):
        return smaller(first, second)
    # The product form keeps all digits where one argument is far larger than the other.
    return jnp.multiply(second, first / smooth_max(first, second, temperature))


def positive_part(value: ArrayLike, temperature: Temperature) -> Array:
    r"""Value where positive, else zero: exact, or smooth by an absolute width.

    $\max(x, 0)$ at `temperature` 0; else $\tfrac12 (x + \sqrt{x^2 + 4 T^2})$, which exceeds it by at most T. Meant for
    logarithms of ratios, where an absolute width is a relative one of the ratio.

    Args:
        value: x [1].
        temperature: T [1].

    Returns:
        The positive part [1].
    """
    if is_exact(temperature):
        return larger(value, 0.0)
    return 0.5 * jnp.add(value, jnp.sqrt(jnp.square(value) + 4.0 * temperature**2))


def several(n: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Switch of a degree: 0 for one, 1 from two on, linear between, exact or smooth [1]."""
    return smooth_min(jnp.subtract(n, 1.0), 1.0, temperature)


def degree_within(room: ArrayLike, n: ArrayLike, temperature: Temperature) -> Array:
    """Ranks out of n for which there is room: at least one, at most n, exact or smooth [1]."""
    if not is_exact(temperature):
        # In logarithms a single rank stays exactly one, however the clip is smoothed.
        return jnp.exp(smooth_min(positive_part(jnp.log(room), temperature), jnp.log(n), temperature))
    clipped = smaller(larger(room, 1.0), n)
    # Where room and ranks are both one, the room has no effect on either side and n only on one.
    return jnp.where((room == 1.0) & (n == 1.0), 0.5 * (1.0 + n), clipped)


def log2_above_one(ratio: ArrayLike, temperature: Temperature) -> Array:
    """Doublings from one to a ratio, zero below one, exact or smooth by `positive_part` [1]."""
    if is_exact(temperature):
        return jnp.log2(larger(ratio, 1.0))
    return positive_part(jnp.log(ratio), temperature) / math.log(2.0)


def exposed(cost: ArrayLike, cover: ArrayLike, temperature: Temperature) -> Array:
    """Part of `cost` that does not hide behind `cover`: max(cost - cover, 0), exact or smooth [s]."""
    return jnp.subtract(smooth_max(cost, cover, temperature), cover)
