"""`Workload`: a traced program as the work of a training step, the counterpart of `Transformer`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Array, Float

from jaxscale.base.errors import InputError
from jaxscale.models.work import AbstractWork
from jaxscale.tracing.class_plan import class_plan_checked
from jaxscale.tracing.class_plans import best_class_plan
from jaxscale.tracing.classed_program import ClassedProgram, read_tables
from jaxscale.tracing.plan_time import traced_memory_terms, traced_terms


class Workload(ClassedProgram, AbstractWork):
    """Traced program as kernels over dimension classes (sets of equal axes), made by `jaxscale.trace`.

    Parallel plans are `ClassPlan`s.

    Attributes:
        sizes: length of each dimension class; the first is 1 [1].
        tables: kernels, stored values and names.
    """

    def with_sizes(self, changes: Mapping[str, Any]) -> "Workload":
        """Workload with changed sizes of dimension classes.

        Args:
            changes: new sizes by class name, numbers or tracers [1].

        Returns:
            The workload, with the kernels of the traced sizes.

        Raises:
            InputError: a class absent from the workload.
        """
        return Workload(self.sizes_with(changes), self.tables)

    def renamed(self, names: Mapping[str, str]) -> "Workload":
        """Workload with renamed dimension classes.

        Args:
            names: new names by present names.

        Raises:
            InputError: a class absent from the workload, or one name for two classes.
        """
        renamed = list(self.tables.class_names)
        for old, new in names.items():
            renamed[self.place_of(old)] = new
        twice = sorted({name for name in renamed if renamed.count(name) > 1})
        if twice:
            raise InputError(f"class name {twice[0]!r} stands for two classes; expected a name of its own for each")
        return Workload(self.sizes, replace(self.tables, class_names=tuple(renamed)))

    def step_terms(
        self, plan: Any, cluster: Any, coefficients: Any, temperature: Any
    ) -> Mapping[str, Float[Array, "*batch"]]:
        """Step time by cause under a `ClassPlan` [s]."""
        return traced_terms(self, class_plan_checked(plan), cluster, coefficients, temperature=temperature)

    def memory_terms(self, plan: Any, cluster: Any, coefficients: Any) -> Mapping[str, Float[Array, "*batch"]]:
        """Peak memory of the fullest chip by cause under a `ClassPlan` [byte]."""
        return traced_memory_terms(self, class_plan_checked(plan), cluster, coefficients)

    def ranked_plans(self, cluster: Any, batch: float | int, coefficients: Any, memory_limit: float, top: int) -> Any:
        """Fastest plans within the memory limit, as a `ClassPlanChoice`."""
        return best_class_plan(self, cluster, batch, coefficients, memory_limit, top)


def load_workload(path: str | Path) -> Workload:
    """Read a workload from a file written by `Workload.save`.

    Raises:
        InputError: the file is missing, or holds no workload.
    """
    sizes, tables = read_tables(path)
    return Workload(sizes, tables)
