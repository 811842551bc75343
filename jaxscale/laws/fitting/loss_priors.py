"""Priors of the traits of a law of loss: what tables of other sources show, and how far a law may go astray with scale.

The numbers are in `data/law_priors.toml`, made by `fits/laws.py`: for each form, means and spreads between sources, and
the discrepancy per decade of extrapolation, each once from all sources and once without each of them, so that a shipped
table is never its own prior.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError
from jaxscale.base.resources import data_path, read_toml
from jaxscale.laws.fitting.loss_forms import TRAITS
from jaxscale.laws.fitting.loss_terms import number_names

ALL = "all"
"""Name of the prior from all sources."""


class LawPrior(NamedTuple):
    """Normal prior of the traits of a law, and its discrepancy.

    Attributes:
        name: shipped, without-<family> or none.
        mean: of the traits and the numbers of the terms [trait].
        spread: standard deviation between sources, infinite without a prior [trait].
        discrepancy: error of the law per decade of compute beyond the fitted range [1].
    """

    name: str
    mean: Float[np.ndarray, " trait"]
    spread: Float[np.ndarray, " trait"]
    discrepancy: float

    @property
    def precision(self) -> Float[np.ndarray, " trait"]:
        """Inverse variance, 0 without a prior [trait]."""
        return 1.0 / self.spread**2


@functools.cache
def _table() -> dict[str, Any]:
    return read_toml(data_path("law_priors.toml"))


def prior_of(name: str | None, form: str, terms: tuple[str, ...] = (), family: str = "") -> LawPrior:
    """Prior by name.

    Args:
        name: `shipped`, or None for none.
        form: of the law; each form has a prior of its own.
        terms: of the law.
        family: source that the prior leaves out.

    Raises:
        InputError: unknown name.
    """
    extra = number_names(terms)[len(number_names(())) :]
    size = len(TRAITS) + len(extra)
    entry = _entry(form, family)
    if name is None or name == "none":
        return LawPrior("none", np.zeros(size), np.full(size, np.inf), float(entry.get("discrepancy", 0.0)))
    if name != "shipped":
        raise InputError(f"prior {name!r} is unknown; expected shipped or none")
    of_terms = _table().get("terms", {})
    mean = [*(entry["mean"][trait] for trait in TRAITS), *(of_terms.get(x, {}).get("mean", 0.0) for x in extra)]
    spread = [
        *(entry["spread"][trait] for trait in TRAITS),
        *(of_terms.get(x, {}).get("spread", np.inf) for x in extra),
    ]
    told = f"without-{family}" if family in _table()["priors"].get(form, {}) else "shipped"
    return LawPrior(told, np.asarray(mean, float), np.asarray(spread, float), float(entry["discrepancy"]))


def _entry(form: str, family: str) -> dict[str, Any]:
    """Prior of a form without a family; that of all sources where the family is not among them."""
    of_form = _table().get("priors", {}).get(form, {})
    return of_form.get(family) or of_form.get(ALL, {})
