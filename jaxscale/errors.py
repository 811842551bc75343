"""Errors that a user can cause and mend, and the names that their messages offer."""

import difflib
from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Bad input from the user: says what is wrong, where, and what would be valid.

    Attributes:
        problems: every single problem, one line each, where the message itself shows only the first of many.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()):
        """Args: message: text shown to the user; problems: one line for each problem, all of them."""
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


def nearest(name: str, known: Iterable[str]) -> str:
    """Names that resemble an unknown one, or all that are known, in words."""
    known, name = sorted(known), name.lower()
    begun = [other for other in known if name and other.startswith(name)]
    close = begun[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
