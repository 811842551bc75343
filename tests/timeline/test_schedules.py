"""Schedules of pipelines, run event by event, against the closed form of the step and their own rules."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxscale as js
from jaxscale import InputError
from jaxscale.costs.activations import microbatches_in_flight
from jaxscale.costs.pipeline import PassShares, dual_pipe_leaves
from jaxscale.timeline import Event, StagePass, operation_orders, simulated
from jaxscale.timeline.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, makespan

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe")
MOST_STAGES = 12


@st.composite
def pipelines(draw: st.DrawFn, schedules: tuple[str, ...] = SCHEDULES) -> tuple[str, int, int, int, float, float]:
    """Schedule, pp, vpp, microbatches, and the shares of the forward pass and of the gradients of weights."""
    schedule, pp = draw(st.sampled_from(schedules)), draw(st.integers(2, MOST_STAGES))
    vpp, n = (draw(st.integers(2, 4)), pp * draw(st.integers(1, 4))) if schedule == "interleaved" else (1, None)
    if schedule == "dualpipe":
        pp += pp % 2
        n = 2 * draw(st.integers(pp, 3 * pp))
    # Gradients of weights are matmuls that the forward pass and the gradients of inputs have too: they take no longer.
    forward = draw(st.floats(0.25, 0.35))
    weights = draw(st.floats(0.1, min(forward, 0.5 * (1.0 - forward))))
    return schedule, pp, vpp, n or draw(st.integers(pp, 4 * pp)), forward, weights


def events_of(schedule: str, pp: int, vpp: int, n: int, forward: float, weights: float) -> list[Event]:
    """Events of a pipeline of equal stages of 1 s a microbatch."""
    share = {FORWARD: forward, BACKWARD: 1.0 - forward, WEIGHT_GRADIENT: weights}
    share[INPUT_GRADIENT] = 1.0 - forward - weights
    return simulated(operation_orders(schedule, pp, vpp, n), pp * vpp, lambda operation: share[operation.kind] / vpp)


@given(pipelines())
@settings(max_examples=200, deadline=None)
def test_makespan_is_the_closed_form(pipeline):
    schedule, pp, vpp, n, forward, weights = pipeline
    left = {"zero-bubble": 1.0 - 2.0 * weights, "interleaved": 1.0 / vpp}.get(schedule, 1.0)
    if schedule == "dualpipe":
        left = float(dual_pipe_leaves(float(pp), float(n), PassShares(jnp.asarray(forward), jnp.asarray(weights))))
    assert makespan(events_of(*pipeline)) == pytest.approx(n + left * (pp - 1), rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_every_pass_runs_once_on_a_free_rank_after_what_it_needs(schedule, data):
    pipeline = data.draw(pipelines((schedule,)))
    _, pp, vpp, n, _, _ = pipeline
    events = events_of(*pipeline)
    passes = [event.operation for event in events if event.operation.kind == FORWARD]
    assert len(passes) == len(set(passes)) == n * pp * vpp
    assert len({event.operation for event in events}) == len(events)
    for rank in range(pp):
        own = [event for event in events if event.rank == rank]
        assert all(later.start >= earlier.end - 1e-9 for earlier, later in zip(own, own[1:], strict=False))
        # A microbatch takes 1 s of each rank, gradients of weights with it.
        assert sum(event.end - event.start for event in own) == pytest.approx(n, rel=1e-6)
    end = {event.operation: event.end for event in events}
    for event in events:
        before = event.operation._replace(stage=event.operation.stage - 1)
        if event.operation.kind == FORWARD and event.operation.stage:
            assert event.start >= end[before] - 1e-9


def test_a_pipeline_in_a_wrong_order_is_longer_or_waits_for_ever():
    orders = operation_orders("1f1b", 4, 1, 8)
    usual = makespan(simulated(orders, 4, lambda operation: 1.0))
    one_by_one = [sorted(order, key=lambda group: (group[0].microbatch, group[0].kind != FORWARD)) for order in orders]
    assert makespan(simulated(one_by_one, 4, lambda operation: 1.0)) > 2.0 * usual
    with pytest.raises(AssertionError, match="wait for each other"):
        simulated([[*reversed(order)] for order in orders], 4, lambda operation: 1.0)


def most_held(rank: int, order: list[tuple[StagePass, ...]]) -> int:
    """Largest number of passes of a rank that wait for the gradients of their inputs."""
    running, most = 0, 0
    for group in order:
        for operation in group:
            running += {FORWARD: 1, WEIGHT_GRADIENT: 0}.get(operation.kind, -1)
        most = max(most, running)
    return most


@given(pipelines())
@settings(max_examples=50, deadline=None)
def test_the_activations_of_an_order_are_those_that_its_memory_counts(pipeline):
    """A rank holds what the memory of a step says, no pass more: a longer warm-up would be as fast and take more.

    Memory counts one number for all ranks of DualPipe, that of the two in the middle; the others hold one pass less.
    """
    schedule, pp, vpp, n, _, _ = pipeline
    is_dual = schedule == "dualpipe"
    plan = js.Plan(pp=pp, vpp=vpp, n_microbatches=n, gpipe=schedule == "gpipe", dual_pipe=is_dual)
    counted = np.asarray(microbatches_in_flight(plan, jnp.arange(MOST_STAGES)))[:pp]
    held = np.asarray([most_held(rank, order) for rank, order in enumerate(operation_orders(schedule, pp, vpp, n))])
    less = is_dual * (np.abs(np.arange(pp) - 0.5 * (pp - 1)) > 1.0)
    np.testing.assert_allclose(held / vpp, counted - less, rtol=1e-6)


def test_dual_pipe_needs_two_microbatches_a_rank():
    with pytest.raises(InputError, match="n_microbatches = 6 and pp = 4; expected an even number of at least 8"):
        operation_orders("dualpipe", 4, 1, 6)
    assert StagePass(FORWARD, 0, 3, 1) in {
        operation for group in operation_orders("dualpipe", 4, 1, 8)[0] for operation in group
    }
