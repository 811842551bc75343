r"""Utilisation of whole transformers on catalogue chips against training compute, by the calibrated step time.

In contrast to the data-movement model, attention, vocabulary, memory with activations, sharding of the weights,
recomputation and the fitted efficiencies count. Compute, tokens, batch, depth and deadline follow the scaling laws of a
scenario; the width follows from $N = 12 L d^2$. Degrees and counts are whole. Batches and numbers of chips are 8 to 15
times a power of two, with the largest batches up to that of the law. The best plan that ends in time counts:

$$ U = \frac{6 N B}{n\, C\, t_{step}}, \qquad t_{step} \le t_{train} B / D $$

with C the dense 16-bit peak. The width is not rounded to whole heads, because rounding would make the deadlines of
neighbouring points jump. Small steps of the curve remain where a degree doubles.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.units import GB
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.hardware.catalogue import Hardware, cluster
from jaxscale.hardware.cluster import Cluster
from jaxscale.limits.frontier_scenario import FrontierScenario, workload
from jaxscale.limits.frontier_scenario import scenario as named_scenario
from jaxscale.limits.thresholds import SHARES
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, enumerate_plans
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import PlanQuestion, plan_question, stated_space
from jaxscale.plans.score import score_plans
from jaxscale.runs.run_levels import model_levels
from jaxscale.runs.software import software_of
from jaxscale.tables.cells import translate

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
        model: the transformer, with a real-valued number of heads.
        factor: factor of the batch beside a power of two, one of `FACTORS` [1].
        batch: batch B, at most that of the law [sequence].
        flop: compute of a batch, 6 N B [flop].
        deadline: longest allowed step time [s].
    """

    model: Transformer
    factor: float
    batch: float
    flop: float
    deadline: float


@dataclass(frozen=True)
class TransformerCurve:
    """Best plans of transformers along a curve of training computes.

    Attributes:
        training_flop: T [flop], [size].
        utilisation: utilisation of the 16-bit peak; zero where no plan ends in time and fits [1], [size].
        chips: chips of the best plan; nan for none [1], [size].
        batch: batch of the best plan; nan for none [sequence], [size].
        degrees: tp, pp and dp of the best plan, zero for none [1], [size, degree].
        best: best plans with model, time and memory, None for none [size]; or empty.
    """

    training_flop: np.ndarray
    utilisation: np.ndarray
    chips: np.ndarray
    batch: np.ndarray
    degrees: np.ndarray
    best: "tuple[BestRun | None, ...]" = ()

    def thresholds(self) -> dict[str, float]:
        """Training computes at which utilisation falls, named as in `Thresholds`; infinite if off the curve [flop]."""
        shares = {name: share * self.utilisation.max() for name, share in SHARES.items()}
        return {name: self._last(level) for name, level in {**shares, "wall": 0.0}.items()}

    def to_json(self, scenario: str, chip_id: str, laws: FrontierScenario) -> dict[str, Any]:
        """JSON document of the curve; without elasticities, because the search is among whole numbers.

        Args:
            scenario: name of the scenario.
            chip_id: catalogue id of the chip.
            laws: the scenario, with the scaling laws.
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
            "runs": [None if run is None else run.to_json() for run in self.best],
            "thresholds": self.thresholds(),
            "elasticities": {},
        }

    def _last(self, level: float) -> float:
        """Largest training compute with a utilisation above a level, interpolated in its logarithm [flop]."""
        above = np.flatnonzero(self.utilisation > level)
        if not len(above):
            return math.nan
        if above[-1] == len(self.utilisation) - 1:
            return math.inf
        last = above[-1]
        high, low = self.utilisation[last], self.utilisation[last + 1]
        # Beyond the wall there is no value to interpolate.
        share = (high - level) / (high - low) if low > 0.0 else 0.0
        logs = np.log(self.training_flop)
        return float(np.exp(logs[last] + share * (logs[last + 1] - logs[last])))


class BestRun(NamedTuple):
    """Best plan at one training compute.

    Attributes:
        share: utilisation of the 16-bit peak [1].
        n_chips: number of chips n [1].
        batch: batch B [sequence].
        model: the transformer.
        plan: degrees, batch and software.
        step_time: step time [s].
        memory: peak memory that the program allocates on the fullest chip [byte].
    """

    share: float
    n_chips: float
    batch: float
    model: Transformer
    plan: Plan
    step_time: float
    memory: float

    def to_json(self) -> dict[str, Any]:
        """JSON values of the run: sizes, step time [s], memory [GB] and plan."""
        sizes = {name: number(getattr(self.model, name)) for name in ("n_layers", "d_model", "n_heads", "vocab_size")}
        times = {"step_time_s": self.step_time, "memory_gb": self.memory / GB}
        return {**sizes, **times, "plan": self.plan.words()}


def coarse(value: float) -> float:
    """Nearest whole number with four significant binary digits, at least one."""
    # Powers of two divide the result.
    step = 2.0 ** max(math.floor(math.log2(max(value, 1.0))) - 3, 0)
    return max(round(value / step) * step, 1.0)


def designs(training_flop: float, laws: FrontierScenario) -> list[TransformerDesign]:
    """Transformer at a training compute by the scaling laws of a scenario, with each of the largest batches."""
    work = workload(jnp.log(training_flop), jax.tree.map(jnp.asarray, laws))
    params, batch = float(jnp.exp(work.log_params)), max(float(jnp.exp(work.log_batch)) / SEQUENCE, 1.0)
    layers = coarse(float(jnp.exp(work.log_layers)))
    # N = 12 L d^2
    width = math.sqrt(params / (12.0 * layers))
    model = Transformer(layers, width, width / HEAD, SEQUENCE, vocab_size=VOCABULARY)
    # The tolerance guards the logarithm of a power of two.
    batches = {factor * 2.0 ** math.floor(math.log2(batch / factor) + 1e-9): factor for factor in FACTORS}
    found = []
    for whole in sorted((one for one in batches if one.is_integer()), reverse=True)[:LARGEST]:
        # 6 N B
        flop = 6.0 * params * whole * SEQUENCE
        # t_train B / D, with T = 6 N D
        deadline = laws.training_time * flop / training_flop
        found.append(TransformerDesign(model, batches[whole], whole, flop, deadline))
    return found


def plan_space(factor: float = 1.0, cells: Mapping[str, Any] | None = None) -> PlanSpace:
    """Plans usual in large runs: ZeRO 1 or 3, sequence parallelism, 1F1B with or without interleaving.

    Args:
        factor: factor of the number of chips, whose odd divisor also multiplies the numbers of stages tried [1].
        cells: stated fields of plan and software, by column of a runs table, which replace the usual values.
    """
    cells = cells or {}
    stated = stated_space(cells, software_of(cells).plan)
    powers = [2**k for k in range(10)]
    odd = round(factor * 8.0)
    # Odd factor of the number of chips.
    odd //= odd & -odd
    usual = {
        "tp": powers[:8],
        "pp": sorted({*powers, *(odd * power for power in powers)}),
        "vpp": powers[:5],
        "cp": powers[:4],
        "micro_batch_size": (1, 2, 4),
        "zero_stage": tuple(stage for stage in (1, 3) if stage in stated.zero_stage) or stated.zero_stage,
        "sequence_parallel": (True,),
        "schedule": tuple(one for one in ("1f1b", "interleaved") if one in stated.schedule) or stated.schedule,
    }
    free = {name: values for name, values in usual.items() if cells.get(name) is None}
    recompute = None if stated.recompute is None else ("none", "full")
    hybrid = cells.get("shard_group") is not None
    return replace(stated, **free, recompute=recompute, hybrid_sharding=hybrid, whole_chunks=False)


def transformer_curve(
    training_flop: np.ndarray,
    chip_id: str,
    laws: FrontierScenario | None = None,
    *,
    fit: AnyFit = "default",
    hardware: Hardware | None = None,
    cells: Mapping[str, Any] | None = None,
) -> TransformerCurve:
    """Best plans of transformers on a chip at each training compute, by the exact calibrated model.

    Far beyond measured numbers of chips the fitted coefficients extrapolate.

    Args:
        training_flop: T [flop].
        chip_id: catalogue id of the chip.
        laws: scenario with the scaling laws; the default scenario where None.
        fit: calibrated fit, or its name or path.
        hardware: catalogue of chips; the shipped catalogue where None.
        cells: stated fields of plan and software, by column of a runs table: `framework`, `precision`, `tp`, ...

    Raises:
        InputError: an unknown chip.
    """
    laws = named_scenario() if laws is None else laws
    stated = {"precision": "bf16", **(cells or {}), "gpu": chip_id}
    one = cluster(chip_id, 1, hardware=hardware)
    question = plan_question(designs(float(training_flop[0]), laws)[0].model, one, None, stated)
    search = _Search(chip_id, hardware, fit_of(fit, hardware), stated, question)
    every = [[_best(wanted, search) for wanted in designs(float(flop), laws)] for flop in training_flop]
    best = tuple(max((run for run in runs if run), key=lambda run: run.share, default=None) for runs in every)
    none = (0.0, math.nan, math.nan, 0.0, 0.0, 0.0)
    columns = np.asarray([none if run is None else run[:3] + _degrees(run.plan) for run in best])
    utilisation, n_chips, batch = columns[:, :3].T
    return TransformerCurve(np.asarray(training_flop, float), utilisation, n_chips, batch, columns[:, 3:], best)


def _degrees(plan: Plan) -> tuple[float, ...]:
    """Degrees tp, pp and dp of a plan [1]."""
    return number(plan.tp), number(plan.pp), number(plan.dp)


@dataclass(frozen=True)
class _Search:
    """Catalogue, fit, stated cells and plan question common to all designs."""

    chip_id: str
    hardware: Hardware | None
    fit: Fit
    cells: Mapping[str, Any]
    first: PlanQuestion

    def cluster(self, n_chips: float | int) -> Cluster:
        return cluster(self.chip_id, round(n_chips), hardware=self.hardware)

    def question(self, wanted: TransformerDesign, n_chips: float, space: PlanSpace) -> PlanQuestion:
        levels = {**self.first.levels, **model_levels(wanted.model)}
        return PlanQuestion(wanted.model, self.cluster(n_chips), wanted.batch, levels, space)


def _best(wanted: TransformerDesign, search: _Search) -> BestRun | None:
    """Best plan of a design over doublings of the chips, which stop once utilisation falls."""
    layers = number(wanted.model.n_layers)
    divisible = Transformer(layers, HEAD * MANY_HEADS, MANY_HEADS, SEQUENCE, vocab_size=VOCABULARY)
    space, chip = plan_space(wanted.factor, search.cells), search.first.cluster.chip
    rate = float(chip.peak(translate("precisions", search.cells["precision"]) or "bf16"))
    # n >= 6 N B / (C t_max)
    least = max(wanted.flop / (rate * wanted.deadline), 1.0)
    first = math.ceil(math.log2(least / wanted.factor))
    best = None
    for n_chips in (wanted.factor * 2.0 ** (first + k) for k in range(DOUBLINGS)):
        if not n_chips.is_integer():
            continue
        task = search.question(wanted, n_chips, space).task(search.fit, OOM)
        table = enumerate_plans(divisible, n_chips, wanted.batch, task.space)
        if not len(table):
            continue
        scores = score_plans(wanted.model, table, task.cluster, task.coefficients)
        allowed = (scores.memory <= task.memory_limit) & (scores.step_time <= wanted.deadline)
        row = int(np.argmin(np.where(allowed, scores.step_time, np.inf)))
        seconds = float(scores.step_time[row])
        # U = 6 N B / (n C t_step), of the 16-bit peak
        share = wanted.flop / (n_chips * float(chip.peak("bf16")) * seconds) if allowed[row] else 0.0
        if best is not None and share < best.share:
            break
        if share > (0.0 if best is None else best.share):
            # Documents state memory without the bytes of the framework.
            held = float(scores.memory[row]) - number(task.coefficients.framework_bytes)
            best = BestRun(share, n_chips, wanted.batch, wanted.model, table.plan(row), seconds, held)
    return best
