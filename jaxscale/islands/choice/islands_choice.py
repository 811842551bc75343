"""Result of a choice among modes of joining islands: ranked modes, worth of islands, prices of links."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.units import GBIT
from jaxscale.plans.plan import Plan

Band = tuple[float, float]
"""Ends of a central 90 % interval."""


@dataclass(frozen=True)
class ScoredMode:
    """A mode on a set of islands.

    Attributes:
        mode: one of `MODES`, or `alone`.
        islands: names of the islands that take part, in the order of the ring or chain.
        tokens_per_s: pace [token/s].
        days: to the loss [day]; nan where the loss is out of reach.
        band: of the days [day].
        inner_steps: H; 1 where islands exchange every step [1].
        shares: of the batch, or of the layers in a pipeline, by island [1].
        amounts: the same in whole sequences, or whole layers, by island.
        terms: time of one round by cause [s].
        work: compute of each island in one round [s].
        replicas: islands that train apart; 0 where they exchange every step [1].
        relaxed_gap: time of the whole shares over that of shares that divide at will, less 1 [1].
    """

    mode: str
    islands: tuple[str, ...]
    tokens_per_s: float
    days: float
    band: Band
    inner_steps: float
    shares: Mapping[str, float]
    amounts: Mapping[str, int]
    terms: Mapping[str, float] = field(repr=False)
    work: Mapping[str, float] = field(repr=False)
    replicas: int = 0
    relaxed_gap: float = 0.0

    @property
    def utilisation(self) -> float:
        """Share of a round in which the slowest island computes [1]."""
        computing = sum(self.terms.get(name, 0.0) for name in ("compute", "imbalance"))
        return computing / sum(self.terms.values())

    def to_json(self) -> dict[str, Any]:
        """Fields of the mode."""
        return {
            "mode": self.mode,
            "islands": list(self.islands),
            "tokens_per_s": self.tokens_per_s,
            "days_to_loss": self.days,
            "days_to_loss_interval": list(self.band),
            "inner_steps": self.inner_steps,
            "shares": dict(self.shares),
            "amounts": dict(self.amounts),
            "utilisation": self.utilisation,
            "terms_s": dict(self.terms),
            "work_s": dict(self.work),
            "relaxed_gap": self.relaxed_gap,
        }


@dataclass(frozen=True)
class BandwidthSweep:
    """Days and paces of all islands against a factor on the bandwidth of all links between them.

    Attributes:
        bandwidth: of the slowest link [byte/s], [point].
        tokens_per_s: of each mode at its best number of inner steps, by mode [token/s], [point].
        gain: days of the best island alone over those of each mode, by mode [1], [point].
        days: of the best mode [day], [point].
        break_even: bandwidth of the slowest link from which the fleet beats its best island alone; inf where it never
            does, 0 where it always does [byte/s].
    """

    bandwidth: Float[np.ndarray, " point"]
    tokens_per_s: Mapping[str, Float[np.ndarray, " point"]]
    gain: Mapping[str, Float[np.ndarray, " point"]]
    days: Float[np.ndarray, " point"]
    break_even: float


@dataclass(frozen=True)
class IslandsChoice:
    """Best way to train a model on a fleet.

    Attributes:
        best: mode of the fewest days.
        modes: every mode on its best set of islands, the fewest days first; each island alone comes last.
        worth: days without an island over days with it, by island [1].
        prices: relative gain in pace for a relative gain of a link or an island, by kind and name [1].
        sweep: paces against the bandwidth of links; None for one island.
        loss: target [nat per token].
        best_inner_steps: central 90 % interval of the best number of inner steps over laws of looseness [1].
        rise: central 90 % interval of the rise of the loss of two replicas at 30 inner steps [1].
        plans: of each island, by name.
        notes: remarks in words.
    """

    best: ScoredMode
    modes: tuple[ScoredMode, ...]
    worth: Mapping[str, float]
    prices: Mapping[str, Mapping[str, float]]
    sweep: BandwidthSweep | None
    loss: float
    best_inner_steps: Band
    rise: Band
    plans: Mapping[str, Plan] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def sign_is_open(self) -> bool:
        """Whether the data leave open that two replicas raise the loss."""
        return self.rise[0] < 0.0 < self.rise[1]

    def to_json(self) -> dict[str, Any]:
        """The document of `jaxscale islands --json`."""
        sweep = self.sweep
        return {
            "best": self.best.to_json(),
            "tokens_per_s": self.best.tokens_per_s,
            "days_to_loss": self.best.days,
            "days_to_loss_interval": list(self.best.band),
            "loss": self.loss,
            "modes": [scored.to_json() for scored in self.modes],
            "prices": {kind: dict(entries) for kind, entries in self.prices.items()},
            "worth": dict(self.worth),
            "break_even_gbit_per_s": None if sweep is None else sweep.break_even / GBIT,
            "best_inner_steps_interval": list(self.best_inner_steps),
            "rise_of_two_replicas_interval": list(self.rise),
            "sign_of_two_replicas_open": self.sign_is_open,
            "plans": {name: plan.words() for name, plan in self.plans.items()},
            "notes": list(self.notes),
        }
