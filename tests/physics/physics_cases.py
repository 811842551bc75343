"""What tests of physics share: coefficients that all differ from one, machines, and one compiled program for any case.

An ideal machine, whose efficiencies are one and whose overheads are nothing, cannot show a factor that is left out.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from registry import Configuration, as_arrays, changed, draw_coefficients, many_steps, row, stack

import jaxscale as js

ROWS = 64
"""Rows of every compiled program, so that there is one of each kind."""

GRADIENTS, SENDS, RING = "data_parallel", "pipeline_transfer", "context_parallel"
MATMULS, CORE, STREAMS, GAPS, AGAIN = "matmul", "attention", "memory_bound", "launch_gaps", "recompute"
TENSORS, TOKENS, UPDATE = "tensor_parallel", "expert_parallel", "optimizer"
"""Terms of a step, by what they are the time of."""

many_peaks = jax.jit(jax.vmap(lambda case: js.memory(*case)))


def lossy(seed: int = 0, **changes: float) -> js.Coefficients:
    """Random physical coefficients, some of them changed."""
    drawn = draw_coefficients(np.random.default_rng(seed).standard_normal, 0.5)
    return changed(drawn, **changes)


UNHIDDEN = {"tp_overlap": 0.0, "dp_overlap": 0.0, "fsdp_overlap": 0.0, "cp_overlap": 0.0, "ep_overlap": 0.0}
"""Coefficients with which no collective hides behind computation."""

NO_LATENCY = {"collective_launch": 0.0, "link_latency_scale": 0.0, "network_latency_scale": 0.0}
"""Coefficients with which the time of a collective is proportional to its bytes."""


def case(
    shape: js.Transformer, plan: js.Plan, coefficients: js.Coefficients, domain: int = 8, chip: str = "h100-80gb"
) -> Configuration:
    """A model on chips in domains of some size."""
    return Configuration(shape, plan, js.cluster(chip, plan.n_chips, domain_size=domain), coefficients)


def _mapped(function: Any, batch: Configuration) -> Any:
    """A function of stacked configurations, in blocks of as many rows as it was compiled for."""
    n = np.shape(batch.plan.dp)[0]
    blocks = []
    for start in range(0, n, ROWS):
        index = np.minimum(np.arange(start, start + ROWS), n - 1)
        blocks.append(function(jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index], batch)))
    return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate([np.asarray(leaf) for leaf in leaves])[:n]), *blocks)


def steps_of(batch: Configuration) -> js.StepTime:
    """Step times of stacked configurations."""
    return _mapped(many_steps, batch)


def peaks_of(batch: Configuration) -> js.Memory:
    """Peak memory of stacked configurations."""
    return _mapped(many_peaks, batch)


def steps(*cases: Configuration) -> list[js.StepTime]:
    """Step time of each configuration."""
    batch = steps_of(stack([as_arrays(one) for one in cases]))
    return [row(batch, index) for index in range(len(cases))]


def peaks(*cases: Configuration) -> list[js.Memory]:
    """Peak memory of each configuration."""
    batch = peaks_of(stack([as_arrays(one) for one in cases]))
    return [row(batch, index) for index in range(len(cases))]


def terms(name: str, found: Sequence[js.StepTime]) -> np.ndarray:
    """One term of several steps [s]."""
    return np.asarray([getattr(one, name) for one in found])
