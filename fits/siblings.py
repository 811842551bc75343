r"""Runs of a table that contradict their siblings; the rule looks at measured times alone, at no model's prediction.

Siblings are runs of one model, sequence length, tensor-parallel degree and ZeRO stage whose plans differ by a factor of
at most `REACH` in the product of their other degrees. The time of a pipeline slot, $T / (m + p - 1)$, ties them:

- r times as many sequences in a microbatch take at least as long, and at most r times as long;
- r times as many stages leave at least 1/r of the work to each, and at most all of it;
- replicas leave it as it is, except that a step of few slots may be dominated by the reduction of gradients.

A run that breaks these bounds by `MARGIN` with more than half of its siblings is suspect.
"""

import numpy as np
from numpy.typing import ArrayLike

from jaxscale.fit.batch import Measured

REACH = 4.0
"""Largest product of the factors by which microbatch, stages and replicas of siblings differ [1]."""

MARGIN = 1.2
"""Factor beyond the bounds that run-to-run scatter may explain [1]."""

FEW_SLOTS = 16
"""Slots of a step below which the reduction of gradients may take as long as several of them [1]."""

REDUCTION = 4.0
"""Factor by which it may then lengthen a slot [1]."""


def contradicted(measured: Measured) -> np.ndarray:
    """Which runs contradict more than half of their siblings [row]."""
    batch = measured.batch
    plan, model = batch.plan, batch.model
    kin = (model.n_layers, model.d_model, model.seq_len, plan.tp, plan.zero_stage)
    alike = np.all([np.equal.outer(part, part) for part in kin], axis=0)
    slots = np.asarray(plan.n_microbatches + plan.pp - 1.0)
    slot = np.asarray(measured.step_time) / slots
    micro, stages, replicas = (_ratios(part) for part in (plan.micro_batch_size, plan.pp, plan.dp))
    near = np.prod([np.maximum(ratio, 1.0 / ratio) for ratio in (micro, stages, replicas)], axis=0) <= REACH
    siblings = alike & near & ~np.eye(len(slot), dtype=bool)
    few = np.where(slots < FEW_SLOTS, REDUCTION, 1.0)
    longest = np.maximum(micro, 1.0) / np.minimum(stages, 1.0) * np.where(replicas > 1.0, few, 1.0)
    # Pair (i, j) says how many times longer the slot of j is than that of i, and (j, i) the inverse.
    excess = _ratios(slot) / longest
    broken = np.maximum(excess, excess.T) > MARGIN
    return (broken & siblings).sum(axis=1) > 0.5 * siblings.sum(axis=1)


def _ratios(values: ArrayLike) -> np.ndarray:
    """Value of j over value of i [i, j]."""
    return np.divide.outer(np.asarray(values), np.asarray(values)).T
