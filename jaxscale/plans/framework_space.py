"""Plan spaces and rules of frameworks: software choices are equal in all plans, unsupported plans are left out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import END_STAGES, Plan
from jaxscale.plans.rules import RULES, Rule, divides
from jaxscale.runs.defaults import default_for, framework_defaults
from jaxscale.runs.software import software_of
from jaxscale.tables.words import respelt, translate

COUNTS = (
    *("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch_size", "n_microbatches", "zero_stage", "shard_group"),
    *END_STAGES,
)
"""Columns of a row that fix a count of the plan."""


_RULES = (
    Rule(
        "whole key/value heads",
        lambda tp, n_kv_heads: divides(tp, n_kv_heads),
        lambda tp, n_kv_heads: f"tp = {tp:g} must divide n_kv_heads = {n_kv_heads:g}",
    ),
    Rule(
        "untied pipelines",
        lambda pp, tied_embeddings: np.equal(pp, 1) | np.equal(tied_embeddings, 0),
        lambda pp: f"pp = {pp:g} needs embeddings that are not tied",
    ),
    Rule(
        "equal stages",
        lambda pp, vpp, n_layers, first_stage_layers, last_stage_layers: (
            divides(pp * vpp, n_layers) & np.equal(first_stage_layers + last_stage_layers, 0)
        ),
        lambda pp, vpp, n_layers: f"pp * vpp = {pp * vpp:g} must divide n_layers = {n_layers:g}",
    ),
    Rule(
        "even ends",
        lambda first_stage_layers, last_stage_layers: np.equal(first_stage_layers + last_stage_layers, 0),
        lambda: "layers of the first and the last stage cannot be stated",
    ),
    Rule(
        "microbatches of stages",
        lambda pp, n_microbatches: divides(pp, n_microbatches),
        lambda pp, n_microbatches: f"n_microbatches = {n_microbatches:g} must be a multiple of pp = {pp:g}",
    ),
    Rule(
        "whole gradients of stages",
        lambda zero_stage, pp: np.less(zero_stage, 2) | np.equal(pp, 1),
        lambda zero_stage: f"ZeRO stage {zero_stage:g} needs pp = 1",
    ),
    Rule(
        "experts on replicas",
        lambda ep, dp: divides(ep, dp),
        lambda ep, dp: f"ep = {ep:g} must divide dp = {dp:g}",
    ),
)

FRAMEWORK_RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}
"""Framework rules by name; each rule needs the fields that it names."""


def framework_space(framework: str | None, precision: str = "bf16") -> PlanSpace:
    """Space of the plans of a framework: software choices are fixed, all decisions are free.

    Args:
        framework: a framework of `data/frameworks.toml`, such as `nemo`; every unknown name counts as an unnamed
            framework.
        precision: number format of the weight matmuls.

    Returns:
        The space.

    Raises:
        InputError: unknown precision; lists the valid names.
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision = {precision!r}; expected one of {', '.join(PRECISIONS)}")
    cells = {"framework": framework and respelt("framework", framework), "precision": precision}
    return stated_space(cells, software_of(cells).plan)


def stated_space(cells: Mapping[str, Any], software: Plan) -> PlanSpace:
    """Space of the plans that agree with the cells of a row.

    Args:
        cells: values by column, None or absent for an open decision.
        software: plan with the software choices of the row.

    Returns:
        The space: stated decisions only, and for open decisions the choices that the framework of the row can run.
    """
    framework = cells.get("framework")
    # A stated count is the only admitted value.
    stated = {name: (round(cells[name]),) for name in COUNTS if cells.get(name) is not None}
    recomputes = any(cells.get(name) is not None for name in ("activation_recompute", "recompute_modules"))
    stated_flag = cells.get("sequence_parallel")
    degrees = {name: tuple(values) for name, values in default_for("degrees", framework, None).items()}
    rules = tuple(FRAMEWORK_RULES[name] for name in default_for("plan_rules", framework, None))
    return PlanSpace(
        # Stated values replace the framework's.
        **{"zero_stage": tuple(default_for("zero_stages", framework, None)), **degrees, **stated},  # pyright: ignore
        rules=(*RULES, *rules),
        sequence_parallel=(False, True) if stated_flag is None else (bool(stated_flag),),
        schedule=_schedules(cells.get("schedule"), framework),
        software=software,
        # A stated dispatcher holds for every schedule.
        dispatchers={} if cells.get("moe_dispatcher") else _dispatchers(framework),
        # Stated recomputation is in the software plan.
        **({"recompute": None} if recomputes else {}),
    )


def _schedules(stated: str | None, framework: str | None) -> tuple[str, ...]:
    """Schedules of a pipeline: the stated schedule, or the schedules of a framework."""
    if stated is None:
        return tuple(default_for("schedules", framework, None))
    word = translate("schedule", stated) or stated
    # Interleaving is 1F1B with several virtual stages, a separate column of the row.
    return ("1f1b", "interleaved") if word == "1f1b" else (word,)


def _dispatchers(framework: str | None) -> dict[str, str]:
    """Token dispatcher set by a schedule, by schedule, from the facts about a framework."""
    tables = framework_defaults()
    facts = [fact for name in ("default", framework or "") for fact in tables.get(name, {}).get("facts", [])]
    # Facts conditional on the schedule alone.
    of_schedule = [fact for fact in facts if set(fact["when"]) == {"schedule"} and "moe_dispatcher" in fact["set"]]
    return {fact["when"]["schedule"]: fact["set"]["moe_dispatcher"] for fact in of_schedule}
