"""What people see: every command on terminals of 60 to 200 columns, beside its own JSON document."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from cli_tables import GOOD, write_rows
from rich.table import Table as Grid
from screens import (
    WIDTHS,
    Cell,
    Document,
    Promise,
    headless,
    missing,
    number,
    plain_text,
    power,
    screen_of,
    screen_of_process,
    seconds,
    shows,
    stands_whole,
    tokens_of,
    too_long,
)

import jaxscale as js
from jaxscale.cli import console
from jaxscale.laws.loss_reader import loss_table

LOG = "\n".join(
    f" iteration {step}/ 100 | elapsed time per iteration (ms): {ms} | global batch size: 64 |"
    for step, ms in enumerate((9000, 2000, 2010, 1990), 1)
)
PLANS = (
    ("4", "1", "4", "16", "0.51"),
    ("2", "2", "4", "16", "0.43"),
    ("1", "2", "8", "32", "0.62"),
    ("8", "1", "2", "16", "0.78"),
    ("2", "1", "8", "64", "1.21"),
    ("4", "2", "2", "64", "1.42"),
    ("2", "4", "2", "32", "0.93"),
    ("1", "1", "16", "64", "1.18"),
)
"""Degrees, batch and step time of a few runs."""

FEW_RUNS = [
    dict(zip(("tp", "pp", "dp", "global_batch_size_seqs", "step_time_s"), cells, strict=True)) for cells in PLANS
]


Promises = Callable[[Document], Iterable[Promise]]


def chips(document: Document) -> Iterable[Promise]:
    names = ("peak_tflops_bf16", "memory_gb", "memory_gb_per_s", "domain_size", "link_gb_per_s", "network_gb_per_s")
    yield Promise([[number(chip["numbers"][name]) for name in names] for chip in document["chips"].values()])


def chip(document: Document) -> Iterable[Promise]:
    yield Promise([[number(value)] for name, value in document["numbers"].items() if name != "rail_size"])


def model(document: Document) -> Iterable[Promise]:
    names = ("n_params", "n_active_params", "flop_per_token")
    yield Promise([[number(document[name]) for name in names]])
    yield Promise([[number(value)] for value in document["fields"].values() if not isinstance(value, bool | str)])


def predictions(document: Document) -> Iterable[Promise]:
    ends = ("predicted_step_time_s", "predicted_step_time_lo_s", "predicted_step_time_hi_s")
    yield Promise(
        [
            [seconds(*(row[name] for name in ends)), number(row["predicted_memory_gb"])]
            for row in document["predictions"]
        ]
    )
    names = ("n", "mape", "median_ape", "p90_ape")
    yield Promise([[number(document[name]) for name in names]])


def plan_cells(plan: dict[str, Any]) -> list[Cell]:
    usual = {"dp": 0, "tp": 0, "pp": 0, "vpp": 1, "cp": 1, "ep": 1}
    cells = [number(plan[name]) if plan[name] != value else () for name, value in usual.items()]
    cells[2:4] = [(*cells[2], *cells[3])]
    microbatches = (*number(plan["micro_batch_size"]), *number(plan["n_microbatches"]))
    figures = (seconds(plan["step_time_s"]), number(100 * plan["mfu"]), number(plan["memory_gb"]))
    return [*cells, microbatches, number(plan["zero_stage"] or None), *figures]


def plans(document: Document) -> Iterable[Promise]:
    yield Promise([plan_cells(plan) for plan in document["top"]])
    yield Promise([[seconds(*document["step_time_interval_s"])]])


def against(document: Document) -> Iterable[Promise]:
    yield from plans(document)
    found = document["against"]
    yield Promise([[number(found["rank"]), seconds(found["theirs"]["step_time_s"]), number(100 * found["time_cost"])]])
    yield Promise(
        [
            [*(number(one[name]) for name in ("theirs", "ours") if not isinstance(one[name], bool | str)),
             number(one["time_cost"] and 100 * one["time_cost"]), number(one["memory_cost_gb"])]
            for one in found["differences"]
        ],
    )  # fmt: skip


def burst(document: Document) -> Iterable[Promise]:
    yield Promise([[number(one["gpus"]), seconds(one["time_s"])] for one in document["plan"]])
    yield Promise([[seconds(one["time_s"]), number(one["speedup"])] for one in document["ways"]])


def intervals(entries: Iterable[dict[str, float]]) -> Promise:
    """Value and ends of each entry."""
    return Promise([[number(one["value"]), number(one["lo"]), number(one["hi"])] for one in entries])


def law(document: Document) -> Iterable[Promise]:
    yield intervals(one for one in document["parameters"].values() if one["lo"] < one["hi"])
    rollouts = document["backtest"]["rollouts"]
    yield Promise([[number(one["n_fitted"]), number(one["n_predicted"])] for one in rollouts])


def losses(document: Document) -> Iterable[Promise]:
    names = ("predicted_loss", "predicted_loss_lo", "predicted_loss_hi")
    yield Promise([[number(row[name]) for name in names] for row in document["predictions"][:40]])


def optima(document: Document) -> Iterable[Promise]:
    names, ends = ("n_params", "n_tokens"), ("value", "lo", "hi")
    yield Promise(
        [
            [number(one["flop"]), *(number(one[name][end]) for name in names for end in ends)]
            for one in document["optima"]
        ]
    )


def forms(document: Document) -> Iterable[Promise]:
    yield Promise([[number(one["error_percent"]), number(100 * one["coverage_90"])] for one in document["forms"]])


def serving_rows(document: Document) -> Promise:
    times = [[f"predicted_{name}_s{end}" for end in ("", "_lo", "_hi")] for name in ("ttft", "tpot")]
    figures = ("predicted_output_tokens_per_s_total", "predicted_memory_gb", "predicted_max_batch")
    return Promise(
        [
            [*(seconds(*map(row.get, names)) for names in times), *(number(row[name]) for name in figures)]
            for row in document["predictions"][:20]
        ]
    )


def serving_errors(errors: Document) -> Promise:
    names = ("n", "median_ape", "mape", "p90_ape")
    return Promise(
        [[*(number(one[name]) for name in names), number(100 * one["coverage_90"])] for one in errors.values()]
    )


def engines(document: Document) -> Iterable[Promise]:
    yield Promise(
        [
            [
                number(one["concurrency"]),
                number(one["output_tokens_per_s_per_gpu"]),
                number(1e3 * one["tpot_s"]),
                number(one["ttft_s"]),
                number(one["memory_gb"]),
            ]
            for one in document["top"]
        ]
    )


def islands(document: Document) -> Iterable[Promise]:
    yield Promise(
        [
            [number(one["tokens_per_s"]), number(one["days_to_loss"]), *map(number, one["days_to_loss_interval"])]
            for one in document["modes"]
        ]
    )
    yield Promise([[number(worth)] for worth in document["worth"].values()])
    prices = [price for table in document["prices"].values() for price in table.values()]
    yield Promise([[number(price)] for price in prices if abs(price) >= 1e-3], False)


def rollouts(document: Document) -> Iterable[Promise]:
    splits = [one for one in document["alternatives"] if one["mode"] == "split"]
    fastest = sorted(splits, key=lambda one: one["step_s"])[:5]
    shared = [one for one in document["alternatives"] if one["mode"] == "shared"]
    terms = ("generation_s", "tail_s", "scoring_s", "training_s", "overlap_s", "step_s")
    yield Promise(
        [
            [number(one["generation_gpus"]), seconds(*(one[name] for name in terms if one[name] > 1e-5))]
            for one in [*shared, *sorted(fastest, key=lambda one: one["generation_gpus"])]
        ]
    )
    yield Promise([[seconds(document["tail_cost"]["seconds"]), number(document["tail_cost"]["chip_hours"])]])


def workload(document: Document) -> Iterable[Promise]:
    yield Promise(
        [[number(one["flop"] / 1e9), number(one["bytes"] / 1e9), number(one["launches"])] for one in document["groups"]]
    )
    yield Promise([[number(1e3 * document["step_time_s"])]])
    yield Promise([[number(1e3 * term)] for term in document["terms_s"].values() if term > 1e-5])


def cells(document: Document) -> Iterable[Promise]:
    values = [cell for row in document["rows"] for cell in row["cells"].values()]
    yield Promise([[number(float(cell))] for cell in values if str(cell).replace(".", "").isdigit()])


def fitted(document: Document) -> Iterable[Promise]:
    yield intervals([one for one in document["parameters"].values() if one["identified"]])
    yield Promise([[number(document["mape_train"])]])


class Case(NamedTuple):
    """A command line, and what its document promises.

    Attributes:
        line: arguments; `{name}` stands for a file.
        promises: made of the document.
    """

    line: str
    promises: Promises


TINY = "n_layers=2 d_model=64 n_heads=4 n_kv_heads=4 d_ff=256 vocab_size=512"
ON_16 = "--gpu h100-80gb --n-gpus 16 --fit prior"
CASES = {
    "hardware": Case("hardware", chips),
    "chip": Case("hardware a100-80gb", chip),
    "model": Case("model mixtral-8x7b", model),
    "models": Case("model", lambda document: ()),
    "predict": Case("predict {runs} --fit prior", predictions),
    "plan": Case(f"plan --model llama3-8b --global-batch 32 {ON_16}", plans),
    "plan against": Case(f"plan --model llama3-8b --global-batch 32 {ON_16} --against {{runs}}", against),
    "burst": Case("burst --network vgg16 --n-gpus 8 --global-batch 32", burst),
    "law fit": Case("law fit --table gadre-refinedweb --draws 60 --out {law}", law),
    "law predict": Case("law predict {law} {losses}", losses),
    "law optimum": Case("law optimum {law} --flop 1e21 1e23", optima),
    "law compare": Case("law compare --table gadre-refinedweb --forms additive kaplan", forms),
    "serving predict": Case(
        "serving predict {serving}", lambda document: [serving_rows(document), serving_errors(document["errors"])]
    ),
    "serving fit": Case(
        "serving fit {serving} --out {serving_fit}",
        lambda document: [serving_errors(document[name]) for name in ("errors_before", "errors_in_sample")],
    ),
    "serving plan": Case(
        "serving plan --model llama3-8b --gpu h100-80gb --n-gpus 2 --input-len 500 --output-len 200", engines
    ),
    "islands": Case("islands {fleet} --model llama2-7b --global-batch 1024", islands),
    "rollout": Case(
        f"rollout --model llama3.2-1b --prompts 64 --input-len 200 --output-len 300 --mode split {ON_16}", rollouts
    ),
    "trace": Case(f"trace jaxscale.examples:decoder --set {TINY} --gpu h100-80gb", workload),
    "read": Case("read {log} --set n_gpus=8 seq_len=4096", cells),
    "fit": Case("fit {few} --out {fit} --start prior", fitted),
}
"""Commands that answer by tables. Screens of `shape`, `limits` and `trends`, which take long, are looked at where their
documents are, and that of `demo` too; `sweep` and `explore` show none."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Any]:
    """Files that the command lines name."""
    folder = tmp_path_factory.mktemp("screens")
    names = {"law": "law.toml", "fit": "fit.toml", "serving_fit": "serving_fit.toml", "log": "train.log"}
    found: dict[str, Any] = {name: folder / file for name, file in names.items()}
    found["log"].write_text(LOG)
    found["runs"] = write_rows(folder / "runs.csv", [{**GOOD, **change} for change in ({}, {"tp": "4", "dp": "2"})])
    found["few"] = write_rows(folder / "few.csv", [{**GOOD, **change} for change in FEW_RUNS])
    found["fleet"] = js.data_path("fleets/h100_and_a100.toml")
    lines = (js.data_path("serving") / "nvidia_fastertransformer.csv").read_text(encoding="utf-8").splitlines()
    found["serving"] = folder / "serving.csv"
    found["serving"].write_text("\n".join(lines[:1] + lines[200:230]) + "\n", encoding="utf-8")
    table = loss_table("gadre-refinedweb")
    found["losses"] = folder / "losses.csv"
    with found["losses"].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(zip(*(table.cells[column] for column in table.columns), strict=True))
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_number_stands_whole_on_every_terminal(ask, files, name):
    case = CASES[name]
    answer = ask(case.line.format(**files))
    stands_whole(answer, case.promises(answer.document))


def former_table(top: list[dict[str, Any]]) -> Grid:
    """The ranking as it was drawn before: heads that are names of columns, and cells that rich cuts to find room."""
    degrees = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "micro_batch_size", "n_microbatches")
    present = [name for name in degrees if any(plan[name] != (0 if name == "zero_stage" else 1) for plan in top)]
    words = ("schedule", "recompute", "sequence_parallel")
    grid = Grid(title="Fastest plans", title_justify="left", box=None, pad_edge=False)
    for name in ("rank", *(word.replace("_", " ") for word in words), *present, "step", "MFU", "memory"):
        grid.add_column(name, justify="left" if name in words else "right", no_wrap=True, overflow="fold")
    for rank, plan in enumerate(top, 1):
        figures = (f"{plan['step_time_s']:.3g} s", f"{100 * plan['mfu']:.1f} %", f"{plan['memory_gb']:.1f} GB")
        grid.add_row(
            str(rank), *(str(plan[word]).lower() for word in words), *(f"{plan[name]:g}" for name in present), *figures
        )
    return grid


def test_the_former_table_fails():
    """Two pipelined plans with experts: 15 columns, of which the former table shows parts at 80 to 120 columns."""
    words = {"schedule": "interleaved", "recompute": "none", "sequence_parallel": True, "ep": 8, "zero_stage": 1}
    figures = {"step_time_s": 85.6, "mfu": 0.396, "memory_gb": 59.0, "cp": 1}
    degrees = (
        {"dp": 16, "tp": 4, "pp": 2, "vpp": 4, "micro_batch_size": 1, "n_microbatches": 128},
        {"dp": 8, "tp": 2, "pp": 4, "vpp": 2, "micro_batch_size": 2, "n_microbatches": 64},
    )
    top = [{**words, **figures, **one, "shard_group": one["dp"]} for one in degrees]
    from jaxscale.report.terminal_tables import plan_ranking

    ranking = plan_ranking({"top": top, "searched": 2, "exhaustive_optimum": True})
    rows = [plan_cells(plan) for plan in top]
    for width in WIDTHS:
        now = screen_of(lambda: console.print_result(ranking), width)
        assert not list(missing(rows, now)) and not headless(ranking, now)
    for width in (80, 100, 120):
        before = screen_of(lambda: console.console_on(sys.stdout).print(former_table(top)), width)
        assert list(missing(rows, before))


def test_the_check_of_numbers_can_fail():
    assert shows(seconds(85.62), tokens_of("step 85.6 s"))
    assert not shows(seconds(85.62), tokens_of("step 85  s"))
    assert not shows(seconds(85.62), tokens_of("step 85.6"))
    assert not shows(number(85.62), tokens_of("85.2"))
    assert shows(number(8.03e9), tokens_of("8.03e9")) and shows(number(1234567), tokens_of("1,234,567"))
    assert shows(power(3.02e26), tokens_of("10^26.48")) and not shows(number(26.48), tokens_of("10^26.48"))
    assert list(missing([[number(4), number(8)], [number(2), number(16)]], "4 8 16 2"))
    assert not list(missing([[number(4), number(8)], [number(2), number(8)]], "all: 8\n4\n2"))
    assert too_long("a" * 61, 60) and not too_long("a" * 60, 60)


@pytest.mark.parametrize(
    ("line", "promises", "width"),
    [("hardware", chips, 80), ("model mixtral-8x7b", model, 60), ("burst --network vgg16", burst, 100)],
)
def test_as_a_process_in_a_terminal(run, line, promises, width):
    screen = screen_of_process(line.split(), width, both=True)
    assert not too_long(screen, width)
    for promise in promises(run(*line.split(), "--json").json):
        assert not list(missing(promise.rows, screen, promise.is_ordered))


def test_paragraphs_wrap_at_words():
    text = "step on 1 h100-80gb: 6.91 ms (matmul 2.78, attention 0.25, memory_bound 1.99, launch_gaps 0.59)"
    for width in WIDTHS:
        screen = screen_of(lambda: console.print_result(text), width)
        assert not too_long(screen, width) and screen.split() == text.split()
        told = screen_of(lambda: console.say(text), width, "stderr")
        assert not too_long(told, width) and told.split() == text.split()


def test_work_that_takes_long_is_shown(monkeypatch):
    """A line with the stage after a while, taken back at the end; none in a pipe, none of a quiet command."""
    monkeypatch.setattr(console, "PATIENCE", 0.05)

    def work(is_quiet: bool, is_long: bool = True) -> None:
        with console.working(is_quiet):
            console.stage("searching the plans")
            time.sleep(0.6 if is_long else 0.0)
            console.say("found 3 plans")
            console.stage("counting", total=10)
            console.advance(5)
            time.sleep(0.6 if is_long else 0.0)

    shown = screen_of(lambda: work(False), 80, "stderr")
    assert all(words in shown for words in ("searching the plans", "found 3 plans", "counting", "50 %"))
    assert not too_long(shown.replace("\r", "\n"), 80)
    short = screen_of(lambda: work(False, is_long=False), 80, "stderr")
    assert "found 3 plans" in short and "searching" not in short
    assert not screen_of(lambda: work(True), 80, "stderr")


def test_in_a_pipe_nothing_turns(capsys, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 0.05)
    with console.working(False):
        console.stage("searching the plans")
        time.sleep(0.2)
        console.say("found 3 plans")
    assert capsys.readouterr().err == "found 3 plans\n"


PLUGIN = """
import os
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
os.write(2, b"I0000 00:00:1795914207.545748   19013 cudart_stub.cc:31] Could not find cuda drivers on your machine.\\n")
os.write(2, b"a word of the user's own\\n")


def initialize():
    raise RuntimeError("Unable to load CUDA. Is it installed?")
"""


def test_a_plugin_without_its_chip_is_silent(tmp_path):
    """A compiler of NVIDIA GPUs where no GPU is: JAX tells of it, the commands do not."""
    (tmp_path / "jax_cuda12_plugin").mkdir()
    (tmp_path / "jax_cuda12_plugin" / "__init__.py").write_text(PLUGIN)
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jax_plugins]\ncuda = jax_cuda12_plugin\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def spoken(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return plain_text(done.stderr)

    told = spoken("-c", "import jax; jax.devices()")
    assert "Traceback" in told and "absl" in told and "cudart_stub" in told
    assert spoken("-m", "jaxscale", "hardware", "a100-80gb") == "a word of the user's own\n"
