"""Inputs of swept questions: names, units and ranges of models, chips, networks and plans."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.arrays import with_fields
from jaxscale.base.domains import Bound
from jaxscale.base.errors import InputError, nearest
from jaxscale.calibration.record import load_fit
from jaxscale.hardware.catalogue import ChipEntry, Hardware
from jaxscale.hardware.cluster import Chip, Cluster, Network
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import described_model
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import ARGUMENTS
from jaxscale.plans.plan_domain import DEGREE

Point = Mapping[str, Any]
"""Values of the inputs at a point, by name: axes and fixed inputs."""


class Input(NamedTuple):
    """Input of a question.

    Attributes:
        what: short description of the input.
        unit: unit of a number; empty for a word.
        check: function of a source for messages and a value: the normalised value, or an `InputError`.
    """

    what: str
    unit: str
    check: Callable[[str, Any], Any]

    @property
    def is_word(self) -> bool:
        """Whether values are words."""
        return not self.unit


class Result(NamedTuple):
    """Variable of the results.

    Attributes:
        what: short description of the variable.
        unit: 1 for a pure number; empty for words and truth values.
        words: all values of a variable of words.
    """

    what: str
    unit: str = "1"
    words: tuple[str, ...] = ()


def number_input(what: str, bound: Bound, unit: str = "1") -> Input:
    """Number in a range; true and false count as 1 and 0."""

    def check(where: str, value: Any) -> float:
        if not isinstance(value, int | float | np.number):
            raise InputError(f"{where} = {value!r} is not a number; expected {bound}")
        if not bound.holds(float(value)):
            raise InputError(f"{where} = {value:g} is out of range; expected {bound}")
        return float(value)

    return Input(what, unit, check)


def bound_input(bound: Bound) -> Input:
    """Number of a domain; the unit is read from the meaning of the domain, if stated."""
    found = re.search(r" ?\[(.+)\]$", bound.meaning)
    what = bound.meaning[: found.start()] if found else bound.meaning
    return number_input(what, bound, found[1] if found else "1")


def word_input(what: str, known: Callable[[str], Any]) -> Input:
    """Word accepted by a function, or refused with an `InputError`; a word returned by the function takes its place."""

    def check(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InputError(f"{where} = {value!r} is no text; expected {what}")
        try:
            found = known(value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return found if isinstance(found, str) else value

    return Input(what, "", check)


def one_of(what: str, words: tuple[str, ...]) -> Input:
    """Word from a list of words."""

    def known(word: str) -> None:
        if word not in words:
            raise InputError(f"{word!r} is unknown; {nearest(word, words)}")

    return word_input(what, known)


POSITIVE = Bound(0.0, math.inf, True)
COUNT = Bound(1.0, 1e10)

CHIP_INPUTS = {
    "peak_flops": number_input("dense 16-bit peak of a chip, other formats in the same ratio", POSITIVE, "flop/s"),
    "hbm_bandwidth": number_input("memory bandwidth of a chip", POSITIVE, "byte/s"),
}
MEMORY_INPUT = {"hbm_bytes": number_input("memory of a chip", POSITIVE, "byte")}
NETWORK_INPUTS = {
    "domain_size": number_input("chips of a scale-up domain", COUNT),
    "link_bandwidth": number_input("bandwidth inside a domain, per chip and direction", POSITIVE, "byte/s"),
    "network_bandwidth": number_input("bandwidth between domains; the spine in the same ratio", POSITIVE, "byte/s"),
    "link_latency": number_input("latency of a hop inside a domain", Bound(0.0, 1e3), "s"),
    "network_latency": number_input("latency of a hop between domains and beyond", Bound(0.0, 1e3), "s"),
}
MODEL_INPUTS = {name: bound_input(MODEL.bounds[name]) for name in ARGUMENTS if name in MODEL.bounds}
BATCH_INPUT = {"global_batch": number_input("sequences of a step", DEGREE, "sequence")}
COUNT_INPUT = {"n_gpus": number_input("chips", COUNT)}
FIT_INPUT = {"fit": word_input("name or file of a fit", load_fit)}
NAMED_MODEL = {"model": word_input("name or file of a model", lambda name: _known_model(name))}
PRECISION_INPUT = {"precision": one_of("number format of the matmuls", PRECISIONS)}


def _known_model(name: str) -> None:
    described_model(name).transformer(name)


def chip_input(hardware: Hardware) -> dict[str, Input]:
    """Input of the chip by its name, normalised to its catalogue id."""
    return {"gpu": word_input("chip of the catalogue", lambda name: hardware[name].id)}


def cluster_of_point(entry: ChipEntry, point: Point, n_chips: Any) -> Cluster:
    """Chips of the catalogue on their network, with the numbers of a point in place of catalogue values; traceable.

    Args:
        entry: the chip.
        point: inputs by name.
        n_chips: number of chips [1].
    """
    return Cluster(_chip_at(entry.chip(), point), _network_at(entry.network(), point), n_chips)


def _chip_at(chip: Chip, point: Point) -> Chip:
    changes = {name: point[name] for name in ("hbm_bandwidth", "hbm_bytes") if name in point}
    if "peak_flops" in point:
        peaks = np.asarray(chip.peak_flops, float)
        # Peaks of all formats in the ratio to bf16.
        changes["peak_flops"] = peaks / peaks[PRECISIONS.index("bf16")] * point["peak_flops"]
    return with_fields(chip, changes) if changes else chip


def _network_at(network: Network, point: Point) -> Network:
    # (levels,): inside a domain, and two levels between domains
    inside, outside = np.asarray([1.0, 0.0, 0.0]), np.asarray([0.0, 1.0, 1.0])
    bandwidth, latency = (np.asarray(leaf, float) for leaf in (network.bandwidth, network.latency))
    levels: dict[str, Any] = {"bandwidth": bandwidth, "latency": latency, "domain_size": network.domain_size}
    if "domain_size" in point:
        size = np.asarray(network.domain_size, float)
        # A rail connects at least as many chips as a domain.
        reach = np.asarray([0.0, size[1], size[2]])
        # max(reach - size, 0), for numbers and tracers
        larger = (reach - point["domain_size"] + abs(reach - point["domain_size"])) / 2.0
        levels["domain_size"] = point["domain_size"] + larger
    for name, base in (("bandwidth", bandwidth), ("latency", latency)):
        # Latencies may be 0.
        ratio = base / base[1] if base[1] > 0.0 else np.ones(3)
        if (key := f"network_{name}") in point:
            levels[name] = inside * levels[name] + outside * ratio * point[key]
        if (key := f"link_{name}") in point:
            levels[name] = inside * point[key] + outside * levels[name]
    changed = {name: value for name, value in levels.items() if value is not getattr(network, name)}
    return with_fields(network, changed) if changed else network


def among(point: Point, names: Any) -> dict[str, Any]:
    """Inputs of a point with given names."""
    return {name: point[name] for name in names if name in point}


def whole(value: Any) -> Any:
    """Concrete number, as an integer if integral."""
    return int(value) if float(value).is_integer() else value


PLAN_RESULTS = {
    name: Result(what)
    for name, what in {
        "dp": "data-parallel degree",
        "tp": "tensor-parallel degree",
        "pp": "pipeline stages",
        "vpp": "virtual stages of a chip",
        "cp": "context-parallel degree",
        "ep": "expert-parallel degree",
        "zero_stage": "ZeRO stage",
        "micro_batch_size": "sequences of a microbatch",
        "n_microbatches": "microbatches of a step",
    }.items()
}


def fields_of(kind: type) -> tuple[str, ...]:
    """Names of the fields of a module."""
    return tuple(field.name for field in dataclasses.fields(kind))
