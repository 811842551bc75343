"""A program over dimension classes: kernels and stored values, differentiable by the sizes of the classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.table import Table, text_of
from jaxscale.tracing.workload_file import write_tables
from jaxscale.tracing.workload_tables import QUANTITIES, KernelColumns, WorkloadTables
from jaxscale.tracing.workload_text import workload_parts


class ClassedProgram(eqx.Module):
    """A program as kernels over dimension classes.

    Attributes:
        sizes: length of each dimension class; the first is one [1].
        tables: kernels, stored values and names.
    """

    sizes: Float[ArrayLike, " class"]
    tables: WorkloadTables = eqx.field(static=True)

    def columns(self) -> KernelColumns:
        """Quantities of every kernel at the sizes of the workload."""
        sizes, count = jnp.asarray(self.sizes, float), len(self.tables.kinds)
        columns = {}
        for name in QUANTITIES:
            terms = self.tables.terms[name]
            columns[name] = jax.ops.segment_sum(terms.values(sizes), terms.row, count)
        return KernelColumns(**columns)

    def flop(self, *kinds: str) -> Array:
        """Flop of the kernels of some kinds, of all kinds where none is given [flop]."""
        flop = self.columns().flop
        mask = np.array([not kinds or kind in kinds for kind in self.tables.kinds], float)
        return jnp.sum(flop * mask)

    def n_weights(self) -> Array:
        """Number of trained weights [1]."""
        return jnp.sum(self.tables.weights.values(jnp.asarray(self.sizes, float)))

    def stored_bytes(self) -> Array:
        """Bytes that the forward pass keeps for the backward pass [byte]."""
        return jnp.sum(self.tables.stored.values(jnp.asarray(self.sizes, float)))

    def peak_bytes(self) -> Array:
        """Peak memory by liveness, in program order [byte]."""
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
        """Sizes of the classes, some of them changed [1], [class].

        Args:
            changes: sizes by name of the class; numbers or tracers [1].

        Raises:
            InputError: a class that the program does not have.
        """
        sizes = jnp.asarray(self.sizes, float)
        for name, size in changes.items():
            sizes = sizes.at[self.place_of(name)].set(size)
        return sizes

    def place_of(self, name: str) -> int:
        """Place of a class among the sizes.

        Raises:
            InputError: the workload has no such class.
        """
        if name not in self.tables.class_names[1:]:
            known = nearest(name, self.tables.class_names[1:])
            raise InputError(f"class {name!r} is unknown to this workload; {known}")
        return self.tables.class_names.index(name)

    def save(self, path: str | Path) -> None:
        """Write the workload as a file without code or weights; `load_workload` reads it.

        Raises:
            InputError: the file cannot be written.
        """
        write_tables(path, self.tables, np.asarray(self.sizes, float))

    def __str__(self) -> str:
        """Table of flop, bytes and kernels by group and phase, and the classes."""
        return text_of(self.parts())

    def parts(self) -> list[str | Table]:
        """Table of the kernels by group and phase, and a line of the classes."""
        return workload_parts(self.tables, self.columns(), self.classes())
