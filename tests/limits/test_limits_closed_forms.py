"""Closed forms are limits of the whole model; identities hold; negative controls differ."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.limits.batch_time import Degrees, ExactOverlap, SmoothOverlap, batch_time, pipeline_slots
from jaxscale.limits.frontier_scenario import log_latency_wall, wall_exponent, workload
from jaxscale.limits.thresholds import NAMES

RATES = ("peak_flops", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
LATENCIES = ("link_latency", "network_latency", "kernel_latency")


def plan(tp_ff=1.0, tp_width=1.0, ep=1.0, dp=1.0, pp=1.0, m=1.0, i=1.0) -> Degrees:
    groups = jnp.log(jnp.asarray([tp_ff, tp_width, ep, dp, pp]))
    return Degrees(groups, jnp.log(jnp.asarray(m)), jnp.log(jnp.asarray(i)))


def as_arrays(scenario):
    return jax.tree.map(jnp.asarray, scenario)


@pytest.mark.parametrize("name", ["latency-only", "latency-only-levers"])
def test_latency_wall(solved, library, row, name):
    closed = float(log_latency_wall(as_arrays(library[name])))
    found = solved.limits.log_flop[row[name], NAMES.index("wall")]
    assert found == pytest.approx(closed, abs=1e-6)
    # Bubbles reckoned as if microbatches were plenty let a batch end before a microbatch has passed all layers.
    assert abs(solved.limits.log_flop[row["latency-only-unhindered"], NAMES.index("wall")] - closed) > 0.1


@pytest.mark.parametrize("name", ["latency-only", "latency-only-levers"])
def test_wall_elasticities(solved, library, row, name):
    exponent = float(wall_exponent(library[name]))
    found = solved.limits.by_field(row[name])["wall"]
    for field in ("training_time", "batch_multiplier", "reference_batch"):
        assert found[field] == pytest.approx(exponent, rel=1e-6)
    for field in ("kernel_latency", "reference_layers"):
        assert found[field] == pytest.approx(-exponent, rel=1e-6)
    for field in RATES:
        assert abs(found[field]) < 1e-6


def test_default_laws_give_two():
    from jaxscale.limits.frontier_scenario import scenario

    assert float(wall_exponent(scenario())) == pytest.approx(2.0)
    assert float(wall_exponent(scenario("depth-fixed"))) == pytest.approx(3.0)


def test_no_wall_when_the_batch_grows_fast_enough(solved, library, row):
    name = "latency-only-no-wall"
    assert np.isinf(float(log_latency_wall(as_arrays(library[name]))))
    assert np.isinf(solved.limits.flop(row[name])["wall"])
    assert np.isfinite(solved.limits.flop(row["latency-only"])["wall"])


@pytest.mark.parametrize("threshold", NAMES)
def test_euler_identity_of_the_unit_of_time(solved, row, threshold):
    found = solved.limits.by_field(row["default"])[threshold]
    total = found["training_time"] - sum(found[n] for n in RATES) + sum(found[n] for n in LATENCIES)
    assert total == pytest.approx(0.0, abs=1e-6)
    assert abs(total - 2.0 * sum(found[n] for n in LATENCIES)) > 0.1


def test_the_unit_of_time_changes_nothing(solved, row):
    for column in range(len(NAMES)):
        assert solved.limits.log_flop[row["half-units"], column] == pytest.approx(
            solved.limits.log_flop[row["default"], column], abs=1e-6
        )
    assert solved.limits.log_flop[row["slower-network"], 0] < solved.limits.log_flop[row["default"], 0]


def test_envelope_slopes_are_those_of_plans_chosen_anew(solved, row):
    base, slower = row["default"], row["slower-network"]
    for column, threshold in enumerate(NAMES[:3]):
        moved = solved.limits.log_flop[slower, column] - solved.limits.log_flop[base, column]
        expected = solved.limits.by_field(base)[threshold]["network_bandwidth"]
        assert moved / math.log(0.999) == pytest.approx(expected, rel=3e-3)


def multiply_adds(bare) -> float:
    """Multiply-adds that a chip sustains, u C / 2 [1/s]."""
    return 0.5 * bare.max_utilisation * bare.peak_flops


def bandwidth_side(bare) -> float:
    """Side of a square weight slice whose traffic takes as long as its arithmetic, 4/3 u C p / W [1]."""
    return float(4.0 / 3.0 * multiply_adds(bare) * bare.activation_bytes / bare.network_bandwidth)


def replica_tokens(bare) -> float:
    """Tokens of a replica whose gradients take as long as their arithmetic, 2/3 u C p / W [token]."""
    return float(2.0 / 3.0 * multiply_adds(bare) * bare.gradient_bytes / bare.network_bandwidth)


def latency_volume(bare, overhead: float) -> float:
    """Volume b w^2 of a matmul that keeps latency to a share of its arithmetic, 2 u C tau / 3 eps [1]."""
    return float(2.0 / 3.0 * multiply_adds(bare) * bare.kernel_latency / overhead)


def test_bandwidth_side():
    from jaxscale.limits.frontier_scenario import scenario

    bare = as_arrays(scenario(link_latency=0.0, network_latency=0.0, kernel_latency=0.0, domain_size=1.0))
    work = workload(jnp.log(1e28), bare)
    side = bandwidth_side(bare)
    # Far more ranks than one along both widths, so that shares 1 - 1/t are one.
    wide = work._replace(log_width=jnp.log(side * 1e6), log_ff=jnp.log(side * 1e6))
    busy = batch_time(plan(tp_ff=1e6, tp_width=1e6), wide, bare, ExactOverlap()).busy
    assert float(busy[3] / busy[0]) == pytest.approx(1.0, rel=1e-5)
    narrow = batch_time(plan(tp_ff=2e6, tp_width=2e6), wide, bare, ExactOverlap()).busy
    assert float(narrow[3] / narrow[0]) == pytest.approx(2.0, rel=1e-5)


def test_replica_tokens_and_latency_volume():
    from jaxscale.limits.frontier_scenario import scenario

    bare = as_arrays(scenario(domain_size=1.0, link_latency=0.0, network_latency=0.0))
    work = workload(jnp.log(1e28), bare)
    replicas = float(jnp.exp(work.log_batch)) / replica_tokens(bare)
    found = batch_time(plan(dp=replicas), work, bare, ExactOverlap())
    arithmetic = 2.0 * float(jnp.exp(work.log_layers)) * float(found.busy[0])
    assert float(found.gradients) / (1.0 - 1.0 / replicas) == pytest.approx(arithmetic, rel=1e-6)
    volume = latency_volume(bare, 0.1)
    tokens = float(jnp.exp(work.log_batch + work.log_width + work.log_ff)) / volume
    slim = batch_time(plan(m=tokens), work, bare, ExactOverlap())
    assert float(slim.matrix - slim.busy.max()) == pytest.approx(0.1 * float(slim.busy[0]), rel=1e-6)


def simulated_slots(n_stages: int, m: int, i: int) -> float:
    """Forward pass of an interleaved pipeline, event by event, in stage times."""
    part = 1.0 / i
    free = [0.0] * n_stages
    done: dict[tuple[int, int], float] = {}
    for virtual in range(n_stages * i):
        for micro in range(m):
            rank = virtual % n_stages
            ready = done.get((virtual - 1, micro), 0.0)
            done[virtual, micro] = free[rank] = max(free[rank], ready) + part
    return max(done.values())


@pytest.mark.parametrize(("n_stages", "m", "i"), [(1, 3, 1), (4, 1, 1), (4, 8, 1), (4, 1, 3), (8, 2, 4), (6, 3, 2)])
def test_pipeline_slots_are_those_of_a_schedule(n_stages, m, i):
    found = pipeline_slots(plan(pp=n_stages, m=m, i=i), jnp.asarray(1.0), ExactOverlap())
    assert float(found) == pytest.approx(simulated_slots(n_stages, m, i))
    unhindered = pipeline_slots(plan(pp=n_stages, m=m, i=i), jnp.asarray(0.0), ExactOverlap())
    assert (float(unhindered) < float(found) - 0.1) == (m < n_stages and i > 1)


def test_smooth_model_bounds(library):
    default = as_arrays(dataclasses.replace(library["default"], overlap_exponent=200.0))
    work = workload(jnp.log(1e28), default)
    chosen = plan(64.0, 4.0, 1.0, 512.0, 4.0, 8.0, 16.0)
    exact = float(batch_time(chosen, work, default, ExactOverlap()).total)
    smooth = float(batch_time(chosen, work, default, SmoothOverlap(200.0)).total)
    assert smooth == pytest.approx(exact, rel=0.02)
    assert float(batch_time(chosen, work, default, SmoothOverlap(1.0)).total) > 1.2 * exact
