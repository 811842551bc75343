"""Work of heavy primitives: flop, sizes of the matmul that each is like, bytes, and equal axes; custom calls of users.

A product of matrices takes 2 b m n k flop. A convolution takes 2 flop for each output element, tap of the kernel and
input channel of its group, taps that fall into the padding included, those between dilated inputs left out: forward
pass and both gradients then take the same. Fused attention takes the flop that its mask leaves, its backward pass
five matmuls for two (Dao 2023, arXiv 2307.08691).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxscale.tracing.program import Axis, Monomial, Value, Work, bytes_of, make_equal

WorkRule = Callable[[Sequence[Value], Sequence[Value], Mapping[str, Any]], Work]
"""Work of a primitive, given inputs, outputs and parameters; makes equal axes equal."""

RULES: dict[str, WorkRule] = {}
"""Work of every heavy primitive, by name."""


def work_rule(*names: str) -> Callable[[WorkRule], WorkRule]:
    """Decorator that registers the work of primitives by their names."""

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
    for axis, source in zip(outputs[0].axes, [*batch, *m, *n], strict=True):
        _equal(source, axis)
    return _product(2.0, batch, m, n, k)


@work_rule("ragged_dot", "ragged_dot_general")
def ragged_dot(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of grouped products: each row meets one matrix of the group, so that groups add no flop."""
    left, right, _ = inputs
    numbers = params.get("ragged_dot_dimension_numbers")
    if numbers is None:
        (left_sum, right_sum), ragged, group = ((1,), (1,)), (0,), (0,)
    else:
        (left_sum, right_sum), _ = numbers.dot_dimension_numbers
        ragged, group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    for ours, theirs in zip(left_sum, right_sum, strict=True):
        _equal(left.axes[ours], right.axes[theirs])
    k = [left.axes[place] for place in left_sum]
    m = [axis for place, axis in enumerate(left.axes) if place not in left_sum]
    n = [axis for place, axis in enumerate(right.axes) if place not in (*right_sum, *group)]
    inside = set(ragged) & set(left_sum)  # the rows of each group are summed over: gradients of weights
    result = outputs[0].axes[-len(m) - len(n) :] if inside else outputs[0].axes
    for axis, source in zip(result, [*m, *n], strict=False):
        if axis.size == source.size:
            _equal(source, axis)
    return _product(2.0, [], m, n, k)


@work_rule("conv_general_dilated")
def convolution_work(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a convolution: of one dimension or two, grouped, or of three dimensions."""
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
        if left.shape[source] == result.shape[target] and window == (1, 1, 1):
            _equal(left.axes[source], result.axes[target])
    holes = math.prod(params["lhs_dilation"])
    rows = [axis for place, axis in enumerate(result.axes) if place != numbers.out_spec[1]]
    columns, depth = result.axes[numbers.out_spec[1]], [channels, *taps]
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
"""Masks that leave each query half of the keys on average."""

BACKWARD_MATMULS = 5.0
"""Matmuls of the backward pass of fused attention: scores again, and gradients of all four factors [1]."""


def _attention(query: Value, key: Value, value: Value, params: Mapping[str, Any], matmuls: float) -> Work:
    """Work of fused attention that passes `matmuls` times over all pairs of query and key."""
    length, heads = (1, 2) if int(params.get("layout", 0)) == 0 else (2, 1)
    for one, other in ((query, key), (key, value)):
        _equal(one.axes[0], other.axes[0])
        _equal(one.axes[3], other.axes[3])
    _equal(key.axes[heads], value.axes[heads])
    # Query heads that share a key are neighbours: the class of key heads is the major factor of that of query heads.
    shared = Axis(query.axes[heads].size // key.axes[heads].size)
    make_equal([query.axes[heads]], [key.axes[heads], shared])
    _equal(key.axes[length], value.axes[length])
    mask = str(getattr(params.get("mask_type"), "name", ""))
    seen = 0.5 if mask in CAUSAL else 1.0
    window = params.get("sliding_window_length") or 0
    keys = key.axes[length].size
    if 0 < window < keys:
        seen = window / keys * (1.0 - 0.5 * window / keys)
    queries, width = query.axes[length], query.axes[3]
    flop = Monomial(2.0 * seen * matmuls, [query.axes[0], query.axes[heads], queries, key.axes[length], width])
    batch = Monomial(1.0, [query.axes[0], query.axes[heads]])
    m, n, k = Monomial(1.0, [queries]), Monomial(1.0, [key.axes[length]]), Monomial(1.0, [width])
    return Work("attention", flop, m=m, n=n, k=k, batch=batch)


@work_rule("dot_product_attention_fwd_wrapper", "dot_product_attention_fwd", "dot_product_attention_fp8_fwd_wrapper")
def attention_pass(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the forward pass of cuDNN's fused attention: scores, and weighted values."""
    for axis, source in zip(outputs[0].axes, inputs[0].axes, strict=True):
        _equal(source, axis)
    return _attention(inputs[0], inputs[1], inputs[2], params, 2.0)


@work_rule("dot_product_attention_bwd_wrapper", "dot_product_attention_bwd", "dot_product_attention_fp8_bwd_wrapper")
def attention_gradients(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the backward pass of cuDNN's fused attention."""
    for gradient, value in zip(outputs[:3], inputs[:3], strict=True):
        for axis, source in zip(gradient.axes, value.axes, strict=True):
            _equal(source, axis)
    return _attention(inputs[0], inputs[1], inputs[2], params, BACKWARD_MATMULS)


@work_rule("scatter", "scatter_add", "scatter-add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub")
def scatter(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a scatter in place: updates are read, rows of the operand read and written."""
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
    place = Monomial(operand.itemsize, updates.all_axes)
    indices = [bytes_of(value) for value in inputs[1:-1]]
    return Work("scatter", read=[bytes_of(updates), *indices, place], written=[place])


@work_rule("dynamic_update_slice")
def dynamic_update_slice(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of an update in place: the new slice is read and written."""
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
    """Work of a sort: each pass over the data reads and writes it."""
    _in_place(inputs, outputs)
    return Work("sort")


@work_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a scan of prefixes."""
    _in_place(inputs, outputs)
    return Work("cumulative")


@work_rule("select_and_scatter_add", "select_and_gather_add", "select_and_scatter")
def pooling_gradient(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of the gradient of pooling by maximum."""
    _in_place(inputs, outputs)
    return Work("pooling")


@work_rule("fft")
def fourier(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a fast Fourier transform: 5 N log2 N flop for each."""
    _in_place(inputs, outputs)
    length = math.prod(params["fft_lengths"])
    return Work("fft", Monomial(5.0 * math.log2(max(length, 2)), inputs[0].axes))


@work_rule("random_gamma", "random_poisson")
def random(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of random numbers drawn by rejection."""
    return Work("random")


@work_rule("cholesky", "lu", "qr", "geqrf", "householder_product", "eigh", "svd")
def factorisation(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a dense factorisation of a batch of matrices, for its larger size taken twice: an upper limit."""
    _in_place(inputs, outputs)
    *batch, rows, columns = inputs[0].axes
    small = columns if columns.size <= rows.size else rows
    return Work("factorisation", Monomial(20.0, [*batch, rows, columns, small]))


@work_rule("triangular_solve")
def triangular_solve(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a solution with a triangular matrix: n^2 flop for each right side."""
    _in_place([inputs[1]], outputs)
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
"""Collective of each primitive that communicates."""


@work_rule(*COLLECTIVES)
def collective(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a collective that the program itself asks for."""
    _in_place(inputs, outputs)
    return Work("collective")


@work_rule("pallas_call")
def pallas_call(inputs: Sequence[Value], outputs: Sequence[Value], params: Mapping[str, Any]) -> Work:
    """Work of a Pallas kernel by its own cost estimate."""
    estimate = params.get("cost_estimate")
    axes = outputs[0].all_axes
    flop = float(estimate.flops) if estimate is not None else 0.0
    return Work("custom", Monomial(flop / max(math.prod(axis.size for axis in axes), 1), axes))


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
