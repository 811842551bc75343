"""Registry of the work of primitives that the package does not know: custom calls, kernels of the user."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxscale.tracing.program import Monomial, Value, Work
from jaxscale.tracing.work_rules import work_rule

FlopCount = Callable[[Sequence[jax.ShapeDtypeStruct], Sequence[jax.ShapeDtypeStruct], Mapping[str, Any]], float]
"""Flop of a custom call, given the shapes of inputs and outputs and its parameters [flop]."""


def custom_call(name: str, kind: str = "custom") -> Callable[[FlopCount], FlopCount]:
    """Decorator that registers the flop of a primitive under its name.

    The primitive reads its inputs and writes its outputs once. Where sizes change after tracing, its flop follow the
    size of its first output.

    Args:
        name: of the primitive, as the error of `trace` tells it.
        kind: kind of kernel whose efficiency applies: `matmul`, `conv`, `attention`, or `custom`.

    Returns:
        The decorator of a function of inputs, outputs and parameters that returns flop [flop].
    """

    def register(count: FlopCount) -> FlopCount:
        @work_rule(name)
        def rule(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
            flop = float(count([_shape(value) for value in inputs], [_shape(value) for value in outputs], params))
            axes = outputs[0].axes if outputs else ()
            return Work(kind, Monomial(flop / max(math.prod(axis.size for axis in axes), 1), axes))

        return count

    return register


WIDTHS = {1.0: np.int8, 2.0: np.float16, 4.0: np.float32, 8.0: np.float64}
"""Number format that stands for all of a width, by bytes of an element."""


def _shape(value: Value) -> jax.ShapeDtypeStruct:
    """Shape of a value, with a number format of its width."""
    return jax.ShapeDtypeStruct(value.shape, WIDTHS.get(value.itemsize, np.float32))
