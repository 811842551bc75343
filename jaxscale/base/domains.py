"""Domains: valid ranges of numbers and relations between numbers, checked for scalars, arrays and cells.

A single table per class (in `data/domains.toml`, relations in `jaxscale.models.model_domain`) checks numbers from every
source: Python, TOML, a config.json, the cells of a table. Traced values are not checked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from jaxscale.base.documents import data_path, read_toml

SLACK = 1e-9
"""Tolerated relative error of sums and quotients of whole numbers in floating point [1]."""


class Bound(NamedTuple):
    """Range of a number, ends included.

    Attributes:
        low: lower end, excluded where `is_above`.
        high: upper end.
        is_above: whether the range excludes the lower end.
        meaning: description of the number, for the page of the domain.
    """

    low: float
    high: float
    is_above: bool = False
    meaning: str = ""

    def holds(self, value: Any) -> Any:
        """Whether each number is within the range; false for nan."""
        above = np.greater(value, self.low) if self.is_above else np.greater_equal(value, self.low)
        return above & np.less_equal(value, self.high)

    def __str__(self) -> str:
        """Range in words, for messages."""
        if self.is_above:
            return f"a number above {self.low:g}, at most {self.high:g}"
        return f"a number from {self.low:g} to {self.high:g}"


def bounds_of(what: str) -> dict[str, Bound]:
    """Valid ranges of the fields of a class, from `data/domains.toml`.

    Args:
        what: name of the class, for example `Transformer`.

    Returns:
        Range by name of the field.
    """
    found = {}
    for name, entry in read_toml(data_path("domains.toml"))[what].items():
        is_above = "above" in entry
        low = entry["above"] if is_above else entry["from"]
        found[name] = Bound(low, entry["to"], is_above, entry["meaning"])
    return found


class Relation(NamedTuple):
    """Condition between several numbers, for example `n_kv_heads <= n_heads`.

    Attributes:
        names: numbers that the condition reads; messages name the first number.
        holds: function of the numbers, in the order of `names`; true where the condition holds.
        wrong: function from these numbers to the error message with the valid range.
        text: statement of the condition, for the page of the domain.
    """

    names: tuple[str, ...]
    holds: Callable[..., Any]
    wrong: Callable[..., str]
    text: str


class Broken(NamedTuple):
    """Violation of a bound or relation.

    Attributes:
        name: name of the number out of range.
        rows: whether each row is wrong [row], or a truth value for a single set of numbers.
        problem: function from the index of a row to the message, with the valid range.
    """

    name: str
    rows: np.ndarray
    problem: Callable[[int], str]


@dataclass(frozen=True)
class Domain:
    """Valid ranges of the numbers of a class, and conditions between the numbers.

    Attributes:
        what: name of the class in messages.
        bounds: range of each number by name.
        relations: conditions between numbers.
    """

    what: str
    bounds: Mapping[str, Bound]
    relations: tuple[Relation, ...] = ()

    def broken(self, numbers: Mapping[str, Any]) -> Iterator[Broken]:
        """Violated bounds and relations; traced and absent numbers are not checked.

        Args:
            numbers: scalars or arrays by name [row].
        """
        known = {name: np.asarray(value, float) for name, value in numbers.items() if is_concrete(value)}
        for name, bound in self.bounds.items():
            if name in known and not np.all(inside := bound.holds(known[name])):
                yield Broken(name, ~inside, lambda row, bound=bound: f"is out of range; expected {bound}")
        for relation in self.relations:
            if not all(name in known for name in relation.names):
                continue
            values = [known[name] for name in relation.names]
            if not np.all(holds := np.asarray(relation.holds(*values))):
                yield Broken(relation.names[0], ~holds, _told(relation, values, holds.shape))

    def check(self, numbers: Mapping[str, Any]) -> None:
        """Raise an error for numbers outside of the domain; arguments as of `broken`.

        Raises:
            ValueError: the first violation, with the valid range.
        """
        for name, rows, problem in self.broken(numbers):
            row = int(np.argmax(np.ravel(rows)))
            value = float(np.ravel(np.broadcast_to(np.asarray(numbers[name], float), np.shape(rows)))[row])
            raise ValueError(f"{self.what}.{name} = {value:g} {problem(row)}")

    def page(self) -> list[str]:
        """Markdown lines with a table of the valid ranges and a list of the relations."""
        rows = [f"| `{name}` | {bound.meaning} | {bound} |" for name, bound in self.bounds.items()]
        return [f"| number of a `{self.what}` | what | valid |", "|---|---|---|", *rows, ""] + [
            f"- {relation.text}" for relation in self.relations
        ]


def _told(relation: Relation, values: list[np.ndarray], shape: tuple[int, ...]) -> Callable[[int], str]:
    """Message for the numbers of a row."""
    return lambda row: relation.wrong(*(float(np.ravel(np.broadcast_to(value, shape))[row]) for value in values))


def is_concrete(value: Any) -> bool:
    """Whether a leaf is a number or an array of numbers, neither traced nor a placeholder."""
    return isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(
        value, jax.core.Tracer
    )


def at_most(few: str, many: str) -> Relation:
    """Relation `few` <= `many` between two named numbers."""
    return Relation(
        (few, many),
        lambda least, most: np.less_equal(least, most * (1.0 + SLACK)),
        lambda least, most: f"exceeds {many} = {most:.15g}; expected at most that",
        f"`{few}` <= `{many}`",
    )


def needs(name: str, other: str, expected: str) -> Relation:
    """Relation: `name` above 0 requires `other` above 0; `expected` states the valid choices in the message."""
    return Relation(
        (name, other),
        lambda value, needed: np.less_equal(value, 0.0) | np.greater(needed, 0.0),
        lambda value, needed: f"needs {other}, which is {needed:g}; expected {expected}",
        f"`{name}` above 0 needs `{other}` above 0",
    )


def divisor_of(divisor: str, whole: str) -> Relation:
    """Relation that `divisor` divides `whole`; fractional numbers, as in a relaxed search, are accepted."""
    return Relation(
        (divisor, whole),
        lambda few, many: (np.mod(few, 1.0) > 0.0) | (np.mod(many, 1.0) > 0.0) | (np.mod(many, few) == 0.0),
        lambda few, many: f"does not divide {whole}; expected a divisor of {many:.15g}",
        f"`{divisor}` divides `{whole}`, where both are whole",
    )
