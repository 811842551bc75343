"""Work of heavy primitives: flop, equivalent matmul sizes, bytes and equal axes; registration of custom calls.

A product of matrices takes 2 b m n k flop. A convolution takes 2 flop per output element, kernel tap and input channel
of the group; taps in the padding count, taps between dilated inputs do not, so that the forward pass and each gradient
take equal flop. Fused attention takes only the flop of unmasked pairs, and five matmuls backward for two forward (Dao
2023, arXiv 2307.08691).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxscale.tracing.program import Axis, Monomial, Value, Work, bytes_of, make_equal

WorkRule = Callable[[Sequence[Value], Sequence[Value], Mapping[str, Any]], Work]
"""Function from inputs, outputs and parameters of a primitive to its work; also makes equal axes equal."""

RULES: dict[str, WorkRule] = {}
"""Work rule of every heavy primitive, by name."""


def work_rule(*names: str) -> Callable[[WorkRule], WorkRule]:
    """Decorator that registers a function for the work (flop, bytes, matmul sizes) of primitives under their names."""

    def register(rule: WorkRule) -> WorkRule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _equal(left: Axis, right: Axis) -> None:
    make_equal([left], [right])


def _product(flop: float, batch: Sequence[Axis], m: Sequence[Axis], n: Sequence[Axis], k: Sequence[Axis]) -> Work:
    """Work of a batch of matmuls."""
    return Work(
        "matmul",
        Monomial(flop, [*batch, *m, *n, *k]),
        m=Monomial(1.0, m),
        n=Monomial(1.0, n),
        k=Monomial(1.0, k),
        batch=Monomial(1.0, batch),
    )


@work_rule("dot_general")
def dot_general(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a batch of matrix products."""
    left, right = inputs
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    for ours, theirs in (*zip(left_sum, right_sum, strict=True), *zip(left_batch, right_batch, strict=True)):
        _equal(left.axes[ours], right.axes[theirs])
    batch = [left.axes[place] for place in left_batch]
    k = [left.axes[place] for place in left_sum]
    m = [axis for place, axis in enumerate(left.axes) if place not in (*left_sum, *left_batch)]
    n = [axis for place, axis in enumerate(right.axes) if place not in (*right_sum, *right_batch)]
    # Axes of the result: batch, left, right.
    for axis, source in zip(outputs[0].axes, [*batch, *m, *n], strict=True):
        _equal(source, axis)
    # A multiply-add is 2 flop.
    return _product(2.0, batch, m, n, k)


@work_rule("ragged_dot", "ragged_dot_general")
def ragged_dot(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of grouped matrix products; each row is multiplied by the matrix of its group, so groups add no flop."""
    left, right, _ = inputs
    numbers = params.get("ragged_dot_dimension_numbers")
    if numbers is None:
        # ragged_dot without numbers: (m, k) x (group, k, n).
        (left_sum, right_sum), ragged, group = ((1,), (1,)), (0,), (0,)
    else:
        (left_sum, right_sum), _ = numbers.dot_dimension_numbers
        ragged, group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    for ours, theirs in zip(left_sum, right_sum, strict=True):
        _equal(left.axes[ours], right.axes[theirs])
    k = [left.axes[place] for place in left_sum]
    m = [axis for place, axis in enumerate(left.axes) if place not in left_sum]
    n = [axis for place, axis in enumerate(right.axes) if place not in (*right_sum, *group)]
    inside = set(ragged) & set(left_sum)  # gradients of weights sum over the rows of each group
    result = outputs[0].axes[-len(m) - len(n) :] if inside else outputs[0].axes
    for axis, source in zip(result, [*m, *n], strict=False):
        if axis.size == source.size:
            _equal(source, axis)
    return _product(2.0, [], m, n, k)


@work_rule("conv_general_dilated")
def convolution_work(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a convolution: one- or two-dimensional, grouped, or three-dimensional."""
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    left, kernel, result = inputs[0], inputs[1], outputs[0]
    batch_groups = params["batch_group_count"]
    taps = [kernel.axes[place] for place in numbers.rhs_spec[2:]]
    channels = kernel.axes[numbers.rhs_spec[1]]
    if groups == 1 and batch_groups == 1:
        _equal(left.axes[numbers.lhs_spec[1]], channels)
    if batch_groups == 1:
        _equal(left.axes[numbers.lhs_spec[0]], result.axes[numbers.out_spec[0]])
    if groups == 1 or batch_groups == 1:
        _equal(kernel.axes[numbers.rhs_spec[0]], result.axes[numbers.out_spec[1]])
    places = zip(numbers.lhs_spec[2:], numbers.out_spec[2:], strict=True)
    for place, (source, target) in enumerate(places):
        window = (params["window_strides"][place], params["lhs_dilation"][place], params["rhs_dilation"][place])
        # Stride and dilation 1 with equal lengths: padding keeps the places.
        if left.shape[source] == result.shape[target] and window == (1, 1, 1):
            _equal(left.axes[source], result.axes[target])
    # Dilated inputs are zero between the elements: no work.
    holes = math.prod(params["lhs_dilation"])
    rows = [axis for place, axis in enumerate(result.axes) if place != numbers.out_spec[1]]
    columns, depth = result.axes[numbers.out_spec[1]], [channels, *taps]
    # A group meets 1 / groups of the columns.
    most = max(groups, batch_groups)
    kind = "conv3d" if len(taps) == 3 else "grouped_conv" if most > 1 else "conv"
    return Work(
        kind,
        Monomial(2.0 / holes, [*rows, columns, *depth]),
        m=Monomial(1.0 / holes, rows),
        n=Monomial(1.0 / most, [columns]),
        k=Monomial(1.0, depth),
        batch=Monomial(float(most), []),
    )


CAUSAL = ("CAUSAL", "PADDING_CAUSAL")
"""Masks that leave half of the keys per query on average."""

BACKWARD_MATMULS = 5.0
"""Matmuls of the backward pass of fused attention: scores again, and gradients of all four factors [1]."""


def _attention(query: Value, key: Value, value: Value, params: Mapping[str, Any], matmuls: float) -> Work:
    """Work of fused attention with `matmuls` passes over all pairs of query and key."""
    # Layout BTNH (batch, time, head, width), else BNTH.
    length, heads = (1, 2) if int(params.get("layout", 0)) == 0 else (2, 1)
    for one, other in ((query, key), (key, value)):
        _equal(one.axes[0], other.axes[0])
        _equal(one.axes[3], other.axes[3])
    _equal(key.axes[heads], value.axes[heads])
    # Query heads with a common key head are adjacent: key heads are the major factor of query heads.
    shared = Axis(query.axes[heads].size // key.axes[heads].size)
    make_equal([query.axes[heads]], [key.axes[heads], shared])
    _equal(key.axes[length], value.axes[length])
    mask = str(getattr(params.get("mask_type"), "name", ""))
    # A causal mask leaves half of the pairs.
    seen = 0.5 if mask in CAUSAL else 1.0
    window = params.get("sliding_window_length") or 0
    keys = key.axes[length].size
    if 0 < window < keys:
        # Mean share of keys in a causal window of w of S: w / S (1 - w / (2 S)).
        seen = window / keys * (1.0 - 0.5 * window / keys)
    queries, width = query.axes[length], query.axes[3]
    flop = Monomial(2.0 * seen * matmuls, [query.axes[0], query.axes[heads], queries, key.axes[length], width])
    batch = Monomial(1.0, [query.axes[0], query.axes[heads]])
    m, n, k = Monomial(1.0, [queries]), Monomial(1.0, [key.axes[length]]), Monomial(1.0, [width])
    return Work("attention", flop, m=m, n=n, k=k, batch=batch)


@work_rule("dot_product_attention_fwd_wrapper", "dot_product_attention_fwd", "dot_product_attention_fp8_fwd_wrapper")
def attention_pass(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the forward pass of cuDNN's fused attention: two matmuls over unmasked pairs of query and key."""
    for axis, source in zip(outputs[0].axes, inputs[0].axes, strict=True):
        _equal(source, axis)
    return _attention(inputs[0], inputs[1], inputs[2], params, 2.0)


@work_rule("dot_product_attention_bwd_wrapper", "dot_product_attention_bwd", "dot_product_attention_fp8_bwd_wrapper")
def attention_gradients(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the backward pass of cuDNN's fused attention: five matmuls over unmasked pairs of query and key."""
    for gradient, value in zip(outputs[:3], inputs[:3], strict=True):
        for axis, source in zip(gradient.axes, value.axes, strict=True):
            _equal(source, axis)
    return _attention(inputs[0], inputs[1], inputs[2], params, BACKWARD_MATMULS)


@work_rule("scatter", "scatter_add", "scatter-add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub")
def scatter(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of an in-place scatter: updates are read, rows of the operand are read and written."""
    operand, updates = inputs[0], inputs[-1]
    for axis, source in zip(outputs[0].axes, operand.axes, strict=True):
        _equal(source, axis)
    numbers = params["dimension_numbers"]
    batching = getattr(numbers, "operand_batching_dims", ())
    inserted = {*numbers.inserted_window_dims, *batching}
    windows = [place for place in range(len(operand.axes)) if place not in inserted]
    for place, source in zip(numbers.update_window_dims, windows, strict=True):
        if updates.axes[place].size == operand.axes[source].size:
            _equal(operand.axes[source], updates.axes[place])
    if len(inputs) == 3:
        others = [axis for place, axis in enumerate(updates.axes) if place not in numbers.update_window_dims]
        for axis, source in zip(others, inputs[1].axes[:-1], strict=True):
            _equal(source, axis)
    # Rows of the operand touched by updates.
    place = Monomial(operand.itemsize, updates.all_axes)
    indices = [bytes_of(value) for value in inputs[1:-1]]
    return Work("scatter", read=[bytes_of(updates), *indices, place], written=[place])


@work_rule("dynamic_update_slice")
def dynamic_update_slice(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of an in-place update: the new slice is read and written."""
    for axis, source in zip(outputs[0].axes, inputs[0].axes, strict=True):
        _equal(source, axis)
    return Work("copy", read=[bytes_of(inputs[1])], written=[bytes_of(inputs[1])])


def _in_place(inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    """Make axes of equal length and position equal."""
    for result in outputs:
        for axis, source in zip(result.axes, inputs[0].axes, strict=False):
            if axis.size == source.size and len(result.axes) == len(inputs[0].axes):
                _equal(source, axis)


@work_rule("sort", "top_k", "approx_top_k")
def sort(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a sort, whose passes each read and write the data."""
    _in_place(inputs, outputs)
    return Work("sort")


@work_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a prefix scan."""
    _in_place(inputs, outputs)
    return Work("cumulative")


@work_rule("select_and_scatter_add", "select_and_gather_add", "select_and_scatter")
def pooling_gradient(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the gradient of max pooling."""
    _in_place(inputs, outputs)
    return Work("pooling")


@work_rule("fft")
def fourier(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of fast Fourier transforms: 5 N log2 N flop each."""
    _in_place(inputs, outputs)
    # 5 N log2 N flop per transform of N elements.
    length = math.prod(params["fft_lengths"])
    return Work("fft", Monomial(5.0 * math.log2(max(length, 2)), inputs[0].axes))


@work_rule("random_gamma", "random_poisson")
def random(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of random number generation by rejection."""
    return Work("random")


@work_rule("cholesky", "lu", "qr", "geqrf", "householder_product", "eigh", "svd")
def factorisation(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a dense factorisation of a batch of m by n matrices: 20 m n min(m, n) flop each, an upper bound."""
    _in_place(inputs, outputs)
    *batch, rows, columns = inputs[0].axes
    small = columns if columns.size <= rows.size else rows
    return Work("factorisation", Monomial(20.0, [*batch, rows, columns, small]))


@work_rule("triangular_solve")
def triangular_solve(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a triangular solve: n^2 flop per right-hand side."""
    _in_place([inputs[1]], outputs)
    # n^2 per right-hand side.
    return Work("factorisation", Monomial(1.0, [*inputs[1].axes, inputs[0].axes[-1]]))


COLLECTIVES = {
    "psum": "all_reduce",
    "psum2": "all_reduce",
    "psum_invariant": "all_reduce",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "psum_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "ppermute": "send",
    "pbroadcast": "send",
}
"""Collective of each communicating primitive."""


@work_rule(*COLLECTIVES)
def collective(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a collective in the traced program."""
    _in_place(inputs, outputs)
    return Work("collective")


@work_rule("pallas_call")
def pallas_call(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a Pallas kernel, from the kernel's cost estimate."""
    estimate = params.get("cost_estimate")
    flop = float(estimate.flops) if estimate is not None else 0.0
    return _work_of_outputs("custom", flop, outputs[0].all_axes)


def _work_of_outputs(kind: str, flop: float, axes: Sequence[Axis]) -> Work:
    """Work that follows the size of the first output where sizes change after tracing."""
    return Work(kind, Monomial(flop / max(math.prod(axis.size for axis in axes), 1), axes))


FlopCount = Callable[[Sequence[jax.ShapeDtypeStruct], Sequence[jax.ShapeDtypeStruct], Mapping[str, Any]], float]
"""Function from shapes of inputs and outputs and parameters of a custom call to its flop [flop]."""


def custom_call(name: str, kind: str = "custom") -> Callable[[FlopCount], FlopCount]:
    """Decorator that registers the flop of a primitive under a name.

    The primitive reads its inputs and writes its outputs once. If sizes change after tracing, the flop scale with the
    size of the first output.

    Args:
        name: name of the primitive, as in the error of `trace`.
        kind: kind of kernel whose efficiency applies: `matmul`, `conv`, `attention`, or `custom`.

    Returns:
        Decorator of a function from inputs, outputs and parameters to flop [flop].
    """

    def register(count: FlopCount) -> FlopCount:
        @work_rule(name)
        def rule(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
            flop = float(count([_shape(value) for value in inputs], [_shape(value) for value in outputs], params))
            return _work_of_outputs(kind, flop, outputs[0].axes if outputs else ())

        return count

    return register


WIDTHS = {1.0: np.int8, 2.0: np.float16, 4.0: np.float32, 8.0: np.float64}
"""Number format that represents all formats of a width, by bytes per element."""


def _shape(value: Value) -> jax.ShapeDtypeStruct:
    """Shape of a value, with a number format of the value's width."""
    return jax.ShapeDtypeStruct(value.shape, WIDTHS.get(value.itemsize, np.float32))
