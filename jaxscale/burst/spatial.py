"""Spatial parallelism: halo exchange of 3-D convolutional networks, combined with a split of the batch."""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger, smooth_max
from jaxscale.burst.layer_graph import KernelTable, load_network, network_steps
from jaxscale.burst.layer_time import Device, LayerTimeCoefficients, kernel_times
from jaxscale.burst.layers import FLOAT_BYTES, KERNEL_KINDS, elements
from jaxscale.burst.step_costs import all_reduce_time


@functools.cache
def spatial_table() -> dict[str, Any]:
    """Contents of `data/burst/spatial.toml`: the machine of the published study."""
    return read_toml(data_path("burst/spatial.toml"))


class SpatialNetwork(eqx.Module):
    """Layers of a network with the extents and halos needed for a spatial split.

    Attributes:
        extent: input extent of each layer per dimension [1].
        channels: channels of the input [1].
        halo_width: rows that a convolution reads beyond its subdomain, per side and dimension [1].
        weights: trainable parameters [1].
        activations: elements of all outputs of a sample [1].
        kernels: kernels of a training step.
    """

    extent: Float[np.ndarray, "layer dim"]
    channels: Float[np.ndarray, " layer"]
    halo_width: Float[np.ndarray, "layer dim"]
    weights: Float[np.ndarray, " layer"]
    activations: float
    kernels: KernelTable


@functools.cache
def spatial_network(name: str) -> SpatialNetwork:
    """Shipped network with extents and halos; layers after the flattening have extent 1 and are not split.

    Raises:
        InputError: unknown network, or a network with blocks of branches.
    """
    graph = load_network(name)
    if graph.widths != (1,):
        raise InputError(f"network {name}: has branches; a spatial split expects a chain, for example cosmoflow")
    layers = [step.layer for step in network_steps(name)]
    rank = len(layers[0].input_shape) - 1
    # Extent 1 after the flattening: no split.
    extent, halo = np.ones((len(layers), rank)), np.zeros((len(layers), rank))
    for row, layer in enumerate(layers):
        if len(layer.input_shape) == rank + 1:
            extent[row] = layer.input_shape[1:]
            if layer.key[0] == "conv":
                # An odd kernel k reads k // 2 rows beyond each side.
                halo[row] = [k // 2 for k in layer.key[3]]
    channels = np.array([layer.input_shape[0] for layer in layers], float)
    total = float(sum(elements(layer.output_shape) for layer in layers))
    return SpatialNetwork(extent, channels, halo, graph.weights, total, graph.kernels)


class SpatialMachine(eqx.Module):
    """Links between the subdomains of a sample and between samples; every field is a float leaf.

    Attributes:
        halo_bandwidth: bandwidth between neighbours, per direction [byte/s].
        halo_latency: latency of a message between neighbours [s].
        bandwidth: bandwidth of the gradient all-reduce, per GPU and direction [byte/s].
        latency: latency of a step of the all-reduce [s].
    """

    halo_bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    halo_latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)


def halo_time(
    network: SpatialNetwork, parts: Float[ArrayLike, " dim"], samples: ArrayLike, machine: SpatialMachine
) -> Float[Array, " layer"]:
    r"""Time of the halo exchange of every layer, in one pass through the network [s].

    $t = \sum_{d:\, p_d > 1} 2\left[\alpha + \frac{4\, s\, h_d\, C}{\beta} \prod_{e \ne d} \frac{n_e}{p_e}\right]$ with
    extents n, C channels, latency $\alpha$ and bandwidth $\beta$: two neighbours per split dimension each send a slab
    of $h_d$ rows. A kernel without halo sends no message.

    Args:
        parts: p, subdomains per dimension [1].
        samples: s, samples of the group of subdomains [sample].

    Returns:
        Time per layer [s].

    Reference:
        Oyama et al., arXiv 2007.12856, section 3.
    """
    p = jnp.asarray(parts, jnp.result_type(float))
    # A subdomain holds at least a row.
    local = larger(network.extent / p, 1.0)
    volume = local.prod(1, keepdims=True)
    # (layer, dim): h_d C times the face of the subdomain.
    slab = network.halo_width * volume / local * network.channels[:, None]
    message = machine.halo_latency + FLOAT_BYTES * samples * slab / machine.halo_bandwidth
    # Two neighbours per split dimension.
    return jnp.where((p > 1.0) & (network.halo_width > 0), 2.0 * message, 0.0).sum(1)


class SpatialStep(eqx.Module):
    """Time and memory of a training iteration with a spatial split; the terms of time add up to `total`.

    Attributes:
        compute: forward, gradient of activations and gradient of weights [s].
        exposed_halo: halo exchange not hidden by interior work [s].
        exposed_all_reduce: gradient all-reduce not hidden by the backward pass [s].
        memory: activations, weights, gradients and optimiser state of one GPU [byte].
        n_chips: GPUs in use [1].
    """

    compute: Float[Array, "*batch"]
    exposed_halo: Float[Array, "*batch"]
    exposed_all_reduce: Float[Array, "*batch"]
    memory: Float[Array, "*batch"]
    n_chips: Float[Array, "*batch"]

    @property
    def total(self) -> Array:
        """Iteration time [s]."""
        return self.compute + self.exposed_halo + self.exposed_all_reduce


def _pass_times(network: SpatialNetwork, work: Array, coefficients, device, regime) -> tuple[Array, Array, Array]:
    """Forward, gradient of activations and gradient of weights of every layer [s]."""
    times = kernel_times(network.kernels, work[network.kernels.step], coefficients, device, regime)
    # 0 forward, 1 gradient of activations, 2 gradient of weights.
    kinds = jnp.asarray([2 if k.endswith("weights") else 1 if k.endswith("data") else 0 for k in KERNEL_KINDS])
    kind = kinds[network.kernels.kind]
    n = network.kernels.n_steps
    forward, data, weights = (
        jnp.zeros(n, times.dtype).at[network.kernels.step].add(jnp.where(kind == i, times, 0.0)) for i in range(3)
    )
    return forward, data, weights


def spatial_step(
    network: SpatialNetwork,
    parts: Float[ArrayLike, " dim"],
    groups: ArrayLike,
    batch: ArrayLike,
    machine: SpatialMachine,
    coefficients: LayerTimeCoefficients,
    device: Device,
    regime: int = 0,
    temperature: float = 0.0,
) -> SpatialStep:
    r"""Time and memory of an iteration with `groups` groups of samples, each sample split into `parts` subdomains.

    $T = \sum_l \max(f_l, h_l) + \max(x_l, h'_l) + w_l + \max(0, t_{AR} - \sum_l (x_l + w_l))$ with forward time f,
    gradients of activations x and of weights w of $B / (g\,P)$ samples, the halo h of the input and h' of the
    gradient, and one ring all-reduce of all weights over all GPUs, which overlaps with the backward pass.

    Args:
        parts: subdomains per dimension, with product P [1].
        groups: g, groups of samples [1].
        batch: B, global batch [sample].
        coefficients: coefficients of the analytical layer time.
        regime: index of the software regime.
        temperature: 0 for the exact maximum, else a smooth maximum (`base.smooth.smooth_max`).

    Reference:
        Oyama et al., arXiv 2007.12856, section 3 (performance model).
    """
    p = jnp.asarray(parts, jnp.result_type(float))
    pieces = p.prod()
    samples = jnp.asarray(batch) / groups
    # Layers after the flattening process whole samples in every subdomain.
    work = samples / jnp.where(network.extent.max(1) > 1.0, pieces, 1.0)
    forward, data, weights = _pass_times(network, work, coefficients, device, regime)
    halo = halo_time(network, p, samples, machine)
    # max(f, h) - f: halo exchange not hidden by interior work.
    exposed = smooth_max(forward, halo, temperature) - forward + smooth_max(data, halo, temperature) - data
    n_chips = pieces * groups
    reduce = (
        # A ring has 2 (n - 1) steps.
        all_reduce_time(network.weights, n_chips, machine.bandwidth).sum() + 2.0 * (n_chips - 1.0) * machine.latency
    )
    # The all-reduce overlaps with the backward pass.
    cover = (data + weights).sum()
    left = smooth_max(reduce, cover, temperature) - cover
    # Factor 2: activations and their gradients; factor 4: weights, gradients and two moments.
    held = 2.0 * FLOAT_BYTES * network.activations * samples / pieces + 4.0 * FLOAT_BYTES * network.weights.sum()
    return SpatialStep((forward + data + weights).sum(), exposed.sum(), left, held, n_chips)
