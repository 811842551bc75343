"""What other parts of the package say of the same physics: power, neighbours of plans, tables, limits, bursts."""

import re
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from physics_cases import case, lossy, steps

import jaxscale as js
from jaxscale.base.arrays import as_arrays, with_fields
from jaxscale.burst.burst_plan import BurstPlan
from jaxscale.burst.multiplexing import Interference, hand_backs, multiplex
from jaxscale.costs.power import ChipPower, energy_terms, mean_chip_power
from jaxscale.limits.batch_time import Degrees, ExactOverlap, batch_time
from jaxscale.limits.frontier_scenario import workload
from jaxscale.plans.choice import alternatives, nothing_fits
from jaxscale.plans.enumerate import FIELDS, PlanSpace, PlanTable
from jaxscale.plans.score import FoundPlans, Scores
from jaxscale.runs.measured import measured_runs
from jaxscale.runs.table_checks import contradicted

POWER = ChipPower(0.9, 0.6, 0.35, 0.15)
DRAWN = {
    0.9: ("matmul", "attention", "head", "recompute"),
    0.6: ("memory_bound", "optimizer"),
    0.35: ("tensor_parallel", "expert_parallel", "data_parallel", "pipeline_bubble", "pipeline_transfer", "straggler"),
    0.15: ("launch_gaps", "host", "host_per_step"),
}
"""Shares of the range above idle power: of arithmetic, of streaming, of kernels that wait for data, of none at all."""


@pytest.fixture(scope="module")
def busy_step() -> js.StepTime:
    """A step of a mixture in which most causes of time are at work."""
    shape = js.Transformer(24, 4096, 32, 4096, n_experts=16, moe_top_k=2, d_ff_expert=2048)
    plan = js.Plan(dp=8, tp=2, pp=4, ep=8, n_microbatches=8, micro_batch_size=2, recompute="full")
    return steps(case(shape, plan, lossy(21, host_time_layer=0.05, tp_overlap=0.0, ep_overlap=0.0, dp_overlap=0.0)))[0]


def test_chips_draw_what_their_work_needs(busy_step: js.StepTime):
    """Recomputed layers draw as layers do; a gap between kernels as little as a wait for the host."""
    chip = js.chip("h100-80gb")
    energy = energy_terms(busy_step, chip, POWER)
    room = float(chip.max_power) - float(chip.idle_power)
    for share, names in DRAWN.items():
        for name in names:
            seconds = float(getattr(busy_step, name))
            assert seconds > 0.0
            assert float(energy[name]) == pytest.approx(share * room * seconds, rel=1e-9), name
    shares = [float(energy[name]) / room for name in busy_step.terms()]
    expected = float(chip.idle_power) + room * sum(shares) / float(busy_step.total)
    assert float(mean_chip_power(busy_step, chip, POWER)) == pytest.approx(expected, rel=1e-9)


def test_recomputation_adds_energy_of_arithmetic():
    """A chip that only computes draws the same power longer."""
    none, full = steps(
        *(
            case(js.model("llama3-8b"), js.Plan(micro_batch_size=2, recompute=word), lossy(22))
            for word in ("none", "full")
        )
    )
    chip = js.chip("h100-80gb")
    joules = [sum(float(value) for value in energy_terms(step, chip, POWER).values()) for step in (none, full)]
    added = float(full.recompute - none.recompute)
    lost = sum(float(getattr(none, name) - getattr(full, name)) for name in ("host",))
    room = float(chip.max_power) - float(chip.idle_power)
    expected = float(chip.idle_power) * (added - lost) + room * (0.9 * added - 0.15 * lost)
    assert joules[1] - joules[0] == pytest.approx(expected, rel=1e-6)


def plan_table(*rows: dict[str, int]) -> PlanTable:
    """Plans that differ from a plain one as said."""
    plain = {name: int(name in DEGREES) for name in FIELDS}
    return PlanTable({name: np.asarray([{**plain, **row}[name] for row in rows]) for name in FIELDS}, PlanSpace())


DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep", "shard_group", "micro_batch_size", "n_microbatches")


def test_how_a_single_replica_is_sharded_is_no_decision():
    """From one replica to two another degree of tp decides, whatever ZeRO stage comes with the second."""
    table = plan_table(
        {"tp": 4, "zero_stage": 0, "n_microbatches": 8},
        {"tp": 2, "dp": 2, "shard_group": 2, "zero_stage": 1, "n_microbatches": 4},
        {"tp": 2, "dp": 2, "shard_group": 2, "zero_stage": 2, "n_microbatches": 4},
    )
    scores = Scores(np.asarray([1.0, 1.2, 1.1]), np.asarray([1e9, 2e9, 2e9]))
    searched = FoundPlans(table, scores, 80e9, len(table))
    for best, decision in ((0, "tp"), (2, "zero_stage")):
        told = alternatives(searched, best)
        assert decision in {alternative.decision for alternative in told}
    assert {alternative.decision for alternative in alternatives(searched, 0)} == {"tp"}
    (slower,) = (one for one in alternatives(searched, 2) if one.decision == "zero_stage")
    assert (slower.before, slower.after) == (2, 1)
    assert slower.time_change == pytest.approx(1.2 / 1.1 - 1.0)


def test_chips_are_asked_for_until_state_that_is_shared_fits():
    """Weights, gradients and optimizer shrink with the chips, all else stays: the fewest chips on which both fit."""
    peak = {"weights": 20e9, "gradients": 20e9, "optimizer": 50e9, "activations": 10e9}
    searched = FoundPlans(plan_table({"dp": 8}), Scores(np.ones(1), np.asarray([sum(peak.values())])), 60e9, 1)
    (chips,) = re.findall(r"about (\d+) chips", str(nothing_fits(searched, peak, js.cluster("h100-80gb", 8))))

    def needs(n: int) -> float:
        return 90e9 * 8 / n + 10e9

    assert needs(int(chips)) <= 60e9 < needs(int(chips) - 1)


ROW = {
    "framework": "llm-foundry", "n_layers": "24", "d_model": "2048", "n_heads": "16", "seq_len": "2048",
    "gpu": "h100-80gb", "n_gpus": "16", "tp": "1", "pp": "1", "dp": "16", "micro_batch_size": "4",
    "global_batch_size_seqs": "64", "step_time_s": "1.25",
}  # fmt: skip


@pytest.fixture
def table(tmp_path) -> Callable[..., js.Runs]:
    """Tables of one row each with changes."""

    def read(*changes: dict[str, str]) -> js.Runs:
        rows = [{**ROW, **change} for change in changes]
        names = list(dict.fromkeys(name for row in rows for name in row))
        lines = [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
        path = tmp_path / "runs.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return js.read_runs(path)

    return read


def test_models_of_other_heads_are_other_architectures(table: Callable[..., js.Runs]):
    """Kernels suit the width of a head: as many layers or tokens more change no kernel."""
    runs = table({}, {"n_heads": "32"}, {"d_model": "4096"}, {"n_layers": "48"}, {"seq_len": "4096"})
    names = measured_runs(runs)[0].levels.column("architecture").tolist()
    assert len({names[0], names[1], names[2]}) == 3
    assert names[0] == names[3] == names[4]


def test_a_flop_rate_tells_the_step_time_in_decimal_units(table: Callable[..., js.Runs]):
    """Model flops of the batch over 1e12 flop/s of each chip."""
    stated = {"step_time_s": "", "tflops_per_gpu": "400", "framework": "maxtext", "vocab_size": "32000"}
    runs = table(stated, {**stated, "tflops_per_gpu": "200"})
    shape = js.Transformer(24, 2048, 16, 2048, vocab_size=32000)
    seconds = 64 * 2048 * float(js.model_flops(shape)) / (400e12 * 16)
    np.testing.assert_allclose(js.predict(runs).measured, [seconds, 2.0 * seconds], rtol=1e-9)


def test_the_reduction_of_gradients_may_lengthen_a_step_of_few_slots(table: Callable[..., js.Runs]):
    """Three times the slot is no contradiction with more replicas and few slots; it is with as many or with many."""

    def suspect(replicas: int, slots: int) -> bool:
        runs = [
            {"dp": str(dp), "n_gpus": str(dp), "global_batch_size_seqs": str(4 * dp * slots), "step_time_s": str(time)}
            for dp, time in ((8, slots * 1.0), (replicas, slots * 3.0))
        ]
        return bool(contradicted(measured_runs(table(*runs))[0]).any())

    assert not suspect(16, 4)
    assert suspect(16, 64)
    assert suspect(4, 4)


def frontier_plan(**degrees: float) -> Degrees:
    """A plan of the frontier model, degrees of one left out."""
    groups = [degrees.get(name, 1.0) for name in ("tp_ff", "tp_width", "ep", "dp", "pp")]
    return Degrees(jnp.log(jnp.asarray(groups)), jnp.log(jnp.asarray(degrees.get("m", 1.0))), jnp.asarray(0.0))


@pytest.mark.parametrize("group", ["tp_ff", "tp_width", "ep"])
def test_each_doubling_of_a_group_adds_two_hops_to_every_matrix(group: str):
    """A tree of ranks is as deep as they have doublings; of one layer forward and backward it is climbed twice."""
    bare = js.limits.scenario("default")
    changes = {"domain_size": 8.0, "link_latency": 1e-6, "network_latency": 7e-6, "kernel_latency": 3e-6}
    endless = {name: 1e40 for name in ("peak_flops", "memory_bandwidth", "link_bandwidth", "network_bandwidth")}
    scenario = as_arrays(with_fields(bare, changes | endless))
    work = workload(jnp.asarray(np.log(1e25)), scenario)
    counts = (1, 2, 8, 16, 64)
    times = [float(batch_time(frontier_plan(**{group: n}), work, scenario, ExactOverlap()).matrix) for n in counts]
    hops = [1e-6 * min(np.log2(n), 3) + 7e-6 * max(np.log2(n) - 3, 0) for n in counts]
    np.testing.assert_allclose(times, 2.0 * (3e-6 + np.asarray(hops)), rtol=1e-6)


def test_handing_gpus_back_costs_time_of_both_jobs():
    """Every time that a step takes more GPUs than the one before it, and for each of these."""
    gpus = jnp.asarray([4.0, 1.0, 2.0, 2.0, 8.0])
    plan = BurstPlan(jnp.asarray(1.0), jnp.asarray(4.0), gpus, gpus, gpus, gpus > 8.0, jnp.asarray(4.0))
    times, back = hand_backs(plan)
    assert (float(times), float(back)) == (2.0, 7.0)
    waits = [multiplex(plan, 1.0, 32.0, 8.0, 10.0, Interference(0.1, 0.2, 0.05, wait)) for wait in (0.0, 0.01)]
    assert float(waits[1].iteration_time - waits[0].iteration_time) == pytest.approx(2.0 * 0.01)
    useful = [float(one.background * one.iteration_time) / 10.0 for one in waits]
    assert useful[1] - useful[0] == pytest.approx(0.8 * 8.0 * 0.02 - 7.0 * 0.01)
