r"""Published modes of joint training outside the ranking: late gradients, compressed links, subnetworks.

Each mode is a case of the pipeline or of local updates, with a penalty on the tokens of a run (`[modes]` of
`data/islands.toml`),

$$ D = D_0\,\left[1 + (f - 1)\left(\frac{x}{x_0}\right)^p\right] , $$

where x is the number of islands, or the root mean square delay of the gradients in updates,

$$ \tau = \sqrt{\tfrac{1}{P} \sum_{k < P} \max\left(\tfrac{P - k}{m}, 1\right)^2} $$

with P stages and m microbatches per update: stage k gets a gradient P - k microbatches late. A published ratio of test
errors is taken as the ratio of the reducible losses.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import host_arrays, number, with_fields
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.islands.fleet_days import LossGoal, tokens_needed
from jaxscale.islands.island_plans import least_finish
from jaxscale.islands.islands_choice import FurtherMode, band_of, days_samples
from jaxscale.islands.mode_scores import (
    FleetStudy,
    PipelineChoice,
    SetScore,
    Subset,
    best_pipeline,
    candidate_subsets,
    mode_index,
    ring_subset,
    sub_job,
    subset_speeds,
    whole_delay,
    whole_islands,
)
from jaxscale.islands.modes import LOOSE_MODES, IslandJob
from jaxscale.islands.pipeline_split import ChainWay

STATED = ("factor", "at", "exponent", "spread", "words", "backward_words", "least_words")
"""Numbers of a mode that a user may replace."""


class PublishedMode(NamedTuple):
    """Mode of joint training of a published system, with a penalty on the tokens.

    Attributes:
        cut: `layers` for a pipeline over the islands, `width` for a subnetwork on each island.
        grows_with: variable x of the penalty: `islands`, `delay`, `compression` or `error`.
        evidence: text on the measurement of the penalty.
        factor: f, tokens at x_0 over the tokens of synchronous islands; nan if not published [1].
        at: x_0, value of x at which f was measured.
        exponent: p, exponent of the penalty [1].
        spread: standard deviation of the logarithm of f - 1 [1].
        errors: test errors of 1, 2, ... subnetworks over the error of a single network, if `grows_with` is `error` [1].
        waits: whether the update waits for all stages; see `ChainWay`.
        words: share of the activations sent forward; see `ChainWay` [1].
        backward_words: share of the activation gradients sent backward; see `ChainWay` [1].
        least_words: least share of the activations sent over a link; see `ChainWay` [1].
    """

    cut: str
    grows_with: str
    evidence: str
    factor: float = math.nan
    at: float = 1.0
    exponent: float = 1.0
    spread: float = 0.0
    errors: tuple[float, ...] = ()
    waits: bool = True
    words: float = 1.0
    backward_words: float = 1.0
    least_words: float = 1.0

    @property
    def way(self) -> ChainWay:
        """Coupling of the pipeline stages in the mode."""
        return ChainWay(self.waits, self.words, self.backward_words, self.least_words)


@functools.cache
def _shipped_modes() -> dict[str, PublishedMode]:
    table = read_toml(data_path("islands.toml"))["modes"]
    told = ("source", "date")
    return {
        name: PublishedMode(**{key: value for key, value in entry.items() if key not in told})
        for name, entry in table.items()
    }


def published_modes(stated: Mapping[str, float] | None = None) -> dict[str, PublishedMode]:
    """Published modes of joint training, by name.

    Args:
        stated: replacements for published numbers, by `NAME.FIELD`, for example `synthetic-labels.factor`.

    Raises:
        InputError: an unknown mode or field, or a number out of range.
    """
    modes = dict(_shipped_modes())
    for key, value in (stated or {}).items():
        # Names have no dots.
        name, _, field = key.partition(".")
        if name not in modes:
            raise InputError(f"mode {name!r} is unknown; {nearest(name, modes)}")
        if field not in STATED:
            raise InputError(f"{key}: a mode has no such number; {nearest(field, STATED)}")
        low, high = (0.0, 1.0) if field.endswith("words") else (1.0 if field == "factor" else 0.0, 1e3)
        if not low <= value <= high or (field in ("at", "least_words") and value == 0.0):
            raise InputError(f"{key} = {value:g} is out of range; expected {low:g} to {high:g}")
        if field == "factor" and modes[name].grows_with == "error":
            raise InputError(f"{key}: the mode has a table of errors; expected another mode")
        modes[name] = modes[name]._replace(**{field: value})
    return modes


def gradient_delay(n_stages: ArrayLike, n_microbatches: ArrayLike = 1.0) -> Array:
    """Root mean square gradient delay of a pipeline without synchronisation [update].

    Args:
        n_stages: P, number of stages [1].
        n_microbatches: m, microbatches per update [1].

    Returns:
        The delay; 0 for a single stage, about P / sqrt(3) if each microbatch is an update.
    """
    behind = jnp.arange(1.0, int(number(n_stages)))  # stages are counted, not traced
    # Stage k is P - k microbatches late, at least an update.
    late = jnp.maximum(behind / jnp.asarray(n_microbatches), 1.0)
    # Root mean square over P stages; the last stage has no delay.
    return jnp.sqrt(jnp.sum(late**2) / jnp.asarray(n_stages))


def tokens_factor(mode: PublishedMode, x: ArrayLike) -> Array:
    """Tokens of a run in a mode over the tokens of synchronous islands, 1 + (f - 1) (x / x_0)^p [1].

    Args:
        x: islands [1], delay [update] or share of the compression [1].
    """
    # The floor keeps gradients finite at x = 0.
    relative = jnp.maximum(jnp.asarray(x) / mode.at, 1e-30)
    return 1.0 + (mode.factor - 1.0) * jnp.power(relative, mode.exponent)


def _error_factor(goal: LossGoal, batch_tokens: float, ratio: float) -> float:
    """Tokens over those of the goal if the reducible loss is larger by a ratio; infinite if out of reach [1]."""
    least = goal.loss.irreducible
    # Reducible loss of the goal over the ratio of errors.
    lower = goal.shape_factor * (least + (goal.target / goal.shape_factor - least) / ratio)
    needed = [
        number(tokens_needed(one, batch_tokens, 0.0, 1.0)) for one in (goal, with_fields(goal, {"target": lower}))
    ]
    return needed[1] / needed[0] if math.isfinite(needed[1]) else math.inf


def _growth(study: FleetStudy, mode: PublishedMode, count: int, chain: PipelineChoice | None) -> float:
    """Tokens of a mode on a number of islands over those of synchronous islands; nan if not known [1]."""
    if mode.grows_with == "error":
        if count > len(mode.errors):
            return math.nan
        return _error_factor(study.goal, study.tokens_per_step, mode.errors[count - 1])
    x: Any = float(count)
    if chain is not None and mode.grows_with == "delay":
        x = gradient_delay(count, chain.microbatches)
    if chain is not None and mode.grows_with == "compression":
        # Share of the compression used, in logarithms: 0 uncompressed, 1 at the least share.
        x = math.log(chain.words) / math.log(mode.least_words) if mode.least_words < 1.0 else 0.0
    return number(tokens_factor(mode, x))


def _part_of_network(job: IslandJob) -> IslandJob:
    """Job with a subnetwork per island: for n islands, an n-th of work and parameters each."""
    # An n-th of the network has an n-th of work and parameters.
    count = float(np.asarray(job.pace.base_time).shape[-1])
    names = ("base_time", "seconds_per_sequence")
    pace = with_fields(job.pace, {name: np.asarray(getattr(job.pace, name)) / count for name in names})
    fields = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return IslandJob(**{**fields, "pace": pace, "n_params": job.n_params / count})


class _Candidate(NamedTuple):
    """Mode on a set of islands: days without penalty, and the factor of the penalty."""

    entry: SetScore
    factor: float
    words: float

    @property
    def days(self) -> float:
        return self.entry.days * self.factor


def _chains(study: FleetStudy, mode: PublishedMode) -> Iterator[_Candidate]:
    """Pipelines on all candidate sets of islands."""
    for subset in candidate_subsets(range(study.fleet.n_islands)):
        chain = best_pipeline(study.job, subset, study.plans.layers, mode.way)
        if chain is not None:
            entry = study.synchronous("pipeline", chain.order, study.tokens_per_step / chain.time, chain)
            yield _Candidate(entry, _growth(study, mode, len(subset), chain), chain.words * mode.words)


def _parts(study: FleetStudy, mode: PublishedMode) -> Iterator[_Candidate]:
    """Subnetworks on all candidate sets of islands that hold the model."""
    tokens = study.tokens_per_step
    place = LOOSE_MODES.index("local-updates")
    for islands in candidate_subsets(whole_islands(study)):
        subset: Subset = ring_subset(study.job, islands)
        job, count = _part_of_network(sub_job(study.job, subset)), len(islands)
        if mode.words:
            part = subset_speeds(job, [tuple(range(count))], study.grid)[tuple(range(count))]
            # Whole shares lengthen every step.
            speeds = tokens / (tokens / part[mode_index("local-updates")] + whole_delay(job))
            days = study.days(study.tokens.loose[0, place, count - 1], speeds, study.chips(subset, True))
        else:
            # Parts without exchange finish independently.
            speeds = np.asarray([tokens / (least_finish(job.pace, number(job.sequences)) + whole_delay(job))])
            days = study.days(study.tokens.synchronous[0], speeds, study.chips(subset, True))
        if np.isfinite(days).any():
            best = int(np.nanargmin(days))
            entry = SetScore("parts", subset, best, float(speeds[best]), float(days[best]))
            yield _Candidate(entry, _growth(study, mode, count, None), mode.words)


def further_modes(study: FleetStudy, stated: Mapping[str, float] | None = None) -> Sequence[FurtherMode]:
    """Published modes, each on the best set of islands, in the order of the days to the loss.

    Args:
        stated: see `published_modes`.

    Returns:
        The modes, with None for days without a published or stated penalty.
    """
    if study.fleet.n_islands < 2:
        return ()
    study = study._replace(goal=host_arrays(study.goal))
    found = []
    for name, mode in published_modes(stated).items():
        every = list((_chains if mode.cut == "layers" else _parts)(study, mode))
        known = [one for one in every if math.isfinite(one.days)]
        if every:
            best = min(known, key=lambda one: one.days) if known else min(every, key=lambda one: one.entry.days)
            found.append(_described(study, name, mode, best))
    return sorted(found, key=lambda one: math.inf if one.days is None else one.days)


def _described(study: FleetStudy, name: str, mode: PublishedMode, best: _Candidate) -> FurtherMode:
    """Mode on the best set, with an interval of the days from laws, step times and penalty."""
    entry, known = best.entry, not math.isnan(best.factor)
    samples = days_samples(study, entry)
    spread = np.random.default_rng(1).standard_normal(len(samples)) * mode.spread
    # f - 1 is lognormal.
    days = samples * (1.0 + (best.factor - 1.0) * np.exp(spread)) if math.isfinite(best.factor) else samples
    loose = entry.pipeline is None and mode.words > 0.0
    return FurtherMode(
        name,
        tuple(study.fleet.names[island] for island in entry.subset),
        entry.speed,
        best.days if known else None,
        band_of(days) if math.isfinite(best.factor) else None,
        study.grid[entry.period] if loose else 1.0,
        best.words,
        best.factor if known else None,
        mode.evidence,
    )
