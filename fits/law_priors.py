"""The priors of the laws of loss: data/law_priors.toml, from all tables of losses of the repository. A few minutes.

For each form: the traits of every table fitted alone, with the covariance of its draws; from them mean and spread
between sources, by maximum likelihood, a source counting once however many tables it has; then the error per decade
beyond the range of a fit that makes nine of ten held-out intervals hold. Each once with all sources and once without
each, so that a table is never its own prior.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from jaxscale.base.documents import data_path
from jaxscale.base.files import write_whole
from jaxscale.base.record_file import toml_text
from jaxscale.calibration.intervals import Z90
from jaxscale.laws.backtest import Rollout, rollout, upper_decade
from jaxscale.laws.loss_fit import FIXED_TRAITS, fit_law
from jaxscale.laws.loss_forms import ALL, FORMS, TRAITS, LawPrior
from jaxscale.laws.loss_reader import Losses, loss_table, loss_table_names, train_below_params

N_DRAWS = 200

TYPICAL_SPREAD = np.log(1.2), 1.0
"""Spread of a trait that is expected before any table is seen, and by how many e-folds it may differ: some 20 %."""

HOLDS = 0.9
"""Share of held-out rows of a source left out that their 90 % intervals are to hold."""

LEVELS = np.arange(0.90, 0.991, 0.01)
"""Shares that intervals of the other sources may have to hold, so that those of the source left out hold `HOLDS`."""

COMMENT = """Priors of the traits of laws of loss, made by fits/law_priors.py from the tables of the repository.
# mean and spread (standard deviation between sources) of logarithms: exponents, joint exponent, share of the
# irreducible loss at 1e9 parameters and 2e10 tokens, optimal tokens per parameter of 1e9 parameters. discrepancy:
# relative error of the law per decade beyond the fitted range. `all`: from all sources; the others without the source
# of that name."""


def judged_tables() -> dict[str, Losses]:
    """Tables that say something of the priors, by name."""
    return {name: loss_table(name) for name in loss_table_names()}


def split_of(name: str, table: Losses) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit and rows to predict: lower half of log compute and top decade, or as the authors split them."""
    below = train_below_params(name)
    if below is None:
        return upper_decade(table)
    return table.n_params < below, table.n_params > 2.0 * below


def traits_of(tables: dict[str, Losses], form: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Traits of each table fitted alone, and the covariance of their draws."""
    fits = {name: fit_law(table, form, prior=None, n_draws=N_DRAWS).fitted for name, table in tables.items()}
    return {name: (fit.traits, robust_covariance(fit.drawn_traits)) for name, fit in fits.items()}


def robust_covariance(draws: np.ndarray) -> np.ndarray:
    """Covariance of draws of which a few run away: by the median absolute deviation of each trait."""
    centre = np.median(draws, axis=0)
    wide = 1.4826 * np.median(np.abs(draws - centre), axis=0) + 1e-4
    kept = (np.abs(draws - centre) < 4.0 * wide).all(axis=1)
    return np.cov(draws[kept].T) + np.diag(1e-8 + 0.0 * wide)


def between_sources(
    estimates: dict[str, tuple[np.ndarray, np.ndarray]], families: dict[str, str], skip: str, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of traits between sources, by maximum likelihood."""
    used = [name for name in estimates if families[name] != skip]
    per_family: dict[str, int] = defaultdict(int)
    for name in used:
        per_family[families[name]] += 1
    size = int(free.sum())

    def misfit(point: np.ndarray) -> float:
        mean, log_spread = point[:size], point[size:]
        total = 0.5 * float(np.sum(((log_spread - np.log(TYPICAL_SPREAD[0])) / TYPICAL_SPREAD[1]) ** 2))
        for name in used:
            traits, covariance = estimates[name]
            both = np.diag(np.exp(2.0 * log_spread)) + covariance[np.ix_(free, free)]
            miss = traits[free] - mean
            term = 0.5 * np.linalg.slogdet(both)[1] + 0.5 * miss @ np.linalg.solve(both, miss)
            total += float(term) / per_family[families[name]]
        return total

    start = np.median([estimates[name][0][free] for name in used], axis=0)
    best = minimize(misfit, np.r_[start, np.full(size, np.log(0.25))], method="BFGS").x
    mean, spread = np.zeros(len(free)), np.ones(len(free))
    mean[free], spread[free] = best[:size], np.exp(best[size:])
    return mean, spread


def holding(one: Rollout, per_decade: float) -> float:
    """Share of the rows of a rollout whose intervals hold with a discrepancy per decade."""
    width = np.sqrt(one.parameters**2 + one.noise**2 + (Z90 * per_decade * one.decades) ** 2)
    return float(np.mean(np.abs(one.error) <= width))


def discrepancy_of(rollouts: dict[str, Rollout], families: dict[str, str], skip: str, level: float) -> float:
    """Error per decade with which the intervals of held-out rows hold at a level, each table counting once."""
    used = [one for name, one in rollouts.items() if families[name] != skip]
    for per_decade in np.arange(0.0, 0.1, 1e-4):
        if np.mean([holding(one, per_decade) for one in used]) >= level:
            return float(per_decade)
    return 0.1


def calibrated_level(rollouts: dict[str, Rollout], families: dict[str, str]) -> float:
    """Least level of `LEVELS` by which sources left out hold `HOLDS`: a new source differs more than those seen."""
    for level in LEVELS:
        without = {skip: discrepancy_of(rollouts, families, skip, level) for skip in set(families.values())}
        if np.mean([holding(one, without[families[name]]) for name, one in rollouts.items()]) >= HOLDS:
            return float(level)
    return float(LEVELS[-1])


def priors_of(form: str, tables: dict[str, Losses]) -> tuple[dict[str, Any], dict[str, Rollout]]:
    """Entries of a form, with and without each source, and the rollouts of its tables."""
    families = {name: table.family for name, table in tables.items()}
    free = np.asarray([trait not in FIXED_TRAITS.get(form, ()) for trait in TRAITS])
    estimates = traits_of(tables, form)
    skips = [ALL, *dict.fromkeys(families.values())]
    held = {skip: between_sources(estimates, families, skip, free) for skip in skips}
    rollouts = {}
    for name, table in tables.items():
        prior = LawPrior("script", *held[families[name]], 0.0)
        rollouts[name] = rollout(table, *split_of(name, table), lambda t, p=prior: fit_law(t, form, prior=p))
    level = calibrated_level(rollouts, families)
    entries = {}
    for skip in skips:
        mean, spread = held[skip]
        entries[skip] = {
            "discrepancy": discrepancy_of(rollouts, families, skip, level),
            "mean": {trait: float(value) for trait, value in zip(TRAITS, mean, strict=True)},
            "spread": {trait: float(value) for trait, value in zip(TRAITS, spread, strict=True)},
        }
    return entries, rollouts


def told(form: str, rollouts: dict[str, Rollout], entries: dict[str, Any], tables: dict[str, Losses]) -> None:
    """Print the errors of the rollouts."""
    errors = np.asarray([100.0 * one.mean_error for one in rollouts.values()])
    signs = [float(one.error.mean()) > 0.0 for one in rollouts.values()]
    holds, halves = [], []
    for name, one in rollouts.items():
        wide = Z90 * entries[tables[name].family]["discrepancy"] * one.decades
        half = np.sqrt(one.parameters**2 + one.noise**2 + wide**2)
        holds.append(np.mean(np.abs(one.error) <= half))
        halves.append(100.0 * np.median(half))
        print(f"  {name:20s} {100 * one.error.mean():+6.2f} %  holds {holds[-1]:.2f}  half-width {halves[-1]:.2f} %")
    geometric = float(np.exp(np.log(errors).mean()))
    print(
        f"{form}: geometric {geometric:.2f} median {np.median(errors):.2f} mean {errors.mean():.2f} high {sum(signs)}/"
    )
    print(f"  {len(signs)} holds {np.mean(holds):.3f} half {np.median(halves):.2f} all {entries[ALL]}")


def main() -> None:
    """Write the priors."""
    tables = judged_tables()
    document: dict[str, Any] = {"priors": {}}
    for form in FORMS:
        entries, rollouts = priors_of(form, tables)
        document["priors"][form] = entries
        told(form, rollouts, entries, tables)
    write_whole(Path(data_path("law_priors.toml")), toml_text(document, COMMENT))


if __name__ == "__main__":
    main()
