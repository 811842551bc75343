"""Plans written as launch settings and read again are the same plans, or the settings say what they lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.launch.readers.read_run import run_of
from jaxscale.launch.writers.launch_text import WRITERS, launch_text
from jaxscale.models import catalogue_model
from jaxscale.tables.words import translate

N_PLANS = 200
ENDINGS = {"megatron-lm": "sh", "torchtitan": "toml", "deepspeed": "json"}
MODELS = ("llama3-8b", "qwen3-30b-a3b")
SEQ_LEN = 4096.0


def random_plan(rng: np.random.Generator, is_mixture: bool) -> dict[str, Any]:
    """A plan with degrees of powers of two, as `Plan.words` gives it."""
    pp = int(rng.choice([1, 1, 2, 4]))
    dp = int(rng.choice([1, 2, 4, 16]))
    return {
        "dp": dp,
        "tp": int(rng.choice([1, 2, 4, 8])),
        "pp": pp,
        "vpp": int(rng.choice([1, 2])) if pp > 1 else 1,
        "cp": int(rng.choice([1, 1, 2])),
        "ep": min(dp, int(rng.choice([1, 2, 8]))) if is_mixture else 1,
        "zero_stage": int(rng.choice([0, 1, 2, 3])) if dp > 1 else 0,
        "shard_group": dp,
        "micro_batch_size": int(rng.choice([1, 2, 4])),
        "n_microbatches": int(rng.choice([1, 4, 8])),
        "sequence_parallel": bool(rng.integers(2)),
        "recompute": str(rng.choice(["none", "selective", "full"])),
        "schedule": "1f1b",
        "precision": str(rng.choice(["bf16", "fp8", "fp16"])),
        "overlap_gradients": bool(rng.integers(2)),
    }


def read_back(folder: Path, framework: str, text: str) -> dict[str, Any]:
    """Fields of a plan from its settings."""
    path = folder / f"launch.{ENDINGS.get(framework, 'yaml')}"
    path.write_text(text, encoding="utf-8")
    cells = run_of(path).cells
    counts = ("tp", "pp", "cp", "ep", "vpp", "micro_batch_size", "global_batch_size_seqs")
    plan: dict[str, Any] = {name: float(cells.get(name) or 1) for name in counts}
    degrees = plan["tp"] * plan["pp"] * plan["cp"]
    plan["dp"] = float(cells["dp"]) if "dp" in cells else float(cells["n_gpus"]) / degrees
    plan["zero_stage"] = float(cells.get("zero_stage") or 0)
    plan["recompute"] = translate("recompute", cells.get("activation_recompute") or "none")
    plan["precision"] = translate("precisions", cells["precision"])
    plan["seq_len"] = float(cells.get("seq_len") or 0)
    return plan


@pytest.mark.parametrize("framework", WRITERS)
def test_plans_survive_the_round_trip(tmp_path: Path, framework: str):
    rng = np.random.default_rng(1)
    for place in range(N_PLANS):
        name = MODELS[place % 2]
        plan = random_plan(rng, name != "llama3-8b")
        written = launch_text(framework, plan, catalogue_model(name) or {}, SEQ_LEN, name)
        found = read_back(tmp_path, framework, written.text)
        lost = {text.split(" =")[0].split(":")[0] for text in written.not_expressed}
        batch = plan["micro_batch_size"] * plan["n_microbatches"] * plan["dp"]
        expected = {**plan, "global_batch_size_seqs": batch, "seq_len": SEQ_LEN}
        expected["precision"] = translate("precisions", plan["precision"])
        for key, value in found.items():
            if key not in lost and not (key == "precision" and plan["precision"] in lost):
                assert value == expected[key], (framework, key, plan, written.text)


def test_a_changed_setting_is_noticed(tmp_path: Path):
    """Negative control of the round trip."""
    plan = random_plan(np.random.default_rng(1), False) | {"tp": 4}
    text = launch_text("megatron-lm", plan, catalogue_model("llama3-8b") or {}, SEQ_LEN).text
    changed = text.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 2")
    assert read_back(tmp_path, "megatron-lm", text)["tp"] == 4.0 != read_back(tmp_path, "megatron-lm", changed)["tp"]


def test_what_a_framework_cannot_say_is_told():
    plan = random_plan(np.random.default_rng(2), False) | {"pp": 4, "vpp": 2, "zero_stage": 2, "recompute": "selective"}
    model = catalogue_model("llama3-8b") or {}
    assert any(text.startswith("pp = 4") for text in launch_text("deepspeed", plan, model, SEQ_LEN).not_expressed)
    assert any(text.startswith("vpp = 2") for text in launch_text("nanotron", plan, model, SEQ_LEN).not_expressed)
    text = launch_text("megatron-lm", plan, model, SEQ_LEN)
    assert "# not expressed: zero_stage = 2" in text.text
    simple = plan | {"pp": 1, "vpp": 1, "zero_stage": 1, "recompute": "none", "precision": "bf16"}
    assert not launch_text("megatron-lm", simple, model, SEQ_LEN).not_expressed


def test_choices_have_comments():
    plan = random_plan(np.random.default_rng(3), False)
    model = catalogue_model("llama3-8b") or {}
    assert launch_text("torchtitan", plan, model, SEQ_LEN).text.count("# ") >= 4
    assert launch_text("deepspeed", plan, model, SEQ_LEN).comments


def test_an_unknown_framework():
    with pytest.raises(InputError, match="--write = 'pax' has no writer; expected one of megatron-lm"):
        launch_text("pax", {}, {}, SEQ_LEN)
