r"""Utilisation of a whole transformer on real chips, by the calibrated step time: the limits with another inner model.

Attention, vocabulary, memory with activations, sharding of the weights, recomputation and the fitted efficiencies
count, which the data-movement model leaves out. Compute, tokens, batch, depth and deadline follow the scaling laws of a
scenario; the width follows from $N = 12 L d^2$. Degrees and counts are whole. Batches and numbers of chips are 8 to 15
times a power of two, the batch just below that of the law; each is tried with every plan that its factors allow, and
the best plan that ends in time counts:

$$ U = \frac{6 N B}{n\, C\, t_{step}}, \qquad t_{step} \le t_{train} B / D $$

with C the dense 16-bit peak. The width is not rounded to whole heads, as a rounded model would have another deadline
than its neighbours on the curve. Small steps are left where a degree doubles.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.store import AnyFit, fit_of
from jaxscale.hardware.catalogue import Hardware, cluster
from jaxscale.hardware.cluster import Cluster
from jaxscale.limits.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier_scenario import scenario as named_scenario
from jaxscale.limits.scaling_laws import workload
from jaxscale.limits.thresholds import SHARES
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, enumerate_plans, within_domains
from jaxscale.plans.score import score_plans

HEAD = 128.0
"""Width of an attention head [1]."""

SEQUENCE = 8192.0
"""Tokens of a sequence: that of Llama 3 (arXiv 2407.21783) [token]."""

VOCABULARY = 128256.0
"""Tokens of the vocabulary, likewise [token]."""

MANY_HEADS = 1024.0
"""Heads that every degree divides: stands for the heads of the model where plans are enumerated [1]."""

FACTORS = tuple(1.0 + eighth / 8.0 for eighth in range(8))
"""Odd factors of batches and numbers of chips, beside powers of two [1]."""

LARGEST = 4
"""Number of batches tried: the largest that the law allows [1]."""

DOUBLINGS = 7
"""Numbers of chips that are tried for each factor: the least and its doublings [1]."""

OOM = 0.1
"""Accepted probability of running out of memory [1]."""


@dataclass(frozen=True)
class TransformerDesign:
    """Transformer, batch and deadline of a training compute.

    Attributes:
        model: the transformer; its heads need not be whole.
        factor: of the batch, one of `FACTORS` [1].
        batch: B, at most that of the law [sequence].
        flop: of a batch, 6 N B [flop].
        deadline: longest step [s].
    """

    model: Transformer
    factor: float
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
        batch: of the best plan; nan where there is none [sequence], [size].
        degrees: tp, pp and dp of it, zero where there is none [size, degree].
    """

    training_flop: np.ndarray
    utilisation: np.ndarray
    chips: np.ndarray
    batch: np.ndarray
    degrees: np.ndarray

    def thresholds(self) -> dict[str, float]:
        """Training computes at which utilisation falls, as of `thresholds.NAMES`; infinite beyond the curve [flop]."""
        shares = {name: share * self.utilisation.max() for name, share in SHARES.items()}
        return {name: self._last(level) for name, level in {**shares, "wall": 0.0}.items()}

    def to_json(self, scenario: str, chip_id: str, laws: FrontierScenario) -> dict[str, Any]:
        """Document of the command line; a search among whole numbers has no elasticities.

        Args:
            chip_id: catalogue id of the chip.
            laws: of the scenario, which decide on the wall.
        """
        return {
            "scenario": scenario,
            "model": "transformer",
            "gpu": chip_id,
            "laws": {
                "training_time_s": laws.training_time,
                "batch_tokens": laws.reference_batch * laws.batch_multiplier,
                "batch_at_flop": laws.reference_flop,
                "batch_exponent": laws.batch_exponent,
                "tokens_per_param": laws.tokens_per_param,
                "sequence_tokens": SEQUENCE,
            },
            "training_flop": self.training_flop.tolist(),
            "utilisation": self.utilisation.tolist(),
            "chips": self.chips.tolist(),
            "global_batch_size_seqs": self.batch.tolist(),
            "degrees": dict(zip(("tp", "pp", "dp"), self.degrees.T.tolist(), strict=True)),
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
    """Nearest whole number with three significant binary digits after the first, so that powers of two divide it."""
    step = 2.0 ** max(math.floor(math.log2(max(value, 1.0))) - 3, 0)
    return max(round(value / step) * step, 1.0)


def designs(training_flop: float, laws: FrontierScenario) -> list[TransformerDesign]:
    """Transformer of a training compute by the scaling laws of a scenario, with its largest batches."""
    work = workload(jnp.log(training_flop), jax.tree.map(jnp.asarray, laws))
    params, batch = float(jnp.exp(work.log_params)), max(float(jnp.exp(work.log_batch)) / SEQUENCE, 1.0)
    layers = coarse(float(jnp.exp(work.log_layers)))
    width = math.sqrt(params / (12.0 * layers))
    model = Transformer(layers, width, width / HEAD, SEQUENCE, vocab_size=VOCABULARY)
    batches = {factor * 2.0 ** math.floor(math.log2(batch / factor) + 1e-9): factor for factor in FACTORS}
    found = []
    for whole in sorted((one for one in batches if one.is_integer()), reverse=True)[:LARGEST]:
        flop = 6.0 * params * whole * SEQUENCE
        deadline = laws.training_time * flop / training_flop
        found.append(TransformerDesign(model, batches[whole], whole, flop, deadline))
    return found


def plan_space(factor: float = 1.0) -> PlanSpace:
    """Plans that large runs use: ZeRO 1 or 3, sequence parallelism, 1F1B, interleaved or not.

    Args:
        factor: of the number of chips; stages are powers of two, or these times its odd part [1].
    """
    powers = [2**k for k in range(10)]
    odd = round(factor * 8.0)
    odd //= odd & -odd
    return PlanSpace(
        tp=powers[:8],
        pp=sorted({*powers, *(odd * power for power in powers)}),
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
        laws: scenario with the scaling laws; the default scenario where None.

    Raises:
        InputError: an unknown chip.
    """
    laws = named_scenario() if laws is None else laws
    record, levels = fit_of(fit, hardware), {"gpu": chip_id, "precision": "bf16"}
    one = cluster(chip_id, 1, hardware=hardware)
    limit = memory_limit(float(one.chip.hbm_bytes), record.memory_limit(levels), OOM)
    chips = _Chips(chip_id, hardware, float(one.chip.peak("bf16")), limit, record.coefficients(levels))
    best = [max(_best(wanted, chips) for wanted in designs(float(flop), laws)) for flop in training_flop]
    columns = np.asarray(best)
    utilisation, n_chips, batch = columns[:, :3].T
    return TransformerCurve(np.asarray(training_flop, float), utilisation, n_chips, batch, columns[:, 3:])


@dataclass(frozen=True)
class _Chips:
    """Chip: catalogue, dense 16-bit peak [flop/s], memory that runs may take [byte], coefficients."""

    chip_id: str
    hardware: Hardware | None
    peak: float
    memory: float
    coefficients: Coefficients

    def cluster(self, n_chips: float | int) -> Cluster:
        return cluster(self.chip_id, round(n_chips), hardware=self.hardware)


def _best(wanted: TransformerDesign, chips: _Chips) -> tuple[float, ...]:
    """Utilisation, chips, batch, tp, pp and dp of the best plan; chips are doubled while utilisation rises."""
    layers = number(wanted.model.n_layers)
    divisible = Transformer(layers, HEAD * MANY_HEADS, MANY_HEADS, SEQUENCE, vocab_size=VOCABULARY)
    space = within_domains(plan_space(wanted.factor), chips.cluster(1))
    least = max(wanted.flop / (chips.peak * wanted.deadline), 1.0)
    first = math.ceil(math.log2(least / wanted.factor))
    best = (0.0, math.nan, math.nan, 0.0, 0.0, 0.0)
    for n_chips in (wanted.factor * 2.0 ** (first + k) for k in range(DOUBLINGS)):
        if not n_chips.is_integer():
            continue
        table = enumerate_plans(divisible, n_chips, wanted.batch, space)
        if not len(table):
            continue
        scores = score_plans(wanted.model, table, chips.cluster(n_chips), chips.coefficients)
        allowed = (scores.memory <= chips.memory) & (scores.step_time <= wanted.deadline)
        row = int(np.argmin(np.where(allowed, scores.step_time, np.inf)))
        share = wanted.flop / (n_chips * chips.peak * float(scores.step_time[row])) if allowed[row] else 0.0
        if share < best[0]:
            break
        if share > best[0]:
            degrees = (float(table.columns[name][row]) for name in ("tp", "pp", "dp"))
            best = (share, n_chips, wanted.batch, *degrees)
    return best
