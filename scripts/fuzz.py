"""Fuzz of every public entry: `python scripts/fuzz.py --n 1000000 [--entry runs]`.

Texts (tables, TOML, config.json, logs, launch files, fits, workloads) are changed at random and read: they give an
answer or one line of `InputError`, in a moment. Rows of runs and of serving are drawn from what their columns allow and
predicted: answers are finite, positive and ordered, no step is shorter than its flops take, rows are answered alone as
in a table, in any order and whatever unread columns say, faster parts never slow a step and more work never shortens
it. A case is repeated by its seed.
"""

import argparse
import contextlib
import csv
import io
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import jaxscale as js
from jaxscale.base.arrays import with_fields
from jaxscale.base.documents import data_path, fit_path, run_tables
from jaxscale.base.errors import InputError
from jaxscale.cli.main import command_of
from jaxscale.costs.evaluate import evaluate_runs
from jaxscale.costs.step import tokens_per_step
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.islands.fleet import read_fleet
from jaxscale.launch.readers.read_run import run_of
from jaxscale.laws.loss_reader import read_losses
from jaxscale.models.model_catalogue import described_model, model_figures
from jaxscale.models.model_domain import MODEL
from jaxscale.models.transformer import model_flops
from jaxscale.plans.adapters import trained_by
from jaxscale.plans.expert_load import dropped_share
from jaxscale.runs.arrays import RunBatch
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.schema import COLUMNS
from jaxscale.serving.engine import REQUESTS
from jaxscale.serving.serving_table import SERVING_COLUMNS
from jaxscale.sweeps import read_spec
from jaxscale.tables.cells import Column, vocabularies
from jaxscale.tracing.classed_program import read_tables

PATIENCE = 10.0
"""Time of the processor that a small input may take [s]."""

ROWS = 1000
"""Rows of a table that is drawn [1]."""

JUNK = (
    *"0 -1 -0.0 1e400 -1e400 1e-320 nan inf 7.25 0.1 1e9 1e308 99999999999999999999999 3 64 1e3".split(),
    *"true false null".split(),
    *("", " ", "''", '""', "[]", "{}", "[[", "}}", "\\", "\x00", "=1+1", "None", "a.b.c", "π", "１", "x" * 300, "h100"),
)
"""Values that take the place of others."""


@dataclass(frozen=True)
class Violation:
    """A property that an input breaks.

    Attributes:
        entry: where the input went.
        seed: of the case.
        what: the property, and what was found.
        text: the input, or its beginning.
    """

    entry: str
    seed: int
    what: str
    text: str = ""


def changed(text: str, rng: np.random.Generator) -> str:
    """A text with a few random changes: other values, lines lost, doubled or exchanged, a cut, a bit turned."""
    for _ in range(int(rng.integers(1, 4))):
        kind, lines = int(rng.integers(8)), text.splitlines(keepends=True)
        if not lines:
            return text
        place = int(rng.integers(len(lines)))
        if kind < 4:
            parts = _parts(lines[place])
            values = [at for at, part in enumerate(parts) if part.strip() and part[0] not in "=,:[]{}"]
            if values:
                parts[int(rng.choice(values))] = str(rng.choice(JUNK))
                lines[place] = "".join(parts)
        elif kind == 4:
            del lines[place]
        elif kind == 5:
            lines.insert(int(rng.integers(len(lines))), lines[place])
        elif kind == 6:
            lines = ["".join(lines)[: int(rng.integers(len(text) + 1))]]
        else:
            data = bytearray("".join(lines).encode("utf-8", errors="surrogateescape"))
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            lines = [data.decode("utf-8", errors="surrogateescape")]
        text = "".join(lines)
    return text


def _parts(line: str) -> list[str]:
    """A line as values and what stands between them."""
    parts, held = [], ""
    for letter in line:
        if letter in "=,:[]{}\n ":
            parts += [held, letter]
            held = ""
        else:
            held += letter
    return [*parts, held]


def told(error: InputError) -> str:
    """What is wrong with a message: it is one line, or a list below a summary of rows."""
    text = str(error)
    one_line = "\n" not in text or " rows are bad\n" in text
    return (
        "" if text and one_line and len(text) < 20_000 else f"message of {len(text.splitlines())} lines: {text[:200]!r}"
    )


def outcome(act: Callable[[], Any]) -> str:
    """What is wrong with the outcome of an action; empty where it answers or refuses in one line."""
    started = time.process_time()
    try:
        act()
        problem = ""
    except InputError as error:
        problem = told(error)
    except Exception as error:  # noqa: BLE001 - whatever comes is what is looked for
        problem = f"{type(error).__name__}: {str(error)[:200]}"
    took = time.process_time() - started
    return problem or (f"took {took:.0f} s" if took > PATIENCE else "")


@dataclass(frozen=True)
class Entry:
    """Texts of one kind and their reader.

    Attributes:
        suffix: of their files.
        texts: valid ones.
        read: the reader.
    """

    suffix: str
    texts: Callable[[], list[str]]
    read: Callable[[Path], Any]

    def cases(self, name: str, seed: int, n: int) -> Iterator[Violation]:
        """Violations among n changed texts."""
        texts = self.texts()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"input{self.suffix}"
            for case in range(seed, seed + n):
                rng = np.random.default_rng(case)
                text = changed(texts[case % len(texts)], rng)
                path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
                if problem := outcome(lambda: self.read(path)):
                    yield Violation(name, case, problem, text[:2000])


def heads_of_tables(paths: list[Path], n_rows: int = 3) -> list[str]:
    """The header and the first rows of tables."""
    return ["".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[: 1 + n_rows]) for path in paths]


def texts_of(folder: Path, pattern: str, largest: int = 30_000) -> list[str]:
    """Whole texts of the small files of a folder."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern)) if path.stat().st_size <= largest]


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = (
    LLAMA,
    LLAMA | {"model_type": "mistral", "sliding_window": 4096, "head_dim": 64},
    LLAMA | {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1] * 16, "sliding_window": 128}
    | {"swa_num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
    LLAMA | {"model_type": "deepseek_v3", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128}
    | {"qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1},
    LLAMA | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*M-ME" * 4, "num_experts_per_tok": 2}
    | {"n_routed_experts": 16, "moe_intermediate_size": 512, "ssm_state_size": 128, "mamba_num_heads": 64}
    | {"mamba_head_dim": 64, "n_groups": 8},
    LLAMA | {"model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_value_heads": 32}
    | {"linear_num_key_heads": 16, "linear_value_head_dim": 128, "linear_key_head_dim": 128},
    LLAMA | {"block_configs": [{"ffn": {"ffn_mult": 2.0}, "attention": {"n_heads_in_group": 8}}] * 4},
)  # fmt: skip
"""Configurations of the kinds of layers that the reader knows."""

LOG = "\n".join(
    [
        "  num_layers ...................................... 32",
        "  hidden_size ..................................... 4096",
        "  num_attention_heads ............................. 32",
        "  seq_length ...................................... 4096",
        "  world_size ...................................... 16",
        "  tensor_model_parallel_size ...................... 4",
        "  micro_batch_size ................................ 1",
        "  global_batch_size ............................... 128",
        *(
            f" [2024-04-06 02:59:36] iteration {step:8d}/     100 | consumed samples: 5504 | elapsed time per iteration"
            f" (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | global batch size:   128 | lm loss: 1.8E+00 |"
            for step in range(1, 8)
        ),
    ]
)
TITAN_LOG = "\n".join(
    ["[titan] 2026 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory"]
    + [f"[titan] step: {step:2d}  loss:  7.6  memory: 66.91GiB(84.5%)  tps: 5,050  mfu: 31.82%" for step in range(1, 6)]
)
JSON_LOG = "\n".join(json.dumps({"loss": 2.1, "step": step, "epoch": 0.1, "tps": 5000.0}) for step in range(6))
LAUNCHES = (
    "torchrun --nproc-per-node 8 train.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\\n"
    "  --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 4 --bf16\n",
    "model:\n  num_layers: 32\n  hidden_size: 4096\n  num_attention_heads: 32\nparallelism:\n  dp: 4\n  tp: 2\n"
    "tokens:\n  micro_batch_size: 1\n  sequence_length: 4096\n  batch_accumulation_per_replica: 4\n",
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
    "[parallelism]\ntensor_parallel_degree = 2\n[activation_checkpoint]\nmode = 'selective'\n",
    '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}',
)
SWEEP = (
    'scenario = "default"\nchunk = 64\n[axes.training_flop]\nfrom = 1e25\nto = 1e32\nn = 10\n'
    "[axes.network_latency]\nvalues = [1e-6, 3e-6]\n[plan]\ntp_ff = 64\npp = 8\n"
)
MODEL_TOML = "\n".join(f"{name} = {value}" for name, value in {"n_layers": 32, "d_model": 4096, "n_heads": 32}.items())
MODELS = (
    MODEL_TOML + "\nn_experts = 8\nmoe_top_k = 2\nn_dense_layers = 3\nwindow = 128\nwindow_share = 0.5\n",
    MODEL_TOML + "\nn_ssm_layers = 8\nssm_d_inner = 8192\nssm_state = 1024\nssm_groups = 8\nn_predict_layers = 1\n",
    MODEL_TOML + "\nkv_lora_rank = 512\nrope_head_dim = 64\no_lora_rank = 512\no_groups = 4\nn_kv_heads = 8\n",
)
CHIP = (
    '[chips."mine"]\npeak_tflops_bf16 = 400\nmemory_gb = 80\nmemory_gb_per_s = 2000\n'
    "link_gb_per_s = 300\ndomain_size = 8\n"
)
WORKLOAD = json.dumps({"format": "jaxscale workload 1", "sizes": [8.0, 16.0], "terms": {}, "classes": ["a", "b"]})


def figures(path: Path) -> None:
    """Figures of a model from a file: they are finite and positive."""
    found = model_figures(str(path), described_model(path))
    numbers = [found[name] for name in ("n_params", "n_active_params", "flop_per_token")]
    assert all(np.isfinite(number) and number > 0.0 for number in numbers), f"figures of a model: {numbers}"


def chips_of(path: Path) -> None:
    """Clusters of the chips of a file."""
    for entry in load_hardware(path).chips.values():
        entry.chip(), entry.network()


def bad_answers(found: Any) -> dict[str, np.ndarray]:
    """Rows of a prediction of serving whose figures are not ordered, or missing without a note, by what is wrong."""
    bad = {}
    for name, values in found.values.items():
        lo, hi, known = found.lo[name], found.hi[name], np.isfinite(values)
        bad[f"{name} outside its interval"] = known & ~((lo > 0.0) & (lo <= values) & (values <= hi) & np.isfinite(hi))
        bad[f"{name} without an answer or a note"] = ~known & (found.notes == "")
    return bad


def serving_rows(path: Path) -> None:
    """Predictions of a serving table: finite, positive and ordered."""
    found = js.serving.predict_serving(js.serving.read_serving(path, skip_bad=True))
    for what, which in bad_answers(found).items():
        name = what.split()[0]
        assert not which.any(), f"{what}: {found.lo[name]}, {found.values[name]}, {found.hi[name]}"


TEXTS = {
    "runs": Entry(
        ".csv",
        lambda: heads_of_tables(list(run_tables().values())),
        lambda path: describe_runs(js.read_runs(path, skip_bad=True)),
    ),
    "serving": Entry(".csv", lambda: heads_of_tables(sorted(data_path("serving").glob("*.csv"))), serving_rows),
    "losses": Entry(
        ".csv",
        lambda: heads_of_tables(sorted(data_path("losses").glob("*.csv"))),
        read_losses,
    ),
    "fleets": Entry(".toml", lambda: texts_of(data_path("fleets"), "*.toml"), read_fleet),
    "sweeps": Entry(".toml", lambda: [SWEEP], read_spec),
    "models": Entry(".toml", lambda: list(MODELS), figures),
    "chips": Entry(".toml", lambda: [CHIP], chips_of),
    "config.json": Entry(".json", lambda: [json.dumps(config, indent=1) for config in CONFIGS], figures),
    "logs": Entry(".log", lambda: [LOG, TITAN_LOG, JSON_LOG], run_of),
    "launch files": Entry(".sh", lambda: list(LAUNCHES), run_of),
    "launch yaml": Entry(".yaml", lambda: [LAUNCHES[1]], run_of),
    "fits": Entry(".toml", lambda: texts_of(fit_path("."), "torchtitan.toml"), js.load_fit),
    "workloads": Entry(".json", lambda: [WORKLOAD], read_tables),
}
"""Entries that read a text."""

COMMANDS = (
    "model llama3-8b --json",
    "hardware h100-80gb --json",
    "predict runs.csv --out out.csv --fit default",
    "plan --model llama3-8b --gpu h100-80gb --n-chips 64 --global-batch 512 --top 3",
    "shape --gpu h100-80gb --n-chips 64 --flop 1e22",
    "islands fleet.toml --model llama3-8b --global-batch 512",
    "law fit losses.csv --out law.toml",
    "serving plan --model llama3-8b --gpu h100-80gb",
    "sweep spec.toml --out folder",
    "limits --json",
)
"""Command lines whose options are changed."""


def command_lines(name: str, seed: int, n: int) -> Iterator[Violation]:
    """Violations among changed command lines: they are understood, or refused in one line."""
    for case in range(seed, seed + n):
        rng = np.random.default_rng(case)
        words = str(rng.choice(COMMANDS)).split()
        place = int(rng.integers(len(words)))
        change = int(rng.integers(3))
        words[place : place + 1] = [[str(rng.choice(JUNK))], [], [words[place]] * 2][change]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            problem = outcome(lambda words=words: command_of(words or ["--help"]))
        if problem:
            yield Violation(name, case, problem, " ".join(words))


def python_calls(name: str, seed: int, n: int) -> Iterator[Violation]:
    """Violations among modules of random numbers: they are made, or refused by a message of one line."""
    values = [float(word) for word in JUNK if word in "0 -1 -0.0 7.25 0.1 1e9 nan inf 3 64 1e3 1e308".split()]
    for case in range(seed, seed + n):
        rng = np.random.default_rng(case)
        kind = int(rng.integers(4))
        try:
            if kind == 0:
                made = {name: float(rng.choice(values)) for name in rng.choice(list(MODEL.bounds), 2)}
                found = js.Transformer(**({"n_layers": 32, "d_model": 4096, "n_heads": 32} | made))
                numbers = [float(leaf) for leaf in jax.tree.leaves(found)]
            elif kind == 1:
                fields = [field for field in js.Plan.__dataclass_fields__ if field != "precision"]
                made = {
                    field: float(rng.choice(values)) for field in rng.choice(fields, 2) if field in js.Plan().words()
                }
                numbers = [float(np.sum(leaf)) for leaf in jax.tree.leaves(js.Plan(**_numbers_alone(made)))]
            elif kind == 2:
                numbers = [float(js.cluster("h100-80gb", float(rng.choice(values))).n_chips)]
            else:
                made = {field: float(rng.choice(values)) for field in rng.choice(list(REQUESTS.bounds), 2)}
                load = js.serving.Requests(**({"concurrency": 8, "input_len": 128, "output_len": 128} | made))
                numbers = [float(leaf) for leaf in jax.tree.leaves(load)]
            if not np.all(np.isfinite(numbers)):
                yield Violation(name, case, f"numbers of a module are not finite: {numbers}")
        except ValueError as error:
            if "\n" in str(error) or not str(error):
                yield Violation(name, case, f"message {str(error)!r}")
        except Exception as error:  # noqa: BLE001
            yield Violation(name, case, f"{type(error).__name__}: {error}")


def _numbers_alone(fields: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a plan that are numbers; words have vocabularies of their own."""
    words = ("recompute", "schedule", "execution", "tp_overlap", "moe_dispatcher")
    return {name: value for name, value in fields.items() if name not in words}


def drawn_cell(column: Column, rng: np.random.Generator) -> Any:
    """A valid cell of a column, small sizes more often than large ones."""
    if column.kind == "integer":
        least = max(column.least or 1, 1)
        size = int(np.exp(rng.uniform(np.log(least), np.log(max(min(column.maximum, 4096.0), least + 1e-9)))))
        return 0 if column.least == 0 and rng.random() < 0.2 else max(size, least)
    if column.kind in ("number", "amount"):
        return float(np.exp(rng.uniform(np.log(0.5), np.log(min(column.maximum, 100.0)))))
    if column.kind == "share":
        return float(np.round(rng.random(), 3))
    if column.kind == "flag":
        return bool(rng.integers(2))
    words = list(vocabularies()[column.vocabulary]) if column.vocabulary else list(column.words)
    return str(rng.choice([word for word in words if isinstance(word, str)])) if words else ""


DRAWN = tuple(
    column
    for column in COLUMNS
    if column.name not in ("source", "source_row", "model", "model_file", "workload", "release", "notes", "status")
    and column.name not in ("split_classes", "table_placement", "joint_statistics", "mem_kind", "step_time_derived")
    and column.name not in ("n_microbatches", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu")
)
CHIPS = ("h100-80gb", "a100-80gb", "b200", "mi300x", "tpu-v5p", "v100-32gb")


def drawn_row(rng: np.random.Generator) -> dict[str, Any]:
    """A random run, of which every cell is valid and degrees, batch and heads agree."""
    dp, tp, pp, cp = (int(2 ** rng.integers(0, high)) for high in (6, 4, 4, 3))
    micro, count = int(2 ** rng.integers(0, 4)), int(rng.integers(1, 33))
    kv_heads, group, head = int(2 ** rng.integers(0, 6)), int(2 ** rng.integers(0, 4)), int(2 ** rng.integers(5, 9))
    row = {
        "n_layers": int(rng.integers(1, 130)), "d_model": int(128 * rng.integers(1, 130)), "head_dim": head,
        "n_heads": kv_heads * group, "n_kv_heads": kv_heads, "seq_len": int(2 ** rng.integers(8, 18)),
        "gpu": str(rng.choice(CHIPS)), "n_gpus": dp * tp * pp * cp, "dp": dp, "tp": tp, "pp": pp, "cp": cp,
        "micro_batch_size": micro, "global_batch_size_seqs": micro * count * dp,
    }  # fmt: skip
    for column in DRAWN:
        if column.name not in row and rng.random() < 0.12:
            row[column.name] = drawn_cell(column, rng)
    if row.keys() & {"adapter", "lora_rank", "lora_targets"}:
        row.pop("trainable_share", None)  # follows from the adapters
    if row.get("n_ssm_layers"):
        row |= {"n_ssm_layers": min(row["n_ssm_layers"], row["n_layers"]), "ssm_d_inner": 4096, "ssm_state": 1024}
    return row


GROWING = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "d_ff_expert", "vocab_size", "seq_len")
"""Sizes of a model that make work."""

SLACK = {"n_layers": 3e-3}
"""Relative fall of the step time that stages of another depth may bring."""

HOST_SLACK = 3e-4
"""Relative fall of the step time of a host-bound zero-bubble pipeline: wider weight gradients fill more of the bubble
while the host hides the work."""


Table = dict[str, list[Any]]
"""Cells by column, None for a blank one."""

Row = Callable[[np.random.Generator], dict[str, Any]]
"""A random row."""

Judge = Callable[[str, int, Table, np.random.Generator], Iterator[Violation]]
"""Violations of a table, from the name of the entry and the seed of the case."""


def drawn(name: str, seed: int, n: int, row_of: Row, judge: Judge) -> Iterator[Violation]:
    """Violations among tables of random rows."""
    for case in range(seed, seed + max(n // ROWS, 1)):
        rng = np.random.default_rng(case)
        rows = [row_of(rng) for _ in range(min(n, ROWS))]
        columns = dict.fromkeys(name for row in rows for name in row)
        try:
            yield from judge(name, case, {column: [row.get(column) for row in rows] for column in columns}, rng)
        except Exception as error:  # noqa: BLE001
            yield Violation(name, case, f"{type(error).__name__}: {str(error)[:300]}")


def cells_of(runs: Any, row: int) -> str:
    """Filled cells of a row of a table that was read."""
    cells = {column: runs.categories(column)[row] for column in runs.columns}
    return json.dumps({column: value for column, value in cells.items() if value is not None}, default=str)


def properties(name: str, case: int, cells: Table, rng: np.random.Generator) -> Iterator[Violation]:
    """Violations of the properties of predictions."""
    fit, runs = js.load_fit("default"), js.read_runs(cells, skip_bad=True)
    described = describe_runs(runs)
    batch, levels = described.batch, described.levels
    if batch is None:
        yield Violation(name, case, "no row is answered")
        return
    found = js.predict(runs)
    index = described.index
    table, combination = fit.coefficient_table(levels)

    def broken(which: np.ndarray, what: str) -> Iterator[Violation]:
        for row in np.flatnonzero(which)[:1]:
            yield Violation(name, case, f"{what} in {which.sum()} rows", cells_of(runs, int(index[row])))

    usual = evaluate_runs(batch, table, combination, ("step_time", "memory"))
    least = _least_time(batch)
    yield from broken(usual["step_time"] < 0.999 * least, "shorter than its flops take")
    yield from broken(~(usual["memory"] > 0.0), "no memory")
    # A larger model may mend a plan that breaks a rule, such as more virtual stages than layers.
    is_sound = np.asarray(["predicted although" not in found.notes[row] for row in index])
    slack = HOST_SLACK * np.asarray(batch.plan.zero_bubble)
    for field in GROWING:
        factor = float(rng.choice([1.01, 2.0]))
        model = with_fields(batch.model, {field: getattr(batch.model, field) * factor})
        longer = evaluate_runs(eqx.tree_at(lambda runs: runs.model, batch, model), table, combination, ("step_time",))
        fall = 1.0 - longer["step_time"] / usual["step_time"]
        is_shorter = ~(fall < slack + SLACK.get(field, 1e-5))
        # Stages share the work of prediction layers with layers that may be far lighter: more of these share it better.
        is_shorter &= (np.asarray(batch.model.n_predict_layers) == 0.0) | (field != "n_layers")
        yield from broken(is_sound & is_shorter, f"{field} x {factor:g} shortens the step by {np.max(fall):.2g}")
    for what, where in RESOURCES.items():
        faster = eqx.tree_at(where, batch, where(batch) * (0.5 if what == "latency" else 2.0))
        shorter = evaluate_runs(faster, table, combination, ("step_time",))["step_time"]
        is_longer = ~(shorter <= usual["step_time"] * (1.0 + 1e-5 + slack))
        yield from broken(is_sound & is_longer, f"better {what} lengthens the step")
    kept = rng.choice(len(runs), min(len(runs), 20), replace=False)
    some = runs.take(kept)
    cells = {column: [some.categories(column)[row] for row in range(len(some))] for column in some.columns}
    again = js.predict({**cells, "unread": ["x"] * len(some)})
    for figure in ("step_time", "lo", "hi", "memory", "oom_probability"):
        here, there = getattr(found, figure)[kept], getattr(again, figure)
        yield from (
            [Violation(name, case, f"{figure} differs alone: {here} and {there}")]
            if not np.array_equal(here, there, equal_nan=True)
            else []
        )


SERVED = tuple(
    column
    for column in SERVING_COLUMNS
    if column.name not in ("source", "source_row", "model", "framework", "release", "gpu", "notes", "status")
    and not column.name.endswith(("_s", "_s_total", "_mem_gb"))
)
"""Columns of serving that are drawn."""

OTHER_LOADS = ("serving", "arrival", "request_rate", "n_requests")
"""Columns of which a filled cell makes another load than a closed loop."""

MORE_WORK = {"input_len": ("ttft_s", 0.01), "output_len": ("e2e_latency_s", 0.2)}
"""Latency that no larger number of a column shortens, and the relative fall that the queue of a closed loop may have:
requests of few tokens wait by a formula of an endless queue."""


def served_row(rng: np.random.Generator) -> dict[str, Any]:
    """A random engine and its requests, of which every cell is valid and degrees and heads agree."""
    tp, pp, dp = (int(2 ** rng.integers(0, high)) for high in (4, 2, 3))
    kv_heads, group = int(2 ** rng.integers(0, 5)), int(2 ** rng.integers(0, 4))
    row = {
        "n_layers": int(rng.integers(pp, 130)), "d_model": int(128 * rng.integers(1, 100)), "head_dim": 128,
        "n_heads": kv_heads * group, "n_kv_heads": kv_heads, "gpu": str(rng.choice(CHIPS)), "n_gpus": tp * pp * dp,
        "tp": tp, "pp": pp, "dp": dp, "input_len": float(np.ceil(np.exp(rng.uniform(0.0, 11.0)))),
        "output_len": float(np.ceil(np.exp(rng.uniform(0.0, 9.0)))), "concurrency": int(2 ** rng.integers(0, 12)),
        "d_ff": int(256 * rng.integers(1, 200)), "framework": str(rng.choice(["vllm", "sglang", "mine"])),
    }  # fmt: skip
    for column in SERVED:
        if column.name not in row and rng.random() < 0.15:
            row[column.name] = drawn_cell(column, rng)
    return row


def served_properties(name: str, case: int, drawn_cells: Table, _: np.random.Generator) -> Iterator[Violation]:
    """Violations of the properties of latencies and throughputs: finite, ordered, and more work is never faster."""
    runs = js.serving.read_serving(drawn_cells, skip_bad=True)
    found = js.serving.predict_serving(runs)
    cells = {column: [runs.categories(column)[row] for row in range(len(runs))] for column in runs.columns}

    def broken(which: np.ndarray, what: str) -> Iterator[Violation]:
        for row in np.flatnonzero(which)[:1]:
            yield Violation(name, case, f"{what} in {which.sum()} rows", cells_of(runs, int(row)))

    for what, which in bad_answers(found).items():
        yield from broken(which, what)
    # Full memory admits fewer of the larger requests, and a number of requests or a rate may be beyond it.
    is_loop = np.all([runs.categories(column).matches(lambda cell: not cell) for column in OTHER_LOADS], axis=0)
    for column, (figure, slack) in MORE_WORK.items():
        more = {**cells, column: [value and 2 * value for value in cells[column]]}
        then = js.serving.predict_serving(js.serving.read_serving(more))
        fits = np.asarray(["does not fit" not in note for note in then.notes])
        falls = then.values[figure] < found.values[figure] * (1.0 - slack)
        yield from broken(is_loop & fits & falls, f"{column} x 2 lowers {figure}")


RESOURCES: dict[str, Callable[[RunBatch], Any]] = {
    "peak": lambda runs: runs.cluster.chip.peak_flops,
    "memory bandwidth": lambda runs: runs.cluster.chip.hbm_bandwidth,
    "bandwidth": lambda runs: runs.cluster.network.bandwidth,
    "latency": lambda runs: runs.cluster.network.latency,
}
"""Resources of a cluster."""


def _least_time(batch: RunBatch) -> np.ndarray:
    """Time that the flops of each run take at the peak of its chips, half of the attention masked [s]."""

    def one(run: RunBatch) -> Any:
        # Beside adapters no weight of the model itself has a gradient.
        flops = model_flops(run.model, causal=True) * (2.0 + trained_by(run.model, run.plan.lora_rank)) / 3.0
        peak = run.cluster.chip.peak_flops.max()
        flops = flops * (1.0 - dropped_share(run.model.n_experts, run.plan))
        return flops * tokens_per_step(run.model, run.plan) / (run.cluster.n_chips * peak)

    return np.asarray(jax.vmap(one)(jax.tree.map(np.asarray, batch)))


HARNESS: dict[str, Callable[[str, int, int], Iterator[Violation]]] = {
    **{name: lambda name, seed, n, entry=entry: entry.cases(name, seed, n) for name, entry in TEXTS.items()},
    "options": command_lines,
    "Python": python_calls,
    "drawn runs": lambda name, seed, n: drawn(name, seed, n, drawn_row, properties),
    "drawn serving": lambda name, seed, n: drawn(name, seed, n, served_row, served_properties),
}
"""Cases of each entry, from a seed on."""


def main() -> int:
    """Run the cases and print violations, each kind once; exit code 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=20_000, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entry", choices=HARNESS, action="append", help="entries; all where left out")
    parser.add_argument("--out", type=Path, help="CSV of all violations")
    chosen = parser.parse_args()
    # A warning is one more line, and an error to who has made them so.
    warnings.simplefilter("error")
    entries = chosen.entry or list(HARNESS)
    found: list[Violation] = []
    for name in entries:
        started, kinds = time.time(), Counter()
        n = max(chosen.n // len(entries), 1)
        for violation in HARNESS[name](name, chosen.seed, n):
            found.append(violation)
            kinds[violation.what[:60]] += 1
            if kinds[violation.what[:60]] == 1:
                print(f"{name}, seed {violation.seed}: {violation.what}\n  {violation.text[:300]!r}", flush=True)
        seconds = time.time() - started
        print(f"{name}: {n} cases, {sum(kinds.values())} violations, {seconds:.0f} s", flush=True)
    if chosen.out:
        with chosen.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([one.entry, one.seed, one.what, one.text] for one in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
