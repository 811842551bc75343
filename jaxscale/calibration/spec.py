"""Description of the coefficients of a fit: unit, range, prior, source and coordinate of each, from a file of `data/`.

Effects and priors act on coordinates: the logarithm of a positive coefficient, the logit of a fraction, the value of a
real coefficient. Rules (`StandIns`) name a substitute for an absent level, or a level without fitted runs.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.calibration.levels import Levels


@dataclass(frozen=True)
class StandIns:
    """Rules for the replacement of absent levels, and of levels without fitted runs, before the look-up of effects.

    Attributes:
        others: by factor, a second factor with the level for a run without a level.
        usual: by factor, the default level of a run without a level.
        choices: by factor, a function from a level and the levels with effects to the substitute level.
    """

    others: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Callable[[str, Collection[str]], str]] = field(default_factory=dict)

    def applied(self, levels: Levels, known: Mapping[str, Collection[str]]) -> Levels:
        """Levels after substitution.

        Args:
            levels: levels of the runs.
            known: names of the levels with effects by factor.
        """
        for kind, other in self.others.items():
            levels = levels.filled(kind, other)
        for kind, name in self.usual.items():
            levels = levels.replace(levels.missing(kind), {kind: name})
        for kind, choice in self.choices.items():
            names = known.get(kind, ())
            levels = levels.renamed(kind, lambda name, choice=choice, names=names: choice(name, names))
        return levels


def longest_within(name: str, known: Iterable[str]) -> str:
    """Substitute for an unknown name: the longest known name contained in the name; else the given name."""
    known = list(known)
    return name if name in known else max((other for other in known if other in name), key=len, default=name)


NO_STAND_INS = StandIns()
"""No rule: a level without effects has no substitute."""


RANGES = {
    "positive": (0.0, np.inf),
    "fraction": (0.0, 1.0),
    "real": (-np.inf, np.inf),
}
"""Open range of the values of a coefficient, by `Prior.kind`."""

FARTHEST = 80.0
"""Bound of coordinates that keeps the exponential finite, in 32 bits too [1]."""


class Prior(NamedTuple):
    """Prior of a coefficient.

    Attributes:
        median: median, in the unit of the coefficient.
        spread: standard deviation of the coordinate [1].
        kind: `positive` (coordinate: log), `fraction` (logit) or `real` (the value itself).
        unit: unit of the coefficient.
        meaning: physical meaning, a sentence.
        source: source of median and spread.
        effects: factors (source, mixture, ...) whose levels may shift the coefficient of a known stack.
        spread_of_levels: prior standard deviation of the effects; equal to `spread` unless levels differ by more
            than the uncertainty of the centre [1].
        levels: standard deviation of the effects within the centre, by factor (stack, gpu, ...) [1].
        told_by: runs most informative about the coefficient, in words.
        hides_where: `small` or `large` if overlap hides the cost term of a small or large coefficient; else empty.
        may_be_zero: whether the value may be 0, for a feature absent from a stack.
    """

    median: float
    spread: float
    kind: str
    unit: str
    meaning: str
    source: str
    effects: tuple[str, ...]
    spread_of_levels: float
    levels: Mapping[str, float]
    told_by: str = ""
    hides_where: str = ""
    may_be_zero: bool = False


@dataclass(frozen=True, eq=False)
class Spec:
    """Priors of the coefficients of a fit, and the factors whose levels shift coefficients.

    Attributes:
        priors: prior of each coefficient, in order.
        kinds: factors with effects, in the order of summation.
        stand_ins: rules that replace absent levels and levels without effects.
        retired: coefficients of earlier versions, ignored in files.
    """

    priors: Mapping[str, Prior]
    kinds: tuple[str, ...] = ()
    stand_ins: StandIns = NO_STAND_INS
    retired: tuple[str, ...] = ()

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, in order."""
        return tuple(self.priors)

    @functools.cached_property
    def medians(self) -> dict[str, float]:
        """Prior median of each coefficient, in the coefficient's unit."""
        return {name: float(prior.median) for name, prior in self.priors.items()}

    def effect_spreads(self) -> dict[str, dict[str, float]]:
        """Prior standard deviation of the effects on log or logit, by factor and coefficient [1]."""
        spreads = {
            kind: {name: prior.levels[kind] for name, prior in self.priors.items() if kind in prior.levels}
            for kind in self.kinds
        }
        return {kind: by_name for kind, by_name in spreads.items() if by_name}

    @functools.cached_property
    def _is_fraction(self) -> np.ndarray:
        return np.asarray([prior.kind == "fraction" for prior in self.priors.values()])

    @functools.cached_property
    def _is_real(self) -> np.ndarray:
        return np.asarray([prior.kind == "real" for prior in self.priors.values()])

    def constrained(self, coordinates: Any) -> Any:
        """Values from coordinates u: exp(u), 1 / (1 + exp(-u)) or u, in numpy and JAX [..., coefficient]."""
        xp = jnp if isinstance(coordinates, jax.Array) else np
        bounded = xp.clip(coordinates, -FARTHEST, FARTHEST)
        values = xp.where(self._is_fraction, 1.0 / (1.0 + xp.exp(-bounded)), xp.exp(bounded))
        return xp.where(self._is_real, coordinates, values) if self._is_real.any() else values

    def unconstrained(self, values: Any) -> np.ndarray:
        """Coordinates of coefficient values: log, logit or the value, in numpy [..., coefficient]."""
        values = np.asarray(values, float)
        # Both branches of `where` are evaluated, so log and logit meet values outside their domain.
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.where(self._is_fraction, np.log(values) - np.log1p(-values), np.log(values))
        return np.where(self._is_real, values, logits)

    def slopes(self, coordinates: np.ndarray) -> np.ndarray:
        """Derivative of each value v with respect to its coordinate: v for a log, v (1 - v) for a logit, else 1."""
        values = self.constrained(coordinates)
        slopes = np.where(self._is_fraction, values * (1.0 - values), values)
        return np.where(self._is_real, 1.0, slopes)

    def column(self, values: Mapping[str, float]) -> Float[np.ndarray, " coefficient"]:
        """Array of numbers given by coefficient name, 0 for absent names [coefficient]."""
        return np.asarray([values.get(name, 0.0) for name in self.names], float)

    def stated(self, where: Any, entries: Mapping[str, Any]) -> dict[str, float]:
        """Values of the coefficients from the entries of a file, with the prior median for absent coefficients.

        A file written before a cost term was added lacks the coefficients of the term.

        Raises:
            InputError: an unknown coefficient, or a value out of range.
        """
        kept = self.known(f"{where}: coefficients.", entries)
        found = {name: _value(f"{where}: coefficients.{name}", kept[name], self.priors[name]) for name in kept}
        return {**self.medians, **found}

    def known(self, where: str, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Entries of a file by coefficient name, without the coefficients of earlier versions.

        Args:
            where: start of an error message.
            entries: entries of the file by name.

        Raises:
            InputError: an unknown coefficient.
        """
        kept = {name: entry for name, entry in entries.items() if name not in self.retired}
        if unknown := sorted(set(kept) - set(self.names)):
            raise InputError(f"{where}{unknown[0]} is not a coefficient; expected one of {', '.join(self.names)}")
        return kept


def _value(where: str, entry: Any, prior: Prior) -> float:
    """Value of an entry, checked against the range of the coefficient."""
    value = entry.get("value") if isinstance(entry, Mapping) else entry
    low, high = RANGES[prior.kind]
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        if low < number < high or (prior.may_be_zero and number == 0.0):
            return number
    raise InputError(f"{where} = {value!r} is out of range; expected a number between {low:g} and {high:g}")


def spec_from(
    file: str,
    names: Iterable[str],
    *,
    table: str = "coefficients",
    kinds: tuple[str, ...] = (),
    stand_ins: StandIns = NO_STAND_INS,
    retired: tuple[str, ...] = (),
) -> Spec:
    """Description of coefficients read from a file of `data/`.

    Args:
        file: name of the file. A table `[effects]` states prior spreads of effects by factor and coefficient; entries
            of coefficients take precedence.
        names: names of the coefficients, in the order of the fields of their module.
        table: table of the file with an entry per coefficient.
        kinds: factors with effects; by default the factors of the table `[effects]`.
        stand_ins: rules that replace levels without effects.
        retired: coefficients of earlier versions.

    Returns:
        The table.
    """
    content = read_toml(data_path(file))
    by_kind = content.get("effects", {})
    kinds = kinds or tuple(by_kind)
    priors = {}
    for name in names:
        levels = {kind: spreads[name] for kind, spreads in by_kind.items() if name in spreads}
        priors[name] = _prior({"levels": levels, **content[table][name]})
    return Spec(priors, kinds, stand_ins, retired)


def _prior(entry: Mapping[str, Any]) -> Prior:
    """Prior from an entry of a table; the entry `date` is documentation only."""
    usual = {"spread_of_levels": entry["spread"], "kind": "positive"}
    stated = {name: value for name, value in entry.items() if name != "date"}
    return Prior(**{**usual, **stated, "effects": tuple(entry.get("effects", ()))})
