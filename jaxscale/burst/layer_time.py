"""Time of a layer by samples per GPU: measured A100 profiles, or a roofline per kernel fitted to the profiles.

Two tables hold the forward plus backward time of layers by batch per GPU. The table `deeppool_layer_times_a100.csv`
(the input of the released planner) was measured with CUDA graphs. Of the table `deeppool_layer_profiles_a100.csv`, the
source files named `V2` were measured with CUDA graphs too; in the remaining files the host launches each kernel.
"""

import functools
import json
from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.documents import data_path, fit_path, read_toml
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.smooth import larger
from jaxscale.burst import layers
from jaxscale.burst.layer_graph import KernelTable, load_network, network_entry, network_steps
from jaxscale.burst.layers import KERNEL_FAMILIES, KERNEL_KINDS, Layer, family_of
from jaxscale.tables.reader import csv_table

TABLES = ("deeppool_layer_times_a100.csv", "deeppool_layer_profiles_a100.csv")

RECORDED_REGIMES = {
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
"""Software regime of each recording: by network in the first table, by file in the second."""

_SPLIT_BACKWARD = ("vgg-graph", "wrn-graph")
"""Regimes whose profile times activations separately and counts a layer's backward pass with its activation."""


class LayerTime(NamedTuple):
    """Measured time of a layer for a batch on a single GPU.

    Attributes:
        table: file of the measurement.
        recording: network (first table) or source file (second table).
        network: name of the network in the table.
        regime: software regime of the measurement, from `REGIMES`; names that end in `graph` have CUDA graphs.
        batch: samples on the GPU [1].
        layer: the timed layer with its kernels.
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
    return layers.forward_only(layer) if split else layer


def _linear(p: dict, shape: tuple[int, ...], regime: str) -> Layer:
    layer = layers.linear(shape, p["out_features"])
    return layers.forward_only(layer) if regime in _SPLIT_BACKWARD else layer


def _layer(kind: str, p: dict, shape: tuple[int, ...], regime: str, previous: Layer | None) -> Layer:
    """Layer of a table row, with the kernels included in the time."""
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
            # base_width is 64 in a plain residual network.
            return layers.bottleneck(shape, p["planes"], p.get("stride", 1), p["base_width"] // 64)
        case "prep":
            return layers.patch_embedding(shape, p["dim"], p["patch_dim"])
        case "TransBlockA":
            return layers.attention(shape, p["heads"])
        case "TransBlockB":
            return layers.mlp(shape, p["dim_linear_block"])
        case "prepOut":
            return layers.token(shape)
    raise ValueError(f"layer type {kind!r} of the profile is unknown")


def _read(name: str) -> list[LayerTime]:
    layer_times, previous, last = [], None, None
    header, records = csv_table(data_path(f"companion/{name}"))
    for _, cells in records:
        row = dict(zip(header, cells, strict=True))
        recording = row.get("file") or row["network"]
        block = (recording, row["network"], row.get("block"), row["batch_size"])
        # An activation pairs with the preceding layer of an equal recording, block and batch.
        previous = previous if block == last else None
        regime, last = RECORDED_REGIMES[recording], block
        parameters = json.loads(row["layer_params_json"])
        layer = _layer(row["layer_type"], parameters, _shape(row["input_shape"]), regime, previous)
        milliseconds = float(row.get("time_ms") or row["time_ms_avg"])
        batch = int(row["batch_size"])
        # ms to s
        layer_times.append(LayerTime(name, recording, row["network"], regime, batch, layer, 1e-3 * milliseconds))
        previous = layer
    return layer_times


@functools.cache
def read_layer_times() -> tuple[LayerTime, ...]:
    """All measured layer times of the two tables, in file order."""
    return tuple(time for name in TABLES for time in _read(name))


class AbstractLayerTime(eqx.Module):
    """Time of a training step of every layer of a graph as a function of the samples per GPU."""

    @abstractmethod
    def __call__(self, batch: ArrayLike) -> Float[Array, " step"]:
        """Forward plus backward time of each row for `batch` samples [s]."""


class MeasuredLayerTime(AbstractLayerTime):
    r"""Measured layer times, interpolated in the logarithms of batch and time.

    Between two measured batches $\ln t$ is linear in $\ln s$. Above the largest batch the time is proportional to the
    batch, $t(s) = t(s_{max})\, s / s_{max}$; below the smallest batch the time is constant.

    Attributes:
        log_batch: logarithm of the measured batches, increasing [1].
        log_time: logarithm of the measured times [s]; `-inf` for a row without work (a branch end).
    """

    log_batch: Float[np.ndarray, " point"]
    log_time: Float[np.ndarray, "step point"]

    def __call__(self, batch: ArrayLike) -> Float[Array, " step"]:
        """Interpolated time of each row for `batch` samples [s]."""
        x = jnp.log(jnp.asarray(batch, jnp.result_type(float)))
        idle = jnp.isneginf(self.log_time[:, 0])
        # A finite curve for idle rows keeps interpolation free of inf - inf.
        curves = jnp.where(idle[:, None], 0.0, jnp.asarray(self.log_time, x.dtype))
        grid = jnp.asarray(self.log_batch, x.dtype)
        inside = jax.vmap(lambda curve: jnp.interp(x, grid, curve))(curves)
        # Above the largest batch, time in proportion to the batch.
        beyond = larger(x - grid[-1], 0.0)
        return jnp.where(idle, 0.0, jnp.exp(inside + beyond))


Occurrences = dict[tuple, list[float]]
"""Times of each layer key, in file order [s]."""


def _occurrences(profile: str) -> dict[int, Occurrences]:
    """Times by batch, with CUDA graphs if the network was also recorded without."""
    rows = [row for row in read_layer_times() if row.network == profile]
    graph = [row for row in rows if row.regime.endswith("-graph")]
    by_batch: dict[int, Occurrences] = {}
    # Recordings with CUDA graphs take precedence.
    for row in graph or rows:
        by_batch.setdefault(row.batch, {}).setdefault(row.layer.key, []).append(row.seconds)
    return by_batch


def _lookup(layer: Layer, profiles: list[Occurrences], seen: int) -> float | None:
    """Time of a layer: zero at a branch end, the measured row, or the sum of the layer's operations [s]."""
    if layer.name == "join":
        return 0.0
    for times in profiles:
        if layer.key in times:
            # Repeats beyond the recorded number take the last recorded time.
            return times[layer.key][min(seen, len(times[layer.key]) - 1)]
        if layer.parts and all(part in times for part in layer.parts):
            return sum(times[part][0] for part in layer.parts)
    return None


@functools.cache
def measured_layer_time(name: str, per_shape: bool = False) -> MeasuredLayerTime:
    """Measured layer times of a network as a function of the samples per GPU.

    Args:
        name: a measured network: `vgg16`, `resnet50`, `wide_resnet101_2`, `inception_v3`, `vit`.
        per_shape: whether to use one curve per distinct layer shape, the first in the profile, as the released planner
            does; else one curve per row. Curves per shape reproduce published plans; curves per row sum to the profile.
            The results differ if the profile times equal shapes separately: the activations of VGG-16 carry the
            backward pass of different convolutions, and a look-up by shape omits a sixth of the iteration.

    Raises:
        InputError: the layers were not measured; `layer_time.analytical_layer_time` is an alternative.
    """
    tables = [_occurrences(profile) for profile in network_entry(name).profiles]
    # Batches measured in every profile of the network.
    batches = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    if not batches:
        raise _not_measured(name, "all layers")
    steps = network_steps(name)
    times = np.zeros((len(steps), len(batches)))
    for column, batch in enumerate(batches):
        seen: dict[tuple, int] = {}
        for row, step in enumerate(steps):
            key = step.layer.key
            seconds = _lookup(step.layer, [table[batch] for table in tables], 0 if per_shape else seen.get(key, 0))
            if seconds is None:
                raise _not_measured(name, step.layer.name)
            times[row, column] = seconds
            seen[key] = seen.get(key, 0) + 1
    # Rows without work have time 0, hence the logarithm -inf.
    with np.errstate(divide="ignore"):
        return MeasuredLayerTime(np.log(np.array(batches, float)), np.log(times))


def _not_measured(name: str, what: str) -> InputError:
    shipped = "vgg16, resnet50, wide_resnet101_2, inception_v3, vit"
    return InputError(f"network {name}: no measured time for {what}; expected one of {shipped}")


REGIMES = tuple(dict.fromkeys(RECORDED_REGIMES.values()))
"""Software regimes of the profiles; `graph`: CUDA graphs, `eager`: separate launches of kernels."""

_FAMILY = np.array([family_of(kind) for kind in KERNEL_KINDS], np.int32)
_IS_WEIGHTS = np.array([kind.endswith("_weights") for kind in KERNEL_KINDS])
_IS_MATMUL = np.array([kind.rsplit("_", 1)[-1] in ("forward", "data", "weights") for kind in KERNEL_KINDS])
_IS_EAGER = np.array([regime.endswith("-eager") for regime in REGIMES])


class LayerTimeCoefficients(eqx.Module):
    """Fitted coefficients of `kernel_times` and `layer_times`; every leaf is positive.

    Attributes:
        efficiency: e, largest achieved fraction of the peak by kernel kind, in (0, 1) [1].
        passes: p, memory passes over a kernel's sample traffic [1].
        fixed_passes: p_0, memory passes over a kernel's weight traffic [1].
        half_width: n_0, output columns at which the efficiency falls to half [1].
        half_depth: k_0, length of the sum at which the efficiency falls to half [1].
        wave: w, least number of full waves of output tiles in a matrix product [1].
        launch: tau, launch latency of a kernel [s].
        sharpness: exponent q of the smooth maximum of compute and memory time, minus 1 [1].
        compute: multiplier of the compute time per regime [1].
        memory: multiplier of the memory time per regime [1].
        latency: multiplier of the launch latency per regime [1].
        host_time: host time per kernel in regimes with separate launches [s].
        host_sharpness: exponent h of the smooth maximum of host and device time, minus 1 [1].
    """

    efficiency: Float[ArrayLike, " kind"]
    passes: Float[ArrayLike, " kind"]
    fixed_passes: Float[ArrayLike, " kind"]
    half_width: Float[ArrayLike, " family"]
    half_depth: Float[ArrayLike, " family"]
    wave: Float[ArrayLike, " family"]
    launch: Float[ArrayLike, " family"]
    sharpness: Float[ArrayLike, ""]
    compute: Float[ArrayLike, " regime"]
    memory: Float[ArrayLike, " regime"]
    latency: Float[ArrayLike, " regime"]
    host_time: Float[ArrayLike, " regime"]
    host_sharpness: Float[ArrayLike, " regime"]


def axis_of(name: str) -> tuple[str, ...]:
    """Names along the axis of a coefficient, by the field name: kernel kinds, kernel families or software regimes."""
    if name in ("efficiency", "passes", "fixed_passes"):
        return KERNEL_KINDS
    return REGIMES if name in ("compute", "memory", "latency", "host_time", "host_sharpness") else KERNEL_FAMILIES


class Device(eqx.Module):
    """Peak rates of a chip, and the size of a wave of matrix tiles.

    Attributes:
        peak_flops: dense matrix peak in the precision of the network (TF32 in the profiles) [flop/s].
        hbm_bandwidth: memory bandwidth [byte/s].
        wave_outputs: output elements of one wave of tiles: tile area times multiprocessors [1].
    """

    peak_flops: Float[ArrayLike, ""] = eqx.field(converter=as_float)
    hbm_bandwidth: Float[ArrayLike, ""] = eqx.field(converter=as_float)
    wave_outputs: Float[ArrayLike, ""] = eqx.field(converter=as_float)


def kernel_times(
    kernels: KernelTable, batch: ArrayLike, coefficients: LayerTimeCoefficients, device: Device, regime: ArrayLike
) -> Float[Array, " kernel"]:
    r"""Time of each kernel on the device.

    $t = \lambda_r \tau + \big(t_c^q + t_m^q\big)^{1/q}$ with
    $t_c = \kappa_r \frac{F s}{e C}\big(1 + \frac{n_0}{N} + \frac{k_0}{K}\big) + w \frac{2 K A}{C}$ and
    $t_m = \mu_r \frac{p\,Q s}{W} + \frac{p_0\,Q_0}{W}$: F flop, N columns, K length of the sum, A outputs of a wave
    of tiles, Q traffic per sample, $Q_0$ traffic of the weights, s samples. Kernels without flop take
    $\lambda_r \tau + t_m$.

    Args:
        batch: samples s, one number or one per kernel [1].
        regime: index in `REGIMES`, one number or one per kernel.

    Returns:
        Time per kernel [s].
    """
    kind, regime = kernels.kind, jnp.asarray(regime, jnp.int32)
    # Tables indexed by kernel kind.
    family, weights, matmul = (jnp.asarray(table)[kind] for table in (_FAMILY, _IS_WEIGHTS, _IS_MATMUL))

    def of(values, index):
        return jnp.asarray(values)[index]

    c = coefficients
    # The sum of a gradient of weights runs over the samples.
    depth = jnp.where(weights, kernels.depth * batch, kernels.depth)
    # 1 + n_0 / N + k_0 / K
    loss = 1.0 + of(c.half_width, family) / kernels.width + of(c.half_depth, family) / depth
    compute = kernels.flop * batch / (of(c.efficiency, kind) * device.peak_flops) * loss * of(c.compute, regime)
    # w 2 K A / C
    wave = of(c.wave, family) * 2.0 * kernels.depth * device.wave_outputs / device.peak_flops
    # No wave term for a gradient of weights, because the sum is split.
    compute = compute + jnp.where(weights | ~matmul, 0.0, wave)
    moved = of(c.passes, kind) * kernels.sample_bytes * batch * of(c.memory, regime)
    memory = (moved + of(c.fixed_passes, kind) * kernels.fixed_bytes) / device.hbm_bandwidth
    # A positive sharpness gives q > 1.
    q = 1.0 + c.sharpness
    # The ratio keeps powers within the range of float32; the floor keeps them differentiable at zero work.
    top = larger(larger(compute, memory), 1e-12)
    both = top * ((compute / top + 1e-12) ** q + (memory / top + 1e-12) ** q) ** (1.0 / q)
    return of(c.launch, family) * of(c.latency, regime) + jnp.where(matmul, both, memory)


def layer_times(
    kernels: KernelTable, batch: ArrayLike, coefficients: LayerTimeCoefficients, device: Device, regime: ArrayLike
) -> Float[Array, " step"]:
    r"""Time of each layer from the times of its kernels and, without CUDA graphs, the host time of the launches.

    CUDA graphs: $t = \sum_i t_i$. Eager: $t = \big((\sum_i t_i)^h + (n \tau_{host})^h\big)^{1/h}$ with n kernels.

    Args:
        kernels: kernels, each with the row of its layer.
        batch: samples, one number or one per layer [1].
        regime: index in `REGIMES`, one number or one per layer.

    Returns:
        Time per layer [s]; 0 for a row without kernels.
    """
    n, row = kernels.n_steps, kernels.step
    batch_of = jnp.broadcast_to(jnp.asarray(batch), (n,))[row]
    regime = jnp.broadcast_to(jnp.asarray(regime, jnp.int32), (n,))
    # (layers,)
    device_time = segment_sum(kernel_times(kernels, batch_of, coefficients, device, regime[row]), row, n)
    launches = segment_sum(jnp.ones_like(device_time, shape=row.shape), row, n)
    host = launches * jnp.asarray(coefficients.host_time)[regime]
    # A positive host sharpness gives h > 1.
    h = 1.0 + jnp.asarray(coefficients.host_sharpness)[regime]
    top = larger(larger(device_time, host), 1e-12)
    eager = top * ((device_time / top + 1e-12) ** h + (host / top + 1e-12) ** h) ** (1.0 / h)
    return jnp.where(launches == 0, 0.0, jnp.where(jnp.asarray(_IS_EAGER)[regime], eager, device_time))


class AnalyticalLayerTime(AbstractLayerTime):
    """Layer times from the fitted roofline, for any layer, batch (fractions of a sample included) and chip.

    Attributes:
        kernels: kernels of the network.
        coefficients: fitted coefficients.
        device: the chip.
        regime: index in `REGIMES`.
    """

    kernels: KernelTable
    coefficients: LayerTimeCoefficients
    device: Device
    regime: int = eqx.field(static=True)

    def __call__(self, batch: ArrayLike) -> Float[Array, " step"]:
        """Time of each row for `batch` samples [s]."""
        return layer_times(self.kernels, batch, self.coefficients, self.device, self.regime)


@functools.cache
def load_coefficients() -> LayerTimeCoefficients:
    """Fitted coefficients from `fits/results/burst_layer_time.toml`."""
    table = read_toml(fit_path("burst_layer_time.toml"))["coefficients"]
    fields = {}
    for name in LayerTimeCoefficients.__dataclass_fields__:
        value = table[name]
        # The sharpness is the sole coefficient without an axis.
        fields[name] = float(value) if name == "sharpness" else np.array([value[key] for key in axis_of(name)], float)
    return LayerTimeCoefficients(**fields)


@functools.cache
def a100() -> Device:
    """A100 with TF32 matrix units, the chip of the profiles (`data/burst/layer_time.toml`)."""
    device = read_toml(data_path("burst/layer_time.toml"))["device"]
    return Device(device["peak_flops"], device["hbm_bandwidth"], device["wave_outputs"])


def analytical_layer_time(name: str, device: Device | None = None, regime: str | None = None) -> AnalyticalLayerTime:
    """Layer times of a shipped network from the fitted roofline.

    Args:
        name: any network of `data/burst/networks.toml`.
        device: chip, with fields that may be traced; by default the A100 of the profiles.
        regime: software regime, one of `REGIMES`; by default that of the network.

    Raises:
        InputError: unknown network or regime.
    """
    graph = load_network(name)
    regime = regime or graph.regime
    check_known("regime", regime, REGIMES)
    return AnalyticalLayerTime(graph.kernels, load_coefficients(), device or a100(), REGIMES.index(regime))
