"""Analytical layer time: a roofline per kernel plus launch latency, fitted to the measured A100 layers."""

import functools
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.errors import InputError
from jaxscale.base.resources import data_path, fit_path, read_toml
from jaxscale.base.smooth import larger
from jaxscale.burst.networks.layer_graph import KernelTable, load_network
from jaxscale.burst.networks.layers import KERNEL_FAMILIES, KERNEL_KINDS, family_of
from jaxscale.burst.networks.measured_layers import AbstractLayerTime

REGIMES = (
    "vgg-graph",
    "wrn-graph",
    "inception-graph",
    "resnet-graph",
    "inception-eager",
    "resnet-eager",
    "vgg-eager",
    "vit-eager",
)
"""Software in which the profiles were taken; `graph`: CUDA graphs, `eager`: kernels launched one by one."""

_FAMILY = np.array([family_of(kind) for kind in KERNEL_KINDS], np.int32)
_IS_WEIGHTS = np.array([kind.endswith("_weights") for kind in KERNEL_KINDS])
_IS_MATMUL = np.array([kind.rsplit("_", 1)[-1] in ("forward", "data", "weights") for kind in KERNEL_KINDS])
_IS_EAGER = np.array([regime.endswith("-eager") for regime in REGIMES])


class LayerTimeCoefficients(eqx.Module):
    """Fitted coefficients of the kernel time; every leaf is positive.

    Attributes:
        efficiency: best fraction of the peak that a kernel kind reaches, in (0, 1) [1].
        passes: times that a kernel's sample traffic goes through memory [1].
        fixed_passes: times that its weight traffic does [1].
        half_width: output columns at which the efficiency falls to half [1].
        half_depth: length of the sum at which the efficiency falls to half [1].
        wave: full waves of output tiles that a matrix product takes at least [1].
        launch: launch latency of one kernel [s].
        sharpness: of the maximum of compute and memory time, minus 1 [1].
        compute: multiplier of the compute time per regime [1].
        memory: multiplier of the memory time per regime [1].
        latency: multiplier of the launch latency per regime [1].
        host_time: time of the host per kernel, where it launches them one by one [s].
        host_sharpness: of the maximum of host and device time, minus 1 [1].
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
    """Names along the axis of a coefficient: kernel kinds, families or regimes."""
    if name in ("efficiency", "passes", "fixed_passes"):
        return KERNEL_KINDS
    return REGIMES if name in ("compute", "memory", "latency", "host_time", "host_sharpness") else KERNEL_FAMILIES


class Device(eqx.Module):
    """Peak rates and launch behaviour of a chip.

    Attributes:
        peak_flops: dense matrix peak in the precision of the network (TF32 in the profiles) [flop/s].
        hbm_bandwidth: memory bandwidth [byte/s].
        wave_outputs: output elements that one wave of tiles covers: tile area times multiprocessors [1].
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
    $t_m = \mu_r \frac{p\,Q s}{W} + \frac{p_0\,Q_0}{W}$: F flop, N columns, K length of the sum, A outputs of one wave
    of tiles, Q traffic per sample, $Q_0$ traffic of the weights, s samples. In a gradient of weights K grows with s,
    and no wave is waited for because the sum is split. Kernels without flop take $\lambda_r \tau + t_m$.

    Args:
        kernels: the kernels.
        batch: samples s, one number or one per kernel [1].
        coefficients: fitted coefficients.
        device: the chip.
        regime: index in `REGIMES`, one number or one per kernel.

    Returns:
        Seconds per kernel [s].
    """
    kind, regime = kernels.kind, jnp.asarray(regime, jnp.int32)
    family, weights, matmul = (jnp.asarray(table)[kind] for table in (_FAMILY, _IS_WEIGHTS, _IS_MATMUL))

    def of(values, index):
        return jnp.asarray(values)[index]

    c = coefficients
    depth = jnp.where(weights, kernels.depth * batch, kernels.depth)
    loss = 1.0 + of(c.half_width, family) / kernels.width + of(c.half_depth, family) / depth
    compute = kernels.flop * batch / (of(c.efficiency, kind) * device.peak_flops) * loss * of(c.compute, regime)
    wave = of(c.wave, family) * 2.0 * kernels.depth * device.wave_outputs / device.peak_flops
    compute = compute + jnp.where(weights | ~matmul, 0.0, wave)
    moved = of(c.passes, kind) * kernels.sample_bytes * batch * of(c.memory, regime)
    memory = (moved + of(c.fixed_passes, kind) * kernels.fixed_bytes) / device.hbm_bandwidth
    q = 1.0 + c.sharpness
    # The ratio keeps the power in range in float32; the floor keeps it differentiable where nothing moves.
    top = larger(larger(compute, memory), 1e-12)
    both = top * ((compute / top + 1e-12) ** q + (memory / top + 1e-12) ** q) ** (1.0 / q)
    return of(c.launch, family) * of(c.latency, regime) + jnp.where(matmul, both, memory)


def layer_times(
    kernels: KernelTable, batch: ArrayLike, coefficients: LayerTimeCoefficients, device: Device, regime: ArrayLike
) -> Float[Array, " step"]:
    r"""Time of each layer: its kernels in sequence, or the host that launches them.

    CUDA graphs: $t = \sum_i t_i$. Eager: $t = \big((\sum_i t_i)^h + (n \tau_{host})^h\big)^{1/h}$ with n kernels.

    Args:
        kernels: kernels with the row of their layer.
        batch: samples, one number or one per layer [1].
        coefficients: fitted coefficients.
        device: the chip.
        regime: index in `REGIMES`, one number or one per layer.

    Returns:
        Seconds per layer [s]; 0 for a row without kernels.
    """
    n, row = kernels.n_steps, kernels.step
    batch_of = jnp.broadcast_to(jnp.asarray(batch), (n,))[row]
    regime = jnp.broadcast_to(jnp.asarray(regime, jnp.int32), (n,))
    device_time = segment_sum(kernel_times(kernels, batch_of, coefficients, device, regime[row]), row, n)
    launches = segment_sum(jnp.ones_like(device_time, shape=row.shape), row, n)
    host = launches * jnp.asarray(coefficients.host_time)[regime]
    h = 1.0 + jnp.asarray(coefficients.host_sharpness)[regime]
    top = larger(larger(device_time, host), 1e-12)
    eager = top * ((device_time / top + 1e-12) ** h + (host / top + 1e-12) ** h) ** (1.0 / h)
    return jnp.where(launches == 0, 0.0, jnp.where(jnp.asarray(_IS_EAGER)[regime], eager, device_time))


class AnalyticalLayerTime(AbstractLayerTime):
    """Layer times from the fitted roofline: any layer, batch (also fractions of a sample) and chip.

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
def load_coefficients(path: Path | None = None) -> LayerTimeCoefficients:
    """Fitted coefficients from `fits/results/burst_layer_time.toml`."""
    table = read_toml(path or fit_path("burst_layer_time.toml"))["coefficients"]
    fields = {}
    for name in LayerTimeCoefficients.__dataclass_fields__:
        value = table[name]
        fields[name] = float(value) if name == "sharpness" else np.array([value[key] for key in axis_of(name)], float)
    return LayerTimeCoefficients(**fields)


@functools.cache
def a100() -> Device:
    """The chip of the profiles, with TF32 matrix units (`data/burst/layer_time.toml`)."""
    device = read_toml(data_path("burst/layer_time.toml"))["device"]
    return Device(device["peak_flops"], device["hbm_bandwidth"], device["wave_outputs"])


def analytical_layer_time(name: str, device: Device | None = None, regime: str | None = None) -> AnalyticalLayerTime:
    """Analytical layer time of a shipped network.

    Args:
        name: any network of `data/burst/networks.toml`.
        device: the chip; the A100 of the profiles if absent. Its fields may be traced.
        regime: software regime, one of `REGIMES`; the network's own if absent.

    Returns:
        The layer time.

    Raises:
        InputError: no such network or regime.
    """
    graph = load_network(name)
    regime = regime or graph.regime
    if regime not in REGIMES:
        raise InputError(f"regime {regime!r} is unknown; expected one of {', '.join(REGIMES)}")
    return AnalyticalLayerTime(graph.kernels, load_coefficients(), device or a100(), REGIMES.index(regime))
