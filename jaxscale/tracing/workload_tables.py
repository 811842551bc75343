"""Tables of a traced workload: all of it that no size changes, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

QUANTITIES = ("flop", "m", "n", "k", "batch", "read", "read_weights", "written", "launches")
"""Quantities of a kernel: flop, sizes of the matmul that it is like, bytes read (those of weights apart) and written,
launches per step."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Products of sizes of classes, a column each.

    Attributes:
        row: row of the table that a term belongs to.
        factor: in the unit of the quantity.
        classes: classes of the product, one column for each factor; 0 stands for the number one.
    """

    row: np.ndarray
    factor: np.ndarray
    classes: np.ndarray

    def values(self, sizes: Array) -> Array:
        """Value of each term at given sizes of the classes."""
        return jnp.asarray(self.factor) * jnp.prod(sizes[self.classes], axis=1)


@dataclass(frozen=True, eq=False)
class WorkloadTables:
    """All of a workload that no size changes.

    Attributes:
        class_names: names of the dimension classes; the first is `1`.
        origins: `data`, `weights`, `loop` or `made`, for each class.
        kinds: kind of each kernel.
        phases: phase of each kernel.
        groups: group of each kernel: its loops and the outermost name of the user.
        names: primitive, and names of the user, of each kernel.
        widths: bytes of the numbers that each kernel multiplies or streams [byte].
        terms: by quantity, rows are kernels.
        points: rows are points of the program, terms are bytes of stored values in memory at each [byte].
        point_phases: phase of each point.
        point_origins: origin of each term of `points`.
        stored: bytes kept from the forward for the backward pass; rows are kernels [byte].
        weights: elements of the weights [1]; rows are weights.
        weight_names: names of the weights.
        weight_bytes: bytes of an element of each weight [byte].
        weight_widths: bytes of an element as products read it [byte].
        weight_gathers: times that a weight in parts is put together in a step [1].
        weight_turns: parts in which it is put together, one for each turn of a loop; rows are weights [1].
        pooled: bytes of what look-ups make of a table; rows are weights, none for those that are no tables [byte].
        handed: bytes that a loop over weights hands from turn to turn in the forward pass; one row [byte].
        sums: values that chips add up where a class is split among them [byte].
        sum_counts: times that each is added up in a step; rows are those of `sums` [1].
        sum_classes: classes whose split asks for each sum.
        sum_roles: `gradient`, `table`, `activation` or `statistic`, see `partial_sums.SumPoint`.
        sum_phases: phase of each sum.
        conflicts: classes that some value has twice.
    """

    class_names: tuple[str, ...]
    origins: tuple[str, ...]
    kinds: tuple[str, ...]
    phases: tuple[str, ...]
    groups: tuple[str, ...]
    names: tuple[str, ...]
    widths: np.ndarray
    terms: Mapping[str, Terms]
    points: Terms
    point_phases: tuple[str, ...]
    point_origins: tuple[str, ...]
    stored: Terms
    weights: Terms
    weight_names: tuple[str, ...]
    weight_bytes: np.ndarray
    weight_widths: np.ndarray
    weight_gathers: np.ndarray
    weight_turns: Terms
    pooled: Terms
    handed: Terms
    sums: Terms
    sum_counts: Terms
    sum_classes: tuple[tuple[int, ...], ...]
    sum_roles: tuple[str, ...]
    sum_phases: tuple[str, ...]
    conflicts: tuple[int, ...]


class KernelColumns(eqx.Module):
    """Quantities of every kernel of a workload; see `QUANTITIES`."""

    flop: Float[Array, " kernel"]
    m: Float[Array, " kernel"]
    n: Float[Array, " kernel"]
    k: Float[Array, " kernel"]
    batch: Float[Array, " kernel"]
    read: Float[Array, " kernel"]
    read_weights: Float[Array, " kernel"]
    written: Float[Array, " kernel"]
    launches: Float[Array, " kernel"]

    @property
    def bytes(self) -> Array:
        """Bytes read and written by each kernel, over all its launches [byte]."""
        return self.read + self.read_weights + self.written


def terms_of(rows: Sequence[int], factors: Sequence[float], classes: Sequence[Sequence[int]]) -> Terms:
    """Terms from lists: row, factor, and classes of each product."""
    width = max((len(one) for one in classes), default=0) or 1
    table = np.zeros((len(rows), width), np.int32)
    for place, one in enumerate(classes):
        table[place, : len(one)] = one
    return Terms(np.asarray(rows, np.int32), np.asarray(factors, float), table)
