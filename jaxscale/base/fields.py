"""Declarations of module fields: numbers that become leaves, and arguments that stand for several fields."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx

from jaxscale.base.arrays import as_float

Class = TypeVar("Class", bound=type[eqx.Module])


def number_field(default: Any = dataclasses.MISSING) -> Any:
    """Field of a module that holds a number, from a scalar of any type.

    Args:
        default: number of an omitted field; None where further fields determine the number.
    """
    return eqx.field(converter=as_float, default=default)


def with_properties(**properties: property) -> Callable[[Class], Class]:
    """Decorator of a module: arguments that are no fields (`InitVar`), read as properties of a finished module.

    Args:
        properties: property of each argument.

    Returns:
        The decorator.
    """

    def decorate(module: Class) -> Class:
        for name, value in properties.items():
            # Without its pseudo-field, `dataclasses.replace` leaves the argument out, and keeps the fields behind it.
            del module.__dataclass_fields__[name]
            setattr(module, name, value)
        return module

    return decorate
