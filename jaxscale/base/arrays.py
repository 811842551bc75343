"""Array types shared by all modules, conversion of arguments to float leaves, and fields that hold numbers."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

Tree = TypeVar("Tree")

if TYPE_CHECKING:
    # Static checkers cannot type arithmetic between floats and arrays of any backend; run-time checks can.
    Number = PerPrecision = PerTarget = PerLevel = Any
else:
    Number = Float[ArrayLike, "*batch"]
    """A float leaf of a module: one number, or one for each row of a batch."""

    PerPrecision = Float[ArrayLike, "*batch precision"]
    """One number for each number format of the weight matmuls."""

    PerTarget = Float[ArrayLike, "*batch matmul"]
    """One number for each matmul of a layer that may have an adapter."""

    PerLevel = Float[ArrayLike, "*batch level"]
    """One number for each network level."""


N_LEVELS = 3
"""Network levels: 0 scale-up domain (NVLink, ICI), 1 scale-out (InfiniBand, RoCE, DCN), 2 spine."""


def as_float(value: Any) -> Any:
    """Convert a Python or numpy number to a float leaf; arrays and tracers pass through.

    Integers become floats so that `jax.grad` works on every leaf of every module.

    Args:
        value: a number, an array or a tracer.

    Returns:
        A numpy scalar for a number (an array for the filters of equinox), else the value as a floating-point array.
    """
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return np.float64(value)
    if isinstance(value, np.ndarray) and not np.issubdtype(value.dtype, np.floating):
        return value.astype(float)
    return value


def weak(tree: Tree) -> Tree:
    """Tree with numpy scalars replaced by Python numbers, so that only arrays determine the precision of results."""
    return jax.tree.map(lambda leaf: float(leaf) if isinstance(leaf, np.number) else leaf, tree)


def as_arrays(tree: Tree) -> Tree:
    """Tree with every leaf as a JAX array; a plain number has neither `.shape` nor `.dtype`."""
    return jax.tree.map(jnp.asarray, tree)


def host_arrays(tree: Any) -> Any:
    """Tree with leaves as numpy arrays of the default precision, so that numbers and arrays share a compiled program.

    Host code between compiled programs uses numpy, since each eager JAX operation compiles a small program.
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), tree)


def with_fields(module: Tree, changes: Mapping[str, Any]) -> Tree:
    """Copy of a module with changed fields, which may be traced."""
    values = [as_float(value) for value in changes.values()]
    return eqx.tree_at(lambda tree: [getattr(tree, name) for name in changes], module, values)


def with_columns(module: Tree, columns: Mapping[str, np.ndarray]) -> Tree:
    """Copy of a module with arrays, a value per row, in scalar fields; faster than `with_fields` for many rows.

    Args:
        module: the module.
        columns: values of the changed fields by name, each [row].
    """
    fields = dataclasses.fields(module)  # pyright: ignore[reportArgumentType]
    leaves = [columns.get(field.name, getattr(module, field.name)) for field in fields]
    return jax.tree.unflatten(jax.tree.structure(module), leaves)


def stacked(trees: Sequence[Tree]) -> Tree:
    """Trees of equal structure stacked along a new leading axis, as numpy arrays in double precision."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *trees)


def stated_or(numbers: np.ndarray, otherwise: float | np.ndarray) -> np.ndarray:
    """Copy of an array with nan replaced by a default, a single number or a number per row."""
    return np.where(np.isnan(numbers), otherwise, numbers)


def as_whole(value: Any) -> Any:
    """Convert a float without fraction to an integer; any other value is returned unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def total_of(terms: Iterable[jax.Array]) -> jax.Array:
    """Sum of one or more arrays; the sum starts from the first array, so that no zero is traced."""
    first, *others = terms
    return sum(others, start=first)


def filled_rows(count: int, block: int) -> np.ndarray:
    """Row indices, padded by repetition of the last row to a multiple of the block size [row].

    Padding limits the number of shapes for compilation.

    Args:
        count: number of rows [1].
        block: rows per block [1].
    """
    return np.minimum(np.arange(-(-count // block) * block), count - 1)


def in_blocks_of(size: int, function: Callable[[Any], Any], rows: Any) -> Any:
    """Evaluate a compiled function of rows in blocks of a fixed size, which share a program.

    Args:
        size: rows per call; the last call is padded with the last row [1].
        function: function from a tree of arrays to a tree of arrays, each leaf [row of a block, ...].
        rows: tree of arrays, each [row, ...].

    Returns:
        Tree of numpy arrays, each [row, ...].
    """
    count = len(jax.tree.leaves(rows)[0])
    blocks = []
    for picked in filled_rows(count, size).reshape(-1, size):
        # One transfer of all leaves: the latency of a transfer per leaf exceeds the time for the bytes.
        blocks.append(function(jax.device_put(jax.tree.map(lambda leaf, own=picked: np.asarray(leaf)[own], rows))))
    # Results are read after all calls, so that the device computes a block while the host prepares the next.
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[:count], *blocks)


def number(leaf: Any) -> float:
    """A concrete leaf of a module as a Python number."""
    return float(leaf)


def divisors(whole: float | int) -> np.ndarray:
    """Divisors of a whole number, ascending [1]; empty for a fractional number."""
    if whole != round(whole) or whole < 1:
        return np.zeros(0, np.int64)
    small = np.arange(1, math.isqrt(round(whole)) + 1)
    small = small[round(whole) % small == 0]
    return np.unique(np.concatenate([small, round(whole) // small]))


Class = TypeVar("Class", bound=type[eqx.Module])


def number_field(default: Any = dataclasses.MISSING) -> Any:
    """Field of a module for a number, converted from a scalar of any type.

    Args:
        default: value of an omitted field; None if the module computes the number from further fields.
    """
    return eqx.field(converter=as_float, default=default)


def with_properties(**properties: property) -> Callable[[Class], Class]:
    """Decorator of a module class: init-only arguments (`InitVar`) become readable properties of an instance.

    Args:
        properties: property by name of the init-only argument.

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
