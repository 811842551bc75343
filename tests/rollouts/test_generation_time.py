"""Generation beside sums over tokens and drawn lengths: the tail, its slopes, what bandwidth does."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jaxscale as js
from jaxscale import serving
from jaxscale.base.arrays import with_fields
from jaxscale.rollouts import GenerationTime, RolloutBatch, generation_time

MODEL, CLUSTER = js.model("llama3-8b"), js.cluster("h100-80gb", 8)
STACK = serving.usual_coefficients()
ENGINE = serving.Engine(tp=1, copies=8)
BATCH = RolloutBatch(64, 8, 512, 1024, 1.0, 8192)
"""512 answers, 64 on each of eight copies: all have room at a time."""


def generated(batch: RolloutBatch = BATCH, engine: serving.Engine = ENGINE, **chip: float) -> GenerationTime:
    """Generation of a batch, on chips of which some numbers differ."""
    cluster = CLUSTER
    if chip:
        cluster = dataclasses.replace(CLUSTER, chip=with_fields(CLUSTER.chip, chip))
    return generation_time(MODEL, engine, cluster, STACK, batch)


def changed(**numbers: float) -> RolloutBatch:
    """The batch with other numbers."""
    return dataclasses.replace(BATCH, **numbers)


@functools.cache
def decode_steps() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Times of decode steps by sequences and context [s]."""

    def step(count: jax.Array, context: jax.Array) -> jax.Array:
        return serving.decode_pass(MODEL, ENGINE, CLUSTER, STACK, n_sequences=count, context=context).total

    steps = jax.jit(jax.vmap(step))
    return lambda count, context: STACK.pace * np.asarray(steps(jnp.asarray(count), jnp.asarray(context)), float)


def longer(place: np.ndarray, batch: RolloutBatch) -> np.ndarray:
    """Probability that an answer is longer than a number of tokens, by scipy."""
    spread = np.sqrt(np.log1p(float(batch.length_cv) ** 2))
    z = (np.log(place) - np.log(float(batch.output_len)) + 0.5 * spread**2) / spread
    return np.where(place < float(batch.max_output_len), norm.sf(z), 0.0)


def sum_over_tokens(batch: RolloutBatch) -> float:
    """Decode time as a plain sum over positions of the answers that run on the copy with the longest one [s]."""
    place = np.arange(int(batch.max_output_len)) + 0.5
    share = longer(place, batch)
    total, in_copy = 512.0, 64.0
    running = -np.expm1(total * np.log1p(-np.minimum(share, 1.0 - 1e-12)))
    others = (total * share / np.maximum(running, 1e-300) - 1.0) / (total - 1.0)
    count = 1.0 + (in_copy - 1.0) * np.clip(others, 0.0, 1.0)
    return float(np.sum(running * decode_steps()(count, float(batch.input_len) + place)))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_generation_is_the_sum_over_tokens(cv: float):
    batch = changed(length_cv=cv)
    found, summed = generated(batch), sum_over_tokens(batch)
    assert float(found.decode + found.tail) == pytest.approx(summed, rel=0.01)
    # Control: the sum of another spread is not met.
    assert float(found.decode + found.tail) != pytest.approx(sum_over_tokens(changed(length_cv=0.5 * cv)), rel=0.01)


def test_generation_is_the_mean_over_drawn_lengths():
    """One copy, so that the expectation is exact where decode times are affine in batch and context."""
    one = serving.Engine(tp=1)
    batch = dataclasses.replace(BATCH, prompts=8.0, max_output_len=4096.0)
    found = generated(batch, one)
    random, spread = np.random.default_rng(0), np.sqrt(np.log(2.0))
    drawn = np.exp(np.log(1024.0) - 0.5 * spread**2 + spread * random.standard_normal((200, 64)))
    lengths = jnp.asarray(np.minimum(drawn, 4096.0))

    def decode(own: jax.Array) -> jax.Array:
        return serving.rollout_time(MODEL, one, CLUSTER, STACK, 512.0, own, 8.0).decode

    times = np.asarray(jax.jit(jax.vmap(decode))(lengths))
    error = 3.0 * times.std() / np.sqrt(len(times))
    assert abs(float(found.decode + found.tail) - times.mean()) < error + 0.01 * times.mean()
    assert float(found.longest_len) == pytest.approx(np.minimum(drawn, 4096.0).max(axis=1).mean(), rel=0.02)
    assert float(batch.mean_len) == pytest.approx(np.minimum(drawn, 4096.0).mean(), rel=0.02)
    # Control: without the answers that end early the time would be far longer.
    full = decode_steps()(np.full(4096, 64.0), 512.0 + np.arange(4096)).sum()
    assert full > 1.2 * times.mean() + error


def test_equal_lengths_have_no_tail():
    found = generated(changed(length_cv=0.0))
    assert abs(float(found.tail)) < 1e-5 * float(found.total)
    place = np.arange(1024)
    plain = decode_steps()(np.full(1024, 64.0), 512.0 + place + 0.5).sum()
    assert float(found.decode) == pytest.approx(plain, rel=1e-4)
    assert float(generated(changed(length_cv=0.1)).tail) > 0.01 * float(found.total)  # negative control


def test_the_tail_grows_with_the_spread_of_lengths():
    tails = [float(generated(changed(length_cv=cv, max_output_len=1e9)).tail) for cv in (0.0, 0.2, 0.5, 1.0, 2.0)]
    assert np.all(np.diff(tails) > 0.0)
    # A maximum cuts it: control of the order.
    assert float(generated(changed(max_output_len=2048.0)).tail) < float(generated().tail)


def test_more_bandwidth_is_never_slower():
    bandwidth = float(CLUSTER.chip.hbm_bandwidth)
    times = [float(generated(hbm_bandwidth=factor * bandwidth).total) for factor in (0.5, 1.0, 2.0, 4.0)]
    assert np.all(np.diff(times) < 0.0)


@pytest.mark.parametrize("name", ["output_len", "length_cv", "hbm_bandwidth"])
def test_slopes_are_those_of_central_differences(name: str):
    with jax.enable_x64(True):

        def total(value: jax.Array | float) -> jax.Array:
            if name == "hbm_bandwidth":
                chip = with_fields(CLUSTER.chip, {name: value})
                cluster, batch = dataclasses.replace(CLUSTER, chip=chip), BATCH
            else:
                cluster, batch = CLUSTER, with_fields(BATCH, {name: value})
            return generation_time(MODEL, ENGINE, cluster, STACK, batch).total

        value = float(CLUSTER.chip.hbm_bandwidth if name == "hbm_bandwidth" else getattr(BATCH, name))
        timed, step = jax.jit(total), 1e-4 * value
        slope = float(jax.jit(jax.grad(total))(value))
        central = float(timed(value + step) - timed(value - step)) / (2.0 * step)
    assert slope / central == pytest.approx(1.0, abs=1e-4)
    assert abs(central) * value > 1e-3 * float(timed(value))  # control: the number counts


def test_answers_beyond_the_memory_run_in_waves():
    few, many = generated(), generated(changed(prompts=1024.0))
    assert float(few.in_flight) == 64.0 < float(many.in_flight) == pytest.approx(float(many.room))
    assert float(many.decode) > 1024.0 / float(many.in_flight) * 7.0 * float(few.decode) / 8.0


@pytest.mark.parametrize(
    ("numbers", "says"),
    [({"prompts": 0.0}, "prompts = 0"), ({"length_cv": -1.0}, "length_cv = -1"), ({"output_len": np.nan}, "nan")],
)
def test_impossible_batches_are_refused(numbers: dict[str, float], says: str):
    with pytest.raises(js.InputError, match=rf"RolloutBatch.*{says}.*expected"):
        changed(**numbers)
