"""A question with its inputs and results; and a sweep, a product of axes of a question."""

import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.sweeps.inputs import Input, Result

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
    """Evaluation of point after point.

    Attributes:
        point: function from values by input to results by name; an `InputError` for a point without an answer.
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
    """Product of axes, of a question.

    Attributes:
        of: name of the question.
        question: the question.
        axes: values of each axis, numbers or words; the last axis runs fastest.
        fixed: values of the inputs without an axis.
        chunk: maximum number of points of a region [1].
        hardware: file with chips of the user's own; empty for the shipped catalogue alone.
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
        """Number of points [1]."""
        return math.prod(self.shape)

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of regions along each axis [1]."""
        return tuple(-(-count // size) for count, size in zip(self.shape, self.block, strict=True))

    @property
    def n_regions(self) -> int:
        """Number of regions [1]."""
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
        """Words of an input of words, on its axis or fixed; empty if the sweep has neither."""
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
        """Specification, equal for equal sweeps: number of values of each axis and their digest."""
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
    """Digest of the values of an axis."""
    return hashlib.sha256(json.dumps(values.tolist()).encode()).hexdigest()
