"""Layers that are blocks of several operations: residual bottlenecks, transformer halves, up-convolutions."""

from jaxscale.burst.networks.layers import (
    FLOAT_BYTES,
    Kernel,
    Layer,
    activation,
    concatenation,
    convolution,
    elementwise,
    linear,
)


def bottleneck(input_shape: tuple[int, ...], planes: int, stride: int, widening: int) -> Layer:
    """Residual bottleneck 1x1, 3x3, 1x1 with batch normalisation; a 1x1 short cut where the shape changes.

    Args:
        input_shape: channels, height, width.
        planes: a quarter of the output channels [1].
        stride: of the 3x3 convolution [1].
        widening: inner channels in units of `planes`; 2 for a wide residual network [1].

    Returns:
        One layer with the kernels of its convolutions, the addition and the last ReLU.
    """
    channels, inner = 4 * planes, planes * widening
    one, three, none = (1, 1), (3, 3), (0, 0)
    reduce = convolution(input_shape, inner, one, 1, none, normalised=True)
    spatial = convolution(reduce.output_shape, inner, three, stride, (1, 1), normalised=True)
    expand = convolution(spatial.output_shape, channels, one, 1, none, normalised=True, activated=False)
    parts = [reduce, spatial, expand]
    if stride != 1 or input_shape[0] != channels:
        parts.append(convolution(input_shape, channels, one, stride, none, normalised=True, activated=False))
    addition = elementwise(expand.output_shape, 3.0)
    ahead, back = activation(expand.output_shape)
    kernels = tuple(kernel for part in parts for kernel in part.kernels) + (addition, *ahead, *back)
    return Layer(
        f"bottleneck {planes}",
        ("bottleneck", input_shape[0], planes, widening, stride, input_shape),
        input_shape,
        expand.output_shape,
        sum(part.weights for part in parts),
        sum(part.flop for part in parts),
        kernels,
        released_sync_elements=sum(part.released_sync_elements for part in parts),
        parts=tuple(part.key for part in parts),
    )


def attention(input_shape: tuple[int, ...], heads: int) -> Layer:
    """Self-attention half of a transformer layer with materialised scores (n x n per head)."""
    n, d = input_shape
    projections = [linear(input_shape, 3 * d, n), linear(input_shape, d, n)]
    score_bytes, flop = FLOAT_BYTES * heads * n * n, 2.0 * n * n * d
    product = Kernel("linear_forward", flop, d / heads, n, n, score_bytes + 2 * FLOAT_BYTES * n * d)
    backward = Kernel("linear_data", 2 * flop, d / heads, n, n, 2 * score_bytes + 4 * FLOAT_BYTES * n * d)
    softmax = tuple(Kernel("elementwise", sample_bytes=passes * score_bytes) for passes in (2.0, 2.0, 3.0))
    kernels = tuple(kernel for layer in projections for kernel in layer.kernels)
    kernels += (product, product, backward, backward, *softmax, *(elementwise(input_shape, 2.0),) * 4)
    weights = sum(layer.weights for layer in projections)
    total = sum(layer.flop for layer in projections) + 2 * flop
    key = ("attention", d, heads, input_shape)
    return Layer("attention", key, input_shape, input_shape, weights, total, kernels, released_sync_elements=weights)


def mlp(input_shape: tuple[int, ...], hidden: int) -> Layer:
    """Feed-forward half of a transformer layer."""
    n, d = input_shape
    up = linear(input_shape, hidden, n)
    down = linear((n, hidden), d, n)
    kernels = up.kernels + down.kernels + (elementwise(input_shape, 2.0),) * 6 + (elementwise((n, hidden), 2.0),) * 4
    weights = up.weights + down.weights
    key = ("mlp", d, hidden, input_shape)
    return Layer(
        "mlp", key, input_shape, input_shape, weights, up.flop + down.flop, kernels, released_sync_elements=weights
    )


def patch_embedding(input_shape: tuple[int, ...], dim: int, patch: int) -> Layer:
    """Linear projection of the image patches, class token and position embedding."""
    c, height, width = input_shape
    n = (height // patch) * (width // patch)
    projection = linear((n, patch * patch * c), dim, n)
    output = (n + 1, dim)
    kernels = projection.kernels + (elementwise(output, 2.0),) * 6
    key = ("patch", dim, patch, input_shape)
    flop, synced = projection.flop, projection.released_sync_elements
    return Layer("patch", key, input_shape, output, projection.weights, flop, kernels, (), synced)


def token(input_shape: tuple[int, ...]) -> Layer:
    """Selection of the class token before the head."""
    work = (elementwise(input_shape, 2.0),) * 2
    return Layer("token", ("token", input_shape), input_shape, (input_shape[1],), kernels=work)


def up_convolution(input_shape: tuple[int, ...], channels: int) -> Layer:
    """Transposed convolution with kernel and stride 2: the adjoint of a strided one, so the same three products."""
    c_in, *extent = input_shape
    output = (channels, *(2 * n for n in extent))
    rank = len(extent)
    adjoint = convolution(output, c_in, (2,) * rank, 2, (0,) * rank, normalised=False, activated=False)
    return adjoint._replace(
        name=f"upconv {channels}",
        key=("upconv", channels, input_shape),
        input_shape=input_shape,
        output_shape=output,
    )


def skip(input_shape: tuple[int, ...], channels: int) -> Layer:
    """Join with `channels` channels of the encoder; both tensors count as the input that a change of layout moves."""
    joined = (input_shape[0] + channels, *input_shape[1:])
    return concatenation(joined, joined)._replace(name=f"skip {channels}", key=("skip", channels, input_shape))
