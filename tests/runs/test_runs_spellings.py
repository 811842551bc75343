"""Words of people and tools in cells: taken, or asked about; numbers with separators; batches in tokens."""

import pytest
from run_tables import read

from jaxscale.base.errors import InputError
from jaxscale.runs import read_runs
from jaxscale.runs.defaults import known_frameworks
from jaxscale.runs.schema import sequences_in
from jaxscale.tables.cells import respelt, translate, without_separators

TAKEN = {
    "activation_recompute": {
        "none": ["none", "false", "0", "No", "off"],
        "full": ["full", "true", "1", "uniform", "block", "checkpoint", "gradient-checkpointing"],
        "selective": ["selective", "core_attn", "sac", "SAC", "op", "minimal"],
    },
    "zero_stage": {
        0.0: ["0", "ddp", "NO_SHARD", "none"],
        1.0: ["1", "zero-1", "distributed optimizer"],
        2.0: ["2", "SHARD_GRAD_OP", "ShardingStrategy.SHARD_GRAD_OP", "zero2"],
        3.0: ["3", "fsdp", "FSDP2", "FULL_SHARD", "zero-3", "stage_3"],
    },
    "precision": {
        "bf16": ["bf16", "bf16-mixed", "bfloat16", "amp"],
        "fp16": ["16-mixed", "16"],
        "fp8": ["fp8", "e4m3", "amp_fp8", "hybrid", "mxfp8"],
        "fp32": ["32-true"],
    },
}
FRAMEWORKS = {
    "megatron-lm": ["Megatron-LM", "megatron lm", "Megatron-Core", "MegatronLM", "NVIDIA/Megatron-LM"],
    "megatron-bridge": ["Megatron Bridge", "NVIDIA-NeMo/Megatron-Bridge"],
    "megatron-deepspeed": ["Megatron-DeepSpeed"],
    "nemo": ["NeMo", "NVIDIA NeMo", "NVIDIA/NeMo"],
    "torchtitan": ["TorchTitan", "torch-titan", "pytorch/torchtitan"],
    "pytorch-fsdp": ["PyTorch FSDP", "FSDP2", "torch_fsdp"],
    "deepspeed": ["DeepSpeed", "deepspeedai/DeepSpeed"],
    "maxtext": ["MaxText", "AI-Hypercomputer/maxtext"],
    "llm-foundry": ["LLM Foundry", "llmfoundry", "mosaicml/llm-foundry"],
}
ASKED = {
    "activation_recompute": [
        "offload",
        "offloaded",
        "cpu_offload",
    ],
    "zero_stage": ["HYBRID_SHARD", "hsdp", "zero++", "zero", "deepspeed", "zero-offload"],
}


@pytest.mark.parametrize("column", TAKEN)
def test_words_are_taken(table, column: str):
    vocabulary = {"activation_recompute": "recompute", "precision": "precisions"}.get(column)
    for meaning, words in TAKEN[column].items():
        values = [read(table({column: word})).rows[0][column] for word in words]
        meant = [translate(vocabulary, str(value)) if vocabulary else value for value in values]
        expected = translate(vocabulary, str(meaning)) if vocabulary else meaning
        assert meant == [expected] * len(words)


@pytest.mark.parametrize("column", ASKED)
def test_words_that_mean_no_cell_are_asked_about(table, column: str):
    for word in ASKED[column]:
        with pytest.raises(InputError) as caught:
            read(table({column: word}))
        assert "expected" in str(caught.value) and "\n" not in str(caught.value)


def test_separators_of_thousands(table):
    row = read(table({"step_time_s": "1,250.5", "d_model": "2'048", "n_heads": "16"})).rows[0]
    assert (row["step_time_s"], row["d_model"]) == (1250.5, 2048.0)
    assert without_separators("10,050") == "10050"
    for text in ("1,5", "1,2345", "1_000", "12,34,567"):
        assert without_separators(text) == text
        with pytest.raises(InputError, match="not a number"):
            read(table({"step_time_s": text}))


@pytest.mark.parametrize(
    ("text", "seq_len", "expected"),
    [
        ("512", 4096, 512.0),
        ("1,024", 4096, 1024.0),
        ("4M tokens", 4000, 1000.0),
        ("4M tokens", 4096, 1024.0),
        ("4,194,304 tokens", 4096, 1024.0),
        ("0.5M tok", 2048, 256.0),
        ("1.5M tokens", 7000, 214.0),
        ("four", 4096, None),
        ("-4", 4096, None),
        ("4 T tokens", 4096, None),
    ],
)
def test_batches_in_tokens(text: str, seq_len: int, expected: float | None):
    assert sequences_in(text, seq_len) == expected


@pytest.mark.parametrize(("text", "is_read"), [("4M tokens", True), ("4T tokens", False)])
def test_a_batch_in_tokens_is_read_or_refused(text: str, is_read: bool):
    row = {"model": "llama3-8b", "seq_len": 4096, "gpu": "h100-80gb", "n_gpus": 8, "global_batch_size_seqs": text}
    if is_read:
        assert read_runs([row]).numbers("global_batch_size_seqs") == [1024.0]
    else:
        with pytest.raises(InputError, match="'4T tokens': not a number"):
            read_runs([row])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_by_the_names_that_people_write(table, framework: str):
    values = {read(table({"framework": word})).rows[0]["framework"] for word in FRAMEWORKS[framework]}
    assert values == {framework}


def test_no_known_framework_is_taken_for_another():
    names = known_frameworks()
    assert [respelt("framework", name) for name in names] == list(names)
    assert respelt("framework", "my-own") == "my-own"


def test_batches_in_tokens_count_by_the_length_of_their_row(table):
    batch = "global_batch_size_seqs"
    rows = [
        {"seq_len": "2048", batch: "131,072 tokens"},
        {"seq_len": "4096", batch: "131,072 tokens", "n_microbatches": "4"},
        {batch: "64"},
    ]
    read_rows = read(table(*rows)).rows
    assert [row[batch] for row in read_rows] == [64.0, 32.0, 64.0]
    with pytest.raises(InputError, match="'4M words': not a number"):
        read(table({batch: "4M words"}))
