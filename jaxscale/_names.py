"""Names that resemble an unknown one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Names that resemble an unknown one, or all that are known, in words."""
    known, name = sorted(known), name.lower()
    begun = [other for other in known if name and other.startswith(name)]
    close = begun[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
