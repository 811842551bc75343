"""JSON document of `jaxscale shape`: best shape and plan for chips and a budget."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.jit import filter_jit
from jaxscale.calibration.memory_limit import ACCEPTED_RISK
from jaxscale.calibration.record import fit_of
from jaxscale.costs.step import step_time
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget
from jaxscale.designs.law_designs import law_design
from jaxscale.hardware.catalogue import cluster, load_hardware
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan_questions import plan_question


def shape_report(
    gpu: str,
    n_gpus: int,
    budget: Budget,
    *,
    fit: str = "default",
    template: Transformer | str = "llama3-8b",
    hardware: str | Path | None = None,
    cells: Mapping[str, Any] | None = None,
    bounds: Mapping[str, float | int] | None = None,
    oom_probability: float = ACCEPTED_RISK,
    like: Transformer | None = None,
    price_per_chip_hour: float | int | None = None,
    law: FittedLaw | None = None,
    n_draws: int = 4,
    progress: Callable[[str], None] | None = None,
    has_terms: bool = False,
) -> dict[str, Any]:
    """Best shape and plan as a JSON-serialisable document.

    Args:
        gpu: id of a chip of the catalogue.
        n_gpus: number of chips [1].
        budget: time, loss, compute or number of parameters.
        fit: name or file of the coefficients.
        template: model with the proportions, or its name in the catalogue.
        hardware: the user's own catalogue.
        cells: stated plan and software, by column of a runs table, for example `framework`.
        bounds: further upper bounds by name of `QUANTITIES`, in SI units.
        oom_probability: accepted probability of running out of memory [1].
        like: a built model, whose run under the same budget is reported beside the design.
        price_per_chip_hour: price of a chip and hour; adds `money` to the document [1/h].
        law: fitted law of the loss; adds the compute-optimal run of equal flop, and the sensitivity of the choice to
            drawn laws and alternative shape laws.
        n_draws: number of drawn laws [1].
        progress: callback with the name of each search under an alternative law.
        has_terms: whether the document has the terms of the design's step, `terms_s` [s].

    Returns:
        The document of `jaxscale shape --json`.

    Raises:
        InputError: an unknown name, a number out of range, or no design that keeps the bounds.
    """
    chips = load_hardware(hardware)
    machine = cluster(gpu, n_gpus, hardware=chips)
    base = model(template) if isinstance(template, str) else template
    question = plan_question(base, machine, None, {"precision": "bf16", **(cells or {}), "gpu": chips[gpu].id})
    common = {"template": base, "fit": fit_of(fit, chips), "levels": question.levels, "space": question.space}
    common |= {"bounds": bounds, "oom_probability": oom_probability}
    if law is None:
        design = best_design(machine, budget, **common, like=like)
        document = design.to_json()
    else:
        under = law_design(law, budget, machine, **common, n_draws=n_draws, progress=progress)
        design = under.design
        document = {**design.to_json(), "law": under.to_json()}
    if has_terms:
        best, coefficients = design.rounded, design.relaxed.problem.coefficients
        terms = filter_jit(step_time)(best.model, best.plan, machine, coefficients).terms()
        document["terms_s"] = {name: float(term) for name, term in terms.items()}
    if price_per_chip_hour is not None:
        document["money"] = price_per_chip_hour * document["chip_hours"]
    return {"gpu": chips[gpu].id, "n_gpus": n_gpus, "budget": budget.given(), **document}
