"""Launch files and logs of programs that train: each cell is what a person reads, each key not understood is listed."""

import re
import tomllib
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.launch.readers.launch_rules import framework_family, understood_cells
from jaxscale.launch.readers.read_run import RunRow, run_of, table_columns
from jaxscale.launch.readers.settings_text import command_line_settings, has_open_parts, python_settings
from jaxscale.tables.table import write_table

FOLDER = Path(__file__).parent / "files"
FILES = tomllib.loads((Path(__file__).parent / "launch_files.toml").read_text(encoding="utf-8"))


def read(folder: Path, name: str, text: str) -> RunRow:
    """Row of a file with some text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return run_of(path)


@pytest.mark.parametrize("name", FILES)
def test_cells_are_those_that_a_person_reads(name: str):
    row = run_of(FOLDER / name)
    wanted = dict(word.replace("~", " ").split("=", 1) for word in FILES[name]["cells"].split())
    assert {column: row.cells.get(column, "-") for column in wanted} == wanted
    assert list(row.unread) == FILES[name].get("unread", [])


def test_every_file_is_a_row_of_a_runs_table(tmp_path: Path):
    """No cell is a word that the table refuses."""
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)
    rows = [run_of(FOLDER / name) for name in FILES]
    header = table_columns(rows)
    write_table(tmp_path / "runs.csv", header, [[row.cells.get(name) for name in header] for row in rows])
    assert len(js.read_runs(tmp_path / "runs.csv")) == len(FILES)


def test_a_deepspeed_file_beside_the_launch_file_is_read(tmp_path: Path):
    text = "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 512\nmicro_batch_size: 1\ndeepspeed: own.json\n"
    assert "zero_stage" not in read(tmp_path, "a.yml", text).cells
    (tmp_path / "own.json").write_text('{"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}')
    assert read(tmp_path, "a.yml", text).cells["zero_stage"] == "1"


def test_a_file_of_no_known_program_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="settings of no framework that is known; expected .* verl or litgpt"):
        read(tmp_path, "a.yaml", "epochs: 3\nbanana: 4\n")


VALUES = ("banana", -1, 0, 0.5, None, [], [1, "a"], True, "x|y*3", "(((", 1e30)


def test_a_value_of_another_kind_is_an_error_of_the_user():
    """Each setting of each file in turn is given some of the values that the program does not take."""
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        settings = command_line_settings(text) | python_settings(text)
        for place, key in enumerate(key for key in settings if not key.startswith("launch.")):
            for value in VALUES[place % 4 :: 4]:
                changed = {**settings, key: value}
                family = framework_family(changed)
                if family is None:
                    continue
                try:
                    understood_cells(changed, family, True)
                except InputError as error:
                    assert "cannot be read; expected a value that" in str(error)


def test_a_pattern_of_layers_that_is_none_is_refused(tmp_path: Path):
    text = (FOLDER / "megatron.sh").read_text(encoding="utf-8")
    options = "--num-experts 8 --moe-layer-freq banana --bf16"
    with pytest.raises(InputError, match="a.sh: moe_layer_freq = 'banana' cannot be read; expected a value"):
        read(tmp_path, "a.sh", text.replace("--bf16", options))


def test_options_of_an_unknown_variable_are_not_taken_for_defaults():
    assert has_open_parts("torchrun pretrain_gpt.py $ARGS --bf16") and has_open_parts('x "${ARGS[@]}"')
    assert not has_open_parts("ARGS=(--bf16)\ntorchrun pretrain_gpt.py ${ARGS[@]}")
    assert not has_open_parts("torchrun --node-rank $RANK pretrain_gpt.py --bf16")


def test_python_is_read_and_not_run():
    settings = python_settings(
        "import os\nconfig.training.steps = os.system('exit')\nconfig.a.b = 2**3\nc.d.e = [1, 2]\n"
    )
    assert settings == {"training.steps": "os.system", "a.b": "2 ** 3", "d.e": [1, 2]}
    assert python_settings("x = (") == {}


UNKNOWN = (
    ("megatron.sh", "tensor-model-parallel-size ", "tp"),
    ("deepspeed_clm.sh", "num_nodes ", "n_gpus"),
    ("maxtext_recipe.sh", "ici_pipeline_parallelism=", "pp"),
)


@pytest.mark.parametrize("name, option, column", UNKNOWN)
def test_an_option_of_an_unknown_variable_is_left_open(tmp_path: Path, name: str, option: str, column: str):
    """The program's default is not what an unknown variable holds."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    row = read(tmp_path, name, re.sub(rf"{option}[$\w]+", f"{option}$UNKNOWN", text))
    assert run_of(FOLDER / name).cells[column] and column not in row.cells


def test_logs_of_older_and_other_programs(tmp_path: Path):
    old = "".join(f"completed step: {k}, seconds: 2.5, TFLOP/s: 40.0, loss: 2.1\n" for k in range(4))
    assert read(tmp_path, "old.log", old).cells["step_time_s"] == "2.5"
    line = (
        " [x] iteration {}/ 9 | elapsed time per iteration (ms): 900.0 | memory(GiB): 20.0 | global batch size: 64 |\n"
    )
    row = read(tmp_path, "swift.log", "".join(line.format(k) for k in range(1, 5)))
    assert (row.cells["framework"], row.cells["peak_mem_gb"]) == ("ms-swift-megatron", "21.47483648")


MEGATRON = {"pipeline_model_parallel_size": 16, "num_layers": 126}
TITAN = {"pipeline_parallel_degree": 16, "n_layers": 126, "dim": 16384, "pipeline_parallel_schedule": "1F1B"}


@pytest.mark.parametrize(
    ("family", "settings", "ends"),
    [
        ("megatron", {"decoder_first_pipeline_num_layers": 7, "decoder_last_pipeline_num_layers": 7}, (7, 7)),
        ("megatron", {"num_layers_in_first_pipeline_stage": 6}, (6, None)),
        ("megatron", {"account_for_embedding_in_pipeline_split": True, "num_layers": 127}, (7, 8)),
        ("megatron", {f"account_for_{part}_in_pipeline_split": True for part in ("embedding", "loss")}, (7, 7)),
        ("megatron", {"pipeline_model_parallel_layout": "Et*7|(t*8|)*14t*7L"}, (7, 7)),
        # Embedding and logits head alone, and eight chunks of one layer on each chip between (arXiv 2407.21783).
        ("megatron", {"pipeline_model_parallel_layout": "E|(t|)*126L"}, (7, 7)),
        # Both count as a layer unless set otherwise.
        ("torchtitan", {}, (7, 7)),
        ("torchtitan", {f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ("first", "last")}, (None, None)),
        ("torchtitan", {"pipeline_parallel_last_stage_less_layers": 3}, (8, 5)),
    ],
)
def test_layers_of_the_ends_of_a_pipeline(family: str, settings: dict, ends: tuple):
    cells, _ = understood_cells({**(MEGATRON if family == "megatron" else TITAN), **settings}, family)
    assert (cells.get("first_stage_layers"), cells.get("last_stage_layers")) == ends


def test_a_default_of_a_shell_variable_is_told(tmp_path: Path):
    options = "--tensor-model-parallel-size ${TP:-2} --pipeline-model-parallel-size 1 --bf16"
    row = read(tmp_path, "a.sh", f"torchrun --nnodes ${{NNODES:-4}} --nproc-per-node 8 pretrain_gpt.py {options}\n")
    assert (row.cells["n_gpus"], row.cells["tp"]) == ("32", "2")
    assert "NNODES taken as 4, unless the environment sets it" in row.remarks
    assert not run_of(FOLDER / "megatron.sh").remarks
