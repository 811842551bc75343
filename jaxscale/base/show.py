"""Values that print themselves: results and arguments as a few lines of text, or as a table in a notebook."""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.core
import numpy as np

from jaxscale.base.table import Table, TableColumn

Class = TypeVar("Class", bound=type)

MOST_LINES = 25
"""Lines of a value in text [1]."""

LISTED = 4
"""Numbers of an array that are listed; of more, the least and the greatest are told [1]."""


class Printout(NamedTuple):
    """What is shown of a value.

    Attributes:
        title: what it is, and its most important figure.
        columns: header of its table; none where all heads are empty.
        rows: cells of the table.
        notes: lines below.
        n_left: columns that are set to the left, the others to the right [1].
    """

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    n_left: int = 1

    def table(self) -> Table:
        """Its table, in which all columns stay."""
        columns = (TableColumn(name, is_text=i < self.n_left, stays=True) for i, name in enumerate(self.columns))
        return Table("", tuple(columns), tuple(tuple(row) for row in self.rows))

    def text(self) -> str:
        """At most `MOST_LINES` lines of text."""
        lines = self.table().text().splitlines()[0 if any(self.columns) else 1 :] if self.rows else []
        room = MOST_LINES - 1 - len(self.notes)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more"]
        return "\n".join([self.title, *(f"  {line}" for line in lines), *self.notes])

    def html(self) -> str:
        """Title, table and notes as HTML."""
        table = self.table().html() if self.rows else ""
        notes = "".join(f"<br>{html.escape(note)}" for note in self.notes)
        return f"<b>{html.escape(self.title)}</b>{table}{notes}"


def printed(show: Callable[[Any], Printout | None]) -> Callable[[Class], Class]:
    """Decorator of a class whose values print themselves.

    Args:
        show: what is shown of a value; None for a value that prints as any module does.

    Returns:
        The decorator; traced values print as any module does.
    """

    def decorate(cls: Class) -> Class:
        plain: Any = cls.__repr__

        def shown(self: Any) -> Printout | None:
            return None if is_traced(self) else show(self)

        def __repr__(self: Any) -> str:
            found = shown(self)
            return plain(self) if found is None else found.text()

        def _repr_html_(self: Any) -> str:
            found = shown(self)
            return f"<pre>{html.escape(plain(self))}</pre>" if found is None else found.html()

        cls.__repr__, cls._repr_html_ = __repr__, _repr_html_  # pyright: ignore[reportAttributeAccessIssue]
        return cls

    return decorate


def is_traced(tree: Any) -> bool:
    """Whether a transformation of JAX follows any leaf."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def is_single(tree: Any, names: Iterable[str], least: float = 1.0) -> bool:
    """Whether fields of a module are single numbers that one real thing has: no slopes, no columns of many.

    Args:
        tree: the module.
        names: of the fields.
        least: smallest number that a real thing has, in its SI unit.
    """
    values = [np.asarray(getattr(tree, name)) for name in names]
    return all(value.ndim == 0 and value >= least for value in values)


def leaf_rows(tree: Any) -> list[tuple[str, str]]:
    """Names and numbers of the leaves of a module that are not zero, the largest in size first: slopes, for one."""
    rows = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if np.any(np.asarray(leaf) != 0.0):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            rows.append((float(np.max(np.abs(leaf))), name, leaf_text(leaf)))
    return [(name, text) for _, name, text in sorted(rows, key=lambda row: -row[0])]


def leaves_shown(tree: Any) -> Printout:
    """A module whose numbers are no sizes of a real thing: slopes, elasticities, or many things stacked."""
    return Printout(type(tree).__name__, ("", ""), leaf_rows(tree))


def leaf_text(value: Any) -> str:
    """A number, or a few of an array, with as many digits as one reads."""
    array = np.asarray(value, float)
    if array.size == 1:
        number = array.item()
        return f"{number:.0f}" if number == round(number) and abs(number) < 1e9 else f"{number:.4g}"
    if array.size <= LISTED:
        return "[" + ", ".join(leaf_text(part) for part in array.ravel()) + "]"
    return f"{leaf_text(array.min())} to {leaf_text(array.max())}, {array.shape}"


def shares(terms: dict[str, Any], unit_text: Callable[[float], str]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Terms that add up, each with its share of the sum, and a note on those that are nothing.

    Args:
        terms: numbers by name.
        unit_text: a number with its unit.
    """
    values = {name: float(np.asarray(term)) for name, term in terms.items()}
    total = sum(values.values())
    rows = [(name, unit_text(value), f"{100.0 * value / total:.1f} %") for name, value in values.items() if value]
    nothing = [name for name, value in values.items() if not value]
    return rows, [f"  nothing: {', '.join(nothing)}"] if nothing else []
