"""A traced program as one flat list over dimension classes: values, operations, and the loops around them.

Adding two arrays makes their axes equal; a product contracts equal axes. The classes are the sets of such axes. A
reshape
that merges two axes makes one of two factors: a class is then the ordered product of others, major factor first. Two
ordered products of equal size are brought to their common refinement, $(4, 6) = (8, 3)$ becomes $(4, 2, 3)$.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class Axis:
    """Axis, or factor of an axis, in a union-find forest.

    Attributes:
        size: length [1].
        parent: an equal axis; None for the representative of a class.
        factors: axes whose ordered product the axis is, major first; empty for an atom.
    """

    __slots__ = ("factors", "parent", "size")

    def __init__(self, size: int):
        """Args: size: length [1]."""
        self.size = size
        self.parent: Axis | None = None
        self.factors: list[Axis] = []


def representative(axis: Axis) -> Axis:
    """Representative of the class of an axis."""
    root = axis
    while root.parent is not None:
        root = root.parent
    while axis.parent is not None:
        axis.parent, axis = root, axis.parent
    return root


def atoms(axes: Sequence[Axis]) -> list[Axis]:
    """Classes whose ordered product is a sequence of axes; axes of length 1 are left out."""
    flat: list[Axis] = []
    stack = list(reversed(axes))
    while stack:
        root = representative(stack.pop())
        if root.factors:
            stack.extend(reversed(root.factors))
        elif root.size != 1:
            flat.append(root)
    return flat


def split_axis(axis: Axis, major: int) -> tuple[Axis, Axis]:
    """Split an atom into a major factor and the minor factor that is left."""
    first, second = Axis(major), Axis(axis.size // major)
    axis.factors = [first, second]
    return first, second


def make_equal(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Make two ordered products of axes equal, factor by factor.

    Factors that do not divide each other stay apart, with all that comes after them.
    """
    ours, theirs = list(reversed(atoms(left))), list(reversed(atoms(right)))
    while ours and theirs:
        mine, other = representative(ours.pop()), representative(theirs.pop())
        if mine.factors or other.factors:  # split a moment ago, by the other side
            ours.extend(reversed(atoms([mine])))
            theirs.extend(reversed(atoms([other])))
            continue
        if mine is other:
            continue
        if mine.size == other.size:
            other.parent = mine
        elif mine.size % other.size == 0:
            ours.extend(reversed(split_axis(mine, other.size)))
            theirs.append(other)
        elif other.size % mine.size == 0:
            ours.append(mine)
            theirs.extend(reversed(split_axis(other, mine.size)))
        else:
            return


Phase = Literal["forward", "backward", "recompute", "update"]

PHASES: tuple[Phase, ...] = ("forward", "backward", "recompute", "update")
"""Phases of a training step: loss, gradients, recomputation for the gradients, update."""


@dataclass(eq=False)
class Loop:
    """Loop of a fixed number of turns around operations, or the shards of a program.

    Attributes:
        parent: the enclosing loop; None at the top.
        axis: number of turns, as an axis [1].
        unrolled: whether the compiler writes all turns out, so that no value is stacked.
        carried: value handed from turn to turn, inside the loop, and that which leaves it, by the inner one.
    """

    parent: "Loop | None"
    axis: Axis
    unrolled: bool
    carried: "dict[Value, Value]" = field(default_factory=dict)

    def around(self) -> list["Loop"]:
        """The loop and all enclosing loops, the innermost first."""
        return [self, *(self.parent.around() if self.parent else [])]


def loops_of(loop: Loop | None) -> list[Loop]:
    """Loops around an operation, the innermost first."""
    return loop.around() if loop else []


@dataclass(eq=False)
class Value:
    """Array that an operation reads or writes, in a turn of the enclosing loops.

    Attributes:
        axes: its axes.
        itemsize: bytes of an element [byte].
        loop: loop with a value in each turn.
        origin: `weights`, `state` or `data` for an argument of the program, `constant`, or `made`.
        label: path of the argument.
        after_backward: whether it depends on a gradient.
    """

    axes: tuple[Axis, ...]
    itemsize: float
    loop: Loop | None
    origin: str = "made"
    label: str = ""
    after_backward: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of elements [1]."""
        return math.prod(self.shape)

    @property
    def all_axes(self) -> list[Axis]:
        """Axes, and axes of the loops with a value per turn."""
        return [*self.axes, *(loop.axis for loop in loops_of(self.loop))]

    @property
    def total_bytes(self) -> float:
        """Bytes over all turns [byte]."""
        return self.itemsize * math.prod(axis.size for axis in self.all_axes)


@dataclass(eq=False)
class Operation:
    """Operation of a flat program.

    Attributes:
        name: of the primitive.
        kind: `heavy` (reads and writes memory), `elementwise` (folded into its readers), `selection` (elementwise, of
            a part of what it reads), `layout` (elementwise, free where a matmul reads it), `reduction`, `stack` and
            `unstack` (values of the turns of a loop put together, and taken apart), `carry` (handed from turn to
            turn).
        inputs: values read; literals are left out.
        outputs: values written.
        params: of the primitive.
        phase: of the step.
        scope: names that the user gave, outermost first.
        loop: loop in whose body it stands.
        work: of a heavy operation.
        remat: identity of the rematerialised block in which it stands; 0 outside.
        marked: whether a transformation said the phase.
    """

    name: str
    kind: str
    inputs: list[Value]
    outputs: list[Value]
    params: Mapping[str, Any]
    phase: Phase
    scope: tuple[str, ...]
    loop: Loop | None
    work: "Work | None" = None
    remat: int = 0
    marked: bool = False


@dataclass(eq=False)
class Work:
    """Arithmetic of a heavy operation; each quantity is a factor times the product of axes.

    Attributes:
        kind: `matmul`, `conv`, `attention`, `scatter`, ...: decides which efficiency applies.
        flop: floating-point operations [flop].
        m, n, k, batch: sizes of the matmul that it is, or is like [1].
        read: bytes read, if not the bytes of the inputs [byte].
        written: bytes written, if not the bytes of the outputs [byte].
    """

    kind: str
    flop: "Monomial | None" = None
    m: "Monomial | None" = None
    n: "Monomial | None" = None
    k: "Monomial | None" = None
    batch: "Monomial | None" = None
    read: "list[Monomial] | None" = None
    written: "list[Monomial] | None" = None


@dataclass
class Monomial:
    """A factor times a product of axes.

    Attributes:
        factor: in the unit of the quantity.
        axes: factors of the product, each as often as it counts.
    """

    factor: float
    axes: Sequence[Axis]

    @property
    def value(self) -> float:
        """Value at the traced sizes."""
        return self.factor * math.prod(axis.size for axis in self.axes)


@dataclass
class FlatProgram:
    """A flat program.

    Attributes:
        operations: in program order.
        inputs: arguments.
        outputs: results.
        constants: arrays that the program closes over.
    """

    operations: list[Operation] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)


def bytes_of(value: Value) -> Monomial:
    """Bytes of a value over all turns of its loops [byte]."""
    return Monomial(value.itemsize, value.all_axes)
