"""Timings by a clock whose every look takes the same: no test here waits for a device."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.measuring import timing
from jaxscale.measuring.timed_kernels import TimedKernel, TimedProgram, program_of
from jaxscale.measuring.timing import LEAST_REPEATS, MOST_REPEATS, WINDOW, CollectiveTiming, Stopwatch

TICK = 0.25
"""Time between two looks at the clock [s]."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by `TICK` at each look."""
    looks = iter(range(10**6))
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: 1e3 + TICK * next(looks)))


def device(memory: float = 8e9) -> Any:
    """A chip with some memory that computes nothing."""
    return SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": memory})


@pytest.mark.parametrize("budget, n", [(0.0, LEAST_REPEATS), (20.0 * TICK, 20), (1e9, MOST_REPEATS)])
def test_repeats_fill_their_time(clock: None, budget: float, n: int):
    np.testing.assert_allclose(timing.times_of_repeats(lambda: 0.0, budget), np.full(n, TICK))


def test_a_kernel_takes_its_share_of_the_turns_and_sets_the_rates(clock: None):
    """A program of n turns that takes a tick gives a kernel of tick / n; the reference takes ticks, not dates."""
    watch = Stopwatch(jax.devices("cpu")[0], 1e9)
    rate, kernel = watch.rate, TimedKernel("matmul", "forward", "fp32", 64, 64, 64)
    turns = math.ceil(WINDOW / watch.expected(program_of(kernel)))
    (timed,) = watch.time_all([kernel])
    assert timed is not None
    assert (timed.seconds, timed.median, timed.least) == pytest.approx([TICK / turns] * 3)
    assert timed.rate == pytest.approx(2.0 * 64**3 * turns / TICK)
    assert watch.rate == max(rate, timed.rate)
    assert watch.reference == [TICK]


@given(seconds=st.floats(0.1, 1e4), near=st.sampled_from([0.99, 1.01]))
def test_a_kernel_is_timed_where_its_repeats_take_a_hundredth_of_the_time(seconds: float, near: float):
    """Or the window of a program, in short measurements; its arrays fill an eighth of the memory at most."""
    watch = Stopwatch(device(), seconds)
    longest = max(0.01 * seconds, WINDOW) / (LEAST_REPEATS + 2) - timing.GAP
    long = TimedProgram(lambda: None, (), near * longest * watch.rate, 0.0)
    assert watch.suits(long, is_small=True) is (near < 1.0)
    large = TimedProgram(lambda: None, (), 0.0, near * 1e9)
    assert Stopwatch(device(8e9), 1e9).suits(large, is_small=False) is (near < 1.0)


def test_a_kernel_as_short_as_its_launch_is_timed_only_if_it_is_one():
    short = TimedProgram(lambda: None, (), 0.0, 0.0)
    watch = Stopwatch(device(), 60.0)
    assert [watch.suits(short, is_small) for is_small in (True, False)] == [True, False]


@pytest.mark.parametrize("name", timing.COLLECTIVES)
def test_a_collective_tells_the_size_of_its_arrays(clock: None, name: str):
    """In bytes, as asked; the time of a turn is that of the program over its turns."""
    size = 2**16
    timed = timing.time_collective(name, jax.devices("cpu")[:1], size, 0.0)
    assert (timed.collective, timed.n_gpus, timed.size) == (name, 1, size)
    assert timed.seconds * math.ceil(WINDOW / (1e-5 + size / 1e11)) == pytest.approx(TICK)


def test_bus_bandwidth_is_that_of_a_ring():
    """(n - 1) / n of the data leave a chip of a gather, twice as much of a reduction to all: nccl-tests."""
    of = {name: CollectiveTiming(name, 8, 800, 2.0, 2.0, 2.0).bus_bandwidth for name in timing.COLLECTIVES}
    assert of.pop("all_reduce") == pytest.approx(700.0)
    assert set(of.values()) == {350.0}
