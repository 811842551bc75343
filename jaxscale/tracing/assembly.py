"""From kernels over axes to the tables of a workload: axes become classes with names, quantities become terms."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxscale.tracing.dimension_classes import Axis, atoms
from jaxscale.tracing.fusion import FusedKernel, Fusion
from jaxscale.tracing.liveness import LivePoint
from jaxscale.tracing.partial_sums import conflicting_classes, sum_points, weight_uses
from jaxscale.tracing.program import FlatProgram, Monomial, Value, loops_of
from jaxscale.tracing.workload_tables import QUANTITIES, Terms, WorkloadTables, terms_of


class ClassTable:
    """Dimension classes in the order in which they are named.

    Attributes:
        places: place of each class; 0 stands for the number one.
        names: of the classes.
        origins: `data`, `weights`, `loop` or `made`.
        sizes: lengths [1].
    """

    def __init__(self) -> None:
        """No class but the number one."""
        self.places: dict[Axis, int] = {}
        self.names, self.origins, self.sizes = ["1"], ["made"], [1.0]

    def add(self, axes: Sequence[Axis], name: str, origin: str) -> None:
        """Name the classes of an axis, unless they have names."""
        parts = atoms(axes)
        for place, axis in enumerate(parts):
            if axis not in self.places:
                self.places[axis] = len(self.names)
                self.names.append(name if len(parts) == 1 else f"{name}.{place}")
                self.origins.append(origin)
                self.sizes.append(float(axis.size))

    def classes(self, axes: Sequence[Axis]) -> list[int]:
        """Classes of a product of axes."""
        found = atoms(axes)
        for axis in found:
            if axis not in self.places:
                self.add([axis], f"axis{len(self.names)}", "made")
        return [self.places[axis] for axis in found]


def named_classes(program: FlatProgram, fusion: Fusion) -> ClassTable:
    """Classes with the names of the arguments: data first, then weights and state, then loops."""
    table = ClassTable()
    for origin in ("data", "weights", "state"):
        for value in program.inputs:
            if value.origin == origin:
                for place, axis in enumerate(value.axes):
                    table.add([axis], f"{value.label}[{place}]", "data" if origin == "data" else "weights")
    loops = {loop: None for operation in fusion.operations for loop in reversed(loops_of(operation.loop))}
    for place, loop in enumerate(loops):
        table.add([loop.axis], f"loop{place}", "loop")
    return table


class TermList:
    """Terms of one table as they are collected."""

    def __init__(self, classes: ClassTable):
        """Args: classes: the classes of the products."""
        self.table = classes
        self.rows: list[int] = []
        self.factors: list[float] = []
        self.classes: list[list[int]] = []

    def add(self, row: int, term: Monomial) -> None:
        """Add a term to a row."""
        self.rows.append(row)
        self.factors.append(term.factor)
        self.classes.append(self.table.classes(term.axes))

    def terms(self) -> Terms:
        """The terms as columns."""
        return terms_of(self.rows, self.factors, self.classes)


ONE = Monomial(1.0, [])


def kernel_terms(kernel: FusedKernel) -> Mapping[str, list[Monomial]]:
    """Quantities of one kernel over all its launches; sizes of matmuls are those of one launch."""
    work = kernel.roots[-1].work if kernel.roots[-1].kind == "heavy" else None
    turns = [loop.axis for loop in loops_of(kernel.loop)]
    terms: dict[str, list[Monomial]] = {name: [] for name in QUANTITIES}
    terms["launches"] = [Monomial(1.0, turns)]
    terms["written"] = kernel.written
    for value, term in kernel.reads.items():
        terms["read_weights" if value.origin == "weights" else "read"].append(term)
    for name in ("m", "n", "k", "batch"):
        terms[name] = [(getattr(work, name) if work else None) or ONE]
    if work is not None and work.flop is not None:
        terms["flop"] = [Monomial(work.flop.factor, [*work.flop.axes, *turns])]
    return terms


def width_of(kernel: FusedKernel) -> float:
    """Bytes of the narrowest array that a kernel reads [byte]."""
    widths = [value.itemsize for root in kernel.roots for value in root.inputs if value.size > 1]
    return min(widths, default=4.0)


def group_of(kernel: FusedKernel, table: ClassTable) -> str:
    """Group of a kernel: the classes of the loops around it, outermost first, and the outermost name of the user."""
    loops = [
        "*".join(table.names[one] for one in table.classes([loop.axis])) for loop in reversed(loops_of(kernel.loop))
    ]
    return "/".join(part for part in [*(f"[{name}]" for name in loops if name), *kernel.scope[:1]] if part)


def stored_for_backward(fusion: Fusion) -> list[tuple[int, Monomial]]:
    """Values that forward kernels write and kernels of the backward pass read: kernel and bytes of all turns [byte]."""
    phases: dict[Value, set[str]] = {}
    for kernel in fusion.kernels:
        for value in kernel.reads:
            phases.setdefault(value, set()).add(kernel.phase)
    found = []
    for row, kernel in enumerate(fusion.kernels):
        for value in kernel.stores:
            if kernel.phase == "forward" and phases.get(value, set()) & {"backward", "recompute"}:
                found.append((row, Monomial(value.itemsize, value.all_axes)))
    return found


def tables_of(program: FlatProgram, fusion: Fusion, points: Sequence[LivePoint]) -> tuple[np.ndarray, WorkloadTables]:
    """Sizes and tables of a workload.

    Args:
        program: the flat program.
        fusion: its kernels.
        points: its fullest points.

    Returns:
        Sizes of the classes [1], and the tables.
    """
    classes, kernels = named_classes(program, fusion), fusion.kernels
    lists = {name: TermList(classes) for name in QUANTITIES}
    for row, kernel in enumerate(kernels):
        for name, terms in kernel_terms(kernel).items():
            for term in terms:
                lists[name].add(row, term)
    held, origins = TermList(classes), []
    for row, point in enumerate(points):
        for origin, term in point.held:
            held.add(row, term)
            origins.append(origin)
    stored, weights = TermList(classes), TermList(classes)
    for row, term in stored_for_backward(fusion):
        stored.add(row, term)
    trained = [value for value in program.inputs if value.origin == "weights"]
    for row, value in enumerate(trained):
        weights.add(row, Monomial(1.0, value.axes))
    sums, counts, points_of_sums = TermList(classes), TermList(classes), sum_points(program)
    for row, point in enumerate(points_of_sums):
        sums.add(row, Monomial(point.value.itemsize, point.value.all_axes))
        counts.add(row, Monomial(1.0, [loop.axis for loop in loops_of(point.value.loop)]))
    turns, pooled, uses = TermList(classes), TermList(classes), weight_uses(program)
    for row, use in enumerate(uses):
        turns.add(row, Monomial(1.0, use.loops))
        if use.pooled is not None:
            pooled.add(row, Monomial(use.pooled.itemsize, use.pooled.all_axes))
    handed, layers = TermList(classes), {id(axis) for use in uses for axis in use.loops}
    for operation in program.operations:
        if operation.kind == "carry" and operation.phase == "forward" and id(operation.loop.axis) in layers:  # pyright: ignore
            handed.add(0, Monomial(operation.outputs[0].itemsize, operation.outputs[0].axes))
    tables = WorkloadTables(
        handed=handed.terms(),
        weight_widths=np.array([use.width for use in uses], float),
        weight_gathers=np.array([use.gathers for use in uses], float),
        weight_turns=turns.terms(),
        pooled=pooled.terms(),
        sums=sums.terms(),
        sum_counts=counts.terms(),
        sum_classes=tuple(tuple(sorted(classes.classes(list(point.classes)))) for point in points_of_sums),
        sum_roles=tuple(point.role for point in points_of_sums),
        sum_phases=tuple(point.phase for point in points_of_sums),
        conflicts=tuple(sorted(classes.classes(list(conflicting_classes(program))))),
        kinds=tuple(kernel.kind for kernel in kernels),
        phases=tuple(kernel.phase for kernel in kernels),
        groups=tuple(group_of(kernel, classes) for kernel in kernels),
        names=tuple("/".join((*kernel.scope, kernel.roots[-1].name)) for kernel in kernels),
        widths=np.array([width_of(kernel) for kernel in kernels]),
        terms={name: one.terms() for name, one in lists.items()},
        points=held.terms(),
        point_phases=tuple(point.phase for point in points),
        point_origins=tuple(origins),
        stored=stored.terms(),
        weights=weights.terms(),
        weight_names=tuple(value.label for value in trained),
        weight_bytes=np.array([value.itemsize for value in trained], float),
        class_names=tuple(classes.names),
        origins=tuple(classes.origins),
    )
    return np.asarray(classes.sizes), tables
