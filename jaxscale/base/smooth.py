"""Maxima, minima and positive parts, exact or smooth: one family of functions with one temperature.

Temperature T = 0 chooses the exact form, T > 0 the smooth form with an error of order T:

* relative, T times the arguments, for times and sizes: `smooth_max`, `smooth_min`, `exposed`, and the norm of exponent
  p = 1 / T, `p_norm` and `p_norm_smaller`;
* absolute, in the unit of the arguments, for logarithms and plan times: `positive_part`, and the log-sum-exp of
  `soft_maximum` and `soft_minimum`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

Temperature = float | Float[Array, ""]
"""Smoothing of maxima [1]. A Python number chooses the form when a function is traced: exact at 0, smooth above 0. An
array is above 0, so that one compiled function serves any smoothing."""


def is_exact(temperature: Temperature) -> bool:
    """Whether a temperature chooses exact maxima."""
    return isinstance(temperature, int | float) and temperature == 0.0


def larger(first: ArrayLike, second: ArrayLike) -> Array:
    """Larger of two numbers; at equality each argument receives half of the gradient.

    The gradient of `jnp.maximum` goes to the argument equal to the maximum. A compiler may recompute an argument in the
    backward pass with different rounding; then neither argument is equal and the gradient is lost.
    """
    return _chosen(jnp.greater(first, second), jnp.less(first, second), first, second)


def smaller(first: ArrayLike, second: ArrayLike) -> Array:
    """Smaller of two numbers; at equality each argument receives half of the gradient, as in `larger`."""
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
    """Smaller of two positive numbers, exact or smooth: a b / `smooth_max(a, b)`, in the unit of the arguments."""
    if is_exact(temperature):
        return smaller(first, second)
    # This order of products keeps all digits if one argument is far larger than the other.
    return jnp.multiply(second, first / smooth_max(first, second, temperature))


def positive_part(value: ArrayLike, temperature: Temperature) -> Array:
    r"""Positive part of a number: exact, or smooth with an absolute width.

    $\max(x, 0)$ at `temperature` 0; else $\tfrac12 (x + \sqrt{x^2 + 4 T^2})$, larger than the exact form by at most T.
    The function is for logarithms of ratios, whose absolute width is a relative width of the ratio.

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
    """Indicator of a parallel degree n above one: 0 at n = 1, 1 for n >= 2, linear between, exact or smooth [1]."""
    return smooth_min(jnp.subtract(n, 1.0), 1.0, temperature)


def degree_within(room: ArrayLike, n: ArrayLike, temperature: Temperature) -> Array:
    """Number of n ranks that share a domain with room for `room` ranks: at least 1, at most n, exact or smooth [1]."""
    if not is_exact(temperature):
        # In logarithms, a single rank stays exactly 1 under any smoothing.
        return jnp.exp(smooth_min(positive_part(jnp.log(room), temperature), jnp.log(n), temperature))
    clipped = smaller(larger(room, 1.0), n)
    # At room = 1 and n = 1, room has zero slope on either side, and n a slope on one side alone: half is given.
    return jnp.where((room == 1.0) & (n == 1.0), 0.5 * (1.0 + n), clipped)


def log2_above_one(ratio: ArrayLike, temperature: Temperature) -> Array:
    """Number of doublings above one, max(log2(ratio), 0), exact or smooth by `positive_part` [1]."""
    if is_exact(temperature):
        return jnp.log2(larger(ratio, 1.0))
    return positive_part(jnp.log(ratio), temperature) / math.log(2.0)


def exposed(cost: ArrayLike, cover: ArrayLike, temperature: Temperature) -> Array:
    """Cost in excess of the concurrent work that hides it: max(cost - cover, 0), exact or smooth [s]."""
    return jnp.subtract(smooth_max(cost, cover, temperature), cover)


TINY = 1e-12
"""Added to numbers relative to the largest, to keep the gradient of a norm finite at zero [1]."""


def p_norm(values: Float[ArrayLike, "number ..."], exponent: ArrayLike) -> Array:
    r"""Norm of non-negative numbers, $(\sum x^p)^{1/p}$: the sum at p = 1, the maximum for p to infinity.

    Args:
        values: x along the first axis, in any unit.
        exponent: p, at least one, the inverse of a temperature [1].

    Returns:
        The norm, in the unit of the values.
    """
    # Division by the largest number keeps all powers within floating-point range; its gradient cancels.
    scale = jax.lax.stop_gradient(jnp.max(jnp.asarray(values), axis=0))
    powers = jnp.sum(jnp.exp(exponent * jnp.log(values / scale + TINY)), axis=0)
    return scale * jnp.exp(jnp.log(powers) / exponent)


def p_norm_smaller(first: Array, second: Array, exponent: int) -> Array:
    r"""Smooth minimum of two non-negative numbers, $(x^{-p} + y^{-p})^{-1/p}$, in the unit of the arguments.

    The result is between 0 and the smaller number, and 0 if either argument is 0.
    """
    low, high = smaller(first, second), larger(first, second) + TINY
    return low * (1.0 + (low / high) ** exponent) ** (-1.0 / exponent)


def soft_maximum(values: Array, temperature: ArrayLike, axis: int) -> Array:
    r"""Log-sum-exp along an axis, $T \ln \sum_i e^{x_i / T}$: at most $T \ln n$ above the maximum.

    Args:
        values: x, in any unit.
        temperature: T above zero, in the unit of the values.
        axis: axis of the sum.

    Returns:
        The smooth maximum, in the unit of the values.
    """
    width = jnp.asarray(temperature)
    return width * jnp.asarray(jax.nn.logsumexp(values / width, axis=axis))


def soft_minimum(values: Array, temperature: ArrayLike, axis: int) -> Array:
    r"""Smooth minimum of numbers along an axis, $-T \ln \sum_i e^{-x_i / T}$; arguments as `soft_maximum`."""
    return -soft_maximum(-values, temperature, axis)
