r"""Dimension classes: axes that have the same length because of what a program does, not by chance.

Adding two arrays makes their axes equal; a product contracts equal axes. The classes are the sets of such axes. A
reshape
that merges two axes makes one of two factors: a class is then the ordered product of others, major factor first. Two
ordered products of equal size are brought to their common refinement, $(4, 6) = (8, 3)$ becomes $(4, 2, 3)$.
"""

from collections.abc import Sequence


class Axis:
    """One axis, or factor of an axis, in a union-find forest.

    Attributes:
        size: length [1].
        parent: axis with which this one was found equal; None for the representative of a class.
        factors: ordered product of axes that this one consists of, major first; empty for an atom.
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
    """Classes whose ordered product a sequence of axes is; axes of length one are left out."""
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
