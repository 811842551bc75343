"""Resampled fits: rows drawn by the run or shape that they share, prior means drawn from the prior.

Drawing rows alone would take the prior for certain; with its mean drawn as well, the spread of the draws is that of the
posterior where the law is linear (randomised maximum a posteriori; Bardsley et al. 2014).
"""

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError
from jaxscale.laws.losses.loss_reader import Losses

FEWEST_SHAPES = 12
"""Shapes from which a table is drawn by shape: fewer say little about a spread between shapes [1]."""


def cluster_ids(table: Losses, cluster: str | None = "auto") -> Int[np.ndarray, " row"]:
    """Number of the cluster of each row; rows of one cluster are drawn together [row].

    Args:
        table: of the runs.
        cluster: a column; None for rows; `auto` takes shapes where there are many and rows share them, else runs, whose
            checkpoints share their noise, else rows.

    Raises:
        InputError: the column is not there.
    """
    rows = np.arange(len(table))
    if cluster is None or cluster == "rows":
        return rows
    if cluster != "auto":
        if cluster not in table.cells:
            raise InputError(f"cluster {cluster!r} is not a column of {table.name}; expected auto, rows or a column")
        return np.unique(table.cells[cluster].map(str.strip).array().astype(str), return_inverse=True)[1]
    shapes = np.stack([table.number("n_layers"), table.number("d_model")], axis=1)
    if np.isfinite(shapes).all():
        distinct, of_row = np.unique(shapes, axis=0, return_inverse=True)
        if FEWEST_SHAPES <= len(distinct) < len(table):
            return of_row.reshape(-1)
    if (table.text("run") != "").all():
        return np.unique(table.text("run").astype(str), return_inverse=True)[1]
    return _runs(table)


def _runs(table: Losses) -> Int[np.ndarray, " row"]:
    """Checkpoints before the end of a schedule go with the size, rate and batch of their run; all other rows alone."""
    keys = [
        table.n_params,
        *(np.nan_to_num(table.number(name)) for name in ("n_layers", "d_model", "lr", "batch_tokens")),
    ]
    of_run = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    is_checkpoint = table.number("final") == 0.0
    alone = len(table) + np.arange(len(table))
    return np.unique(np.where(is_checkpoint, of_run, alone), return_inverse=True)[1]


def drawn_weights(
    clusters: Int[np.ndarray, " row"], n_draws: int, generator: np.random.Generator
) -> Float[np.ndarray, "draw row"]:
    """How often each row is in each draw of as many clusters as there are, with replacement [draw, row]."""
    count = int(clusters.max()) + 1
    often = generator.multinomial(count, np.full(count, 1.0 / count), size=n_draws)
    return often[:, clusters].astype(float)
