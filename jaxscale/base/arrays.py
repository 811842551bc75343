"""Array types shared by every module, and the conversion of arguments to float leaves."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

Tree = TypeVar("Tree")

if TYPE_CHECKING:
    # Static checkers know no arithmetic between floats and arrays of any backend; the run-time check below does.
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
    """Float leaf of a Python or numpy number; arrays and tracers pass through.

    Integers become floats so that `jax.grad` works on every leaf of every module.

    Args:
        value: a number, an array or a tracer.

    Returns:
        A numpy scalar for a number, which filters of equinox take for an array, else the value as a floating array.
    """
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return np.float64(value)
    if isinstance(value, np.ndarray) and not np.issubdtype(value.dtype, np.floating):
        return value.astype(float)
    return value


def weak(tree: Tree) -> Tree:
    """Tree with numpy scalars replaced by Python numbers, so that arrays decide the precision of results."""
    return jax.tree.map(lambda leaf: float(leaf) if isinstance(leaf, np.number) else leaf, tree)


def is_number(value: Any) -> bool:
    """Whether a leaf is a single concrete number, neither an array with axes nor traced."""
    return isinstance(value, int | float | np.number)


def as_arrays(tree: Tree) -> Tree:
    """The same tree with arrays for leaves: plain numbers obey neither shapes nor `.dtype`."""
    return jax.tree.map(jnp.asarray, tree)


def host_arrays(tree: Any) -> Any:
    """Tree with numpy arrays of the default precision, so that numbers and arrays share a compilation.

    Work of the host between compiled programs uses numpy, since each eager operation of JAX compiles a small program.
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(float)), tree)


def with_fields(module: Tree, changes: Mapping[str, Any]) -> Tree:
    """A copy of a module with some fields changed, traced values included."""
    values = [as_float(value) for value in changes.values()]
    return eqx.tree_at(lambda tree: [getattr(tree, name) for name in changes], module, values)


def with_columns(module: Tree, columns: Mapping[str, np.ndarray]) -> Tree:
    """Module with columns in place of scalar fields: `with_fields` for many rows, faster."""
    fields = dataclasses.fields(module)  # pyright: ignore[reportArgumentType]
    leaves = [columns.get(field.name, getattr(module, field.name)) for field in fields]
    return jax.tree.unflatten(jax.tree.structure(module), leaves)


def stacked(trees: Sequence[Tree]) -> Tree:
    """Trees of equal structure stacked along a new leading axis, on the host in double precision."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *trees)


def filled_rows(count: int, block: int) -> np.ndarray:
    """Row indices padded with the last row to whole blocks, so that few shapes are compiled [row]."""
    return np.minimum(np.arange(-(-count // block) * block), count - 1)


def in_blocks_of(size: int, function: Callable[[Any], Any], rows: Any) -> Any:
    """Results of a compiled function over rows, in blocks of a fixed size that share a program.

    Args:
        size: rows of a call; the last call is padded with the last row [1].
        function: from a tree of arrays to another, each leaf [row of a block, ...].
        rows: tree of arrays, each [row, ...].

    Returns:
        Tree of arrays of the host, each [row, ...].
    """
    count = len(jax.tree.leaves(rows)[0])
    blocks = []
    for picked in filled_rows(count, size).reshape(-1, size):
        # All leaves at once: a transfer of each by itself costs more than its bytes.
        blocks.append(function(jax.device_put(jax.tree.map(lambda leaf, own=picked: np.asarray(leaf)[own], rows))))
    # Reading only now lets the device work on one block while the host lays out the next.
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[:count], *blocks)


def number(leaf: Any) -> float:
    """A concrete leaf of a module as a Python number."""
    return float(leaf)


def divisors(whole: float | int) -> np.ndarray:
    """Divisors of a whole number, ascending [1]; of a number that is not whole, none."""
    if whole != round(whole) or whole < 1:
        return np.zeros(0, np.int64)
    small = np.arange(1, math.isqrt(round(whole)) + 1)
    small = small[round(whole) % small == 0]
    return np.unique(np.concatenate([small, round(whole) // small]))
