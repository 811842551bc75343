"""Maxima, minima and positive parts, exact or smooth: one family, one temperature.

Temperature 0 chooses the exact form, a temperature above 0 the smooth form, whose error is at most the temperature.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

Temperature = float | Float[Array, ""]
"""Smoothing of maxima [1]. A Python number chooses their form when a function is traced: 0 the exact one, above 0 the
smooth one. An array is above 0, so that one compiled function serves any smoothing."""


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
