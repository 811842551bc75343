"""Kinds of JAX primitives in kernels, and rules for equal axes of inputs and outputs of primitives without matmuls."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxscale.tracing.program import Axis, Value, make_equal

Kind = Literal["elementwise", "selection", "layout", "reduction", "identity"]

IDENTITY = frozenset(
    "copy copy_p device_put layout_constraint mesh_cast name optimization_barrier pbroadcast pcast pvary reshard "
    "sharding_constraint stop_gradient psum_invariant_cast".split()
)
"""Primitives that return their inputs unchanged."""

LAYOUT = frozenset("bitcast_convert_type expand_dims reshape squeeze transpose".split())
"""Primitives that rearrange elements; free where a matmul reads the result."""

SELECTION = frozenset("dynamic_slice gather slice".split())
"""Primitives that read a slice of their first input."""

ELEMENTWISE = frozenset(
    (
        "abs acos acosh add add_any and asin asinh atan atan2 atanh axis_index bessel_i0e bessel_i1e broadcast_in_dim "
        "cbrt ceil clamp clz complex concatenate conj convert_element_type cos cosh digamma div empty empty2 eq eq_to "
        "erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow iota is_finite le "
        "le_to lgamma log log1p logistic lt lt_to max min mul ne neg nextafter not or pad polygamma population_count "
        "pow random_bits random_fold_in random_seed random_split random_unwrap random_wrap real reduce_precision "
        "regularized_incomplete_beta rem rev rng_bit_generator rng_uniform round rsqrt select_n shift_left "
        "shift_right_arithmetic shift_right_logical sign sin sinh split sqrt square sub tan tanh threefry2x32 tile "
        "xor zeta "
    ).split()
)
"""Primitives with a few input elements per output element."""

REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor reduce "
    "reduce_window_max reduce_window_min reduce_window_sum reduce_window".split()
)
"""Primitives that end a fusion: many input elements per output element."""

KINDS: dict[str, Kind] = {
    **dict.fromkeys(IDENTITY, "identity"),
    **dict.fromkeys(LAYOUT, "layout"),
    **dict.fromkeys(SELECTION, "selection"),
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
    **dict.fromkeys(REDUCTIONS, "reduction"),
}
"""Kind of every non-heavy primitive, by name."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "named_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr",
    "composite": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "xla_metadata_call": "jaxpr",
    "xla_call": "call_jaxpr",
    "shard_map": "jaxpr",
}
"""Parameter that holds the called program, by name of the calling primitive."""

REMATERIALISED = frozenset({"remat", "remat2", "checkpoint"})
"""Calls behind a barrier: earlier results do not replace the recomputation."""

BARRIER = "barrier"
"""Operation that prevents a rematerialised block from reusing earlier results."""


Params = Mapping[str, Any]


def output_axes(name: str, inputs: Sequence[Value | None], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    """Axes of the output of a non-heavy primitive, made equal to input axes by the rule of the primitive.

    Args:
        name: name of the primitive.
        inputs: inputs of the primitive; None for a literal.
        shape: shape of the output.
        params: parameters of the primitive.

    Returns:
        Axes, in the order of the shape.
    """
    rule = RULES.get(name, _same_place)
    axes = rule([value for value in inputs if value is not None], shape, params)
    for axis, size in zip(axes, shape, strict=True):
        # A rule with mixed-up axes would give wrong classes at changed sizes.
        assert axis.size == size, (name, shape)
    return axes


def _same_place(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    """Make axes of equal position and length equal; all remaining axes are new."""
    axes: list[Axis | None] = [None] * len(shape)
    for value in inputs:
        # Broadcasting is explicit in a jaxpr: equal ranks have equal places.
        if len(value.axes) != len(shape):
            continue
        for place, axis in enumerate(value.axes):
            if axis.size != shape[place]:
                continue
            kept = axes[place]
            if kept is None:
                axes[place] = axis
            else:
                make_equal([kept], [axis])
    return tuple(axis or Axis(size) for axis, size in zip(axes, shape, strict=True))


def _broadcast(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    axes = [Axis(size) for size in shape]
    if inputs:
        for axis, place in zip(inputs[0].axes, params["broadcast_dimensions"], strict=True):
            # Axes of length 1 are repeated: a new axis.
            if axis.size == shape[place]:
                axes[place] = axis
    return tuple(axes)


def _reshape(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    if not inputs:
        return tuple(Axis(size) for size in shape)
    old = inputs[0].axes
    if len(old) == len(shape) and all(axis.size == size for axis, size in zip(old, shape, strict=True)):
        return tuple(old)
    axes = tuple(Axis(size) for size in shape)
    # Lengths of 0 have no common refinement.
    if all(axis.size > 0 for axis in axes):
        make_equal(old, axes)
    return axes


def _transpose(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    return tuple(inputs[0].axes[place] for place in params["permutation"])


def _reduce(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    gone = set(params["axes"])
    return tuple(axis for place, axis in enumerate(inputs[0].axes) if place not in gone)


def _slice(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    """Axes of a slice; a divisor of an axis length becomes the minor factor, as in rotary embeddings."""
    axes = []
    for place, (axis, size) in enumerate(zip(inputs[0].axes, shape, strict=True)):
        whole = axis.size
        start = params["start_indices"][place] if "start_indices" in params else 0
        if size == whole:
            axes.append(axis)
        # Halves of a head, as in rotary embeddings: the slice is the minor factor.
        elif size > 1 and whole % size == 0 and start % size == 0 and "strides" in params and not params["strides"]:
            part = Axis(size)
            make_equal([axis], [Axis(whole // size), part])
            axes.append(part)
        else:
            axes.append(Axis(size))
    return tuple(axes)


def _concatenate(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    """Axes of a concatenation; equal pieces give an axis of two factors: piece index, position within the piece."""
    place = params["dimension"]
    axes = list(_same_place(inputs, shape, params))
    parts = [value.axes[place] for value in inputs]
    size = parts[0].size
    if size > 1 and len(parts) > 1 and len(parts) * size == shape[place] and all(part.size == size for part in parts):
        for part in parts[1:]:
            make_equal([parts[0]], [part])
        axes[place] = Axis(shape[place])
        make_equal([axes[place]], [Axis(len(parts)), parts[0]])
    return tuple(axes)


def _gather(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    """Axes of a gather: fully read offset axes are operand axes; all remaining axes are axes of the indices."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    operand = inputs[0]
    batching = getattr(numbers, "operand_batching_dims", ())
    kept = [place for place in range(len(sizes)) if place not in {*numbers.collapsed_slice_dims, *batching}]
    axes: list[Axis] = [Axis(size) for size in shape]
    for place, source in zip(numbers.offset_dims, kept, strict=True):
        if operand.axes[source].size == shape[place]:
            axes[place] = operand.axes[source]
    if len(inputs) > 1:
        others = [place for place in range(len(shape)) if place not in numbers.offset_dims]
        # The last axis of the indices holds coordinates.
        for place, axis in zip(others, inputs[1].axes[:-1], strict=True):
            axes[place] = axis
    return tuple(axes)


def _dynamic_slice(inputs: Sequence[Value], shape: Sequence[int], params: Params) -> tuple[Axis, ...]:
    operand = inputs[0].axes
    return tuple(axis if axis.size == size else Axis(size) for axis, size in zip(operand, shape, strict=True))


RULES = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "split": _same_place,
    "dynamic_slice": _dynamic_slice,
    "concatenate": _concatenate,
    "gather": _gather,
    **dict.fromkeys(
        "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor".split(), _reduce
    ),
}
"""Rule of each primitive with axes that change position."""
