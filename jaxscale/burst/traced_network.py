"""Networks of the burst study as JAX training steps for tracing, built from the layer tables.

Activations and weights have 32 bits, as in the tables. The loss is a mean square, since no table states a loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxscale.burst.layer_graph import Step, network_entry, network_steps
from jaxscale.burst.layers import Layer
from jaxscale.examples.training import array_of, descent_step, layer_norm, weights_of
from jaxscale.examples.vision_steps import batch_norm


def network_step(name: str = "resnet50", batch: int = 32) -> tuple[Any, ...]:
    """Training step of a network of the burst study by plain gradient descent, with the shapes of the arguments.

    Args:
        name: `vgg16`, `resnet50`, `wide_resnet101_2`, `inception_v3`, `vit`, `unet` or `cosmoflow`.
        batch: number of samples [1].

    Returns:
        The step, abstract weights, images [sample, place, channel] and targets: arguments of `js.trace`.

    Raises:
        InputError: unknown network.
    """
    steps, table = network_steps(name), network_entry(name).table
    channels, *extent = table["input"]
    images, weights = array_of((batch, *extent, channels)), _Weights()
    # An abstract pass records the shapes of the weights.
    output = jax.eval_shape(lambda x: _Forward(table, weights).run(steps, x), images)

    def loss(given: dict[str, jax.Array], images: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.mean((_Forward(table, _Weights(given)).run(steps, images) - targets) ** 2)

    return descent_step(loss), weights_of(weights.shapes), images, array_of(output.shape)


class _Weights:
    """Weights by name: given arrays, or zeros with recorded shapes."""

    def __init__(self, given: Mapping[str, jax.Array] | None = None):
        self.given = given
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, name: str, *shape: int) -> jax.Array:
        self.shapes[name] = shape
        return jnp.zeros(shape, jnp.float32) if self.given is None else self.given[name]


class _Forward:
    """Forward pass of a layer table, channels last."""

    def __init__(self, table: Mapping[str, Any], weights: _Weights):
        self.weights = weights
        self.is_normalised, self.is_activated = table["batch_norm"], not table["activation_rows"]
        self.skips: list[jax.Array] = []
        self.place = ""

    def run(self, steps: Sequence[Step], x: jax.Array) -> jax.Array:
        """Output of the network."""
        entry, before, outputs = x, x, []
        for place, step in enumerate(steps):
            self.place = f"layer{place}"
            if step.first:
                # Every branch starts from the output of the preceding stage.
                x = entry
            if step.layer.name == "join":
                outputs.append(x)
                x = jnp.concatenate(outputs, -1)
                outputs = [] if step.closes else outputs
            elif step.layer.is_beside:
                x = jnp.concatenate([x, self.layer(step.layer, before)], -1)
            else:
                before, x = x, self.layer(step.layer, x)
            # The output of a stage is complete at the last step.
            entry = x if step.closes else entry
        return x

    def layer(self, layer: Layer, x: jax.Array) -> jax.Array:
        """Output of a layer, by the operation in the layer's key."""
        operation, *sizes = layer.key
        # The last item of a key is the input shape.
        return getattr(self, operation)(x, *sizes[:-1])

    def convolve(self, x: jax.Array, name: str, channels: int, kernel: Sequence[int], **window: Any) -> jax.Array:
        """Convolution with a named weight."""
        spatial = "DHW"[-len(kernel) :]
        weight = self.weights(f"{self.place}.{name}", *kernel, x.shape[-1], channels)
        numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        return lax.conv_general_dilated(x, weight, dimension_numbers=numbers, **window)

    def normed(self, x: jax.Array, name: str) -> jax.Array:
        """Batch normalisation with gain and bias."""
        gain, bias = (self.weights(f"{self.place}.{name}.{part}", x.shape[-1]) for part in ("gain", "bias"))
        return batch_norm(x, gain, bias)

    def unit(self, x: jax.Array, name: str, channels: int, kernel: Sequence[int], stride: int = 1) -> jax.Array:
        """Convolution with batch normalisation, padded to keep the extent."""
        # Half padding of odd kernels keeps the extent.
        pads = [((size - 1) // 2, (size - 1) // 2) for size in kernel]
        strides = (stride,) * len(kernel)
        return self.normed(self.convolve(x, name, channels, kernel, window_strides=strides, padding=pads), name)

    def conv(
        self, x: jax.Array, _: int, channels: int, kernel: Sequence[int], stride: int, padding: Sequence[int]
    ) -> jax.Array:
        """Convolution, with normalisation and activation if included in the table row."""
        pads, strides = [(size, size) for size in padding], (stride,) * len(kernel)
        x = self.convolve(x, "kernel", channels, kernel, window_strides=strides, padding=pads)
        x = self.normed(x, "norm") if self.is_normalised else x
        return jax.nn.relu(x) if self.is_activated else x

    def bottleneck(self, x: jax.Array, channels: int, planes: int, widening: int, stride: int) -> jax.Array:
        """Residual bottleneck, with a convolution in the shortcut if the shape changes."""
        inner = jax.nn.relu(self.unit(x, "in", planes * widening, (1, 1)))
        inner = jax.nn.relu(self.unit(inner, "mid", planes * widening, (3, 3), stride))
        inner = self.unit(inner, "out", 4 * planes, (1, 1))
        is_other = stride != 1 or channels != 4 * planes
        return jax.nn.relu(inner + (self.unit(x, "skip", 4 * planes, (1, 1), stride) if is_other else x))

    def max_pool(self, x: jax.Array, kernel: int, stride: int, padding: int) -> jax.Array:
        """Maximum over windows; the input is kept for a later join."""
        # Encoder output for the later join.
        self.skips.append(x)
        return lax.reduce_window(x, -jnp.inf, lax.max, *_window(x, kernel, stride, padding))

    def average_pool(self, x: jax.Array, kernel: int, stride: int, padding: int) -> jax.Array:
        """Mean over windows."""
        total = lax.reduce_window(x, 0.0, lax.add, *_window(x, kernel, stride, padding))
        # Padding counts in the mean, as in torch by default.
        return total / kernel ** (x.ndim - 2)

    def upconv(self, x: jax.Array, channels: int) -> jax.Array:
        """Transposed convolution of stride 2."""
        rank = x.ndim - 2
        spatial = "DHW"[-rank:]
        weight = self.weights(f"{self.place}.kernel", *(2,) * rank, x.shape[-1], channels)
        numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        return lax.conv_transpose(x, weight, (2,) * rank, "VALID", dimension_numbers=numbers)

    def skip(self, x: jax.Array, _: int) -> jax.Array:
        """Concatenation with the encoder output of equal extent."""
        return jnp.concatenate([x, self.skips.pop()], -1)

    def matmul(self, x: jax.Array, name: str, features: int) -> jax.Array:
        """Product with a weight matrix."""
        return x @ self.weights(f"{self.place}.{name}", x.shape[-1], features)

    def linear(self, x: jax.Array, _: int, features: int) -> jax.Array:
        """Linear layer with a bias."""
        return self.matmul(x, "kernel", features) + self.weights(f"{self.place}.bias", features)

    def relu(self, x: jax.Array) -> jax.Array:
        """ReLU."""
        return jax.nn.relu(x)

    def flatten(self, x: jax.Array) -> jax.Array:
        """Tensor with all positions and channels in one axis."""
        return x.reshape(x.shape[0], -1)

    def globalpool(self, x: jax.Array) -> jax.Array:
        """Mean over all positions."""
        return jnp.mean(x, tuple(range(1, x.ndim - 1)), keepdims=True)

    def patch(self, x: jax.Array, width: int, patch: int) -> jax.Array:
        """Linear projection of patches, with class token and position embedding."""
        n, height, wide, channels = x.shape
        # (n, rows, patch, columns, patch, channels) -> (n, rows, columns, patch, patch, channels)
        x = x.reshape(n, height // patch, patch, wide // patch, patch, channels).transpose(0, 1, 3, 2, 4, 5)
        x = self.matmul(x.reshape(n, -1, patch * patch * channels), "kernel", width)
        first = jnp.broadcast_to(self.weights(f"{self.place}.token", 1, width), (n, 1, width))
        return jnp.concatenate([first, x], 1) + self.weights(f"{self.place}.places", x.shape[1] + 1, width)

    def attention(self, x: jax.Array, width: int, heads: int) -> jax.Array:
        """Residual self-attention with materialised scores."""
        # (n, place, q/k/v, head, feature)
        parts = self.matmul(layer_norm(x), "qkv", 3 * width).reshape(*x.shape[:2], 3, heads, width // heads)
        query, key, value = (parts[:, :, place] for place in range(3))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // heads) ** -0.5)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, value).reshape(x.shape)
        return x + self.matmul(mixed, "out", width)

    def mlp(self, x: jax.Array, width: int, hidden: int) -> jax.Array:
        """Residual feed-forward layer."""
        return x + self.matmul(jax.nn.gelu(self.matmul(layer_norm(x), "up", hidden)), "down", width)

    def token(self, x: jax.Array) -> jax.Array:
        """Class token."""
        return x[:, 0]


def _window(x: jax.Array, kernel: int, stride: int, padding: int) -> tuple[Any, ...]:
    """Windows, strides and padding of pooling over all spatial axes."""
    rank = x.ndim - 2
    pads = ((0, 0), *((padding, padding),) * rank, (0, 0))
    return (1, *(kernel,) * rank, 1), (1, *(stride,) * rank, 1), pads
