"""`FitResult`: what a fit found and how far to trust it."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration import Z90, Calibration, MemoryLimit
from jaxscale.coefficients import Coefficients, names, priors
from jaxscale.fit.diagnostics import Diagnostics, diagnose
from jaxscale.fit.objective import Problem, loss
from jaxscale.fit.parameters import Effect, constrain_values, unconstrain
from jaxscale.fit.profile import profile_intervals
from jaxscale.fit.solve import Solution
from jaxscale.fit.store import to_toml, write_text

IDENTIFIED_BELOW = 0.7
"""A coefficient counts as identified when its posterior spread is below this share of its prior's [1]."""

PROFILED_UP_TO = 400
"""Parameters, effects included, up to which intervals come from profiles [1]."""

MOST_INFLUENTIAL = 5
"""Runs that the report names as the most influential [1]."""


@dataclass(frozen=True)
class FitResult:
    """A calibration and its diagnostics.

    Attributes:
        coefficients: pooled coefficients with effects, scatter and provenance.
        problem: what was fitted.
        solution: where the optimiser ended.
        effects: levels that were given effects, in parameter order.
        residuals: predicted minus measured log step time of each run, in sample [row].
        held_out: the same for runs that the fit did not see; nan where there were too few groups [row].
        groups: group of each run in the cross-validation [row].
        levels: level names of each run, by kind.
    """

    coefficients: Coefficients
    problem: Problem
    solution: Solution
    effects: tuple[Effect, ...]
    residuals: np.ndarray
    held_out: np.ndarray
    groups: np.ndarray
    levels: Mapping[str, tuple[str, ...]]

    @property
    def n(self) -> int:
        """Measured runs [1]."""
        return len(self.residuals)

    @property
    def mape_train(self) -> float:
        """Mean absolute percentage error in sample [%]."""
        return float(100.0 * np.mean(np.abs(np.expm1(self.residuals))))

    @property
    def mape_cv(self) -> float:
        """Mean absolute percentage error of held-out groups [%]; nan with fewer than two groups."""
        return float(100.0 * np.mean(np.abs(np.expm1(self.held_out))))

    @property
    def median_cv(self) -> float:
        """Median absolute percentage error of held-out groups [%]."""
        return float(100.0 * np.median(np.abs(np.expm1(self.held_out))))

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Covariance, leverage and influence of each run, effective parameters, AIC and BIC."""
        return diagnose(self.problem, self.solution, self.n)

    @property
    def correlation(self) -> np.ndarray:
        """Posterior correlation of the pooled coefficients, in the order of `names()` [coefficient, coefficient]."""
        count = len(names())
        covariance = self.diagnostics.covariance[:count, :count]
        scale = np.sqrt(np.diag(covariance))
        return covariance / np.outer(scale, scale)

    @cached_property
    def intervals(self) -> np.ndarray:
        """Ends of the 90 % intervals of the standardised coefficients [coefficient, 2].

        By the profile likelihood; by the Laplace approximation for those that rest on their prior, where the two agree,
        and for pooled fits of more than `PROFILED_UP_TO` parameters, where profiles would take an hour.
        """
        count = len(names())
        centre = np.asarray(self.solution.parameters)
        half = Z90 * np.sqrt(np.diag(self.diagnostics.covariance))[:count]
        ends = centre[:count, None] + half[:, None] * np.asarray([-1.0, 1.0])
        indices = np.flatnonzero(self._identified)
        if len(centre) <= PROFILED_UP_TO and len(indices):
            parts = (self.problem, self.solution.parameters, jnp.asarray(self.diagnostics.covariance))
            with jax.enable_x64(True):
                ends[indices] = np.asarray(profile_intervals(*parts, jnp.asarray(indices)))
        return ends

    @property
    def _identified(self) -> np.ndarray:
        posterior = np.sqrt(np.diag(self.diagnostics.covariance))[: len(names())]
        return posterior < IDENTIFIED_BELOW

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Each coefficient: value, standard error of its log (or logit), 90 % interval, unit, whether identified."""
        centre = unconstrain(self.coefficients)
        spread = np.asarray(self.problem.parametrisation.spread)
        error = spread * np.sqrt(np.diag(self.diagnostics.covariance))[: len(names())]
        moves = (self.intervals - np.asarray(self.solution.parameters)[: len(names()), None]) * spread[:, None]
        low, high = (constrain_values(centre + moves[:, side]) for side in (0, 1))
        identified = self._identified
        return {
            name: {
                "value": float(getattr(self.coefficients, name)),
                "lo": float(low[index]),
                "hi": float(high[index]),
                "standard_error": float(error[index]),
                "unit": prior.unit,
                "identified": bool(identified[index]),
            }
            for index, (name, prior) in enumerate(priors().items())
        }

    def errors_by(self, kind: str) -> dict[str, dict[str, float | int]]:
        """Held-out error of step time by level of a kind, such as `source` or `gpu`; in sample where none is held out.

        Returns:
            Number of runs, mean and median absolute percentage error, and bias of the median run [%], by level.
        """
        residuals = np.where(np.isfinite(self.held_out), self.held_out, self.residuals)
        column = np.asarray(self.levels[kind], dtype=object)
        found = {}
        for level in sorted(set(self.levels[kind]) - {""}):
            values = 100.0 * np.expm1(residuals[column == level])
            errors = np.abs(values)
            entry = {"mape": np.mean(errors), "median_ape": np.median(errors), "bias": np.median(values)}
            found[level] = {"n": len(values), **{key: float(value) for key, value in entry.items()}}
        return found

    @property
    def influence(self) -> tuple[tuple[int, float], ...]:
        """The runs without which the parameters would move most: position among the measured, Cook's distance."""
        distance = self.diagnostics.cooks_distance
        order = np.argsort(-distance)[:MOST_INFLUENTIAL]
        return tuple((int(row), float(distance[row])) for row in order)

    @property
    def valid(self) -> bool:
        """Whether the optimiser converged to a finite optimum."""
        return bool(self.solution.converged) and bool(np.isfinite(self.solution.loss))

    @property
    def messages(self) -> tuple[str, ...]:
        """What a careful reader should know: failed convergence, coefficients that the data leave at their prior."""
        found = []
        if not self.valid:
            slope = jax.grad(loss)(self.solution.parameters, self.problem)
            found.append(f"the optimiser stopped before its tolerance; largest gradient {jnp.max(jnp.abs(slope)):.2g}")
        loose = [name for name, entry in self.parameters.items() if not entry["identified"]]
        if loose:
            found.append(f"{len(loose)} coefficients rest on their prior: {', '.join(loose)}")
        if not np.isfinite(self.held_out).any():
            found.append("too few groups of runs for a cross-validation: the scatter is that of the starting fit")
        return tuple(found)

    @property
    def memory_limits(self) -> tuple[MemoryLimit, ...]:
        """Memory that runs of the fitted sources could use, of those sources of which enough ran out."""
        record = self.coefficients.calibration or Calibration("fit")
        fitted = sorted(set(self.levels["source"]) & set(record.limit_by_source))
        return tuple(record.limit_by_source[source] for source in fitted)

    def summary(self) -> str:
        """Report in plain text: errors, parameter table, messages."""
        lines = [
            f"fit of {self.n} runs in {self.groups.max() + 1} groups, {len(self.effects)} effects of levels",
            f"error of step time: {self.mape_train:.2f} % in sample, {self.mape_cv:.2f} % held out "
            f"(median {self.median_cv:.2f} %)",
            f"AIC {self.diagnostics.aic:.1f}, BIC {self.diagnostics.bic:.1f}, "
            f"{self.diagnostics.n_effective:.1f} parameters decided by the runs",
            "most influential runs: " + ", ".join(f"{row} ({distance:.2g})" for row, distance in self.influence),
            "",
            f"{'coefficient':<24}{'value':>11}{'90 % interval':>26}  {'unit':<6} identified",
        ]
        for name, entry in self.parameters.items():
            interval = f"[{entry['lo']:.3g}, {entry['hi']:.3g}]"
            mark = "yes" if entry["identified"] else "prior"
            lines.append(f"{name:<24}{entry['value']:>11.3g}{interval:>26}  {entry['unit']:<6} {mark}")
        limits = [
            f"half of the runs of {limit.source} run out of memory where {limit.usable:.0%} of a chip's is predicted, "
            f"with a scatter of {limit.scatter:.0%}"
            for limit in self.memory_limits
        ]
        return "\n".join([*lines, "", *limits, *self.messages])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"

    def to_json(self) -> dict[str, Any]:
        """The report as plain data; nan becomes None."""
        return {
            "n": self.n,
            "mape_train": _finite(self.mape_train),
            "mape_cv": _finite(self.mape_cv),
            "median_cv": _finite(self.median_cv),
            "valid": self.valid,
            "messages": list(self.messages),
            "aic": self.diagnostics.aic,
            "bic": self.diagnostics.bic,
            "n_effective": self.diagnostics.n_effective,
            "influential_runs": [{"run": row, "cooks_distance": distance} for row, distance in self.influence],
            "by": {kind: self.errors_by(kind) for kind in ("source", "framework", "gpu", "precision")},
            "parameters": self.parameters,
            "memory_limits": [asdict(limit) for limit in self.memory_limits],
            "effects": [
                {"kind": e.kind, "level": e.level, "shifts": dict(e.shifts)}
                for e in (self.coefficients.calibration.effects if self.coefficients.calibration else ())
            ],
        }

    def save(self, path: str | Path) -> None:
        """Write the fit as TOML, whole or not at all.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        comment = f"jaxscale fit of {self.n} runs; load with jaxscale.load_fit or jaxscale predict --fit"
        write_text(path, to_toml(self.coefficients, self.parameters, comment))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
