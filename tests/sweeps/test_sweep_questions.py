"""What sweeps ask: each answer is that of the function asked by itself, labelled with names and units."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.sweeps.step_points import _Assembly
from jaxscale.sweeps.sweep_spec import sweep_spec

pytest.importorskip("zarr")

LLAMA = {"model": "llama3-8b", "gpu": "h100-80gb"}


@pytest.fixture(scope="module")
def steps():
    """Step times over words and numbers of plan, chip and network."""
    axes = {
        "gpu": ["h100-80gb", "a100-80gb"],
        "recompute": ["none", "full"],
        "dp": [1, 2, 3],
        "network_bandwidth": [5e9, 5e10],
    }
    fixed = {"model": "llama3-8b", "tp": 8, "global_batch": 64, "network_latency": 2e-5}
    return js.sweep(axes, of="step_time", fixed=fixed, chunk=8)


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_step_times_are_those_of_the_function(steps, gpu):
    for recompute in ("none", "full"):
        plan = js.Plan(dp=2, tp=8, n_microbatches=32, recompute=recompute)
        network = js.load_hardware()[gpu].network(bandwidth=5e9)
        slower = network.latency * np.asarray([0.0, 1.0, 1.0]) / network.latency[1] * 2e-5
        slower = slower + network.latency * np.asarray([1.0, 0.0, 0.0])
        cluster = js.Cluster(
            js.chip(gpu), js.Network(network.domain_size, network.bandwidth, slower, network.link_peers), 16
        )
        coefficients = js.load_fit().coefficients({"gpu": gpu, "precision": "bf16"}, 16)
        arguments = ("llama3-8b", plan, cluster, coefficients)
        found = steps.sel(gpu=gpu, recompute=recompute, dp=2, network_bandwidth=5e9)
        np.testing.assert_allclose(found.step_time, js.step_time(*arguments).total, rtol=1e-5)
        np.testing.assert_allclose(found.memory, js.memory(*arguments).total, rtol=1e-5)
        others = steps.step_time.sel(dp=2).values
        assert np.sum(np.isclose(others, found.step_time.values, rtol=1e-5)) == 1  # the label tells it from all others


def test_results_are_labelled(steps):
    assert steps.step_time.dims == ("gpu", "recompute", "dp", "network_bandwidth")
    assert (steps.step_time.units, steps.memory.units, steps.network_bandwidth.units) == ("s", "byte", "byte/s")
    assert steps.attrs["of"] == "step_time" and steps.attrs["tp"] == 8
    assert steps.gpu.values.tolist() == ["h100-80gb", "a100-80gb"]


def test_a_plan_that_breaks_a_rule_has_no_step(steps):
    assert not steps.valid.sel(dp=3).any() and steps.step_time.sel(dp=3).isnull().all()
    assert steps.valid.sel(dp=[1, 2]).all() and steps.step_time.sel(dp=[1, 2]).notnull().all()


def test_more_bandwidth_is_never_slower(steps):
    times = steps.step_time.sel(dp=2)
    assert (times.sel(network_bandwidth=5e10) < times.sel(network_bandwidth=5e9)).all()
    assert (times.sel(recompute="full") > times.sel(recompute="none")).all()


def test_shapes_and_chips_sweep():
    found = js.sweep({"n_layers": [16, 32], "peak_flops": [5e14, 1e15]}, of="step_time", fixed={**LLAMA, "dp": 8})
    deep = js.step_time(js.model("llama3-8b", n_layers=16), js.Plan(dp=8), "h100-80gb")
    assert found.step_time[0, 1] < found.step_time[1, 1] and found.step_time[0, 1] < found.step_time[0, 0]
    np.testing.assert_allclose(found.step_time[0].interp(peak_flops=989.4e12), deep.total, rtol=0.02)


DEGREES = st.fixed_dictionaries({}, optional={name: st.sampled_from([1, 2, 4]) for name in ("tp", "pp", "cp")})
MICRO_BATCHES = st.fixed_dictionaries({}, optional={"micro_batch_size": st.sampled_from([1, 2, 4])})


@given(stated=DEGREES, micro=MICRO_BATCHES, replicas=st.integers(1, 64), microbatches=st.integers(1, 16))
def test_what_nothing_states_follows_from_chips_and_batch(stated, micro, replicas, microbatches):
    """Degrees left out are one, dp is n / (tp pp cp), and there are B / (b dp) microbatches."""
    n = replicas * math.prod(stated.values())
    batch = replicas * microbatches * micro.get("micro_batch_size", 1)
    spec = sweep_spec({"n_gpus": [n]}, "step_time", {**LLAMA, **stated, **micro, "global_batch": batch})
    _, plan, cluster, _ = _Assembly(spec).parts({"n_gpus": np.asarray(n, float)})
    numbers = [float(getattr(plan, name)) for name in ("tp", "pp", "cp", "dp", "micro_batch_size", "n_microbatches")]
    told = [*(stated.get(name, 1) for name in ("tp", "pp", "cp")), replicas, micro.get("micro_batch_size", 1)]
    assert numbers == pytest.approx([*told, microbatches])
    assert float(plan.n_chips) == float(cluster.n_chips) == n


def test_regions_change_nothing(steps):
    axes = {name: steps[name].values for name in steps.dims}
    whole = js.sweep(axes, of="step_time", fixed={name: steps.attrs[name] for name in steps.attrs if name != "of"})
    assert np.isclose(whole.step_time, steps.step_time, rtol=1e-6, equal_nan=True).all()


@pytest.mark.slow
def test_searches_are_those_of_the_functions():
    found = js.sweep({"global_batch": [100, 101], "n_gpus": [8, 16]}, of="best_plan", fixed={**LLAMA, "pp": 1})
    best = js.best_plan("llama3-8b", "h100-80gb", 100, n_chips=8, space=None).best
    assert found.step_time[0, 0] >= best.step_time * (1.0 - 1e-6)
    assert (found.pp[0] == 1).all() and found.recompute[0, 0].item() in ("none", "selective", "full")
    chips = found.dp * found.tp * found.pp * found.cp
    assert (chips[0] == [8, 16]).all()
    assert (found.dp * found.micro_batch_size * found.n_microbatches)[0].values.tolist() == [100, 100]
    served = js.sweep({"n_gpus": [2]}, of="serving", fixed={**LLAMA, "input_len": 500, "output_len": 200})
    model, cluster = js.model("llama3-8b"), js.cluster("h100-80gb", 2)
    levels = js.serving.stack_levels("vllm", "h100-80gb", model, name="llama3-8b")
    alone = js.serving.best_serving_plan(model, cluster, 500, 200, levels=levels)
    np.testing.assert_allclose(served.throughput_per_chip, [alone.best.throughput_per_chip], rtol=1e-6)


def test_a_search_without_an_answer_is_told(capsys, tmp_path):
    from jaxscale.cli.main import main

    (tmp_path / "spec.toml").write_text(
        'of = "best_plan"\n[axes.n_gpus]\nvalues = [1]\n[fixed]\nmodel = "llama3-70b"\n'
        'gpu = "v100-16gb"\nglobal_batch = 1\nfit = "prior"\n'
    )
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")]) == 0
    assert "1 points have no answer, the first: " in capsys.readouterr().err
    found = js.open_sweep(tmp_path / "out")
    assert found.step_time.isnull().all() and found.schedule.values.tolist() == [""]


@pytest.mark.parametrize(
    ("axes", "of", "fixed", "said"),
    [
        ({"netwrk_bandwidth": [1e9]}, "step_time", LLAMA, "did you mean network_bandwidth"),
        ({"dp": [1]}, "step_tme", LLAMA, "did you mean step_time"),
        ({"dp": [1]}, "step_time", {"model": "llama3-8b"}, "gpu is missing"),
        ({"dp": [1]}, "step_time", {**LLAMA, "gpu": "h100x"}, "h100"),
        ({"dp": [0.5]}, "step_time", LLAMA, "expected a number from 1"),
        ({"dp": ["two"]}, "step_time", LLAMA, "is not a number"),
        ({"recompute": ["all"]}, "step_time", LLAMA, "known: full, none, selective"),
        ({"dp": [1]}, "step_time", {**LLAMA, "n_heads": 7}, "n_kv_heads"),
        ({"global_batch": [8]}, "step_time", {**LLAMA, "n_microbatches": 2}, "say the same"),
        ({"global_batch": [1]}, "step_time", {**LLAMA, "dp": 8}, "valid"),
        ({"global_batch": [8]}, "step_time", {**LLAMA, "n_gpus": 8, "tp": 16}, "Plan.dp = 0.5 is out of range"),
        ({"n_gpus": [8]}, "best_plan", {**LLAMA, "global_batch": 8, "schedule": "late"}, "schedule"),
        ({"n_gpus": [8]}, "best_plan", {**LLAMA, "global_batch": 8, "framework": "nemoo"}, "nemo"),
        ({"flop": [1e22]}, "best_design", {**LLAMA, "n_gpus": 8, "days": 3}, "say the same"),
        ({"latency": [1e-3]}, "islands", {"fleet": "none.toml", "model": "llama3-8b", "global_batch": 8}, "none.toml"),
        ({}, "limits", {}, "no axes"),
    ],
)
def test_what_makes_no_sense_is_refused(axes, of, fixed, said):
    if said == "valid":  # a batch smaller than its replicas: a point without an answer, among others that have one
        assert not js.sweep(axes, of=of, fixed=fixed).valid.any()
        return
    with pytest.raises(InputError, match=said) as refused:
        js.sweep(axes, of=of, fixed=fixed)
    assert "\n" not in str(refused.value)


def test_predictions_and_plans_load_nothing_of_it():
    import subprocess
    import sys

    program = (
        "import sys, jaxscale.cli.predict, jaxscale.cli.plan, jaxscale.runs.predict, jaxscale.plans.best_plan;"
        "print([name for name in sys.modules if name.startswith(('jaxscale.sweeps', 'xarray', 'zarr', 'dask'))])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"
