"""Errors on groups of rows left out, such as all runs of one shape: how far a law carries over to a new one."""

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError
from jaxscale.laws.fitting.fitted_law import FittedLaw
from jaxscale.laws.fitting.loss_draws import cluster_ids
from jaxscale.laws.fitting.loss_fit import problem_of
from jaxscale.laws.fitting.loss_forms import BASE, form_of
from jaxscale.laws.fitting.loss_objective import loss_residuals
from jaxscale.laws.fitting.loss_solver import optimum_of, searches
from jaxscale.laws.fitting.loss_terms import number_names


def left_out_errors(law: FittedLaw, cluster: str | None = "auto") -> Float[np.ndarray, " row"]:
    """Logarithm of measured over predicted loss of each row, by a fit to all rows of other groups [row].

    All fits run in one program: a row left out has weight zero.

    Args:
        law: fitted to a table.
        cluster: which rows are one group, as in `fit_law`.

    Raises:
        InputError: a law from a file, or one group alone.
    """
    table = law.table
    if table is None:
        raise InputError("left-out errors need the runs; expected a law fitted to a table")
    groups: Int[np.ndarray, " row"] = cluster_ids(table, cluster)
    count = int(groups.max()) + 1
    if count < 2:
        raise InputError(f"{table.name}: one group of rows alone; expected at least two to leave one out")
    form = form_of(law.form, len(number_names(law.terms)) - len(BASE))
    with jax.enable_x64(True):
        problem = problem_of(table, form, law.terms, law.prior, law.likelihood)
        best, _ = optimum_of(form, problem, law.terms)
        kept = np.ones((count, len(problem.weights)))
        kept[:, : len(table)] = groups[None, :] != np.arange(count)[:, None]
        starts = np.broadcast_to(best, (count, len(best)))
        points, _ = searches(starts, problem, kept * problem.weights, terms=law.terms)
        every = jax.vmap(lambda point: loss_residuals(point[:-1], problem, law.terms))(points)
    return np.asarray(every)[groups, np.arange(len(table))]


def root_mean_square(errors: Float[np.ndarray, " row"]) -> float:
    """Root mean square of errors [1]."""
    return float(np.sqrt(np.mean(errors**2)))
