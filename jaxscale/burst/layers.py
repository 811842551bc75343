"""Layers of convolutional and vision networks: shapes, parameters, and the GPU kernels of a training step.

A layer consists of a few kernels (forward, gradient of the activations, gradient of the weights, element-wise work);
each kernel has flop, matrix dimensions and memory traffic. `layer_time.py` converts these numbers to seconds.
"""

import math
from typing import NamedTuple

FLOAT_BYTES = 4
"""Bytes of a 32-bit number, the format of activations, weights and gradients in the DeepPool profiles [byte]."""

KERNEL_KINDS = (
    "conv_first_forward",
    "conv_first_weights",
    "conv_forward",
    "conv_data",
    "conv_weights",
    "pointwise_forward",
    "pointwise_data",
    "pointwise_weights",
    "linear_forward",
    "linear_data",
    "linear_weights",
    "max_pool",
    "average_pool",
    "elementwise",
    "concatenate",
)
"""Kernel kinds with coefficients; `*_data` and `*_weights` are the two halves of a backward pass."""

KERNEL_FAMILIES = ("conv_first", "conv", "pointwise", "linear", "max_pool", "average_pool", "elementwise")
"""Groups of kernel kinds with a common launch latency and shape of the efficiency curve."""


def family_of(kind: str) -> int:
    """Index in `KERNEL_FAMILIES` of a kernel kind [1]."""
    if kind == "concatenate":
        return KERNEL_FAMILIES.index("elementwise")
    name = kind if kind in KERNEL_FAMILIES else kind.rsplit("_", 1)[0]
    return KERNEL_FAMILIES.index(name)


class Kernel(NamedTuple):
    """Launch of a GPU kernel; quantities are per sample unless stated otherwise.

    Attributes:
        kind: one of `KERNEL_KINDS`.
        flop: floating-point operations per sample [flop].
        depth: K of the matrix product, length of the sum of one output element [1].
        width: N, columns of the output [1].
        rows: M, output rows per sample [1].
        sample_bytes: memory traffic proportional to the batch [byte].
        fixed_bytes: memory traffic of the weights, independent of the batch [byte].
    """

    kind: str
    flop: float = 0.0
    depth: float = 1.0
    width: float = 1.0
    rows: float = 1.0
    sample_bytes: float = 0.0
    fixed_bytes: float = 0.0


class Layer(NamedTuple):
    """Layer of a network: shapes, parameters, and the kernels of a training step.

    Attributes:
        name: short label for reports.
        key: identifier of measured times: operation, dimensions, input shape.
        input_shape: channels and spatial extent of the input [1].
        output_shape: channels and spatial extent of the output [1].
        weights: trainable parameters [1].
        flop: flop of the forward pass of a sample [flop].
        kernels: kernels of a training step.
        backward: kernels of the backward pass, a subset of `kernels`.
        released_sync_elements: elements synchronised by the released planner in place of `weights` [1].
        keeps_layout: whether the layer cannot change the number of GPUs (activations, flatten).
        parts: keys of operations whose measured times sum to the time of an unmeasured layer.
        is_beside: whether the layer takes the input of the preceding layer, and the two outputs are concatenated.
    """

    name: str
    key: tuple
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    weights: int = 0
    flop: float = 0.0
    kernels: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    released_sync_elements: float = 0.0
    keeps_layout: bool = False
    parts: tuple[tuple, ...] = ()
    is_beside: bool = False


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a tensor of the given shape [1]."""
    return math.prod(shape)


def elementwise(shape: tuple[int, ...], passes: float, kind: str = "elementwise") -> Kernel:
    """Elementwise kernel with `passes` transfers of a tensor between memory and chip."""
    return Kernel(kind, sample_bytes=passes * FLOAT_BYTES * elements(shape))


def normalisation(shape: tuple[int, ...]) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels of batch normalisation: 2 reads and 1 write forward; 4 reads and 1 write backward.

    The backward pass reads x and dy twice.

    Args:
        shape: channels, then spatial extent.

    Returns:
        Kernels of the forward pass, kernels of the backward pass.
    """
    return (elementwise(shape, 3.0),), (elementwise(shape, 5.0),)


def activation(shape: tuple[int, ...]) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Kernels of ReLU: 1 read and 1 write forward; backward, reads of dy and y and a write of dx.

    Args:
        shape: channels, then spatial extent.

    Returns:
        Kernels of the forward pass, kernels of the backward pass.
    """
    return (elementwise(shape, 2.0),), (elementwise(shape, 3.0),)


def convolution(
    input_shape: tuple[int, ...],
    channels: int,
    kernel: tuple[int, ...],
    stride: int,
    padding: tuple[int, ...],
    *,
    normalised: bool,
    activated: bool = True,
) -> Layer:
    r"""Convolution in two or three dimensions, as the implicit matrix product of cuDNN.

    The forward pass takes $2\,|k|\,C_{in} C_{out} |y|$ flop, and the gradients of activations and weights take as many
    each.

    Args:
        input_shape: channels, then spatial extent.
        channels: output channels [1].
        kernel: extent per dimension [1].
        stride: stride, equal in all dimensions [1].
        padding: padding per dimension [1].
        normalised: whether batch normalisation is part of the layer.
        activated: whether ReLU is part of the layer.

    Returns:
        The layer; `kernels` holds forward and backward.
    """
    c_in, extent = input_shape[0], input_shape[1:]
    out = tuple((n + 2 * p - k) // stride + 1 for n, k, p in zip(extent, kernel, padding, strict=True))
    area, points = math.prod(kernel), math.prod(out)
    output_shape = (channels, *out)
    # 2 |k| C_in C_out |y|
    flop, weights = 2.0 * area * c_in * channels * points, area * c_in * channels
    # Bytes of input and output per sample, and of the weights.
    moved, held = FLOAT_BYTES * (elements(input_shape) + elements(output_shape)), FLOAT_BYTES * weights
    # Images have at most 4 channels.
    kind = "conv_first" if c_in <= 4 else "conv" if area > 1 else "pointwise"
    forward = [Kernel(f"{kind}_forward", flop, area * c_in, channels, points, moved, held)]
    # K is the number of output positions.
    backward = [Kernel(f"{kind}_weights", flop, points, area * c_in, 1.0, moved, 2.0 * held)]
    # The image needs no gradient.
    if kind != "conv_first":
        backward.insert(0, Kernel(f"{kind}_data", flop, area * channels, c_in, math.prod(extent), moved, held))
    for wanted, pair in ((normalised, normalisation), (activated, activation)):
        if wanted:
            ahead, back = pair(output_shape)
            forward, backward = [*forward, *ahead], [*backward, *back]
    key = ("conv", c_in, channels, kernel, stride, padding, input_shape)
    size = "x".join(map(str, kernel))
    return Layer(
        f"conv {size} {channels}",
        key,
        input_shape,
        output_shape,
        weights,
        flop,
        tuple(forward + backward),
        tuple(backward),
        # k_w k_h F + k_w k_h of the released planner, F the output's last extent.
        area * (out[-1] + 1.0),
    )


def linear(input_shape: tuple[int, ...], features: int, rows: int = 1) -> Layer:
    """Fully connected layer with bias; 2 K N flop per row and pass.

    Args:
        input_shape: shape of a sample, as `rows` rows of K inputs.
        features: N, outputs per row [1].
        rows: rows per sample, for example tokens [1].
    """
    depth = elements(input_shape) // rows
    # Weights include the bias.
    flop, weights = 2.0 * rows * depth * features, depth * features + features
    moved, held = FLOAT_BYTES * rows * (depth + features), FLOAT_BYTES * depth * features
    forward = (Kernel("linear_forward", flop, depth, features, rows, moved, held),)
    backward = (
        Kernel("linear_data", flop, features, depth, rows, moved, held),
        Kernel("linear_weights", flop, rows, depth, 1.0, moved, 2.0 * held),
    )
    output = (features,) if rows == 1 else (features, rows)
    key = ("linear", depth, features, input_shape)
    return Layer(
        f"linear {features}", key, input_shape, output, weights, flop, forward + backward, backward, float(weights)
    )


def forward_only(layer: Layer) -> Layer:
    """Layer without its backward pass, for profiles that time the backward pass with the activation that follows."""
    return layer._replace(kernels=layer.kernels[: len(layer.kernels) - len(layer.backward)])


def pool(input_shape: tuple[int, ...], kind: str, kernel: int, stride: int, padding: int) -> Layer:
    """Maximum or average pooling: forward, a read of x and a write of y; backward, a read of dy and a write of dx."""
    output = (input_shape[0], *((n + 2 * padding - kernel) // stride + 1 for n in input_shape[1:]))
    moved = Kernel(kind, sample_bytes=FLOAT_BYTES * (elements(input_shape) + elements(output)))
    key = (kind, kernel, stride, padding, input_shape)
    return Layer(f"{kind.replace('_', ' ')} {kernel}", key, input_shape, output, kernels=(moved, moved))


def relu(input_shape: tuple[int, ...], previous: Layer) -> Layer:
    """ReLU as a separate layer with the backward pass of the preceding layer, as in the profiles."""
    ahead, back = activation(input_shape)
    # The profiles time the preceding layer's backward pass with the activation.
    kernels = ahead + back + tuple(kernel for kernel in previous.backward)
    return Layer("relu", ("relu", input_shape), input_shape, input_shape, kernels=kernels, keeps_layout=True)


def reshape(name: str, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> Layer:
    """Layer without arithmetic, for example flattening: a kernel launch with negligible memory traffic."""
    keeps = name == "flatten"
    return Layer(
        name, (name, input_shape), input_shape, output_shape, kernels=(Kernel("elementwise"),), keeps_layout=keeps
    )


def global_pool(input_shape: tuple[int, ...]) -> Layer:
    """Average pooling over all positions."""
    work = elementwise(input_shape, 1.0)
    return Layer("global pool", ("globalpool", input_shape), input_shape, (input_shape[0], 1, 1), kernels=(work, work))


def concatenation(input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> Layer:
    """Concatenation of tensors along the channels: a read and a write in each of forward and backward pass."""
    work = elementwise(output_shape, 2.0, "concatenate")
    return Layer("concatenate", ("concat", output_shape), input_shape, output_shape, kernels=(work, work))


def bottleneck(input_shape: tuple[int, ...], planes: int, stride: int, widening: int) -> Layer:
    """Residual bottleneck of 1x1, 3x3 and 1x1 convolutions with batch normalisation, as a single layer.

    The shortcut has a 1x1 convolution if the shape changes.

    Args:
        input_shape: channels, height, width.
        planes: a quarter of the output channels [1].
        stride: stride of the 3x3 convolution [1].
        widening: inner channels in units of `planes`; 2 for a wide residual network [1].

    Returns:
        A layer with the kernels of all convolutions, the addition and the last ReLU.
    """
    channels, inner = 4 * planes, planes * widening
    one, three, none = (1, 1), (3, 3), (0, 0)
    reduce = convolution(input_shape, inner, one, 1, none, normalised=True)
    spatial = convolution(reduce.output_shape, inner, three, stride, (1, 1), normalised=True)
    # The last ReLU comes after the addition.
    expand = convolution(spatial.output_shape, channels, one, 1, none, normalised=True, activated=False)
    parts = [reduce, spatial, expand]
    if stride != 1 or input_shape[0] != channels:
        parts.append(convolution(input_shape, channels, one, stride, none, normalised=True, activated=False))
    # Two reads and a write.
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
    """Self-attention block of a transformer layer, with the scores stored in memory (n x n per head)."""
    n, d = input_shape
    projections = [linear(input_shape, 3 * d, n), linear(input_shape, d, n)]
    # Scores (heads, n, n); 2 n^2 d flop per product.
    score_bytes, flop = FLOAT_BYTES * heads * n * n, 2.0 * n * n * d
    product = Kernel("linear_forward", flop, d / heads, n, n, score_bytes + 2 * FLOAT_BYTES * n * d)
    # Two gradients per product, hence twice the flop.
    backward = Kernel("linear_data", 2 * flop, d / heads, n, n, 2 * score_bytes + 4 * FLOAT_BYTES * n * d)
    softmax = tuple(Kernel("elementwise", sample_bytes=passes * score_bytes) for passes in (2.0, 2.0, 3.0))
    kernels = tuple(kernel for layer in projections for kernel in layer.kernels)
    kernels += (product, product, backward, backward, *softmax, *(elementwise(input_shape, 2.0),) * 4)
    weights = sum(layer.weights for layer in projections)
    total = sum(layer.flop for layer in projections) + 2 * flop
    key = ("attention", d, heads, input_shape)
    return Layer("attention", key, input_shape, input_shape, weights, total, kernels, released_sync_elements=weights)


def mlp(input_shape: tuple[int, ...], hidden: int) -> Layer:
    """Feed-forward block of a transformer layer."""
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
    # Patches and the class token.
    output = (n + 1, dim)
    kernels = projection.kernels + (elementwise(output, 2.0),) * 6
    key = ("patch", dim, patch, input_shape)
    flop, synced = projection.flop, projection.released_sync_elements
    return Layer("patch", key, input_shape, output, projection.weights, flop, kernels, (), synced)


def token(input_shape: tuple[int, ...]) -> Layer:
    """Selection of the class token before the output layer."""
    work = (elementwise(input_shape, 2.0),) * 2
    return Layer("token", ("token", input_shape), input_shape, (input_shape[1],), kernels=work)


def up_convolution(input_shape: tuple[int, ...], channels: int) -> Layer:
    """Transposed convolution with kernel and stride 2: the adjoint of a strided convolution, with equal flop."""
    c_in, *extent = input_shape
    output = (channels, *(2 * n for n in extent))
    rank = len(extent)
    # Forward and backward products of the adjoint are equal in size.
    adjoint = convolution(output, c_in, (2,) * rank, 2, (0,) * rank, normalised=False, activated=False)
    return adjoint._replace(
        name=f"upconv {channels}",
        key=("upconv", channels, input_shape),
        input_shape=input_shape,
        output_shape=output,
    )


def skip(input_shape: tuple[int, ...], channels: int) -> Layer:
    """Concatenation with `channels` channels of the encoder; a change of the number of GPUs moves the two tensors."""
    # The encoder's tensor moves as well.
    joined = (input_shape[0] + channels, *input_shape[1:])
    return concatenation(joined, joined)._replace(name=f"skip {channels}", key=("skip", channels, input_shape))
