r"""Time of kernels on the devices at hand: iterations chained inside one program, so that no launch of it is timed.

Each iteration writes one number of its result into its first argument, so that none can be left out or done once for
all. A timing is the median of repeats after a warm-up. One kernel is timed again and again between all others: its
drift tells of clocks that throttle.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from jaxscale.measuring.timed_kernels import TimedKernel, TimedProgram, program_of

WINDOW = 0.004
"""Least time of the program that is timed, beside which that of its launch is small [s]."""

GAP = 1e-6
"""Rough time of the smallest kernel [s]."""

MOST_TURNS = 2048
"""Most iterations of a program [1]."""

LEAST_REPEATS, MOST_REPEATS = 5, 50
"""Repeats of a timing [1]."""

PART = 0.004
"""Share of the time of a whole measurement that a timing may take [1]."""


class Timing(NamedTuple):
    """A kernel and how long it took.

    Attributes:
        kernel: kind and sizes.
        seconds: what counts: the median, or the least on a processor, which other programs use as well [s].
        median: of repeats [s].
        least: of repeats [s].
        flop: of matmuls [flop].
        bytes: read and written, each array once [byte].
    """

    kernel: TimedKernel
    seconds: float
    median: float
    least: float
    flop: float
    bytes: float

    @property
    def rate(self) -> float:
        """Attained rate of matmuls [flop/s]."""
        return self.flop / self.seconds


def times_of_repeats(call: Callable[[], Any], seconds: float) -> Float[np.ndarray, " repeat"]:
    """Times of repeats of a call after a warm-up, as many as a budget holds [s].

    Args:
        call: returns arrays, for which is waited.
        seconds: of all repeats [s].
    """
    jax.block_until_ready(call())
    jax.block_until_ready(call())
    times: list[float] = []
    while len(times) < LEAST_REPEATS or (len(times) < MOST_REPEATS and sum(times) < seconds):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return np.asarray(times)


def empty(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Zeros in the shapes of the result of a function."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


def chain_of_turns(function: Callable[..., Any], turns: int) -> Callable[..., Any]:
    """Function that runs another in so many turns, each after the last one, from arguments and any result.

    Args:
        function: of arrays, the first of them of floating point.
        turns: iterations [1].
    """

    def turn(_: Any, carried: Any) -> Any:
        arguments, _ = carried
        result = function(*arguments)
        first, tree = jax.tree.flatten(arguments)
        told = jax.tree.leaves(result)[0]
        number = told[(0,) * told.ndim] * 0.01
        first[0] = first[0].at[(0,) * first[0].ndim].set(number.astype(first[0].dtype))
        return jax.tree.unflatten(tree, first), result

    return lambda arguments, result: lax.fori_loop(0, turns, turn, (arguments, result))


def again_and_again(run: Callable[..., Any], state: tuple[Any, Any]) -> Callable[[], Any]:
    """Function without arguments that calls another with what it returned the last time, in the same memory.

    Args:
        run: of arguments and result, to arguments and result.
        state: with which it begins; its memory is used.
    """
    held, compiled = [state], jax.jit(run, donate_argnums=(0, 1))

    def call() -> Any:
        held[0] = compiled(*held[0])
        return held[0]

    return call


def random_arguments(program: TimedProgram, device: Any) -> tuple[Any, ...]:
    """Normal random numbers of the shapes of a program, on a device: zeros would draw less power."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def one(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jax.random.randint(next(keys), leaf.shape, 0, max(leaf.size, 1), leaf.dtype)
        # Squares of moments are positive.
        return jnp.abs(jax.random.normal(next(keys), leaf.shape, jnp.float32)).astype(leaf.dtype)

    with jax.default_device(device):
        return tuple(jax.tree.map(one, shape) for shape in program.shapes)


class Stopwatch:
    """Times kernels on a device, within a time for all of them.

    Attributes:
        device: of JAX.
        seconds: for all kernels [s].
        rate: best rate of matmuls so far [flop/s].
        bandwidth: best so far [byte/s].
        reference: times of the kernel that is repeated between the others [s].
    """

    def __init__(self, device: Any, seconds: float):
        """Start the clock."""
        self.device, self.seconds, self.begin = device, seconds, time.perf_counter()
        self.rate, self.bandwidth = 2e10, 5e9
        self.reference: list[float] = []
        self.attention = "cudnn" if device.platform == "gpu" else "xla"
        self._again: Callable[[], Any] | None = None

    @property
    def spent(self) -> float:
        """Time since the start [s]."""
        return time.perf_counter() - self.begin

    def expected(self, program: TimedProgram) -> float:
        """Rough time of a kernel [s]."""
        return program.flop / self.rate + program.bytes / self.bandwidth + GAP

    def suits(self, program: TimedProgram, is_small: bool) -> bool:
        """Whether a kernel is neither too short to tell, nor too long for the time or too large for the memory."""
        room = (self.device.memory_stats() or {}).get("bytes_limit", 8e9)
        expected = self.expected(program)
        is_short = (LEAST_REPEATS + 2) * expected < max(0.01 * self.seconds, WINDOW)
        return is_short and program.bytes < room / 8.0 and (is_small or expected > 2.0 * GAP)

    def time(self, kernel: TimedKernel) -> Timing | None:
        """Time of a kernel; None where it does not suit the device."""
        program = program_of(kernel, self.attention if kernel.dtype == "bf16" else "xla")
        if not self.suits(program, kernel.op in ("launch", "optimizer") or kernel.m == kernel.n):
            return None
        turns = min(max(math.ceil(WINDOW / self.expected(program)), 1), MOST_TURNS)
        arguments = random_arguments(program, self.device)
        with jax.default_device(self.device):
            call = again_and_again(
                chain_of_turns(program.function, turns), (arguments, empty(program.function, arguments))
            )
        times = times_of_repeats(call, PART * self.seconds) / turns
        median, least = float(np.median(times)), float(np.min(times))
        told = least if self.device.platform == "cpu" else median
        timing = Timing(kernel, told, median, least, program.flop, program.bytes)
        if kernel.op == "matmul":
            self.rate = max(self.rate, timing.rate)
        if kernel.op == "stream":
            self.bandwidth = max(self.bandwidth, timing.bytes / timing.seconds)
        if kernel.op == "matmul" and self._again is None:
            self._again = call
        return timing

    def time_reference(self) -> None:
        """Time the reference kernel once more."""
        if self._again is not None:
            begin = time.perf_counter()
            jax.block_until_ready(self._again())
            self.reference.append(time.perf_counter() - begin)

    def time_all(self, kernels: Sequence[TimedKernel]) -> Iterator[Timing | None]:
        """Timings of kernels, as many as the time holds; None for one that does not suit the device."""
        for kernel in kernels:
            if self.spent > self.seconds:
                return
            yield self.time(kernel)
            self.time_reference()


def launch_seconds(device: Any) -> float:
    """Time of a program that does nothing, from its call until its result is there [s]."""
    nothing = jax.jit(lambda x: x + 1.0)
    argument = jax.device_put(jnp.zeros(()), device)
    return float(np.median(times_of_repeats(lambda: nothing(argument), 0.05)))


DRIFT = 0.05
"""Slowdown from which a drift of clocks is told [1]."""

SURE = 3.0
"""Standard errors by which a slowdown is told from noise [1]."""


class Drift(NamedTuple):
    """Slowdown of a kernel that was timed again and again.

    Attributes:
        slowdown: time in the last third over that in the first, less 1 [1].
        error: standard error of it [1].
    """

    slowdown: float
    error: float

    @property
    def throttles(self) -> bool:
        """Whether clocks throttle: a slowdown beyond a twentieth, and beyond the noise."""
        return self.slowdown > max(DRIFT, SURE * self.error)


UNKNOWN_DRIFT = Drift(0.0, math.inf)
"""Drift of too few repeats."""


def drift_of(seconds: Sequence[float] | np.ndarray) -> Drift:
    """Drift of the times of one kernel, in the order in which they were taken [s].

    Medians of the first and of the last third are compared; errors follow from the median deviation within both.
    """
    third = len(seconds) // 3
    if third < 3:
        return UNKNOWN_DRIFT
    logs = np.log(np.asarray(seconds, float))
    ends = [logs[:third], logs[-third:]]
    middles = [float(np.median(end)) for end in ends]
    spread = np.median(np.abs(np.concatenate([end - middle for end, middle in zip(ends, middles, strict=True)])))
    # Deviation of a normal number by its median deviation, 1.48; of a median by that of the mean, 1.25.
    error = 1.48 * 1.25 * float(spread) * math.sqrt(2.0 / third)
    return Drift(math.expm1(middles[1] - middles[0]), error)
