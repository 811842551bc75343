"""Published training runs against the chosen plans for the model, batch and cluster of each run."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxscale.base.arrays import number
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import check_known
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.best_plan import answered
from jaxscale.plans.choice import PlanChoice
from jaxscale.plans.plan import DECIDED, SWITCHES, Plan
from jaxscale.plans.plan_questions import PlanQuestion, plan_question


@functools.cache
def published_designs() -> dict[str, dict[str, Any]]:
    """Published runs by name, from `data/published_designs.toml`."""
    return read_toml(data_path("published_designs.toml"))["designs"]


@dataclass(frozen=True)
class Comparison:
    """Published run beside the chosen plan for equal model, batch and cluster.

    Attributes:
        name: name of the run.
        published: plan of the run.
        measured: published step time [s].
        predicted: predicted step time of the published plan [s].
        memory: predicted peak memory of the published plan [byte].
        oom_probability: probability that the published plan runs out of memory [1].
        choice: chosen plans for equal model, batch and chips, with the attention kernel of the run.
    """

    name: str
    published: Plan
    measured: float
    predicted: float
    memory: float
    oom_probability: float
    choice: PlanChoice

    @property
    def error(self) -> float:
        """Predicted over published step time of the published plan, less 1 [1]."""
        return self.predicted / self.measured - 1.0

    @property
    def gain(self) -> float:
        """Share of the predicted step time that the chosen plan would save [1]."""
        return 1.0 - self.choice.best.step_time / self.predicted

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Published and chosen value of every field with different values."""
        first, second = self.published.words(), self.choice.best.plan.words()
        return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def asked(design: Mapping[str, Any]) -> tuple[PlanQuestion, Plan]:
    """Question for a plan from a published run, with the software of the run, and the published plan.

    Args:
        design: table of a run in `published_designs`.
    """
    shape, machine = model(design["model"], seq_len=design["seq_len"]), cluster(design["gpu"], design["n_gpus"])
    cells = {"gpu": design["gpu"], "precision": "bf16", "framework": design.get("framework"), **design.get("cells", {})}
    question = plan_question(shape, machine, design["global_batch_size_seqs"], cells)
    # The software of a run may state the recomputation.
    undecided = {name: getattr(Plan(), name) for name in DECIDED if name not in SWITCHES["recompute"].values()}
    plan = dataclasses.replace(question.space.software, **{**undecided, **design["plan"]})
    return question._replace(space=dataclasses.replace(question.space, software=plan)), plan


def compare_design(name: str, fit: AnyFit = "default") -> Comparison:
    """Choose a plan for a published run and compare the two.

    Args:
        name: name of a run in `published_designs`.
        fit: a fit, or the name or file of a fit.

    Returns:
        Published and chosen plan with step times.

    Raises:
        InputError: unknown name; lists the valid names.
    """
    known = published_designs()
    check_known("published design", name, known)
    record, (question, plan) = fit_of(fit), asked(known[name])
    fitted = record.coefficients(question.levels, question.n_chips)
    seconds, peak = (number(part(question.model, plan, question.cluster, fitted).total) for part in (step_time, memory))
    risk = float(probability_of_oom(peak, number(question.cluster.chip.hbm_bytes), question.usable(record)))
    return Comparison(name, plan, known[name]["step_time_s"], seconds, peak, risk, answered(question, record))
