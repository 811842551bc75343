"""Sweeps over any axes: question, values of the axes and fixed inputs; in Python and as a specification in TOML.

```toml
of = "step_time"              # question; default `limits`
chunk = 65536                 # maximum number of points of a region
[fixed]                       # inputs without an axis
model = "llama3-8b"
gpu = "h100-80gb"
tp = 8
[axes.network_bandwidth]      # steps of equal ratio
from = 1e9
to = 1e12
n = 1000
[axes.dp]                     # or a list of values
values = [1, 2, 4, 8]
```
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.documents import check_keys, number_of, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.lazy import loaded
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.sweeps.question import Input, SweepSpec

QUESTIONS = {
    "step_time": "jaxscale.sweeps.step_points:STEP_TIME",
    "best_plan": "jaxscale.sweeps.searches:BEST_PLAN",
    "best_design": "jaxscale.sweeps.searches:BEST_DESIGN",
    "limits": "jaxscale.sweeps.limit_points:LIMITS",
    "serving": "jaxscale.sweeps.searches:SERVING",
    "islands": "jaxscale.sweeps.searches:ISLANDS",
}
"""Module of each question, loaded on demand."""

KEYS = ("of", "chunk", "axes", "fixed")
LIMITS_KEYS = ("scenario", "gpu", "plan")
"""Further keys of a sweep of the limits, equivalent to fixed inputs."""

LARGEST_CHUNK = 2**24
LARGEST_AXIS = 10**7
CHECKED_ALONE = 10_000
"""Maximum number of values of an axis for a check of each value; of longer numeric axes only the ends are checked
[1]."""


def blocks(shape: tuple[int, ...], chunk: int) -> tuple[int, ...]:
    """Number of values of each axis in a region of limited size: the last axes whole, then one axis divided evenly."""
    sizes: list[int] = []
    for count in reversed(shape):
        # Rounded up.
        pieces = -(-count // max(chunk, 1))
        sizes.insert(0, -(-count // pieces))
        # Values left for the earlier axes.
        chunk //= sizes[0]
    return tuple(sizes)


def sweep_spec(
    axes: Mapping[str, Any],
    of: str,
    fixed: Mapping[str, Any] | None = None,
    *,
    chunk: int | None = None,
    hardware: str | Path | None = None,
    where: str = "sweep",
) -> SweepSpec:
    """Checked specification of a sweep.

    Args:
        axes: values of each axis by the name of an input.
        of: the question, one of `QUESTIONS`.
        fixed: values of inputs without an axis.
        chunk: maximum number of points of a region; the question's default where None [1].
        hardware: file with the user's chips.
        where: source of the specification, for messages.

    Raises:
        InputError: an unknown question or input, a value out of range, missing inputs, or mutually exclusive inputs.
    """
    if of not in QUESTIONS:
        raise InputError(f"{where}: of = {of!r} is no question; {nearest(str(of), QUESTIONS)}")
    question, fixed = loaded(QUESTIONS[of]), dict(fixed or {})
    chunk = question.chunk if chunk is None else chunk
    if not isinstance(chunk, int) or isinstance(chunk, bool) or not 1 <= chunk <= LARGEST_CHUNK:
        raise InputError(
            f"{where}: chunk = {chunk!r} is out of range; expected a whole number from 1 to {LARGEST_CHUNK}"
        )
    inputs = question.inputs(load_hardware(hardware))
    if not axes:
        raise InputError(f"{where}: no axes; expected at least one, of {', '.join(list(inputs)[:6])}, ...")
    for name in (*axes, *fixed):
        if name not in inputs:
            raise InputError(f"{where}: {name}: not an input of {of}; {nearest(name, inputs)}")
    if both := [name for name in axes if name in fixed]:
        raise InputError(f"{where}: {both[0]} is an axis and fixed; expected one of them")
    checked = {name: _axis(f"{where}: axes.{name}", values, inputs[name]) for name, values in axes.items()}
    stated = {name: inputs[name].check(f"{where}: {name}", value) for name, value in fixed.items()}
    given = {*checked, *stated}
    for names in question.needed:
        if not given.intersection(names):
            raise InputError(f"{where}: {' or '.join(names)} is missing; expected it fixed or as an axis")
    for names in question.excluding:
        if len(both := [name for name in names if name in given]) > 1:
            raise InputError(f"{where}: {' and '.join(both)} say the same; expected one of them")
    shape = tuple(len(values) for values in checked.values())
    return SweepSpec(of, question, checked, stated, chunk, str(hardware or ""), blocks(shape, chunk))


def _axis(where: str, values: Any, asked: Input) -> np.ndarray:
    """Checked values of an axis, numbers or words without duplicates."""
    # Lists may mix words and numbers: numpy would turn all into text.
    listed = np.asarray(values, object) if isinstance(values, list | tuple) else np.asarray(values)
    if listed.ndim != 1 or not 1 <= len(listed) <= LARGEST_AXIS:
        raise InputError(f"{where}: expected a list of 1 to {LARGEST_AXIS:,} values")
    if len(listed) > CHECKED_ALONE and listed.dtype.kind in "fiu":
        low, high = (asked.check(where, end) for end in (listed.min().item(), listed.max().item()))
        checked = np.clip(listed.astype(float), low, high)
    else:
        checked = np.asarray([asked.check(where, value) for value in listed.tolist()])
    if len(np.unique(checked)) < len(checked):
        raise InputError(f"{where}: a value comes twice; expected each once")
    return checked


def read_spec(path: str | Path, hardware: str | Path | None = None) -> SweepSpec:
    """Specification of a sweep from a TOML file.

    Args:
        path: TOML file.
        hardware: file with the user's chips.

    Raises:
        InputError: the file is missing or malformed; one line.
    """
    table = read_toml(Path(path))
    of = table.get("of", "limits")
    check_keys(str(path), table, KEYS if of in QUESTIONS and of != "limits" else (*KEYS, *LIMITS_KEYS), "known")
    axes = table.get("axes", {})
    if not isinstance(axes, dict):
        raise InputError(f"{path}: axes = {axes!r} is no table; expected tables such as [axes.training_flop]")
    fixed: dict[str, Any] = {name: table[name] for name in ("scenario", "gpu") if name in table}
    for key in ("plan", "fixed"):
        stated = table.get(key, {})
        if not isinstance(stated, dict):
            raise InputError(f"{path}: {key} = {stated!r} is no table; expected [{key}] with inputs such as tp = 8")
        fixed |= stated
    if table.get("plan") == {}:
        fixed["pp"] = 1.0  # a stated plan, all of whose degrees are 1
    values = {name: _listed(f"{path}: axes.{name}", axis) for name, axis in axes.items()}
    return sweep_spec(values, of, fixed, chunk=table.get("chunk"), hardware=hardware, where=str(path))


def _listed(where: str, axis: Any) -> Any:
    """Values of an axis of a file: listed, or evenly spaced on a logarithmic scale."""
    if not isinstance(axis, dict) or not ({"from", "to", "n"} == set(axis) or {"values"} == set(axis)):
        raise InputError(f"{where}: expected either from, to and n, or values")
    if "values" in axis:
        if not isinstance(axis["values"], list):
            raise InputError(f"{where}.values: expected a list of numbers or words")
        return axis["values"]
    low, high = (number_of(f"{where}.{key}", axis[key], "a number above 0") for key in ("from", "to"))
    count = axis["n"]
    if not isinstance(count, int) or not 2 <= count <= LARGEST_AXIS:
        raise InputError(f"{where}.n = {count!r} is out of range; expected a whole number from 2 to {LARGEST_AXIS:,}")
    if not 0.0 < low < high < math.inf:
        raise InputError(f"{where}: from {low:g} to {high:g} is no range; expected 0 < from < to")
    return np.geomspace(low, high, count)
