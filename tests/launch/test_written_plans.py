"""Settings that are written: keys that the program has, the whole model, and the same run when they are read again."""

import ast
import itertools
import random
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import CLUSTERS, ENDINGS, FRAMEWORKS, MODELS, fields, n_params_of, plan_of

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.launch.options import complaints, option_key, option_table
from jaxscale.launch.readers.read_run import RunRow, run_of
from jaxscale.launch.writers.launch_text import WRITERS, LaunchText, launch_text
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.enumerate import enumerate_plans
from jaxscale.plans.plan_questions import framework_space
from jaxscale.tables.table import write_table

SEQ_LEN = 4096
MISSING = "model: "
ALL_MODELS = (*MODELS, "deepseek-v3 with prediction layers")


def written(framework: str, name: str, n_chips: int = 64, node: int = 8, **changes: Any) -> LaunchText:
    """Settings of a plan of a model of the catalogue."""
    model = fields(name)
    plan = plan_of(framework, model, n_chips, **changes)
    return launch_text(framework, plan, model, SEQ_LEN, name.split(" with ")[0], node)


@pytest.mark.parametrize("n_chips, node", CLUSTERS)
@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_are_of_the_program_and_of_the_whole_model(framework: str, name: str, n_chips: int, node: int):
    text = written(framework, name, n_chips, node)
    table = option_table(framework)
    keys = {option_key(key) for key in text.settings if not key.startswith(("env.", "model.n_")) and key != "converter"}
    assert keys <= set(table.options), keys - set(table.options)
    missing = [part for part in text.not_expressed if part.startswith(MISSING)]
    if framework == "deepspeed":
        assert missing and "code" in missing[0]
        return
    required = {key for key, option in table.options.items() if option.required == "yes"}
    assert required <= keys
    n_ranks = n_chips
    assert (
        complaints(framework, text.settings, n_ranks, ("model.model_config.is_llama_config",) if missing else ()) == ()
    )
    assert str(table.release) in text.text
    if missing:
        assert all(word not in text.text for word in ("hidden_size:", "base_emb_dim:")), "half a model"
        return
    counted = n_params_of(framework, dict(text.settings), text.text)
    assert counted == pytest.approx(known_params(name), rel=5e-3)


@cache
def known_params(name: str) -> float:
    """Parameters of a model of the catalogue [1]."""
    return float(n_params(Transformer(**fields(name))))


def test_the_count_sees_a_model_of_another_shape():
    """Negative control of the count of parameters."""
    text = written("megatron-lm", "llama3-8b")
    tied = {key: value for key, value in text.settings.items() if key != "--untie-embeddings-and-output-weights"}
    whole = n_params_of("megatron-lm", dict(text.settings), text.text)
    assert n_params_of("megatron-lm", tied, text.text) == whole - 128256 * 4096


def row_of(folder: Path, framework: str, text: LaunchText) -> RunRow:
    """Row that is read of settings."""
    path = folder / f"launch.{ENDINGS.get(framework, 'yaml')}"
    path.write_text(text.text, encoding="utf-8")
    return run_of(path, stated={"gpu": "h100-80gb"})


def stated_row(framework: str, model: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """Row of a plan, each of its fields in its own column."""
    same = (
        "tp", "pp", "vpp", "cp", "ep", "zero_stage", "sequence_parallel", "execution", "tp_overlap", "precision",
        "overlap_gradients", "overlap_gathers", "moe_dispatcher", "moe_overlap", "fused_norm", "fused_glu",
        "chunked_loss", "vocab_parallel_loss", "gradient_bytes", "optimizer_bytes", "weight_bytes", "micro_batch_size",
        "wide_weights", "kept_gradients", "gathered_stages", "loss_bytes", "first_stage_layers", "last_stage_layers",
        "shard_group",
    )  # fmt: skip
    row = {**model, "source": "test", "framework": framework.removesuffix("-toml"), "gpu": "h100-80gb"}
    row |= {"seq_len": SEQ_LEN, **{name: plan[name] for name in same}}
    row["schedule"] = {"interleaved": "1f1b"}.get(plan["schedule"], plan["schedule"])
    row["n_gpus"] = plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"]
    row["global_batch_size_seqs"] = plan["dp"] * plan["micro_batch_size"] * plan["n_microbatches"]
    row["activation_recompute"] = plan["recompute"]
    return row


def cell(value: Any) -> Any:
    """A value as a table has it."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else value


PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 1, "pp": 1, "dp": 64, "sequence_parallel": False},
    {"recompute": "full", "recompute_full": 1.0, "zero_stage": 1},
    {"pp": 4, "vpp": 2, "dp": 8},
    {"cp": 2, "dp": 8, "ep": 4},
    {"pp": 4, "vpp": 2, "dp": 8, "first_stage_layers": 5, "last_stage_layers": 7},
)
ROUND_TRIPS = ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gemma3-27b", "nemotron-h-56b")
DRAWN = 12
"""Plans drawn of each framework and model [1]."""


def chosen_plans(framework: str, name: str) -> list[dict[str, Any]]:
    """Chosen plans of 64 chips, and some drawn from all that the framework can run."""
    model = fields(name)
    chosen = [plan_of(framework, model, 64, **changes) for changes in PLANS]
    for plan in chosen:
        plan["ep"] = plan["ep"] if model.get("n_experts", 1) > 1 else 1
    space = framework_space(framework.removesuffix("-toml"))
    table = enumerate_plans(Transformer(**{**model, "seq_len": SEQ_LEN}), 64, 256, space)
    rows = random.Random(f"{framework} {name}").sample(range(len(table)), min(DRAWN, len(table)))
    return chosen + [table.plan(row).words() for row in rows]


def test_settings_that_are_read_again_are_the_same_run(tmp_path: Path):
    """Time, memory and risk to 1e-6 where nothing is lost; where something is, the row says what."""
    rows, kept = [], []
    for framework, name in itertools.product(
        WRITERS, ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gemma3-27b", "nemotron-h-56b")
    ):
        for place, plan in enumerate(chosen_plans(framework, name)):
            try:
                # MaxText has its kernel of attention on TPUs.
                text = launch_text(framework, plan, fields(name), SEQ_LEN, name, is_tpu=framework == "maxtext")
            except InputError:
                continue
            row = row_of(tmp_path, framework, text)
            assert row.unread == () or text.not_expressed  # of a model that is not there, layers say nothing
            if framework != "deepspeed":  # JSON has no place for comments
                assert all(told in row.cells.get("notes", "") for told in text.not_expressed)
            if not text.not_expressed:
                kept.append((framework, name, place))
                rows += [stated_row(framework, fields(name), plan), dict(row.cells)]
    drawn = {framework for framework, _, place in kept if place >= len(PLANS)}
    assert drawn >= set(WRITERS) - {"deepspeed"}
    header = tuple(dict.fromkeys(key for row in rows for key in row))
    write_table(tmp_path / "runs.csv", header, [[cell(row.get(key)) for key in header] for row in rows])
    prediction = js.predict(js.read_runs(tmp_path / "runs.csv"), fit="prior")
    for values in (prediction.step_time, prediction.memory, 1.0 + prediction.oom_probability):
        pairs = np.asarray(values).reshape(-1, 2)
        wrong = [kept[place] for place in np.flatnonzero(np.abs(pairs[:, 1] / pairs[:, 0] - 1.0) > 1e-6)]
        assert not wrong and np.isfinite(pairs).all()


def test_a_changed_setting_is_another_run(tmp_path: Path):
    """Negative control of the round trip."""
    text = written("megatron-lm", "llama3-8b", tp=4, dp=8)
    path = tmp_path / "launch.sh"
    path.write_text(text.text.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 2"))
    assert (row_of(tmp_path, "megatron-lm", text).cells["tp"], text.settings["--tensor-model-parallel-size"]) == (
        "4",
        4,
    )
    path.write_text(text.text.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 2"))
    assert run_of(path).cells["tp"] == "2"


def test_what_a_framework_cannot_say_is_told():
    changes = {"pp": 4, "vpp": 2, "dp": 8, "zero_stage": 2, "schedule": "interleaved"}
    assert any(told.startswith("pp = 4") for told in written("deepspeed", "llama3-8b", **changes).not_expressed)
    assert any(told.startswith("vpp = 2") for told in written("nanotron", "llama3-8b", **changes).not_expressed)
    assert "--data-parallel-sharding-strategy optim_grads\n" in written("megatron-lm", "llama3-8b", **changes).text
    assert not written("megatron-lm", "llama3-8b", zero_stage=1).not_expressed


# Changes of a plan, the options of Megatron-LM that they write, and the columns that no option expresses.
SWITCHES: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"vocab_parallel_loss": False}, {}, "vocab_parallel_loss"),
    ({"vocab_parallel_loss": False, "tp": 1, "dp": 32, "sequence_parallel": False}, {"--global-batch-size": 256}, ""),
    ({"fused_norm": False}, {}, "fused_norm"),
    ({"fused_glu": False}, {"--no-bias-swiglu-fusion": True}, ""),
    ({"chunked_loss": True}, {}, "chunked_loss"),
    ({"flash_attention": False}, {"--attention-backend": "unfused"}, ""),
    ({"execution": "cuda-graphs"}, {"--cuda-graph-impl": "local"}, ""),
    ({"execution": "cuda-graphs", "recompute": "full"}, {"--recompute-num-layers": 1}, "execution"),
    ({"execution": "compiled"}, {}, "execution"),
    ({"precision": "fp8"}, {"--fp8-format": "hybrid"}, ""),
    ({"precision": "fp4"}, {"--fp4-format": "e2m1"}, ""),
    ({"precision": "fp16", "gradient_bytes": 2.0}, {"--fp16": True, "--grad-reduce-in-bf16": None}, ""),
    ({"gradient_bytes": 2.0}, {"--grad-reduce-in-bf16": True}, ""),
    ({"gradient_bytes": 3.0}, {"--grad-reduce-in-bf16": None}, "gradient_bytes"),
    ({"optimizer_bytes": 6.0}, {}, "optimizer_bytes"),
    ({"weight_bytes": 4.0}, {}, "weight_bytes"),
    # A stage has 16 layers, of which whole ones are computed again.
    ({"recompute_full": 0.25}, {"--recompute-method": "block", "--recompute-num-layers": 4}, ""),
    ({"recompute_full": 0.3}, {"--recompute-num-layers": 5}, "recompute_full"),
    ({"recompute": "selective"}, {"--recompute-granularity": "selective", "--recompute-method": None}, ""),
    ({"offload_optimizer": 0.5}, {"--optimizer-offload-fraction": 0.5, "--optimizer-cpu-offload": True}, ""),
    ({"offload_optimizer": 0.5, "zero_stage": 2}, {"--optimizer-cpu-offload": None}, "offload_optimizer"),
    ({"offload_activations": 0.5}, {}, "offload_activations"),
    ({"tp_overlap": "full"}, {"--tp-comm-overlap": True}, ""),
    ({"tp_overlap": "full", "sequence_parallel": False}, {"--tp-comm-overlap": None}, "tp_overlap"),
    ({"tp_overlap": "none"}, {"--tp-comm-overlap": None}, "tp_overlap"),
    ({"overlap_gathers": False}, {"--overlap-param-gather": None, "--overlap-grad-reduce": True}, ""),
    ({"overlap_gradients": False}, {"--overlap-param-gather": None, "--overlap-grad-reduce": None}, "overlap_gathers"),
    ({"zero_stage": 0}, {"--use-distributed-optimizer": None, "--overlap-param-gather": None}, ""),
)


@pytest.mark.parametrize(
    "changes, options, told", SWITCHES, ids=lambda given: given if isinstance(given, str) else "-".join(given)
)
def test_a_switch_is_an_option_or_is_told(changes: dict[str, Any], options: dict[str, Any], told: str):
    """None is an option that is absent; what needs no option is told of nothing."""
    text = written("megatron-lm", "llama3-8b", **{"zero_stage": 1, **changes})
    assert {name: text.settings.get(name) for name in options} == options
    assert [part.split(" = ")[0].split(":")[0] for part in text.not_expressed] == [told] * bool(told)


# Each column, and two values of which one is not the habit of a program.
EITHER: tuple[tuple[str, Any, Any], ...] = (
    *((name, False, True) for name in ("fused_glu", "fused_norm", "flash_attention", "chunked_loss")),
    *((name, False, True) for name in ("vocab_parallel_loss", "sequence_parallel", "overlap_gradients")),
    *((name, 0.0, 0.5) for name in ("offload_optimizer", "offload_activations")),
    ("precision", "bf16", "fp16"),
    ("precision", "bf16", "fp8"),
    ("tp_overlap", "none", "full"),
    ("execution", "eager", "compiled"),
    ("execution", "eager", "cuda-graphs"),
    ("optimizer_bytes", 12.0, 6.0),
    ("weight_bytes", 2.0, 4.0),
    *(("gradient_bytes", width, other) for width, other in ((2.0, 4.0), (2.0, 3.0), (4.0, 3.0))),
    ("recompute", "none", "full"),
    ("recompute_full", 0.0, 0.3),
    ("micro_batch_size", 1, 2),
    ("n_microbatches", 8, 4),
    ("zero_stage", 1, 3),
    ("schedule", "1f1b", "gpipe"),
)


@pytest.mark.parametrize("framework", WRITERS)
def test_no_choice_of_a_plan_is_lost_in_silence(framework: str):
    """Two plans that differ in a column differ in a setting, or one says what it lacks."""
    lost = []
    for name, *values in EITHER:
        texts = [written(framework, "llama3-8b", **{"zero_stage": 3, name: value}) for value in values]
        if len({(repr(text.settings), text.not_expressed) for text in texts}) == 1:
            lost.append(name)
    assert not lost


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_toml_has_a_table_for_each_level_of_a_key(precision: str):
    text = written("torchtitan-toml", "llama3-8b", zero_stage=3, precision=precision).text
    document = tomllib.loads(text)
    assert document["parallelism"]["tensor_parallel_degree"] == 2
    assert document["model"].get("converters", []) == ["quantize.linear.float8"] * (precision == "fp8")
    assert ("quantize" in document) == (precision == "fp8")


def test_settings_of_a_model_that_a_program_lacks_do_not_start():
    """The script ends, the configuration raises, and the file names no model."""
    step = "step3-321b"
    shell, python = (written(name, step, tp=1, dp=32).text for name in ("megatron-lm", "megatron-bridge"))
    assert "exit 2" in shell.split("TORCHRUN=")[0] and "raise SystemExit" in python.split("import")[0]
    assert "raise SystemExit" in written("torchtitan", "nemotron-h-56b").text
    assert 'model_name: "not-expressed"' in written("maxtext", "nemotron-h-56b").text
    assert "is_llama_config" not in written("nanotron", "deepseek-v3").text
    assert "exit 2" not in written("megatron-lm", "llama3-8b").text


def test_a_plan_that_the_program_refuses_is_refused():
    with pytest.raises(InputError, match="torchtitan cannot run this plan: model_spec.model.enable_weight_tying"):
        written("torchtitan", "llama3.2-1b", pp=2, dp=16)
    with pytest.raises(InputError, match="nanotron cannot run this plan: parallelism.tp"):
        written("nanotron", "llama3-8b", tp=16, dp=2)


def test_launchers_options_stand_apart():
    text = written("megatron-lm", "llama3-8b", 256, 4).text
    launcher, program = text.split("OPTIONS=(")[0], text.split("OPTIONS=(")[1]
    assert "--nnodes 64" in launcher and "--nproc-per-node 4" in launcher and "--nnodes" not in program
    assert 'torchrun "${TORCHRUN[@]}" pretrain_gpt.py "${OPTIONS[@]}"' in program
    assert "pretrain_hybrid.py" in written("megatron-lm", "nemotron-h-56b").text


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma3-27b", "nemotron-h-56b"])
def test_a_shell_hands_over_the_settings_as_they_are(tmp_path: Path, name: str):
    """The script is run by bash, with a launcher that prints what it is given."""
    launcher = tmp_path / "torchrun"
    launcher.write_text('#!/bin/bash\nprintf "%s\\n" "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n')
    launcher.chmod(0o755)
    text = written("megatron-lm", name, zero_stage=1)
    (tmp_path / "launch.sh").write_text(text.text)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "launch.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    connections, *words = done.stdout.splitlines()
    options = words[words.index(next(word for word in words if word.startswith("pretrain_"))) + 1 :]
    given = [[key] if value is True else [key, str(value)] for key, value in text.settings.items() if key[:4] != "env."]
    assert options == [word for pair in given for word in pair] and connections == "1"


def test_python_settings_are_python():
    """No configuration has a mistake of syntax, and each keyword stands once."""
    for framework in ("megatron-bridge", "torchtitan"):
        for name in MODELS[:4]:
            for call in ast.walk(ast.parse(written(framework, name).text)):
                names = [word.arg for word in call.keywords] if isinstance(call, ast.Call) else []
                assert len(names) == len(set(names)), (framework, name, names)


@pytest.mark.parametrize("framework", WRITERS)
def test_a_vision_tower_is_told(framework: str):
    """Beside the model of text, whose parameters are whole, the tower is a part that no settings have."""
    model, parts = fields("llama3-8b"), {"vision tower": 0.6e9}
    plan = plan_of(framework, model, 64)
    text = launch_text(framework, plan, model, SEQ_LEN, parts=parts)
    told = "vision tower: 0.6e9 parameters, which the plan leaves out as well"
    assert told in text.not_expressed
    assert framework == "deepspeed" or f"not expressed: {told}" in text.text
    assert all("vision" not in part for part in launch_text(framework, plan, model, SEQ_LEN).not_expressed)


def test_an_unknown_framework():
    with pytest.raises(InputError, match="--write = 'pax' has no writer; expected one of megatron-lm"):
        launch_text("pax", {}, {}, SEQ_LEN)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_adapters_that_no_settings_express_are_told(framework: str):
    said = written(framework, "llama3-8b", lora_rank=16, lora_targets="q+v").not_expressed
    assert "lora_rank = 16 for q+v: all weights are trained" in said
    assert not any("lora_rank" in part for part in written(framework, "llama3-8b").not_expressed)
