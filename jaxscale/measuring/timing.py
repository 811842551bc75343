r"""Time of kernels and collectives on local devices: iterations chained inside one program, so launches are not timed.

Each iteration writes a number of its result into its first argument, so that the compiler can neither omit nor hoist
an iteration. A timing is the median of repeats after a warm-up. A reference kernel is timed repeatedly between all
kernels: its drift shows throttled clocks.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from jaxscale.measuring.timed_kernels import TimedKernel, TimedProgram, program_of

WINDOW = 0.004
"""Minimum time of a timed program, so that the launch time is negligible [s]."""

GAP = 1e-6
"""Rough time of the smallest kernel [s]."""

MOST_TURNS = 2048
"""Maximum number of iterations of a program [1]."""

LEAST_REPEATS, MOST_REPEATS = 5, 50
"""Minimum and maximum number of repeats of a timing [1]."""

PART = 0.004
"""Maximum share of the time of a whole measurement for a timing [1]."""


class Timing(NamedTuple):
    """Times of a kernel over repeats, with flop and bytes.

    Attributes:
        kernel: operation and sizes.
        seconds: representative time: the median, or the minimum on a CPU shared with further programs [s].
        median: median over the repeats [s].
        least: minimum over the repeats [s].
        flop: flop of matmuls [flop].
        bytes: bytes read and written, each array once [byte].
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


def representative_times(times: Float[np.ndarray, " repeat"], device: Any) -> tuple[float, float, float]:
    """Representative time, median and minimum over repeats; the first is the minimum on a shared CPU [s]."""
    median, least = float(np.median(times)), float(np.min(times))
    return least if device.platform == "cpu" else median, median, least


def times_of_repeats(call: Callable[[], Any], seconds: float) -> Float[np.ndarray, " repeat"]:
    """Times of repeats of a call after a warm-up, within a time budget [s].

    Args:
        call: function that returns arrays, awaited in each repeat.
        seconds: total time of all repeats [s].
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
    """Function that runs a given function repeatedly in one program, each turn after the last.

    The returned function maps arguments and any result of the given function to the last arguments and result.

    Args:
        function: function of arrays, the first of floating point.
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
    """Function without arguments that calls `run` with the previous output of `run`, in the same memory.

    Args:
        run: function from arguments and result to arguments and result.
        state: initial arguments and result, whose memory is reused.
    """
    held, compiled = [state], jax.jit(run, donate_argnums=(0, 1))

    def call() -> Any:
        held[0] = compiled(*held[0])
        return held[0]

    return call


def random_arguments(program: TimedProgram, device: Any) -> tuple[Any, ...]:
    """Normal random arguments of a program on a device; zeros would draw less power and so raise the clock."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def one(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jax.random.randint(next(keys), leaf.shape, 0, max(leaf.size, 1), leaf.dtype)
        # Second moments are positive.
        return jnp.abs(jax.random.normal(next(keys), leaf.shape, jnp.float32)).astype(leaf.dtype)

    with jax.default_device(device):
        return tuple(jax.tree.map(one, shape) for shape in program.shapes)


class Stopwatch:
    """Timer of kernels on a device, within a time budget.

    Attributes:
        device: device of JAX.
        seconds: time for all kernels [s].
        rate: best rate of matmuls so far [flop/s].
        bandwidth: best bandwidth so far [byte/s].
        reference: times of the reference kernel, repeated between all kernels [s].
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
        """Rough time of a kernel from the best rates so far, flop / rate + bytes / bandwidth + `GAP` [s]."""
        return program.flop / self.rate + program.bytes / self.bandwidth + GAP

    def suits(self, program: TimedProgram, is_small: bool) -> bool:
        """Whether a kernel is long enough to be timed, short enough for the time budget, and fits in memory."""
        room = (self.device.memory_stats() or {}).get("bytes_limit", 8e9)
        expected = self.expected(program)
        is_short = (LEAST_REPEATS + 2) * expected < max(0.01 * self.seconds, WINDOW)
        return is_short and program.bytes < room / 8.0 and (is_small or expected > 2.0 * GAP)

    def time(self, kernel: TimedKernel) -> Timing | None:
        """Times of a kernel; None if unsuitable for the device."""
        program = program_of(kernel, self.attention if kernel.dtype == "bf16" else "xla")
        if not self.suits(program, kernel.op in ("launch", "optimizer") or kernel.m == kernel.n):
            return None
        turns = min(max(math.ceil(WINDOW / self.expected(program)), 1), MOST_TURNS)
        arguments = random_arguments(program, self.device)
        with jax.default_device(self.device):
            call = again_and_again(
                chain_of_turns(program.function, turns), (arguments, empty(program.function, arguments))
            )
        times = representative_times(times_of_repeats(call, PART * self.seconds) / turns, self.device)
        timing = Timing(kernel, *times, program.flop, program.bytes)
        if kernel.op == "matmul":
            self.rate = max(self.rate, timing.rate)
        if kernel.op == "stream":
            self.bandwidth = max(self.bandwidth, timing.bytes / timing.seconds)
        if kernel.op == "matmul" and self._again is None:
            self._again = call
        return timing

    def time_reference(self) -> None:
        """Time the reference kernel again and append the time to `reference`."""
        if self._again is not None:
            begin = time.perf_counter()
            jax.block_until_ready(self._again())
            self.reference.append(time.perf_counter() - begin)

    def time_all(self, kernels: Sequence[TimedKernel]) -> Iterator[Timing | None]:
        """Timings of kernels within the total time; None for a kernel unsuitable for the device."""
        for kernel in kernels:
            if self.spent > self.seconds:
                return
            yield self.time(kernel)
            self.time_reference()


def launch_seconds(device: Any) -> float:
    """Time of an empty program, from its call to its result [s]."""
    nothing = jax.jit(lambda x: x + 1.0)
    argument = jax.device_put(jnp.zeros(()), device)
    return float(np.median(times_of_repeats(lambda: nothing(argument), 0.05)))


DRIFT = 0.05
"""Minimum slowdown for a report of clock drift [1]."""

NOTABLE = 0.15
"""Slowdown above which a measurement without a verdict is of no use: a clock at seven eighths [1]."""

SURE = 3.0
"""Number of standard errors by which a slowdown must exceed noise [1]."""


class Drift(NamedTuple):
    """Slowdown of the reference kernel during a measurement.

    Attributes:
        slowdown: time in the last third over time in the first third, minus 1 [1].
        error: standard error of the slowdown [1].
    """

    slowdown: float
    error: float

    @property
    def throttles(self) -> bool:
        """Whether the clock throttles: a slowdown above 5 % and above three standard errors."""
        return self.slowdown > max(DRIFT, SURE * self.error)

    @property
    def is_known(self) -> bool:
        """Whether the noise is low enough to detect a slowdown of `NOTABLE`.

        A speed-up of that size counts as noise.
        """
        return SURE * self.error <= NOTABLE and self.slowdown >= -NOTABLE


UNKNOWN_DRIFT = Drift(0.0, math.inf)
"""Drift for too few repeats."""


def drift_of(seconds: Sequence[float] | np.ndarray) -> Drift:
    """Slowdown of a kernel over the repeats, with standard error, from the times in the order of measurement [s].

    The slowdown compares the medians of the first and the last third; the standard error follows from the median
    deviation within both thirds.
    """
    third = len(seconds) // 3
    if third < 3:
        return UNKNOWN_DRIFT
    logs = np.log(np.asarray(seconds, float))
    ends = [logs[:third], logs[-third:]]
    middles = [float(np.median(end)) for end in ends]
    spread = np.median(np.abs(np.concatenate([end - middle for end, middle in zip(ends, middles, strict=True)])))
    # 1.48: standard over median deviation of a normal variable; 1.25: standard error of median over mean.
    error = 1.48 * 1.25 * float(spread) * math.sqrt(2.0 / third)
    return Drift(math.expm1(middles[1] - middles[0]), error)


SIZES = tuple(2**power for power in range(16, 31, 2))
"""Sizes of the whole array of a collective [byte]."""

COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_reduce": lambda x: lax.psum(x, "chips"),
    "all_gather": lambda x: lax.all_gather(x, "chips", tiled=True),
    "reduce_scatter": lambda x: lax.psum_scatter(x, "chips", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "chips", 0, 0, tiled=True),
}
"""Collectives by name, on the shard of a chip."""


class CollectiveTiming(NamedTuple):
    """Times of a collective over repeats.

    Attributes:
        collective: a name of `COLLECTIVES`.
        n_gpus: chips of the group [1].
        size: size of the array of each chip, after a gather or before a scatter [byte].
        seconds: representative time, see `Timing` [s].
        median: median over the repeats [s].
        least: minimum over the repeats [s].
    """

    collective: str
    n_gpus: int
    size: int
    seconds: float
    median: float
    least: float

    @property
    def bus_bandwidth(self) -> float:
        """Bus bandwidth as defined by nccl-tests: rate at which data leave a chip of a ring [byte/s].

        $2 (n - 1) / n$ times size over time for an all-reduce, half of that for other collectives.
        """
        rounds = 2.0 if self.collective == "all_reduce" else 1.0
        return rounds * (self.n_gpus - 1.0) / self.n_gpus * self.size / self.seconds


def group_sizes(n: int) -> list[int]:
    """Numbers of devices in the timed groups: powers of two, and all devices [1]."""
    return sorted({2**power for power in range(1, int(math.log2(n)) + 1)} | {n}) if n > 1 else []


def time_collective(name: str, devices: Sequence[Any], size: int, seconds: float) -> CollectiveTiming:
    """Time of a collective of 32-bit numbers on a group of devices.

    Args:
        name: name in `COLLECTIVES`.
        devices: devices of the group.
        size: size of the array of each chip, after a gather or before a scatter [byte].
        seconds: total time of all repeats [s].
    """
    n = len(devices)
    mesh = Mesh(np.asarray(devices, dtype=object), ("chips",))
    count = max(size // 4 // (n * n), 1) * n  # elements of a shard
    parts = PartitionSpec("chips")
    turns = max(math.ceil(WINDOW / (1e-5 + size / 1e11)), 1)

    def on_all(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)

    local = count if name == "all_gather" else count * n
    x = jax.device_put(jnp.ones(local * n, jnp.float32), NamedSharding(mesh, parts))
    result = jax.jit(on_all(COLLECTIVES[name]))(x)
    call = again_and_again(on_all(chain_of_turns(COLLECTIVES[name], turns)), ((x,), result))
    times = representative_times(times_of_repeats(call, seconds) / turns, devices[0])
    return CollectiveTiming(name, n, 4 * count * n, *times)


def time_collectives(devices: Sequence[Any], seconds: float) -> Iterator[CollectiveTiming]:
    """Timings of all collectives and groups, small sizes first, within a time budget.

    Args:
        devices: devices of the process.
        seconds: total time budget [s].
    """
    begin = time.perf_counter()
    cases = [(name, n) for n in group_sizes(len(devices)) for name in COLLECTIVES]
    for size in SIZES:
        for name, n in cases:
            if time.perf_counter() - begin > seconds:
                return
            yield time_collective(name, devices[:n], size, PART * seconds)
