"""Errors that a user can cause and mend."""

from collections.abc import Sequence


class InputError(ValueError):
    """Bad input from the user: says what is wrong, where, and what would be valid.

    Attributes:
        problems: every single problem, one line each, where the message itself shows only the first of many.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()):
        """Args: message: text shown to the user; problems: one line for each problem, all of them."""
        super().__init__(message)
        self.problems = tuple(problems) or (message,)
