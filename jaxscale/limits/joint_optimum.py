r"""Depth, width, batch and plan chosen jointly at each training compute, in place of fixed scaling laws.

A run of N parameters by the fixed laws takes $T = 6 N D$. A run of the same N and loss with x times the law's batch and
y times its depth takes q times the tokens:

$$ q = \frac{1 + o\,x}{1 + o}\, e^{(\kappa / c)(\ln^2(a / r) - \ln^2(a_0 / r))}, \qquad a = a_0\, y^{-3/2} $$

The first factor is the price of larger batches (McCandlish et al. 2018, arXiv 1812.06162, equation 2.11), with o the
extra tokens of the law's own batch. The second factor is the price of the aspect ratio a of width to depth (Kaplan et
al. 2020, arXiv 2001.08361, figure 5), with the rise of the loss turned into compute by $L \propto T^{-c}$. The search
minimises the chip time, proportional to $q T / U^*$ with $U^*$ the utilisation of the best plan.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.laws.loss import batch_law, compute_exponent, shape_law
from jaxscale.limits.frontier_scenario import FrontierScenario, repeated, workload
from jaxscale.limits.relaxed_plan import survey_logs

BATCH_RANGE = (np.log(0.02), np.log(200.0))
DEPTH_RANGE = (np.log(0.02), np.log(5.0))
"""Factors that are tried, natural logarithms [1]."""

MOST_EXTRA = 20.0
"""Cap on ln q: no design of more tokens is ever best [1]."""

N_TRIED = 7
"""Factors on batch, and on depth, in a round [1]."""

N_ROUNDS = 5
"""Rounds; each tries a third of the last one's range, around its best [1]."""


@dataclass(frozen=True)
class JointOptimum:
    """Jointly chosen batch, depth and plan along a curve of training computes.

    Attributes:
        training_flop: T of the run by the fixed laws with the same parameters and loss [flop], [size].
        utilisation: utilisation of the peak by the jointly chosen run, for its own flop; zero where no design ends in
            time [1], [size].
        fixed: utilisation by the fixed laws [1], [size].
        chip_time: chip time of the joint choice over that of the fixed laws; nan where a run by the fixed laws does not
            end in time [1], [size].
        batch_factor: batch over the law's batch, x [1], [size].
        depth_factor: depth over the law's depth, y [1], [size].
        extra_tokens: tokens over the law's tokens, q [1], [size].
    """

    training_flop: np.ndarray
    utilisation: np.ndarray
    fixed: np.ndarray
    chip_time: np.ndarray
    batch_factor: np.ndarray
    depth_factor: np.ndarray
    extra_tokens: np.ndarray


@dataclass(frozen=True)
class TokenPrice:
    """Price in tokens of batches and depths that depart from the fixed laws.

    Attributes:
        overhead: o, extra tokens of the law's own batch as a share of the least tokens [1].
        shape: kappa / c, strength of the aspect ratio's price [1].
        aspect: r, best ratio of width to depth [1].
    """

    overhead: float
    shape: float
    aspect: float

    def log_extra(self, log_batch: np.ndarray, log_depth: np.ndarray, log_aspect: np.ndarray) -> np.ndarray:
        """Natural logarithm of the factor q of the tokens over those of the fixed laws, at equal loss [1].

        Args:
            log_batch: logarithm of the factor on the batch, ln x [1].
            log_depth: logarithm of the factor on the depth, ln y [1].
            log_aspect: logarithm of the aspect ratio by the fixed laws, ln a_0 [1].
        """
        # ln((1 + o x) / (1 + o))
        batch = np.log1p(self.overhead * np.exp(log_batch)) - np.log1p(self.overhead)
        fixed = log_aspect - np.log(self.aspect)
        # ln(a / r) = ln(a_0 / r) - 3/2 ln y
        return np.minimum(batch + self.shape * ((fixed - 1.5 * log_depth) ** 2 - fixed**2), MOST_EXTRA)


def published_price() -> TokenPrice:
    """Price of batches and depths by `data/laws.toml`: batch law `erdil`, shape and compute laws `kaplan`."""
    shape, overhead = shape_law("kaplan"), batch_law("erdil").overhead
    return TokenPrice(*(float(np.asarray(x)) for x in (overhead, shape.kappa / compute_exponent(), shape.ratio)))


def joint_optimum(
    training_flop: np.ndarray, scenario: FrontierScenario, price: TokenPrice | None = None
) -> JointOptimum:
    """Batch, depth, width and plan that reach the fixed laws' loss with least chip time, at each training compute.

    Args:
        training_flop: T by the fixed laws [flop].
        scenario: assumptions, with the laws of batch and depth to which the factors apply.
        price: price of other batches and depths in tokens; `published_price` where None.

    Returns:
        The designs; the chip time is never above that of the fixed laws.
    """
    price = published_price() if price is None else price
    log_flop = np.log(np.asarray(training_flop, float))
    log_aspect = _log_aspect(log_flop, scenario)

    def values(log_batch: np.ndarray, log_depth: np.ndarray) -> np.ndarray:
        """Ln of U / q, the inverse of chip time; minus infinity where no plan ends in time [size, trial]."""
        extra = price.log_extra(log_batch, log_depth, log_aspect[:, None])
        changed = _changed(scenario, extra, log_batch, log_depth)
        plans = survey_logs((log_flop[:, None] + extra).reshape(-1, 1), changed)
        # Without a plan in time: ln 0.
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(plans.utilisation)).reshape(extra.shape) - extra

    batch, depth = np.zeros_like(log_flop), np.zeros_like(log_flop)
    best = fixed = values(batch[:, None], depth[:, None])[:, 0]
    reach = [0.5 * (high - low) for low, high in (BATCH_RANGE, DEPTH_RANGE)]
    middle = [np.full_like(log_flop, 0.5 * (low + high)) for low, high in (BATCH_RANGE, DEPTH_RANGE)]
    steps = np.linspace(-1.0, 1.0, N_TRIED)
    for _ in range(N_ROUNDS):
        tried = [np.clip(at[:, None] + width * steps, *box) for at, width, box in _axes(middle, reach)]
        # (size, pair)
        pairs = np.repeat(tried[0], N_TRIED, axis=1), np.tile(tried[1], (1, N_TRIED))
        tried_values = values(*pairs)
        top = np.argmax(tried_values, axis=1)[:, None]
        gain = np.take_along_axis(tried_values, top, 1)[:, 0] > best
        batch = np.where(gain, np.take_along_axis(pairs[0], top, 1)[:, 0], batch)
        depth = np.where(gain, np.take_along_axis(pairs[1], top, 1)[:, 0], depth)
        best = np.maximum(best, tried_values.max(axis=1))
        middle, reach = [batch, depth], [width / 3.0 for width in reach]
    extra = price.log_extra(batch, depth, log_aspect)
    # Chip time is the inverse of U / q.
    chip_time = np.exp(np.where(np.isfinite(fixed), fixed, np.nan) - best)
    factors = (np.exp(part) for part in (batch, depth, extra))
    # ln U = ln(U / q) + ln q
    return JointOptimum(np.exp(log_flop), np.exp(best + extra), np.exp(fixed), chip_time, *factors)


def _axes(middle: list[np.ndarray], reach: list[float]) -> zip:
    return zip(middle, reach, (BATCH_RANGE, DEPTH_RANGE), strict=True)


def _log_aspect(log_flop: np.ndarray, scenario: FrontierScenario) -> np.ndarray:
    """Width over depth by the fixed laws, natural logarithm [size]."""
    numbers = jax.tree.map(jnp.asarray, scenario)
    works = jax.vmap(lambda size: workload(size, numbers))(jnp.asarray(log_flop))
    return np.asarray(works.log_width - works.log_layers)


def _changed(
    scenario: FrontierScenario, extra: np.ndarray, log_batch: np.ndarray, log_depth: np.ndarray
) -> FrontierScenario:
    """The scenario with other batches and depths at the same parameters, every leaf [case]."""
    # Its law would let the batch grow with the extra tokens: the multiplier takes that back.
    multiplier = scenario.batch_multiplier * np.exp(log_batch - scenario.batch_exponent * extra)
    changes = {
        "tokens_per_param": scenario.tokens_per_param * np.exp(extra),
        "batch_multiplier": multiplier,
        "reference_layers": scenario.reference_layers * np.exp(log_depth),
    }
    return repeated(scenario, {name: np.ravel(value) for name, value in changes.items()})
