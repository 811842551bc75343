"""Fitted laws in files: TOML, whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.record_file import RecordFile
from jaxscale.laws.fitting.fitted_law import Fitted, FittedLaw, Range
from jaxscale.laws.fitting.loss_forms import BASE, form_of, traits
from jaxscale.laws.fitting.loss_priors import LawPrior
from jaxscale.laws.fitting.loss_terms import TERMS, number_names

LAW_FILE = RecordFile(
    what="law of loss",
    head="law",
    made_by="a file that `jaxscale law fit --out` wrote",
    comment="Law of loss fitted by jaxscale. Numbers and draws are logarithms, except numbers that may be negative.",
    ended="law",
)
"""File of a law."""


def law_document(law: FittedLaw) -> dict[str, Any]:
    """Law as one JSON document: numbers with intervals, backtest and doubts."""
    tested = law.backtest
    return {
        "form": law.form,
        "terms": list(law.terms),
        "count": law.count,
        "parameters": law.parameters,
        "n": law.n,
        "n_groups": law.n_groups,
        "prior": law.prior.name,
        "likelihood": law.likelihood,
        "objective": law.fitted.objective,
        "noise": law.noise,
        "discrepancy_per_decade": law.discrepancy,
        "backtest": {
            "error_percent": None if tested is None else tested.error_percent,
            "coverage_90": None if tested is None else tested.coverage_90,
            "rollouts": [] if tested is None else [_rollout(one) for one in tested.rollouts],
        },
        "warnings": list(law.warnings),
    }


def _rollout(one: Any) -> dict[str, float]:
    return {
        "largest_fitted_flop": one.cut,
        "n_fitted": one.n_fitted,
        "n_predicted": one.n_predicted,
        "error_percent": 100.0 * one.mean_error,
        "bias_percent": 100.0 * float(np.expm1(one.error).mean()),
        "coverage_90": one.coverage,
    }


def save_law(law: FittedLaw, path: str | Path) -> Path:
    """Write a law to a TOML file that `load_law` reads.

    Raises:
        InputError: the folder is missing or closed to writing.
    """
    fitted = law.fitted
    document = {
        "law": {
            "name": law.name,
            "form": law.form,
            "terms": " ".join(law.terms),
            "count": law.count,
            "likelihood": law.likelihood,
            "n": law.n,
            "n_groups": law.n_groups,
            "discrepancy": float(law.discrepancy),
            "scale": float(fitted.scale),
            "objective": float(fitted.objective),
            "warnings": "\n".join(law.warnings),
        },
        "range": {name: float(value) for name, value in law.span._asdict().items()},
        "prior": {
            "name": law.prior.name,
            "mean": [float(value) for value in law.prior.mean],
            "spread": [float(value) for value in np.where(np.isfinite(law.prior.spread), law.prior.spread, 1e30)],
        },
        "numbers": {
            "names": list(number_names(law.terms)),
            "best": [float(value) for value in fitted.numbers],
            "draws": [[float(value) for value in draw] for draw in fitted.draws],
        },
    }
    LAW_FILE.write(path, document)
    return Path(path)


def load_law(path: str | Path) -> FittedLaw:
    """Law from a TOML file that `save_law` wrote.

    Raises:
        InputError: the file is missing, cut, or not a law.
    """
    return LAW_FILE.read(path, _law)


def _law(path: Path, document: Mapping[str, Any]) -> FittedLaw:
    """Law from the tables of its file."""
    told, prior = document["law"], document["prior"]
    terms = tuple(told["terms"].split())
    if not set(terms) <= set(TERMS):
        raise InputError(f"{path}: terms {', '.join(terms)}; expected some of {', '.join(TERMS)}")
    names = number_names(terms)
    if tuple(document["numbers"]["names"]) != names:
        raise ValueError("numbers of another version")
    best = np.asarray(document["numbers"]["best"], float)
    draws = np.asarray(document["numbers"]["draws"], float).reshape(-1, len(names))
    spread = np.asarray(prior["spread"], float)
    held = LawPrior(
        prior["name"], np.asarray(prior["mean"], float), np.where(spread < 1e29, spread, np.inf), told["discrepancy"]
    )
    with jax.enable_x64(True):
        every = np.asarray(jax.vmap(traits)(jnp.asarray(np.concatenate([best[None, :], draws]))))
    free = form_of(told["form"], len(names) - len(BASE)).is_free
    fitted = Fitted(best, draws, every[0], every[1:], told["scale"], told["objective"], free)
    return FittedLaw(
        told["name"], told["form"], terms, told["count"], held, told["likelihood"], fitted, told["n"],
        told["n_groups"], Range(**document["range"]), told["discrepancy"], tuple(told["warnings"].splitlines()),
    )  # fmt: skip
