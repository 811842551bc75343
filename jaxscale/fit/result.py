"""`FitResult`: what a fit found and how far to trust it."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.calibration import Z90
from jaxscale.coefficients import Coefficients, names, priors
from jaxscale.fit.objective import Problem
from jaxscale.fit.parameters import Effect, constrain_values, unconstrain
from jaxscale.fit.solve import Solution
from jaxscale.fit.store import to_toml, write_text

IDENTIFIED_BELOW = 0.7
"""A coefficient counts as identified when its posterior spread is below this share of its prior's [1]."""


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
        covariance: of the standardised parameters [parameter, parameter].
        groups: group of each run in the cross-validation [row].
        levels: level names of each run, by kind.
    """

    coefficients: Coefficients
    problem: Problem
    solution: Solution
    effects: tuple[Effect, ...]
    residuals: np.ndarray
    held_out: np.ndarray
    covariance: np.ndarray
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
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Each coefficient: value, 90 % interval, unit, and whether the data identify it."""
        centre = unconstrain(self.coefficients)
        count = len(names())
        posterior = np.sqrt(np.diag(self.covariance))[:count]
        half = Z90 * posterior * np.asarray(self.problem.parametrisation.spread)
        low, high = (constrain_values(centre + sign * half) for sign in (-1.0, 1.0))
        return {
            name: {
                "value": float(getattr(self.coefficients, name)),
                "lo": float(low[index]),
                "hi": float(high[index]),
                "unit": prior.unit,
                "identified": bool(posterior[index] < IDENTIFIED_BELOW),
            }
            for index, (name, prior) in enumerate(priors().items())
        }

    @property
    def valid(self) -> bool:
        """Whether the optimiser converged to a finite optimum."""
        return bool(self.solution.converged) and bool(np.isfinite(self.solution.loss))

    @property
    def messages(self) -> tuple[str, ...]:
        """What a careful reader should know: failed convergence, coefficients that the data leave at their prior."""
        found = []
        if not self.valid:
            found.append(
                f"the optimiser stopped before its tolerance; largest gradient {self.solution.gradient_norm:.2g}"
            )
        loose = [name for name, entry in self.parameters.items() if not entry["identified"]]
        if loose:
            found.append(f"{len(loose)} coefficients rest on their prior: {', '.join(loose)}")
        if not np.isfinite(self.held_out).any():
            found.append("too few groups of runs for a cross-validation: the scatter is that of the starting fit")
        return tuple(found)

    def summary(self) -> str:
        """Report in plain text: errors, parameter table, messages."""
        lines = [
            f"fit of {self.n} runs in {self.groups.max() + 1} groups, {len(self.effects)} effects of levels",
            f"error of step time: {self.mape_train:.2f} % in sample, {self.mape_cv:.2f} % held out "
            f"(median {self.median_cv:.2f} %)",
            "",
            f"{'coefficient':<24}{'value':>11}{'90 % interval':>26}  {'unit':<6} identified",
        ]
        for name, entry in self.parameters.items():
            interval = f"[{entry['lo']:.3g}, {entry['hi']:.3g}]"
            mark = "yes" if entry["identified"] else "prior"
            lines.append(f"{name:<24}{entry['value']:>11.3g}{interval:>26}  {entry['unit']:<6} {mark}")
        return "\n".join([*lines, "", *self.messages])

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
            "parameters": self.parameters,
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
