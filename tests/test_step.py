"""The whole step: terms, limits, units, monotonicity, batching, precision."""

import dataclasses
import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry import (
    Configuration,
    as_arrays,
    changed,
    draw_with,
    ideal_coefficients,
    many_steps,
    named_cases,
    one_step,
    random_configurations,
    row,
    stack,
)

import jaxscale as js
from jaxscale.calibration.coefficients import checked, prior_medians, priors
from jaxscale.costs.step import StepTime, model_flops_utilisation, step_time, tokens_per_step
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.cluster import Chip, Cluster, Network
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, model_flops
from jaxscale.plans.plan import Plan
from jaxscale.plans.stages import stage_layers

CASES = named_cases()
QUICK = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compiles in half the time what runs only once."""
TERMS = tuple(StepTime.__dataclass_fields__)


@pytest.fixture(scope="module")
def batch() -> Configuration:
    """A thousand random valid configurations."""
    return stack(random_configurations(1000))


@pytest.fixture(scope="module")
def steps(batch: Configuration) -> StepTime:
    """Their step times."""
    return many_steps(batch)


def share(steps: StepTime, term: str) -> np.ndarray:
    """Part of each step that one term takes [1]."""
    return np.asarray(getattr(steps, term) / steps.total)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_terms_add_up_to_the_total(batch: Configuration, dtype: type):
    steps = many_steps(as_arrays(batch, dtype))
    added = np.sum([np.asarray(term, np.float64) for term in steps.terms().values()], axis=0)
    assert steps.total.dtype == dtype
    np.testing.assert_allclose(added, steps.total, rtol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(added - np.asarray(steps.launch_gaps), steps.total, rtol=1e-6)


def test_every_term_is_positive_somewhere_and_negative_nowhere(steps: StepTime):
    for term in TERMS:
        assert share(steps, term).max() > 1e-3, term
        assert share(steps, term).min() > -1e-12, term


def one_node(batch: Configuration) -> np.ndarray:
    """Where all chips share one node."""
    return batch.cluster.n_chips <= batch.cluster.network.domain_size[:, 0]


ABSENT = {
    "tensor_parallel": lambda b: b.plan.tp == 1,
    "context_parallel": lambda b: b.plan.cp == 1,
    "expert_parallel": lambda b: (b.plan.ep == 1) | (b.model.n_experts == 1),
    "pipeline_bubble": lambda b: b.plan.pp == 1,
    "pipeline_imbalance": lambda b: b.plan.pp == 1,
    "pipeline_transfer": lambda b: b.plan.pp == 1,
    "recompute": lambda b: (
        (b.plan.recompute_full == 0) & ((b.plan.recompute_selective == 0) | (b.plan.flash_attention == 1))
    ),
    "data_parallel": lambda b: b.plan.dp * b.plan.cp * b.plan.tp == 1,
    "optimizer": lambda b: b.model.trainable_share == 0,
    "straggler": one_node,
}
"""Where the cause of a term is absent."""


@pytest.mark.parametrize("term", ABSENT)
def test_a_term_is_zero_exactly_where_its_cause_is_absent(batch: Configuration, steps: StepTime, term: str):
    absent = ABSENT[term](batch)
    assert absent.sum() > 5 and (~absent).sum() > 5
    assert np.abs(share(steps, term)[absent]).max() < 1e-12
    assert share(steps, term)[~absent].max() > 1e-4


FASTER = {
    "cluster__chip__peak_flops": 1.5,
    "cluster__chip__hbm_bandwidth": 1.5,
    "cluster__network__bandwidth": 1.5,
    "cluster__network__latency": 0.5,
}


@given(st.data(), st.sampled_from(sorted(FASTER)))
def test_better_hardware_is_never_slower(data: st.DataObject, path: str):
    case = draw_with(data)
    value = case
    for name in path.split("__"):
        value = getattr(value, name)
    better = one_step(changed(case, **{path: value * FASTER[path]})).total
    worse = one_step(changed(case, **{path: value / FASTER[path]})).total
    now = one_step(case).total
    assert better <= now * (1.0 + 1e-12)
    assert now <= worse * (1.0 + 1e-12)


@pytest.mark.parametrize("path", sorted(FASTER))
def test_better_hardware_is_faster_somewhere(batch: Configuration, steps: StepTime, path: str):
    value = batch
    for name in path.split("__"):
        value = getattr(value, name)
    better = many_steps(changed(batch, **{path: value * FASTER[path]})).total
    assert (better <= steps.total * (1.0 + 1e-12)).all()
    assert (better < steps.total * 0.9999).mean() > 0.2


def in_slower_seconds(batch: Configuration, k: float) -> Configuration:
    """The same configurations in a unit of time k times as long."""
    chip, network = batch.cluster.chip, batch.cluster.network
    times = [name for name, prior in priors().items() if prior.unit == "s"]
    assert len(times) >= 7
    return changed(
        batch,
        cluster__chip__peak_flops=chip.peak_flops * k,
        cluster__chip__hbm_bandwidth=chip.hbm_bandwidth * k,
        cluster__network__bandwidth=network.bandwidth * k,
        cluster__network__latency=network.latency / k,
        **{f"coefficients__{name}": getattr(batch.coefficients, name) / k for name in times},
    )


def test_the_unit_of_time_cancels(batch: Configuration, steps: StepTime):
    # A power of two, so that not even rounding differs.
    rescaled = many_steps(in_slower_seconds(batch, 4.0))
    for term in TERMS:
        np.testing.assert_array_equal(4.0 * getattr(rescaled, term), getattr(steps, term))
    latency = in_slower_seconds(batch, 4.0).cluster.network.latency * 2.0
    wrong = many_steps(changed(in_slower_seconds(batch, 4.0), cluster__network__latency=latency))
    assert (4.0 * wrong.total != steps.total).mean() > 0.5


def ideal_step(shape: Transformer, plan: Plan, machine: Cluster, **coefficients: float) -> StepTime:
    """Step of a machine without losses but for the given coefficients."""
    return one_step(as_arrays(Configuration(shape, plan, machine, ideal_coefficients(**coefficients))))


def ideal_cluster(n_chips: float, peak: float = 1e15) -> Cluster:
    """Chips whose only limit is arithmetic."""
    chip = Chip(np.full(5, peak), 8e10, 1e30, 100.0, 700.0)
    return Cluster(chip, Network(np.asarray([8.0, 1e9, 1e12]), np.full(3, 1e30), np.full(3, 1e-30)), n_chips)


@pytest.mark.parametrize("plan", [Plan(), Plan(dp=4, tp=8, cp=2, zero_stage=3), Plan(dp=2, recompute="full")])
def test_compute_limit_is_flops_over_peak(plan: Plan):
    shape = model("llama3-8b", seq_len=8192)
    machine = ideal_cluster(plan.n_chips)
    plan = changed(plan, flash_attention=0.0, n_microbatches=3.0)
    step = ideal_step(shape, plan, machine)
    expected = model_flops(shape) * tokens_per_step(shape, plan) / (plan.n_chips * 1e15)
    layers = expected - step.head
    np.testing.assert_allclose(step.total, expected + plan.recompute_full * layers / 3.0, rtol=1e-9)
    np.testing.assert_allclose(model_flops_utilisation(shape, plan, machine, jnp.asarray(expected)), 1.0, rtol=1e-9)
    # Six flops per matmul parameter and token: an efficiency of 0.9 must show.
    slower = ideal_step(shape, plan, machine, matmul_efficiency=0.9)
    assert slower.total > step.total * 1.05


def test_fused_attention_does_half_the_forward_flops_and_two_and_a_half_times_that_backward():
    shape, machine = model("llama3-8b"), ideal_cluster(1.0)
    fused = ideal_step(shape, Plan(flash_attention=True), machine)
    plain = ideal_step(shape, Plan(flash_attention=False), machine)
    np.testing.assert_allclose(fused.attention / plain.attention, 3.5 / 6.0, rtol=1e-9)


def pipeline_case(**plan: float | str) -> StepTime:
    """A model without logits on a loss-free machine: only the pipeline costs."""
    shape = Transformer(64, 4096, 32, 4096, vocab_size=1e-6)
    return ideal_step(shape, Plan(tp=8, **plan), ideal_cluster(64.0))


@pytest.mark.parametrize(("pp", "m"), [(8, 8), (8, 64), (4, 12), (1, 5)])
def test_bubble_is_pp_minus_one_over_m(pp: int, m: int):
    step = pipeline_case(pp=pp, n_microbatches=m)
    work = step.matmul + step.attention
    np.testing.assert_allclose(step.pipeline_bubble / work, (pp - 1) / m, rtol=1e-6, atol=1e-9)
    assert step.pipeline_imbalance < 1e-6 * work


def test_interleaving_divides_the_bubble_and_weight_gradients_fill_it():
    plain = pipeline_case(pp=8, n_microbatches=16)
    interleaved = pipeline_case(pp=8, n_microbatches=16, vpp=4, schedule="interleaved")
    np.testing.assert_allclose(interleaved.pipeline_bubble, plain.pipeline_bubble / 4.0, rtol=1e-9)
    filled = pipeline_case(pp=8, n_microbatches=16, schedule="zero-bubble")
    # A third of the matmuls are gradients of weights; attention has none.
    weights = plain.matmul / 3.0 / (plain.matmul + plain.attention)
    np.testing.assert_allclose(filled.pipeline_bubble, plain.pipeline_bubble * (1.0 - 2.0 * weights), rtol=1e-6)
    np.testing.assert_allclose(pipeline_case(pp=8, n_microbatches=16, schedule="gpipe").total, plain.total, rtol=1e-12)


def test_a_stage_with_an_extra_layer_sets_the_pace():
    even = pipeline_case(pp=8, n_microbatches=16)
    shape = Transformer(65, 4096, 32, 4096, vocab_size=1e-6)
    plan = Plan(tp=8, pp=8, n_microbatches=16)
    uneven = ideal_step(shape, plan, ideal_cluster(64.0))
    # Nine layers on the fullest stage against eight and an eighth on average.
    work = uneven.matmul + uneven.attention
    np.testing.assert_allclose(uneven.pipeline_imbalance / work, 9.0 / 8.125 - 1.0, rtol=1e-6)
    assert even.pipeline_imbalance < 1e-6 * work


def test_a_single_stage_holds_all_layers_whatever_is_stated_of_the_ends():
    shape = Transformer(24, 2048, 16, 1024)
    one, stated = (Plan(pp=1, **ends) for ends in ({}, {"first_stage_layers": 4, "last_stage_layers": 5}))
    layers = [[float(count) for count in stage_layers(shape, plan)] for plan in (one, stated)]
    assert layers[0] == layers[1] == [24.0, 24.0, 24.0]
    assert [float(count) for count in stage_layers(shape, Plan(pp=3, first_stage_layers=4))] == [4.0, 10.0, 10.0]


def test_full_recomputation_costs_one_forward_pass():
    none = ideal_step(model("llama3-8b"), Plan(), ideal_cluster(1.0))
    full = ideal_step(model("llama3-8b"), Plan(recompute="full"), ideal_cluster(1.0))
    np.testing.assert_allclose(full.recompute, none.matmul / 3.0 + none.attention / 3.5, rtol=1e-9)
    np.testing.assert_allclose(full.total - none.total, full.recompute, rtol=1e-9)


def test_selective_recomputation_repeats_materialised_attention_only():
    plain = Plan(flash_attention=False, recompute="selective")
    step = ideal_step(model("llama3-8b"), plain, ideal_cluster(1.0))
    np.testing.assert_allclose(step.recompute, step.attention / 3.0, rtol=1e-9)
    fused = ideal_step(model("llama3-8b"), Plan(recompute="selective"), ideal_cluster(1.0))
    assert fused.recompute == 0.0


def test_roofline_ridge_of_an_h100():
    """Scaling book, chapter "Rooflines": bf16 matmuls leave the memory limit near peak / bandwidth tokens."""
    machine = cluster("h100-80gb", 1)
    ridge = machine.chip.peak("bf16") / machine.chip.hbm_bandwidth
    assert 290 < ridge < 300
    shape = Transformer(1, 8192, 64, 2048, vocab_size=1e-6)

    def forward(tokens: float) -> float:
        one = changed(shape, seq_len=float(tokens))
        step = ideal_step(one, Plan(), machine)
        return float(step.matmul)

    np.testing.assert_allclose(forward(ridge / 2.0), forward(ridge / 8.0), rtol=1e-6)
    np.testing.assert_allclose(forward(ridge * 8.0) / forward(ridge * 2.0), 4.0, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_batched_equals_one_by_one(name: str):
    one = one_step(as_arrays(CASES[name]))
    batched = many_steps(stack([*CASES.values()]))
    for term in TERMS:
        np.testing.assert_allclose(
            getattr(row(batched, list(CASES).index(name)), term), getattr(one, term), rtol=1e-12, atol=1e-12
        )
    assert row(batched, list(CASES).index(name) - 1).total != one.total


def test_one_trace_serves_every_configuration():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def total(case: Configuration) -> jax.Array:
        return step_time(*case).total

    chex.clear_trace_counter()
    totals = {name: float(total(as_arrays(case))) for name, case in CASES.items()}
    assert len(set(totals.values())) == len(CASES)
    with pytest.raises(AssertionError, match="traced"):
        total(as_arrays(next(iter(CASES.values())), np.float32))


def test_single_precision_agrees_with_double(batch: Configuration, steps: StepTime):
    single = many_steps(as_arrays(batch, np.float32))
    relative = np.abs(np.asarray(single.total, np.float64) / np.asarray(steps.total) - 1.0)
    assert relative.max() < 1e-4
    assert np.median(relative) < 1e-6
    assert relative.max() > 1e-9


def huge() -> Configuration:
    """A step of a run of 1e31 flop on 1e9 chips: 1e15 parameters."""
    shape = Transformer(1000, 300_000, 2048, 32768, n_kv_heads=64, vocab_size=1_000_000)
    plan = Plan(dp=65536, tp=64, pp=125, cp=2, n_microbatches=500, zero_stage=1, sequence_parallel=True)
    return Configuration(shape, plan, cluster("gb300", plan.n_chips), prior_medians())


def test_huge_runs_are_finite_in_single_precision():
    case = huge()
    steps = 1e31 / float(model_flops(case.model) * tokens_per_step(case.model, case.plan))
    assert case.cluster.n_chips > 1e9 and steps > 1.0
    double = one_step(as_arrays(case))
    single, slopes = QUICK(jax.value_and_grad(lambda c: step_time(*c).total))(as_arrays(case, np.float32))
    np.testing.assert_allclose(single, double.total, rtol=1e-4)
    chex.assert_tree_all_finite(slopes)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(slopes))
    too_large = changed(as_arrays(case, np.float32), model__d_model=np.float32(1e30))
    assert not np.isfinite(one_step(too_large).total)


def test_no_rank_promotion_inside_the_model():
    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(step_time, *as_arrays(CASES["deepseek-v3"]))
        jax.eval_shape(many_steps, stack([*CASES.values()]))
        with pytest.raises(ValueError, match="rank_promotion"):
            jnp.ones(2) * jnp.ones((2, 2))


@pytest.mark.parametrize("temperature", [0.02, 0.002])
def test_smooth_form_stays_near_the_exact_one(batch: Configuration, steps: StepTime, temperature: float):
    smooth = many_steps(batch, temperature).total
    off = np.abs(np.asarray(smooth / steps.total) - 1.0)
    # A smooth stage carries the mean load: at most one layer less than the fullest.
    layer = np.where(batch.plan.pp == 1.0, 0.0, batch.plan.pp / batch.model.n_layers)
    assert (off <= 15.0 * temperature + layer).all()
    assert off[batch.plan.pp == 1.0].max() > temperature


def test_one_compiled_step_serves_any_smoothing(batch: Configuration, steps: StepTime):
    """A traced temperature gives what a number does; a tiny one the exact model."""
    traced = jax.jit(lambda cases, temperature: jax.vmap(lambda case: step_time(*case, temperature))(cases).total)
    mild, tiny = (traced(batch, jax.numpy.asarray(temperature)) for temperature in (0.002, 1e-7))
    np.testing.assert_allclose(mild, many_steps(batch, 0.002).total, rtol=5e-5)
    np.testing.assert_allclose(tiny, steps.total, rtol=5e-5)
    assert np.abs(mild / steps.total - 1.0).max() > 1e-3
    assert traced._cache_size() == 1


def test_mfu_of_a_known_run():
    """Llama 3 405B on 16,384 H100: 400 Tflop/s per chip are 40 % of the peak (arXiv 2407.21783, table 4: 41 %)."""
    shape, plan = model("llama3-405b"), Plan(dp=128, tp=8, pp=16, n_microbatches=16)
    machine = cluster("h100-80gb", plan.n_chips)
    seconds = model_flops(shape) * tokens_per_step(shape, plan) / (16384 * 400e12)
    np.testing.assert_allclose(model_flops_utilisation(shape, plan, machine, seconds), 400.0 / 989.4, rtol=1e-3)
    assert model_flops_utilisation(shape, plan, machine, seconds, causal=True) < 400.0 / 989.4


def test_a_fit_stands_for_its_coefficients_on_the_chip():
    setting, fit = (js.model("llama3-8b"), js.Plan(dp=8), js.cluster("h100-80gb", 8)), js.load_fit()
    levels = {"gpu": "h100-80gb", "precision": "bf16"}
    for answer in (js.step_time, js.memory):
        by_hand = answer(*setting, fit.coefficients(levels, 8)).total
        for fitted in (fit, "default"):
            np.testing.assert_allclose(answer(*setting, fitted).total, by_hand, rtol=1e-12)
    assert js.step_time(*setting, fit.coefficients({})).total != js.step_time(*setting, fit).total
    np.testing.assert_allclose(js.step_time("llama3-8b", js.Plan(dp=8), "H100 SXM").total, js.step_time(*setting).total)
    with pytest.raises(js.InputError, match="the cluster is traced"):
        jax.grad(lambda cluster: js.step_time(*setting[:2], cluster).total)(setting[2])
    with pytest.raises(TypeError, match=r"takes Coefficients, not Fit; .* fit.coefficients\(levels\)"):
        checked(fit)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (js.Plan(dp=3, tp=2), "dp * tp * pp * cp = 6 must equal the cluster's 64 chips"),
        (js.Plan(dp=8, tp=8, pp=1, ep=3), "ep = 3 must divide"),
        (js.Plan(dp=32, pp=2, zero_stage=3), "it needs pp = 1"),
    ],
)
def test_a_concrete_plan_that_breaks_a_rule_is_refused(plan: js.Plan, text: str):
    machine = js.cluster("h100-80gb", 64)
    for answer in (js.step_time, js.memory):
        with pytest.raises(js.InputError, match=re.escape(text)):
            answer("llama3-8b", plan, machine)
    # Numbers between whole ones, and traced ones, are the relaxation that a search by gradient needs.
    assert js.step_time("llama3-8b", dataclasses.replace(plan, dp=plan.dp + 0.5), machine).total > 0.0
