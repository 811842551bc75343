"""The record of a fit: pooled coefficients, effects of levels, intervals, limits of memory, provenance.

A plain record on the host. The model takes `Coefficients` alone, which a fit gives for the levels of a run.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError, one_like
from jaxscale.base.files import write_whole
from jaxscale.base.show import Printout, printed
from jaxscale.base.toml_text import toml_text
from jaxscale.calibration.coefficients import Coefficients, from_values, names, values_of
from jaxscale.calibration.coordinates import constrain_values, unconstrain
from jaxscale.calibration.effects import Effects, LevelEffect
from jaxscale.calibration.intervals import Interval, Scatter, Scatters
from jaxscale.calibration.levels import LEVEL_KINDS, Levels, on_chips
from jaxscale.calibration.memory_limit import MemoryLimit
from jaxscale.calibration.seen import Place, Seen
from jaxscale.calibration.workload_paces import PaceColumns, WorkloadPace, paces_of

AnyLevels = Levels | Mapping[str, str | None]
"""Levels of many runs, or the level of one run by kind."""


@printed(lambda fit: _shown(fit))
@dataclass(frozen=True, repr=False)
class Fit:
    """Coefficients fitted to measured runs, and how they differ and scatter between levels of runs.

    Attributes:
        name: of the fit.
        pooled: coefficients of runs of no level in particular.
        effects: by level; a level that is not listed has the pooled value.
        scatter: by level.
        known: kind and name of every level of the fitted runs, effects or none.
        largest: sources and the most chips of any of their runs in the fit [1].
        provenance: keys and values: data hash, versions, number of runs, held-out error.
        limits: of memory, of the sources that showed them.
        own: source and framework of the fitted runs, where all of them share one; a run that names neither is taken to
            be like them.
        fitted: kind and name of the sources and frameworks of the fitted runs.
        parent: fit from which the search started; it answers for runs of sources and frameworks that it alone knows.
        is_centre: whether the fit is the centre of a calibration, the first of two stages: as the parent of another fit
            it answers for every stack that this does not know.
        paces: of traced workloads that were measured.
    """

    name: str
    pooled: Coefficients
    effects: tuple[LevelEffect, ...] = ()
    scatter: tuple[Scatter, ...] = ()
    known: tuple[Place, ...] = ()
    largest: tuple[tuple[str, float], ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    limits: tuple[MemoryLimit, ...] = ()
    own: tuple[Place, ...] = ()
    fitted: tuple[Place, ...] = ()
    parent: "Fit | None" = None
    is_centre: bool = False
    paces: tuple[WorkloadPace, ...] = ()

    def coefficients(
        self, levels: Mapping[str, str | None] | None = None, n_chips: float | int | None = None
    ) -> Coefficients:
        """Coefficients of one run: the pooled ones moved by the effects of its levels.

        Args:
            levels: level of the run by kind, one of `LEVEL_KINDS`: source, framework, gpu, precision, ...
            n_chips: of the run [1]: kernels of one chip alone have no collectives beside them; several where None.

        Returns:
            Coefficients, each a number.

        Raises:
            InputError: an unknown kind of level.
        """
        if unknown := [kind for kind in levels or {} if kind not in LEVEL_KINDS]:
            raise InputError(f"{unknown[0]!r} is no kind of level; {one_like(unknown[0], LEVEL_KINDS)}")
        levels = on_chips(levels or {}, np.inf if n_chips is None else n_chips)
        rows = self.unconstrained(Levels.of_rows([levels]))
        return from_values(constrain_values(rows[0]).tolist())

    def coefficients_of(self, levels: Levels) -> Coefficients:
        """Coefficients of many runs, stacked: each an array [row]."""
        table, index = self.coefficient_table(levels)
        return jax.tree.map(lambda column: column[index], table)

    def coefficient_table(self, levels: Levels) -> tuple[Coefficients, Int[np.ndarray, " row"]]:
        """Coefficients of each combination of levels that move them, and the combination that each run has.

        Args:
            levels: of the runs.

        Returns:
            Coefficients, each an array [combination]; positions in it [row].
        """
        table, index = self._unconstrained_table(levels)
        return from_values(list(constrain_values(table).T)), index

    def unconstrained(self, levels: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Unconstrained coefficients of runs, effects of their levels included [row, coefficient]."""
        table, index = self._unconstrained_table(levels)
        return table[index]

    def _unconstrained_table(self, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
        """Unconstrained coefficients [combination, coefficient], and the combination of each run [row]."""
        combinations, index = self._effects.combinations(self.seen.named(levels))
        table = unconstrain(self.pooled) + self._effects.shifts(combinations)
        if self.parent is not None and (others := self.seen.only_parent_knows(levels)).any():
            of_parent, index_of_parent = self.parent._unconstrained_table(levels.take(others))
            index[others] = len(table) + index_of_parent
            table = np.concatenate([table, of_parent])
        return table, index

    def interval(self, levels: AnyLevels, n_chips: Any = 0.0) -> Interval:
        """Half-width of the 90 % interval of log step time, and standard deviation of log peak memory.

        What the fit never saw widens them, see `jaxscale.calibration.intervals`.

        Args:
            levels: of one run or of many.
            n_chips: of each run [1], [row].

        Returns:
            The widths [1]: numbers for one run, else [row].
        """
        if not isinstance(levels, Levels):
            one = self.interval(Levels.of_rows([levels]), n_chips)
            return Interval(float(one.time[0]), float(one.memory[0]))
        chips = np.broadcast_to(np.asarray(n_chips, float), (len(levels),))
        widths = self._scatters.interval(self.seen.named(levels), chips)
        if self.parent is not None and (others := self.seen.only_parent_knows(levels)).any():
            of_parent = self.parent.interval(levels.take(others), chips[others])
            for column, values in zip(widths, of_parent, strict=True):
                column[others] = values
        return widths

    def workload_paces(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> PaceColumns:
        """Paces of runs of traced workloads.

        Args:
            levels: of the runs; the workload is their level `architecture`.
            n_chips: of each run [1].

        Returns:
            Log paces and half-widths of the 90 % intervals of log step time [1], [row].
        """
        return paces_of(self.paces, levels, n_chips)

    def memory_limit(self, levels: AnyLevels, n_chips: Any = 0.0) -> MemoryLimit:
        """Memory that a run may take: as the runs of its source could, else all of it with the scatter of its peak.

        Args:
            levels: of one run or of many.
            n_chips: of each run [1], [row].

        Returns:
            The limit; of many runs with a share and a scatter for each [row].
        """
        if not isinstance(levels, Levels):
            one = self.memory_limit(Levels.of_rows([levels]), n_chips)
            return MemoryLimit(one.source, float(one.usable[0]), float(one.scatter[0]))
        chips = np.broadcast_to(np.asarray(n_chips, float), (len(levels),))
        named, limits = self.seen.named(levels), self.limit_by_source
        any_source = limits.get("", MemoryLimit("", 1.0, np.nan))
        usable = named.numbers(lambda name: limits.get(name, _ALL).usable, "source", of_none=any_source.usable)
        scatter = named.numbers(lambda name: limits.get(name, _ALL).scatter, "source", of_none=any_source.scatter)
        scatter = np.where(np.isnan(scatter), self.interval(levels, chips).memory, scatter)
        if self.parent is not None and (others := self.seen.only_parent_knows(levels)).any():
            of_parent = self.parent.memory_limit(levels.take(others), chips[others])
            usable[others], scatter[others] = of_parent.usable, of_parent.scatter
        return MemoryLimit("", usable, scatter)

    def most_chips(self, levels: AnyLevels) -> Any:
        """Most chips of any fitted run of a run's source, or of any at all where the source is not known [1], [row]."""
        if not isinstance(levels, Levels):
            return float(self.most_chips(Levels.of_rows([levels]))[0])
        most = self._scatters.most_chips(self.seen.named(levels))
        if self.parent is not None and (others := self.seen.only_parent_knows(levels)).any():
            most[others] = self.parent.most_chips(levels.take(others))
        return most

    def notes(self, levels: AnyLevels, n_chips: Any = 0.0) -> Any:
        """Levels of a run that no fitted run had, and more chips than any had, in words; empty where nothing is new.

        Args:
            levels: of one run or of many.
            n_chips: of each run [1], [row].

        Returns:
            The words: one text for one run, else [row].
        """
        if not isinstance(levels, Levels):
            return str(self.notes(Levels.of_rows([levels]), n_chips)[0])
        chips = np.broadcast_to(np.asarray(n_chips, float), (len(levels),))
        texts = self.seen.notes(levels)
        if self.parent is not None and (others := self.seen.only_parent_knows(levels)).any():
            texts[others] = self.parent.seen.notes(levels.take(others))
        most = self.most_chips(levels)
        larger = np.flatnonzero(chips > most)
        counts, index = np.unique(np.stack([chips[larger], most[larger]]), axis=1, return_inverse=True)
        more = [f"on more chips than the fit saw: {count:g}, not {limit:g}" for count, limit in counts.T]
        for row, which in zip(larger.tolist(), index.ravel().tolist(), strict=True):
            texts[row] = f"{texts[row]}; {more[which]}" if texts[row] else more[which]
        return texts

    @functools.cached_property
    def seen(self) -> Seen:
        """Levels of the runs of the fit and of its parent."""
        parent = self.parent.seen if self.parent is not None else None
        return Seen(frozenset(self.known), frozenset(self.fitted), self.own, parent, self.is_centre)

    @functools.cached_property
    def _effects(self) -> Effects:
        return Effects(self.effects)

    @functools.cached_property
    def _scatters(self) -> Scatters:
        return Scatters(self.scatter, dict(self.largest), self.seen)

    @property
    def scatter_by_level(self) -> dict[Place, Scatter]:
        """Scatters by kind and name of their level."""
        return self._scatters.by_level

    @functools.cached_property
    def known_sources(self) -> frozenset[str]:
        """Sources of the fitted runs."""
        return frozenset(level for kind, level in self.known if kind == "source")

    @functools.cached_property
    def limit_by_source(self) -> dict[str, MemoryLimit]:
        """Limits of memory by source; the first entry of a source counts, as for the scatter."""
        return {limit.source: limit for limit in reversed(self.limits)}

    @property
    def has_runs(self) -> bool:
        """Whether the fit knows of measured runs; `prior` does not."""
        return bool(self.known or self.effects or self.scatter)

    def save(
        self, path: str | Path, parameters: Mapping[str, Mapping[str, Any]] | None = None, comment: str = ""
    ) -> None:
        """Write the fit as TOML, whole or not at all; `load_fit` reads it.

        Args:
            path: file to write.
            parameters: lo, hi, unit and identified of each pooled coefficient, by name; left out where None.
            comment: first line of the file.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        comment = comment or "jaxscale fit; load with jaxscale.load_fit or jaxscale predict --fit"
        write_whole(path, toml_text({**self._document(parameters or {}), END: {}}, comment))

    def _document(self, parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The fit as nested tables."""
        coefficients = dict(zip(names(), values_of(self.pooled), strict=True))
        document: dict[str, Any] = {
            "name": self.name,
            "provenance": dict(self.provenance),
            "coefficients": {
                name: {"value": value, **_entry(parameters.get(name))} for name, value in coefficients.items()
            },
            "known": _names_by_kind(self.known),
        }
        document |= {"centre": {"answers_for_unknown_stacks": True}} if self.is_centre else {}
        document |= {"fitted": _names_by_kind(self.fitted)} if self.fitted else {}
        document |= {"own": dict(self.own)} if self.own else {}
        document["largest"] = {source: int(count) for source, count in self.largest}
        document["effects"] = [{"kind": e.kind, "level": e.level, "shifts": dict(e.shifts)} for e in self.effects]
        document["scatter"] = [vars(entry) for entry in self.scatter]
        document["memory_limits"] = [vars(limit) for limit in self.limits]
        document |= {"paces": [vars(pace) for pace in self.paces]} if self.paces else {}
        return document | ({"parent": self.parent._document({})} if self.parent is not None else {})


def _shown(fit: Fit) -> Printout:
    """What was fitted, and what of it is known."""
    frameworks = sorted(name for kind, name in fit.known if kind == "framework" and name)
    sources = sorted(name for kind, name in fit.known if kind == "source" and name)
    rows = [
        *fit.provenance,
        ("effects", f"{len(fit.effects)} of {len({effect.kind for effect in fit.effects})} kinds of level"),
        ("frameworks", ", ".join(frameworks) or "none"),
        ("sources", str(len(sources))),
        ("chips", str(sum(kind == "gpu" for kind, _ in fit.known))),
    ]
    if fit.parent is not None:
        rows.append(("started from", fit.parent.name))
    short = [(name, text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ...") for name, text in rows]
    return Printout(f"Fit {fit.name!r}: {len(names())} coefficients", ("", ""), short, n_left=2)


MOST_LETTERS = 100
"""Letters of a text that are shown of a fit [1]."""

END = "end"
"""Last table of a file, without which it is not whole."""

_ALL = MemoryLimit("", 1.0, np.nan)
"""Limit of a source that showed none: all of the memory."""


def _entry(parameter: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: parameter[key] for key in ("lo", "hi", "unit", "identified")} if parameter else {}


def _names_by_kind(places: tuple[Place, ...]) -> dict[str, list[str]]:
    """Names of levels by kind, sorted."""
    by_kind: dict[str, list[str]] = {}
    for kind, name in sorted(places):
        by_kind.setdefault(kind, []).append(name)
    return by_kind
