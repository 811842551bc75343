"""Usable share of a chip's memory, fitted to completed runs and runs that ran out of memory.

The usable memory is less than the chip's memory: allocators leave gaps, libraries and the driver use memory, and a
model of peak memory fitted to completed runs has seen no peak above the limit. The share of runs out of memory rises
with the log of the predicted peak as a normal distribution function: a probit regression (Bliss 1934, Science 79,
38-39) with lapses (Wichmann and Hill 2001, Perception & Psychophysics 63, 1293-1313).
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
"""Minimum number of runs out of memory, and of completed runs, for a memory limit of a source [1]."""

USABLE_SPREAD = 0.15
"""Prior standard deviation of the log of the usable share of memory: contexts and libraries take 2 to 5 of 80 GB,
gaps of the allocator another 2 to 5 [1]."""

SCATTER_SPREAD = 0.5
"""Prior standard deviation of the log of the scatter, relative to the scatter of measured peaks [1]."""

LAPSE = 0.01
"""Share of runs with an outcome independent of the peak: a single such run must not flatten the probit curve [1]."""


class Outcomes(NamedTuple):
    """Completed runs and runs out of memory, with predicted use of memory.

    Attributes:
        sources: source of each run [row].
        models: model of each run [row].
        log_use: log of the predicted peak over the chip's memory [1], [row].
        ran_out: whether the run ran out of memory [row].
    """

    sources: np.ndarray
    models: np.ndarray
    log_use: np.ndarray
    ran_out: np.ndarray

    def take(self, rows: np.ndarray) -> "Outcomes":
        """Subset of the runs, by index or mask."""
        return Outcomes(*(column[rows] for column in self))


def outcomes(runs: Runs, fit: Fit, hardware: Hardware | None = None) -> Outcomes | None:
    """Completed runs and runs out of memory of a table, with predicted use; None without runs out of memory."""
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
    # The inferred sharding assumes that the run fits; a run out of memory may have been sharded less.
    return found.take(~described.is_inferred_fsdp & np.isin(status[described.index], ("ok", "oom")))


def fitted_limit(source: str, runs: Outcomes, scatter: float) -> MemoryLimit:
    r"""Maximum a posteriori estimate of usable share u and scatter $\sigma$ of the memory of a source.

    Maximises $\sum_i \ln [\epsilon / 2 + (1 - \epsilon) \Phi(\pm (x_i - \ln u) / \sigma)]$ plus the log priors over the
    logs of u and $\sigma$, with the sign + where run i ran out of memory; $\epsilon$ is `LAPSE`.

    Args:
        source: source of the runs.
        runs: the runs.
        scatter: scatter of measured peaks, the prior centre of $\sigma$ [1].

    Returns:
        The limit.
    """
    log_use, sign = jnp.asarray(runs.log_use), jnp.where(jnp.asarray(runs.ran_out), 1.0, -1.0)

    def cost(logs: Array, _: None) -> Array:
        # Standard deviations beyond the usable memory, positive where the outcome is expected.
        far = sign * (log_use - logs[0]) / (scatter * jnp.exp(logs[1]))
        priors = (logs[0] / USABLE_SPREAD) ** 2 + (logs[1] / SCATTER_SPREAD) ** 2
        # A share of the runs ends by chance: no outcome has probability 0.
        return 0.5 * priors - jnp.sum(jnp.log(0.5 * LAPSE + (1.0 - LAPSE) * norm.cdf(far)))

    found = optx.minimise(cost, optx.BFGS(rtol=1e-5, atol=1e-5), jnp.zeros(2), throw=False)
    usable, wider = np.exp(np.asarray(found.value))
    return MemoryLimit(source, float(usable), float(scatter * wider))


def memory_limits(runs: Outcomes, fit: Fit) -> tuple[MemoryLimit, ...]:
    """Memory limits of sources with at least `MIN_RUNS` runs out of memory and `MIN_RUNS` completed runs."""
    limits = []
    for source in sorted(set(runs.sources)):
        own = runs.take(runs.sources == source)
        if min(own.ran_out.sum(), np.sum(~own.ran_out)) >= MIN_RUNS:
            limits.append(fitted_limit(source, own, fit.interval({"source": source}).memory))
    return tuple(limits)


def with_memory_limits(result: FitResult, tables: Sequence[Runs], hardware: Hardware | None = None) -> FitResult:
    """Fit result with memory limits from the runs of several tables."""
    found = [outcomes(runs, result.fit, hardware) for runs in tables]
    limits = [limit for runs in found if runs is not None for limit in memory_limits(runs, result.fit)]
    return dataclasses.replace(result, fit=dataclasses.replace(result.fit, limits=(*limits, *result.fit.limits)))
