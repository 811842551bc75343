"""Fitted law of the loss: coefficients with intervals, predictions with error components, optimum, and files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.base.record_file import RecordFile
from jaxscale.calibration.intervals import Z90
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN, REFERENCE_PARAMS, LossLaw
from jaxscale.laws.loss_forms import (
    BASE,
    SIGNED,
    TERMS,
    TRAITS,
    Covariates,
    LawPrior,
    form_of,
    law_of,
    log_loss_with,
    number_names,
    traits,
)
from jaxscale.laws.loss_reader import Losses
from jaxscale.laws.loss_solver import covariates_of

STUDENT_90 = 2.1318
"""Half-width of the 90 % interval of Student's t with 4 degrees of freedom, relative to the scale [1]."""

LOWER, UPPER = 5.0, 95.0
"""Percentiles of a 90 % interval."""

IDENTIFIED = 10.0
"""Least ratio of the ends of a 90 % interval at which a number without prior counts as not identified [1]."""

INFORMED = 0.8
"""Least ratio of posterior to prior spread at which a number counts as determined by the prior [1]."""

PLATEAU = 1e-5
"""Relative interval width of a term's number below which the objective is flat in the number [1]."""

POINTS_BUCKET = 64
"""Points per call of the prediction [1]."""


class Fitted(NamedTuple):
    """Coefficients of a fitted law, with resampled fits (draws).

    Attributes:
        numbers: logarithms of the fitted coefficients of the law [number].
        draws: logarithms of the coefficients in resampled fits [draw, number].
        traits: traits (`loss_forms.traits`) of the best law [trait].
        drawn_traits: traits of the resampled laws [draw, trait].
        scale: noise scale of the log loss [1].
        objective: value of the objective at the optimum [1].
        is_free: whether a coefficient was free in the fit [number].
    """

    numbers: Float[np.ndarray, " number"]
    draws: Float[np.ndarray, "draw number"]
    traits: Float[np.ndarray, " trait"]
    drawn_traits: Float[np.ndarray, "draw trait"]
    scale: float
    objective: float
    is_free: Bool[np.ndarray, " number"]


class LossPrediction(NamedTuple):
    """Predicted losses with 90 % intervals, and the error components of the intervals.

    Attributes:
        loss: loss [nat per token], [point].
        lo: lower end of the interval [nat per token], [point].
        hi: upper end of the interval [nat per token], [point].
        parameters: relative half-width by the uncertainty of the coefficients of the law [1], [point].
        noise: relative half-width by the noise of a single run [1], [point].
        discrepancy: relative half-width by the error of the law beyond the fitted range [1], [point].
        decades: decades of compute beyond the fitted range plus decades of tokens per parameter outside [1], [point].
    """

    loss: Float[np.ndarray, " point"]
    lo: Float[np.ndarray, " point"]
    hi: Float[np.ndarray, " point"]
    parameters: Float[np.ndarray, " point"]
    noise: Float[np.ndarray, " point"]
    discrepancy: Float[np.ndarray, " point"]
    decades: Float[np.ndarray, " point"]


class LawOptimum(NamedTuple):
    """Compute-optimal run for a training compute, with 90 % intervals.

    Attributes:
        flop: training compute 6 N D [flop].
        n_params: N with lower and upper end [1].
        n_tokens: D with lower and upper end [token].
        loss: loss with lower and upper end [nat per token].
    """

    flop: float
    n_params: tuple[float, float, float]
    n_tokens: tuple[float, float, float]
    loss: tuple[float, float, float]


class Range(NamedTuple):
    """Range of a fitted table: logarithms of largest compute, least and largest tokens per parameter."""

    log_flop: float
    least_ratio: float
    largest_ratio: float

    def decades_beyond(self, log_params: np.ndarray, log_tokens: np.ndarray) -> np.ndarray:
        """Decades of compute, plus decades of tokens per parameter, outside of the range [1], [point]."""
        # T = 6 N D
        flop = np.log(FLOP_PER_PARAM_TOKEN) + log_params + log_tokens - self.log_flop
        ratio = log_tokens - log_params
        # Only distances beyond the range count.
        outside = np.maximum(ratio - self.largest_ratio, 0.0) + np.maximum(self.least_ratio - ratio, 0.0)
        # Natural logarithms to decades.
        return (np.maximum(flop, 0.0) + outside) / np.log(10.0)


@filter_jit
def _log_losses(numbers: Any, points: Covariates, terms: tuple[str, ...]) -> jax.Array:
    """Log loss of each draw at each point [draw, point]."""
    return jax.vmap(lambda one: log_loss_with(one, points, terms))(numbers)


@dataclass(frozen=True)
class FittedLaw:
    """Law of the loss fitted to a table of runs: result of `fit_law`.

    Attributes:
        name: name of the table.
        form: form of the law, `joint`, `additive`, `tied` or `kaplan`.
        terms: names of terms besides parameters and tokens, from `TERMS`.
        count: convention of counting parameters, for example `total` or `non-embedding`.
        prior: prior of the traits.
        likelihood: `student` or `huber`.
        fitted: coefficients and draws.
        n: number of rows [1].
        n_groups: number of groups of rows, resampled as a whole [1].
        span: range of compute and tokens per parameter of the table.
        discrepancy: relative error of the law per decade beyond the range [1].
        warnings: warnings, a line each.
        table: the runs; None for a law from a file.
        backtest: errors for runs of large compute predicted from runs of small compute; None without a backtest.
    """

    name: str
    form: str
    terms: tuple[str, ...]
    count: str
    prior: LawPrior
    likelihood: str
    fitted: Fitted
    n: int
    n_groups: int
    span: Range
    discrepancy: float
    warnings: tuple[str, ...] = ()
    table: Losses | None = None
    backtest: Any = None

    @classmethod
    def of(
        cls,
        table: Losses,
        form: str,
        terms: tuple[str, ...],
        prior: LawPrior,
        likelihood: str,
        fitted: Fitted,
        clusters: np.ndarray,
        doubts: tuple[str, ...],
    ) -> "FittedLaw":
        """Fitted law from the result of a search, with warnings about the fit."""
        ratio = np.log(table.tokens / table.n_params)
        span = Range(float(table.log_flop.max()), float(ratio.min()), float(ratio.max()))
        n_groups = int(clusters.max()) + 1
        law = cls(
            table.name, form, terms, table.count, prior, likelihood, fitted, len(table), n_groups, span,
            prior.discrepancy, doubts, table,
        )  # fmt: skip
        return replace(law, warnings=(*doubts, *law._own_doubts()))

    @property
    def law(self) -> LossLaw:
        """Law of the loss in parameters and tokens, with the fitted coefficients and without further terms."""
        with jax.enable_x64(True):
            return jax.tree.map(float, law_of(self.fitted.numbers))

    @property
    def samples(self) -> LossLaw:
        """Laws of the loss with the coefficients of the draws, every leaf [draw]."""
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, law_of(self.fitted.draws))

    @property
    def noise(self) -> float:
        """Standard scale of the noise of the log loss, corrected for the fitted degrees of freedom [1]."""
        # Degrees of freedom: groups less the determined numbers, at least a quarter.
        effective = self.n_groups - self.determined()
        return self.fitted.scale * float(np.sqrt(self.n_groups / max(effective, 0.25 * self.n_groups)))

    def determined(self) -> float:
        """Effective number of coefficients determined by the runs rather than by the prior [1]."""
        free = float(self.fitted.is_free.sum())
        # No spread without two draws.
        if len(self.fitted.draws) < 2:
            return free
        # Posterior over prior variance: 1 for a number known by the prior alone.
        shrunk = np.minimum(self.fitted.drawn_traits.var(axis=0) / self.prior.spread**2, 1.0)
        return max(free - float(shrunk.sum()), 1.0)

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Value, 90 % interval and identification by the runs of each coefficient, by name."""
        values, names = self._values(self.fitted.numbers), number_names(self.terms)
        drawn = np.asarray([self._values(draw) for draw in self.fitted.draws]).reshape(-1, len(names))
        entries = {}
        for place, name in enumerate(names):
            lo, hi = np.percentile(drawn[:, place], [LOWER, UPPER]) if len(drawn) else (np.nan, np.nan)
            fact = self._is_identified(place, lo, hi)
            entries[name] = {"value": float(values[place]), "lo": float(lo), "hi": float(hi), "identified": fact}
        return entries

    def _values(self, numbers: Float[np.ndarray, " number"]) -> np.ndarray:
        signed = np.asarray([name in SIGNED for name in number_names(self.terms)])
        # The inner choice keeps the unused exponential finite.
        return np.where(signed, numbers, np.exp(np.where(signed, 0.0, numbers)))

    def _is_identified(self, place: int, lo: float, hi: float) -> bool:
        """Whether the data constrain a number beyond the prior, or beyond an order of magnitude without a prior."""
        name = number_names(self.terms)[place]
        # No interval: the number is set by the form.
        if not self.fitted.is_free[place] and np.isfinite(lo) and lo == hi:
            return True
        trait = self._trait_of(name)
        if trait is not None and np.isfinite(self.prior.spread[trait]) and len(self.fitted.draws):
            return bool(self.fitted.drawn_traits[:, trait].std() < INFORMED * self.prior.spread[trait])
        if name in SIGNED:
            return bool(hi - lo < 1.0)
        if name not in BASE and self.noise > PLATEAU and hi - lo < PLATEAU * hi:
            return False  # no draw moves it: the objective is flat there
        # Coefficients refer to one parameter or one token, far from the data, where exponents dominate the spread.
        allowed = IDENTIFIED**3 if name in ("params_coefficient", "tokens_coefficient") else IDENTIFIED
        return bool(np.isfinite(hi) and hi < allowed * lo)

    def _trait_of(self, name: str) -> int | None:
        """Index of the prior trait of a number."""
        same = {"irreducible": "floor_share", "params_coefficient": None, "tokens_coefficient": None}
        trait = same.get(name, name)
        names = (*TRAITS, *number_names(self.terms)[len(BASE) :])
        return None if trait is None else names.index(trait)

    def predict(
        self,
        n_params: Sequence[float] | np.ndarray | float,
        n_tokens: Sequence[float] | np.ndarray | float,
        covariates: Mapping[str, np.ndarray] | None = None,
    ) -> LossPrediction:
        """Predicted losses of runs, with 90 % intervals.

        Args:
            n_params: N, parameters as counted by the law [1], [point].
            n_tokens: D, training tokens [token], [point].
            covariates: logarithms of the terms' variables, by field of `Covariates`; by default a run of the best
                shape, with small batches, unique tokens, and no experts.

        Returns:
            Losses [nat per token], with error components.
        """
        log_params, log_tokens = np.broadcast_arrays(np.log(np.atleast_1d(n_params)), np.log(np.atleast_1d(n_tokens)))
        plain = {
            "log_aspect": self._best_aspect(log_params),
            "log_batch": 0.0,
            "log_unique": log_tokens,
            # Small batches, unique tokens, no experts: neutral values.
            "log_experts": 0.0,
            **(covariates or {}),
        }
        others = {name: np.broadcast_to(values, log_params.shape) for name, values in plain.items()}
        logs = self._evaluated(log_params, log_tokens, others)
        centre = logs[0]
        decades = self.span.decades_beyond(log_params, log_tokens)
        # Half-width of Student's t for a single run.
        noise = np.full(centre.shape, STUDENT_90 * self.noise)
        # Normal: a relative error per decade beyond the range.
        discrepancy = Z90 * self.discrepancy * decades
        below, above = np.zeros_like(centre), np.zeros_like(centre)
        if len(logs) > 1:
            lower, upper = np.percentile(logs[1:], [LOWER, UPPER], axis=0)
            # Draws are resampled fits: the best fit may lie outside the percentiles.
            below, above = np.maximum(centre - lower, 0.0), np.maximum(upper - centre, 0.0)
        spread = noise**2 + discrepancy**2
        # Independent errors add in squares, on each side apart.
        lo, hi = np.exp(centre - np.sqrt(spread + below**2)), np.exp(centre + np.sqrt(spread + above**2))
        return LossPrediction(np.exp(centre), lo, hi, 0.5 * (below + above), noise, discrepancy, decades)

    def _best_aspect(self, log_params: np.ndarray) -> np.ndarray | float:
        """Logarithm of the best width over depth, unused by a law without a shape term [point]."""
        if "shape" not in self.terms:
            return 0.0
        named = dict(zip(number_names(self.terms), self.fitted.numbers, strict=True))
        return named["shape_ratio"] + named["shape_drift"] * (log_params - np.log(REFERENCE_PARAMS))

    def _evaluated(
        self, log_params: np.ndarray, log_tokens: np.ndarray, others: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Log loss of the best numbers and of each draw at each point [1 + draw, point]."""
        numbers = np.concatenate([self.fitted.numbers[None, :], self.fitted.draws])
        count, blocks = len(log_params), []
        # Points are padded to whole blocks, for a single program.
        rows = np.minimum(np.arange(-(-count // POINTS_BUCKET) * POINTS_BUCKET), count - 1)
        with jax.enable_x64(True):
            for block in rows.reshape(-1, POINTS_BUCKET):
                part = {name: values[block] for name, values in others.items()}
                points = Covariates(log_params[block], log_tokens[block], np.zeros(2), **part)
                blocks.append(np.asarray(_log_losses(numbers, points, self.terms)))
        return np.concatenate(blocks, axis=1)[:, :count]

    def predict_table(self, table: Losses) -> LossPrediction:
        """Predicted losses of the rows of a table, with 90 % intervals."""
        runs = covariates_of(table, np.arange(len(table)))
        fields = ("log_aspect", "log_batch", "log_unique", "log_experts")
        return self.predict(table.n_params, table.tokens, {name: getattr(runs, name) for name in fields})

    def optimum(self, flop: float) -> LawOptimum:
        """Compute-optimal parameters and tokens for a training compute, with 90 % intervals.

        For the best run of a given time on a cluster, see `jaxscale.designs.law_design`.

        Args:
            flop: T = 6 N D, training compute, with parameters N as counted by the law [flop].
        """
        with jax.enable_x64(True):
            best = [float(value) for value in self.law.optimum(flop)]
            drawn = [np.asarray(value) for value in self.samples.optimum(flop)]
        ends = [np.percentile(values, [LOWER, UPPER]) if len(values) else (np.nan, np.nan) for values in drawn]
        told = self.predict(best[0], best[1])
        n_params, n_tokens = ((value, float(lo), float(hi)) for value, (lo, hi) in zip(best, ends, strict=True))
        return LawOptimum(float(flop), n_params, n_tokens, (float(told.loss[0]), float(told.lo[0]), float(told.hi[0])))

    def _own_doubts(self) -> list[str]:
        """Warnings about the fit."""
        doubts = []
        if self.table is not None:
            spread = float(np.log(self.table.loss).std())
            if self.n >= 10 and self.fitted.scale > 0.5 * spread:
                doubts.append("the loss hardly depends on parameters and tokens: the law explains less than half of it")
        unknown = [name for name, entry in self.parameters.items() if not entry["identified"]]
        if unknown:
            doubts.append(f"not identified by these runs: {', '.join(unknown)}")
        return doubts


LAW_FILE = RecordFile(
    what="law of loss",
    head="law",
    made_by="a file that `jaxscale law fit --out` wrote",
    comment="Law of loss fitted by jaxscale. Numbers and draws are logarithms, except numbers that may be negative.",
    ended="law",
)
"""File format of a law."""


def law_document(law: FittedLaw) -> dict[str, Any]:
    """JSON document of a law: coefficients with intervals, backtest and warnings."""
    tested = law.backtest
    return {
        "form": law.form,
        "terms": list(law.terms),
        "count": law.count,
        "parameters": law.parameters,
        "n": law.n,
        "n_groups": law.n_groups,
        "prior": law.prior.name,
        "likelihood": law.likelihood,
        "objective": law.fitted.objective,
        "noise": law.noise,
        "discrepancy_per_decade": law.discrepancy,
        "backtest": {
            "error_percent": None if tested is None else tested.error_percent,
            "coverage_90": None if tested is None else tested.coverage_90,
            "rollouts": [] if tested is None else [_rollout(one) for one in tested.rollouts],
        },
        "warnings": list(law.warnings),
    }


def _rollout(one: Any) -> dict[str, float]:
    return {
        "largest_fitted_flop": one.cut,
        "n_fitted": one.n_fitted,
        "n_predicted": one.n_predicted,
        "error_percent": 100.0 * one.mean_error,
        "bias_percent": 100.0 * float(np.expm1(one.error).mean()),
        "coverage_90": one.coverage,
    }


def save_law(law: FittedLaw, path: str | Path) -> Path:
    """Write a law atomically to a TOML file, for `load_law`.

    Raises:
        InputError: the folder is missing or not writable.
    """
    fitted = law.fitted
    document = {
        "law": {
            "name": law.name,
            "form": law.form,
            "terms": " ".join(law.terms),
            "count": law.count,
            "likelihood": law.likelihood,
            "n": law.n,
            "n_groups": law.n_groups,
            "discrepancy": float(law.discrepancy),
            "scale": float(fitted.scale),
            "objective": float(fitted.objective),
            "warnings": "\n".join(law.warnings),
        },
        "range": {name: float(value) for name, value in law.span._asdict().items()},
        "prior": {
            "name": law.prior.name,
            "mean": [float(value) for value in law.prior.mean],
            # An infinite spread (no prior) is written as 1e30, which `_law` reads back as infinite.
            "spread": [float(value) for value in np.where(np.isfinite(law.prior.spread), law.prior.spread, 1e30)],
        },
        "numbers": {
            "names": list(number_names(law.terms)),
            "best": [float(value) for value in fitted.numbers],
            "draws": [[float(value) for value in draw] for draw in fitted.draws],
        },
    }
    LAW_FILE.write(path, document)
    return Path(path)


def load_law(path: str | Path) -> FittedLaw:
    """Read a law from a TOML file written by `save_law`.

    Raises:
        InputError: the file is missing, truncated, or not a law.
    """
    return LAW_FILE.read(path, _law)


def _law(path: Path, document: Mapping[str, Any]) -> FittedLaw:
    """Law from the tables of a file."""
    told, prior = document["law"], document["prior"]
    terms = tuple(told["terms"].split())
    if not set(terms) <= set(TERMS):
        raise InputError(f"{path}: terms {', '.join(terms)}; expected some of {', '.join(TERMS)}")
    names = number_names(terms)
    if tuple(document["numbers"]["names"]) != names:
        raise ValueError("numbers of another version")
    best = np.asarray(document["numbers"]["best"], float)
    draws = np.asarray(document["numbers"]["draws"], float).reshape(-1, len(names))
    spread = np.asarray(prior["spread"], float)
    held = LawPrior(
        # Discrepancy is stored with the law, widened by the backtest.
        prior["name"],
        np.asarray(prior["mean"], float),
        np.where(spread < 1e29, spread, np.inf),
        told["discrepancy"],
    )
    with jax.enable_x64(True):
        every = np.asarray(jax.vmap(traits)(jnp.asarray(np.concatenate([best[None, :], draws]))))
    free = form_of(told["form"], len(names) - len(BASE)).is_free
    fitted = Fitted(best, draws, every[0], every[1:], told["scale"], told["objective"], free)
    return FittedLaw(
        told["name"], told["form"], terms, told["count"], held, told["likelihood"], fitted, told["n"],
        told["n_groups"], Range(**document["range"]), told["discrepancy"], tuple(told["warnings"].splitlines()),
    )  # fmt: skip
