"""Compilation of long elementwise programs.

The newer CPU fusion emitters of XLA take four times as long to compile a cost model with its gradient, for no faster
program (measured on jax 0.10.2). Compilation switches the emitters off if the installed XLA has the option.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax

from jaxscale.base.programs import ProgramStore, call_of, packed_call, program_store

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
_SMALL_WORK = {**_OPTIONS, "xla_backend_optimization_level": 0}


@functools.cache
def compiler_options(small_work: bool = False) -> dict[str, Any]:
    """Compiler options accepted by the installed XLA, found on first use, since the test starts the backend.

    Args:
        small_work: whether compilation takes longer than execution.
    """
    wanted = _SMALL_WORK if small_work else _OPTIONS
    try:
        jax.jit(lambda x: x + 1.0).lower(0.0).compile(compiler_options=wanted)  # pyright: ignore[reportArgumentType]
    except (RuntimeError, ValueError):
        return {}
    return wanted


def filter_jit(function: Function) -> Function:
    """`eqx.filter_jit` with the compiler options above; no backend starts before the first call.

    Calls outside of transformations use stored programs (`programs.program_store`).
    """
    return _filtered(function)


def small_jit(function: Function) -> Function:
    """`filter_jit` for short-running programs, without optimisation: half the compilation time, half the speed."""
    return _filtered(function, small_work=True)


def _filtered(function: Function, small_work: bool = False) -> Function:
    def jitted(options: dict[str, Any]) -> Callable[..., Any]:
        return eqx.filter_jit(function, compiler_options=options)  # pyright: ignore[reportCallIssue]

    return _deferred(function, jitted, small_work)


def array_jit(function: Function) -> Function:
    """`jax.jit` with the compiler options above, for array arguments; calls are asynchronous.

    `eqx.filter_jit` waits for results, so that errors on the device surface at the call.
    """
    return _deferred(function, lambda options: jax.jit(function, compiler_options=options))


_UNKEPT = ProgramStore(None)
"""Programs of this process, used where no program folder is available."""


def concrete_jit(function: Function) -> Function:
    """Function of modules with a single compiled program for all concrete numbers.

    Inside `jax.grad`, `jax.vmap`, `jax.jit` and further transformations the function is traced. Positional
    arguments are modules; keyword arguments are static.
    """

    @functools.wraps(function)
    def call(*modules: Any, **static: Any) -> Any:
        asked = packed_call(function, modules, static)
        if asked is None:
            return function(*modules, **static)
        return (program_store() or _UNKEPT).result(asked, compiler_options)

    return cast(Function, call)


def _deferred(
    function: Function, jitted: Callable[[dict[str, Any]], Callable[..., Any]], small_work: bool = False
) -> Function:
    """Function that calls `jitted` with the compiler options on first use, or runs a stored program."""
    options = functools.partial(compiler_options, small_work)
    compiled = functools.cache(lambda: jitted(options()))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        store = program_store()
        asked = None if store is None else call_of(function, args, kwargs)
        if store is not None and asked is not None:
            return store.result(asked, options)
        return compiled()(*args, **kwargs)

    return cast(Function, call)
