"""How much of a chip's memory runs could use: from those that ended and those that ran out of it.

A run has less than the chip's memory: allocators leave gaps, libraries and the driver take their part, and a model of
peak memory, fitted to runs that ended, knows none of the peaks that did not fit. The share of runs that ran out rises
with the predicted peak, as a normal distribution of its log: a probit regression (Bliss 1934, Science 79, 38-39) with
lapses (Wichmann and Hill 2001, Perception & Psychophysics 63, 1293-1313).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.scipy.stats import norm
from jaxtyping import Array

from jaxscale.calibration.memory_limit import MemoryLimit
from jaxscale.calibration.record import Fit
from jaxscale.fitting.informed_coefficients import log_use
from jaxscale.fitting.result import FitResult
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs import Runs
from jaxscale.runs.measured import describe_runs, measured_times, run_status

MIN_RUNS = 5
"""Runs that ran out, and runs that ended, below which a source has no limit of its own [1]."""

USABLE_SPREAD = 0.15
"""Prior standard deviation of the log of the usable share about all of the memory: contexts and libraries take 2 to 5
of 80 GB, gaps of the allocator as much again [1]."""

SCATTER_SPREAD = 0.5
"""Prior standard deviation of the log of the scatter about that of measured peaks [1]."""

LAPSE = 0.01
"""Share of runs whose outcome has a cause that no peak tells: one of few such must not flatten the rise [1]."""


class Outcomes(NamedTuple):
    """Runs that ended or ran out of memory.

    Attributes:
        sources: source of each [row].
        models: model of each [row].
        log_use: log of the predicted peak over the chip's memory [1], [row].
        ran_out: whether it ran out of memory [row].
    """

    sources: np.ndarray
    models: np.ndarray
    log_use: np.ndarray
    ran_out: np.ndarray

    def take(self, rows: np.ndarray) -> "Outcomes":
        """Some of the runs."""
        return Outcomes(*(column[rows] for column in self))


def outcomes(runs: Runs, fit: Fit, hardware: Hardware | None = None) -> Outcomes | None:
    """Runs of a table that ended or ran out of memory, with their predicted peaks; None where none ran out."""
    if "oom" not in runs.column("status"):
        return None
    described = describe_runs(runs, hardware)
    if described.batch is None:
        return None
    status = run_status(runs, measured_times(runs, described)).array()
    levels = fit.seen.named(described.levels)
    found = Outcomes(
        levels.column("source"),
        levels.column("architecture"),
        log_use(described.batch, fit.unconstrained(levels)),
        status[described.index] == "oom",
    )
    # A run that ran out of memory may not have been sharded as one that must have fitted is taken to be.
    return found.take(~described.is_inferred_fsdp & np.isin(status[described.index], ("ok", "oom")))


def fitted_limit(source: str, runs: Outcomes, scatter: float) -> MemoryLimit:
    r"""Usable share and scatter that make the outcomes most probable, with their priors.

    Maximises $\sum_i \ln [\epsilon / 2 + (1 - \epsilon) \Phi(\pm (x_i - \ln u) / \sigma)]$, plus where a run i ran
    out, over the logs of u and sigma; epsilon is `LAPSE`.

    Args:
        source: whose runs they are.
        runs: the runs.
        scatter: of measured peaks, about which the prior of sigma lies [1].

    Returns:
        The limit.
    """
    log_use, sign = jnp.asarray(runs.log_use), jnp.where(jnp.asarray(runs.ran_out), 1.0, -1.0)

    def cost(logs: Array, _: None) -> Array:
        far = sign * (log_use - logs[0]) / (scatter * jnp.exp(logs[1]))
        priors = (logs[0] / USABLE_SPREAD) ** 2 + (logs[1] / SCATTER_SPREAD) ** 2
        return 0.5 * priors - jnp.sum(jnp.log(0.5 * LAPSE + (1.0 - LAPSE) * norm.cdf(far)))

    found = optx.minimise(cost, optx.BFGS(rtol=1e-5, atol=1e-5), jnp.zeros(2), throw=False)
    usable, wider = np.exp(np.asarray(found.value))
    return MemoryLimit(source, float(usable), float(scatter * wider))


def memory_limits(runs: Outcomes, fit: Fit) -> tuple[MemoryLimit, ...]:
    """Limits of the sources of which enough runs ran out, and enough ended."""
    limits = []
    for source in sorted(set(runs.sources)):
        own = runs.take(runs.sources == source)
        if min(own.ran_out.sum(), np.sum(~own.ran_out)) >= MIN_RUNS:
            limits.append(fitted_limit(source, own, fit.interval({"source": source}).memory))
    return tuple(limits)


def with_memory_limits(result: FitResult, tables: Sequence[Runs], hardware: Hardware | None = None) -> FitResult:
    """A fit that also knows how much memory the runs of some tables could use."""
    found = [outcomes(runs, result.fit, hardware) for runs in tables]
    limits = [limit for runs in found if runs is not None for limit in memory_limits(runs, result.fit)]
    return dataclasses.replace(result, fit=dataclasses.replace(result.fit, limits=(*limits, *result.fit.limits)))
