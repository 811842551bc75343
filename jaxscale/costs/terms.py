"""Declaration of the cost terms: activity of the chip during each term, and drawing style in figures.

`StepTime` declares fields by `cost_term`; power, reports and figures read the resulting table, `step.TERMS`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

Kind = Literal["compute", "memory", "network", "host"]

KINDS: tuple[Kind, ...] = ("compute", "memory", "network", "host")
"""Activities of a chip: arithmetic, streaming from memory, an exposed collective or a wait for peers inside a
collective, a wait for the host."""


class Term(NamedTuple):
    """Declaration of a cost term of a step.

    Attributes:
        name: field of `StepTime`; `term_<name>_s` in tables.
        kind: activity of a chip during the term, from `KINDS`.
        colour: colour of the bar in figures, by the names of `report.style`.
        hatch: pattern that distinguishes terms of equal colour.
    """

    name: str
    kind: Kind
    colour: str
    hatch: str


def cost_term(kind: Kind, colour: str, hatch: str = "") -> Any:
    """Field of `StepTime` that declares a cost term; the arguments are the attributes of `Term`."""
    return eqx.field(metadata={"kind": kind, "colour": colour, "hatch": hatch})


def declared_terms(step: type[eqx.Module]) -> tuple[Term, ...]:
    """Cost terms declared by a class, in the order of the fields.

    Raises:
        TypeError: a field without declaration by `cost_term`.
    """
    terms = []
    for name, field in step.__dataclass_fields__.items():
        if field.metadata.get("kind") not in KINDS:
            raise TypeError(f"{step.__name__}.{name} is no cost term; expected a field made by cost_term")
        terms.append(Term(name, field.metadata["kind"], field.metadata["colour"], field.metadata["hatch"]))
    return tuple(terms)


def terms_by_name(terms: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Terms for a list of names, with zero for absent terms.

    Args:
        terms: available terms by name, at least one.
        names: names of all terms, in order.
    """
    nothing = jnp.zeros_like(next(iter(terms.values())))
    return {name: terms.get(name, nothing) for name in names}
