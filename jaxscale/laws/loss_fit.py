"""Fit of a law of the loss to a table: best and resampled numbers, noise, and warnings about the table."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Int

from jaxscale.base.errors import check_known
from jaxscale.laws.fitted_law import Fitted, FittedLaw
from jaxscale.laws.loss_checks import check_losses
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
    """Fit a law of the loss to a table, `js.laws.fit_law(js.laws.read_losses("runs.csv"))`.

    Args:
        form: joint, additive, tied or kaplan.
        terms: terms of shape, batch, repetition and experts.
        prior: `shipped` (from published sources), None for the data alone, or a prior.
        cluster: unit of resampling: auto, rows, or a column whose equal cells are drawn together.
        likelihood: student, or huber as in Hoffmann et al. 2022.
        held: fixed numbers by name, such as those of a published law with fitted terms.
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
    """Inputs of a fit, with rows padded to a bucket by copies of the last row with weight zero."""
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
    """Best and resampled numbers of a problem."""
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
