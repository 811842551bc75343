"""A fit of serving stacks as a record on the host: coefficients by level, widths of intervals, and its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.base.resources import fit_path, read_toml
from jaxscale.base.toml_text import toml_text
from jaxscale.serving.calibrate.serving_coefficients import (
    SERVING_NAMES,
    ServingCoefficients,
    serving_coefficients,
    serving_priors,
)
from jaxscale.serving.calibrate.serving_widths import ServingWidth, ServingWidths

Effects = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Changes of log coefficients by kind of level, level and coefficient [1]."""


@dataclass(frozen=True)
class ServingFit:
    """Coefficients of serving stacks that measured runs tell.

    Attributes:
        name: of the fit.
        centre: pooled value of each coefficient, in its own unit.
        effects: changes of their logarithms by kind of level, level and coefficient [1].
        spreads: standard deviation of the effects by kind and coefficient: what a new level may bring [1].
        widths: intervals, from runs that were left out.
        n_rows: measured rows behind it [1].
    """

    name: str
    centre: Mapping[str, float]
    effects: Effects
    spreads: Mapping[str, Mapping[str, float]]
    widths: tuple[ServingWidth, ...] = ()
    n_rows: int = 0

    def has_seen(self, kind: str, level: str) -> bool:
        """Whether the fit has runs of a level."""
        return level in self.effects.get(kind, {})

    def logs(self, levels: Mapping[str, np.ndarray]) -> np.ndarray:
        """Log coefficients of rows: pooled values and the effects of their levels [row, coefficient]."""
        n_rows = len(next(iter(levels.values())))
        logs = np.tile(np.log([self.centre[name] for name in SERVING_NAMES]), (n_rows, 1))
        for kind, by_level in self.effects.items():
            if kind not in levels:
                continue
            names, codes = np.unique(levels[kind].astype(str), return_inverse=True)
            shifts = [self._shift(by_level.get(self.stand_in(kind, name), {})) for name in names.tolist()]
            logs += np.stack(shifts)[codes]
        return logs

    def stand_in(self, kind: str, level: str) -> str:
        """Level whose effects count for one: itself, or for an unknown framework the longest known name within it."""
        known = self.effects.get(kind, {})
        if kind != "framework" or level in known:
            return level
        return max((name for name in known if name in level), key=len, default=level)

    def _shift(self, entry: Mapping[str, float]) -> list[float]:
        return [entry.get(name, 0.0) for name in SERVING_NAMES]

    def coefficients(self, **levels: str) -> ServingCoefficients:
        """Coefficients of one stack: `fit.coefficients(framework="vllm", chip="h100-80gb", stack="vllm h100-80gb")`.

        Args:
            levels: names by kind of level, see `serving_rows.LEVEL_KINDS`; a kind that is left out adds nothing.

        Returns:
            The coefficients.
        """
        columns = {kind: np.asarray([level], dtype=object) for kind, level in (levels or {"framework": ""}).items()}
        values = jax.device_get(serving_coefficients(self.logs(columns)[0]))
        return jax.tree.map(float, values)

    @property
    def intervals(self) -> ServingWidths:
        """Widths of intervals, ready for look-up."""
        return ServingWidths(self.widths)

    def save(self, path: str | Path) -> None:
        """Write the fit to a TOML file, whole or not at all.

        Raises:
            InputError: the folder is missing or closed to writing.
        """
        entries = [
            {"kind": kind, "level": level, "shifts": {name: float(shift) for name, shift in shifts.items()}}
            for kind, by_level in self.effects.items()
            for level, shifts in by_level.items()
        ]
        document: dict[str, Any] = {
            "name": self.name,
            "n_rows": self.n_rows,
            "centre": dict(self.centre),
            "spreads": {kind: dict(by_name) for kind, by_name in self.spreads.items()},
            "effects": entries,
            "widths": [width.entry() for width in self.widths],
        }
        write_whole(path, toml_text(document, "Fit of serving stacks; made by fits/serving.py or `serving fit`."))


def prior_fit() -> ServingFit:
    """No fit at all: every stack at the medians of the priors."""
    centre = {name: float(serving_priors()[name]["median"]) for name in SERVING_NAMES}
    return ServingFit("prior", centre, {}, {})


def load_serving_fit(fit: "ServingFit | str | Path" = "default") -> ServingFit:
    """A fit as it is, the shipped one (`default`), no fit at all (`prior`), or one from a TOML file.

    Raises:
        InputError: no such fit, or the file is not one.
    """
    if isinstance(fit, ServingFit):
        return fit
    if str(fit) == "prior":
        return prior_fit()
    path = fit_path("serving.toml") if str(fit) == "default" else Path(fit)
    if path.suffix != ".toml":
        raise InputError(f"fit {str(fit)!r} is not shipped; expected default, prior or a .toml file")
    table = read_toml(path)
    try:
        return _parsed(table)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a fit of serving stacks ({error!r}); expected one of `serving fit`") from None


def _parsed(table: Mapping[str, Any]) -> ServingFit:
    effects: dict[str, dict[str, dict[str, float]]] = {}
    for entry in table["effects"]:
        effects.setdefault(entry["kind"], {})[entry["level"]] = entry["shifts"]
    # A coefficient that a file of an earlier version lacks is read from the priors.
    centre = {name: float(serving_priors()[name]["median"]) for name in SERVING_NAMES} | table["centre"]
    unknown = sorted(set(centre) - set(SERVING_NAMES))
    if unknown:
        raise ValueError(f"{unknown[0]} is not a coefficient")
    widths = tuple(ServingWidth(**entry) for entry in table.get("widths", ()))
    return ServingFit(table["name"], centre, effects, table["spreads"], widths, int(table["n_rows"]))
