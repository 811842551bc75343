"""Printed form of results and arguments: a few lines of text, or a table in a notebook."""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.core
import numpy as np

if TYPE_CHECKING:
    from jaxscale.base.table import Table

Class = TypeVar("Class", bound=type)

MOST_LINES = 25
"""Largest number of lines of a printed value [1]."""

LISTED = 4
"""Largest number of listed array elements; longer arrays print minimum and maximum [1]."""


class Printout(NamedTuple):
    """Printed form of a value.

    Attributes:
        title: first line, with the most important number.
        columns: header of the table; no header is printed if all names are empty.
        rows: cells of the table.
        notes: lines below the table.
        n_left: number of left-aligned columns; all further columns are right-aligned [1].
    """

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    n_left: int = 1

    def table(self) -> "Table":
        """Table of the rows, with columns of equal cells kept."""
        # Few programs print a value.
        from jaxscale.base.table import Table, TableColumn

        columns = (TableColumn(name, is_text=i < self.n_left, stays=True) for i, name in enumerate(self.columns))
        return Table("", tuple(columns), tuple(tuple(row) for row in self.rows))

    def text(self) -> str:
        """Title, table and notes as text of at most `MOST_LINES` lines."""
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
    """Decorator that gives a class a text form (`__repr__`) and an HTML form (`_repr_html_`) for notebooks.

    Args:
        show: function from a value to its printed form; None for the default form of a module.

    Returns:
        The decorator; traced values keep the default form.
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
    """Whether any leaf is traced by a JAX transformation."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def is_single(tree: Any, names: Iterable[str], least: float = 1.0) -> bool:
    """Whether fields of a module are scalars of at least `least`, rather than gradients or columns.

    Args:
        tree: the module.
        names: names of the fields.
        least: smallest physical value, in the SI unit.
    """
    values = [np.asarray(getattr(tree, name)) for name in names]
    return all(value.ndim == 0 and value >= least for value in values)


def leaf_rows(tree: Any) -> list[tuple[str, str]]:
    """Names and values as text of the non-zero leaves of a module, in descending order of magnitude."""
    rows = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if np.any(np.asarray(leaf) != 0.0):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            rows.append((float(np.max(np.abs(leaf))), name, leaf_text(leaf)))
    return [(name, text) for _, name, text in sorted(rows, key=lambda row: -row[0])]


def leaves_shown(tree: Any) -> Printout:
    """Printed form of a module of gradients, elasticities or stacked values: its non-zero leaves."""
    return Printout(type(tree).__name__, ("", ""), leaf_rows(tree))


def leaf_text(value: Any) -> str:
    """Text of a number with four digits, of the elements of a short array, or of the range of a long array."""
    array = np.asarray(value, float)
    if array.size == 1:
        number = array.item()
        return f"{number:.0f}" if number == round(number) and abs(number) < 1e9 else f"{number:.4g}"
    if array.size <= LISTED:
        return "[" + ", ".join(leaf_text(part) for part in array.ravel()) + "]"
    return f"{leaf_text(array.min())} to {leaf_text(array.max())}, {array.shape}"


def shares(terms: dict[str, Any], unit_text: Callable[[float], str]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Table rows of the terms of a sum with the share of each term, and a note on zero terms.

    Args:
        terms: numbers by name.
        unit_text: function from a number to its text with unit.

    Returns:
        Rows of name, value and share in per cent; a list of at most one note.
    """
    values = {name: float(np.asarray(term)) for name, term in terms.items()}
    total = sum(values.values())
    rows = [(name, unit_text(value), f"{100.0 * value / total:.1f} %") for name, value in values.items() if value]
    nothing = [name for name, value in values.items() if not value]
    return rows, [f"  nothing: {', '.join(nothing)}"] if nothing else []
