"""Quantities of a plan on a chip: identities that hold for every plan, and those that share them agree."""

import jax
import numpy as np
import pytest
from registry import as_arrays, changed, random_configurations, stack

from jaxscale.costs.machine import machine_of
from jaxscale.costs.memory import memory, memory_with_lead
from jaxscale.costs.step import step_and_memory, step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.local import LocalPlan, local_plan
from jaxscale.plans.plan import Plan

MIXTRAL = model("mixtral-8x7b")


@pytest.fixture(scope="module")
def batch():
    """Random valid configurations."""
    return as_arrays(stack(random_configurations(200)))


@pytest.fixture(scope="module")
def local(batch) -> LocalPlan:
    return jax.jit(jax.vmap(local_plan))(batch.model, batch.plan)


def test_copies_of_the_experts_fill_a_stage(local: LocalPlan):
    """Chips of a stage are copies of the experts times the chips that share one; a split expert lies in one group."""
    plan = local.plan
    np.testing.assert_allclose(local.expert_replicas * local.expert_shard, plan.dp * plan.cp * plan.tp, rtol=1e-12)
    np.testing.assert_allclose(local.expert_shard, plan.ep * local.expert_tensor_degree, rtol=1e-12)
    assert (np.asarray(local.expert_tensor_degree) <= np.asarray(plan.tp)).all()
    assert (np.asarray(local.expert_tensor_degree) < np.asarray(plan.tp)).any()


def test_state_that_nobody_shares_is_held_whole(local: LocalPlan):
    """Without a ZeRO stage a chip holds all its weights, with it a share of at least one over the ranks."""
    whole, shared = local.held_params(np.zeros(200)), local.held_params(np.ones(200))
    np.testing.assert_allclose(whole, local.params.total, rtol=1e-12)
    ranks = np.maximum(np.asarray(local.shard_ranks), np.asarray(local.expert_shard_ranks))
    assert (np.asarray(shared) >= np.asarray(whole) / ranks * (1.0 - 1e-9)).all()
    assert (np.asarray(shared) < 0.99 * np.asarray(whole)).any()


def test_stages_hold_all_layers(local: LocalPlan):
    """The first stage has no fewer than the mean, the last no more, and weights go with layers."""
    mean = np.asarray(local.model.n_layers / local.plan.pp)
    assert (np.asarray(local.layers.first) >= mean - 1e-9).all()
    assert (np.asarray(local.layers.last) <= mean + 1e-9).all()
    share = local.fullest_layers / local.model.n_layers
    np.testing.assert_allclose(local.params.layers, local.dense_params * share, rtol=1e-12)
    np.testing.assert_allclose(local.params.experts, local.routed_params * share, rtol=1e-12)


def test_switches_follow_each_other(local: LocalPlan):
    switches = np.stack([local.optimizer_sharded, local.gradients_sharded, local.weights_sharded])
    assert (np.diff(switches, axis=0) <= 0.0).all()
    np.testing.assert_array_equal(switches.sum(axis=0), local.plan.zero_stage)


def test_the_smooth_form_is_near_the_exact_one(batch, local: LocalPlan):
    smooth = jax.jit(jax.vmap(lambda shape, plan: local_plan(shape, plan, 1e-4)))(batch.model, batch.plan)
    for name in LocalPlan.__dataclass_fields__:
        if name not in ("model", "plan"):
            near, exact = getattr(smooth, name), getattr(local, name)
            jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-2, atol=1e-2), near, exact)


def test_tokens_and_tensors_of_a_chip_by_hand():
    split = local_plan(MIXTRAL, Plan(dp=4, tp=8, cp=2, ep=8, micro_batch_size=3, sequence_parallel=True))
    assert split.tokens == 3 * MIXTRAL.seq_len / 2
    assert (split.sequence_split, split.key_value_width) == (8.0, 256.0)
    # Eight experts over 64 chips: on eight chips each, all of a tensor-parallel group.
    assert (split.expert_tensor_degree, split.expert_shard, split.expert_replicas) == (8.0, 64.0, 1.0)
    assert local_plan(MIXTRAL, Plan(dp=4, tp=8, cp=2)).expert_replicas == 8.0


def test_a_machine_has_the_bandwidth_that_kernels_reach(batch):
    machine = machine_of(cluster("h100-80gb", 64), changed(batch.coefficients, hbm_efficiency=0.8))
    assert float(machine.hbm_bandwidth) == pytest.approx(0.8 * 3.35e12)
    assert float(machine.node_chips) == 8.0


def test_time_and_memory_together_are_those_apart(batch):
    def both(case):
        arguments = (case.model, case.plan, case.cluster, case.coefficients)
        return step_and_memory(*arguments), (step_time(*arguments), memory(*arguments))

    together, apart = jax.jit(jax.vmap(both))(batch)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9), together, apart)


def test_memory_grows_with_the_lead_of_the_host(batch):
    """Queued buffers come with the lead, only where tensor parallelism has collectives."""

    def peaks(case):
        local, machine = local_plan(case.model, case.plan), machine_of(case.cluster, case.coefficients)
        return [memory_with_lead(local, machine, case.coefficients, lead).total for lead in (0.0, 0.5, 1.0)]

    none, half, full = (np.asarray(peak) for peak in jax.jit(jax.vmap(peaks))(batch))
    split = np.asarray(batch.plan.tp) > 1.0
    np.testing.assert_allclose(none[~split], full[~split], rtol=1e-14)
    assert (full >= half * (1.0 - 1e-14)).all() and (half >= none * (1.0 - 1e-14)).all()
    assert (full[split] > none[split]).mean() > 0.3
