"""Rows become arguments of the model, defaults included, or say what they lack."""

import math

import pytest
from run_tables import GPUS, MODELS, described, reason

from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan
from jaxscale.runs import Row


def test_complete_row(table):
    row = described(table({}))
    assert row.shape == {"n_layers": 24, "d_model": 2048, "n_heads": 16, "seq_len": 2048}
    assert row.plan == {
        **{"dp": 4, "tp": 2, "pp": 2, "cp": 1, "vpp": 1, "ep": 1, "micro_batch_size": 2, "n_microbatches": 8},
        **{"zero_stage": 0, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b"},
        **{"precision": "bf16", "flash_attention": True, "overlap_gradients": True, "balanced_stages": False},
        **{"gradient_bytes": 4, "optimizer_bytes": 12, "weight_bytes": 2, "fused_glu": False},
        **{"execution": "eager", "tp_overlap": "none", "moe_dispatcher": "alltoall", "moe_overlap": False},
        **{"overlap_gathers": True, "fused_norm": True, "chunked_loss": False, "vocab_parallel_loss": False},
        **{
            "recompute_full": 0,
            "recompute_cost": 1,
            "attention_rate": 1,
            "etp": 0,
            "first_stage_layers": 0,
            "last_stage_layers": 0,
            "shard_group": 4,
        },
        **{"offload_activations": 0, "offload_optimizer": 0, "loss_bytes": 12, "adapter_bytes": 4, "held_bytes": 0},
        **{
            "autocast": False,
            "wide_weights": False,
            "narrow_gate": False,
            "kept_gate": False,
            "copied_attention": False,
        },
        **{"lora_rank": 0, "lora_targets": "q+v", "dequantised_bytes": 12},
        **{"dropout": False, "kept_gradients": False, "gradient_copy_bytes": 0, "cached_gradients": False},
        **{"gathered_stages": False, "host_time_layer": 0, "cached_share": 0, "queued_collectives": True},
        **{"expert_skew": 0, "expert_load": 0, "capacity_factor": 0, "balanced_experts": False},
    }
    assert (row.machine, row.n_gpus, row.remarks) == (("a100-80gb", None, None), 16, [])
    assert row.effects["framework"] is None and row.effects["precision"] == "bf16"


def test_description_builds_the_model_and_the_plan(table):
    row = described(table({"model": "hybrid-8b", "n_layers": "", "d_model": "", "n_heads": ""}))
    assert Transformer(**row.shape).n_layers == 52
    assert (Plan(**row.plan).dp, Plan(**row.plan).n_microbatches) == (4, 8)


def test_catalogue_fills_what_is_empty(table):
    row = described(table({"model": "known-8b", "n_layers": "", "d_model": "", "n_heads": "", "n_kv_heads": "4"}))
    assert row.shape == {**MODELS["known-8b"], "n_kv_heads": 4, "seq_len": 2048}


def test_proxy_with_fewer_layers_keeps_the_mixture_of_layers(table):
    row = described(table({"model": "hybrid-8b", "n_layers": "26", "d_model": "", "n_heads": ""}))
    assert (row.shape["n_layers"], row.shape["n_attention_layers"], row.shape["n_ssm_layers"]) == (26, 2, 12)


NO_SHAPE = {"n_layers": "", "d_model": "", "n_heads": ""}


@pytest.mark.parametrize(
    ("name", "depth", "dense"), [("pattern", 24, 12), ("pattern", 48, 24), ("prefix", 4, 3), ("prefix", 2, 2)]
)
def test_dense_layers_of_a_proxy_alternate_or_come_first(table, name: str, depth: int, dense: int):
    shape = described(table({**NO_SHAPE, "model": name, "n_layers": str(depth)})).shape
    assert shape["n_dense_layers"] == dense
    assert Transformer(**shape).n_layers == depth


@pytest.mark.parametrize(
    ("width", "dense", "expert"), [("1024", 18432, 1024), ("18432", 18432, 2048), ("", 18432, 2048)]
)
def test_the_width_of_a_mixture_is_that_of_an_expert(table, width: str, dense: int, expert: int):
    """Unless it is that which the catalogue has for the dense layers."""
    shape = described(table({**NO_SHAPE, "model": "prefix", "d_ff": width})).shape
    assert (shape["d_ff"], shape["d_ff_expert"]) == (dense, expert)


def test_catalogue_does_not_fill_another_shape(table):
    assert "n_kv_heads" not in described(table({"model": "known-8b"})).shape


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"micro_batch_size": ""}, {"micro_batch_size": 2, "n_microbatches": 8}),
        ({"n_microbatches": ""}, {"micro_batch_size": 2, "n_microbatches": 8}),
        ({"dp": ""}, {"dp": 4}),
        ({"tp": ""}, {"tp": 2}),
        ({"pp": "", "dp": "8", "n_microbatches": "4"}, {"pp": 1, "dp": 8}),
        ({"pp": "", "dp": "", "n_microbatches": ""}, {"pp": 1, "dp": 8, "n_microbatches": 4}),
        ({"tp": "", "pp": "", "dp": "16", "n_microbatches": ""}, {"tp": 1, "pp": 1, "n_microbatches": 2}),
        ({"global_batch_size_seqs": "60"}, {"n_microbatches": 7.5}),
        ({"n_microbatches": "4", "notes": "stated GA=4 but"}, {"n_microbatches": 8}),
        ({"precision": "fp8-cs"}, {"precision": "fp8"}),
        ({"precision": "NVFP4"}, {"precision": "fp4"}),
        ({"precision": "fp16-mixed"}, {"precision": "bf16"}),
        ({"precision": "amp_fp8"}, {"precision": "fp8"}),
        ({"activation_recompute": "minimal"}, {"recompute": "selective"}),
        ({"attention_kernel": "torch"}, {"flash_attention": False}),
        ({"vpp": "3"}, {"schedule": "interleaved"}),
        ({"framework": "nemo"}, {"zero_stage": 1, "sequence_parallel": True, "gradient_bytes": 2, "fused_glu": True}),
        ({"framework": "nemo", "zero_stage": "0"}, {"zero_stage": 0}),
        ({"framework": "mlperf"}, {"precision": "fp8"}),
        ({"framework": "nemo-automodel"}, {"zero_stage": 3, "moe_dispatcher": "deepep"}),
        ({"framework": "nanotron"}, {"balanced_stages": True}),
        ({"framework": "megatron-deepspeed"}, {"flash_attention": False, "overlap_gradients": False}),
    ],
)
def test_defaults_and_derived_values(table, change, expected):
    plan = described(table(change)).plan
    assert {name: plan[name] for name in expected} == expected


FORMATS = [("bfloat16", "bf16"), ("BF16-mixed", "bf16"), ("MXFP8", "mxfp8"), ("half", "fp16"), ("float8", "fp8")]


@pytest.mark.parametrize(("word", "name"), FORMATS)
def test_a_number_format_has_one_name(table, word: str, name: str):
    assert described(table({"precision": word})).effects["number_format"] == name


def test_framework_without_accumulation_takes_one_microbatch(table):
    change = {"framework": "maxtext", "pp": "", "dp": "8", "micro_batch_size": "", "n_microbatches": ""}
    row = described(table(change))
    assert (row.plan["micro_batch_size"], row.plan["n_microbatches"], row.plan["zero_stage"]) == (8, 1, 3)
    assert [remark.split()[0] for remark in row.remarks] == ["pp", "n_microbatches"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"micro_batch_size": "", "n_microbatches": "3"},
            "microbatches do not divide the batch: 5.33333 sequences",
        ),
        ({"global_batch_size_seqs": "60", "n_microbatches": "8"}, "n_microbatches = 8 is rounded: 7.5 used"),
        ({"attention_kernel": "fused"}, "attention_kernel = fused is taken to write its scores to memory"),
    ],
)
def test_what_is_taken_otherwise_than_stated_is_said(table, change: dict[str, str], said: str):
    assert any(remark.startswith(said) for remark in described(table(change)).remarks)
    assert not described(table({})).remarks


def test_source_names_a_vocabulary(table):
    assert described(table({"source": "bigscience_bloom_a100"})).shape["vocab_size"] == 250880


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seq_len": ""}, "missing seq_len"),
        ({"gpu": ""}, "missing gpu"),
        ({"n_gpus": ""}, "missing n_gpus"),
        ({"global_batch_size_seqs": ""}, "missing global_batch_size_seqs"),
        ({"tp": "", "dp": ""}, "missing tp"),
        ({"tp": "", "pp": "", "dp": ""}, "missing tp, pp"),
        ({"micro_batch_size": "", "n_microbatches": ""}, "missing micro_batch_size (or n_microbatches)"),
        ({"n_heads": ""}, "missing n_heads; model 'own' is not in the catalogue"),
        ({"n_heads": "", "model": ""}, "missing n_heads"),
        ({"dp": "4", "tp": "", "pp": "", "n_gpus": "16", "cp": "2"}, "missing tp, pp"),
    ],
)
def test_incomplete_rows_say_what_they_lack(table, change, expected):
    assert reason(table(change)) == expected


def test_measured_cells_do_not_change_a_description(table):
    planned = {"step_time_s": "", "mfu": "", "status": ""}
    measured = {"step_time_s": "9", "mfu": "0.4", "status": "oom"}
    path = table(planned, measured)
    assert described(path, 0) == described(path, 1)


def test_absent_columns_are_none():
    assert Row(2, (), {})["tp"] is None


@pytest.mark.parametrize(
    ("change", "place", "expected"),
    [
        ({"model": "nemotron4-340b", "pp": "8", "n_gpus": "64"}, ("plan", "vpp"), 12.0),
        # A cell comes first.
        ({"model": "nemotron4-340b", "pp": "8", "n_gpus": "64", "vpp": "6"}, ("plan", "vpp"), 6.0),
        ({"model": "nemotron4-340b"}, ("plan", "vpp"), 1.0),  # another pp
        ({"model": "nemotron4-15b", "pp": "8", "n_gpus": "64"}, ("plan", "vpp"), 1.0),
    ],
)
def test_facts_about_a_source_fill_empty_cells(table, change, place, expected):
    row = described(table({"source": "nvidia_dgxc_benchmarking", **change}))
    assert getattr(row, place[0])[place[1]] == expected
    assert described(table({"source": "my_runs", **change, "vpp": ""})).plan["vpp"] == 1.0


def test_facts_match_words_as_patterns(table):
    place = "v5.1@abc:NVIDIA/results/n64/llama31_405b"
    row = described(table({"source": "mlperf_llm_training", "source_row": place}))
    assert (row.effects["release"], row.effects["release_gpu"]) == ("v5.1", "v5.1/a100-80gb")


@pytest.mark.parametrize(
    ("place", "gpu", "precision"),
    [
        ("v5.1@abc:NVIDIA/results/n64/llama31_405b", "gb200", "fp4"),
        ("v5.1@abc:NVIDIA/results/n64/llama31_405b", "h100-80gb", "fp8"),
        ("v5.0@abc:NVIDIA/x", "gb200", "fp8"),
    ],
)
def test_a_fact_depends_on_all_of_its_cells(table, place, gpu, precision):
    path = table({"source": "mlperf_llm_training", "framework": "mlperf", "source_row": place, "gpu": gpu})
    assert described(path, gpus={**GPUS, "gb200": "gb200"}).plan["precision"] == precision


@pytest.mark.parametrize(
    ("place", "gpu", "release"),
    [
        ("c6cfb4284:README.md:75", "a100-80gb", "2023-07"),
        ("495218376:README.md:75", "a100-80gb", "2024-04"),
        ("495218376:README.md:75", "h100-80gb", None),
    ],
)
def test_two_states_of_a_table_are_two_releases(table, place, gpu, release):
    change = {"source_row": place, "gpu": gpu}
    assert described(table({"source": "mosaic_llm_foundry", **change})).effects["release"] == release
    assert described(table({"source": "my_runs", **change})).effects["release"] is None


@pytest.mark.parametrize(
    ("release", "tp", "pp", "apart"),
    [
        ("before-pp-fix", "1", "2", "/before-pp-fix"),
        ("before-pp-fix", "2", "1", "/before-pp-fix, no pipeline"),
        ("after-pp-fix", "1", "2", ""),
    ],
)
def test_a_fault_of_the_pipeline_engine_sets_runs_with_a_pipeline_apart(table, release, tp, pp, apart):
    change = {"source": "ultrascale_playbook_h100", "framework": "nanotron", "release": release, "tp": tp, "pp": pp}
    assert described(table({**change, "n_gpus": "8"})).effects["source"] == f"ultrascale_playbook_h100/nanotron{apart}"
    assert described(table({**change, "n_gpus": "8", "source": "mine"})).effects["source"] == "mine/nanotron"


def test_sequences_that_vary_in_length_count_with_their_mean(table):
    bert = {"source": "dp_scaling_misc", "model": "bert-large"}
    long, short = (described(table({**bert, "seq_len": length})) for length in ("512", "128"))
    assert (long.shape["seq_len"], short.shape["seq_len"]) == (288.0, 128.0)
    assert "mean of 288" in " ".join(long.remarks) and "mean" not in " ".join(short.remarks)
    assert not (long.plan["flash_attention"] or short.plan["flash_attention"])
    assert described(table({"source": "my_runs", "model": "bert-large", "seq_len": "512"})).shape["seq_len"] == 512.0


@pytest.mark.parametrize(("file", "parts", "apart"), [("single", 96.0, ["composed"]), ("multi", math.inf, [])])
def test_composed_step_times_are_few_parts_and_a_stack_of_their_own(table, file, parts, apart):
    row = {"source": "vtrain_a100_ground_truth", "source_row": f"data/ground_truth_{file}.csv:3"}
    vtrain, mine = (described(table(change)) for change in (row, {**row, "source": "my_runs"}))
    assert (vtrain.measured_parts, mine.measured_parts) == (parts, math.inf)
    assert [str(one.effects["source"]).split("/")[1:] for one in (vtrain, mine)] == [apart, []]


def test_low_rank_adapters_train_no_weights(table):
    lora, dense = ({"source": "mlperf_llm_training", "model": name} for name in ("llama2-70b-lora", "llama2-70b"))
    assert described(table(lora)).shape["trainable_share"] == 0.0
    assert "trainable_share" not in described(table(dense)).shape


@pytest.mark.parametrize(
    ("notes", "model", "number_format", "gradient_bytes", "balanced"),
    [("02-25", "gpt-181B", "fp16", 2, 0.0), ("", "gpt-200B", "fp16", 2, 0.0), ("02-28", "gpt-176B", "bf16", 4, 0.5)],
)
def test_formats_and_stages_of_bloom_follow_its_chronicles(
    table, notes, model, number_format, gradient_bytes, balanced
):
    change = {"source": "bigscience_bloom_a100", "framework": "megatron-deepspeed", "notes": notes, "model": model}
    row = described(table({**change, "precision": ""}))
    assert (row.effects["number_format"], row.plan["balanced_stages"]) == (number_format, balanced)
    assert row.plan["gradient_bytes"] == gradient_bytes


STATES_ALL = {"activation_recompute": "full", "optimizer_bytes": "12", "loss_bytes": "6"}


@pytest.mark.parametrize(
    ("change", "guesses"),
    [
        ({}, "activation_recompute and optimizer_bytes and loss_bytes"),
        ({"activation_recompute": "full"}, "optimizer_bytes and loss_bytes"),
        ({"chunked_loss": "True", "precision": "bf16-true", "recompute_modules": "mlp"}, None),
        (STATES_ALL, None),
        ({"framework": "megatron-lm"}, "activation_recompute"),
        ({"framework": "torchtitan"}, None),
        ({**STATES_ALL, "trainable_share": "0", "optimizer_bytes": ""}, "adapter_bytes"),
        ({**STATES_ALL, "trainable_share": "0", "lora_rank": "8"}, None),
    ],
)
def test_what_a_row_neither_states_nor_its_framework_is_a_guess(table, change, guesses):
    blank = {"activation_recompute": "", "precision": "", "framework": ""}
    assert described(table({**blank, **change})).effects["unstated"] == guesses


@pytest.mark.parametrize(
    ("change", "launches"),
    [
        ({}, None),
        ({"execution": "xla"}, "compiled"),
        ({"execution": "eager"}, "eager"),
        ({"framework": "jax"}, "compiled"),
    ],
)
def test_how_kernels_are_launched_is_known_where_a_row_or_its_framework_says_it(table, change, launches):
    assert described(table(change)).effects["execution"] == launches


@pytest.mark.parametrize(
    ("change", "further"),
    [
        ({"framework": "transformers"}, 4.4e-3),
        ({"framework": "trl", "execution": "compiled"}, 2e-3),
        ({"framework": "ms-swift", "host_time_layer": "0.001"}, 1e-3),
        ({"framework": "pytorch-fsdp"}, 0.0),
    ],
)
def test_untuned_software_states_the_time_of_its_host(table, change, further):
    assert described(table(change)).plan["host_time_layer"] == further
