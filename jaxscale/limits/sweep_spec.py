"""Specification of a sweep: axes over assumptions, training compute and plan degrees, read from TOML.

```toml
scenario = "default"          # where the fields without an axis come from
chunk = 65536                 # points in one file
[axes.training_flop]
from = 1e25
to = 1e32
n = 1000
[axes.network_latency]
values = [1e-6, 3e-6, 1e-5]
[plan]                        # left out, every point gets its best plan
tp_ff = 64
pp = 8
```
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.keys import check_keys, number_of
from jaxscale.base.resources import read_toml
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.scenario_library import (
    FIELDS,
    HIGHEST,
    LARGEST,
    LOWEST,
    checked_number,
    load_scenarios,
    on_chip,
    scenario_named,
)

PLAN_DEGREES = ("tp_ff", "tp_width", "ep", "dp", "pp", "n_microbatches", "interleave")
SIZE = "training_flop"
KEYS = ("scenario", "gpu", "chunk", "axes", "plan")
DEFAULT_CHUNK = 65536
LARGEST_CHUNK = 2**24
LARGEST_AXIS = 10**7


@dataclass(frozen=True)
class SweepSpec:
    """A product of axes.

    Attributes:
        scenario: fields without an axis.
        axes: values of each axis; the last one runs fastest.
        plan: degrees without an axis; None where every point gets its best plan.
        chunk: points in one file [1].
    """

    scenario: FrontierScenario
    axes: Mapping[str, np.ndarray]
    plan: Mapping[str, float] | None
    chunk: int

    @property
    def n_points(self) -> int:
        """Points in all [1]."""
        return int(np.prod([len(values) for values in self.axes.values()], dtype=object))

    @property
    def n_chunks(self) -> int:
        """Files in all [1]."""
        return -(-self.n_points // self.chunk)

    def columns(self, index: int) -> dict[str, np.ndarray]:
        """Values of every axis at the points of one chunk [point]."""
        first = index * self.chunk
        index_left = np.arange(first, min(first + self.chunk, self.n_points))
        columns: dict[str, np.ndarray] = {}
        for name, values in reversed(list(self.axes.items())):
            index_left, position = np.divmod(index_left, len(values))
            columns[name] = values[position]
        return columns

    def to_text(self) -> str:
        """The whole specification as text, equal for equal sweeps."""
        document = {
            "scenario": dataclasses.asdict(self.scenario),
            "axes": {name: values.tolist() for name, values in self.axes.items()},
            "plan": None if self.plan is None else dict(self.plan),
            "chunk": self.chunk,
        }
        return json.dumps(document, indent=1) + "\n"


def read_spec(path: str | Path, hardware: Hardware | None = None) -> SweepSpec:
    """A sweep from its file.

    Args:
        path: TOML file.
        hardware: catalogue of chips; the shipped one where None.

    Returns:
        The sweep.

    Raises:
        InputError: the file is missing or malformed; one line.
    """
    table = read_toml(Path(path))
    hardware = hardware or load_hardware()
    check_keys(str(path), table, KEYS, "known")
    chosen = scenario_named(str(table.get("scenario", "default")), load_scenarios(hardware=hardware))
    if "gpu" in table:
        chosen = on_chip(chosen, hardware[str(table["gpu"])])
    chunk = table.get("chunk", DEFAULT_CHUNK)
    if not isinstance(chunk, int) or not 1 <= chunk <= LARGEST_CHUNK:
        raise InputError(
            f"{path}: chunk = {chunk!r} is out of range; expected a whole number from 1 to {LARGEST_CHUNK}"
        )
    axes = table.get("axes")
    if not isinstance(axes, dict) or SIZE not in axes:
        raise InputError(f"{path}: no table [axes.{SIZE}]; expected one, with from, to and n or with values")
    values = {name: _axis(f"{path}: axes.{name}", name, axis) for name, axis in axes.items()}
    plan = table.get("plan")
    if plan is not None and not isinstance(plan, dict):
        raise InputError(f"{path}: plan = {plan!r} is no table; expected [plan] with degrees such as tp = 8")
    if plan is not None:
        check_keys(f"{path}: plan", plan, PLAN_DEGREES, "a degree of a plan")
        plan = {name: _degree(f"{path}: plan", name, value) for name, value in plan.items()}
    elif any(name in PLAN_DEGREES for name in values):
        plan = {}
    return SweepSpec(chosen, values, plan, chunk)


def _degree(where: str, name: str, value: Any) -> float:
    return number_of(f"{where}: {name}", value, "a number of at least 1", 1.0, LARGEST)


def _axis(where: str, name: str, axis: Any) -> np.ndarray:
    """Values of one axis: listed, or evenly spread over a logarithmic scale."""
    names = (SIZE, *FIELDS, *PLAN_DEGREES)
    if name not in names:
        raise InputError(f"{where}: not a field, a degree or {SIZE}; {nearest(name, names)}")
    if not isinstance(axis, dict) or not ({"from", "to", "n"} == set(axis) or {"values"} == set(axis)):
        raise InputError(f"{where}: expected either from, to and n, or values")
    if "values" in axis:
        values = axis["values"]
        if not isinstance(values, list) or not 1 <= len(values) <= LARGEST_AXIS:
            raise InputError(f"{where}.values: expected a list of numbers")
        return np.asarray([_value(where, name, value) for value in values])
    low, high, count = _value(where, name, axis["from"]), _value(where, name, axis["to"]), axis["n"]
    if not isinstance(count, int) or not 2 <= count <= LARGEST_AXIS:
        raise InputError(f"{where}.n = {count!r} is out of range; expected a whole number from 2 to {LARGEST_AXIS:,}")
    if not 0.0 < low < high:
        raise InputError(f"{where}: from {low:g} to {high:g} is no range; expected 0 < from < to")
    return np.geomspace(low, high, count)


def _value(where: str, name: str, value: Any) -> float:
    if name in PLAN_DEGREES:
        return _degree(where, name, value)
    if name == SIZE:
        return number_of(f"{where}: {name}", value, f"a number from {LOWEST:g} to {HIGHEST:g}", LOWEST, HIGHEST)
    return checked_number(where, name, value)
