"""Best way to train a model on a fleet: modes, sets of islands and inner steps scored, the fewest days chosen."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscale._arrays import number
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.errors import InputError
from jaxscale.islands.batch_shares import whole_shares
from jaxscale.islands.choice.fleet_prices import break_even_sweep, price_table
from jaxscale.islands.choice.islands_choice import Band, BandwidthSweep, IslandsChoice, ScoredMode
from jaxscale.islands.choice.mode_scores import (
    PipelineChoice,
    Subset,
    best_pipeline,
    candidate_subsets,
    compared_rounds,
    host_microbatch,
    host_steps,
    mode_index,
    ring_subset,
    sampled_loose_tokens,
    sub_job,
    subset_speeds,
    token_table,
)
from jaxscale.islands.fleet import Fleet
from jaxscale.islands.island_plans import IslandPlans, island_plans
from jaxscale.islands.looseness.fleet_days import LossGoal, loss_goal
from jaxscale.islands.looseness.loose_law import loose_law_samples
from jaxscale.islands.modes import LOOSE_MODES, MODES, IslandJob
from jaxscale.islands.pipeline_split import least_divided
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.units import DAY
from jaxscale.workload import Transformer, n_active_params, n_params

INNER_STEP_GRID = (
    *(1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0),
    *(100.0, 150.0, 200.0, 300.0, 500.0, 700.0, 1000.0, 2000.0, 5000.0),
)
"""Numbers of inner steps that are scored [1]."""

SAMPLES = 100
"""Laws of looseness behind an interval [1]."""

NORMAL_90 = 1.6448536269514722
"""Standard deviations of half a central 90 % interval [1]."""


class _Scored(NamedTuple):
    """A mode on a set of islands, before it is described."""

    mode: str
    subset: Subset
    period: int
    speed: float
    days: float
    pipeline: PipelineChoice | None = None


class _Study(NamedTuple):
    """All that the scores of one fleet need."""

    job: IslandJob
    fleet: Fleet
    plans: IslandPlans
    goal: LossGoal
    total_params: float
    tokens_synchronous: float
    tokens_loose: np.ndarray
    grid: Sequence[float]

    def chips(self, subset: Sequence[int], apart: bool) -> float:
        """Chips that one failure stops: of the largest island where islands train apart, else of all [1]."""
        counts = np.asarray(self.fleet.clusters.n_chips)[list(subset)]
        return float(counts.max() if apart else counts.sum())

    def days(self, tokens: np.ndarray | float, speed: np.ndarray | float, chips: float) -> Any:
        """Days of a run of some tokens at a pace [day]."""
        slowdown = float(self.goal.failure.slowdown(self.total_params, chips))
        return np.asarray(tokens) / np.asarray(speed) * slowdown / DAY


def best_fleet_plan(
    model: Transformer,
    fleet: Fleet,
    global_batch_size_seqs: int,
    *,
    fit: Fit | str | Path = "default",
    levels: Sequence[Mapping[str, str | None]] | None = None,
    space: PlanSpace | None = None,
    loss: float | None = None,
    goal: LossGoal | None = None,
    inner_steps: Sequence[float] = INNER_STEP_GRID,
) -> IslandsChoice:
    """Best mode of joining islands for a model and a batch: the fewest days to a loss.

    Args:
        model: the transformer.
        fleet: islands and links.
        global_batch_size_seqs: B, batch of all islands together [sequence].
        fit: a fit, or the name or file of a fit.
        levels: of each island: gpu, precision and so on, whose fitted effects apply; pooled where None.
        space: choices that plans inside an island have; everything valid where None.
        loss: target; that of 20 tokens per parameter where None [nat per token].
        goal: laws and target, where they are not the shipped ones.
        inner_steps: numbers of inner steps that are scored [1].

    Returns:
        The ranked modes, worth of islands, prices and the interval of the best inner steps.

    Raises:
        InputError: a batch below one sequence per island, an island that holds not one layer, islands that do not hold
            the model together, or a loss that no number of tokens reaches.
    """
    batch = float(global_batch_size_seqs)
    if not (batch >= fleet.n_islands and batch.is_integer()):
        raise InputError(
            f"batch = {batch:g} sequences for {fleet.n_islands} islands; expected a whole number, at least one for each"
        )
    record = fit_of(fit)
    plans = island_plans(model, fleet, round(batch), fit=record, levels=levels or [{}] * fleet.n_islands, space=space)
    active, total = float(n_active_params(model)), float(n_params(model))
    aim = goal or loss_goal(active, loss)
    job = IslandJob(plans.pace, fleet.links, total, number(model.n_layers), number(model.d_model), batch)
    table = token_table(aim, batch * number(model.seq_len), max(fleet.n_islands, 2), inner_steps)
    if not math.isfinite(table.synchronous):
        raise InputError(
            f"loss = {number(aim.target):g} is out of reach of {active:.3g} parameters; expected a higher one"
        )
    study = _Study(job, fleet, plans, aim, total, table.synchronous, table.loose, tuple(inner_steps))
    return _choose(study)


def _choose(study: _Study) -> IslandsChoice:
    scored = _scores(study)
    if not scored:
        held, depth = study.plans.layers.sum(), number(study.job.n_layers)
        raise InputError(f"the islands hold {held:g} layers together, the model has {depth:g}; expected more memory")
    best = min(scored, key=lambda entry: entry.days)
    described = sorted((_described(study, entry) for entry in _shown(study, scored)), key=lambda mode: mode.days)
    sweep, periods = _sweep(study, scored), (1.0, 1.0)
    samples = loose_law_samples(SAMPLES)
    rises = np.asarray(samples.rise(1e9, 2.0, 30.0))
    if best.mode in LOOSE_MODES:
        periods = _period_band(study, best)
    return IslandsChoice(
        best=described[0],
        modes=tuple(described),
        worth=_worth(study, scored),
        prices=price_table(*_priced(study, best)),
        sweep=sweep,
        loss=number(study.goal.target),
        best_inner_steps=periods,
        rise=_band(rises),
        plans=dict(zip(study.fleet.names, study.plans.plans, strict=True)),
        notes=tuple(_notes(study, best)),
    )


def _whole(study: _Study) -> list[int]:
    """Islands that hold all layers."""
    return [int(island) for island in np.flatnonzero(study.plans.layers >= number(study.job.n_layers))]


def _scores(study: _Study) -> list[_Scored]:
    """Every mode on every candidate set of islands, at its best number of inner steps."""
    whole, batch = _whole(study), number(study.job.sequences)
    tokens = batch * number(study.job.pace.seq_len)
    scored = []
    for island in whole:
        speed = tokens / float(host_steps(study.plans.pace, batch)[island])
        days = float(study.days(study.tokens_synchronous, speed, study.chips([island], False)))
        scored.append(_Scored("alone", (island,), 0, speed, days))
    subsets = [ring_subset(study.job, subset) for subset in candidate_subsets(whole)] if len(whole) > 1 else []
    for subset, speeds in subset_speeds(study.job, subsets, study.grid).items():
        scored.extend(_mode_scores(study, subset, speeds))
    everyone = list(range(study.fleet.n_islands))
    for subset in candidate_subsets(everyone) if len(everyone) > 1 else []:
        found = best_pipeline(study.job, subset, study.plans.layers)
        if found is not None:
            speed = tokens / found.time
            days = float(study.days(study.tokens_synchronous, speed, study.chips(subset, False)))
            scored.append(_Scored("pipeline", found.order, 0, speed, days, found))
    return [entry for entry in scored if math.isfinite(entry.days)]


def _mode_scores(study: _Study, subset: Subset, speeds: np.ndarray) -> list[_Scored]:
    """Modes in which each island holds all layers, on one set of islands."""
    scored = []
    speed = float(speeds[mode_index("data-parallel"), 0])
    days = float(study.days(study.tokens_synchronous, speed, study.chips(subset, False)))
    scored.append(_Scored("data-parallel", subset, 0, speed, days))
    for place, mode in enumerate(LOOSE_MODES):
        paces = speeds[mode_index(mode)]
        over = study.days(study.tokens_loose[place, len(subset) - 1], paces, study.chips(subset, True))
        if np.isfinite(over).any():
            period = int(np.nanargmin(over))
            scored.append(_Scored(mode, subset, period, float(paces[period]), float(over[period])))
    return scored


def _shown(study: _Study, scored: Sequence[_Scored]) -> list[_Scored]:
    """The best entry of each mode, and each island alone, the fewest days first."""
    best = {mode: min((e for e in scored if e.mode == mode), key=lambda e: e.days, default=None) for mode in MODES}
    joined = [entry for entry in best.values() if entry is not None]
    alone = [entry for entry in scored if entry.mode == "alone"]
    return sorted([*joined, *alone], key=lambda entry: entry.days)


def _described(study: _Study, entry: _Scored) -> ScoredMode:
    """An entry with shares, terms and the interval of its days."""
    names = [study.fleet.names[island] for island in entry.subset]
    job = sub_job(study.job, entry.subset)
    details = _batch_details(study, entry, job) if entry.pipeline is None else _pipeline_details(entry.pipeline, job)
    total, (low, high) = details.amounts.sum(), _days_band(study, entry)
    return ScoredMode(
        mode=entry.mode,
        islands=tuple(names),
        tokens_per_s=entry.speed / details.slower,
        days=entry.days * details.slower,
        band=(low * details.slower, high * details.slower),
        inner_steps=study.grid[entry.period] if entry.mode in LOOSE_MODES else 1.0,
        shares=dict(zip(names, (details.amounts / total).tolist(), strict=True)),
        amounts=dict(zip(names, details.amounts.astype(int).tolist(), strict=True)),
        terms=details.terms,
        work=dict(zip(names, details.work.tolist(), strict=True)),
        replicas=len(entry.subset) if entry.mode in LOOSE_MODES else 0,
        relaxed_gap=details.gap,
    )


class _Details(NamedTuple):
    """Whole shares of an entry, and the time of one round on each island."""

    amounts: np.ndarray
    terms: dict[str, float]
    work: np.ndarray
    gap: float
    slower: float = 1.0


def _batch_details(study: _Study, entry: _Scored, job: IslandJob) -> _Details:
    """Whole sequences of each island in a mode in which each holds all layers."""
    whole = whole_shares(job.pace, round(number(job.sequences)))
    steps = host_steps(job.pace, whole) * (whole > 0.0)
    if entry.mode == "alone":
        return _Details(whole, {"compute": float(steps[0])}, steps, 0.0)
    relaxed, exact, period = compared_rounds(job, entry.mode, study.grid[entry.period], whole / whole.sum())
    slower = sum(exact.values()) / sum(relaxed.values())
    return _Details(whole, exact, steps * period, slower - 1.0, slower)


def _pipeline_details(pipeline: PipelineChoice, job: IslandJob) -> _Details:
    """Whole layers of each island in a pipeline, over a bound by layers that divide at will and no hops."""
    whole = host_steps(job.pace, job.sequences) * pipeline.layers / number(job.n_layers)
    busiest = float(whole.max())
    terms = {"compute": float(whole.mean()), "imbalance": busiest - float(whole.mean())}
    terms["exchange"] = pipeline.time - busiest
    return _Details(pipeline.layers, terms, whole, pipeline.time / _relaxed_pipeline(job) - 1.0)


def _relaxed_pipeline(job: IslandJob) -> float:
    """Time of a step of layers that divide at will over the same islands without hops, a lower bound [s]."""
    size = host_microbatch(job)
    return least_divided(np.asarray(job.pace.seconds_per_sequence) * size, number(job.sequences) / size)


def _days_band(study: _Study, entry: _Scored) -> Band:
    """Interval of the days of an entry, from the scatter of step times and of laws of looseness [day]."""
    half = float(np.max(study.plans.halfwidth[list(entry.subset)]))
    scatter = np.random.default_rng(0).standard_normal(SAMPLES) * half / NORMAL_90
    days = np.full(SAMPLES, entry.days)
    if entry.mode in LOOSE_MODES:
        samples = _sampled_days(study, entry)[entry.period]
        days = np.where(np.isfinite(samples), samples, np.inf)
    return _band(days * np.exp(scatter))


def _sampled_days(study: _Study, entry: _Scored) -> np.ndarray:
    """Days of a loose mode at every number of inner steps, for each law of looseness [day], [period, sample]."""
    tokens = number(study.job.sequences) * number(study.job.pace.seq_len)
    needed = sampled_loose_tokens(
        study.goal, loose_law_samples(SAMPLES).looseness_alone(), tokens, len(entry.subset), study.grid
    )[LOOSE_MODES.index(entry.mode)]
    speeds = subset_speeds(study.job, [entry.subset], study.grid)[entry.subset][mode_index(entry.mode)]
    return study.days(needed, speeds[:, None], study.chips(entry.subset, True))


def _period_band(study: _Study, best: _Scored) -> Band:
    """Interval of the best number of inner steps over laws of looseness [1]."""
    days = _sampled_days(study, best)
    reached = np.where(np.isfinite(days), days, np.inf)
    return _band(np.asarray(study.grid)[np.argmin(reached, axis=0)])


def _band(values: np.ndarray) -> Band:
    low, high = np.quantile(values, [0.05, 0.95], method="nearest")
    return float(low), float(high)


def _worth(study: _Study, scored: Sequence[_Scored]) -> dict[str, float]:
    """Days without each island over the days of all; 1 where the best set leaves it out."""
    fewest, worth = min(entry.days for entry in scored), {}
    for island, name in enumerate(study.fleet.names):
        without = [entry.days for entry in scored if island not in entry.subset]
        worth[name] = min(without) / fewest if without else math.inf
    return worth


def _priced(study: _Study, best: _Scored) -> tuple[IslandJob, str, float, np.ndarray | None, tuple[str, ...]]:
    """Arguments of the prices of the best entry."""
    share = best.pipeline.layers / number(study.job.n_layers) if best.pipeline is not None else None
    names = tuple(study.fleet.names[island] for island in best.subset)
    return sub_job(study.job, best.subset), best.mode, study.grid[best.period], share, names


def _sweep(study: _Study, scored: Sequence[_Scored]) -> BandwidthSweep | None:
    """Paces and days of all islands that hold the model against the bandwidth of their links."""
    whole = _whole(study)
    if len(whole) < 2:
        return None
    subset = ring_subset(study.job, whole)
    chips = (study.chips(subset, False), study.chips(subset, True))
    slow = tuple(float(study.goal.failure.slowdown(study.total_params, count)) / DAY for count in chips)
    alone = min(entry.days for entry in scored if entry.mode == "alone")
    loose = study.tokens_loose[:, len(subset) - 1]
    return break_even_sweep(
        sub_job(study.job, subset), study.grid, study.tokens_synchronous * slow[0], loose * slow[1], alone
    )


def _notes(study: _Study, best: _Scored) -> list[str]:
    """Remarks on islands that hold a part of the model, or that the best set leaves out."""
    notes, depth = [], number(study.job.n_layers)
    for island, name in enumerate(study.fleet.names):
        held = study.plans.layers[island]
        if held < depth:
            notes.append(f"{name} holds {held:g} of {depth:g} layers: it can take part in a pipeline alone")
        if island not in best.subset:
            notes.append(f"{name} is left out: the others reach the loss sooner without it")
    return notes
