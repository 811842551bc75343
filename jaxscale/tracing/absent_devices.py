"""Compilation devices for GPUs and TPUs without hardware, from compiler plugins and descriptions of the chips."""

import functools
import importlib
import importlib.util
import itertools
import os
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.experimental import topologies

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, nearest

PLUGIN = "jax_plugins.xla_cuda12"
"""Module of the XLA compiler for NVIDIA GPUs."""


@functools.cache
def compile_targets() -> dict[str, Any]:
    """Descriptions of GPUs and TPU slices by catalogue id of the chip."""
    return read_toml(data_path("compile_targets.toml"))


def target_text(gpu: str) -> str:
    """Description of a GPU in the compiler's format (text of GpuTargetConfigProto).

    Args:
        gpu: id of the GPU in the catalogue of chips.

    Raises:
        InputError: no description of the GPU is known.
    """
    table = compile_targets()
    if gpu not in table["targets"]:
        raise InputError(
            f"gpu {gpu!r} has no description for the compiler; {nearest(gpu, [*table['targets'], *table['slices']])}"
        )
    target = table["targets"][gpu]
    # Facts for readers, not fields of the compiler's description.
    said = {"source", "date", "description", "compute_capability"}
    fields = {name: value for name, value in (table["common"] | target).items() if name not in said}
    major, minor = target["compute_capability"]
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    software = [
        f"{name}_version_info {{ major: {table['software'][name][0]} minor: {table['software'][name][1]} }}"
        for name in ("dnn", "runtime")
    ]
    # The proto names the version of the runtime without _info.
    software[1] = software[1].replace("runtime_version_info", "runtime_version")
    rest = ['platform_name: "CUDA"', *software, f'device_description_str: "{target["description"]}"']
    return "\n".join(["gpu_device_info {", *lines, "}", *rest]) + "\n"


def absent_gpus(gpu: str, n_chips: int, chips_per_node: int) -> list[Any]:
    """GPUs of a cluster as compilation devices.

    Args:
        gpu: id of the GPU in the catalogue of chips.
        n_chips: number of GPUs [1].
        chips_per_node: GPUs per scale-up domain [1].

    Raises:
        InputError: the compiler is not installed, or lacks the GPU.
    """
    text = target_text(gpu)
    load_compiler()
    # A cluster smaller than a node is a single node.
    per_node = min(chips_per_node, n_chips)
    if n_chips % per_node:
        raise InputError(f"n = {n_chips} chips are no whole nodes of {per_node}; expected a multiple")
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=text, topology=f"1x{n_chips // per_node}x{per_node}"
    )
    return list(topology.devices)


def load_compiler() -> None:
    """Load the compiler for NVIDIA GPUs once, without a driver or driver libraries.

    Raises:
        InputError: the extra is not installed, or does not fit the version of jax.
    """
    try:
        plugin = importlib.import_module(PLUGIN)
    except ImportError:
        raise InputError(
            f"compile_for needs the compiler of NVIDIA GPUs, which is not installed; expected `pip install "
            f"'jaxscale[aot]' jax-cuda12-plugin=={jax.__version__}` (no GPU is needed)"
        ) from None
    from jax._src import xla_bridge

    bridge: Any = xla_bridge
    # Without a GPU, the plugin registers only if the check for one is switched off.
    with mock.patch.dict(os.environ, {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}):
        # Plugins are discovered at the first use of a backend.
        jax.devices("cpu")
        if "cuda" in bridge._backend_factories:
            return
        plugin.initialize()
    # JAX runs these callbacks for every discovered plugin, e.g. to register the partitioning of attention.
    for callback in getattr(bridge, "_plugin_callbacks", ()):
        callback(c_api=bridge._backend_factories["cuda"].c_api)


COMPILER = "libtpu"
"""Module of the XLA compiler for TPUs."""

HOST = {
    **{"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-1", "TPU_WORKER_HOSTNAMES": "localhost"},
    **{"TPU_WORKER_ID": "0", "TPU_MIN_LOG_LEVEL": "4", "TPU_STDERR_LOG_LEVEL": "4"},
}
"""Environment that libtpu would otherwise query from the network of a TPU host."""


def absent_tpus(gpu: str, n_chips: int) -> list[Any]:
    """TPUs of a slice as compilation devices.

    Args:
        gpu: id of the TPU in the catalogue of chips.
        n_chips: number of TPUs [1].

    Raises:
        InputError: the compiler is not installed, or the slice is unknown.
    """
    entry = compile_targets()["slices"][gpu]
    if importlib.util.find_spec(COMPILER) is None:
        raise InputError(
            "compile_for needs the compiler of TPUs, which is not installed; expected `pip install "
            "'jaxscale[aot-tpu]'` (no TPU is needed)"
        )
    shape = slice_shape(n_chips, entry["axes"])
    name = f"{entry['generation']}:{'x'.join(map(str, shape))}"
    # A host has two by two chips, except in slices of 1 or 2 chips.
    host = (min(shape[0], 2), min(shape[1], 2), 1)
    with mock.patch.dict(os.environ, HOST):
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, chips_per_host_bounds=host)
    return list(topology.devices)


def slice_shape(n_chips: int, axes: int) -> tuple[int, ...]:
    """Shape of the TPU slice nearest to a square or a cube: chips along each axis [1].

    Args:
        n_chips: number of chips [1].
        axes: number of axes of the network [1].

    Raises:
        InputError: no slice has this number of chips.
    """
    if n_chips not in (1, 2) and n_chips % 4:
        raise InputError(f"n = {n_chips} chips are no slice of TPUs; expected 1, 2 or a multiple of 4")
    sizes = [size for size in range(1, n_chips + 1) if n_chips % size == 0]
    shapes = [
        shape
        for shape in itertools.product(sizes, repeat=axes)
        # Whole hosts of two by two chips from 4 chips on.
        if np.prod(shape) == n_chips and (n_chips < 4 or shape[0] % 2 == shape[1] % 2 == 0)
    ]
    # Nearest to a cube: shortest longest axis, then most even.
    return min(shapes, key=lambda shape: (max(shape), max(shape) / min(shape), shape))
