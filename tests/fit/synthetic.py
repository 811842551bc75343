"""Runs whose truth is known, and fits to start from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxscale as js
from jaxscale.calibration.coefficients import unconstrain
from jaxscale.fitting.objective import predicted_logs
from jaxscale.runs.arrays import Measured

FRAMEWORK = "megatron-deepspeed"
"""That of the BLOOM table."""


def true_coefficients() -> js.Coefficients:
    prior = js.prior_medians()
    return dataclasses.replace(prior, matmul_efficiency=0.62, scale_up_efficiency=0.7, residual_passes=25.0)


def start_at_truth(**record: object) -> js.Fit:
    """A fit with the true values that knows some things."""
    return js.Fit("start", true_coefficients(), **record)


def synthetic_runs(measured: Measured, noise: float) -> Measured:
    rows = jnp.broadcast_to(
        jnp.asarray(unconstrain(true_coefficients())), (len(measured.batch), len(unconstrain(true_coefficients())))
    )
    logs = np.stack(jax.jit(predicted_logs)(jax.tree.map(jnp.asarray, measured.batch), rows), axis=1)
    scatter = noise * np.random.default_rng(0).normal(size=logs.shape)
    times, memory = np.exp(logs + scatter).T
    return dataclasses.replace(measured, step_time=times, peak_memory=memory)


def named_runs(measured: Measured, **levels: str) -> Measured:
    """The same runs with other levels."""
    changed = measured.levels.replace(np.full(len(measured.batch), True), levels)
    return dataclasses.replace(measured, levels=changed)
