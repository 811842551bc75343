"""Every kind of malformed table gets one clear line."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_tables import GOOD, read, write_rows

from jaxscale.base.errors import InputError
from jaxscale.runs.reader import COMPLETED, RunsSchema
from jaxscale.runs.schema import BY_NAME
from jaxscale.tables.reader import MAX_ROWS

SHAPE = dict.fromkeys(("n_layers", "d_model", "n_heads"), "")

BAD_CELLS = [
    ({"tp": "abc"}, "column 'tp' = 'abc': not a number; expected a whole number >= 1"),
    ({"tp": "2.5"}, "column 'tp' = '2.5': not a whole number; expected a whole number >= 1"),
    ({"tp": "1_0"}, "column 'tp' = '1_0': not a number"),
    ({"step_time_s": "-1.5"}, "column 'step_time_s' = '-1.5': negative; expected a number > 0"),
    ({"n_layers": "0"}, "column 'n_layers' = '0': zero; expected a whole number >= 1"),
    ({"step_time_s": "0"}, "column 'step_time_s' = '0': zero; expected a number > 0"),
    ({"d_model": "nan"}, "column 'd_model' = 'nan': not a number (NaN)"),
    ({"step_time_s": "-Infinity"}, "column 'step_time_s' = '-Infinity': infinite"),
    ({"n_heads": "inf"}, "column 'n_heads' = 'inf': infinite"),
    ({"n_heads": "1e999"}, "too large; must be at most 1e6 (infinite)"),
    ({"n_gpus": "1e9"}, "column 'n_gpus' = '1e9': too large; must be at most 1e8"),
    ({"gpu": "b100"}, "column 'gpu' = 'b100': not in the hardware catalogue; expected one like"),
    ({"gpu": "potato"}, "expected one of a100-80gb, h100, h100-80gb"),
    ({"zero_stage": "4"}, "too large; must be at most 3; expected a whole number >= 0 and <= 3"),
    ({"gated_mlp": "maybe"}, "column 'gated_mlp' = 'maybe': not a flag; expected true or false"),
    ({"precision": "int3"}, "column 'precision' = 'int3': not known; expected one of fp4, fp8"),
    ({"activation_recompute": "some"}, "expected one of none, selective, full"),
    ({"dp": "8"}, "column 'n_gpus' = '16': contradicts dp*tp*pp = 8*2*2 = 32; expected"),
    ({"dp": "", "tp": "3"}, "column 'n_gpus' = '16': contradicts tp*pp = 3*2 = 6; expected"),
    ({"cp": "2"}, "contradicts dp*tp*pp*cp = 4*2*2*2 = 32"),
    ({"dp": "", "pp": "", "tp": "3"}, "contradicts tp = 3; expected a product of degrees that divides n_gpus"),
    ({"n_microbatches": "9"}, "column 'n_microbatches' = '9': contradicts global_batch_size_seqs"),
    ({"micro_batch_size": "32", "n_microbatches": ""}, "column 'global_batch_size_seqs' = '64': less than one microb"),
    ({"micro_batch_size": "32", "n_microbatches": "1"}, "microbatch of 32 for each of dp = 4 replicas; expected at"),
    ({"n_heads": "24", "n_kv_heads": "8"}, "column 'n_heads' = '24': does not divide d_model = 2048; expected a div"),
    ({"n_kv_heads": "3"}, "column 'n_kv_heads' = '3': does not divide n_heads; expected a divisor of 16"),
    ({"n_experts": "4", "moe_top_k": "8"}, "column 'moe_top_k' = '8': exceeds n_experts = 4; expected at most that"),
    ({"moe_top_k": "8"}, "column 'moe_top_k' = '8': exceeds n_experts = 1; expected at most that"),
    (
        {"model": "mixture", "n_layers": "", "d_model": "", "n_heads": "", "n_experts": "1"},
        "column 'moe_top_k' = '2': exceeds n_experts = 1; expected at most that",
    ),
    (
        {"model": "mixture", "n_layers": "", "d_model": "", "n_heads": "", "n_kv_heads": "64"},
        "column 'n_kv_heads' = '64': exceeds n_heads = 32; expected at most that",
    ),
    ({"model": "gpt-9", **SHAPE}, "column 'model' = 'gpt-9': unknown model and no shape; expected one of"),
    ({"tp": "a\nb" * 100}, r"column 'tp' = 'a\nba\nb"),
]


def refused(path: Path, **options: bool) -> str:
    """The message of a refusal that must be one line."""
    with pytest.raises(InputError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("change", "expected"), BAD_CELLS, ids=lambda value: str(value)[:40])
def test_one_bad_cell_is_one_line(table, change, expected):
    path = table({**dict.fromkeys(change, ""), **GOOD, **change})
    message = refused(path)
    assert message.startswith(f"{path}:2: ")
    assert expected in message
    assert refused(path, skip_bad=True) == message


@pytest.mark.parametrize("name", ["gpu", "n_gpus", "seq_len"])
def test_missing_column(table, name):
    message = refused(table({}, without=[name]))
    assert f":1: missing column {name!r}; expected at least model (or n_layers, d_model, n_heads), seq_len" in message


@pytest.mark.parametrize("name", COMPLETED)
def test_a_column_that_predict_completes_may_be_missing(table, name):
    assert read(table({}, without=[name])).rows[0][name] is None


def test_missing_columns_that_another_would_fill(table):
    message = refused(table({}, without=["model", "n_layers", "gpu"]))
    assert "missing columns 'n_layers', 'gpu'" in message


def renamed(path: Path, **names: str) -> Path:
    """A table of one good row with columns of other names."""
    return write_rows(path, [{names.get(name, name): cell for name, cell in GOOD.items()}])


def test_misspelled_column(tmp_path):
    table = renamed(tmp_path / "runs.csv", n_layers="n_layer", model="name")
    assert "missing column 'n_layers' (is 'n_layer' meant for 'n_layers'?)" in refused(table)


def test_the_case_of_a_column_does_not_matter(tmp_path):
    assert read(renamed(tmp_path / "runs.csv", tp="TP", gpu="GPU")).rows[0]["tp"] == 2.0


def test_columns_that_look_like_others_are_found():
    columns = [
        *GOOD,
        "activation_recomputation",
        "zero",
        "peak_memory_gb",
        "perplexity",
        "note",
        "predicted_note",
        "term_matmul_s",
    ]
    expected = {
        "activation_recomputation": "activation_recompute",
        "zero": "zero_stage",
        "peak_memory_gb": "peak_mem_gb",
    }
    assert RunsSchema.misspelt(columns) == expected
    stated = {name: meant for name, meant in expected.items() if name != "zero"}
    assert RunsSchema.misspelt([*columns, "zero_stage"]) == stated


def test_a_problem_of_many_rows_is_told_once(tmp_path):
    table = write_rows(tmp_path / "runs.csv", [GOOD, *[{**GOOD, "gpu": "potato"}] * 3])
    message = refused(table)
    assert message.count("potato") == 1 and "(and the same in 2 more: lines 4, 5)" in message


def test_unknown_model_without_shape_columns(table):
    path = table({"model": "known-8b"}, {"model": "known-9b"}, without=list(SHAPE))
    message = refused(path)
    assert message.startswith(f"{path}:3: column 'model' = 'known-9b': unknown model and no shape")
    assert "known-8b" in message


def test_a_misspelt_shape_column_is_named_where_the_model_is_unknown(tmp_path):
    row = {{"n_layers": "nlayers"}.get(name, name): cell for name, cell in {**GOOD, "model": "mine"}.items()}
    assert "(is 'nlayers' meant for 'n_layers'?)" in refused(write_rows(tmp_path / "runs.csv", [row]))


def test_known_model_needs_no_shape_columns(table):
    assert len(read(table({"model": "known-8b"}, without=list(SHAPE)))) == 1


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_wrong_delimiter(table, mark, word):
    path = table({})
    path.write_text(path.read_text().replace(",", mark))
    assert refused(path) == f"{path}:1: the header is separated by {word}; expected commas"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty file; expected a CSV table with a header"),
        (b"\n \n", "empty file"),
        (",".join(GOOD).encode(), "no data rows"),
        (",".join([*GOOD, "tp"]).encode(), "column 'tp' appears twice"),
        (",".join(GOOD).encode("utf-16"), "not UTF-8"),
        (",".join(GOOD).encode() + b"\nm,1,2\n", ":2: 3 cells; expected 14, as in the header"),
        (",".join(GOOD).encode() + b'\n"m,1,2\n', ":2: not valid CSV"),
        (b"\x00\x01\x02", "missing columns"),
    ],
)
def test_file_that_is_no_table(tmp_path, content, expected):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert expected in refused(path)


def test_missing_file_and_folder(tmp_path):
    assert "cannot be read (no such file or directory)" in refused(tmp_path / "none.csv")
    assert "cannot be read (is a directory)" in refused(tmp_path)


def test_too_many_rows(table, monkeypatch):
    assert MAX_ROWS >= 100_000
    monkeypatch.setattr("jaxscale.tables.reader.MAX_ROWS", 2)
    assert "too many rows; expected at most 2" in refused(table({}, {}, {}))


def test_all_bad_rows_are_listed(table):
    path = table({}, {"tp": "x"}, {}, {"tp": "-1", "pp": "y"}, {"dp": "16"})
    with pytest.raises(InputError) as caught:
        read(path)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"{path}: 3 of 5 rows are bad"
    assert [line.split(": ")[0] for line in lines[1:]] == [f"{path}:{n}" for n in (3, 5, 6)]
    assert lines[2].endswith("(and 1 more in this row)")
    assert caught.value.problems == tuple(lines[1:])


def test_long_lists_are_cut_but_kept_whole_in_the_error(table):
    with pytest.raises(InputError) as caught:
        read(table({}, *[{"tp": f"x{index}"} for index in range(50)]))
    assert str(caught.value).endswith("... and 30 more")
    assert len(caught.value.problems) == 50


def test_skip_bad_drops_them_and_counts(table):
    runs = read(table({}, {"tp": "x"}, {"gpu": "none"}, {}), skip_bad=True)
    assert [row.line for row in runs] == [2, 5]
    assert runs.n_skipped == 2
    assert "column 'tp' = 'x'" in runs.problems[0]


def test_stated_count_is_kept_only_when_the_notes_quote_it(table):
    note = "proxy; stated GA=9; batch/(dp*b)=8"
    assert len(read(table({"n_microbatches": "9", "notes": note}))) == 1
    assert "contradicts" in refused(table({"n_microbatches": "10", "notes": note}))


def test_count_may_be_rounded_when_the_batch_does_not_divide(table):
    assert len(read(table({"global_batch_size_seqs": "60", "n_microbatches": "8"}, {"n_microbatches": "8.0"}))) == 2
    assert "contradicts" in refused(table({"global_batch_size_seqs": "60", "n_microbatches": "9"}))


numeric = st.sampled_from([name for name in GOOD if BY_NAME[name].kind in ("integer", "number")])
junk = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
corrupt = st.sampled_from(["abc", "nan", "-inf", "-3", "0", "1e30", "12,5", "0x10", "None", "٣"]) | junk


@given(name=numeric, cell=corrupt, position=st.integers(0, 4))
def test_a_corrupted_cell_is_refused_by_line_and_column(tmp_path_factory, name, cell, position):
    try:
        float(cell)
    except ValueError:
        if not cell.strip():
            return
    else:
        if cell.strip() not in ("nan", "-inf", "-3", "0", "1e30", "٣"):
            return
    rows = [dict(GOOD) for _ in range(5)]
    rows[position][name] = cell
    path = write_rows(tmp_path_factory.mktemp("corrupt") / "runs.csv", rows)
    message = refused(path)
    assert message.startswith(f"{path}:{position + 2}: column {name!r} = ")


def test_line_numbers_count_lines_inside_quotes(tmp_path):
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow([*GOOD, "notes"])
        writer.writerow([*GOOD.values(), "two\nlines"])
        writer.writerow([*{**GOOD, "tp": "x"}.values(), ""])
    assert refused(path).startswith(f"{path}:4: column 'tp'")
