"""Published training runs against the plans chosen for the same model, batch and cluster."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.resources import data_path, read_toml
from jaxscale.calibration.store import AnyFit, fit_of
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.best_plan import answered
from jaxscale.plans.choice import PlanChoice
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import DECIDED, Plan
from jaxscale.plans.plan_questions import plan_question


@functools.cache
def published_designs() -> dict[str, dict[str, Any]]:
    """Published runs by name, as `data/published_designs.toml` has them."""
    return read_toml(data_path("published_designs.toml"))["designs"]


@dataclass(frozen=True)
class Comparison:
    """A published run beside the plan chosen for the same model, batch and cluster.

    Attributes:
        name: of the run.
        published: plan of the run.
        measured: published step time [s].
        predicted: step time of the published plan, by the model [s].
        memory: peak of the published plan, by the model [byte].
        choice: plans chosen for the same model, batch and chips, with the same attention kernel.
    """

    name: str
    published: Plan
    measured: float
    predicted: float
    memory: float
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
        """Published and chosen value of every field that differs."""
        first, second = self.published.words(), self.choice.best.plan.words()
        return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def compare_design(name: str, fit: AnyFit = "default") -> Comparison:
    """Choose a plan for a published run.

    Args:
        name: of `published_designs`.
        fit: a fit, or the name or file of a fit.

    Returns:
        Published and chosen plan with step times.

    Raises:
        InputError: unknown name; says which there are.
    """
    known = published_designs()
    if name not in known:
        raise InputError(f"published design {name!r} is unknown; expected one of {', '.join(known)}")
    design = known[name]
    shape, machine = model(design["model"], seq_len=design["seq_len"]), cluster(design["gpu"], design["n_gpus"])
    record, stated = fit_of(fit), design["plan"]
    cells = {"gpu": design["gpu"], "precision": stated.get("precision", "bf16"), "framework": design.get("framework")}
    question = plan_question(shape, machine, design["global_batch_size_seqs"], cells)
    undecided = {name: getattr(Plan(), name) for name in DECIDED}
    plan = dataclasses.replace(question.space.software, **{**undecided, **stated})
    fitted = record.coefficients(question.levels, design["n_gpus"])
    choice = answered(question._replace(space=PlanSpace(software=plan)), record)
    seconds, peak = (number(part(shape, plan, machine, fitted).total) for part in (step_time, memory))
    return Comparison(name, plan, design["step_time_s"], seconds, peak, choice)
