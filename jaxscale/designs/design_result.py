r"""Results of `best_design`: integer design, relaxed optimum, shadow prices and Pareto front, as text and JSON.

Shadow prices are the elasticities of the optimal objective in each bound and resource. By the envelope theorem the
slope of the optimal objective in any number p of the problem is the slope of the Lagrangian with point and multipliers
held: $dF^*/dp = \partial f/\partial p + \sum_j \lambda_j\, \partial g_j/\partial p$.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from jaxscale.base.arrays import number
from jaxscale.base.show import Printout, printed
from jaxscale.designs.quantities import Design, DesignProblem
from jaxscale.designs.rounding import Rounded
from jaxscale.designs.shape_problem import ShapeProblem
from jaxscale.models.transformer import n_active_params
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.problems import Goals, Optimum, Problems
from jaxscale.plans.plan import in_short

BEATEN = -0.01
"""Integer gap below which the integer design is better than the continuous optimum by more than smoothing error [1]."""


@dataclass(frozen=True)
class RelaxedDesign:
    """Continuous optimum of the smooth model, with degrees and sizes between integers.

    Attributes:
        design: model, plan and tokens.
        values: logarithms of the quantities of the problem, in SI units [quantity].
        objective: weighted sum of the log quantities, the minimum of the search [1].
        residual: residual of the Karush-Kuhn-Tucker (KKT) conditions of an optimum [1].
        converged: whether the residual certifies an optimum.
        point: coordinates of the optimum in the unit cube of the search [coordinate].
        multipliers: Lagrange multipliers of the bounds [constraint].
        problem: the design problem.
    """

    design: Design
    values: np.ndarray
    objective: float
    residual: float
    converged: bool
    point: np.ndarray = field(repr=False)
    multipliers: np.ndarray = field(repr=False)
    problem: DesignProblem | ShapeProblem = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Sizes, degrees and quantities of the continuous optimum, for JSON."""
        shape, plan = self.design.model, self.design.plan
        sizes = {name: number(getattr(shape, name)) for name in ("n_layers", "d_model", "d_ff", "n_heads")}
        degrees = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "micro_batch_size", "n_microbatches")
        words = {name: number(getattr(plan, name)) for name in (*degrees, "recompute_full")}
        return {**sizes, "plan": words, **self.problem.figures(self.values), "converged": self.converged}


@printed(lambda choice: _shown(choice))
@dataclass(frozen=True, repr=False)
class DesignChoice:
    """Best design for a budget: result of `best_design`.

    Attributes:
        rounded: the best integer design, evaluated by the exact model.
        relaxed: the continuous optimum before rounding.
        prices: shadow prices, d ln objective / d ln of every bound and resource, at the continuous optimum [1].
        goals: objective and bounds.
        trajectory: objective of every start of the rough search [step, start].
        path: points of every start along the rough search [step, start, coordinate].
        like: best run of a built model under the same budget, if given.
    """

    rounded: Rounded
    relaxed: RelaxedDesign
    prices: dict[str, float]
    goals: Goals = field(repr=False)
    trajectory: np.ndarray = field(repr=False)
    path: np.ndarray = field(repr=False)
    like: Rounded | None = None

    @property
    def like_cost(self) -> float:
        """Relative excess of the objective of the built model `like` over the objective of the design [1]."""
        # Objectives are logs.
        return float("nan") if self.like is None else float(np.expm1(self.like.objective - self.rounded.objective))

    @property
    def gap(self) -> float:
        """Relative excess of the objective of the integer design over the objective of the relaxed optimum [1].

        The gap may be negative, because the smooth model is not a lower bound of the exact model.
        """
        return float(np.expm1(self.rounded.objective - self.relaxed.objective))

    @property
    def gap_parts(self) -> dict[str, float]:
        """Gap by cause [1]: `rounding` to integers (smooth model), and `smoothing` (exact against smooth model)."""
        return {
            "rounding": float(np.expm1(self.rounded.smooth_objective - self.relaxed.objective)),
            "smoothing": float(np.expm1(self.rounded.objective - self.rounded.smooth_objective)),
        }

    @property
    def certified(self) -> bool:
        """Whether the KKT residual certifies the continuous optimum and the integer design is not better."""
        return self.relaxed.converged and self.gap >= BEATEN

    @property
    def certificate(self) -> str:
        """Sentence on the KKT residual of the continuous optimum and the gap of the integer design."""
        parts = ", ".join(f"{name} {part:+.2%}" for name, part in self.gap_parts.items())
        state = "certified as a local optimum" if self.certified else "not certified"
        beaten = ", and the integer design is better" if self.gap < BEATEN else ""
        return (
            f"relaxed optimum {state} (KKT residual {self.relaxed.residual:.1e}{beaten}); integer gap {self.gap:+.2%}"
            f" ({parts}), the best of {self.rounded.evaluated:,} designs, without proof that there is no better one"
        )

    def to_json(self) -> dict[str, Any]:
        """Document of `jaxscale shape --json`."""
        objective = [name for name, weight in zip(self.goals.names, self.goals.weights, strict=True) if weight]
        like = {} if self.like is None else {"like": {**self._figures(self.like), "cost": self.like_cost}}
        return {
            **self._figures(self.rounded),
            **like,
            "objective": objective,
            "gradient_norm": self.relaxed.residual,
            "relaxed_optimum": self.relaxed.to_json(),
            "integer_gap": self.gap,
            "integer_gap_parts": self.gap_parts,
            "shadow_prices": self.prices,
            "designs_scored": self.rounded.evaluated,
            "certified": self.certified,
            "certificate": self.certificate,
        }

    def _figures(self, found: Rounded) -> dict[str, Any]:
        """Sizes, plan and figures of an integer design as plain numbers."""
        names = ("n_layers", "d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim", "seq_len", "vocab_size")
        names += ("n_experts", "moe_top_k", "d_ff_expert")
        sizes: dict[str, float] = {name: round(number(getattr(found.model, name))) for name in names}
        sizes["active_params"] = number(n_active_params(found.model))
        return {**sizes, "plan": found.plan.words(), **self.relaxed.problem.figures(found.values)}

    def summary(self) -> str:
        """Best design as a few lines of text: parameters, sizes, plan, outcome, certificate."""
        document = self.to_json()
        plan = ", ".join(f"{name} {value}" for name, value in document["plan"].items())
        sizes = ", ".join(f"{name} {document[name]}" for name in ("n_layers", "d_model", "d_ff", "n_heads"))
        return "\n".join(
            [
                f"{document['params']:.4g} parameters: {sizes}",
                f"plan: {plan}",
                self.relaxed.problem.outcome(self.rounded.values),
                self.certificate,
            ]
        )


def _shown(choice: DesignChoice) -> Printout:
    """Sizes, plan and figures of the design, beside the continuous optimum."""
    document = choice.to_json()
    relaxed = document["relaxed_optimum"]
    names = [name for name, value in document.items() if isinstance(value, int | float) and name in relaxed]
    rows = [(name, f"{document[name]:.5g}", f"{relaxed[name]:.5g}") for name in names]
    prices = sorted(choice.prices.items(), key=lambda price: -abs(price[1]))[:3]
    told = ", ".join(f"{name} {price:+.3f} %" for name, price in prices)
    notes = (f"1 % more of a bound changes the objective by: {told}", choice.certificate)
    title = f"DesignChoice: {document['params']:.3g} parameters, {in_short(document['plan'])}"
    return Printout(title, ("", "design", "continuous optimum"), rows, notes)


class Front(NamedTuple):
    """Pareto front: relaxed optima for a range of values of a bound.

    Attributes:
        bounds: value of the bound [front].
        quantities: quantities of the optima by name, in SI units [front].
        prices: d ln objective / d ln bound [front].
        residuals: KKT residuals; a large residual marks an unreliable point [front].
        designs: the continuous designs.
    """

    bounds: Float[np.ndarray, " front"]
    quantities: dict[str, np.ndarray]
    prices: Float[np.ndarray, " front"]
    residuals: Float[np.ndarray, " front"]
    designs: list[Design]


def pareto_front(relaxed: RelaxedDesign, wanted: Goals, name: str, bounds: Sequence[float]) -> Front:
    """Relaxed optima for a range of values of a bound, each search started from the preceding optimum.

    Args:
        relaxed: an optimum to start from.
        wanted: goals of the optimum.
        name: name of the varied bound.
        bounds: values of the bound, in SI units, in order.

    Returns:
        The front as arrays.
    """
    point, problem, index = relaxed.point, Problems.of([relaxed.problem]), wanted.names.index(name)
    values, prices, residuals, designs = [], [], [], []
    for bound in bounds:
        # Bounds of goals are logs.
        optimum = polish(point[None], problem, wanted.with_bound(name, float(np.log(bound))))
        # The following bound starts from the optimum.
        point = optimum.point[0]
        values.append(np.exp(optimum.values[0]))
        # d ln objective / d ln bound = -multiplier
        prices.append(-optimum.multipliers[0, index])
        residuals.append(optimum.residual[0])
        designs.append(relaxed.problem.design_at(point))
    columns = dict(zip(wanted.names, np.asarray(values).T, strict=True))
    return Front(np.asarray(bounds, float), columns, np.asarray(prices), np.asarray(residuals), designs)


AnyProblem = TypeVar("AnyProblem", bound=eqx.Module)

STEP = 1e-4
"""Log change of a resource in the central difference [1]."""

Path = Callable[[Any], Any]

RESOURCES: dict[str, tuple[Path, int | None]] = {
    "n_chips": (lambda s: s.cluster.n_chips, None),
    "peak_flops": (lambda s: s.cluster.chip.peak_flops, None),
    "hbm_bandwidth": (lambda s: s.cluster.chip.hbm_bandwidth, None),
    "scale_up_bandwidth": (lambda s: s.cluster.network.bandwidth, 0),
    "scale_out_bandwidth": (lambda s: s.cluster.network.bandwidth, 1),
    "scale_up_latency": (lambda s: s.cluster.network.latency, 0),
    "scale_out_latency": (lambda s: s.cluster.network.latency, 1),
}
"""Numbers of a problem with a price, by name; an index selects a network level."""

RUN_RESOURCES = {**RESOURCES, "failure_rate": (lambda s: s.laws.failure.failures_per_chip_second, None)}
"""Numbers with a price, for a problem that includes the length of the run."""


def with_more(problem: AnyProblem, resource: str, log_change: float) -> AnyProblem:
    """Copy of a design problem with a resource multiplied by exp(`log_change`)."""
    path, index = RUN_RESOURCES[resource]
    # A copy: the problem keeps the leaf.
    values = np.array(path(problem), float)
    values[... if index is None else (..., index)] *= np.exp(log_change)
    return eqx.tree_at(path, problem, values)


def shadow_prices(optimum: Optimum, row: int, problem: DesignProblem | ShapeProblem, wanted: Goals) -> dict[str, float]:
    """Shadow prices: elasticity of the optimal objective with respect to every bound and resource.

    Args:
        optimum: stationary point of the Lagrangian.
        row: index of the candidate.
        problem: problem of the optimum.
        wanted: objective and bounds.

    Returns:
        d ln objective / d ln bound for each bound, then d ln objective / d ln resource for each resource [1].
    """
    multipliers = optimum.multipliers[row]
    # dF* / d ln b = -lambda
    prices = {f"bound_on_{wanted.names[index]}": -float(multipliers[index]) for index in wanted.bounded()}
    resources = RUN_RESOURCES if isinstance(problem, DesignProblem) else RESOURCES
    changed = [with_more(problem, name, sign * STEP) for name in resources for sign in (1.0, -1.0)]
    # Point and multipliers are held: envelope theorem.
    values = Problems.of(changed).values(np.repeat(optimum.point[row][None], len(changed), axis=0))
    # d(f + lambda g) / d ln p by central differences.
    slopes = (values[0::2] - values[1::2]) @ (wanted.weights + multipliers) / (2.0 * STEP)
    return {**prices, **{name: float(slope) for name, slope in zip(resources, slopes, strict=True)}}
