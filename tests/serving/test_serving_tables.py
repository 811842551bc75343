"""Serving tables: every kind of malformed one gets one clear line; empty cells take what the documentation says."""

import csv

import numpy as np
import pytest

import jaxscale as js
from jaxscale import InputError, serving
from jaxscale.serving.serving_rows import describe_serving, stated_shapes
from jaxscale.serving.serving_table import SERVING_BY_NAME

GOOD = {
    "model": "llama3-8b", "framework": "vllm", "gpu": "h100-80gb", "n_gpus": "4", "tp": "4", "precision": "fp8",
    "serving": "online", "concurrency": "16", "input_len": "1024", "output_len": "128", "n_heads": "", "n_kv_heads": "",
    "n_layers": "", "d_model": "", "n_experts": "", "moe_top_k": "", "draft_tokens": "", "prefix_share": "",
    "prefix_hit": "", "prefix_groups": "", "memory_share": "", "ep": "", "kv_precision": "",
}  # fmt: skip


def write(path, *changes, without=()):
    """A table whose rows are the good one with changes."""
    rows = [{name: cell for name, cell in {**GOOD, **change}.items() if name not in without} for change in changes]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


BAD = [
    ({"tp": "abc"}, "column 'tp' = 'abc': not a number; expected a whole number >= 1"),
    ({"tp": "2.5"}, "column 'tp' = '2.5': not a whole number"),
    ({"input_len": "-5"}, "column 'input_len' = '-5': negative; expected a number >= 1"),
    ({"d_ff": "0"}, "column 'd_ff' = '0': is out of range; expected a number above 0"),
    # Half a token of an answer would end before its first token.
    ({"output_len": "0.5"}, "column 'output_len' = '0.5': too small; expected a number >= 1"),
    ({"output_len": "0"}, "column 'output_len' = '0': zero"),
    ({"concurrency": "inf"}, "column 'concurrency' = 'inf': infinite"),
    ({"output_len": "nan"}, "column 'output_len' = 'nan': not a number (NaN)"),
    ({"n_gpus": "1e9"}, "column 'n_gpus' = '1e9': too large"),
    ({"gpu": "potato"}, "column 'gpu' = 'potato': not in the hardware catalogue"),
    ({"precision": "int3"}, "column 'precision' = 'int3': not known; expected one of fp32, bf16"),
    ({"serving": "batch"}, "column 'serving' = 'batch': not known; expected one of static, online"),
    ({"tp": "1_0"}, "column 'tp' = '1_0': not a number"),
    ({"concurrency": "1e999"}, "column 'concurrency' = '1e999': too large"),
    ({"ttft_s": "-Infinity"}, "column 'ttft_s' = '-Infinity': infinite"),
    ({"tpot_s": "0"}, "column 'tpot_s' = '0': zero; expected a number > 0"),
    ({"e2e_latency_s": "-1"}, "column 'e2e_latency_s' = '-1': negative; expected a number > 0"),
    ({"prefix_hit": "1.5"}, "column 'prefix_hit' = '1.5': too large; must be at most 1"),
    ({"prefix_share": "1.5"}, "column 'prefix_share' = '1.5': too large; must be at most 1"),
    ({"acceptance": "-0.1"}, "column 'acceptance' = '-0.1': negative"),
    ({"draft_tokens": "0.5"}, "column 'draft_tokens' = '0.5': not a whole number"),
    ({"kv_precision": "int3"}, "column 'kv_precision' = 'int3': not known; expected one of fp32, bf16"),
    ({"gpu": "h100-80gbx"}, "column 'gpu' = 'h100-80gbx': not in the hardware catalogue; expected one"),
    ({"tp": "a\nb" * 100}, r"column 'tp' = 'a\nba\nb"),
    ({"n_gpus": "2"}, "column 'n_gpus' = '2': fewer than tp*pp = 4*1; expected at least 4"),
    ({"n_heads": "32", "n_kv_heads": "5"}, "column 'n_kv_heads' = '5': does not divide n_heads"),
    ({"n_experts": "4", "moe_top_k": "8"}, "column 'moe_top_k' = '8': exceeds n_experts = 4; expected at most that"),
]


@pytest.mark.parametrize(("change", "expected"), BAD, ids=lambda value: str(value)[:40])
def test_one_bad_cell_is_one_line(tmp_path, change, expected):
    path = write(tmp_path / "t.csv", change)
    with pytest.raises(InputError) as caught:
        serving.read_serving(path)
    assert str(caught.value).startswith(f"{path}:2: ") and expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there_is_one_line(tmp_path):
    for path, expected in ((tmp_path / "none.csv", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(InputError, match=expected) as caught:
            serving.read_serving(path)
        assert "\n" not in str(caught.value)


def test_a_misspelt_column_is_named_where_it_is_missed(tmp_path):
    path = write(tmp_path / "t.csv", {"input_lenn": "128"}, without=["input_len"])
    with pytest.raises(InputError, match="missing column 'input_len'.*input_lenn"):
        serving.read_serving(path)


def test_line_numbers_count_lines_inside_quotes(tmp_path):
    path = write(tmp_path / "t.csv", {"notes": "two\nlines"}, {"notes": "", "tp": "x"})
    with pytest.raises(InputError, match=r"t\.csv:4: column 'tp'"):
        serving.read_serving(path)


def test_bad_rows_are_dropped_where_asked(tmp_path):
    runs = serving.read_serving(write(tmp_path / "t.csv", {}, {"tp": "abc"}, {}), skip_bad=True)
    assert len(runs) == 2 and runs.n_skipped == 1 and ":3: " in runs.problems[0]


@pytest.mark.parametrize("name", ["gpu", "input_len", "output_len"])
def test_a_missing_column_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"missing column '{name}'"):
        serving.read_serving(write(tmp_path / "t.csv", {}, without=[name]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file"),
        ("model,gpu,input_len,output_len\n", "no data rows"),
        ("model;gpu;input_len\na;b;1\n", "separated by semicolons"),
        ("model,gpu,gpu,input_len,output_len\na,b,c,1,1\n", "'gpu' appears twice"),
        ("model,gpu,input_len,output_len\nllama3-8b,h100-80gb,1\n", "3 cells; expected 4"),
        ("model,gpu,input_len,output_len\ngpt-9,h100-80gb,1,1\n", "unknown model and no shape"),
        ('model,gpu,input_len,output_len\n"llama3-8b,h100-80gb,1,1\n', "not valid CSV"),
    ],
)
def test_files_that_are_no_tables(tmp_path, text, expected):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=expected):
        serving.read_serving(path)


def test_incomplete_rows_are_kept_with_a_note(tmp_path):
    runs = serving.read_serving(write(tmp_path / "t.csv", {"model": "my-own"}, {}, {"input_len": ""}))
    found = serving.predict_serving(runs)
    assert np.isfinite(found.values["tpot_s"]).tolist() == [False, True, False]
    assert "lacks a model in the catalogue" in found.notes[0] and "lacks input_len" in found.notes[2]


def test_empty_cells_take_their_defaults(tmp_path):
    path = write(
        tmp_path / "t.csv",
        {"tp": "", "precision": ""},
        {"serving": "", "concurrency": ""},
        {"model": "meta-llama/Llama3-8B"},
    )
    rows = describe_serving(serving.read_serving(path))
    assert rows.batch is not None
    assert rows.batch.engine.tp.tolist() == [4.0, 4.0, 4.0]
    assert rows.batch.engine.weight_bytes.tolist() == [2.0, 1.0, 1.0]
    assert rows.batch.requests.at_limit.tolist() == [0.0, 1.0, 0.0]
    assert "16-bit weights" in rows.notes[0] and "all chips in tensor parallelism" in rows.notes[0]
    assert rows.levels.row(1)["serving"] == "offline_max"


def test_the_answer_does_not_hang_on_the_spelling_of_a_model(tmp_path):
    shape = {"n_layers": "32", "d_model": "4096", "n_heads": "32", "n_kv_heads": "8"}
    spellings = ("llama3-8b", "Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B")
    path = write(tmp_path / "t.csv", *({"model": name} for name in spellings), {"model": "my-own", **shape})
    found = serving.predict_serving(serving.read_serving(path))
    for quantity in ("tpot_s", "ttft_s"):
        times = found.values[quantity]
        assert times[0] == times[1] == times[2] != times[3]
    rows = describe_serving(serving.read_serving(write(tmp_path / "t.csv", {"model": "moonshotai/Kimi-K2-Instruct"})))
    assert rows.levels.column("model").tolist() == ["kimi-k2"]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3"])
def test_stated_sizes_of_a_catalogue_model_are_no_other_model(model, tmp_path):
    """Its own sizes leave the further fields of the entry; a layer more makes another model of the usual kind."""
    own = js.model(model)
    cells = [{name: f"{float(getattr(own, name)):g}"} for name in ("n_layers", "d_model", "n_experts")]
    other = {"n_layers": f"{float(own.n_layers) + 1.0:g}"}
    runs = serving.read_serving(write(tmp_path / "t.csv", *({"model": model, **cell} for cell in (*cells, other))))
    shapes = stated_shapes(runs)
    entry = {name: column[0] for name, column in shapes.items() if np.isfinite(column[0])}
    assert len(entry) > 8
    for name, value in entry.items():
        assert (shapes[name][:3] == value).all(), name
    assert not all(np.isclose(shapes[name][3], value) for name, value in entry.items() if name != "n_layers")


def test_caches_and_memory_are_those_of_the_framework_or_stated(tmp_path):
    """Caches of vLLM and SGLang keep 16 bits beside 8-bit weights, those of TensorRT-LLM do not."""
    fp8 = {"precision": "fp8", "framework": "vllm"}
    stated = {"kv_precision": "fp8", "memory_share": "0.95"}
    path = write(tmp_path / "t.csv", fp8, {**fp8, **stated}, {**fp8, "framework": "tensorrt-llm"})
    rows = describe_serving(serving.read_serving(path))
    assert rows.batch is not None
    assert rows.batch.engine.cache_bytes.tolist() == [2.0, 1.0, 1.0]
    assert rows.batch.engine.memory_share.tolist() == [0.9, 0.95, 0.92]


def test_ranks_of_a_mixture_that_fits_a_chip_are_copies_unless_stated(tmp_path):
    small = {"model": "gpt-oss-20b", "precision": "fp4", "n_gpus": "8", "tp": "1", "dp": "8", "ep": ""}
    path = write(
        tmp_path / "t.csv",
        small,
        {**small, "ep": "8"},
        {**small, "dp": ""},
        {**small, "model": "deepseek-v3", "gpu": "h200-141gb"},
    )
    runs = serving.read_serving(path)
    rows, found = describe_serving(runs), serving.predict_serving(runs)
    assert rows.batch is not None
    assert rows.batch.engine.copies.tolist() == [8.0, 1.0, 8.0, 1.0]
    assert rows.batch.engine.attention_dp.tolist() == [1.0, 8.0, 1.0, 8.0], "DeepSeek-V3 fits no chip"
    times = found.values["tpot_s"]
    assert times[0] == times[2] != times[1]
    assert ["assumed: dp are copies" in note for note in found.notes] == [True, False, False, False]


def test_shared_prefixes_are_cached_as_memory_allows(tmp_path):
    long = {"input_len": "6500", "n_gpus": "1", "tp": "1", "concurrency": "8", "prefix_share": "0.9"}
    path = write(tmp_path / "t.csv", long, {**long, "prefix_groups": "1"}, {**long, "prefix_hit": "0.9"})
    found = serving.predict_serving(serving.read_serving(path))
    first = found.values["ttft_s"]
    assert first[0] > 1.3 * first[1] and first[1] == first[2]
    assert ["assumed: 100 distinct prefixes" in note for note in found.notes] == [True, False, False]


def test_words_of_tools_are_understood(tmp_path):
    path = write(tmp_path / "t.csv", {"precision": "NVFP4"}, {"precision": "w4a16"}, {"serving": "offline"})
    runs = serving.read_serving(path)
    assert runs.column("precision") == ["fp4", "int4", "fp8"]
    assert runs.column("serving") == ["online", "online", "offline_max"]


def test_the_shape_of_a_row_counts_before_its_name(tmp_path):
    shape = {"n_layers": "16", "d_model": "4096", "n_heads": "32"}
    rows = describe_serving(serving.read_serving(write(tmp_path / "t.csv", shape, {})))
    assert rows.batch is not None
    assert rows.batch.model.n_layers.tolist() == [16.0, 32.0]
    assert "differs from that of its name" in rows.notes[0] and not rows.notes[1]


def test_models_that_may_guess_ahead_get_an_interval_for_both(tmp_path):
    deepseek = {"model": "deepseek-v3", "gpu": "h200-141gb", "n_gpus": "8", "tp": "8"}
    guessing = {**deepseek, "draft_tokens": "1"}
    path = write(tmp_path / "t.csv", deepseek, {**deepseek, "draft_tokens": "0"}, guessing)
    found = serving.predict_serving(serving.read_serving(path))
    value, lo, hi = (part["tpot_s"] for part in (found.values, found.lo, found.hi))
    assert value[2] < value[1]
    assert lo[0] <= value[2] and hi[0] >= value[1] and lo[0] <= value[1] / 1.8
    assert "interval covers both" in found.notes[0] and "both" not in found.notes[1]
    assert lo[1] >= lo[0]


def test_every_column_of_the_shipped_tables_is_described():
    from jaxscale import data_path

    for path in sorted(data_path("serving").glob("*.csv")):
        header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert set(header) <= set(SERVING_BY_NAME), path.name
