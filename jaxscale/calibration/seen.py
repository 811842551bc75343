"""Levels of the fitted runs, and the choice between a fit and its parent for a run."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from jaxscale.calibration.levels import Levels, Place

SETTINGS = ("sequences", "recompute", "parallelism")
"""Factors without effects. A fit of few runs lists their levels, so that a new setting widens the interval."""

NOTED_KINDS = ("source", "framework", "gpu", "precision", "attention_kernel", "architecture", *SETTINGS)
"""Factors whose new levels appear in the note of a prediction."""

UNNAMED = "unnamed"
"""Factor under which a fit lists the frameworks of runs without a source."""


def software_stack(source: str) -> str:
    """Software stack of a source `table/framework/part`: table and framework."""
    return "/".join(source.split("/")[:2])


def is_apart(source: str) -> bool:
    """Whether a source is a subset of a software stack (`table/framework/part`)."""
    return source != software_stack(source)


def table_of(source: str) -> str:
    """Name of the table of measured runs of a source."""
    return source.split("/")[0]


@dataclass(frozen=True)
class Seen:
    """Levels of the runs of a fit.

    Attributes:
        known: factor and name of every level of the runs, with or without effects.
        fitted: factor and name of sources and frameworks of the fit's runs, without the parent's.
        own: common source and framework of the runs, if any.
        parent: levels of the fit's parent.
        is_centre: whether the fit is a centre, which predicts all stacks unknown to its child.
    """

    known: frozenset[Place] = frozenset()
    fitted: frozenset[Place] = frozenset()
    own: tuple[Place, ...] = ()
    parent: "Seen | None" = None
    is_centre: bool = False

    def named(self, levels: Levels) -> Levels:
        """Levels with the common source and framework filled in for runs without a source and another framework."""
        if not self.own:
            return levels
        own_framework = dict(self.own).get("framework")
        is_like_own = levels.missing("source") & levels.has(
            lambda name: name == own_framework, "framework", of_none=True
        )
        return levels.replace(is_like_own, dict(self.own))

    def only_parent_knows(self, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether predictions of a run come from the parent: only the parent knows the source, or else the framework.

        A fit to a few runs of one cluster says nothing about further sources.
        """
        if self.parent is None:
            return np.zeros(len(levels), dtype=bool)
        levels = self.named(levels)
        if self.parent.is_centre:
            return ~levels.has(lambda name: ("source", name) in self.fitted, "source")
        answers, is_open = (np.full(len(levels), value) for value in (False, True))
        for kind in ("source", "framework"):
            is_fitted = levels.has(lambda name, kind=kind: (kind, name) in self.fitted, kind)
            is_parents = levels.has(lambda name, kind=kind, parent=self.parent: (kind, name) in parent.known, kind)
            answers |= is_open & is_parents & ~is_fitted
            is_open &= ~(is_parents | is_fitted)
        return answers

    def knows(self, kind: str, name: str) -> bool:
        """Whether a run of the fit had the level."""
        return (kind, name) in self.known

    def is_new(self, kind: str, name: str) -> bool:
        """Whether a level is new to the fit; false for a factor that the fit does not list."""
        return bool(self.known) and (kind not in SETTINGS or kind in self._known_kinds) and not self.knows(kind, name)

    def ancestor_knows(self, kind: str, name: str) -> bool:
        """Whether the parent of the fit, or a parent of the parent, had a run of the level."""
        parent = self.parent
        return parent is not None and (parent.knows(kind, name) or parent.ancestor_knows(kind, name))

    @functools.cached_property
    def _known_kinds(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self.known)

    def notes(self, levels: Levels) -> np.ndarray:
        """Note on the new levels of each run: known to no fit, or to an ancestor alone; else empty [row]."""
        if not self.known:
            return np.full(len(levels), "", dtype=object)
        unseen = levels.only({kind: lambda name, kind=kind: self.is_new(kind, name) for kind in NOTED_KINDS})
        combinations, index = unseen.distinct()
        texts = [self._note(combinations.row(row)) for row in range(len(combinations))]
        return np.asarray([*texts, ""], dtype=object)[index]

    def _note(self, unseen: Mapping[str, str | None]) -> str:
        places = [(kind, name) for kind in NOTED_KINDS if (name := unseen.get(kind))]
        texts = {
            "not in the fit, pooled values used": [p for p in places if not self.ancestor_knows(*p)],
            "known from the start of the fit alone": [p for p in places if self.ancestor_knows(*p)],
        }
        named = {text: ", ".join(f"{kind} {name!r}" for kind, name in group) for text, group in texts.items()}
        return "; ".join(f"{text}: {levels}" for text, levels in named.items() if levels)
