"""Kernels timed on a chip: function, sizes for the chip, and arguments of given shapes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

DTYPES = {"bf16": jnp.bfloat16, "fp32": jnp.float32, "tf32": jnp.float32}
"""Array type of each number format: 32-bit matmuls run in tf32 by default on chips with tf32."""


class TimedKernel(NamedTuple):
    """Kernel and its sizes; inapplicable sizes are 0.

    Attributes:
        op: `matmul`, `grouped_matmul`, `attention`, `stream`, `launch`, `optimizer`.
        variant: `forward`, `dgrad`, `wgrad` of matmuls, `forward` or `backward` of attention, or the name of a stream.
        dtype: number format, see `DTYPES`.
        m: rows of the left matrix, or of a stream [1].
        k: length of the sums of a matmul [1].
        n: columns of the right matrix, or of a stream [1].
        n_groups: groups of a grouped matmul, each with m / n_groups rows [1].
        b: sequences of attention [1].
        n_heads: heads of attention [1].
        head_dim: width of a head [1].
        q_len: tokens of a sequence [token].
    """

    op: str
    variant: str
    dtype: str
    m: int = 0
    k: int = 0
    n: int = 0
    n_groups: int = 0
    b: int = 0
    n_heads: int = 0
    head_dim: int = 0
    q_len: int = 0


class TimedProgram(NamedTuple):
    """Function of a kernel, shapes of its arguments, and work.

    Attributes:
        function: function of the arguments.
        shapes: shapes of the arguments.
        flop: multiplications and additions of matmuls [flop].
        bytes: size of arguments and results, each moved once [byte].
    """

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    flop: float
    bytes: float


def program_of(kernel: TimedKernel, attention: str = "xla") -> TimedProgram:
    """JAX function of a kernel, with argument shapes, flop and bytes.

    Args:
        kernel: operation and sizes.
        attention: implementation of attention, `xla` or `cudnn`.
    """
    made = {
        "matmul": _matmul,
        "grouped_matmul": _grouped,
        "stream": _stream,
        "launch": _launch,
        "optimizer": _optimizer,
    }
    function, shapes, flop = _attention(kernel, attention) if kernel.op == "attention" else made[kernel.op](kernel)
    results = jax.eval_shape(function, *shapes)
    moved = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((shapes, results)))
    return TimedProgram(function, shapes, float(flop), float(moved))


_Parts = tuple[Callable[..., Any], tuple[Any, ...], float]
"""Function, shapes of its arguments and flop of a kernel."""


def _shape(dtype: str, *sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, DTYPES[dtype])


def _matmul(kernel: TimedKernel) -> _Parts:
    """Product of m x k and k x n: tokens times weights, the gradient of either, or a transposed factor."""
    m, k, n, precision = kernel.m, kernel.k, kernel.n, "highest" if kernel.dtype == "fp32" else None
    left, right = {
        "forward": ((m, k), (k, n)),
        "dgrad": ((m, k), (n, k)),
        "wgrad": ((k, m), (k, n)),
    }[kernel.variant]
    axes = (0 if kernel.variant == "wgrad" else 1, 1 if kernel.variant == "dgrad" else 0)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.dot_general(x, w, (((axes[0],), (axes[1],)), ((), ())), precision=precision)

    return product, (_shape(kernel.dtype, *left), _shape(kernel.dtype, *right)), 2.0 * m * k * n


def _grouped(kernel: TimedKernel) -> _Parts:
    """Product of m rows, sorted by group, with the matrix of their group."""
    groups, dtype = kernel.n_groups, kernel.dtype

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.ragged_dot(x, w, jnp.full(groups, kernel.m // groups, jnp.int32))

    shapes = (_shape(dtype, kernel.m, kernel.k), _shape(dtype, groups, kernel.k, kernel.n))
    return product, shapes, 2.0 * kernel.m * kernel.k * kernel.n


def _attention(kernel: TimedKernel, implementation: str) -> _Parts:
    """Causal attention, forward, or forward and backward; half of the pairs count."""
    kind: Any = implementation
    shape = _shape(kernel.dtype, kernel.b, kernel.q_len, kernel.n_heads, kernel.head_dim)

    def mixed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=kind)

    def gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return jax.grad(lambda *a: jnp.sum(mixed(*a).astype(jnp.float32) ** 2), (0, 1, 2))(q, k, v)

    forward = 2.0 * kernel.b * kernel.n_heads * kernel.q_len**2 * kernel.head_dim
    return (mixed, (shape,) * 3, forward) if kernel.variant == "forward" else (gradients, (shape,) * 3, 3.5 * forward)


def _rms_norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _loss(x: jax.Array) -> jax.Array:
    """Gradient of the mean cross-entropy by the logits."""
    labels = jnp.zeros(x.shape[0], jnp.int32)
    return jax.grad(lambda x: jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x.astype(jnp.float32), labels)))(
        x
    )


STREAMS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "gelu": jax.nn.gelu,
    "gelu_backward": lambda x, y: jax.vjp(jax.nn.gelu, x)[1](y)[0],
    "rms_norm": _rms_norm,
    "rms_norm_backward": lambda x, y: jax.vjp(_rms_norm, x)[1](y)[0],
    "softmax": lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype),
    "cross_entropy": _loss,
    "column_sum": lambda x: jnp.sum(x.astype(jnp.float32), axis=0),
    "gather": lambda x, rows: x[rows],
}
"""Memory-bound kernels by name."""


def _stream(kernel: TimedKernel) -> _Parts:
    """Kernel without matrix products, on m rows of n numbers."""
    one, function = _shape(kernel.dtype, kernel.m, kernel.n), STREAMS[kernel.variant]
    if kernel.variant == "gather":
        return function, (one, jax.ShapeDtypeStruct((kernel.m // 2,), jnp.int32)), 0.0
    two = kernel.variant in ("add", "gelu_backward", "rms_norm_backward")
    return function, (one, one) if two else (one,), 0.0


CHAIN = 16
"""Number of dependent kernels of a chain to time the gap between kernels [1]."""


def _launch(kernel: TimedKernel) -> _Parts:
    """Chain of tiny matmuls; each matmul starts after the end of the previous matmul."""

    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            x = x @ w
        return x

    return chain, (_shape(kernel.dtype, kernel.m, kernel.m),) * 2, 2.0 * CHAIN * kernel.m**3


def _optimizer(kernel: TimedKernel) -> _Parts:
    """Update of n parameters by AdamW."""
    rule, weights = optax.adamw(1e-4), _shape("fp32", kernel.n)

    def update(weights: Any, moments: Any, gradients: Any) -> Any:
        updates, moments = rule.update(gradients, moments, weights)
        return optax.apply_updates(weights, updates), moments

    return update, (weights, jax.eval_shape(rule.init, weights), weights), 0.0


WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Widths of matrices, for chips of any speed [1]."""

ROWS = (256, 1024, 4096, 16384, 131072)
"""Rows of streams [1]."""

LARGE = 32768
"""Rows of a stream too large for any cache [1]."""


def formats_on(platform: str) -> tuple[str, ...]:
    """Number formats of the timed matmuls on a JAX platform, the training format first; CPUs have no tf32."""
    return ("fp32", "bf16") if platform == "cpu" else ("bf16", "tf32", "fp32")


@functools.cache
def every_kernel(platform: str) -> tuple[TimedKernel, ...]:
    """Kernels for chips of any speed, operations in turn, small sizes first; a `Stopwatch` omits unsuitable kernels."""
    dtype, *others = formats_on(platform)
    streamed = (dtype,) if platform == "cpu" else (dtype, "fp32")
    squares = [TimedKernel("matmul", "forward", dtype, width, width, width) for width in WIDTHS]
    in_turn = (
        [TimedKernel("stream", name, one, m=m, n=1024) for m in ROWS for name in STREAMS for one in streamed],
        [TimedKernel("matmul", variant, dtype, *sizes) for d in WIDTHS[:-1] for variant, sizes in _shapes_of_layers(d)],
        [TimedKernel("matmul", "forward", other, width, width, width) for other in others for width in WIDTHS],
        [
            TimedKernel("attention", variant, dtype, b=2, n_heads=8, head_dim=width, q_len=length)
            for length in (256, 512, 1024, 2048, 4096, 8192)
            for width in (32, 64, 128)
            for variant in ("forward", "backward")
        ],
        [TimedKernel("optimizer", "adamw", "fp32", n=n) for n in (10**5, 10**6, 10**7, 10**8)],
        [TimedKernel("grouped_matmul", "forward", dtype, 8 * d, d, d, 8) for d in WIDTHS[1:]],
    )
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*in_turn))
    first = (TimedKernel("launch", "chain", "fp32", m=16), TimedKernel("stream", "add", dtype, m=LARGE, n=1024))
    return (*first, *squares, *filter(None, rounds))


def _shapes_of_layers(d: int) -> list[tuple[str, tuple[int, int, int]]]:
    """Matmuls of the MLP of a transformer of width d with their gradients, for 2 d and 8 d tokens."""
    return [
        shape
        for tokens in (2 * d, 8 * d)
        for shape in (
            ("forward", (tokens, d, 4 * d)),
            ("forward", (tokens, 4 * d, d)),
            ("dgrad", (tokens, 4 * d, d)),
            ("wgrad", (d, tokens, 4 * d)),
        )
    ]
