"""Fit of the cost terms of training: coefficients, level effects, intervals, memory limits and provenance.

`Fit.coefficients` gives the `Coefficients` of a run, which the cost model takes, from the levels of the run. A fit is
shipped, a file of the user, or the priors alone. For traced workloads, a fit holds paces: ratios of measured to
predicted step time, by workload and chip.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.arrays import stated_or
from jaxscale.base.documents import fit_path
from jaxscale.base.errors import InputError, one_like
from jaxscale.base.record_file import RecordFile
from jaxscale.base.show import Printout, printed
from jaxscale.calibration.base_record import COUNTS, PLACES, TEXTS, FileForm, LevelRows, Record, tables_of_entries
from jaxscale.calibration.coefficients import (
    Coefficients,
    anchor_shifts,
    from_values,
    names,
    prior_medians,
    timed_chips,
    training_spec,
)
from jaxscale.calibration.intervals import Z90, Interval, Scatter, Scatters, interval_ends, looked_up
from jaxscale.calibration.levels import LEVEL_KINDS, Levels, Place, Seen, on_chips
from jaxscale.calibration.memory_limit import MemoryLimit, probability_of_oom
from jaxscale.calibration.spec import Spec
from jaxscale.hardware.catalogue import Hardware


@dataclass(frozen=True)
class WorkloadPace:
    """Pace of a traced workload on a chip: posterior of the ratio of measured to predicted step time.

    Attributes:
        workload: name in the column `workload`; empty for any unmeasured workload.
        gpu: catalogue id of the chip; empty for any unmeasured chip.
        log_pace: logarithm of measured over predicted step time [1].
        half_width: half-width of the central 90 % interval of the log step time of a further run [1].
        n_chips: largest number of chips of a measured run of the workload [1].
    """

    workload: str
    gpu: str
    log_pace: float
    half_width: float
    n_chips: float


class PaceColumns(NamedTuple):
    """Ratios of measured to predicted step time of many runs of traced workloads.

    Attributes:
        log_pace: logarithm of measured over predicted step time, 0 without a pace [1], [row].
        half_width: half-width of the 90 % interval of log step time [1]; nan without a measured step of the workload on
            at least as many chips [row].
        is_measured: whether a step of the workload was measured [row].
    """

    log_pace: Float[np.ndarray, " row"]
    half_width: Float[np.ndarray, " row"]
    is_measured: np.ndarray


def paces_of(paces: Sequence[WorkloadPace], levels: Levels, n_chips: Float[np.ndarray, " row"]) -> PaceColumns:
    """Ratios of measured to predicted step time of runs of traced workloads.

    Args:
        paces: ratios known to a fit, by workload and chip.
        levels: levels of the runs; the workload is the level `architecture`.
        n_chips: number of chips of each run [1].

    Returns:
        The ratios, as logarithms.
    """
    entries = {(pace.workload, pace.gpu): (pace.log_pace, pace.half_width, pace.n_chips) for pace in reversed(paces)}
    log_pace, half_width, most = looked_up(entries, levels, ("architecture", "gpu"), _places, _NO_PACE)
    workloads = {workload for workload, _ in entries} - {""}
    is_measured = levels.has(workloads.__contains__, "architecture")
    return PaceColumns(log_pace, np.where(is_measured & (n_chips <= most), half_width, np.nan), is_measured)


def _places(workload: str, gpu: str) -> tuple[tuple[str, str], ...]:
    """Lookup order: workload on chip, workload on any chip, any workload on chip, any workload on any chip."""
    return (workload, gpu), (workload, ""), ("", gpu), ("", "")


_NO_PACE = (0.0, np.nan, 0.0)
"""Log pace, half-width and number of chips without a measured step."""


AnyLevels = Levels | Mapping[str, str | None]
"""Levels of many runs, or the level of one run by kind."""

ANCHORED_KIND = "gpu"
"""Factor that shifts coefficients even without a fitted effect, because chips have anchors."""


@printed(lambda fit: _shown(fit))
@dataclass(frozen=True, repr=False)
class Fit(Record):
    """Fit of training runs: coefficients with effects and scatter by level, and limits of memory.

    Attributes:
        largest: largest number of chips of a fitted run, by source [1].
        limits: usable memory by source, known where runs ran out of memory.
        own: source and framework common to all fitted runs, if any; the default for a run that states neither.
        fitted: factor and name of the sources and frameworks of the fitted runs.
        is_centre: whether the fit is the centre of a calibration, the first of two stages. As a parent, a centre
            predicts every stack unknown to the child fit.
        paces: ratios of measured to predicted step time of traced workloads.
        anchors: matmul efficiency of chips from a hardware file, by chip [1].
    """

    parent: "Fit | None" = None
    largest: tuple[tuple[str, float], ...] = ()
    limits: tuple[MemoryLimit, ...] = ()
    own: tuple[Place, ...] = ()
    fitted: tuple[Place, ...] = ()
    is_centre: bool = False
    paces: tuple[WorkloadPace, ...] = ()
    anchors: tuple[tuple[str, float], ...] = ()

    file = RecordFile(
        what="fit",
        head="coefficients",
        made_by="a file that `jaxscale fit --out` wrote",
        comment="jaxscale fit; load with jaxscale.load_fit or jaxscale predict --fit",
        ended="provenance",
    )
    tables = {
        **Record.tables,
        "centre": ("is_centre", FileForm(lambda _: {"answers_for_unknown_stacks": True}, lambda _: True)),
        "fitted": ("fitted", PLACES),
        "own": ("own", TEXTS),
        "largest": ("largest", COUNTS),
        "scatter": ("widths", tables_of_entries(Scatter)),
        "memory_limits": ("limits", tables_of_entries(MemoryLimit)),
        "paces": ("paces", tables_of_entries(WorkloadPace)),
        "anchors": ("anchors", FileForm(dict, lambda table: tuple(table.items()))),
    }

    @classmethod
    def spec(cls) -> Spec:
        """Priors, units and ranges of the coefficients of the cost terms."""
        return training_spec()

    @functools.cached_property
    def pooled(self) -> Coefficients:
        """Pooled coefficients, of a run without level effects."""
        return from_values(list(self.centre.values()))

    @property
    def scatter(self) -> tuple[Scatter, ...]:
        """Relative scatter of log step time and log peak memory of held-out runs, by level [1]."""
        return self.widths

    def coefficients(
        self, levels: Mapping[str, str | None] | None = None, n_chips: float | int | None = None
    ) -> Coefficients:
        """Coefficients of a run: pooled coefficients plus the effects of the run's levels.

        Args:
            levels: level of the run by factor of `LEVEL_KINDS`: source, framework, gpu, precision, ...
            n_chips: number of chips [1]; a single chip has no concurrent collectives; None counts as several.

        Returns:
            Coefficients, each a number.

        Raises:
            InputError: an unknown factor.
        """
        if unknown := [kind for kind in levels or {} if kind not in LEVEL_KINDS]:
            raise InputError(f"{unknown[0]!r} is no kind of level; {one_like(unknown[0], LEVEL_KINDS)}")
        levels = on_chips(levels or {}, np.inf if n_chips is None else n_chips)
        rows = self.unconstrained(Levels.of_rows([levels]))
        return from_values(self.spec().constrained(rows[0]).tolist())

    def coefficients_of(self, levels: Levels) -> Coefficients:
        """Coefficients of many runs, an array [row] per coefficient."""
        table, index = self.coefficient_table(levels)
        return jax.tree.map(lambda column: column[index], table)

    def coefficient_table(self, levels: Levels) -> tuple[Coefficients, Int[np.ndarray, " row"]]:
        """Coefficients of each distinct combination of levels, and the combination index of each run.

        Args:
            levels: levels of the runs.

        Returns:
            Coefficients as arrays [combination]; combination indices [row].
        """
        table, index = self.unconstrained_table(levels)
        return from_values(list(self.spec().constrained(table).T)), index

    def _combinations(self, levels: Levels) -> tuple[Levels, Int[np.ndarray, " row"]]:
        return self.level_shifts.combinations(self.seen.named(levels), also=(ANCHORED_KIND,))

    def _shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        fitted = self.level_shifts.by_kind.get(ANCHORED_KIND, {})
        return anchor_shifts(combinations, fitted, dict(self.anchors)) + super()._shifts(combinations)

    def with_anchors(self, anchors: Mapping[str, float]) -> "Fit":
        """Copy of the fit in which matmul efficiencies of chips from a hardware file replace those of the package.

        Args:
            anchors: matmul efficiency by chip [1].
        """
        if not anchors:
            return self
        parent = self.parent.with_anchors(anchors) if self.parent is not None else None
        return replace(self, parent=parent, anchors=tuple({**dict(self.anchors), **anchors}.items()))

    def only_parent_knows(self, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether predictions of a run come from the parent, by the rule of `Seen.only_parent_knows` [row]."""
        return self.seen.only_parent_knows(levels)

    def interval(self, levels: AnyLevels, n_chips: Any = 0.0) -> Interval:
        """Widths of prediction intervals: half-width of log step time (90 %), standard deviation of log peak memory.

        Levels new to the fit widen the interval, see `jaxscale.calibration.intervals`.

        Args:
            levels: levels of one run or of many runs.
            n_chips: number of chips of each run [1], [row].

        Returns:
            The widths [1]: numbers for a single run, else [row].
        """
        rows = LevelRows.of(levels, n_chips)
        return Interval(*map(rows.given, self.by_who_knows(rows, Fit._own_interval)))

    def _own_interval(self, rows: LevelRows) -> Interval:
        return self._scatters.interval(self.seen.named(rows.levels), rows.n_chips)

    def with_intervals(
        self,
        answers: Mapping[str, np.ndarray],
        levels: Levels,
        n_chips: Float[np.ndarray, " row"],
        capacity: Float[np.ndarray, " row"],
        half_width: Float[np.ndarray, " row"] | float = np.nan,
    ) -> dict[str, np.ndarray]:
        """Predictions with 90 % intervals and the probability of running out of memory.

        Args:
            answers: columns by name, among which `step_time` [s] and `memory` [byte] [row].
            levels: levels of the rows.
            n_chips: number of chips of each row [1].
            capacity: memory per chip [byte].
            half_width: half-width of the interval of log step time from runs of the same workload; else nan [1].

        Returns:
            The given columns, with `lo`, `hi` [s], `memory_lo`, `memory_hi` [byte] and `oom_probability` [1] [row].
        """
        interval, limit = self.interval(levels, n_chips), self.memory_limit(levels, n_chips)
        time = np.where(np.isnan(half_width), interval.time, half_width)
        lo, hi = interval_ends(answers["step_time"], time)
        memory_lo, memory_hi = interval_ends(answers["memory"], Z90 * interval.memory)
        risk = probability_of_oom(answers["memory"], capacity, limit)
        ends = {"lo": lo, "hi": hi, "memory_lo": memory_lo, "memory_hi": memory_hi}
        return {**answers, **ends, "oom_probability": risk}

    def workload_paces(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> PaceColumns:
        """Ratios of measured to predicted step time of runs of traced workloads.

        Args:
            levels: levels of the runs; the workload is the level of the factor `architecture`.
            n_chips: number of chips of each run [1].

        Returns:
            Logarithms of the ratios, and half-widths of the 90 % intervals of log step time [1], [row].
        """
        return paces_of(self.paces, levels, n_chips)

    def memory_limit(self, levels: AnyLevels, n_chips: Any = 0.0) -> MemoryLimit:
        """Usable memory of a run: the limit of the source if known, else all memory with the scatter of the peak.

        Args:
            levels: levels of one run or of many runs.
            n_chips: number of chips of each run [1], [row].

        Returns:
            The limit; for many runs, share and scatter are arrays [row].
        """
        rows = LevelRows.of(levels, n_chips)
        return MemoryLimit("", *map(rows.given, self.by_who_knows(rows, Fit._own_limit)))

    def _own_limit(self, rows: LevelRows) -> tuple[np.ndarray, np.ndarray]:
        named, limits = self.seen.named(rows.levels), self.limit_by_source
        any_source = limits.get("", _ALL)
        usable = named.numbers(lambda name: limits.get(name, _ALL).usable, "source", of_none=any_source.usable)
        scatter = named.numbers(lambda name: limits.get(name, _ALL).scatter, "source", of_none=any_source.scatter)
        return usable, stated_or(scatter, self._scatters.above(named, rows.n_chips))

    def most_chips(self, levels: AnyLevels) -> Any:
        """Largest number of chips in fitted runs of the run's source; of all sources if unknown [1], [row]."""
        rows = LevelRows.of(levels)
        return rows.given(*self.by_who_knows(rows, Fit._own_most))

    def _own_most(self, rows: LevelRows) -> tuple[np.ndarray]:
        return (self._scatters.most_chips(self.seen.named(rows.levels)),)

    def notes(self, levels: AnyLevels, n_chips: Any = 0.0) -> Any:
        """Warning text on levels absent from the fitted runs and on more chips than in any fitted run, possibly empty.

        Args:
            levels: levels of one run or of many runs.
            n_chips: number of chips of each run [1], [row].

        Returns:
            A text for a single run, else an array [row].
        """
        rows = LevelRows.of(levels, n_chips)
        texts, most = self.by_who_knows(rows, lambda fit, some: (fit.seen.notes(some.levels), *fit._own_most(some)))
        # Each distinct pair of numbers is formatted once: tables have many rows with few pairs.
        larger = np.flatnonzero(rows.n_chips > most)
        counts, index = np.unique(np.stack([rows.n_chips[larger], most[larger]]), axis=1, return_inverse=True)
        more = [f"on more chips than the fit saw: {count:g}, not {limit:g}" for count, limit in counts.T]
        for row, which in zip(larger.tolist(), index.ravel().tolist(), strict=True):
            texts[row] = f"{texts[row]}; {more[which]}" if texts[row] else more[which]
        return rows.given(texts)

    @functools.cached_property
    def seen(self) -> Seen:
        """Levels of the fitted runs, with those of the parent."""
        parent = self.parent.seen if self.parent is not None else None
        return Seen(frozenset(self.known), frozenset(self.fitted), self.own, parent, self.is_centre)

    @functools.cached_property
    def _scatters(self) -> Scatters:
        return Scatters(self.widths, dict(self.largest), self.seen, timed_chips() | frozenset(dict(self.anchors)))

    @property
    def scatter_by_level(self) -> dict[Place, Scatter]:
        """Scatters of held-out runs by factor and name of the level."""
        return self._scatters.by_level

    @functools.cached_property
    def known_sources(self) -> frozenset[str]:
        """Sources of the fitted runs."""
        return frozenset(level for kind, level in self.known if kind == "source")

    @functools.cached_property
    def limit_by_source(self) -> dict[str, MemoryLimit]:
        """Memory limits by source; of several entries for a source the first counts."""
        return {limit.source: limit for limit in reversed(self.limits)}

    @property
    def has_runs(self) -> bool:
        """Whether the fit rests on measured runs; false for the fit `prior`."""
        return bool(self.known or self.effects or self.widths)

    def save(
        self, path: str | Path, parameters: Mapping[str, Mapping[str, Any]] | None = None, comment: str = ""
    ) -> None:
        """Write the fit atomically as TOML, the format that `load_fit` reads.

        Args:
            path: file to write.
            parameters: entries `lo`, `hi`, `unit` and `identified` of each pooled coefficient, by name; may be None.
            comment: first line of the file.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        document = self.document()
        for name, entry in document["coefficients"].items():
            parameter = (parameters or {}).get(name, {})
            entry.update({key: parameter[key] for key in ("lo", "hi", "unit", "identified") if key in parameter})
        self.file.write(path, document, comment)


def _shown(fit: Fit) -> Printout:
    """Printed form of a fit: provenance, number of effects, frameworks, sources and chips."""
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
"""Largest number of characters of a value in the printed form [1]."""

_ALL = MemoryLimit("", 1.0, np.nan)
"""Limit of a source without measured limit: the whole memory."""


@runtime_checkable
class HasFit(Protocol):
    """Any result with a field `fit`, such as `FitResult`."""

    fit: Fit


AnyFit = Fit | HasFit | str | Path
"""A fit, the result of fitting, or the name or file of a fit."""


def fit_of(fit: AnyFit = "default", hardware: Hardware | None = None) -> Fit:
    """Fit given as a fit, a result with a fit, a name or a file.

    Args:
        hardware: catalogue of chips; matmul efficiencies of the user's file replace the package's.

    Raises:
        InputError: an unknown fit, or a file of a different type.
    """
    if isinstance(fit, str | Path):
        return load_fit(fit, hardware)
    found = fit if isinstance(fit, Fit) else fit.fit
    return found if hardware is None else found.with_anchors(hardware.anchors)


def load_fit(name_or_path: str | Path = "default", hardware: Hardware | None = None) -> Fit:
    """Load a shipped fit or a fit from a file: `js.load_fit("default")`.

    Args:
        name_or_path: `default`, the name of a further shipped fit (a source), `prior` for the priors alone, or a TOML
            file written by `Fit.save`. The priors supply coefficients absent from the file.
        hardware: catalogue of chips; matmul efficiencies of the user's file replace the package's.

    Returns:
        The fit.

    Raises:
        InputError: an unknown fit, or a file of a different type.
    """
    if hardware is not None:
        return load_fit(name_or_path).with_anchors(hardware.anchors)
    if str(name_or_path) == "prior":
        return Fit("prior", prior_medians())
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = fit_path(f"{name_or_path}.toml")
        if not path.is_file():
            shipped = sorted(file.stem for file in path.parent.glob("*.toml") if Fit.file.is_one(file))
            known = ", ".join([*shipped, "prior"])
            raise InputError(f"fit {str(name_or_path)!r} is not shipped; expected a .toml file or one of: {known}")
    return Fit.load(path)
