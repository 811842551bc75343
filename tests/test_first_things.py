"""First things that people try in Python, as users of equinox, pandas and notebooks: a value or one clear line."""

import copy
import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import jaxscale as js

PLAN = js.Plan(dp=64, tp=2, pp=4, zero_stage=1, n_microbatches=16)
ROW = {"model": "llama3-8b", "gpu": "h100-80gb", "n_gpus": 64, "global_batch_size_seqs": 512, "seq_len": 8192}
FULL = {**ROW, "tp": 2, "pp": 1, "micro_batch_size": 1, "zero_stage": 3}


class Given:
    """What a session has at hand, made once."""

    def __init__(self):
        self.model, self.cluster = js.model("llama3-8b"), js.cluster("h100-80gb", 512)
        self.coefficients = js.load_fit().coefficients({"gpu": "h100-80gb"})
        self.arguments = (self.model, PLAN, self.cluster, self.coefficients)
        self.choice = js.best_plan("llama3-8b", "h100-80gb", 512, n_chips=64)

    def seconds(self, model: js.Transformer) -> jax.Array:
        """Step time of a model [s]."""
        return js.step_time(model, PLAN, self.cluster, self.coefficients).total


@pytest.fixture(scope="module")
def given() -> Given:
    return Given()


def is_close(value: Any, wanted: float, rtol: float = 1e-6) -> bool:
    return bool(np.isclose(float(np.asarray(value)), wanted, rtol=rtol))


def traced_once(given: Given) -> bool:
    """One compilation serves every width."""
    traced = []

    @eqx.filter_jit
    def run(model: js.Transformer) -> jax.Array:
        traced.append(1)
        return given.seconds(model)

    times = [float(run(js.model("llama3-8b", d_model=width))) for width in (4096, 4608, 5120)]
    return len(traced) == 1 and times == sorted(times)


def descends(given: Given) -> bool:
    """Three steps of optax lower the step time by the width alone."""

    def loss(width: jax.Array) -> jax.Array:
        return given.seconds(eqx.tree_at(lambda model: model.d_model, given.model, width * 4096.0))

    width, optimiser = jnp.asarray(1.0), optax.sgd(0.05)
    state, before = optimiser.init(width), float(loss(width))
    for _ in range(3):
        change, state = optimiser.update(jax.grad(loss)(width), state)
        width = optax.apply_updates(width, change)
    return float(loss(width)) < before


def in_single_precision(given: Given) -> bool:
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), given.arguments)
    step = js.step_time(*narrow)
    return step.total.dtype == jnp.float32 and is_close(step.total, float(given.seconds(given.model)), 1e-4)


ANSWERS: dict[str, Callable[[Given], Any]] = {
    # values that print themselves
    "repr of a step": lambda g: re.search(
        r"StepTime: \d.* s\n.*matmul +\S+ m?s +\d+\.\d %", repr(js.step_time(*g.arguments)), re.S
    ),
    "repr of a peak": lambda g: "of 84.9 GB, fits" in repr(js.memory(*g.arguments)),
    "repr of a choice": lambda g: "dp 32  cp 2  mb 1 x 16  ZeRO-2" in repr(g.choice),
    "repr of a prediction": lambda g: "7.41 s" in repr(js.predict(ROW)),
    "repr of a table": lambda g: repr(js.read_runs(ROW)).startswith("Runs: 1 rows of 5 columns"),
    "repr of a model": lambda g: "8.03e9 parameters" in repr(g.model) and "d_model" in repr(g.model),
    "repr of a plan": lambda g: "dp 64  tp 2  pp 4  mb 1 x 16  ZeRO-1 on 512 chips" in repr(PLAN),
    "repr of a cluster": lambda g: "989 Tflop/s" in repr(g.cluster) and "450 Gbyte/s" in repr(g.cluster),
    "repr of a fit": lambda g: re.search(r"\d+ coefficients", repr(js.load_fit())),
    "repr of requests": lambda g: "concurrency" in repr(js.serving.Requests(8, 1024, 128)),
    "repr of a gradient": lambda g: re.search(r"n_layers +0\.\d+", repr(jax.grad(g.seconds)(g.model))),
    "repr of elasticities": lambda g: (
        "chip.hbm_bandwidth"
        in repr(js.elasticity(lambda c: js.step_time(g.model, PLAN, c, g.coefficients).total, g.cluster))
    ),
    "repr under jit": lambda g: jax.jit(lambda m: jnp.asarray(len(repr(m))))(g.model) > 0,
    "HTML of a step": lambda g: "<table>" in js.step_time(*g.arguments)._repr_html_(),
    "HTML of a choice": lambda g: "<th>plan</th>" in g.choice._repr_html_(),
    # equinox, jax, optax
    "filter_grad": lambda g: float(eqx.filter_grad(g.seconds)(g.model).d_model) > 0.0,
    "filter_value_and_grad": lambda g: is_close(
        eqx.filter_value_and_grad(g.seconds)(g.model)[0], float(g.seconds(g.model))
    ),
    "filter_jit compiles once": traced_once,
    "filter_vmap": lambda g: (
        eqx.filter_vmap(lambda n: g.seconds(eqx.tree_at(lambda m: m.n_layers, g.model, n)))(
            jnp.asarray([16.0, 32.0])
        ).shape
        == (2,)
    ),
    "tree_at": lambda g: g.seconds(eqx.tree_at(lambda m: m.d_model, g.model, 8192.0)) > g.seconds(g.model),
    "partition and combine": lambda g: is_close(
        g.seconds(eqx.combine(*eqx.partition(g.model, eqx.is_array))), float(g.seconds(g.model))
    ),
    "hessian": lambda g: np.isfinite(
        jax.hessian(lambda n: g.seconds(eqx.tree_at(lambda m: m.n_layers, g.model, n)))(32.0)
    ),
    "optax": descends,
    "float32": in_single_precision,
    "stacked models": lambda g: (
        jax.vmap(g.seconds)(jax.tree.map(lambda *leaves: jnp.stack(leaves), g.model, js.model("llama3-70b"))).shape
        == (2,)
    ),
    # dataclasses and Python
    "replace a degree": lambda g: (
        js.step_time(g.model, dataclasses.replace(PLAN, tp=8, dp=16), g.cluster, g.coefficients).total > 0.0
    ),
    "replace a word": lambda g: (
        dataclasses.replace(PLAN, recompute="full").recompute == "full"
        and dataclasses.replace(PLAN, schedule="gpipe").gpipe == 1.0
    ),
    "replace a depth": lambda g: is_close(
        js.n_params(dataclasses.replace(js.model("deepseek-v3"), n_layers=61)),
        float(js.n_params(js.model("deepseek-v3"))),
    ),
    "replace a number of experts": lambda g: (
        js.n_params(dataclasses.replace(g.model, n_experts=8, moe_top_k=2)) > 3.0 * js.n_params(g.model)
    ),
    "shard group follows dp": lambda g: (
        js.memory(g.model, dataclasses.replace(PLAN, dp=32, tp=4), g.cluster, g.coefficients).total > 0.0
    ),
    "asdict": lambda g: dataclasses.asdict(PLAN)["dp"] == 64.0,
    "words": lambda g: js.Plan(**PLAN.words()).words() == PLAN.words(),
    "pickle and copy": lambda g: pickle.loads(pickle.dumps(g.model)).d_model == copy.deepcopy(g.model).d_model,
    "format": lambda g: f"{g.model.d_model:.0f} {PLAN.dp:g}" == "4096 64",
    "int of a degree": lambda g: int(PLAN.tp) == 2 and round(PLAN.dp) == 64,
    # names and tables
    "names in step_time": lambda g: is_close(
        js.step_time("llama3-8b", PLAN, "h100-80gb").total, float(js.step_time(*g.arguments[:3], js.load_fit()).total)
    ),
    "names in best_plan": lambda g: g.choice.best.step_time < 8.0,
    "a path": lambda g: len(js.predict(js.data_path("runs/torchtitan.csv"))) > 20,
    "a mapping": lambda g: is_close(js.predict(ROW).step_time[0], g.choice.best.step_time),
    "a list of mappings": lambda g: js.predict([ROW, FULL]).step_time.shape == (2,),
    "a frame of pandas": lambda g: js.predict(pd.DataFrame([FULL])).to_pandas()["predicted_step_time_s"][1] > 0.0,
    "a frame keeps its columns": lambda g: (
        {"model", "gpu", "n_gpus", "predicted_plan"} <= set(js.predict(pd.DataFrame([FULL])).to_pandas())
    ),
    "columns of numpy": lambda g: js.predict({**FULL, "micro_batch_size": np.asarray([1, 2])}).step_time.shape == (2,),
    "where": lambda g: (
        set(js.read_runs([ROW, {**ROW, "n_gpus": 8}]).where(n_gpus=lambda n: n > 8).column("n_gpus")) == {64.0}
    ),
    "concatenate": lambda g: len(js.read_runs(ROW) + js.read_runs([FULL, ROW])) == 3,
    "slices and masks": lambda g: (
        len(js.read_runs([ROW, FULL])[:1]) == len(js.read_runs([ROW, FULL])[np.asarray([False, True])]) == 1
    ),
    "JSON of a choice": lambda g: json.loads(json.dumps(g.choice.to_json()))["best"]["dp"] == 32,
    "dir": lambda g: (
        {"step_time", "best_plan", "predict", "Plan"} <= set(dir(js))
        and not {"public_face", "TYPE_CHECKING"} & set(dir(js))
    ),
    "functions and modules": lambda g: (
        callable(js.fit) and callable(js.predict) and callable(js.memory) and js.report.__name__ == "jaxscale.report"
    ),
}
"""Things that work, each with what must hold of the answer."""


@pytest.mark.parametrize("name", ANSWERS)
def test_it_works(name: str, given: Given):
    assert ANSWERS[name](given)


REFUSALS: dict[str, tuple[Callable[[Given], Any], str]] = {
    "an unknown model": (lambda g: js.model("lama3-8b"), "llama3-8b"),
    "an unknown chip": (lambda g: js.cluster("h100-80x", 8), "h100-80gb"),
    "a chip without a count": (lambda g: js.best_plan("llama3-8b", "h100-80gb", 512), "expected n_chips"),
    "too few chips": (
        lambda g: js.step_time(g.model, js.Plan(dp=3, tp=2), js.cluster("h100-80gb", 64), g.coefficients),
        "= 6 must equal the cluster's 64 chips",
    ),
    "heads that do not divide": (
        lambda g: js.step_time(g.model, js.Plan(dp=1, tp=7), js.cluster("h100-80gb", 7), g.coefficients),
        "tp = 7 must divide n_heads = 32",
    ),
    "an unknown word": (lambda g: js.Plan(recompute="some"), "expected one of none, selective, full"),
    "a degree of none": (lambda g: js.Plan(dp=0), "Plan.dp = 0 is out of range"),
    "a field that is none": (lambda g: js.Plan(dps=2), "unexpected keyword argument 'dps'"),
    "a negative width": (lambda g: js.Transformer(4, -64, 4), "d_model = -64 is out of range"),
    "a number for a table": (lambda g: js.predict(3), "int is no table of runs; expected a path"),
    "a path that is not there": (lambda g: js.predict("no-such.csv"), "no-such.csv: cannot be read"),
    "an unknown column": (lambda g: js.read_runs(ROW).where(gpus=8), "'gpus' is no column"),
    "columns of unequal length": (lambda g: js.predict({**ROW, "tp": [1, 2], "pp": [1]}), "columns of 1 and 2 rows"),
    "a table without chips": (
        lambda g: js.predict({"model": "llama3-8b", "seq_len": 8192}),
        "missing columns 'gpu', 'n_gpus'",
    ),
    "an unknown fit": (lambda g: js.predict(ROW, fit="defualt"), "'defualt' is not shipped"),
    "an unknown name": (lambda g: js.bestplan, "no attribute 'bestplan'"),
}
"""Things that cannot work, each with what the one line says."""


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_in_one_line(name: str, given: Given):
    ask, text = REFUSALS[name]
    with pytest.raises((js.InputError, ValueError, TypeError, AttributeError)) as refusal:
        ask(given)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)
