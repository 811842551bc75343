"""What a fit knows beyond the pooled coefficients: effects of levels, scatter of runs, provenance.

A plain hashable record on the host. It rides on `Coefficients` as static data: it is looked up when rows of a table are
turned into coefficients, never traced.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

KINDS = (
    "framework",
    "gpu",
    "precision",
    "number_format",
    "attention_kernel",
    "fused_norm",
    "release",
    "release_gpu",
    "mixture",
    "architecture",
    "local_shape",
)
"""Kinds of level whose effects add to that of the source."""

SETTINGS = ("sequences", "recompute", "parallelism")
"""Kinds of level without effects, of which a fit of few runs knows those of its own: it tells nothing of others."""

NOTED_KINDS = ("source", "framework", "gpu", "precision", "attention_kernel", "architecture", *SETTINGS)
"""Kinds of level of which a prediction says so where no fitted run had the one of its run."""

OTHER_SOURCES = "framework_sources"
"""Kind of the effect that a framework's sources foretell for a source that was never fitted."""

UNNAMED = "unnamed"
"""Kind of the runs of a framework, or of none that is named, that name no source."""

Z90 = 1.6448536269514722
"""Standard normal quantile at 95 %: half-width of a central 90 % interval in standard deviations [1]."""


def is_apart(source: str) -> bool:
    """Whether a level of the source is a part of its runs that differs from the others (`source/framework/part`)."""
    return source != software_stack(source)


def software_stack(source: str) -> str:
    """Source and framework of a level of the source, without a part that is set apart."""
    return "/".join(source.split("/")[:2])


def table_of(source: str) -> str:
    """Name of the table of measured runs that a level of the source belongs to."""
    return source.split("/")[0]


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the unconstrained coefficients of runs that belong to one level.

    Attributes:
        kind: source, one of `KINDS`, or `OTHER_SOURCES`.
        level: its name.
        shifts: coefficient names and shifts of their log (or logit) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Scatter:
    """Relative scatter of runs around the prediction, measured on runs that the fit did not see.

    Attributes:
        kind: kind of level (`source`, `framework`), `unnamed` for runs without a source, `unseen` for a new framework,
            `new_source` for a new source of a framework that is known, `new_model` and `larger` for runs of a source on
            a model, or on more chips, than the fit ever saw.
        level: its name; the framework of `unnamed` and `new_source`, the source of `new_model` and `larger`, empty for
            any of these, or where no framework is named; empty for `unseen`.
        time: half-width of the central 90 % interval of log step time [1].
        memory: standard deviation of log peak memory [1]; nan where too few runs state one.
    """

    kind: str
    level: str
    time: float
    memory: float

    def __post_init__(self) -> None:
        """One object of nan is compared as equal to itself, two are not: records read twice must compile once."""
        if math.isnan(self.memory):
            object.__setattr__(self, "memory", math.nan)


NO_RUNS = Scatter("unseen", "", math.log(2.0), 0.3)
"""Scatter where no run says more: within a factor of two."""


@dataclass(frozen=True)
class MemoryLimit:
    """How much memory runs of a source may take before they run out of it.

    Attributes:
        source: whose runs; empty for those of any.
        usable: predicted peak at which half of the runs run out, over the memory of the chip [1].
        scatter: standard deviation of the log of the peak about it [1].
    """

    source: str
    usable: float
    scatter: float


@dataclass(frozen=True)
class Origin:
    """The fit that another one started from, which still answers for runs that only it has seen the like of.

    Attributes:
        values: its pooled coefficients, in field order.
        record: of its calibration.
    """

    values: tuple[float, ...]
    record: "Calibration"


@dataclass(frozen=True)
class Calibration:
    """Record of a calibration.

    Attributes:
        name: what it is called.
        effects: by level; a level that is not listed has the pooled value.
        scatter: by level.
        known: kind and name of every level seen in the fit, also those without an effect.
        largest: sources and the most chips of any of their runs in the fit [1].
        provenance: keys and values: data hash, versions, number of runs, held-out error.
        limits: of memory, of the sources that showed them.
        own: the source and the framework of the fitted runs, where all of them share one; a run that does not name its
            own is taken to be like them.
        fitted: kind and name of the sources and frameworks of the fitted runs.
        origin: the fit that this one started from.
    """

    name: str
    effects: tuple[LevelEffect, ...] = ()
    scatter: tuple[Scatter, ...] = ()
    known: tuple[tuple[str, str], ...] = ()
    largest: tuple[tuple[str, float], ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    limits: tuple[MemoryLimit, ...] = ()
    own: tuple[tuple[str, str], ...] = ()
    fitted: tuple[tuple[str, str], ...] = ()
    origin: Origin | None = None

    def origin_of(self, levels: Mapping[str, str | None]) -> Origin | None:
        """The fit that this one started from, where it alone knows the source of a run, or else its framework.

        What a few runs of one cluster teach of it says nothing of others.
        """
        if self.origin is None:
            return None
        levels = self.named(levels)
        for place in ((kind, levels.get(kind)) for kind in ("source", "framework")):
            if place in self.fitted:
                return None
            if place in self.origin.record._known:
                return self.origin
        return None

    def named(self, levels: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Levels of a run with the source and framework of the fitted ones, if it names neither or only the latter."""
        own = dict(self.own)
        is_foreign = levels.get("framework") not in (None, "", own.get("framework"))
        return levels if levels.get("source") or is_foreign else {**levels, **own}

    @functools.cached_property
    def _by_level(self) -> dict[tuple[str, str], list[LevelEffect]]:
        found: dict[tuple[str, str], list[LevelEffect]] = {}
        for effect in self.effects:
            found.setdefault((effect.kind, effect.level), []).append(effect)
        return found

    def shifts(self, levels: Mapping[str, str | None]) -> dict[str, float]:
        """Total shift of each coefficient for a run of the given levels, by coefficient name [1].

        The source's own effect is used where the source is known, else what its framework's sources foretell; effects
        of framework, chip, precision, kernel and release add to it. A precision is the number format of its name where
        no other is given, as fp8 where it is not mxfp8.
        """
        levels = self.named(levels)
        levels = {**levels, "number_format": levels.get("number_format") or levels.get("precision")}
        is_known = ("source", levels.get("source")) in self._known
        source = ("source", levels.get("source")) if is_known else (OTHER_SOURCES, levels.get("framework"))
        total: dict[str, float] = {}
        for kind, level in (source, *((kind, levels.get(kind)) for kind in KINDS)):
            for effect in self._by_level.get((kind, level or ""), []):
                for name, shift in effect.shifts:
                    total[name] = total.get(name, 0.0) + shift
        return total

    @functools.cached_property
    def _known(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.known)

    @functools.cached_property
    def known_sources(self) -> frozenset[str]:
        """Sources of the runs that the fit has seen."""
        return frozenset(level for kind, level in self.known if kind == "source")

    @functools.cached_property
    def scatter_by_level(self) -> dict[tuple[str, str], Scatter]:
        """Scatters by kind and name of their level."""
        # The first entry of a level counts: a new fit puts its own before those of its start.
        return {(scatter.kind, scatter.level): scatter for scatter in reversed(self.scatter)}

    def scatter_of(self, levels: Mapping[str, str | None], n_chips: float = 0.0) -> Scatter:
        """Scatter of a run of the given levels: its source's, its framework's, or that of an unseen framework.

        What the fit never saw widens the interval: a chip or a precision to that of an unseen framework at least, or of
        a new source where the fit that it started from had seen it; a source, a model, or more chips than any run of
        the source had, to what such runs showed when they were left out.

        Args:
            levels: level of the run by kind.
            n_chips: of the run [1].

        Returns:
            The widest scatter that applies, of time and of memory.
        """
        if origin := self.origin_of(levels):
            return origin.record.scatter_of(levels, n_chips)
        levels = self.named(levels)
        found = [self._usual_scatter(levels), *self._novel_scatter(levels, n_chips)]
        widest = max(found, key=lambda entry: entry.time)
        return replace(widest, memory=max(entry.memory for entry in found if math.isfinite(entry.memory)))

    def _usual_scatter(self, levels: Mapping[str, str | None]) -> Scatter:
        """Of the run's source, or its framework, or an unseen one; of memory, that of the first of them with one."""
        source, framework = levels.get("source") or "", levels.get("framework") or ""
        first = ("source", source) if source else (UNNAMED, framework)
        places = (self.scatter_by_level.get(place) for place in (first, ("framework", framework)))
        found = [*(scatter for scatter in places if scatter is not None), self._unseen_scatter, NO_RUNS]
        return replace(found[0], memory=next(entry.memory for entry in found if math.isfinite(entry.memory)))

    @functools.cached_property
    def _unseen_scatter(self) -> Scatter:
        return self.scatter_by_level.get(("unseen", ""), NO_RUNS)

    def _is_unseen(self, kind: str, level: str | None) -> bool:
        return bool(self.known and level and self._tells_of(kind)) and (kind, level) not in self._known

    def _tells_of(self, kind: str) -> bool:
        """Whether a level of a kind that is not known is a new one: settings are known to fits of few runs alone."""
        return kind not in SETTINGS or kind in self._known_kinds

    @functools.cached_property
    def _known_kinds(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self.known)

    def _started_with(self, kind: str, level: str | None) -> bool:
        """Whether a fit that this one goes back to has seen a level."""
        start = self.origin.record if self.origin is not None else None
        return start is not None and ((kind, level) in start._known or start._started_with(kind, level))

    def _novel_scatter(self, levels: Mapping[str, str | None], n_chips: float) -> list[Scatter]:
        source, framework = levels.get("source") or "", levels.get("framework") or ""
        # A source of which too few runs were left out to tell its scatter is new for all that is known of it.
        is_fitted = (("source", source) if source else (UNNAMED, framework)) in self.scatter_by_level
        is_new_source = not is_fitted and ("framework", framework) in self._known
        # A kernel that was never timed sets a run apart about as much as another system does.
        is_new_source = is_new_source or self._is_unseen("attention_kernel", levels.get("attention_kernel"))
        # Sequences, recomputation or kinds of parallelism that no run had tell as little of a system.
        is_new_source = is_new_source or any(self._is_unseen(kind, levels.get(kind)) for kind in SETTINGS)
        places = [(kind, levels.get(kind)) for kind in ("gpu", "precision")]
        new = [place for place in places if self._is_unseen(*place)]
        of_start = [self._started_with(*place) for place in new]
        is_new_source = is_new_source or any(of_start)
        novel = (
            ("new_source", framework, is_new_source),
            ("new_model", source, self._is_unseen("architecture", levels.get("architecture"))),
            ("larger", source, n_chips > self._most_chips(source)),
        )
        found = [] if all(of_start) else [self._unseen_scatter]
        for kind, level, is_novel in novel:
            entries = (self.scatter_by_level.get((kind, name)) for name in (level, "") if is_novel)
            found += [entry for entry in entries if entry is not None][:1]
        return found

    def _most_chips(self, source: str) -> float:
        """Most chips of any run of a source, or of any at all where the source is not known."""
        largest = dict(self.largest)
        return largest.get(source, max(largest.values(), default=math.inf))

    def most_chips_of(self, levels: Mapping[str, str | None]) -> float:
        """Most chips of any run of a run's source, or of any at all where the source is not known [1]."""
        if origin := self.origin_of(levels):
            return origin.record.most_chips_of(levels)
        return self._most_chips(self.named(levels).get("source") or "")

    @functools.cached_property
    def limit_by_source(self) -> dict[str, MemoryLimit]:
        """Limits of memory by source; the first entry of a source counts, as for the scatter."""
        return {limit.source: limit for limit in reversed(self.limits)}

    def memory_limit_of(self, levels: Mapping[str, str | None], scatter: float) -> MemoryLimit:
        """Limit of memory of a run of the given levels: its source's, else all of it with the scatter of its peak."""
        if origin := self.origin_of(levels):
            return origin.record.memory_limit_of(levels, scatter)
        source = self.named(levels).get("source") or ""
        return self.limit_by_source.get(source, MemoryLimit("", 1.0, scatter))

    def unseen(self, levels: Mapping[str, str | None]) -> list[str]:
        """Levels of a run that neither the fit nor the one it started from saw, as `kind 'level'`."""
        return [f"{kind} {level!r}" for kind, level in self._new(levels) if not self._started_with(kind, level)]

    def from_start_alone(self, levels: Mapping[str, str | None]) -> list[str]:
        """Levels of a run that the fit knows from the one it started from alone, as `kind 'level'`."""
        return [f"{kind} {level!r}" for kind, level in self._new(levels) if self._started_with(kind, level)]

    def _new(self, levels: Mapping[str, str | None]) -> list[tuple[str, str]]:
        """Levels of a run that are not among those of the runs of the fit that answers for it."""
        if origin := self.origin_of(levels):
            return origin.record._new(levels)
        named = {kind: levels.get(kind) for kind in NOTED_KINDS if self._tells_of(kind)}
        return [(kind, level) for kind, level in named.items() if level and (kind, level) not in self._known]


def scatter_of(record: Calibration | None, levels: Mapping[str, str | None], n_chips: float) -> Scatter:
    """Scatter of a run of the given levels on `n_chips` chips; `NO_RUNS` without a calibration."""
    return NO_RUNS if record is None else record.scatter_of(levels, n_chips)


def interval_ends(middle: Any, half: Any) -> tuple[Any, Any]:
    """Ends of intervals of given half-widths of the logarithm, in the unit of their middles."""
    return middle * np.exp(-half), middle * np.exp(half)
