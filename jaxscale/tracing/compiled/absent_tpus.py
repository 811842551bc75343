"""Slices of TPUs that need not be there: devices of libtpu, which knows them by name and shape."""

import importlib.util
import itertools
import os
from typing import Any
from unittest import mock

import numpy as np
from jax.experimental import topologies

from jaxscale.base.errors import InputError
from jaxscale.tracing.compiled.absent_devices import compile_targets

COMPILER = "libtpu"
"""Module of the compiler of TPUs."""

HOST = {
    **{"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-1", "TPU_WORKER_HOSTNAMES": "localhost"},
    **{"TPU_WORKER_ID": "0", "TPU_MIN_LOG_LEVEL": "4", "TPU_STDERR_LOG_LEVEL": "4"},
}
"""What libtpu would ask the network for where a host has TPUs."""


def absent_tpus(gpu: str, n_chips: int) -> list[Any]:
    """TPUs of a slice as devices for which programs can be compiled.

    Args:
        gpu: id of the TPU in the catalogue of chips.
        n_chips: how many [1].

    Returns:
        The devices.

    Raises:
        InputError: the compiler is not installed, or there is no such slice.
    """
    entry = compile_targets()["slices"][gpu]
    if importlib.util.find_spec(COMPILER) is None:
        raise InputError(
            "compile_for needs the compiler of TPUs, which is not installed; expected `pip install "
            "'jaxscale[aot-tpu]'` (no TPU is needed)"
        )
    shape = slice_shape(n_chips, entry["axes"])
    name = f"{entry['generation']}:{'x'.join(map(str, shape))}"
    host = (min(shape[0], 2), min(shape[1], 2), 1)
    with mock.patch.dict(os.environ, HOST):
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, chips_per_host_bounds=host)
    return list(topology.devices)


def slice_shape(n_chips: int, axes: int) -> tuple[int, ...]:
    """Chips along each axis of the slice that is nearest to a square or a cube [1].

    Hosts have two by two chips, but for slices of one or two.

    Args:
        n_chips: how many [1].
        axes: of the network [1].

    Raises:
        InputError: no slice has so many chips.
    """
    if n_chips not in (1, 2) and n_chips % 4:
        raise InputError(f"n = {n_chips} chips are no slice of TPUs; expected 1, 2 or a multiple of 4")
    sizes = [size for size in range(1, n_chips + 1) if n_chips % size == 0]
    shapes = [
        shape
        for shape in itertools.product(sizes, repeat=axes)
        if np.prod(shape) == n_chips and (n_chips < 4 or shape[0] % 2 == shape[1] % 2 == 0)
    ]
    return min(shapes, key=lambda shape: (max(shape), max(shape) / min(shape), shape))
