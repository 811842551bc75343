"""Reader of the measured A100 layer times of DeepPool (`data/companion/deeppool_layer_*_a100.csv`).

Both tables hold forward plus backward time of one layer against the batch per GPU. The first
(`deeppool_layer_times_a100.csv`, the planner's own input) was taken with CUDA graphs; of the second, the files named
`V2` were too, the others launch kernel by kernel from the host.
"""

import functools
import json
from typing import NamedTuple

from jaxscale.base.resources import data_path
from jaxscale.burst.networks import blocks, layers
from jaxscale.burst.networks.layers import Layer
from jaxscale.tables.reader import csv_table

TABLES = ("deeppool_layer_times_a100.csv", "deeppool_layer_profiles_a100.csv")

REGIMES = {
    "vgg": "vgg-graph",
    "wrn": "wrn-graph",
    "inception": "inception-graph",
    "inceptionLayerGpuProfileA100V2.txt": "inception-graph",
    "wrnLayerGpuProfileA100V2.txt": "wrn-graph",
    "resnetLayerGpuProfileA100V2.txt": "resnet-graph",
    "inceptionLayerGpuProfileA100.txt": "inception-eager",
    "resnetLayerGpuProfileA100.txt": "resnet-eager",
    "vggLayerGpuProfileA100.txt": "vgg-eager",
    "vitLayerGpuProfileA100.txt": "vit-eager",
}
"""Software regime of each recording: network of the first table, file of the second."""

_SPLIT_BACKWARD = ("vgg-graph", "wrn-graph")
"""Regimes whose profile times activations apart and counts the backward pass of a layer with its activation."""


class LayerTime(NamedTuple):
    """One measured layer time.

    Attributes:
        table: file that it comes from.
        recording: network (first table) or source file (second table).
        network: name of the network in the table.
        regime: software regime.
        batch: samples on the GPU [1].
        layer: the layer with its kernels, as timed.
        seconds: forward plus backward time [s].
    """

    table: str
    recording: str
    network: str
    regime: str
    batch: int
    layer: Layer
    seconds: float


def _pair(value: int | list[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else (value, value)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(v) for v in text.strip("[]").replace("x", ",").split(","))


def _convolution(p: dict, shape: tuple[int, ...], regime: str) -> Layer:
    split = regime in _SPLIT_BACKWARD
    kernel, padding = _pair(p["kernel_size"]), _pair(p["padding"])
    normalised = not split and not regime.startswith("vgg")
    layer = layers.convolution(
        shape, p["out_channels"], kernel, p["stride"], padding, normalised=normalised, activated=not split
    )
    return layer._replace(kernels=layer.kernels[: -len(layer.backward)]) if split else layer


def _linear(p: dict, shape: tuple[int, ...], regime: str) -> Layer:
    layer = layers.linear(shape, p["out_features"])
    return layer._replace(kernels=layer.kernels[: -len(layer.backward)]) if regime in _SPLIT_BACKWARD else layer


def _layer(kind: str, p: dict, shape: tuple[int, ...], regime: str, previous: Layer | None) -> Layer:
    """The layer behind one row of a table, with the kernels that its time covers."""
    match kind:
        case "conv2d":
            return _convolution(p, shape, regime)
        case "linear":
            return _linear(p, shape, regime)
        case "ReLU1d" | "ReLU2d":
            return layers.relu(shape, previous or layers.reshape("none", shape, shape))
        case "maxPool2d" | "avgPool2d":
            name = "max_pool" if kind == "maxPool2d" else "average_pool"
            return layers.pool(shape, name, p["kernel_size"], p["stride"], p["padding"])
        case "adAvgPool2d":
            return layers.global_pool(shape)
        case "flatten":
            return layers.reshape("flatten", shape, (layers.elements(shape),))
        case "concat":
            return layers.concatenation(shape, shape)
        case "ResnetBottleneck":
            return blocks.bottleneck(shape, p["planes"], p.get("stride", 1), p["base_width"] // 64)
        case "prep":
            return blocks.patch_embedding(shape, p["dim"], p["patch_dim"])
        case "TransBlockA":
            return blocks.attention(shape, p["heads"])
        case "TransBlockB":
            return blocks.mlp(shape, p["dim_linear_block"])
        case "prepOut":
            return blocks.token(shape)
    raise ValueError(f"layer type {kind!r} of the profile is unknown")


def _read(name: str) -> list[LayerTime]:
    layer_times, previous, last = [], None, None
    header, records = csv_table(data_path(f"companion/{name}"))
    for _, cells in records:
        row = dict(zip(header, cells, strict=True))
        recording = row.get("file") or row["network"]
        block = (recording, row["network"], row.get("block"), row["batch_size"])
        previous = previous if block == last else None
        regime, last = REGIMES[recording], block
        parameters = json.loads(row["layer_params_json"])
        layer = _layer(row["layer_type"], parameters, _shape(row["input_shape"]), regime, previous)
        milliseconds = float(row.get("time_ms") or row["time_ms_avg"])
        batch = int(row["batch_size"])
        layer_times.append(LayerTime(name, recording, row["network"], regime, batch, layer, 1e-3 * milliseconds))
        previous = layer
    return layer_times


@functools.cache
def read_layer_times() -> tuple[LayerTime, ...]:
    """All measured layer times of both tables, in file order."""
    return tuple(time for name in TABLES for time in _read(name))
