"""Designs under a fitted law of the loss: time-optimal beside compute-optimal run, and sensitivity to the law."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import ACCEPTED_RISK
from jaxscale.calibration.record import AnyFit
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget
from jaxscale.designs.design_result import DesignChoice
from jaxscale.designs.time_to_loss import Laws, laws_of
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.fitted_law import FittedLaw, LawOptimum
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN, ShapeLaw, law_errors, law_table, shape_law
from jaxscale.models.transformer import Transformer, embedding_params
from jaxscale.plans.enumerate import PlanSpace

CHOICES = ("n_layers", "d_model", "aspect", "params", "tokens", "tokens_per_param", "global_batch_tokens", "loss")
"""Figures of a design that a sensitivity compares."""

SAFE = 1.15
"""Maximum ratio of largest to smallest value among the designs for a safe choice [1]."""

FEW_STARTS = 24
"""Number of rough searches of a design under a drawn law: the best design of the best law is already known [1]."""


@dataclass(frozen=True)
class LawDesign:
    """Best run for a budget on a cluster under a fitted law, beside the compute-optimal run of equal flop.

    Attributes:
        design: the best design under the law.
        flop: training compute of the design, 6 N D, with the parameters N as counted by the law [flop].
        compute: compute-optimal parameters and tokens of equal flop.
        sensitivity: smallest and largest value among designs under alternative laws, by name of the choice (`CHOICES`).
        alternatives: choices of the designs under alternative laws, by name of the law.
    """

    design: DesignChoice
    flop: float
    compute: LawOptimum
    sensitivity: Mapping[str, tuple[float, float]]
    alternatives: Mapping[str, Mapping[str, float]]

    @property
    def safe(self) -> dict[str, bool]:
        """Whether each choice varies by at most the factor `SAFE` between the laws."""
        return {name: bool(hi <= SAFE * lo) for name, (lo, hi) in self.sensitivity.items()}

    def to_json(self) -> dict[str, Any]:
        """Optima and sensitivity as plain numbers, for JSON."""
        compute = {"n_params": self.compute.n_params, "n_tokens": self.compute.n_tokens, "loss": self.compute.loss}
        return {
            "design": design_figures(self.design),
            "flop": self.flop,
            "compute_optimal": {
                name: dict(zip(("value", "lo", "hi"), ends, strict=True)) for name, ends in compute.items()
            },
            "sensitivity": {
                name: {"lo": lo, "hi": hi, "safe": self.safe[name]} for name, (lo, hi) in self.sensitivity.items()
            },
            "alternatives": {name: dict(figures) for name, figures in self.alternatives.items()},
        }


def design_figures(choice: DesignChoice) -> dict[str, float]:
    """Values of the choices `CHOICES` of an integer design: sizes, tokens, batch and loss."""
    figures = choice.relaxed.problem.figures(choice.rounded.values)
    shape = choice.rounded.model
    depth, width = number(shape.n_layers), number(shape.d_model)
    more = {"n_layers": depth, "d_model": width, "aspect": width / depth}
    more["tokens_per_param"] = figures["tokens"] / figures["params"]
    return {name: float({**figures, **more}[name]) for name in CHOICES}


def shape_ends() -> dict[str, ShapeLaw]:
    """Alternative laws of loss by aspect ratio: Kaplan's, Gemstones', and Gemstones' plus or minus the fit error."""
    entry, error = law_table("shape", "gemstones"), law_errors("shape", "gemstones")
    laws = {"shape law of Kaplan": shape_law("kaplan"), "shape law of Gemstones": shape_law("gemstones")}
    for name, sign in (("narrower", -1.0), ("wider", 1.0)):
        # Value minus or plus the error of the fit.
        ends = {"ratio": entry["ratio"] + sign * error["ratio"], "drift": entry["drift"] + sign * error["drift"]}
        laws[f"shape law of Gemstones, {name} end"] = ShapeLaw(**{**entry, **ends})
    return laws


def law_design(
    law: FittedLaw,
    budget: Budget,
    cluster: Cluster,
    *,
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    template: Transformer | str = "llama3-8b",
    space: PlanSpace | None = None,
    bounds: Mapping[str, float | int] | None = None,
    oom_probability: float = ACCEPTED_RISK,
    n_draws: int = 4,
    shapes: bool = True,
    progress: Callable[[str], None] | None = None,
) -> LawDesign:
    """Best model, tokens and batch of a budget on a cluster under a fitted law, beside the compute-optimal run.

    Args:
        law: law of the loss.
        budget: time, loss, compute or number of parameters.
        cluster: chips and network.
        fit: calibration of the step time.
        levels: levels of the planned run, whose fitted effects apply.
        template: proportions of the model.
        space: choices of plans; by default all plans of the framework.
        bounds: further upper bounds by name of `QUANTITIES`, in SI units.
        oom_probability: accepted probability of running out of memory [1].
        n_draws: number of random draws of the fitted law, each with an alternative design [1].
        shapes: whether alternative designs under different shape laws are computed.
        progress: callback with the name of each search.

    Returns:
        The two optima, and the sensitivity of the choice to the law.

    Raises:
        InputError: as `best_design`.
    """
    rules = laws_of(law)
    common = {"fit": fit, "levels": levels, "template": template, "space": space, "bounds": bounds}
    common["oom_probability"] = oom_probability
    choice = best_design(cluster, budget, laws=rules, **common)
    others: dict[str, Laws] = {}
    if shapes:
        others |= {name: replace_shape(rules, shape) for name, shape in shape_ends().items()}
    for draw in evenly(len(law.fitted.draws), n_draws):
        others[f"draw {draw}"] = laws_of(law, draw)
    alternatives = {}
    for name, other in others.items():
        if progress:
            progress(f"design under another law: {name}")
        alternatives[name] = design_figures(best_design(cluster, budget, laws=other, n_starts=FEW_STARTS, **common))
    told = design_figures(choice)
    every = [told, *alternatives.values()]
    spread = {name: (min(one[name] for one in every), max(one[name] for one in every)) for name in CHOICES}
    # Embeddings outside the count of the law.
    outside = (1.0 - number(rules.embeddings)) * number(embedding_params(choice.rounded.model))
    # C = 6 N D in the count of the law.
    flop = FLOP_PER_PARAM_TOKEN * (told["params"] - outside) * told["tokens"]
    return LawDesign(choice, flop, law.optimum(flop), spread, alternatives)


def evenly(count: int, wanted: int) -> Sequence[int]:
    """At most `wanted` evenly spaced indices from 0 to `count` - 1."""
    if wanted < 0:
        raise InputError(f"draws = {wanted} is out of range; expected 0 or more")
    return sorted(set(np.linspace(0, count - 1, min(wanted, count)).round().astype(int).tolist())) if wanted else []


def replace_shape(laws: Laws, shape: ShapeLaw) -> Laws:
    """Copy of the laws with a different law of the loss by aspect ratio."""
    return replace(laws, shape=shape)
