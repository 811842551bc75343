"""Declarations of module fields: numbers as leaves, and arguments that replace several fields."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx

from jaxscale.base.arrays import as_float

Class = TypeVar("Class", bound=type[eqx.Module])


def number_field(default: Any = dataclasses.MISSING) -> Any:
    """Field of a module for a number, converted from a scalar of any type.

    Args:
        default: value of an omitted field; None if further fields determine the number.
    """
    return eqx.field(converter=as_float, default=default)


def with_properties(**properties: property) -> Callable[[Class], Class]:
    """Decorator of a module with init-only arguments (`InitVar`), readable as properties of a finished module.

    Args:
        properties: property of each argument.

    Returns:
        The decorator.
    """

    def decorate(module: Class) -> Class:
        for name, value in properties.items():
            # Without the pseudo-field, `dataclasses.replace` omits the argument and keeps the fields derived from it.
            del module.__dataclass_fields__[name]
            setattr(module, name, value)
        return module

    return decorate
