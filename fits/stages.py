"""The two stages of the calibration: the centre, which a stranger gets, and offsets of the stacks that the fit knows.

Stage 1 has few effects for each stack, chip and number format, Gaussian ones, and counts stacks alike. Stage 2 adds
offsets of known stacks around it, which never move the centre.
"""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.documents import data_path
from jaxscale.calibration.coefficients import timed_chips
from jaxscale.calibration.intervals import EAGER, Z90, Scatter
from jaxscale.calibration.levels import GUESSES, Levels, is_apart
from jaxscale.calibration.memory_limit import ACCEPTED_RISK
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.fit_record import Attempt, fit_problem, fit_record, held_at
from jaxscale.fitting.multistart import Solution, one_blas_thread, refine, solve
from jaxscale.fitting.objective import FitProblem, reweighted
from jaxscale.fitting.parameters import CENTRE, OFFSETS, Effect
from jaxscale.runs.arrays import Measured, concatenate, padded
from jaxscale.runs.measured import measured_runs
from jaxscale.runs.reader import read_runs

COVERED = 0.9
"""Share of the runs of an unknown stack that its interval is to hold [1]."""

RUNS_THAT_SHOW = 10
"""Runs that state every fact of their memory, or leave one to a guess, below which others tell its spread: all of their
kind, or the fact whose guess costs most [1]."""

RUNS_THAT_TELL = 4.0
"""Runs from which on a stack counts in full where the spread of stacks is told [1]."""


@cache
def load_reports() -> Measured:
    """Measured runs of public reports, without those that their own authors call abnormal or untuned."""
    runs = read_runs(data_path("restricted") / "public_reports.csv", skip_bad=True)
    measured, index = measured_runs(runs)
    quality = np.asarray(runs.column("quality"), dtype=object)[index]
    return measured.take(np.flatnonzero([not words for words in quality]))


@dataclass(frozen=True)
class Centre:
    """The first stage of a calibration, solved.

    Attributes:
        runs: measured runs of the shipped tables, and those of public reports behind them [centre row].
        problem: of fitting them.
        effects: its effects in parameter order.
        solution: where the optimiser ended.
    """

    runs: Measured
    problem: FitProblem
    effects: tuple[Effect, ...]
    solution: Solution

    def without(self, kept: np.ndarray) -> Solution:
        """Where the optimiser ends with some of the runs alone [centre row]."""
        return refine(reweighted(self.problem, kept), self.solution.parameters)

    def record(self, kept: np.ndarray, solution: Solution, scatter: tuple[Scatter, ...] = ()) -> Fit:
        """Record of a solution for some of the runs: no stack counts as known, so that none has a narrower interval.

        Args:
            kept: the runs that were fitted [centre row].
            solution: where the optimiser ended with them.
            scatter: of unknown stacks.

        Returns:
            The fit, which answers for stacks that nobody fitted.
        """
        runs = self.runs.take(kept)
        attempt = Attempt(self.problem, self.effects, solution, np.full((len(runs.batch), 2), np.nan))
        record = fit_record("centre", runs, load_fit("prior"), attempt, "")
        places = tuple(place for place in record.known if place[0] not in ("source", "stack", "unnamed"))
        return dataclasses.replace(
            record, widths=scatter, known=places, fitted=(), own=(), largest=(), parent=None, is_centre=True
        )


@dataclass(frozen=True)
class Stages:
    """Both stages of a calibration, solved.

    Attributes:
        tables: measured runs of the shipped tables [row].
        centre: the first stage.
        offsets: problem of the second stage, around that solution.
        offset_effects: its effects in parameter order.
        at_offsets: its solution.
    """

    tables: Measured
    centre: Centre
    offsets: FitProblem
    offset_effects: tuple[Effect, ...]
    at_offsets: Solution

    def left_out(self, kept: np.ndarray) -> np.ndarray:
        """Log residuals of time and memory of the runs of the tables, both stages fitted to some of them.

        Args:
            kept: the runs of the tables to fit [row]; public reports stay.

        Returns:
            Residuals under the fit of the others [row, 2].
        """
        n, n_reports = len(self.tables.batch), len(self.centre.runs.batch) - len(self.tables.batch)
        centre = self.centre.without(np.concatenate([kept, np.ones(n_reports, dtype=bool)]))
        problem = about(self.offsets, rows_at(self.centre.problem, centre.parameters)[:n])
        found = refine(reweighted(problem, kept), self.at_offsets.parameters)
        return np.asarray(found.log_residuals)[:n]


def rows_at(problem: FitProblem, parameters: Float[Array, " parameter"]) -> np.ndarray:
    """Unconstrained coefficients of the runs of a problem at some parameters [row, coefficient]."""
    return np.asarray(problem.rows(parameters))


def about(problem: FitProblem, base: np.ndarray) -> FitProblem:
    """A problem whose runs begin at other coefficients [row, coefficient]."""
    (rows,) = padded((base,), len(base), len(problem.weight))
    return eqx.tree_at(lambda p: p.base, problem, rows)


def solve_centre(tables: Measured) -> Centre:
    """Fit the centre to the runs of the tables and of public reports."""
    runs = concatenate([tables, load_reports()])
    problem, effects = fit_problem(runs, load_fit("prior"), CENTRE)
    say(f"centre: {len(runs.batch)} runs, {len(effects)} effects")
    solution = solve(problem, jnp.zeros((1, problem.parametrisation.n_parameters)))
    return Centre(runs, problem, effects, solution)


@one_blas_thread()
def solve_stages(tables: Measured) -> Stages:
    """Fit the centre to all runs, and the offsets of the stacks of the shipped tables around it."""
    centre = solve_centre(tables)
    record = centre.record(np.ones(len(centre.runs.batch), dtype=bool), centre.solution)
    offsets, effects = fit_problem(tables, record, OFFSETS)
    offsets = about(held_at(offsets), rows_at(centre.problem, centre.solution.parameters)[: len(tables.batch)])
    say(f"offsets: {len(tables.batch)} runs, {len(effects)} effects")
    at_offsets = solve(offsets, jnp.zeros((1, offsets.parametrisation.n_parameters)))
    return Stages(tables, centre, offsets, effects, at_offsets)


def without_stacks(centre: Centre) -> Iterator[tuple[str, np.ndarray, Solution]]:
    """Each stack, which runs are its own [centre row], and where the centre ends that never saw them."""
    stack = centre.runs.levels.column("stack")
    names = sorted(set(stack))
    for place, name in enumerate(names):
        say(f"leaving out stack {place + 1} of {len(names)}: {name}")
        yield name, stack == name, centre.without(stack != name)


@one_blas_thread()
def stacks_left_out(centre: Centre) -> np.ndarray:
    """Log residuals of time and memory of each run under the centre that never saw its stack [centre row, 2]."""
    residuals = np.full((len(centre.runs.batch), 2), np.nan)
    for _, own, solution in without_stacks(centre):
        residuals[own] = np.asarray(solution.log_residuals)[: len(own)][own]
    return residuals


UNKNOWN = ("unseen", "new_mixture", "new_chip")
"""Kinds of runs of an unknown stack that scatter alike: dense models, mixtures, chips without timed kernels."""

OF_EAGER = {"unseen": "eager", "new_mixture": "eager_mixture"}
"""Kinds of the same whose host may launch each kernel, of which step times scatter more."""

OF_UNKNOWN = (*UNKNOWN[1:], *OF_EAGER.values(), "unstated")
"""Kinds of scatter that only the centre has, which answers for unknown stacks."""


def kinds_of_unknown(levels: Levels) -> np.ndarray:
    """Which of `UNKNOWN` each run would be if nobody had fitted its stack [row]."""
    is_new_chip = ~levels.has(lambda chip: chip in timed_chips(), "gpu")
    dense = np.where(is_new_chip, UNKNOWN[2], UNKNOWN[0])
    return np.where(levels.missing("mixture"), dense, UNKNOWN[1])


def is_usual(levels: Levels) -> np.ndarray:
    """Whether a run tells of errors: those of a faulty release, and composed ones, do not, as in the fit [row]."""
    return levels.has(
        lambda source: source.startswith("public_reports") or not is_apart(source), "source", of_none=True
    )


def tells_width(levels: Levels) -> np.ndarray:
    """Whether a run tells the width of step times of its kind whose launches are recorded or compiled [row]."""
    is_apart_from_host = levels.has(lambda name: name != EAGER, "execution")
    return is_apart_from_host | (kinds_of_unknown(levels) == "new_chip")


def guesses_of(levels: Levels) -> dict[str, np.ndarray]:
    """Whether each run leaves a fact of its memory to a guess, by fact [row]."""
    facts = dict.fromkeys(fact for name in levels.names["unstated"] for fact in name.split(GUESSES))
    return {fact: levels.has(lambda name, fact=fact: fact in name.split(GUESSES), "unstated") for fact in sorted(facts)}


def centre_scatter(everything: Measured, residuals: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of unknown stacks, each stack counted once, by what their runs are and what they state.

    Step times of dense models, mixtures and chips without timed kernels are told by the runs whose launches are
    recorded or compiled; of software that may launch each kernel by all, since it is seldom stated. Memory is told by
    the runs that state its facts, and of each fact by those that leave it to a guess.

    Args:
        everything: the runs.
        residuals: of time and memory, under the centre that never saw the stack of a run [row, 2].

    Returns:
        Entries of `UNKNOWN`, of `OF_EAGER`, and `unstated` of each fact.
    """
    levels = everything.levels
    stack, kind, usual = levels.column("stack"), kinds_of_unknown(levels), is_usual(levels)
    memory = np.where(np.isfinite(np.asarray(everything.peak_memory)), residuals[:, 1], np.nan)
    guesses = guesses_of(levels)
    guessed = np.any([*guesses.values()], axis=0)

    def of_memory(own: np.ndarray, wider: np.ndarray) -> tuple[float, float]:
        told = own & usual & np.isfinite(memory)
        told = told if told.sum() >= RUNS_THAT_SHOW else wider & usual
        return spread_of(memory[told], stack[told]), spread_above(memory[told], stack[told])

    def half_width(own: np.ndarray) -> float:
        return quantile_of_stacks(np.abs(residuals[own & usual, 0]), stack[own & usual])

    of_kind, tells = {name: kind == name for name in UNKNOWN}, tells_width(levels)
    found = [
        Scatter(name, "", half_width(own & tells), *of_memory(own & ~guessed, own)) for name, own in of_kind.items()
    ]
    found += [Scatter(eager, "", half_width(of_kind[name]), np.nan) for name, eager in OF_EAGER.items()]
    told = {fact: of_memory(own, np.zeros_like(own)) for fact, own in guesses.items()}
    widest = tuple(np.nanmax([*told.values()], axis=0).tolist())
    of_facts = {fact: widest if np.isnan(spread[0]) else spread for fact, spread in told.items()}
    return (*found, *(Scatter("unstated", fact, 0.0, *spread) for fact, spread in of_facts.items()))


def quantile_of_stacks(errors: np.ndarray, stack: np.ndarray, share: float = COVERED) -> float:
    """Quantile of errors that covers a share of the runs of a stack drawn at random; small stacks count less [1]."""
    _, which, runs = np.unique(stack, return_inverse=True, return_counts=True)
    weight = np.minimum(1.0, runs[which] / RUNS_THAT_TELL) / runs[which]
    order = np.argsort(errors)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(errors[order][np.searchsorted(reached, share)])


def spread_of(errors: np.ndarray, stack: np.ndarray) -> float:
    """Spread of errors of a normal distribution that covers as many, each stack counted once; nan without any [1].

    What runs of 90 % of the stacks keep to, as of step times: the tail is what runs out of memory.
    """
    known = np.isfinite(errors)
    return quantile_of_stacks(np.abs(errors[known]), stack[known]) / Z90 if known.any() else float("nan")


def spread_above(errors: np.ndarray, stack: np.ndarray) -> float:
    """Spread of a normal distribution that a share `ACCEPTED_RISK` of peaks exceeds, each stack counted once [1]."""
    known = np.isfinite(errors)
    if not known.any():
        return float("nan")
    exceeded = quantile_of_stacks(-errors[known], stack[known], 1.0 - ACCEPTED_RISK)
    return max(exceeded, 0.0) / NormalDist().inv_cdf(1.0 - ACCEPTED_RISK)


def say(text: str) -> None:
    """Progress, on the terminal."""
    print(text, file=sys.stderr, flush=True)
