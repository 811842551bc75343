"""Errors that a user can cause and mend, and the names that their messages offer."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence

MOST_NAMES = 30
"""Valid names that a message lists [1]."""

LIKE = 0.6
"""Ratio of `difflib` from which a name is offered for an unknown one [1]."""


class InputError(ValueError):
    """Bad input from the user: says what is wrong, where, and what would be valid.

    Attributes:
        problems: every single problem, one line each, where the message itself shows only the first of many.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()):
        """Args: message: text shown to the user; problems: one line for each problem, all of them."""
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


def similar(
    name: str, known: Iterable[str], holds: Callable[[str, str], bool], most: int, likeness: float
) -> list[str]:
    """Known names that contain a name, or else those that are most like it.

    Args:
        name: the unknown name.
        known: the known ones, in the order in which they are told.
        holds: whether a known name, the first argument, contains the unknown one, the second.
        most: names returned at most [1].
        likeness: ratio of `difflib` from which two names are alike [1].

    Returns:
        The names; none where no name is alike.
    """
    known, name = list(known), name.lower()
    inside = [other for other in known if holds(other, name)]
    # One wrong letter leaves half of a name of two.
    likeness = min(likeness, 0.5) if len(name) == 2 else likeness
    close = difflib.get_close_matches(name, known, n=3 * most, cutoff=likeness)
    # A name of another size or version is not meant as often as one that is spelt otherwise.
    close.sort(key=lambda other: len(_numbers_in(other) ^ _numbers_in(name)))
    return (inside or close)[:most]


def _numbers_in(name: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", name))


def nearest(name: str, known: Iterable[str]) -> str:
    """Question whether a name like the unknown one was meant, else the known names, as the end of a message."""
    known = sorted(known)
    close = similar(name, known, lambda other, begun: bool(begun) and other.startswith(begun), most=3, likeness=LIKE)
    return f"did you mean {', '.join(close)}?" if close else f"known: {_listed(known)}"


def one_like(name: str, known: Collection[str]) -> str:
    """Statement that a name like the unknown one was expected, else a known name, as the end of a message."""
    known = sorted(known)
    close = similar(name, known, lambda other, part: part in other.lower(), most=5, likeness=LIKE)
    return f"expected one like {', '.join(close)}" if close else f"expected one of {_listed(known)}"


def _listed(known: Sequence[str]) -> str:
    """The first of the known names."""
    return ", ".join(known[:MOST_NAMES]) + (", ..." if len(known) > MOST_NAMES else "")
