"""Figures that the guard holds, by wing of the package.

Each wing is a function without arguments that returns a JSON document. Only command lines and public names of the
package are used, so that its inside may be arranged otherwise.
"""

import contextlib
import csv
import io
import json
import math
import runpy
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import jaxscale as js
from jaxscale import explore

DATA = Path(__file__).parents[2] / "data"

Document = dict[str, Any]


def document(*arguments: object) -> Any:
    """The JSON document that a command line prints, run in this process."""
    words = ["jaxscale", *map(str, arguments), "--json"]
    out = io.StringIO()
    code: Any = 0
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out):
        try:
            runpy.run_module("jaxscale", run_name="__main__")
        except SystemExit as end:
            code = end.code
    if code:
        raise RuntimeError(f"{' '.join(words)}: exit code {code}")
    return json.loads(out.getvalue())


def documents(*lines: str) -> Document:
    """Documents of command lines whose words hold no spaces, by line."""
    return {line: document(*line.split()) for line in lines}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder as the present one, so that no document names a path of the machine."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows whose columns may differ as one CSV file."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def sampled(path: Path, count: int) -> list[dict[str, str]]:
    """Rows of a CSV file at equal distances, its first and its last among them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values of each key [key][row]: one line of a stored file instead of one for each row."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def figures(values: Any) -> Any:
    """Arrays and numbers of any kind, in a mapping or alone, as JSON."""
    if isinstance(values, Mapping):
        return {str(name): figures(value) for name, value in values.items()}
    if isinstance(values, str | bool) or values is None:
        return values
    if np.ndim(values):
        return [figures(value) for value in np.asarray(values).tolist()]
    number = float(values)
    return number if math.isfinite(number) else None


def core() -> Document:
    """Plans of five published designs, a shape, and predictions of a few rows with their completion."""
    designs = tomllib.loads((DATA / "published_designs.toml").read_text(encoding="utf-8"))["designs"]
    options = {
        "model": "--model",
        "gpu": "--gpu",
        "n_gpus": "--n-gpus",
        "global_batch_size_seqs": "--global-batch",
        "seq_len": "--seq-len",
        "framework": "--framework",
    }
    lines = []
    for run in (designs[name] for name in ("llama3-405b", "megatron-1t", "palm-540b", "bloom-176b", "mpt-30b")):
        words = [word for name, option in options.items() if name in run for word in (option, str(run[name]))]
        lines.append(" ".join(["plan", *words]))
    found = documents(*lines, "shape --gpu h100-80gb --n-gpus 16 --flop 1e20")
    open_rows = [
        {"model": "llama3-8b", "gpu": "h100-80gb", "n_gpus": "64"},
        {"model": "mixtral-8x7b", "gpu": "h100-80gb", "n_gpus": "128", "tp": "4"},
        {"model": "gpt3-175b", "gpu": "a100-80gb", "n_gpus": "1024", "pp": "8"},
    ]
    with scratch():
        write_table(
            Path("open.csv"), [{**row, "seq_len": "2048", "global_batch_size_seqs": "1536"} for row in open_rows]
        )
        return found | documents("predict open.csv")


SERVING_ROWS = 120
"""Rows of each serving table [row]."""


def serving() -> Document:
    """Predictions of rows of every shipped serving table, and a search for an engine.

    All rows go through one call, so that the model is compiled once; a row is answered without its neighbours.
    """
    tables = {path.stem: sampled(path, SERVING_ROWS) for path in sorted((DATA / "serving").glob("*.csv"))}
    with scratch():
        write_table(Path("serving.csv"), [row for rows in tables.values() for row in rows])
        answered = document("serving", "predict", "serving.csv")
    found: Document = {"errors": answered["errors"], "n_predicted": answered["n_predicted"]}
    rest = iter(answered["predictions"])
    for name, rows in tables.items():
        found[name] = columns_of([next(rest) for _ in rows])
    line = "serving plan --model llama3-8b --gpu h100-80gb --n-gpus 8 --input-len 1024 --output-len 256 --tpot 0.05"
    return found | documents(line)


LAWS = {
    "gadre-c4": ("joint", ()),
    "olmo": ("additive", ()),
    "muennighoff-repetition": ("joint", ("repetition",)),
    "gemstones-cooldown": ("joint", ("shape",)),
    "gadre-refinedweb": ("tied", ()),
}
"""Form and terms of the law that is fitted to each table."""


def laws() -> Document:
    """Numbers of five fitted laws, and documents of the commands on one of them."""
    found: Document = {}
    for name, (form, terms) in LAWS.items():
        law = js.laws.fit_law(js.laws.loss_table(name), form, terms, n_draws=8)
        told = law.predict([1e8, 1e9, 7e10], [2e9, 2e10, 1.4e12])
        found[name] = figures(
            {
                "parameters": law.parameters,
                "objective": law.fitted.objective,
                "noise": law.noise,
                "discrepancy": law.discrepancy,
                "n": law.n,
                "predicted": told._asdict(),
            }
        )
    with scratch():
        points = [{"n_params": "1e9", "tokens": "2e10"}, {"n_params": "3e9", "tokens": "1e12"}]
        write_table(Path("points.csv"), points)
        found |= documents(
            "law fit --table gadre-c4 --draws 8 --out law.toml",
            "law predict law.toml points.csv",
            "law optimum law.toml --flop 1e21 1e23",
            "law optimum law.toml --days 2 --gpu h100-80gb --n-gpus 64 --draws 0",
        )
    return found


def islands() -> Document:
    """The best way to train together on each shipped fleet."""
    asked = {
        "h100_and_a100": "--model llama2-7b --global-batch 1024",
        "four_sites": "--model llama3-8b --global-batch 2048",
        "desk": "--model gpt2-large --global-batch 8",
    }
    with contextlib.chdir(DATA):
        return documents(*(f"islands fleets/{fleet}.toml {options}" for fleet, options in asked.items()))


def rollouts() -> Document:
    """A step of reinforcement learning on the best split of chips, and one with critic and reward model."""
    shared = "rollout --gpu h100-80gb --input-len 512 --output-len 1024"
    return documents(
        f"{shared} --model llama3-8b --n-gpus 64 --prompts 512 --max-output-len 8192 --mode split",
        f"{shared} --model llama3.2-1b --n-gpus 16 --prompts 1024 --answers 1 --algorithm ppo --updates 4",
    )


DECODER = "n_layers=2 d_model=512 n_heads=4 n_kv_heads=4 vocab_size=8192"
STEPS = {
    "decoder": f"decoder --set {DECODER} d_ff=2048 --gpu h100-80gb",
    "experts": f"decoder --set {DECODER} d_ff=1024 n_experts=4",
    "dit": "dit --set n_layers=2 batch=8 --gpu a100-80gb",
    "dlrm": "dlrm --gpu h100-80gb",
    "resnet50": "resnet50 --set batch=64 --gpu a100-80gb --n-gpus 8",
}
"""Examples whose traces are held, by name of the file in which rows of a table find them."""

SPLIT = "state.0.down[1]+state.0.key[2].0"
TRACED_PLANS = {
    "decoder": (
        {"n_gpus": "1"},
        {"n_gpus": "8", "dp": "8", "global_batch_size_seqs": "64"},
        {"n_gpus": "8", "dp": "8", "zero_stage": "3", "global_batch_size_seqs": "64", "n_microbatches": "2"},
        {"n_gpus": "8", "dp": "2", "tp": "4", "pp": "1", "global_batch_size_seqs": "64", "split_classes": SPLIT},
        {"n_gpus": "64", "dp": "64", "global_batch_size_seqs": "256"},
    ),
    "dlrm": ({"n_gpus": "1"}, {"n_gpus": "8", "dp": "8"}, {"n_gpus": "64", "dp": "64"}),
    "dit": ({"n_gpus": "1"}, {"n_gpus": "8", "dp": "8", "global_batch_size_seqs": "64"}),
}
"""Plans of the rows that name a trace."""


def trace() -> Document:
    """Traces of five examples, and predictions of rows that name three of them."""
    with scratch():
        lines = [f"trace jaxscale.examples:{step} --out {name}.json" for name, step in STEPS.items()]
        found = documents(*lines)
        rows = traced_rows()
        write_table(Path("rows.csv"), rows)
        answered = document("predict", "rows.csv")
    return found | {"rows": columns_of(answered["predictions"])}


def traced_rows() -> list[dict[str, str]]:
    """Every plan of every trace on six chips under two frameworks: 120 rows."""
    rows = []
    for name, plans in TRACED_PLANS.items():
        for gpu in ("h100-80gb", "a100-80gb", "b200", "mi300x", "tpu-v5p", "l40s"):
            for framework in ("jax", "pytorch"):
                rows += [{"workload": f"{name}.json", "gpu": gpu, "framework": framework, **plan} for plan in plans]
    return rows


STATES: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 4, "pp": 2},
    {"model": "llama2-7b", "n_gpus": 16, "global_batch": 64, "seq_len": 2048},
    {"model": "mixtral-8x7b", "n_gpus": 128, "ep": 8},
    {"gpu": "a100-80gb", "compute": 2.0},
    {"memory_bandwidth": 0.5, "links": 1.41},
    {"network": 0.25},
    {"width": 1.41, "depth": 0.71},
    {"rank": 3, "zero_stage": "1"},
    {"precision": "fp8", "framework": "nemo"},
    {"recompute": "full", "micro_batch_size": 1},
    {"tokens": 100.0, "global_batch": 2048},
)
"""States of the page, by the fields that differ from a first visit."""


def page() -> Document:
    """Figures of states of the page, and of the curves of some."""
    inputs = explore.page_inputs()
    found: Document = {}
    for changes in STATES:
        view = explore.page_view(explore.PageState(**changes), inputs)
        now = view.now
        entry = {
            "command": view.state.command(),
            "plan": view.plan.words(),
            "step_time_s": now.step_time,
            "memory_bytes": now.memory,
            "mfu": now.mfu,
            "terms_s": now.terms,
            "memory_terms_bytes": now.memory_terms,
            "run": now.run._asdict(),
            "tokens_per_s": view.tokens_per_second,
            "oom_probability": view.oom_probability,
            "ranked_step_times_s": [scored.step_time for scored in view.choice.top],
            "elasticities_percent": view.elasticities,
            "curve_step_times_s": view.figures.step_time,
            "curve_memory_bytes": view.figures.memory,
        }
        found[json.dumps(changes)] = figures(entry)
    return found


def limits() -> Document:
    """Limits of one scenario."""
    return documents("limits --scenario default --from 1e26 --to 1e31")


def burst() -> Document:
    """Plans that give chips back to other work."""
    return documents("burst --network vgg16 --n-gpus 8 --global-batch 32")


def trends() -> Document:
    """A scan over numbers of chips."""
    return documents("trends --from 64 --to 512 --tp 4 --global-batch 128")


WINGS = {
    "core": core,
    "explore": page,
    "laws": laws,
    "islands": islands,
    "trace": trace,
    "serving": serving,
    "rollouts": rollouts,
    "limits": limits,
    "trends": trends,
    "burst": burst,
}
"""What is recomputed, by name of the stored file; what takes longest comes first."""
