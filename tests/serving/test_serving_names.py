"""Served models, frameworks and releases by meaning: one answer for every spelling, the nearest release, ports."""

import itertools

import numpy as np
import pytest

from jaxscale import serving
from jaxscale.calibration.levels import Levels
from jaxscale.serving.serving_coefficients import framework_level, nearest_release, release_time
from jaxscale.serving.serving_predict import ANSWERS
from jaxscale.serving.serving_record import NOVELTIES, load_serving_fit

ROW = {
    "model": "llama3-70b", "framework": "vllm", "release": "", "gpu": "h100-80gb", "n_gpus": "8", "tp": "8",
    "precision": "fp8", "serving": "offline_max", "input_len": "2048", "output_len": "2048",
}  # fmt: skip
SPELLINGS = {
    "llama3-70b": ("meta-llama/Llama-3.1-70B-Instruct", "amd/Llama-3.1-70B-Instruct-FP8-KV"),
    "llama3.1-405b": ("meta-llama/Llama-3.1-405B-Instruct", "Meta-Llama-3.1-405B-Instruct-FP8"),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3-0324"),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "QWEN3_235B_A22B"),
    "kimi-k2": ("moonshotai/Kimi-K2-Instruct", "kimi-k2-thinking"),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "GPT-OSS-120B"),
}
RELEASES = {
    "sglang 0.4.1.post2": "sglang 0.5.1.post1",
    "sglang 0.5.9.post3": "sglang 0.5.9",
    "vllm 0.6.3": "vllm 2024-09 to 2024-11",
    "vllm v0.13.0": "vllm 0.12.0",
    "vllm 0.12.0": "vllm 0.12.0",
    "vllm banana": "vllm banana",
    "vllm-rocm 0.10.2": "vllm-rocm 0.9.1 rocm 6.4.1",
    "tensorrt-llm 2025-10": "tensorrt-llm 1.0.0rc3",
}
"""Releases, and the level of the shipped fit that counts for each."""


def answers(*changes: dict[str, str]) -> serving.ServingPrediction:
    """Predictions of rows that differ from `ROW`."""
    return serving.predict_serving(serving.read_serving([{**ROW, **change} for change in changes]))


@pytest.mark.parametrize(("name", "others"), SPELLINGS.items())
def test_a_model_has_one_answer_in_every_spelling(name, others):
    found = answers({"model": name}, *({"model": other} for other in others), {"model": "mistral-7b"})
    for answer in ANSWERS:
        assert found.values[answer][0] == found.values[answer][1] == found.values[answer][2] != found.values[answer][3]
        assert found.lo[answer][0] == found.lo[answer][1] == found.lo[answer][2]


@pytest.mark.parametrize("name", SPELLINGS)
def test_vllm_on_chips_of_amd_is_its_port(name):
    amd = {"model": name, "gpu": "mi300x"}
    found = answers(
        {**amd}, {**amd, "framework": "vllm-rocm"}, {"model": name}, {"model": name, "framework": "vllm-rocm"}
    )
    throughput = found.values["output_tokens_per_s_total"]
    assert throughput[0] == throughput[1]
    assert throughput[2] != throughput[3], "on a chip of NVIDIA there is no port"


def test_a_port_counts_from_its_month_on():
    assert framework_level("vllm", "AMD", "0.10.2") == framework_level("vllm", "AMD", "") == "vllm-rocm"
    assert framework_level("vllm", "AMD", "2024-09 to 2024-11") == "vllm"
    assert framework_level("sglang", "AMD", "") == "sglang"


@pytest.mark.parametrize(("release", "counted"), RELEASES.items())
def test_the_nearest_release_in_time_counts_for_an_unknown_one(release, counted):
    known = [effect.level for effect in load_serving_fit().effects if effect.kind == "release"]
    assert nearest_release(release, known) == counted
    framework, _, word = release.partition(" ")
    port = {"vllm-rocm": ("vllm", "mi300x")}.get(framework, (framework, "h100-80gb"))
    rows = ({"framework": port[0], "gpu": port[1], "release": text} for text in (word, counted.partition(" ")[2]))
    found = answers(*rows)
    for answer in ANSWERS:
        np.testing.assert_allclose(*found.values[answer], rtol=1e-12)
    assert (f"release {release} counts as" in found.notes[0]) == (release != counted)


def test_a_release_that_is_not_stated_is_any():
    """Neither it nor a word that is no release moves a prediction from that of the framework and its chip."""
    fit = load_serving_fit()
    assert not any(effect.level.endswith(" ") for effect in fit.effects)
    bare = fit.coefficients(framework="vllm", chip="h100-80gb")
    for release in ("vllm ", "vllm banana"):
        assert fit.coefficients(framework="vllm", chip="h100-80gb", release=release) == bare
    assert fit.coefficients(framework="vllm", chip="h100-80gb", release="vllm 0.11.0") != bare


def test_releases_are_in_the_order_of_time():
    texts = ("0.5.4", "0.6.3", "2024-12", "0.9.1 rocm 6.4.1", "0.10.2", "0.19.0")
    times = [release_time("vllm", text) for text in texts]
    assert times == sorted(times) and times[0] < times[-1]
    assert np.isnan(release_time("vllm", "banana")) and np.isnan(release_time("of nobody", "1.2"))


def test_what_is_newer_is_never_known_better():
    fit = load_serving_fit()
    stacks = sorted({width.stack for width in fit.widths if width.stack})
    kinds = ("static", "online", "offline_max", "disagg")
    rows = [
        {"serving": kind, "kind": f"gqa {density}", "stack": stack}
        for kind, density, stack in itertools.product(kinds, ("dense", "mixture"), (*stacks, "of nobody"))
    ]
    levels = Levels.of_rows(rows)
    none = np.zeros(len(rows), dtype=bool)
    for answer in ANSWERS:
        wider = None
        for novelty in NOVELTIES:
            new = {**dict.fromkeys(NOVELTIES, none), novelty: ~none}
            low, high = fit.intervals.ends(answer, levels, new)
            assert wider is None or (np.all(low <= wider[0]) and np.all(high >= wider[1]))
            wider = (low, high)
