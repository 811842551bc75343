"""Questions with inputs and results, and sweeps of a question over a product of axes.

Inputs have names, units and ranges: of models, chips, networks and plans.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import with_fields
from jaxscale.base.domains import Bound
from jaxscale.base.errors import InputError, nearest
from jaxscale.calibration.record import load_fit
from jaxscale.hardware.catalogue import ChipEntry, Hardware, load_hardware
from jaxscale.hardware.cluster import Chip, Cluster, Network
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import described_model
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import ARGUMENTS
from jaxscale.plans.plan import PLAN

Point = Mapping[str, Any]
"""Values of the inputs at a point, by name: axes and fixed inputs."""


class Input(NamedTuple):
    """Input of a question.

    Attributes:
        what: short description of the input.
        unit: unit of a number; empty for a word.
        check: function from a name of the source, for messages, and a value to the normalised value; raises
            `InputError` for an invalid value.
    """

    what: str
    unit: str
    check: Callable[[str, Any], Any]

    @property
    def is_word(self) -> bool:
        """Whether the values of the input are words."""
        return not self.unit


class Result(NamedTuple):
    """Variable of the results of a question.

    Attributes:
        what: short description of the variable.
        unit: unit, 1 for a pure number; empty for words and truth values.
        words: all possible words of a variable of words.
    """

    what: str
    unit: str = "1"
    words: tuple[str, ...] = ()


def number_input(what: str, bound: Bound, unit: str = "1") -> Input:
    """Input that is a number in a range; true and false count as 1 and 0."""

    def check(where: str, value: Any) -> float:
        if not isinstance(value, int | float | np.number):
            raise InputError(f"{where} = {value!r} is not a number; expected {bound}")
        if not bound.holds(float(value)):
            raise InputError(f"{where} = {value:g} is out of range; expected {bound}")
        return float(value)

    return Input(what, unit, check)


def bound_input(bound: Bound) -> Input:
    """Input that is a number of a domain, with the unit stated in the meaning of the domain."""
    found = re.search(r" ?\[(.+)\]$", bound.meaning)
    what = bound.meaning[: found.start()] if found else bound.meaning
    return number_input(what, bound, found[1] if found else "1")


def word_input(what: str, known: Callable[[str], Any]) -> Input:
    """Input that is a word accepted by a function; a word returned by the function replaces the given word."""

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
    """Input that is a word from a list of words."""

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
BATCH_INPUT = {"global_batch": number_input("sequences of a step", Bound(1.0, 1e12), "sequence")}
COUNT_INPUT = {"n_gpus": number_input("chips", COUNT)}
FIT_INPUT = {"fit": word_input("name or file of a fit", load_fit)}
NAMED_MODEL = {"model": word_input("name or file of a model", lambda name: _known_model(name))}
PRECISION_INPUT = {"precision": one_of("number format of the matmuls", PRECISIONS)}


def _known_model(name: str) -> None:
    described_model(name).transformer(name)


def chip_input(hardware: Hardware) -> dict[str, Input]:
    """Input that is the name of a chip, normalised to the catalogue id."""
    return {"gpu": word_input("chip of the catalogue", lambda name: hardware[name].id)}


def cluster_of_point(entry: ChipEntry, point: Point, n_chips: Any) -> Cluster:
    """Cluster of catalogue chips, with numbers of a point in place of catalogue values; traceable.

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
    """Inputs of a point with given names, absent names left out."""
    return {name: point[name] for name in names if name in point}


def whole(value: Any) -> Any:
    """Concrete number, converted to an integer if integral."""
    return int(value) if float(value).is_integer() else value


_PLACED = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "micro_batch_size", "n_microbatches")
PLAN_RESULTS = {name: Result(PLAN.bounds[name].meaning) for name in _PLACED}
"""Degrees and batches of a plan."""


def fields_of(kind: type) -> tuple[str, ...]:
    """Names of the fields of a module."""
    return tuple(field.name for field in dataclasses.fields(kind))


Columns = dict[str, Array]


class ArrayFunction(NamedTuple):
    """Evaluation of many points at once by an array function, compiled and spread over devices.

    Attributes:
        points: function from columns of the axes [point] to columns of the results; words are indices in their axis.
        valid: function from the number of a region to the validity of its points [point]; None where all are valid.
    """

    points: Callable[[Columns], Columns]
    valid: Callable[[int], np.ndarray] | None = None


class Search(NamedTuple):
    """Evaluation of points one after the other, by a search.

    Attributes:
        point: function from values by input to results by name; raises `InputError` for a point without an answer.
    """

    point: Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Question(NamedTuple):
    """Question that a sweep evaluates at every point.

    Attributes:
        what: short description of the question.
        inputs: function from a catalogue of chips to inputs by name.
        needed: groups of inputs; at least one of each group is required.
        excluding: groups of inputs; at most one of each group is allowed.
        results: function from a sweep to the variables of the results, by name.
        evaluation: function from a sweep to its evaluation.
        chunk: default maximum number of points of a region; small for searches, as an interruption loses the region
            [1].
    """

    what: str
    inputs: Callable[[Hardware], dict[str, Input]]
    needed: Sequence[tuple[str, ...]]
    excluding: Sequence[tuple[str, ...]]
    results: Callable[["SweepSpec"], Mapping[str, Result]]
    evaluation: Callable[["SweepSpec"], ArrayFunction | Search]
    chunk: int = 65536


@dataclass(frozen=True)
class SweepSpec:
    """Sweep of a question over a product of axes, in regions: blocks of points evaluated and written together.

    Attributes:
        of: name of the question.
        question: the question.
        axes: values of each axis, numbers or words; the last axis runs fastest.
        fixed: values of the inputs without an axis.
        chunk: maximum number of points of a region [1].
        hardware: file with the user's chips; empty for the shipped catalogue alone.
        block: number of values of each axis in a region [1].
    """

    of: str
    question: Question
    axes: Mapping[str, np.ndarray]
    fixed: Mapping[str, Any]
    chunk: int
    hardware: str
    block: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each axis [1]."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def n_points(self) -> int:
        """Number of points of the product of axes [1]."""
        return math.prod(self.shape)

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of regions along each axis [1]."""
        return tuple(-(-count // size) for count, size in zip(self.shape, self.block, strict=True))

    @property
    def n_regions(self) -> int:
        """Number of regions, blocks of points evaluated together [1]."""
        return math.prod(self.grid)

    @functools.cached_property
    def catalogue(self) -> Hardware:
        """Catalogue of chips for the names in the sweep."""
        return load_hardware(self.hardware or None)

    @functools.cached_property
    def inputs(self) -> dict[str, Input]:
        """Inputs of the question, by name."""
        return self.question.inputs(self.catalogue)

    def words(self, name: str) -> list[str]:
        """Words of an input, on its axis or fixed; empty if the sweep does not state the input."""
        if name in self.axes:
            return self.axes[name].tolist()
        return [self.fixed[name]] if name in self.fixed else []

    def place(self, index: int) -> tuple[int, ...]:
        """Index of a region along each axis, by its number."""
        return tuple(int(place) for place in np.unravel_index(index, self.grid))

    def region(self, index: int) -> tuple[slice, ...]:
        """Slice of a region along each axis, by its number."""
        return tuple(
            slice(place * size, min((place + 1) * size, count))
            for place, size, count in zip(self.place(index), self.block, self.shape, strict=True)
        )

    def size_of(self, index: int) -> int:
        """Number of points of a region [1]."""
        return math.prod(part.stop - part.start for part in self.region(index))

    def columns(self, index: int, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Values of axes at the points of a region [point]; words as indices.

        Args:
            index: number of the region.
            names: axes of the product; all where None.
        """
        wanted = [name for name in self.axes if names is None or name in names]
        parts = dict(zip(self.axes, self.region(index), strict=True))
        values = [
            np.arange(parts[name].start, parts[name].stop, dtype=float)
            if self.inputs[name].is_word
            else self.axes[name][parts[name]]
            for name in wanted
        ]
        # The last axis runs fastest.
        return {name: column.ravel() for name, column in zip(wanted, np.meshgrid(*values, indexing="ij"), strict=True)}

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """Specification of the sweep as JSON, with number of values and digest of each axis; equal for equal sweeps."""
        import jax

        named = [name for name, asked in self.inputs.items() if asked.is_word]
        files = [self.hardware, *(word for name in named for word in self.words(name))]
        # The content of files belongs to the specification.
        found = {name: Path(name) for name in files if name and Path(name).is_file()}
        return {
            "version": sys.modules["jaxscale"].__version__,
            "of": self.of,
            "axes": {name: {"n": len(values), "digest": digest(values)} for name, values in self.axes.items()},
            "fixed": dict(self.fixed),
            "chunk": self.chunk,
            "hardware": self.hardware,
            "files": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()},
            # Results depend on the precision.
            "double": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        }


def digest(values: np.ndarray) -> str:
    """SHA-256 digest of the values of an axis."""
    return hashlib.sha256(json.dumps(values.tolist()).encode()).hexdigest()
