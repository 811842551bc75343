"""Traced program as a flat list over dimension classes: values, operations, and enclosing loops.

A dimension class is a set of equal axes: the sum of two arrays makes their axes equal, a product makes the contracted
axes equal. A reshape that merges two axes gives an axis of two factors, hence an ordered product of classes, major
factor first. Two ordered products of equal size are reduced to their common refinement: $(4, 6) = (8, 3)$ becomes
$(4, 2, 3)$.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class Axis:
    """Array axis, or factor of an axis, in a union-find forest of equal axes.

    Attributes:
        size: length [1].
        parent: an equal axis; None for the representative of equal axes.
        factors: ordered factors whose product is the axis, major first; empty for an indivisible axis.
    """

    __slots__ = ("factors", "parent", "size")

    def __init__(self, size: int):
        """Args: size: length [1]."""
        self.size = size
        self.parent: Axis | None = None
        self.factors: list[Axis] = []


def representative(axis: Axis) -> Axis:
    """Representative of all axes that are equal to an axis."""
    root = axis
    while root.parent is not None:
        root = root.parent
    # Path compression: later look-ups reach the root at once.
    while axis.parent is not None:
        axis.parent, axis = root, axis.parent
    return root


def atoms(axes: Sequence[Axis]) -> list[Axis]:
    """Indivisible factors of a sequence of axes, in order, by representative and without axes of length 1."""
    flat: list[Axis] = []
    stack = list(reversed(axes))
    while stack:
        root = representative(stack.pop())
        if root.factors:
            stack.extend(reversed(root.factors))
        # Axes of length 1 are no class.
        elif root.size != 1:
            flat.append(root)
    return flat


def split_axis(axis: Axis, major: int) -> tuple[Axis, Axis]:
    """Major factor of given length and remaining minor factor of an axis, which is split by this call."""
    first, second = Axis(major), Axis(axis.size // major)
    axis.factors = [first, second]
    return first, second


def make_equal(left: Sequence[Axis], right: Sequence[Axis]) -> None:
    """Make two ordered products of axes equal, factor by factor.

    Matching ends at the first factors that do not divide each other.
    """
    ours, theirs = list(reversed(atoms(left))), list(reversed(atoms(right)))
    while ours and theirs:
        mine, other = representative(ours.pop()), representative(theirs.pop())
        if mine.factors or other.factors:  # split earlier in this walk, through the opposite side
            ours.extend(reversed(atoms([mine])))
            theirs.extend(reversed(atoms([other])))
            continue
        if mine is other:
            continue
        if mine.size == other.size:
            other.parent = mine
        elif mine.size % other.size == 0:
            # (12) = (4, 3): the larger factor splits, the rest meets the next factor.
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
    """Loop with a fixed number of iterations around operations, or the shards of a sharded program.

    Attributes:
        parent: the enclosing loop; None at the top.
        axis: number of iterations, as an axis [1].
        unrolled: whether the compiler writes out all iterations, without stacked values.
        carried: value after the loop, by the carried value inside the loop.
    """

    parent: "Loop | None"
    axis: Axis
    unrolled: bool
    carried: "dict[Value, Value]" = field(default_factory=dict)

    def around(self) -> list["Loop"]:
        """The loop and all enclosing loops, the innermost first."""
        return [self, *(self.parent.around() if self.parent else [])]


def loops_of(loop: Loop | None) -> list[Loop]:
    """Loops around an operation, innermost first."""
    return loop.around() if loop else []


@dataclass(eq=False)
class Value:
    """Array that operations read or write, one per iteration of the enclosing loops.

    Attributes:
        axes: axes of the array.
        itemsize: bytes per element [byte].
        loop: loop with one value per iteration.
        origin: `weights`, `state` or `data` for an argument of the program, `constant`, or `made`.
        label: path of the argument.
        after_backward: whether the value depends on a gradient.
    """

    axes: tuple[Axis, ...]
    itemsize: float
    loop: Loop | None
    origin: str = "made"
    label: str = ""
    after_backward: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes [1]."""
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of elements [1]."""
        return math.prod(self.shape)

    @property
    def all_axes(self) -> list[Axis]:
        """Axes of the array and of the loops with one value per iteration."""
        return [*self.axes, *(loop.axis for loop in loops_of(self.loop))]

    @property
    def total_bytes(self) -> float:
        """Size over all iterations [byte]."""
        return self.itemsize * math.prod(axis.size for axis in self.all_axes)


@dataclass(eq=False)
class Operation:
    """Operation of a flat program.

    Attributes:
        name: name of the primitive.
        kind: `heavy` (reads and writes memory), `elementwise` (folded into its readers), `selection` (elementwise, of
            a slice of the input), `layout` (elementwise, free where a matmul reads the result), `reduction`, `stack`
            and `unstack` (join and separate the values of the iterations of a loop), `carry` (passed from iteration to
            iteration).
        inputs: values read, without literals.
        outputs: values written.
        params: parameters of the primitive.
        phase: phase of the step.
        scope: name scopes of the user, outermost first.
        loop: enclosing loop.
        work: arithmetic of a heavy operation.
        remat: identity of the enclosing rematerialised block; 0 outside.
        marked: whether a transformation states the phase.
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
    """Arithmetic of a heavy operation; each quantity is a factor times a product of axes.

    Attributes:
        kind: `matmul`, `conv`, `attention`, `scatter`, ...: selects the efficiency.
        flop: floating-point operations [flop].
        m, n, k, batch: sizes of the equivalent matmul [1].
        read: bytes read, if different from the bytes of the inputs [byte].
        written: bytes written, if different from the bytes of the outputs [byte].
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
    """Factor times a product of axes.

    Attributes:
        factor: factor, in the unit of the quantity.
        axes: axes of the product, with repetition for powers.
    """

    factor: float
    axes: Sequence[Axis]

    @property
    def value(self) -> float:
        """Value at the traced sizes."""
        return self.factor * math.prod(axis.size for axis in self.axes)


@dataclass
class FlatProgram:
    """Program as a list of operations, with calls inlined.

    Attributes:
        operations: operations in program order.
        inputs: arguments.
        outputs: results.
        constants: arrays that the program closes over.
    """

    operations: list[Operation] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)


def bytes_of(value: Value) -> Monomial:
    """Size of a value over all iterations of its loops [byte]."""
    return Monomial(value.itemsize, value.all_axes)
