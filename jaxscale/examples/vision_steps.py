"""Steps of convolutional networks: ResNet-50, RetinaNet on ResNeXt-50, UNet-3D."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxscale.examples.training import array_of, descent_step, mean_cross_entropy, weights_of

Shape = tuple[int, ...]

Norm = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Blocks and inner channels of the stages of ResNet-50 (He et al. 2016, arXiv 1512.03385, table 1)."""


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Convolution of channels-last images in 16 bits, in two dimensions or three."""
    spatial = "DHW"[-(kernel.ndim - 2) :]
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    strides = (stride,) * (kernel.ndim - 2)
    pads = [((size - 1) // 2, size // 2) for size in kernel.shape[:-2]]
    return lax.conv_general_dilated(
        x, kernel.astype(x.dtype), strides, pads, dimension_numbers=numbers, feature_group_count=groups
    )


def batch_norm(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    """Norm over the batch and all places, in 32 bits."""
    wide, axes = x.astype(jnp.float32), tuple(range(x.ndim - 1))
    mean, square = jnp.mean(wide, axes), jnp.mean(wide * wide, axes)
    return ((wide - mean) * lax.rsqrt(square - mean * mean + 1e-5) * gain + bias).astype(x.dtype)


def residual_shapes(width: int, groups: int) -> dict[str, Shape]:
    """Weights of ResNet-50 or, with groups, of ResNeXt-50: kernels, gains and biases."""
    shapes: dict[str, Shape] = {"stem": (7, 7, 3, 64)}
    channels = 64
    for stage, (blocks, inner) in enumerate(STAGES):
        for block in range(blocks):
            name, middle = f"stage{stage}.{block}", inner * width // 64
            shapes[f"{name}.in"] = (1, 1, channels, middle)
            shapes[f"{name}.mid"] = (3, 3, middle // groups, middle)
            shapes[f"{name}.out"] = (1, 1, middle, 4 * inner)
            if block == 0:
                shapes[f"{name}.skip"] = (1, 1, channels, 4 * inner)
            channels = 4 * inner
    for name, shape in list(shapes.items()):
        shapes[f"{name}.gain"] = shapes[f"{name}.bias"] = shape[-1:]
    return shapes


def frozen_norm(x: jax.Array, gain: jax.Array, bias: jax.Array) -> jax.Array:
    """Norm whose statistics do not change any more: a scale and a shift."""
    return (x.astype(jnp.float32) * gain + bias).astype(x.dtype)


def residual_network(w: dict[str, jax.Array], x: jax.Array, groups: int, norm: Norm = batch_norm) -> list[jax.Array]:
    """Outputs of the four stages."""

    def unit(x: jax.Array, name: str, stride: int = 1, groups: int = 1) -> jax.Array:
        return norm(convolve(x, w[name], stride, groups), w[f"{name}.gain"], w[f"{name}.bias"])

    x = jax.nn.relu(unit(x.astype(jnp.bfloat16), "stem", 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    outputs = []
    for stage, (blocks, _) in enumerate(STAGES):
        with jax.named_scope(f"stage{stage}"):
            for block in range(blocks):
                name, stride = f"stage{stage}.{block}", 2 if block == 0 and stage > 0 else 1
                inner = jax.nn.relu(unit(x, f"{name}.in"))
                inner = jax.nn.relu(unit(inner, f"{name}.mid", stride, groups))
                skip = unit(x, f"{name}.skip", stride) if block == 0 else x
                x = jax.nn.relu(unit(inner, f"{name}.out") + skip)
        outputs.append(x)
    return outputs


def resnet50(batch: int = 256, size: int = 224, n_classes: int = 1000) -> tuple[Any, ...]:
    """Training step of ResNet-50 by plain descent, and the shapes of its arguments."""
    shapes = {**residual_shapes(64, 1), "head": (2048, n_classes)}

    def loss(w: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
        pooled = jnp.mean(residual_network(w, images, 1)[-1].astype(jnp.float32), (1, 2))
        return mean_cross_entropy(pooled.astype(jnp.bfloat16) @ w["head"].astype(jnp.bfloat16), labels)

    return descent_step(loss), weights_of(shapes), array_of((batch, size, size, 3)), array_of((batch,), jnp.int32)


def retinanet(batch: int = 8, size: int = 800, n_classes: int = 264, anchors: int = 9) -> tuple[Any, ...]:
    """Training step of RetinaNet on ResNeXt-50 32x4d as in MLPerf Training, and the shapes of its arguments.

    Norms, stem and first stage are frozen. Losses are sums over all anchors, without the choice of those that match a
    box.
    """
    groups, width = 32, 256
    network = residual_shapes(128, groups)
    fixed = {name: shape for name, shape in network.items() if name.startswith(("stem", "stage0")) or len(shape) == 1}
    shapes: dict[str, Shape] = {name: shape for name, shape in network.items() if name not in fixed}
    for level, channels in enumerate((512, 1024, 2048)):
        shapes[f"lateral{level}"], shapes[f"smooth{level}"] = (1, 1, channels, width), (3, 3, width, width)
    shapes["down3"] = shapes["down4"] = (3, 3, width, width)
    for part, outputs in (("class", anchors * n_classes), ("box", anchors * 4)):
        shapes |= {f"{part}{layer}": (3, 3, width, width) for layer in range(4)} | {f"{part}4": (3, 3, width, outputs)}

    def head(w: dict[str, jax.Array], x: jax.Array, name: str) -> jax.Array:
        for layer in range(4):
            x = jax.nn.relu(convolve(x, w[f"{name}{layer}"]))
        return convolve(x, w[f"{name}4"])

    def loss(w: dict[str, jax.Array], images: jax.Array, fixed: dict[str, jax.Array]) -> jax.Array:
        features = residual_network({**w, **fixed}, images, groups, frozen_norm)[1:]
        merged: jax.Array | None = None
        pyramid: list[jax.Array] = []
        for level in (2, 1, 0):
            lateral = convolve(features[level], w[f"lateral{level}"])
            if merged is not None:
                merged = jax.image.resize(merged, lateral.shape, "nearest")
            merged = lateral if merged is None else lateral + merged
            pyramid.insert(0, convolve(merged, w[f"smooth{level}"]))
        pyramid.append(convolve(pyramid[-1], w["down3"], 2))
        pyramid.append(convolve(jax.nn.relu(pyramid[-1]), w["down4"], 2))
        total = jnp.zeros(())
        for x in pyramid:
            scores = head(w, x, "class").astype(jnp.float32)
            total = total + jnp.sum(jax.nn.softplus(scores)) + jnp.sum(jnp.abs(head(w, x, "box").astype(jnp.float32)))
        return total

    return descent_step(loss), weights_of(shapes), array_of((batch, size, size, 3)), weights_of(fixed)


FILTERS = (32, 64, 128, 256, 320, 320)
"""Channels of the levels of UNet-3D in MLPerf Training (nnU-Net for KiTS19)."""


def unet_shapes(channels: int, n_classes: int, filters: Sequence[int]) -> dict[str, Shape]:
    """Kernels of UNet-3D: two convolutions a level down and up, transposed ones between levels."""
    shapes: dict[str, Shape] = {}
    for level, width in enumerate(filters):
        shapes[f"down{level}.0"], shapes[f"down{level}.1"] = (3, 3, 3, channels, width), (3, 3, 3, width, width)
        channels = width
    for level in reversed(range(len(filters) - 1)):
        below, width = filters[level + 1], filters[level]
        shapes[f"up{level}"] = (2, 2, 2, below, width)
        shapes[f"up{level}.0"], shapes[f"up{level}.1"] = (3, 3, 3, 2 * width, width), (3, 3, 3, width, width)
    shapes["head"] = (1, 1, 1, filters[0], n_classes)
    return shapes


def unet3d(batch: int = 2, size: int = 128, n_classes: int = 3, filters: Sequence[int] = FILTERS) -> tuple[Any, ...]:
    """Training step of UNet-3D by plain descent, and the shapes of its arguments."""

    def unit(w: dict[str, jax.Array], x: jax.Array, name: str, stride: int = 1) -> jax.Array:
        x = convolve(x, w[name], stride)
        wide = x.astype(jnp.float32)
        mean = jnp.mean(wide, (1, 2, 3), keepdims=True)
        variance = jnp.mean(wide * wide, (1, 2, 3), keepdims=True) - mean * mean
        return jax.nn.relu((wide - mean) * lax.rsqrt(variance + 1e-5)).astype(x.dtype)

    def loss(w: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
        x, skips = images.astype(jnp.bfloat16), []
        for level in range(len(filters)):
            x = unit(w, unit(w, x, f"down{level}.0", 1 if level == 0 else 2), f"down{level}.1")
            skips.append(x)
        for level in reversed(range(len(filters) - 1)):
            up = w[f"up{level}"].astype(x.dtype)
            x = lax.conv_transpose(x, up, (2, 2, 2), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
            x = unit(w, jnp.concatenate([x, skips[level]], -1), f"up{level}.0")
            x = unit(w, x, f"up{level}.1")
        return mean_cross_entropy(convolve(x, w["head"]), labels)

    weights = weights_of(unet_shapes(1, n_classes, filters))
    return (
        descent_step(loss),
        weights,
        array_of((batch, size, size, size, 1)),
        array_of((batch, size, size, size), jnp.int32),
    )
