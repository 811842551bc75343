"""Compilation of long elementwise programs, and compiled programs stored for later processes.

The newer CPU fusion emitters of XLA take four times as long to compile a cost model with its gradient, for no faster
program (measured on jax 0.10.2). Compilation switches the emitters off if the installed XLA has the option.

JAX's compilation cache saves compilation alone; tracing and lowering a cost model take half as long again. Here the key
of a program is the function, the structure of its arguments and the state of the package, so that neither tracing nor
lowering is needed. The store is in the user's cache folder; the environment variable `JAXSCALE_CACHE` names a different
folder, or says `off`. Loading a program executes its file: files and folders writable by further users are not read.
"""

import functools
import hashlib
import itertools
import math
import os
import pickle
import platform
import shutil
import threading
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.core
import numpy as np
from jax.experimental import serialize_executable
from jax.stages import Compiled

from jaxscale.base.documents import data_path
from jaxscale.base.errors import InputError
from jaxscale.base.files import is_private, write_whole

MOST_FOLDERS = 4
"""Number of package states with kept programs: the present state and those used last [1]."""

CHECKSUM_BYTES = 32
"""Length of the checksum before a program, SHA-256 [byte]."""


class Output(NamedTuple):
    """Placeholder for an array in the result of a program: the index of the array among the program's outputs."""

    index: int


class Program(NamedTuple):
    """Compiled program and the structure of the result.

    Attributes:
        run: function from a list of arrays to a list of arrays.
        result: result of the function, with an `Output` in place of each array.
    """

    run: Callable[..., Any]
    result: Any


class Call(NamedTuple):
    """Call of a function, with arrays separated from static arguments.

    Attributes:
        function: function of a module.
        structure: tree of positional and keyword arguments.
        static: leaves other than arrays, None in place of each array.
        arrays: array leaves.
        packed: shapes of the arrays packed into a single vector; None for separate arrays.
    """

    function: Callable[..., Any]
    structure: Any
    static: tuple[Any, ...]
    arrays: list[Any]
    packed: tuple[tuple[int, ...], ...] | None = None

    def signature(self) -> Hashable:
        """Key of the call for the program store; calls with equal keys share a compiled program."""
        # Weak types affect the precision of results, hence the program.
        shapes = tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in self.arrays)
        wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        return self.function, self.structure, self.static, (shapes, self.packed), wide

    def leaves(self, arrays: Iterable[Any]) -> Iterator[Any]:
        """Array leaves of the call, unpacked from the arguments of the program."""
        if self.packed is None:
            yield from arrays
            return
        (vector,), begin = arrays, 0
        for shape in self.packed:
            end = begin + math.prod(shape)
            yield vector[begin:end].reshape(shape)
            begin = end

    def name(self) -> str | None:
        """File name of the call's program; None if the signature has no text that is stable between processes."""
        function, structure, static, shapes, wide = self.signature()  # pyright: ignore[reportGeneralTypeIssues]
        text = repr((function.__module__, function.__qualname__, str(structure), static, shapes, wide))
        # Such texts are addresses of functions or objects, or arrays printed incompletely.
        if " at 0x" in text or "..." in text or "<locals>" in function.__qualname__:
            return None
        return f"{function.__qualname__}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.xla"


def call_of(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call | None:
    """Call with arrays separated from static arguments; None if any argument is traced by a JAX transformation."""
    leaves, structure = jax.tree.flatten((arguments, keywords))
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    static = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
    return Call(function, structure, static, [leaf for leaf in leaves if eqx.is_array(leaf)])


def packed_call(function: Callable[..., Any], arguments: tuple[Any, ...], static: dict[str, Any]) -> Call | None:
    """Call with the numbers of all modules packed into a vector, for a single transfer to the device.

    A transfer for each of a hundred numbers would take longer than the execution of most programs.

    A transfer to the device for each of some hundred numbers would take longer than the execution of most programs.

    Args:
        function: function of a module.
        arguments: modules, whose leaves are all numbers or arrays of numbers.
        static: further arguments by name, on which a program depends.

    Returns:
        The call; None if a number is traced, or if a static argument is neither a number nor a text.
    """
    leaves = jax.tree.leaves(arguments)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    if not all(isinstance(leaf, int | float | str) for leaf in jax.tree.leaves(static)):
        return None
    arrays = [np.asarray(leaf) for leaf in leaves]
    vector = np.concatenate([array.ravel() for array in arrays])
    structure = jax.tree.structure((arguments, static))
    apart = (*(None for _ in arrays), *jax.tree.leaves(static))
    return Call(function, structure, apart, [vector], tuple(array.shape for array in arrays))


class ProgramStore:
    """Store of compiled programs: in memory for this process, and in a folder for later processes."""

    def __init__(self, folder: Path | None):
        """Args: folder: folder of the programs; None for programs of this process alone."""
        self._folder = folder
        self._loaded: dict[Hashable, Program] = {}
        self._lock = threading.Lock()

    def result(self, call: Call, options: Callable[[], dict[str, Any]]) -> Any:
        """Result of a call; the program comes from memory, else from the folder, else from compilation.

        Args:
            call: function and arguments.
            options: function that returns the compiler options.

        Returns:
            The result of the function.
        """
        signature = call.signature()
        program = self._loaded.get(signature)
        if program is None:
            with self._lock:
                program = self._loaded.get(signature) or self._program(call, options)
                self._loaded[signature] = program
        outputs = program.run(*call.arrays)
        return jax.tree.map(
            lambda leaf: outputs[leaf.index] if isinstance(leaf, Output) else leaf,
            program.result,
            is_leaf=lambda leaf: isinstance(leaf, Output),
        )

    def _program(self, call: Call, options: Callable[[], dict[str, Any]]) -> Program:
        name = call.name()
        if name is None or self._folder is None:
            return compiled_program(call, options)[0]
        path = self._folder / state_of_package() / name
        return read_program(path) or self._written(self._folder, path, call, options)

    def _written(self, folder: Path, path: Path, call: Call, options: Callable[[], dict[str, Any]]) -> Program:
        program, compiled = compiled_program(call, options)
        if jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
            # A program from JAX's cache cannot be serialised again without loss.
            return program
        try:
            content = serialised(path, program, compiled)
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, mode=0o700)
                drop_folders(folder)
            write_whole(path, content, private=True)
        except (AttributeError, InputError, OSError, TypeError, ValueError, pickle.PicklingError):
            # A full disk, or a program with functions created at run time: the next process compiles again.
            pass
        return program


def compiled_program(call: Call, options: Callable[[], dict[str, Any]]) -> tuple[Program, Compiled]:
    """Trace and compile the program of a call.

    Args:
        call: function and arguments.
        options: function that returns the compiler options.

    Returns:
        The program, and the compiled object of JAX.
    """
    results: list[Any] = []

    def with_arrays(*arrays: Any) -> list[Any]:
        given = call.leaves(arrays)
        leaves = [next(given) if leaf is None else leaf for leaf in call.static]
        positional, keywords = jax.tree.unflatten(call.structure, leaves)
        outputs, structure = jax.tree.flatten(call.function(*positional, **keywords))
        places = itertools.count()
        marked = [Output(next(places)) if eqx.is_array(leaf) else leaf for leaf in outputs]
        results.append(jax.tree.unflatten(structure, marked))
        return [leaf for leaf in outputs if eqx.is_array(leaf)]

    compiled = jax.jit(with_arrays).lower(*call.arrays).compile(compiler_options=options())  # pyright: ignore
    return Program(compiled, results[-1]), compiled


def serialised(path: Path, program: Program, compiled: Compiled) -> bytes:
    """Content of a program file: a checksum and the serialised program."""
    content = zlib.compress(pickle.dumps((*serialize_executable.serialize(compiled), program.result)), level=1)
    return checksum(path, content) + content


def checksum(path: Path, content: bytes) -> bytes:
    """SHA-256 of a serialised program with its file name; a program file renamed for another call fails the check."""
    return hashlib.sha256(f"{path.parent.name}/{path.name}\n".encode() + content).digest()


def read_program(path: Path) -> Program | None:
    """Program from a file; None for a missing, foreign or damaged file, or a file of a different JAX version."""
    try:
        with path.open("rb") as file:
            if not (is_private(path.parent.stat()) and is_private(os.fstat(file.fileno()))):
                return None
            stated, content = file.read(CHECKSUM_BYTES), file.read()
        if checksum(path, content) != stated:
            return None
        *executable, result = pickle.loads(zlib.decompress(content))
        return Program(serialize_executable.deserialize_and_load(*executable), result)
    except Exception:  # noqa: BLE001 - whatever is wrong with a file of a cache, the program can be compiled again
        return None


@functools.cache
def state_of_package() -> str:
    """Hash of the package sources, data, versions, settings and machine, on which compiled programs depend."""
    folders = (os.walk(Path(__file__).parents[1]), os.walk(data_path(".")))
    named = (os.path.join(folder, name) for folder, _, names in itertools.chain(*folders) for name in names)
    states = [(file, os.stat(file)) for file in sorted(named) if file.endswith((".py", ".toml"))]
    stamps = [(file, state.st_size, state.st_mtime_ns) for file, state in states]
    settings = sorted(pair for pair in os.environ.items() if pair[0].startswith(("JAX_", "XLA_")))
    device = jax.devices()[0]
    machine = (platform.machine(), _processor(), jax.device_count(), device.platform, device.device_kind)
    versions = (jax.__version__, eqx.__version__, platform.python_version())
    return hashlib.sha256(repr((stamps, settings, machine, versions)).encode()).hexdigest()[:32]


def _processor() -> str:
    """Model and instruction sets of the processor, on which compiled programs depend."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            lines = text.read(8192).splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines if line.startswith(("model name", "flags", "Features")))


def drop_folders(folder: Path) -> None:
    """Delete the stored programs of earlier package states, except the `MOST_FOLDERS` states used last."""
    states = sorted(folder.iterdir(), key=lambda state: state.stat().st_mtime, reverse=True)
    for state in states[MOST_FOLDERS:]:
        shutil.rmtree(state, ignore_errors=True)


_STORES: list[ProgramStore | None] = []
"""Store of this process, after the first request."""


def program_store() -> ProgramStore | None:
    """Store of compiled programs of this process; None if `cache_folder` has no folder."""
    if not _STORES:
        folder = cache_folder()
        _STORES.append(None if folder is None else ProgramStore(folder))
    return _STORES[0]


def cache_folder() -> Path | None:
    """Folder for compiled programs: `JAXSCALE_CACHE`, else below `XDG_CACHE_HOME` or `~/.cache`.

    Returns:
        The folder; None if it cannot be made, belongs to a different user, or `JAXSCALE_CACHE` is `off`.
    """
    stated = os.environ.get("JAXSCALE_CACHE", "")
    if stated.lower() == "off":
        return None
    try:
        base = Path(stated) if stated else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxscale"
        folder = base / f"jax-{jax.__version__}"
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        # Folders of earlier releases may be group-writable, so permissions are restricted here.
        if hasattr(os, "geteuid") and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)
        is_own = is_private(folder.stat())
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if is_own and os.access(folder, os.W_OK) else None


Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
_SMALL_WORK = {**_OPTIONS, "xla_backend_optimization_level": 0}


@functools.cache
def compiler_options(small_work: bool = False) -> dict[str, Any]:
    """Compiler options accepted by the installed XLA; determined on first use, since the test starts the backend.

    Args:
        small_work: whether to compile without optimisation, for short programs.
    """
    wanted = _SMALL_WORK if small_work else _OPTIONS
    try:
        jax.jit(lambda x: x + 1.0).lower(0.0).compile(compiler_options=wanted)  # pyright: ignore[reportArgumentType]
    except (RuntimeError, ValueError):
        return {}
    return wanted


def filter_jit(function: Function) -> Function:
    """`eqx.filter_jit` with the options of `compiler_options`; no backend starts before the first call.

    Calls outside of JAX transformations run programs of `program_store`.
    """
    return _filtered(function)


def small_jit(function: Function) -> Function:
    """`filter_jit` without compiler optimisation, for short programs: half the compilation time, half the speed."""
    return _filtered(function, small_work=True)


def _filtered(function: Function, small_work: bool = False) -> Function:
    def jitted(options: dict[str, Any]) -> Callable[..., Any]:
        return eqx.filter_jit(function, compiler_options=options)  # pyright: ignore[reportCallIssue]

    return _deferred(function, jitted, small_work)


def array_jit(function: Function) -> Function:
    """`jax.jit` with the options of `compiler_options`, for functions of arrays; calls are asynchronous.

    `eqx.filter_jit` in contrast waits for results, to raise errors of the device at the call.

    `eqx.filter_jit` waits for results, so that errors on the device surface at the call.
    """
    return _deferred(function, lambda options: jax.jit(function, compiler_options=options))


_UNKEPT = ProgramStore(None)
"""Programs of this process, used where no program folder is available."""


def concrete_jit(function: Function) -> Function:
    """Decorator that compiles a function of modules into a single program for all concrete values of the numbers.

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
