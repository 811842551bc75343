r"""Utilisation of a whole transformer on real chips, by the calibrated step time: the limits with another inner model.

Attention, vocabulary, memory with activations, sharding of the weights, recomputation and the fitted efficiencies
count, which the data-movement model leaves out. Compute, tokens, batch, depth and deadline follow the scaling laws of a
scenario; the width follows from $N = 12 L d^2$. At every training compute, numbers of chips from the least on by
factors of two are tried, each with every plan of powers of two; the best that ends in time counts:

$$ U = \frac{6 N B}{n\, C\, t_{step}}, \qquad t_{step} \le t_{train} B / D $$

with C the dense 16-bit peak.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.memory_limit import MemoryLimit, memory_limit
from jaxscale.calibration.store import AnyFit, fit_of
from jaxscale.hardware.catalogue import Hardware, cluster
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.scaling_laws import workload
from jaxscale.limits.scenario_library import scenario as named_scenario
from jaxscale.limits.thresholds import SHARES
from jaxscale.plans.enumerate import PlanSpace, enumerate_plans, within_domains
from jaxscale.plans.score import score_plans
from jaxscale.workload import Transformer

HEAD = 128.0
"""Width of an attention head [1]."""

SEQUENCE = 8192.0
"""Tokens of a sequence: that of Llama 3 (arXiv 2407.21783) [token]."""

VOCABULARY = 128256.0
"""Tokens of the vocabulary, likewise [token]."""

DOUBLINGS = 7
"""Numbers of chips that are tried: the least and its doublings [1]."""

OOM = 0.1
"""Accepted probability of running out of memory [1]."""


@dataclass(frozen=True)
class TransformerDesign:
    """Transformer, batch and deadline of one training compute.

    Attributes:
        model: the transformer.
        batch: B, a power of two [sequence].
        flop: of a batch, 6 N B [flop].
        deadline: longest step [s].
    """

    model: Transformer
    batch: float
    flop: float
    deadline: float


@dataclass(frozen=True)
class TransformerCurve:
    """Best plans of transformers along a curve.

    Attributes:
        training_flop: T [flop], [size].
        utilisation: of the 16-bit peak; zero where no plan ends in time and fits [1], [size].
        chips: of the best plan; nan where there is none [1], [size].
        degrees: tp, pp and dp of it, zero where there is none [size, degree].
    """

    training_flop: np.ndarray
    utilisation: np.ndarray
    chips: np.ndarray
    degrees: np.ndarray

    def thresholds(self) -> dict[str, float]:
        """Training computes at which utilisation falls, as of `thresholds.NAMES`; infinite beyond the curve [flop]."""
        shares = {name: share * self.utilisation.max() for name, share in SHARES.items()}
        return {name: self._last(level) for name, level in {**shares, "wall": 0.0}.items()}

    def to_json(self, scenario: str, chip_id: str) -> dict[str, Any]:
        """Document of the command line; a search among whole numbers has no elasticities."""
        return {
            "scenario": scenario,
            "model": "transformer",
            "gpu": chip_id,
            "training_flop": self.training_flop.tolist(),
            "utilisation": self.utilisation.tolist(),
            "chips": self.chips.tolist(),
            "thresholds": self.thresholds(),
            "elasticities": {},
        }

    def _last(self, level: float) -> float:
        """Where the curve is last above a level, between sizes by its logarithm [flop]."""
        above = np.flatnonzero(self.utilisation > level)
        if not len(above):
            return math.nan
        if above[-1] == len(self.utilisation) - 1:
            return math.inf
        last = above[-1]
        high, low = self.utilisation[last], self.utilisation[last + 1]
        share = (high - level) / (high - low) if low > 0.0 else 0.0
        logs = np.log(self.training_flop)
        return float(np.exp(logs[last] + share * (logs[last + 1] - logs[last])))


def coarse(value: float) -> float:
    """Nearest whole number with two significant binary digits after the first, so that powers of two divide it."""
    step = 2.0 ** max(math.floor(math.log2(max(value, 1.0))) - 2, 0)
    return max(round(value / step) * step, 1.0)


def design(training_flop: float, laws: FrontierScenario) -> TransformerDesign:
    """Transformer and batch of a training compute by the scaling laws of a scenario."""
    work = workload(jnp.log(training_flop), jax.tree.map(jnp.asarray, laws))
    layers = coarse(float(jnp.exp(work.log_layers)))
    heads = coarse(math.sqrt(float(jnp.exp(work.log_params)) / (12.0 * layers)) / HEAD)
    model = Transformer(layers, HEAD * heads, heads, SEQUENCE, vocab_size=VOCABULARY)
    batch = 2.0 ** round(math.log2(max(float(jnp.exp(work.log_batch)) / SEQUENCE, 1.0)))
    # Sizes are rounded: what is left of the compute decides on the tokens.
    flop = 72.0 * layers * (HEAD * heads) ** 2 * batch * SEQUENCE
    return TransformerDesign(model, batch, flop, laws.training_time * flop / training_flop)


def plan_space(n_chips: float) -> PlanSpace:
    """Plans of powers of two that large runs use: ZeRO 1 or 3, sequence parallelism, 1F1B, interleaved or not."""
    powers = [2**k for k in range(round(math.log2(n_chips)) + 1)]
    return PlanSpace(
        tp=powers[:8],
        pp=powers[:10],
        vpp=powers[:5],
        cp=powers[:4],
        micro_batch_size=(1, 2, 4),
        zero_stage=(1, 3),
        hybrid_sharding=False,
        sequence_parallel=(True,),
        recompute=("none", "full"),
        schedule=("1f1b", "interleaved"),
        whole_chunks=False,
    )


def transformer_curve(
    training_flop: np.ndarray,
    chip_id: str,
    laws: FrontierScenario | None = None,
    *,
    fit: AnyFit = "default",
    hardware: Hardware | None = None,
) -> TransformerCurve:
    """Best plans of transformers along a curve, by the exact calibrated model.

    Far beyond measured numbers of chips the fitted coefficients extrapolate.

    Args:
        training_flop: T [flop].
        chip_id: catalogue id of the chip.
        laws: scenario whose scaling laws, efficiencies aside, count; the default one where None.
        fit: a fit, or its name or file.
        hardware: catalogue; the shipped one where None.

    Returns:
        The curve.

    Raises:
        InputError: an unknown chip.
    """
    laws = named_scenario() if laws is None else laws
    record, levels = fit_of(fit), {"gpu": chip_id, "precision": "bf16"}
    fitted, usable = record.coefficients(levels), record.memory_limit(levels)
    best = [_best(flop, chip_id, laws, fitted, usable, hardware) for flop in training_flop]
    columns = np.asarray(best)
    return TransformerCurve(np.asarray(training_flop, float), columns[:, 0], columns[:, 1], columns[:, 2:])


def _best(
    training_flop: float,
    chip_id: str,
    laws: FrontierScenario,
    fitted: Coefficients,
    usable: MemoryLimit,
    hardware: Hardware | None,
) -> tuple[float, ...]:
    """Utilisation, chips, tp, pp and dp of the best plan."""
    wanted = design(float(training_flop), laws)
    one = cluster(chip_id, 1, hardware=hardware)
    peak = float(one.chip.peak("bf16"))
    limit = memory_limit(float(one.chip.hbm_bytes), usable, OOM)
    least = math.ceil(math.log2(max(wanted.flop / (peak * wanted.deadline), 1.0)))
    best = (0.0, math.nan, 0.0, 0.0, 0.0)
    for n_chips in (2.0 ** (least + k) for k in range(DOUBLINGS)):
        table = enumerate_plans(wanted.model, n_chips, wanted.batch, within_domains(plan_space(n_chips), one))
        if not len(table):
            continue
        scores = score_plans(wanted.model, table, cluster(chip_id, round(n_chips), hardware=hardware), fitted)
        allowed = (scores.memory <= limit) & (scores.step_time <= wanted.deadline)
        row = int(np.argmin(np.where(allowed, scores.step_time, np.inf)))
        share = wanted.flop / (n_chips * peak * float(scores.step_time[row]))
        if allowed[row] and share > best[0]:
            best = (share, n_chips, *(float(table.columns[name][row]) for name in ("tp", "pp", "dp")))
    return best
