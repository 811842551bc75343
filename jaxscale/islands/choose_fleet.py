"""Best joint training of a model on a fleet: modes, sets of islands and inner steps, ranked by days to a loss.

Modes are listed in `jaxscale.islands.modes`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscale.base.arrays import host_arrays, number
from jaxscale.base.errors import InputError
from jaxscale.base.jit import small_jit
from jaxscale.base.units import DAY
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.designs.time_to_loss import Laws
from jaxscale.islands.fleet import Fleet
from jaxscale.islands.fleet_days import LooseLaw, loose_law_samples, loss_goal, sampled_goals
from jaxscale.islands.further_modes import further_modes, published_modes
from jaxscale.islands.island_plans import island_plans
from jaxscale.islands.islands_choice import (
    SAMPLES,
    BandwidthSweep,
    IslandsChoice,
    band_of,
    break_even_sweep,
    described,
    period_band,
    price_table,
)
from jaxscale.islands.mode_scores import (
    FleetStudy,
    SetScore,
    ring_subset,
    set_scores,
    sub_job,
    token_table,
    whole_islands,
)
from jaxscale.islands.modes import LOOSE_MODES, MODES, IslandJob
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.models.transformer import Transformer

INNER_STEP_GRID = (
    *(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
    *(70.0, 80.0, 90.0, 100.0, 120.0, 150.0, 200.0, 250.0, 300.0, 400.0, 500.0, 700.0, 1000.0, 2000.0, 5000.0),
)
"""Scored numbers of inner steps [1]."""


def best_fleet_plan(
    model: Transformer,
    fleet: Fleet,
    global_batch_size_seqs: int,
    *,
    fit: AnyFit = "default",
    cells: Sequence[Mapping[str, Any]] | None = None,
    loss: float | None = None,
    laws: Laws | FittedLaw | None = None,
    inner_steps: Sequence[float] = INNER_STEP_GRID,
    modes: Mapping[str, float] | None = None,
) -> IslandsChoice:
    """Best mode of joint training of a model on a fleet, with the fewest days to a loss.

    Args:
        global_batch_size_seqs: B, batch of all islands together [sequence].
        cells: stated plan and software of each island, by column of a runs table: `gpu`, `framework`, `precision`,
            stated decisions, software options; by default none.
        loss: target loss; by default the loss after 20 tokens per parameter [nat per token].
        laws: laws of loss, batch, shape and failures, or a fitted law of the loss, with draws that widen the intervals
            of days and of inner steps; by default `default_laws`.
        inner_steps: candidate numbers of local steps between two exchanges [1].
        modes: replacements for numbers of published modes, by `NAME.FIELD`; see `published_modes`.

    Returns:
        The ranked modes, worth of islands, prices and the interval of the best inner steps.

    Raises:
        InputError: a batch below one sequence per island, an island without memory for one layer, islands too small to
            hold the model together, or a loss out of reach for any number of tokens.
    """
    batch = float(global_batch_size_seqs)
    if not (batch >= fleet.n_islands and batch.is_integer()):
        raise InputError(
            f"batch = {batch:g} sequences for {fleet.n_islands} islands; expected a whole number, at least one for each"
        )
    published_modes(modes)  # refused before any search
    record = fit_of(fit)
    plans = island_plans(model, fleet, round(batch), fit=record, cells=cells or [{}] * fleet.n_islands)
    goal = loss_goal(model, loss, laws)
    depth, width = number(model.n_layers), number(model.d_model)
    job = IslandJob(plans.pace, fleet.links, goal.total_params, depth, width, batch)
    goals, tokens = sampled_goals(goal, laws, SAMPLES), batch * number(model.seq_len)
    table = token_table(goals, tokens, max(fleet.n_islands, 2), inner_steps)
    if not math.isfinite(table.synchronous[0]):
        target, size = number(goal.target), number(goal.n_params)
        raise InputError(f"loss = {target:g} is out of reach of {size:.3g} parameters; expected a higher one")
    study = FleetStudy(job, fleet, plans, goal, table, tuple(inner_steps))
    return _choose(study, modes)


def _choose(study: FleetStudy, stated: Mapping[str, float] | None) -> IslandsChoice:
    scored = set_scores(study)
    if not scored:
        held, depth = study.plans.layers.sum(), number(study.job.n_layers)
        raise InputError(f"the islands hold {held:g} layers together, the model has {depth:g}; expected more memory")
    best = min(scored, key=lambda entry: entry.days)
    modes = sorted((described(study, entry) for entry in _shown(study, scored)), key=lambda mode: mode.days)
    sweep, periods = _sweep(study, scored), (1.0, 1.0)
    if best.mode in LOOSE_MODES:
        periods = period_band(study, best)
    return IslandsChoice(
        best=modes[0],
        modes=tuple(modes),
        worth=_worth(study, scored),
        prices=price_table(*_priced(study, best)),
        sweep=sweep,
        loss=number(study.goal.target),
        best_inner_steps=periods,
        rise=band_of(np.asarray(_rises(host_arrays(loose_law_samples(SAMPLES))))),
        plans=dict(zip(study.fleet.names, study.plans.plans, strict=True)),
        memory=dict(zip(study.fleet.names, study.plans.memory.tolist(), strict=True)),
        further=tuple(further_modes(study, stated)),
        notes=tuple(_notes(study, best)),
    )


@small_jit
def _rises(laws: LooseLaw) -> Any:
    """Relative rise of the loss of two replicas of 1e9 parameters at 30 inner steps, under each law [1], [sample]."""
    return laws.rise(1e9, 2.0, 30.0)


def _shown(study: FleetStudy, scored: Sequence[SetScore]) -> list[SetScore]:
    """Best entry of each mode, and each island alone, by increasing days."""
    best = {mode: min((e for e in scored if e.mode == mode), key=lambda e: e.days, default=None) for mode in MODES}
    joined = [entry for entry in best.values() if entry is not None]
    alone = [entry for entry in scored if entry.mode == "alone"]
    return sorted([*joined, *alone], key=lambda entry: entry.days)


def _worth(study: FleetStudy, scored: Sequence[SetScore]) -> dict[str, float]:
    """Days without each island relative to the days of all; 1 for an island outside the best set [1]."""
    fewest, worth = min(entry.days for entry in scored), {}
    for island, name in enumerate(study.fleet.names):
        without = [entry.days for entry in scored if island not in entry.subset]
        # The fleet cannot train without the island.
        worth[name] = min(without) / fewest if without else math.inf
    return worth


def _priced(study: FleetStudy, best: SetScore) -> tuple[IslandJob, str, float, np.ndarray | None, tuple[str, ...]]:
    """Arguments of the prices of the best entry."""
    share = best.pipeline.layers / number(study.job.n_layers) if best.pipeline is not None else None
    names = tuple(study.fleet.names[island] for island in best.subset)
    return sub_job(study.job, best.subset), best.mode, study.grid[best.period], share, names


def _sweep(study: FleetStudy, scored: Sequence[SetScore]) -> BandwidthSweep | None:
    """Paces and days of all islands that hold the model, by bandwidth of the links."""
    whole = whole_islands(study)
    if len(whole) < 2:
        return None
    subset = ring_subset(study.job, whole)
    chips = (study.chips(subset, False), study.chips(subset, True))
    # Islands in step fail together, islands apart fail apart.
    slow = tuple(float(study.goal.failure.slowdown(study.goal.total_params, count)) / DAY for count in chips)
    alone = min(entry.days for entry in scored if entry.mode == "alone")
    synchronous, loose = study.tokens.synchronous[0] * slow[0], study.tokens.loose[0, :, len(subset) - 1] * slow[1]
    return break_even_sweep(sub_job(study.job, subset), study.grid, float(synchronous), loose, alone)


def _notes(study: FleetStudy, best: SetScore) -> list[str]:
    """Warnings: laws that do not reach the loss, islands with a subset of the layers, unused islands."""
    notes, depth = [], number(study.job.n_layers)
    # Index 0 is the best law, further indices are drawn laws.
    beyond = np.mean(~np.isfinite(study.tokens.synchronous[1:]))
    if beyond > 0.0:
        notes.append(f"under {beyond:.0%} of the drawn laws no number of tokens reaches the loss")
    for island, name in enumerate(study.fleet.names):
        held = study.plans.layers[island]
        if held < depth:
            notes.append(f"{name} holds {held:g} of {depth:g} layers: it can take part in a pipeline alone")
        if island not in best.subset:
            notes.append(f"{name} is left out: the others reach the loss sooner without it")
    return notes
