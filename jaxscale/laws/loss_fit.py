"""Fit of a law of the loss to a table: coefficients with resampled fits, noise, and warnings about the table."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Int

from jaxscale.base.errors import InputError, check_known
from jaxscale.laws.fitted_law import Fitted, FittedLaw
from jaxscale.laws.loss_forms import BASE, TRAITS, Form, LawPrior, form_of, holding, number_names, prior_of, traits
from jaxscale.laws.loss_reader import Losses
from jaxscale.laws.loss_solver import (
    LossProblem,
    bucket_rows,
    cluster_ids,
    covariates_of,
    drawn_weights,
    numbers_of,
    optimum_of,
    searches,
)

FEWEST_ROWS = 4
"""Least number of rows for a fit, with or without a prior [1]."""

FEW_BUDGETS = 3
"""Least number of distinct training computes that separates exponents from coefficients [1]."""

SPAN = 2.0
"""Least ratio of the largest to the smallest size, or tokens, that identifies the term [1]."""

UNIGRAM = 6.5
"""Loss above which a language model has learnt little beyond word frequencies [nat per token]."""


def check_losses(table: Losses, terms: tuple[str, ...] = ()) -> list[str]:
    """Warnings about a table of losses, a line each; raises an error for a table that cannot be fitted.

    Args:
        table: table of the runs for the fit.

    Raises:
        InputError: too few rows, or a term with an empty column.
    """
    if len(table) < FEWEST_ROWS:
        raise InputError(f"{table.name}: {len(table)} rows are too few for a law; expected at least {FEWEST_ROWS}")
    _check_batches(table)
    check_needed(table, terms)
    return [*table.notes, *_mixtures(table), *_spans(table), *_duplicates(table), *_schedules(table), *_units(table)]


def _check_batches(table: Losses) -> None:
    bad = np.flatnonzero(table.number("batch_tokens") > table.tokens * (1.0 + 1e-6))
    if len(bad):
        row = bad[0]
        raise InputError(
            f"{table.name}:{table.lines[row]}: column 'tokens' = {table.tokens[row]:g} is below batch_tokens = "
            f"{table.number('batch_tokens')[row]:g}; expected all tokens of the run"
        )


NEEDED = {
    "shape": ("n_layers", "d_model"),
    "batch": ("batch_tokens",),
    "repetition": ("epochs_unique_tokens",),
    "experts": ("n_experts",),
}
"""Columns required by a term."""


def check_needed(table: Losses, terms: tuple[str, ...]) -> None:
    """Check that a table has the columns needed by each term of a law.

    Raises:
        InputError: an unknown term, or an empty cell.
    """
    for term in terms:
        if term not in NEEDED:
            raise InputError(f"term {term!r} is unknown; expected some of {', '.join(NEEDED)}")
        for column in NEEDED[term]:
            empty = np.flatnonzero(~np.isfinite(table.number(column)))
            if len(empty):
                raise InputError(
                    f"{table.name}:{table.lines[empty[0]]}: column {column!r} is empty; the term {term!r} needs it"
                )


def _mixtures(table: Losses) -> list[str]:
    """Warnings about rows that may follow different laws."""
    doubts = []
    kinds = sorted(set(table.text("loss_kind")) - {""})
    if len(kinds) > 1:
        doubts.append(
            f"losses of {len(kinds)} kinds are fitted as one ({'; '.join(kinds[:3])}): "
            "keep one by --where loss_kind=..."
        )
    groups = sorted(set(table.text("group")) - {""})
    if 1 < len(groups) <= 6:
        doubts.append(f"rows of {len(groups)} series are fitted as one ({', '.join(groups)})")
    return doubts


def _spans(table: Losses) -> list[str]:
    doubts = []
    for name, values in (("n_params", table.n_params), ("tokens", table.tokens)):
        sizes = len(np.unique(values))
        if sizes == 1:
            doubts.append(f"one value of {name} alone: its term and the floor follow the prior")
        elif values.max() / values.min() < SPAN:
            doubts.append(f"{name} spans a factor of {values.max() / values.min():.2f}: its term follows the prior")
    # Runs within 15 % of compute are a budget.
    budgets = len(np.unique(np.round(table.log_flop / np.log(1.15))))
    if budgets < FEW_BUDGETS:
        doubts.append(f"{budgets} budgets of compute: exponents follow the prior; expected at least {FEW_BUDGETS}")
    ratio = np.log10(table.tokens / table.n_params)
    # A factor of 2.
    if len(table) > FEWEST_ROWS and ratio.max() - ratio.min() < 0.3 and len(np.unique(table.n_params)) > 1:
        doubts.append(
            "tokens per parameter span less than a factor of 2: the terms of parameters and tokens move together"
        )
    return doubts


def _duplicates(table: Losses) -> list[str]:
    keys = [table.n_params, table.tokens, table.loss, *map(table.number, ("lr", "batch_tokens", "n_layers", "d_model"))]
    # Empty cells of two rows are equal: nan is not.
    rows = np.stack([np.nan_to_num(key) for key in keys], axis=1)
    repeated = len(rows) - len(np.unique(rows, axis=0))
    return [f"{repeated} rows repeat another row: duplicates count twice; drop them"] if repeated else []


def _schedules(table: Losses) -> list[str]:
    doubts = []
    final = table.number("final")
    if (final == 0.0).any():
        doubts.append(
            f"{int((final == 0.0).sum())} rows are checkpoints before the end of a schedule: they are drawn by run, "
            "and a law of finished runs lies lower"
        )
    untuned = _pairs_of_several_rates(table)
    if untuned:
        doubts.append(
            f"{untuned} pairs of n_params and tokens were trained at several learning rates: keep the best of each by "
            "--best, or the law describes a mean over the sweep"
        )
    return doubts


def _pairs_of_several_rates(table: Losses) -> int:
    """Number of pairs of parameters and tokens with several learning rates [1]."""
    stated = np.isfinite(table.number("lr"))
    if not stated.any():
        return 0
    runs = np.stack([table.n_params, table.tokens, table.number("lr")], axis=1)[stated]
    # Pairs of size and tokens, once per learning rate.
    _, tried = np.unique(np.unique(runs, axis=0)[:, :2], axis=0, return_counts=True)
    return int((tried > 1).sum())


def _units(table: Losses) -> list[str]:
    doubts = []
    if np.median(table.loss) > UNIGRAM:
        doubts.append(f"the median loss is {np.median(table.loss):.3g}: expected nat per token of a trained model")
    if table.tokens.max() < 1e6 or table.n_params.max() < 1e4:
        doubts.append("n_params and tokens look as if they were in millions or billions; expected plain numbers")
    return doubts


LIKELIHOODS = ("student", "huber")

FIXED_TRAITS = {
    "additive": ("joint",),
    "tied": ("joint", "tokens_exponent"),
    "kaplan": ("joint", "floor_share"),
}
"""Traits that a form fixes or ties, and for which no prior applies."""


def fit_law(
    table: Losses,
    form: str = "joint",
    terms: Sequence[str] = (),
    *,
    prior: str | LawPrior | None = "shipped",
    cluster: str | None = "auto",
    likelihood: str = "student",
    held: Mapping[str, float] | None = None,
    n_draws: int = 200,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> FittedLaw:
    """Fit a law of the loss to a table of runs: `js.laws.fit_law(js.laws.read_losses("runs.csv"))`.

    Args:
        form: form of the law, `joint`, `additive`, `tied` or `kaplan`; see `loss_forms`.
        terms: further terms, from `shape`, `batch`, `repetition` and `experts`.
        prior: `shipped` (from published sources), None for no prior, or a `LawPrior`.
        cluster: unit of resampling: `auto`, `rows`, or a column with equal cells for rows drawn together.
        likelihood: `student`, or `huber` as in Hoffmann et al. 2022.
        held: fixed coefficients by name, for example of a published law.
        n_draws: number of resampled fits [1].
        progress: function that receives messages of progress.

    Returns:
        The law with its draws.

    Raises:
        InputError: too few rows, an unknown word, or a term with an empty column.
    """
    terms = tuple(terms)
    doubts = check_losses(table, terms)
    check_known("likelihood", likelihood, LIKELIHOODS)
    form_ = form_of(form, len(number_names(terms)) - len(BASE))
    prior = prior if isinstance(prior, LawPrior) else prior_of(prior, form, terms, table.family)
    if held:
        # Coefficients refer to the middle of the table during a fit.
        form_ = holding(form_, held, (float(np.log(table.n_params).mean()), float(np.log(table.tokens).mean())))
    clusters = cluster_ids(table, cluster)
    if progress:
        progress(f"fitting the {form} law to {len(table)} rows in {clusters.max() + 1} groups, {n_draws} draws")
    with jax.enable_x64(True):
        problem = problem_of(table, form_, terms, prior, likelihood)
        fitted = fitted_numbers(problem, form_, terms, prior, clusters, n_draws, seed)
    return FittedLaw.of(table, form, terms, prior, likelihood, fitted, clusters, tuple(doubts))


def problem_of(table: Losses, form: Form, terms: tuple[str, ...], prior: LawPrior, likelihood: str) -> LossProblem:
    """Inputs of the fit of a law to a table, with rows padded by copies of weight zero."""
    rows = bucket_rows(len(table))
    weight = table.number("weight")
    # Rows of padding have no weight.
    weights = np.where(np.arange(len(rows)) < len(table), np.where(np.isnan(weight), 1.0, weight)[rows], 0.0)
    # Fixed traits would add a constant, tied traits would count twice.
    held = np.asarray(
        [trait not in FIXED_TRAITS.get(form.name, ()) for trait in TRAITS] + [True] * (len(prior.mean) - 5)
    )
    return LossProblem(
        covariates=covariates_of(table, rows),
        log_loss=np.log(table.loss)[rows],
        weights=weights,
        matrix=form.matrix,
        offset=form.offset,
        prior_mean=prior.mean,
        prior_precision=np.where(held, prior.precision, 0.0),
        is_huber=np.asarray(float(likelihood == "huber")),
    )


def fitted_numbers(
    problem: LossProblem,
    form: Form,
    terms: tuple[str, ...],
    prior: LawPrior,
    clusters: Int[np.ndarray, " row"],
    n_draws: int,
    seed: int,
) -> Fitted:
    """Best coefficients of a law, coefficients of resampled fits, and noise."""
    best, value = optimum_of(form, problem, terms)
    generator = np.random.default_rng(seed)
    drawn = np.zeros((n_draws, len(problem.weights)))
    drawn[:, : len(clusters)] = drawn_weights(clusters, n_draws, generator)
    normal = generator.normal(size=(n_draws, len(prior.mean)))
    # Prior means are drawn too: draws then have the spread of the posterior.
    means = prior.mean + np.where(np.isfinite(prior.spread), prior.spread, 0.0) * normal
    points = np.empty((0, len(best)))
    if n_draws:
        # Each draw starts at the best fit.
        starts = np.broadcast_to(best, (n_draws, len(best)))
        points, _ = searches(starts, problem, drawn * problem.weights, means, terms)
    numbers = jax.vmap(lambda point: numbers_of(point, problem))
    every = numbers(np.concatenate([best[None, :], points])[:, :-1])
    quantities, every = np.asarray(jax.vmap(traits)(every)), np.asarray(every)
    # The last coordinate is ln sigma.
    scale = np.exp(np.concatenate([best[-1:], points[:, -1]]))
    return Fitted(every[0], every[1:], quantities[0], quantities[1:], float(scale[0]), value, form.is_free)
