"""Scaling laws, the library of scenarios, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.limits.frontier_scenario import FrontierScenario, load_scenarios, log_step_limit, scenario, workload


def laws(flop: float, **changes: float):
    arrays = jax.tree.map(jnp.asarray, scenario(**changes))
    return workload(jnp.log(flop), arrays), arrays


def test_chinchilla_and_shape():
    work, _ = laws(1e26)
    params, tokens = float(jnp.exp(work.log_params)), float(jnp.exp(work.log_tokens))
    assert 6.0 * params * tokens == pytest.approx(1e26)
    assert tokens / params == pytest.approx(20.0)
    assert 2.0 * float(jnp.exp(work.log_layers + work.log_width + work.log_ff)) == pytest.approx(params)
    gpt3, _ = laws(120.0 * (8.0 * 96.0 * 12288.0**2) ** 2)
    assert float(jnp.exp(gpt3.log_layers)) == pytest.approx(96.0)
    assert float(jnp.exp(gpt3.log_width)) == pytest.approx(12288.0)


def test_depth_by_levine():
    work = workload(jnp.log(1e30), jax.tree.map(jnp.asarray, load_scenarios()["depth-levine"]))
    layers, width = float(jnp.exp(work.log_layers)), float(jnp.exp(work.log_width))
    assert np.log(width) == pytest.approx(5.039 + 0.0555 * (layers - 1.0), rel=1e-5)
    assert abs(np.log(width) - (5.039 + 0.0555 * 1.2 * layers)) > 0.5


def test_batch_grows_and_the_deadline_follows():
    (small, first), (large, _) = laws(1e26), laws(1e32)
    assert float(large.log_batch - small.log_batch) == pytest.approx(np.log(10.0))
    seconds = float(jnp.exp(log_step_limit(small, first)))
    steps = float(jnp.exp(small.log_tokens - small.log_batch))
    assert seconds * steps == pytest.approx(90 * 86400.0)


def test_library_has_what_it_should():
    known = load_scenarios()
    for name in ("default", "a100", "v100", "b200", "gb200-nvl72", "tpu-v5p", "gtx580", "node-64", "sparse-1024"):
        assert isinstance(known[name], FrontierScenario)
    assert known["default"].peak_flops == pytest.approx(1978.9e12)
    assert known["a100"].peak_flops == pytest.approx(312e12) and known["a100"].weight_bytes == 2.0
    assert known["gtx580"].weight_bytes == 4.0
    assert known["h100-in-four-years"].peak_flops > 2.0 * known["default"].peak_flops
    assert all(np.isfinite(leaf) for one in known.values() for leaf in dataclasses.astuple(one))


REFUSED = {
    "x = [": "not valid TOML",
    "[other]\na = 1": "no scenarios",
    "[scenarios.mine]\nbatch_exponnent = 0.2": "did you mean batch_exponent",
    "[scenarios.mine]\nnetwork_latency = 'fast'": "is not a number",
    "[scenarios.mine]\nnetwork_bandwidth = 0": "expected a number above 0",
    "[scenarios.mine]\nmax_utilisation = 1.2": "at most 1",
    "[scenarios.mine]\ngpu = 'h1000'": "h1000",
    "[scenarios.mine]\nyears = 900": "from -50 to 50",
    "scenarios.mine = 3": "must be a table",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items())
def test_malformed_files_get_one_line(tmp_path, text, said):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as refusal:
        load_scenarios(path)
    assert "\n" not in str(refusal.value)


def test_own_scenarios(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("[scenarios.mine]\ngpu = 'b200'\nnetwork_latency = 1e-6\n")
    mine = load_scenarios(path)["mine"]
    assert mine.network_latency == 1e-6 and mine.memory_bytes == pytest.approx(191.5e9)
    assert mine.batch_exponent == pytest.approx(1 / 6)


def test_unknown_names():
    with pytest.raises(InputError, match="did you mean"):
        scenario("defalt")
    with pytest.raises(InputError, match="h1000"):
        scenario(chip_id="h1000")
