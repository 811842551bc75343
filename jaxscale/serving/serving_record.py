"""Fit of serving software: coefficients by level, widths of intervals by novelty, and its file.

`serving_problem.widths_of` computes the widths from left-out runs; `calibration.intervals` defines the choice of the
widest.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from jaxscale.base.documents import fit_path
from jaxscale.base.errors import InputError, one_like
from jaxscale.base.record_file import RecordFile
from jaxscale.calibration.base_record import NUMBER, Record, tables_of_entries
from jaxscale.calibration.intervals import looked_up, widest
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.spec import Spec
from jaxscale.serving.serving_coefficients import (
    ServingCoefficients,
    model_level,
    serving_coefficients,
    serving_facts,
    serving_spec,
)

NOVELTIES = ("seen", "model", "stack", "chip", "framework")
"""Novelties of a row: load or plan alone; model; pair of chip and framework; chip; framework."""


def stand_ins(target: str) -> tuple[str, ...]:
    """Targets whose errors substitute for those of an unmeasured target, in order of preference.

    The substitutes of a percentile are the neighbouring percentiles, then the mean.
    """
    kind = target.partition("_")[0]
    near = [name for name in MEANS if name.startswith(kind)]
    percentiles = [f"{kind}_{percentile}_s" for percentile in ("p99", "p90", "p50")] if target not in MEANS else []
    return tuple(dict.fromkeys((target, *percentiles, *near, *STAND_INS)))


MEANS = ("ttft_s", "tpot_s", "e2e_latency_s", "output_tokens_per_s_total")
"""Columns of means."""

STAND_INS = ("tpot_s", "e2e_latency_s", "output_tokens_per_s_total")
"""Substitutes for a missing target, in order."""

WIDTH_KINDS = ("arrivals", "density", "stack")
"""Factors that define classes of widths."""

USUAL = {"burst": "offline_max", "closed": "online"}
"""Kind of serving by stated arrivals."""

ARRIVALS = ("stream", *USUAL)
"""Kinds of serving with stated arrivals."""

WIDEST = math.log(4.0)
"""Interval without further information: a factor of four [1]."""


@dataclass(frozen=True)
class ServingWidth:
    """90 % interval of log measured over predicted, for a class of rows.

    Attributes:
        target: measured column; empty for any.
        serving: kind of serving, `burst` or `closed` where a table states such arrivals; empty for any.
        density: `dense` or `mixture`; empty for either.
        stack: framework and chip; empty for any.
        novelty: one of `NOVELTIES`.
        lo: 5 % quantile [1].
        hi: 95 % quantile [1].
        n: number of errors [1].
    """

    target: str
    serving: str
    density: str
    stack: str
    novelty: str
    lo: float
    hi: float
    n: int


@dataclass(frozen=True)
class ServingWidths:
    """Interval widths of a fit, with look-up by class of rows.

    Attributes:
        widths: all widths of a fit.
    """

    widths: tuple[ServingWidth, ...]

    def ends(
        self, target: str, levels: Levels, new: Mapping[str, Bool[np.ndarray, " row"]]
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
        """Ends of the 90 % intervals of rows relative to the prediction, the widest over their novelties.

        Args:
            target: predicted column.
            levels: levels of the rows.
            new: masks by kind of `NOVELTIES`.

        Returns:
            Lower and upper ends of log measured over predicted [1], [row].
        """
        # Widths depend on three kinds of level alone: a single look-up for each combination.
        classed, index = classes_of_width(levels).only(dict.fromkeys(WIDTH_KINDS, bool)).distinct()
        usual = (np.zeros(len(levels)), np.zeros(len(levels)))
        # Intervals grow with novelty; quantiles alone may not, as their classes differ.
        sides, below, above = {}, np.zeros(len(classed)), np.zeros(len(classed))
        for kind in NOVELTIES:
            lower, upper = self.sides(target, classed, kind)
            below, above = np.maximum(below, lower), np.maximum(above, upper)
            sides[kind] = (below[index], above[index])
        below, above = widest(usual, ((holds, sides[kind]) for kind, holds in new.items()))
        return -below, above

    def interval(self, target: str, serving: str, density: str, stack: str, novelty: str) -> tuple[float, float]:
        """Lower and upper end of log measured over predicted, from the narrowest class with measured runs [1]."""
        one = Levels.of_rows([{"arrivals": serving, "density": density, "stack": stack}])
        below, above = self.sides(target, one, novelty)
        return -float(below[0]), float(above[0])

    def sides(self, target: str, levels: Levels, novelty: str) -> tuple[np.ndarray, ...]:
        """Extent of intervals below and above the prediction for a novelty.

        Measured targets of a kind of serving substitute for an unmeasured target.

        Args:
            target: predicted column.
            levels: levels of the rows for the factors `WIDTH_KINDS`.
            novelty: one of `NOVELTIES`.

        Returns:
            Lower end of log measured over predicted with its sign turned, and upper end [1], [row].
        """
        others = stand_ins(target)
        near = [name for name in others if name not in MEANS]
        means = [name for name in others if name in MEANS]

        def places(serving: str, density: str, stack: str) -> list[tuple[str, ...]]:
            classes = ((density, stack), (density, ""), ("", ""))
            # Percentiles of a time come from one class of runs, so that larger percentiles have larger ends.
            of_serving = []
            # Errors of the usual kind of serving substitute where no run states arrivals.
            for kind in dict.fromkeys((serving, USUAL.get(serving, serving))):
                of_serving += [(name, kind, *place) for place in classes for name in near]
                of_serving += [(name, kind, *place) for name in means for place in classes]
            return [*of_serving, (target, "", "", ""), ("", "", "", "")]

        entries = {}
        for width in self.widths:
            # A rate is wide where a time is narrow: the sides swap.
            is_swapped = width.target != "" and sign_of(width.target) != sign_of(target)
            sides = (width.hi, -width.lo) if is_swapped else (-width.lo, width.hi)
            if width.novelty == novelty:
                entries[(width.target, width.serving, width.density, width.stack)] = sides
        return looked_up(entries, levels, WIDTH_KINDS, places, (WIDEST, WIDEST))


def classes_of_width(levels: Levels) -> Levels:
    """Levels with the factors of `WIDTH_KINDS` added.

    `density` is the last word of the kind of model, `dense` or `mixture`; `arrivals` is the kind of serving if no
    arrivals are stated.
    """
    return levels.renamed("kind", lambda words: words.split()[-1], to="density").filled("arrivals", "serving")


def sign_of(target: str) -> float:
    """Sign of a target in the error of times: 1 for times and -1 for rates [1]."""
    # A short time is a high rate.
    return -1.0 if target.startswith("output") else 1.0


@dataclass(frozen=True)
class ServingFit(Record):
    """Fit of serving software: coefficients from measured runs, with effects by level and intervals.

    Shares are stored before their bound of one.

    Attributes:
        n_rows: number of measured rows [1].
    """

    n_rows: int = 0

    file = RecordFile(
        what="fit of serving stacks",
        head="coefficients",
        made_by="one of `serving fit`",
        comment="Fit of serving stacks; made by fits/serving.py or `serving fit`.",
        old_head="centre",
    )
    tables = {**Record.tables, "n_rows": ("n_rows", NUMBER), "widths": ("widths", tables_of_entries(ServingWidth))}

    @classmethod
    def spec(cls) -> Spec:
        """Table of the coefficients of serving."""
        return serving_spec()

    @property
    def frameworks(self) -> set[str]:
        """Frameworks of the fit and of the fits that it started from, and those whose defaults are known."""
        parents = self.parent.frameworks if isinstance(self.parent, ServingFit) else ()
        facts = serving_facts()
        return {*parents, *self.level_shifts.by_kind.get("framework", ()), *facts["releases"], *facts["memory"]}

    def coefficients(self, **levels: str) -> ServingCoefficients:
        """Coefficients of a stack: `fit.coefficients(framework="vllm", chip="h100-80gb", stack="vllm h100-80gb")`.

        Args:
            levels: names by kind of level, see `serving_rows.LEVEL_KINDS`; an absent kind has no effect.

        Raises:
            InputError: an unknown kind of level.
        """
        if unknown := [kind for kind in levels if kind not in self.spec().kinds]:
            raise InputError(f"{unknown[0]!r} is no kind of level; {one_like(unknown[0], self.spec().kinds)}")
        logs = self.unconstrained(Levels.of_rows([levels]))
        return jax.tree.map(float, jax.device_get(serving_coefficients(logs[0])))

    @functools.cached_property
    def intervals(self) -> ServingWidths:
        """Interval widths of the fit, with look-up by class of rows."""
        return ServingWidths(self.widths)

    @classmethod
    def of_tables(cls, path: Path, table: Mapping[str, Any]) -> "ServingFit":
        """Fit from the tables of its file; models of older files get the present names of their levels."""
        # Of equal levels the first entry counts.
        renamed = {(entry["kind"], _model_of_today(entry)): entry for entry in reversed(table.get("effects", []))}
        effects = [{**entry, "level": level} for (_, level), entry in reversed(renamed.items())]
        head = cls.file.head if cls.file.head in table else cls.file.old_head
        # A coefficient absent from an older file takes its prior.
        centre = {**cls.spec().medians, **table.get(head, {})}
        return super().of_tables(path, {**table, "effects": effects, head: centre})


def _model_of_today(entry: Mapping[str, str]) -> str:
    """Level of an effect, with the model's catalogue id."""
    if entry["kind"] == "model":
        return model_level(entry["level"])
    if entry["kind"] == "pair":
        framework, _, name = entry["level"].partition(" ")
        return f"{framework} {model_level(name)}"
    return entry["level"]


def load_serving_fit(fit: "ServingFit | str | Path" = "default") -> ServingFit:
    """Fit of serving by object, by name (`default`, `prior`), or from a TOML file.

    Raises:
        InputError: unknown fit, or the file holds no fit.
    """
    if isinstance(fit, ServingFit):
        return fit
    if str(fit) == "prior":
        return ServingFit("prior", serving_spec().medians)
    path = fit_path("serving.toml") if str(fit) == "default" else Path(fit)
    if path.suffix != ".toml":
        raise InputError(f"fit {str(fit)!r} is not shipped; expected default, prior or a .toml file")
    return ServingFit.load(path)
