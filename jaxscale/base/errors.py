"""Errors in a user's input, and suggestions of names in messages."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence

MOST_NAMES = 30
"""Largest number of valid names in a message [1]."""

LIKE = 0.6
"""Least similarity ratio of `difflib` for a suggested name [1]."""


class InputError(ValueError):
    """Invalid input from the user; the message names error, location and valid input.

    Attributes:
        problems: all problems, a line each; the message shows only the first of many.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()):
        """Args: message: text shown to the user; problems: one line for each problem."""
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


def similar(
    name: str, known: Iterable[str], holds: Callable[[str, str], bool], most: int, likeness: float
) -> list[str]:
    """Known names that contain the unknown name; if there are none, the names of most similar spelling.

    Args:
        name: the unknown name.
        known: the known names, in the order of messages.
        holds: whether a known name (first argument) contains the unknown name (second argument).
        most: largest number of returned names [1].
        likeness: least `difflib` ratio of similar names [1].

    Returns:
        At most `most` names, possibly none.
    """
    known, name = list(known), name.lower()
    inside = [other for other in known if holds(other, name)]
    # One wrong letter leaves half of a two-letter name.
    likeness = min(likeness, 0.5) if len(name) == 2 else likeness
    close = difflib.get_close_matches(name, known, n=3 * most, cutoff=likeness)
    # A misspelt name is more likely than a wrong size or version, so names with equal numbers come first.
    close.sort(key=lambda other: len(_numbers_in(other) ^ _numbers_in(name)))
    return (inside or close)[:most]


def _numbers_in(name: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", name))


def nearest(name: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: "did you mean ...?" with similar names, or the known names."""
    known = sorted(known)
    close = similar(name, known, lambda other, begun: bool(begun) and other.startswith(begun), most=3, likeness=LIKE)
    return f"did you mean {', '.join(close)}?" if close else f"known: {_listed(known)}"


def one_like(name: str, known: Collection[str]) -> str:
    """End of a message about an unknown name: "expected one like ..." with similar names, or the known names."""
    known = sorted(known)
    close = similar(name, known, lambda other, part: part in other.lower(), most=5, likeness=LIKE)
    return f"expected one like {', '.join(close)}" if close else f"expected one of {_listed(known)}"


def check_known(what: str, word: str, known: Collection[str]) -> None:
    """Check that a word is among the known words.

    Args:
        what: start of the message, for example `form` or `objective =`.
        word: the word.
        known: the known words, in the order of the message.

    Raises:
        InputError: an unknown word; lists the known words.
    """
    if word not in known:
        raise InputError(f"{what} {word!r} is unknown; expected one of {', '.join(known)}")


def unreadable(path: object, error: OSError) -> InputError:
    """Error for a file that cannot be read, with the reason given by the operating system."""
    return InputError(f"{path}: cannot be read ({reason_of(error)})")


def reason_of(error: OSError) -> str:
    """Reason of the operating system for an error, in lower case."""
    return (error.strerror or str(error)).lower()


def _listed(known: Sequence[str]) -> str:
    """First `MOST_NAMES` known names as text."""
    return ", ".join(known[:MOST_NAMES]) + (", ..." if len(known) > MOST_NAMES else "")
