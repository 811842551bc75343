"""Traced program as kernels over dimension classes, differentiable in the class sizes; file format and text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.documents import LARGEST, parsed_json, read_text
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.files import write_whole
from jaxscale.base.table import Table, TableColumn, make_table, text_column, text_of
from jaxscale.tracing.program import PHASES

QUANTITIES = ("flop", "m", "n", "k", "batch", "read", "read_weights", "written", "launches")
"""Quantities of a kernel: flop, sizes of the equivalent matmul, bytes read (weights counted separately) and written,
launches per step."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Products of sizes of dimension classes, in columns; a quantity of a row is the sum of the row's products.

    Attributes:
        row: row index of each product in the table.
        factor: factor of each product, in the unit of the quantity.
        classes: classes of the product, one column per factor; 0 stands for the number one.
    """

    row: np.ndarray
    factor: np.ndarray
    classes: np.ndarray

    def values(self, sizes: Array) -> Array:
        """Value of each product of class sizes, in the unit of the quantity [term]."""
        return jnp.asarray(self.factor) * jnp.prod(sizes[self.classes], axis=1)


@dataclass(frozen=True, eq=False)
class WorkloadTables:
    """Tables of a workload that do not depend on the sizes of the dimension classes.

    Attributes:
        class_names: names of the dimension classes; the first is `1`.
        origins: `data`, `weights`, `loop` or `made`, for each class.
        kinds: kind of each kernel.
        phases: phase of each kernel.
        groups: group of each kernel: enclosing loops and the outermost name scope of the user.
        names: primitive, and name scopes of the user, of each kernel.
        widths: bytes per element of the numbers that each kernel multiplies or streams [byte].
        terms: products of classes by quantity; rows are kernels.
        points: bytes of stored values in memory; rows are points of the program [byte].
        point_phases: phase of each point.
        point_origins: origin of each product of `points`.
        stored: bytes kept from the forward for the backward pass; rows are kernels [byte].
        weights: elements of the weights [1]; rows are weights.
        weight_names: names of the weights.
        weight_bytes: bytes per element of each weight [byte].
        weight_widths: bytes per element in products [byte].
        weight_gathers: all-gathers of a sharded weight per step [1].
        weight_turns: slices of an all-gather, one per loop iteration; rows are weights [1].
        pooled: bytes of pooled look-ups in an embedding table; rows are weights, zero for other weights [byte].
        handed: bytes carried between iterations of a loop over weights in the forward pass; one row [byte].
        sums: bytes of the values reduced among chips where a class is split [byte].
        sum_counts: all-reduces per step; rows as in `sums` [1].
        sum_classes: classes whose split requires each sum.
        sum_roles: `gradient`, `table`, `activation` or `statistic`, see `assembly.SumPoint`.
        sum_phases: phase of each sum.
        conflicts: classes that occur twice in a value.
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
    """Work of every kernel of a workload: flop, equivalent matmul sizes, bytes and launches, see `QUANTITIES`."""

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
        """Bytes read and written by each kernel, summed over all launches [byte]."""
        return self.read + self.read_weights + self.written


def terms_of(rows: Sequence[int], factors: Sequence[float], classes: Sequence[Sequence[int]]) -> Terms:
    """Products of sizes of dimension classes in columns, from lists of rows, factors and classes."""
    width = max((len(one) for one in classes), default=0) or 1
    # 0 is the class of the number 1: shorter products are filled up.
    table = np.zeros((len(rows), width), np.int32)
    for place, one in enumerate(classes):
        table[place, : len(one)] = one
    return Terms(np.asarray(rows, np.int32), np.asarray(factors, float), table)


FORMAT = "jaxscale workload 1"
"""Name and version of the file format."""


def write_tables(path: str | Path, tables: WorkloadTables, sizes: np.ndarray) -> None:
    """Write a workload as a JSON document.

    Args:
        path: file to write.
        tables: tables of the workload.
        sizes: sizes of the classes [1].

    Raises:
        InputError: the file cannot be written.
    """
    document: dict[str, Any] = {"format": FORMAT, "sizes": sizes.tolist()}
    for name in WorkloadTables.__dataclass_fields__:
        value = getattr(tables, name)
        if name == "terms":
            document[name] = {quantity: _term_lists(terms) for quantity, terms in value.items()}
        elif isinstance(value, Terms):
            document[name] = _term_lists(value)
        else:
            document[name] = value.tolist() if isinstance(value, np.ndarray) else list(value)
    write_whole(path, json.dumps(document, separators=(",", ":")))


def _term_lists(terms: Terms) -> dict[str, list[Any]]:
    return {"row": terms.row.tolist(), "factor": terms.factor.tolist(), "classes": terms.classes.tolist()}


def read_tables(path: str | Path) -> tuple[np.ndarray, WorkloadTables]:
    """Read class sizes [1] and tables of a workload from a file.

    Raises:
        InputError: the file is missing, or holds no workload.
    """
    try:
        document = parsed_json(read_text(Path(path), 4 * LARGEST, "a file that `Workload.save` wrote"))
    except InputError:
        raise
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: holds no workload; expected a file that `Workload.save` wrote, of format {FORMAT!r}")
    try:
        return np.asarray(document["sizes"], float), _tables(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is incomplete ({error}); expected a file that `Workload.save` wrote") from None


def _tables(document: dict[str, Any]) -> WorkloadTables:
    fields: dict[str, Any] = {}
    for name, field in WorkloadTables.__dataclass_fields__.items():
        value = document[name]
        if name == "terms":
            fields[name] = {quantity: _terms(value[quantity]) for quantity in QUANTITIES}
        elif field.type is Terms:
            fields[name] = _terms(value)
        elif field.type is np.ndarray:
            fields[name] = np.asarray(value, float)
        else:
            fields[name] = tuple(tuple(one) if isinstance(one, list) else one for one in value)
    return WorkloadTables(**fields)


def _terms(lists: dict[str, Any]) -> Terms:
    row, factor = np.asarray(lists["row"], np.int32), np.asarray(lists["factor"], float)
    # An empty list has no second axis.
    return Terms(row, factor, np.asarray(lists["classes"], np.int32).reshape(len(row), -1 if len(row) else 1))


MOST_CLASSES = 12
"""Largest number of classes in the text [1]."""

MOST_GROUPS = 20
"""Largest number of groups in the text, the largest by bytes first [1]."""


GROUP_COLUMNS = (
    text_column("group and phase", says="{}:"),
    TableColumn("flop", "Gflop", "Gflop", stays=True),
    TableColumn("bytes", "GB", "GB", stays=True),
    TableColumn("kernels", says="{} kernels", stays=True),
)


def workload_parts(tables: WorkloadTables, columns: KernelColumns, classes: Mapping[str, float]) -> list[str | Table]:
    """Table of the kernels by group and phase, and a line with the sizes of the dimension classes.

    Args:
        tables: tables of a workload.
        columns: work of every kernel.
        classes: size of each class, by name [1].
    """
    rows = group_rows(tables, columns)
    total = np.sum([row[2:] for row in rows], axis=0) if rows else np.zeros(3)
    shown = [(f"{group} {phase}".strip(), *amounts) for group, phase, *amounts in rows] + [("total", *total)]
    cells = [
        (name, f"{flop / 1e9:,.1f}", f"{moved / 1e9:,.2f}", f"{launches:,.0f}") for name, flop, moved, launches in shown
    ]
    arguments = [
        name for name, origin in zip(tables.class_names, tables.origins, strict=True) if origin in ("data", "weights")
    ]
    listed = ", ".join(f"{name} = {classes[name]:,.0f}" for name in arguments[:MOST_CLASSES])
    more = f", and {len(arguments) - MOST_CLASSES} more" if len(arguments) > MOST_CLASSES else ""
    return [make_table("", GROUP_COLUMNS, cells), f"classes: {listed}{more}"]


def group_rows(tables: WorkloadTables, columns: KernelColumns) -> list[tuple[str, str, float, float, float]]:
    """Group, phase, flop [flop], bytes [byte] and launches [1] of the kernels, in program order of the groups.

    Groups beyond the largest `MOST_GROUPS` by bytes are pooled as `others`.
    """
    flop, moved, launches = (np.asarray(one, float) for one in (columns.flop, columns.bytes, columns.launches))
    size: dict[str, float] = {}
    for group, amount in zip(tables.groups, moved, strict=True):
        size[group] = size.get(group, 0.0) + float(amount)
    kept = set(sorted(size, key=lambda group: -size[group])[:MOST_GROUPS])
    sums: dict[tuple[str, str], np.ndarray] = {}
    for group, phase, *amounts in zip(tables.groups, tables.phases, flop, moved, launches, strict=True):
        key = (group if group in kept else "others", phase)
        sums[key] = sums.get(key, np.zeros(3)) + np.array(amounts)
    order = {group: place for place, group in enumerate([*dict.fromkeys(tables.groups), "others"])}
    # Phases in the order of a step, groups in the order of the program.
    keys = sorted(sums, key=lambda key: (PHASES.index(key[1]), order[key[0]]))  # pyright: ignore
    return [(*key, float(sums[key][0]), float(sums[key][1]), float(sums[key][2])) for key in keys]


class ClassedProgram(eqx.Module):
    """Traced program as kernels over dimension classes, sets of equal axes whose sizes can change.

    Attributes:
        sizes: length of each dimension class; the first is 1 [1].
        tables: kernels, stored values and names.
    """

    sizes: Float[ArrayLike, " class"]
    tables: WorkloadTables = eqx.field(static=True)

    def columns(self) -> KernelColumns:
        """Work of every kernel at the present sizes of the dimension classes."""
        sizes, count = jnp.asarray(self.sizes, float), len(self.tables.kinds)
        columns = {}
        for name in QUANTITIES:
            terms = self.tables.terms[name]
            columns[name] = jax.ops.segment_sum(terms.values(sizes), terms.row, count)
        return KernelColumns(**columns)

    def flop(self, *kinds: str) -> Array:
        """Flop of the kernels of the given kinds, by default of all kernels [flop]."""
        flop = self.columns().flop
        mask = np.array([not kinds or kind in kinds for kind in self.tables.kinds], float)
        return jnp.sum(flop * mask)

    def n_weights(self) -> Array:
        """Number of trained weights [1]."""
        return jnp.sum(self.tables.weights.values(jnp.asarray(self.sizes, float)))

    def stored_bytes(self) -> Array:
        """Memory kept from the forward pass for the backward pass [byte]."""
        return jnp.sum(self.tables.stored.values(jnp.asarray(self.sizes, float)))

    def peak_bytes(self) -> Array:
        """Peak memory by liveness analysis in program order [byte]."""
        points = self.tables.points
        held = jax.ops.segment_sum(
            points.values(jnp.asarray(self.sizes, float)), points.row, len(self.tables.point_phases)
        )
        return jnp.max(held)

    def classes(self) -> dict[str, float]:
        """Size of each dimension class, by name [1]."""
        sizes = np.asarray(self.sizes, float)
        return {name: float(sizes[place]) for place, name in enumerate(self.tables.class_names) if place}

    def sizes_with(self, changes: Mapping[str, Any]) -> Array:
        """Sizes of the dimension classes with some sizes changed [1], [class].

        Args:
            changes: new sizes by class name, numbers or tracers [1].

        Raises:
            InputError: a class absent from the program.
        """
        sizes = jnp.asarray(self.sizes, float)
        for name, size in changes.items():
            sizes = sizes.at[self.place_of(name)].set(size)
        return sizes

    def place_of(self, name: str) -> int:
        """Index of a dimension class among the sizes, by name.

        Raises:
            InputError: the workload lacks the class.
        """
        if name not in self.tables.class_names[1:]:
            known = nearest(name, self.tables.class_names[1:])
            raise InputError(f"class {name!r} is unknown to this workload; {known}")
        return self.tables.class_names.index(name)

    def save(self, path: str | Path) -> None:
        """Write the workload to a file without code or weights, readable by `load_workload`.

        Raises:
            InputError: the file cannot be written.
        """
        write_tables(path, self.tables, np.asarray(self.sizes, float))

    def __str__(self) -> str:
        """Table of flop, bytes and kernels by group and phase, and the classes."""
        return text_of(self.parts())

    def parts(self) -> list[str | Table]:
        """Table of the kernels by group and phase, and a line with the sizes of the dimension classes."""
        return workload_parts(self.tables, self.columns(), self.classes())
