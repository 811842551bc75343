r"""Assembly of the tables of a workload from kernels over axes.

Axes become dimension classes, and sizes of kernels become sums of products of classes. A product or a sum over an axis
of a split class leaves partial sums on each chip. Linear operations propagate partial sums: sums of partial sums,
changes of layout and number format. Before any nonlinear operation partial sums are reduced among chips, in the form of
fewest bytes so far. For $y_{mn} = \sum_k x_{mk} w_{kn}$ a split of k costs an all-reduce of y forward, a split of n an
all-reduce of the gradient of x, a split of m an all-reduce of the gradient of w. An embedding table with split rows
gives partial look-ups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxscale.tracing.classed_program import QUANTITIES, Terms, WorkloadTables, terms_of
from jaxscale.tracing.fusion import FusedKernel, Fusion
from jaxscale.tracing.liveness import LivePoint
from jaxscale.tracing.program import Axis, FlatProgram, Monomial, Operation, Value, atoms, loops_of

Classes = frozenset[Axis]

NONE: Classes = frozenset()

LINEAR = frozenset(
    (
        "add add_any barrier bitcast_convert_type broadcast_in_dim carry carry_out concatenate convert_element_type "
        "expand_dims neg pad reduce_sum reshape slice squeeze stack sub transpose unstack"
    ).split()
)
"""Linear operations: the sum of the inputs gives the sum of the outputs."""

SCALING = frozenset({"mul", "div"})
"""Operations that are linear in one input if all remaining inputs are literals."""


class SumPoint(NamedTuple):
    """Value whose partial sums are reduced among chips, when a class is split.

    Attributes:
        value: the value, in the form of fewest bytes before the reduction.
        classes: classes whose split makes the value a partial sum.
        role: `gradient` of weights, `table` (gradient scattered into an embedding table), `activation` (or the
            gradient of an activation), or `statistic` (a sum without a product).
        phase: phase of the operation that computes the value.
    """

    value: Value
    classes: Classes
    role: str
    phase: str


class _Sums:
    """Propagation of partial sums through a program."""

    def __init__(self, program: FlatProgram):
        self.program = program
        self.partial: dict[Value, Classes] = {}
        self.narrowest: dict[Value, Value] = {}
        self.zeros: set[Value] = set()
        self.producers = {out: operation for operation in program.operations for out in operation.outputs}
        self.points: dict[Value, tuple[Classes, str]] = {}

    def run(self) -> list[SumPoint]:
        """Reduced values of the whole program."""
        for operation in self.program.operations:
            self.visit(operation)
        # Results of a program are whole: partial sums left at the end are gradients.
        for value in self.program.outputs:
            self.add_up(value, self.partial.get(value, NONE), "gradient")
        return [self.point(value, *found) for value, found in self.points.items()]

    def point(self, value: Value, classes: Classes, role: str) -> SumPoint:
        """Reduced value with role and phase."""
        producer = self.producers[value]
        return SumPoint(value, classes, role, producer.phase)

    def visit(self, operation: Operation) -> None:
        """Determine the classes for which the outputs of an operation are partial sums."""
        inputs = operation.inputs
        if not inputs and operation.name == "broadcast_in_dim" or (operation.kind == "carry" and self._is_zero(inputs)):
            self.zeros.update(operation.outputs)
        found = [self.partial.get(value, NONE) for value in inputs]
        linear = operation.name in LINEAR or (operation.name in SCALING and len(inputs) == 1)
        # The sum of the outputs of a linear operation is the output of the sum.
        kept = self._kept(inputs, found) if linear else NONE
        for value, classes in zip(inputs, found, strict=True):
            self.add_up(value, classes - kept, "gradient" if operation.phase == "update" else "activation")
        new = summed_classes(operation)
        for output in operation.outputs:
            self.partial[output] = kept | new
            # A chain of changes of form alone: the reduction may take the narrowest form.
            source = inputs[0] if linear and len(inputs) == 1 and not new and inputs[0] in self.narrowest else None
            narrow = self.narrowest[source] if source is not None else output
            # A reduction in the narrowest form moves the fewest bytes.
            self.narrowest[output] = output if output.total_bytes < narrow.total_bytes else narrow

    def _is_zero(self, inputs: Sequence[Value]) -> bool:
        return all(value in self.zeros for value in inputs)

    def _kept(self, inputs: Sequence[Value], found: Sequence[Classes]) -> Classes:
        """Classes for which all inputs are partial sums; a zero input is an empty sum."""
        counted = [classes for value, classes in zip(inputs, found, strict=True) if value not in self.zeros]
        return frozenset.intersection(*counted) if counted else NONE

    def add_up(self, value: Value, classes: Classes, role: str) -> None:
        """Record the reduction of a value's partial sums."""
        if not classes:
            return
        narrow = self.narrowest.get(value, value)
        before, kept = self.points.get(narrow, (NONE, role))
        producer = self.producers.get(narrow)
        # A sum without a product: mean or variance of a norm, the sum of a loss.
        if role == "activation" and producer is not None and producer.kind == "reduction":
            role = "statistic"
        # Gradients of look-ups, scattered into an embedding table.
        if producer is not None and producer.name.startswith("scatter") and producer.inputs[0].origin == "weights":
            role = "table"
        self.points[narrow] = (before | classes, kept if before else role)


def summed_classes(operation: Operation) -> Classes:
    """Dimension classes over which an operation sums."""
    work = operation.work
    # Updates are summed over axes of the updates absent from the result.
    if work is not None and work.kind == "scatter":
        return frozenset(atoms(operation.inputs[-1].axes)) - frozenset(atoms(operation.outputs[0].axes))
    if work is not None and work.kind in ("matmul", "conv", "grouped_conv", "conv3d") and work.k is not None:
        return frozenset(atoms(work.k.axes))
    if operation.kind == "reduction" and operation.name.startswith(("reduce_sum", "reduce_max", "reduce_min")):
        inside, outside = Counter(atoms(operation.inputs[0].axes)), Counter(atoms(operation.outputs[0].axes))
        # Counters, as an axis may occur twice in a value.
        return frozenset(inside - outside)
    if operation.name == "gather":
        kept = {axis for value in (operation.outputs[0], *operation.inputs[1:]) for axis in atoms(value.axes)}
        numbers = operation.params["dimension_numbers"]
        # Rows of a table split by index: each chip makes partial look-ups.
        gone = [operation.inputs[0].axes[place] for place in numbers.collapsed_slice_dims]
        return frozenset(atoms(gone)) - kept
    return NONE


def sum_points(program: FlatProgram) -> list[SumPoint]:
    """Values reduced among chips when classes are split, in program order."""
    return _Sums(program).run()


def conflicting_classes(program: FlatProgram) -> Classes:
    """Dimension classes that occur twice in a value, as the sequence in attention scores, and so cannot be split."""
    twice: set[Axis] = set()
    for operation in program.operations:
        for value in operation.outputs:
            counts = Counter(atoms(value.axes))
            # A value with an axis twice, as scores of queries and keys over the sequence.
            twice.update(axis for axis, count in counts.items() if count > 1)
        work = operation.work
        if work is not None and work.kind == "attention" and work.m is not None and work.k is not None:
            # A fused kernel contracts queries, keys and the head width internally, so no value shows the repetition.
            twice.update(atoms([*work.m.axes, *work.k.axes]))
    return frozenset(twice)


class WeightUse(NamedTuple):
    """Use of a weight array in a program.

    Attributes:
        value: the weights.
        width: bytes per element in products [byte].
        gathers: all-gathers of the array per step: one for the forward pass, a second for the backward pass inside a
            loop [1].
        loops: axes of the loops that read slices of the array, each iteration with an all-gather of a slice.
        pooled: sum of look-ups before the first nonlinear operation; None unless the array is an embedding table.
    """

    value: Value
    width: float
    gathers: float
    loops: list[Axis]
    pooled: Value | None


def weight_uses(program: FlatProgram) -> list[WeightUse]:
    """Use of every weight array, in the order of the arguments."""
    readers: dict[Value, list[Operation]] = {}
    for operation in program.operations:
        for value in operation.inputs:
            readers.setdefault(value, []).append(operation)
    return [_use(value, readers) for value in program.inputs if value.origin == "weights"]


ALIKE = frozenset("barrier convert_element_type reshape stack transpose unstack".split())
"""Operations that change the form of weights only."""


def _use(value: Value, readers: dict[Value, list[Operation]]) -> WeightUse:
    reached, frontier, width = [], [value], value.itemsize
    loops: list[Axis] = []
    pooled: Value | None = None
    while frontier:
        for operation in readers.get(frontier.pop(), []):
            # The update reads local weights: no gather.
            if operation.phase == "update":
                continue
            reached.append(operation)
            if operation.name in ALIKE:
                frontier.extend(operation.outputs)
                # Products may read a narrower copy, as bf16 of fp32 weights; a gather moves the copy.
                width = min(width, operation.outputs[0].itemsize)
            if operation.name == "unstack" and operation.loop is not None:
                loops = [operation.loop.axis]
            if operation.name == "gather":
                pooled = _pooled(operation.outputs[0], readers)
    phases = {operation.phase for operation in reached if operation.name not in ALIKE}
    # Weights gathered for a turn of a loop are gathered again for the backward pass.
    again = bool(loops) and bool(phases & {"backward", "recompute"})
    products = [operation for operation in reached if operation.kind == "heavy" and operation.name != "gather"]
    return WeightUse(value, width, 2.0 if again else 1.0, loops, None if products else pooled)


def _pooled(value: Value, readers: dict[Value, list[Operation]]) -> Value:
    """Smallest form of looked-up rows before the first operation other than sums and casts."""
    smallest = value
    while True:
        following = readers.get(value, [])
        # A second reader or a nonlinear reader needs the looked-up rows as read.
        if len(following) != 1 or following[0].name not in LINEAR or len(following[0].inputs) != 1:
            return smallest
        value = following[0].outputs[0]
        smallest = value if value.total_bytes < smallest.total_bytes else smallest


class ClassTable:
    """Registry of dimension classes, in order of registration.

    Attributes:
        places: index of each class; index 0 is the number one.
        names: names of the classes.
        origins: `data`, `weights`, `loop` or `made`.
        sizes: lengths [1].
    """

    def __init__(self) -> None:
        """Start with the class of the number one alone."""
        self.places: dict[Axis, int] = {}
        self.names, self.origins, self.sizes = ["1"], ["made"], [1.0]

    def add(self, axes: Sequence[Axis], name: str, origin: str) -> None:
        """Register the new dimension classes of an axis under a name."""
        # A merged axis is a product of classes: each factor has a number behind the name.
        parts = atoms(axes)
        for place, axis in enumerate(parts):
            if axis not in self.places:
                self.places[axis] = len(self.names)
                self.names.append(name if len(parts) == 1 else f"{name}.{place}")
                self.origins.append(origin)
                self.sizes.append(float(axis.size))

    def classes(self, axes: Sequence[Axis]) -> list[int]:
        """Indices of the dimension classes in a product of axes; new classes are registered."""
        found = atoms(axes)
        for axis in found:
            if axis not in self.places:
                self.add([axis], f"axis{len(self.names)}", "made")
        return [self.places[axis] for axis in found]


def named_classes(program: FlatProgram, fusion: Fusion) -> ClassTable:
    """Dimension classes named after the arguments: data first, then weights and state, then loops."""
    table = ClassTable()
    for origin in ("data", "weights", "state"):
        for value in program.inputs:
            if value.origin == origin:
                for place, axis in enumerate(value.axes):
                    table.add([axis], f"{value.label}[{place}]", "data" if origin == "data" else "weights")
    # Outermost loop first.
    loops = {loop: None for operation in fusion.operations for loop in reversed(loops_of(operation.loop))}
    for place, loop in enumerate(loops):
        table.add([loop.axis], f"loop{place}", "loop")
    return table


class TermList:
    """Products of dimension classes with their rows, collected during assembly of a table."""

    def __init__(self, classes: ClassTable):
        """Args: classes: the classes of the products."""
        self.table = classes
        self.rows: list[int] = []
        self.factors: list[float] = []
        self.classes: list[list[int]] = []

    def add(self, row: int, term: Monomial) -> None:
        """Add a product of dimension classes to a row."""
        self.rows.append(row)
        self.factors.append(term.factor)
        self.classes.append(self.table.classes(term.axes))

    def terms(self) -> Terms:
        """Collected products of dimension classes, as columns of a table."""
        return terms_of(self.rows, self.factors, self.classes)


ONE = Monomial(1.0, [])


def kernel_terms(kernel: FusedKernel) -> Mapping[str, list[Monomial]]:
    """Quantities of a kernel (`QUANTITIES`) as sums of products of axes.

    Flop, bytes and launches are sums over all launches, sizes of the equivalent matmul are per launch.
    """
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
        # Work is per turn; the quantities of a kernel are of all turns.
        terms["flop"] = [Monomial(work.flop.factor, [*work.flop.axes, *turns])]
    return terms


def width_of(kernel: FusedKernel) -> float:
    """Bytes per element of the narrowest input array of a kernel [byte]."""
    # Scalars do not decide the number format of a kernel.
    widths = [value.itemsize for root in kernel.roots for value in root.inputs if value.size > 1]
    return min(widths, default=4.0)


def group_of(kernel: FusedKernel, table: ClassTable) -> str:
    """Group of a kernel: classes of the enclosing loops, outermost first, and the outermost name scope of the user."""
    loops = [
        "*".join(table.names[one] for one in table.classes([loop.axis])) for loop in reversed(loops_of(kernel.loop))
    ]
    return "/".join(part for part in [*(f"[{name}]" for name in loops if name), *kernel.scope[:1]] if part)


def stored_for_backward(fusion: Fusion) -> list[tuple[int, Monomial]]:
    """Values kept from forward kernels for the backward pass: kernel index, and bytes of all iterations [byte]."""
    phases: dict[Value, set[str]] = {}
    for kernel in fusion.kernels:
        for value in kernel.reads:
            phases.setdefault(value, set()).add(kernel.phase)
    found = []
    for row, kernel in enumerate(fusion.kernels):
        for value in kernel.stores:
            # Saved for the backward pass: written forward, read backward or by recomputation.
            if kernel.phase == "forward" and phases.get(value, set()) & {"backward", "recompute"}:
                found.append((row, Monomial(value.itemsize, value.all_axes)))
    return found


def tables_of(program: FlatProgram, fusion: Fusion, points: Sequence[LivePoint]) -> tuple[np.ndarray, WorkloadTables]:
    """Sizes of the dimension classes [1], and tables of a workload.

    Args:
        program: flat program.
        fusion: kernels of the program.
        points: points of largest memory.
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
    # Loops over layers: turns read slices of the weights.
    handed, layers = TermList(classes), {id(axis) for use in uses for axis in use.loops}
    for operation in program.operations:
        # The carry of a loop over layers goes from stage to stage.
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
