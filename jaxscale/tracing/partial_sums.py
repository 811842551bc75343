r"""Partial sums: which values chips must add up where a dimension class is split among them.

A product or a sum over an axis of a split class leaves partial sums. Linear operations hand them on: sums of partial
sums, changes of layout and width. Where anything else reads them they are added up first, in the narrowest form that
they had on the way. For $y_{mn} = \sum_k x_{mk} w_{kn}$ a split of k costs an all-reduce of y forward, a split of n
that of the gradient of x, a split of m that of the gradient of w. A table whose rows are split gives partial
look-ups.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxscale.tracing.dimension_classes import Axis, atoms
from jaxscale.tracing.program import FlatProgram, Operation, Value

Classes = frozenset[Axis]

NONE: Classes = frozenset()

LINEAR = frozenset(
    (
        "add add_any barrier bitcast_convert_type broadcast_in_dim carry carry_out concatenate convert_element_type "
        "expand_dims neg pad reduce_sum reshape slice squeeze stack sub transpose unstack"
    ).split()
)
"""Operations of which a sum of inputs gives the sum of outputs."""

SCALING = frozenset({"mul", "div"})
"""Operations that are linear where all but one input are literals."""


class SumPoint(NamedTuple):
    """One value that is added up among chips.

    Attributes:
        value: the value, in the narrowest form that its partial sums had.
        classes: classes whose split makes it a partial sum.
        role: `gradient` of weights, `table` (a table that its gradient is scattered into), `activation` (or gradient of
            one), or `statistic`: a sum that no product makes.
        phase: of the operation that makes it.
    """

    value: Value
    classes: Classes
    role: str
    phase: str


class _Sums:
    """Walk through a program that follows partial sums."""

    def __init__(self, program: FlatProgram):
        self.program = program
        self.partial: dict[Value, Classes] = {}
        self.narrowest: dict[Value, Value] = {}
        self.zeros: set[Value] = set()
        self.producers = {out: operation for operation in program.operations for out in operation.outputs}
        self.points: dict[Value, tuple[Classes, str]] = {}

    def run(self) -> list[SumPoint]:
        """Points of the whole program."""
        for operation in self.program.operations:
            self.visit(operation)
        for value in self.program.outputs:
            self.add_up(value, self.partial.get(value, NONE), "gradient")
        return [self.point(value, *found) for value, found in self.points.items()]

    def point(self, value: Value, classes: Classes, role: str) -> SumPoint:
        """A point, with what made it."""
        producer = self.producers[value]
        return SumPoint(value, classes, role, producer.phase)

    def visit(self, operation: Operation) -> None:
        """Classes for which the outputs of one operation are partial sums."""
        inputs = operation.inputs
        if not inputs and operation.name == "broadcast_in_dim" or (operation.kind == "carry" and self._is_zero(inputs)):
            self.zeros.update(operation.outputs)
        found = [self.partial.get(value, NONE) for value in inputs]
        linear = operation.name in LINEAR or (operation.name in SCALING and len(inputs) == 1)
        kept = self._kept(inputs, found) if linear else NONE
        for value, classes in zip(inputs, found, strict=True):
            self.add_up(value, classes - kept, "gradient" if operation.phase == "update" else "activation")
        new = summed_classes(operation)
        for output in operation.outputs:
            self.partial[output] = kept | new
            source = inputs[0] if linear and len(inputs) == 1 and not new and inputs[0] in self.narrowest else None
            narrow = self.narrowest[source] if source is not None else output
            self.narrowest[output] = output if output.total_bytes < narrow.total_bytes else narrow

    def _is_zero(self, inputs: Sequence[Value]) -> bool:
        return all(value in self.zeros for value in inputs)

    def _kept(self, inputs: Sequence[Value], found: Sequence[Classes]) -> Classes:
        """Classes for which all inputs are partial sums; zeros are the sum of nothing."""
        counted = [classes for value, classes in zip(inputs, found, strict=True) if value not in self.zeros]
        return frozenset.intersection(*counted) if counted else NONE

    def add_up(self, value: Value, classes: Classes, role: str) -> None:
        """Note that partial sums of a value are added up."""
        if not classes:
            return
        narrow = self.narrowest.get(value, value)
        before, kept = self.points.get(narrow, (NONE, role))
        producer = self.producers.get(narrow)
        if role == "activation" and producer is not None and producer.kind == "reduction":
            role = "statistic"
        if producer is not None and producer.name.startswith("scatter") and producer.inputs[0].origin == "weights":
            role = "table"
        self.points[narrow] = (before | classes, kept if before else role)


def summed_classes(operation: Operation) -> Classes:
    """Classes over which an operation sums."""
    work = operation.work
    if work is not None and work.kind == "scatter":
        return frozenset(atoms(operation.inputs[-1].axes)) - frozenset(atoms(operation.outputs[0].axes))
    if work is not None and work.kind in ("matmul", "conv", "grouped_conv", "conv3d") and work.k is not None:
        return frozenset(atoms(work.k.axes))
    if operation.kind == "reduction" and operation.name.startswith(("reduce_sum", "reduce_max", "reduce_min")):
        inside, outside = Counter(atoms(operation.inputs[0].axes)), Counter(atoms(operation.outputs[0].axes))
        return frozenset(inside - outside)
    if operation.name == "gather":
        kept = {axis for value in (operation.outputs[0], *operation.inputs[1:]) for axis in atoms(value.axes)}
        numbers = operation.params["dimension_numbers"]
        gone = [operation.inputs[0].axes[place] for place in numbers.collapsed_slice_dims]
        return frozenset(atoms(gone)) - kept
    return NONE


def sum_points(program: FlatProgram) -> list[SumPoint]:
    """Values that are added up among chips, for the split of each class; see the module.

    Args:
        program: the flat program.

    Returns:
        Points, in program order.
    """
    return _Sums(program).run()


def conflicting_classes(program: FlatProgram) -> Classes:
    """Classes that a value has twice, as queries and keys have the sequence: splitting them takes more than sums."""
    twice: set[Axis] = set()
    for operation in program.operations:
        for value in operation.outputs:
            counts = Counter(atoms(value.axes))
            twice.update(axis for axis, count in counts.items() if count > 1)
        work = operation.work
        if work is not None and work.kind == "attention" and work.m is not None and work.k is not None:
            # Queries and keys of a fused kernel, and the width over which it sums inside.
            twice.update(atoms([*work.m.axes, *work.k.axes]))
    return frozenset(twice)


class WeightUse(NamedTuple):
    """How a program uses one array of weights.

    Attributes:
        value: the weights.
        width: bytes of an element as products read it [byte].
        gathers: times that chips which each hold a part put it together in a step: for the forward pass, and again for
            the backward pass inside a loop [1].
        loops: turns of the loops that read it, each of which puts a part together [1].
        pooled: what look-ups make of it before anything else reads them; None where it is no table.
    """

    value: Value
    width: float
    gathers: float
    loops: list[Axis]
    pooled: Value | None


def weight_uses(program: FlatProgram) -> list[WeightUse]:
    """Use of every array of weights, in the order of the arguments."""
    readers: dict[Value, list[Operation]] = {}
    for operation in program.operations:
        for value in operation.inputs:
            readers.setdefault(value, []).append(operation)
    return [_use(value, readers) for value in program.inputs if value.origin == "weights"]


ALIKE = frozenset("barrier convert_element_type reshape stack transpose unstack".split())
"""Operations whose result is the same weights in another form."""


def _use(value: Value, readers: dict[Value, list[Operation]]) -> WeightUse:
    reached, frontier, width = [], [value], value.itemsize
    loops: list[Axis] = []
    pooled: Value | None = None
    while frontier:
        for operation in readers.get(frontier.pop(), []):
            if operation.phase == "update":
                continue
            reached.append(operation)
            if operation.name in ALIKE:
                frontier.extend(operation.outputs)
                width = min(width, operation.outputs[0].itemsize)
            if operation.name == "unstack" and operation.loop is not None:
                loops = [operation.loop.axis]
            if operation.name == "gather":
                pooled = _pooled(operation.outputs[0], readers)
    phases = {operation.phase for operation in reached if operation.name not in ALIKE}
    again = bool(loops) and bool(phases & {"backward", "recompute"})
    products = [operation for operation in reached if operation.kind == "heavy" and operation.name != "gather"]
    return WeightUse(value, width, 2.0 if again else 1.0, loops, None if products else pooled)


def _pooled(value: Value, readers: dict[Value, list[Operation]]) -> Value:
    """The smallest form of looked-up rows on the way to the first operation that does more than sum or cast them."""
    smallest = value
    while True:
        following = readers.get(value, [])
        if len(following) != 1 or following[0].name not in LINEAR or len(following[0].inputs) != 1:
            return smallest
        value = following[0].outputs[0]
        smallest = value if value.total_bytes < smallest.total_bytes else smallest
