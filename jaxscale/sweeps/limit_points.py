"""Limits of scaling at the points of a sweep: utilisation on a stated plan, or on the best plan of each point."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxscale.base.domains import Bound
from jaxscale.hardware.catalogue import Hardware
from jaxscale.limits import (
    PLAN_DEGREES,
    FrontierScenario,
    checked_number,
    load_scenarios,
    on_chip,
    scenario_named,
    utilisation_of_best_plans,
    utilisation_of_plans,
)
from jaxscale.sweeps.question import (
    ArrayFunction,
    Columns,
    Input,
    Question,
    Result,
    SweepSpec,
    chip_input,
    fields_of,
    number_input,
    word_input,
)

SIZE = "training_flop"
SIZES = Bound(1e18, 1e42)
"""Range of valid training computes [flop]."""

DEGREES = Bound(1.0, 1e30)
UNITS = {
    "_flop": "flop", "_flops": "flop/s", "_bandwidth": "byte/s", "_bytes": "byte", "_latency": "s", "_time": "s",
    "_batch": "token",
}  # fmt: skip
"""Unit of a field of a scenario by the end of its name; else a pure number."""

FIELDS = fields_of(FrontierScenario)


def _field(name: str) -> Input:
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "1")
    return Input(name.replace("_", " "), unit, lambda where, value: checked_number(where, name, value))


def _inputs(hardware: Hardware) -> dict[str, Input]:
    library = load_scenarios(hardware=hardware)
    return {
        SIZE: number_input("training compute", SIZES, "flop"),
        "scenario": word_input("scenario", lambda name: scenario_named(name, library) and name),
        **chip_input(hardware),
        **{name: _field(name) for name in FIELDS},
        **{name: number_input("degree of a plan", DEGREES) for name in PLAN_DEGREES},
    }


def _has_plan(spec: SweepSpec) -> bool:
    return any(name in PLAN_DEGREES for name in (*spec.axes, *spec.fixed))


def _results(spec: SweepSpec) -> dict[str, Result]:
    results = {
        "utilisation": Result("model flop over the peak of all chips"),
        "batch_time": Result("time of a batch", "s"),
        "feasible": Result("whether the run ends in time", ""),
    }
    if _has_plan(spec):
        return results
    chips = Result("natural logarithm of the chips of the best plan")
    return {**results, "log_chips": chips, "residual": Result("KKT residual of the best plan")}


def _scenarios(spec: SweepSpec) -> FrontierScenario:
    """Scenario of each combination of a scenario and a chip, every leaf an array [scenario, chip]."""
    library = load_scenarios(hardware=spec.catalogue)
    named = [scenario_named(name, library) for name in spec.words("scenario") or ["default"]]
    chips = [spec.catalogue[name] for name in spec.words("gpu")]
    rows = [[on_chip(one, chip) for chip in chips] or [one] for one in named]
    return jax.tree.map(lambda *leaves: jnp.asarray(leaves, float).reshape(len(named), -1), *sum(rows, []))


def _evaluation(spec: SweepSpec) -> ArrayFunction:
    numbers = {name: value for name, value in spec.fixed.items() if not isinstance(value, str)}
    given = [name for name in FIELDS if name in spec.axes or name in numbers]

    def points(columns: Columns) -> Columns:
        first = next(iter(columns.values()))

        def column(name: str, usual: Any = math.nan) -> Any:
            return columns[name] if name in columns else jnp.full_like(first, numbers.get(name, usual))

        # Words arrive as indices.
        row, chip = (column(name, 0.0).astype(int) if name in columns else 0 for name in ("scenario", "gpu"))
        base = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[row, chip], first.shape), _scenarios(spec))
        scenario = dataclasses.replace(base, **{name: column(name) for name in given})
        if not _has_plan(spec):
            return utilisation_of_best_plans(column(SIZE), scenario)
        degrees = jnp.stack([column(name, 1.0) for name in PLAN_DEGREES], axis=-1)
        return utilisation_of_plans(column(SIZE), scenario, degrees)

    return ArrayFunction(points)


LIMITS = Question("utilisation near the limits of scaling", _inputs, ((SIZE,),), (), _results, _evaluation)
