"""From a table of losses to what a law reads of it: logarithms, filled up to buckets of rows."""

import numpy as np

from jaxscale.laws.fitting.loss_terms import Covariates
from jaxscale.laws.losses.loss_reader import Losses

SMALLEST_BUCKET = 64
"""Rows of the smallest bucket; larger ones double, so that few sizes are compiled [1]."""


def bucket_rows(count: int) -> np.ndarray:
    """Rows of a table of a given length filled up to a power of two [row]."""
    size = max(SMALLEST_BUCKET, 1 << (count - 1).bit_length())
    return np.minimum(np.arange(size), count - 1)


def covariates_of(table: Losses, rows: np.ndarray, middle: np.ndarray | None = None) -> Covariates:
    """Covariates of some rows of a table; columns that the table lacks are those of a plain run [row].

    Args:
        table: of the runs.
        rows: numbers of the rows.
        middle: means of ln N and ln D; those of the table where None.
    """
    log_params, log_tokens = np.log(table.n_params), np.log(table.tokens)
    if middle is None:
        middle = np.asarray([log_params.mean(), log_tokens.mean()])

    def logarithm(values: np.ndarray, plain: np.ndarray | float) -> np.ndarray:
        return np.log(np.where(np.isnan(values), plain, values))[rows]

    with np.errstate(divide="ignore"):
        aspect = table.number("d_model") / table.number("n_layers")
        return Covariates(
            log_params=log_params[rows],
            log_tokens=log_tokens[rows],
            middle=middle,
            log_aspect=logarithm(aspect, 1.0),
            log_batch=logarithm(table.number("batch_tokens"), 1.0),
            log_unique=logarithm(table.number("epochs_unique_tokens"), table.tokens),
            log_experts=logarithm(table.number("n_experts"), 1.0),
        )
