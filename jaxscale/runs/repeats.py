r"""Runs of equal settings differ: the error that no prediction from these settings can go below on further runs.

Of the n logs of step time of runs whose model, plan, cluster and software are the same, each is $x_i - \bar x$ from
their mean, the best that a prediction can do. These are a share $(n - 1) / n$ of the variance of one run, since the
mean has followed them:

$$ \varepsilon_i = \sqrt{\frac{n}{n - 1}} \, (x_i - \bar x) . $$
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxscale.runs.arrays import RunBatch, classes

SOFTWARE = ("source", "framework", "precision", "number_format", "attention_kernel", "fused_norm", "release")
"""Levels that runs of equal settings share, besides what the batch holds."""


def deviations(
    log_time: Float[np.ndarray, " row"],
    batch: RunBatch,
    levels: Mapping[str, Sequence[str]],
    kinds: Sequence[str] = SOFTWARE,
) -> np.ndarray:
    """How far each run is from what runs of its settings take on average.

    Args:
        log_time: natural log of measured step times [ln s], [row].
        batch: what ran [row].
        levels: level names of each run, by kind.
        kinds: levels that count as settings.

    Returns:
        Log of its step time over theirs, as wide as single runs scatter [1]; nan where no other run has its settings
        [row].
    """
    group = classes(batch, [levels[kind] for kind in kinds])
    count = np.bincount(group)[group]
    mean = (np.bincount(group, log_time) / np.bincount(group))[group]
    widened = np.sqrt(count / np.maximum(count - 1.0, 1.0)) * (log_time - mean)
    return np.where(count > 1, widened, np.nan)
