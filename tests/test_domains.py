"""Domains of numbers: what is outside is refused from Python, arrays, TOML, config.json and cells alike."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.domains import Bound, Domain
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.hardware.cluster import CHIP, CLUSTER, NETWORK
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import ARGUMENTS, Transformer
from jaxscale.plans.adapters import MATMULS
from jaxscale.plans.plan import FLAGS, PLAN, Plan
from jaxscale.rollouts.rollout_batch import ROLLOUT_BATCH
from jaxscale.runs.predict import refuse_impossible
from jaxscale.runs.schema import BY_NAME, MODEL_FIELDS
from jaxscale.serving.engine import ENGINE, REQUESTS

SHAPE = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "seq_len": 2048}
RUN = {"gpu": "h100-80gb", "n_gpus": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, "global_batch_size_seqs": 64}
SSM = {"ssm_d_inner": 8192, "ssm_state": 128}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "n_dense_layers": {"n_experts": 8, "moe_top_k": 2, "n_dense_layers": 40},
    "ssm_groups": {"n_ssm_layers": 8, **SSM, "ssm_groups": 0},
    "rope_head_dim": {"kv_lora_rank": 512, "rope_head_dim": 100_000},
    "n_attention_layers": {"n_attention_layers": 1000},
    "n_ssm_layers": {"n_ssm_layers": 1000, **SSM},
    "window_share": {"window": 0, "window_share": 1},
    "n_kv_heads": {"n_kv_heads": 5},
    "moe_top_k": {"moe_top_k": 2},
}


def outside(bound: Bound) -> list[float]:
    """Numbers that are just outside of a bound."""
    below = bound.low if bound.is_above else bound.low - 0.5
    return [below, float("nan"), *([bound.high * 1.5, float("inf")] if bound.high < 1e300 else [])]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_shapes_are_refused_at_every_door(name: str, tmp_path: Path):
    shape = {**SHAPE, **IMPOSSIBLE[name]}
    with pytest.raises(ValueError, match=rf"^Transformer\.{name} = "):
        Transformer(**shape)
    with pytest.raises(ValueError, match=rf"^Transformer\.{name} = "):
        Transformer(**{key: np.asarray([float(value)] * 2) for key, value in shape.items()})
    (tmp_path / "model.toml").write_text("\n".join(f"{key} = {value}" for key, value in shape.items()))
    with pytest.raises(js.InputError, match=rf"model.toml: Transformer\.{name} = "):
        js.model(tmp_path / "model.toml")
    with pytest.raises(js.InputError, match=rf"^table:1: column '{name}' = "):
        js.read_runs({key: [value] for key, value in {**shape, **RUN}.items()})
    whole = js.read_runs({key: [value] for key, value in {**SHAPE, **RUN}.items()})
    assert len(whole) == 1  # negative control


def test_every_argument_of_a_model_has_a_bound():
    assert set(MODEL.bounds) == set(ARGUMENTS)
    assert {field.name for field in dataclasses.fields(js.Plan)} >= set(PLAN.bounds)


@pytest.mark.parametrize("name", MODEL.bounds)
def test_numbers_outside_of_their_bound_are_refused(name: str):
    # All layers of a dense model are, whatever it says.
    mixture = {"n_experts": 8} if name == "n_dense_layers" else {}
    for value in outside(MODEL.bounds[name]):
        with pytest.raises(ValueError, match=rf"Transformer\.{name}|Transformer\.n_heads"):
            Transformer(**{**SHAPE, **mixture, name: value})


@pytest.mark.parametrize("name", [*PLAN.bounds, *FLAGS])
def test_numbers_of_a_plan_outside_of_their_bound_are_refused(name: str):
    for value in outside(PLAN.bounds.get(name, Bound(0.0, 1.0))):
        with pytest.raises(ValueError, match=rf"Plan\.{name} = "):
            Plan(**{name: value})


@pytest.mark.parametrize("name", ["expert_skew", "expert_load", "capacity_factor", "weight_bytes"])
def test_cells_of_a_plan_have_the_bounds_of_the_plan(name: str):
    high, run = PLAN.bounds[name].high, {key: [value] for key, value in {**SHAPE, **RUN}.items()}
    with pytest.raises(js.InputError, match=rf"^table:1: column '{name}' = .*must be at most "):
        js.read_runs({**run, name: [high * 1.5]})
    assert len(js.read_runs({**run, name: [high]})) == 1


def test_a_config_with_no_heads_is_one_line(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 8}))
    with pytest.raises(js.InputError, match="config.json: 'num_attention_heads' is missing"):
        js.model(tmp_path / "config.json")


def test_a_config_with_a_fraction_of_a_size_is_one_line(tmp_path: Path):
    heads = {"hidden_size": 1e-320, "num_hidden_layers": 2, "vocab_size": 8, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(heads))
    with pytest.raises(js.InputError, match="config.json: 'hidden_size' = 1e-320 is no whole number; expected one"):
        js.model(tmp_path / "config.json")


def test_a_domain_of_a_chip_file_has_a_chip(tmp_path: Path):
    numbers = {"peak_tflops_bf16": 400, "memory_gb": 80, "memory_gb_per_s": 2000, "link_gb_per_s": 300}
    lines = [f"{name} = {number}" for name, number in {**numbers, "domain_size": 0.1}.items()]
    (tmp_path / "chips.toml").write_text("\n".join(['[chips."mine"]', *lines]))
    with pytest.raises(js.InputError, match="domain_size = 0.1.* expected a number from 1 to 1e15"):
        load_hardware(tmp_path / "chips.toml")


def test_switches_of_adapters_are_numbers_from_0_to_1():
    for bad in (float("inf"), float("nan"), 2.0):
        with pytest.raises(ValueError, match="Plan.lora_targets = .* is out of range"):
            js.Plan(lora_targets=np.full(len(MATMULS), bad))


def test_columns_of_a_model_have_the_bounds_of_its_arguments():
    for name in MODEL_FIELDS:
        column, bound = BY_NAME[name], MODEL.bounds[name]
        if column.kind == "integer":
            assert column.maximum == bound.high and (column.least or 0) >= bound.low, name


def test_chips_and_requests_are_refused_too():
    chip = js.chip("h100-80gb")
    for name, bound in CHIP.bounds.items():
        with pytest.raises(ValueError, match=rf"Chip\.{name} = "):
            dataclasses.replace(chip, **{name: np.full_like(getattr(chip, name), outside(bound)[0])})
    with pytest.raises(ValueError, match=r"Cluster\.n_chips = 0 is out of range"):
        dataclasses.replace(js.cluster("h100-80gb", 8), n_chips=0)
    with pytest.raises(ValueError, match=r"Requests\.input_len = 0 is out of range"):
        js.serving.Requests(8, 0, 128)


def test_traced_numbers_are_not_looked_at():
    slope = jax.grad(lambda d: Transformer(4, d, 4).d_ff)(jnp.asarray(-64.0))
    assert slope == 4.0


def test_an_impossible_prediction_is_an_error_of_the_program():
    answers = {"step_time": [1.0, 2.0], "lo": [0.9, 1.0], "hi": [1.1, 3.0]}
    good = {name: np.asarray(value) for name, value in answers.items()}
    good |= {name.replace("step_time", "memory"): good[name] for name in ("step_time",)}
    good |= {"memory_lo": good["lo"], "memory_hi": good["hi"]}
    refuse_impossible(good)
    for name, value in (("step_time", -1.0), ("memory", np.nan), ("lo", 1.5), ("hi", np.inf)):
        with pytest.raises(ArithmeticError, match="please report"):
            refuse_impossible({**good, name: np.asarray([value, 2.0])})


@pytest.mark.parametrize(
    "domain", [MODEL, PLAN, CHIP, NETWORK, CLUSTER, ENGINE, REQUESTS, ROLLOUT_BATCH], ids=lambda d: d.what
)
def test_the_page_states_the_domains(domain: Domain):
    page = Path(__file__).parents[1].joinpath("docs/valid_numbers.md").read_text(encoding="utf-8")
    assert "\n".join(domain.page()).rstrip() in page
