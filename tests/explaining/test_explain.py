"""Differences between measured and predicted steps are found where they were planted."""

import functools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from made_traces import made_steps, write_jax, write_kineto, write_nsight

import jaxscale as js
from jaxscale.cli.main import main
from jaxscale.explaining.explain_report import explanation_figure, parts_table
from jaxscale.explaining.explanation import PartGap, _cause, _ranked
from jaxscale.explaining.predicted_parts import NAMES, PredictedParts, kernel_term_table, predicted_parts
from jaxscale.report.style import seconds
from jaxscale.runs.measured import describe_runs

DENSE = {
    "model": "llama3-8b",
    "framework": "megatron-lm",
    "gpu": "h100-80gb",
    "n_gpus": 64,
    "tp": 2,
    "pp": 1,
    "micro_batch_size": 1,
    "global_batch_size_seqs": 128,
    "seq_len": 8192,
    "activation_recompute": "none",
}
PIPELINED = DENSE | {"pp": 4, "model": "llama3-70b", "n_gpus": 256, "tp": 4}
MIXTURE = DENSE | {"model": "mixtral-8x7b", "n_gpus": 128, "ep": 8, "tp": 1, "seq_len": 4096}


class Planted(NamedTuple):
    """A slowdown: of a run, of which part, times by which exposed time and hidden time are multiplied."""

    run: dict
    part: str
    factor: float = 1.0
    overlap_off: bool = False
    seconds: float = 0.0
    skew: float = 0.0
    at_once: bool = False
    format: str = "kineto"


SLOWDOWNS = {
    "slow matmuls": Planted(DENSE, "matmul", 1.6),
    "slow matmuls of a mixture": Planted(MIXTURE, "matmul", 1.7, format="nsight"),
    "attention not fused": Planted(DENSE, "attention", 2.5, format="jax"),
    "norms not fused": Planted(DENSE, "memory_bound", 2.2, format="nsight"),
    "norms not fused, in JAX": Planted(PIPELINED, "memory_bound", 2.2, format="jax"),
    "optimizer not fused": Planted(DENSE, "optimizer", 5.0),
    "tensor parallelism without overlap": Planted(DENSE, "tensor_parallel", overlap_off=True),
    "gradients without overlap": Planted(DENSE, "data_parallel", overlap_off=True, factor=1.5),
    "slow network": Planted(DENSE, "data_parallel", 4.0, format="nsight"),
    "bubble": Planted(PIPELINED, "pipeline", 2.5, format="jax"),
    "host gaps": Planted(DENSE, "host", seconds=0.5, format="nsight"),
    "data loader": Planted(PIPELINED, "host", seconds=2.0, at_once=True),
    "skew of experts": Planted(MIXTURE, "expert_parallel", seconds=0.6, skew=0.8),
}
ENDINGS = {"kineto": "trace.json.gz", "jax": "vm.trace.json.gz", "nsight": "trace.sqlite"}


@functools.cache
def parts_of_run(cells: tuple[tuple[str, Any], ...]) -> PredictedParts:
    """Predicted parts of a run."""
    runs = js.read_runs(dict(cells))
    return predicted_parts(js.predict(runs), describe_runs(runs), js.load_fit("default"))


def planted_trace(planted: Planted, folder: Path, seed: int) -> Path:
    """Trace of a step in which each part is off by some percent, and the planted one by more."""
    predicted, random = parts_of_run(tuple(planted.run.items())), np.random.default_rng(seed)
    scattered = predicted.middle * random.uniform(0.95, 1.05, len(NAMES))
    exposed = dict(zip(NAMES, scattered.tolist(), strict=True))
    hidden = dict(zip(NAMES, predicted.hidden.tolist(), strict=True))
    if planted.overlap_off:
        exposed[planted.part] += hidden.pop(planted.part)
    exposed[planted.part] = exposed[planted.part] * planted.factor + planted.seconds
    kernels, edges = made_steps(exposed, hidden, seed, planted.skew, planted.at_once)
    path = folder / ENDINGS[planted.format]
    if planted.format == "kineto":
        return write_kineto(path, kernels, edges, planted.run["tp"])
    return {"jax": write_jax, "nsight": write_nsight}[planted.format](path, kernels, edges)


@pytest.fixture(scope="module")
def explanations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, js.Explanation]:
    """Explanation of each planted slowdown."""
    found = {}
    for seed, (name, planted) in enumerate(SLOWDOWNS.items()):
        path = planted_trace(planted, tmp_path_factory.mktemp("trace"), seed)
        found[name] = js.explain(planted.run, [path])
    return found


@pytest.mark.slow
def test_planted_slowdowns_are_named_first(explanations: dict[str, js.Explanation]):
    named = {name: found.causes[0].part for name, found in explanations.items()}
    missed = {name: part for name, part in named.items() if part != SLOWDOWNS[name].part}
    assert len(SLOWDOWNS) >= 12
    assert len(missed) <= 1, missed


@pytest.mark.slow
def test_no_other_part_is_blamed(explanations: dict[str, js.Explanation]):
    """Collectives are told apart by their groups, or by their streams where a trace tells no groups."""
    outside = {name: {p.name for p in found.parts if p.verdict != "within"} for name, found in explanations.items()}
    assert not {name: parts for name, parts in outside.items() if parts - {SLOWDOWNS[name].part}}


@pytest.mark.slow
def test_parts_add_up_to_the_step(explanations: dict[str, js.Explanation]):
    for found in explanations.values():
        assert sum(part.measured for part in found.parts) == pytest.approx(found.measured, rel=1e-9)
        assert sum(part.predicted for part in found.parts) == pytest.approx(found.predicted, rel=1e-5)
        assert all(part.lo <= part.predicted <= part.hi for part in found.parts)


@pytest.mark.parametrize("run", [DENSE, DENSE | {"seq_len": 512, "global_batch_size_seqs": 32}])
def test_no_part_alone_moves_a_step_beyond_its_interval(run: dict[str, Any]):
    runs = js.read_runs(run)
    found = js.predict(runs)
    step = found.step_time
    narrow = replace(found, lo=0.98 * step, hi=1.02 * step)
    parts = predicted_parts(narrow, describe_runs(runs), js.load_fit("default"))
    # The largest part alone is less certain than the step.
    assert (parts.hi - parts.middle).max() == pytest.approx(0.02 * step[0], rel=1e-5)
    assert (parts.middle - parts.lo).max() == pytest.approx(0.02 * step[0], rel=1e-5)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> js.Explanation:
    """Explanation of a trace of a step as predicted."""
    return js.explain(DENSE, [planted_trace(Planted(DENSE, "matmul"), tmp_path_factory.mktemp("trace"), 3)])


def test_bars_of_the_figure_are_the_times_of_the_parts(untouched: js.Explanation):
    """Measured and predicted in a row of their part, hidden time from the end of what is measured."""
    slow = replace(untouched.parts[0], measured=2.0 * untouched.parts[0].hi)
    found = replace(untouched, parts=(slow, *untouched.parts[1:]))
    (axes,) = explanation_figure(found).axes
    shown = [text.get_text().replace(" ", "_") for text in axes.get_yticklabels()]
    parts = [part for part in found.parts if part.name in shown]
    assert [part.name for part in parts] == shown and "matmul" in shown
    bars = {group.get_label(): list(group) for group in axes.containers if group.get_label() != "90 % interval"}
    unit = bars["predicted"][0].get_width() / parts[0].predicted
    begins = {"predicted": lambda part: 0.0, "measured": lambda part: 0.0}
    begins["measured, hidden beside compute"] = lambda part: part.measured
    assert bars.keys() == begins.keys()
    for label, group in bars.items():
        name = "hidden" if "hidden" in label else label
        lengths = [getattr(part, name) for part in parts]
        assert [bar.get_width() / unit for bar in group] == pytest.approx(lengths)
        assert [bar.get_x() / unit for bar in group] == pytest.approx([begins[label](part) for part in parts])
        # Each on its side of the row, and none over another.
        rows = [bar.get_y() + 0.5 * bar.get_height() for bar in group]
        assert rows == pytest.approx(np.arange(len(parts)) + (0.2 if label == "predicted" else -0.2))
    (interval,) = (group for group in axes.containers if group.get_label() == "90 % interval")
    ends = np.asarray(interval[2][0].get_segments())[:, :, 0] / unit
    assert ends == pytest.approx(np.asarray([(part.lo, part.hi) for part in parts]))
    assert [text.get_text() for text in axes.texts] == ["above"]
    assert max(axes.get_xlim()) >= unit * max(part.hi for part in parts)


def test_a_trace_as_predicted_has_no_part_outside(untouched: js.Explanation):
    """Control: without anything planted, nothing is found."""
    found = untouched
    assert {part.verdict for part in found.parts} == {"within"}
    assert found.measured == pytest.approx(found.predicted, rel=0.05)
    # Parts without a time may end at zero; matmuls never do.
    assert all(0.0 <= part.lo <= part.predicted <= part.hi for part in found.parts)
    matmul = next(part for part in found.parts if part.name == "matmul")
    assert matmul.lo > 0.5 * matmul.predicted


def test_a_notebook_shows_every_part_with_its_interval(untouched: js.Explanation):
    shown = untouched._repr_html_()
    heads, *rows = [re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", shown)]
    assert {len(row) for row in (heads, *rows)} == {5}
    ends = [(f"{seconds(part.lo)} to {seconds(part.hi)}", part.verdict) for part in untouched.parts]
    middle = [(part.name, seconds(part.measured), seconds(part.predicted)) for part in untouched.parts]
    assert [tuple(row) for row in rows] == [first + last for first, last in zip(middle, ends, strict=True)]


LOG = Path(__file__).parents[1] / "launch" / "files" / "torchtitan.log"
RUN = "model,framework,gpu,n_gpus,tp,pp,micro_batch_size,global_batch_size_seqs,seq_len,step_time_s\n"


def test_a_log_alone_names_what_could_account_for_it():
    """The measured step of a run that recomputes everything, whose row does not say so."""
    measured = float(js.predict(DENSE | {"activation_recompute": "full"}).step_time[0])
    silent = {name: cell for name, cell in DENSE.items() if name != "activation_recompute"}
    found = js.explain(silent | {"step_time_s": measured})
    assert not found.is_traced and found.measured == pytest.approx(measured)
    (best, *_) = found.facts
    assert (best.column, best.word) == ("activation_recompute", "full")
    assert best.step_time == pytest.approx(measured, rel=1e-4)
    # Control: what is stated is not guessed again.
    stated = js.explain(DENSE | {"step_time_s": measured})
    assert "activation_recompute" not in {fact.column for fact in stated.facts}


def test_parts_that_could_account_for_a_total_are_those_with_room():
    found = js.explain(DENSE | {"step_time_s": 2.15})
    difference = found.measured - found.predicted
    could = {part.name for part in found.parts if part.lo <= part.predicted + difference <= part.hi}
    assert could and {cause.part for cause in found.causes} == could
    far = js.explain(DENSE | {"step_time_s": 20.0})
    assert not far.causes


def gap(name: str, measured: float, predicted: float) -> PartGap:
    """Part with an interval of a tenth to either side."""
    lo, hi = 0.9 * predicted, 1.1 * predicted
    return PartGap(name, measured, (measured, measured), 0.0, predicted, lo, hi, 0.0)


def test_what_deviates_most_on_the_side_of_the_step_comes_first():
    """A long part as predicted is no cause; a part that is too short is one of a step that is too short."""
    times = {"matmul": (10.0, 9.9), "attention": (2.0, 1.0), "memory_bound": (3.0, 2.5), "optimizer": (0.1, 0.7)}
    gaps = [gap(name, *both) for name, both in times.items()]
    assert [part.name for part in _ranked(gaps, 0.9)] == ["attention", "memory_bound", "optimizer"]
    assert [part.name for part in _ranked(gaps, -0.9)] == ["optimizer", "attention", "memory_bound"]
    # Where every part lies within, the one that moves the step most.
    within = [gap("matmul", 10.5, 10.0), gap("attention", 20.1, 20.0)]
    assert [_ranked(within, side)[0].name for side in (0.6, -0.6)] == ["matmul", "attention"]
    terms = kernel_term_table()["terms"]
    for part in gaps:
        cause, (measured, predicted) = _cause(part, 0.0, ()), times[part.name]
        assert cause.excess == pytest.approx(measured - predicted)
        assert cause.usually == terms[part.name]["above" if measured > predicted else "below"]


def test_the_command_answers_in_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, trace = tmp_path / "run.csv", planted_trace(SLOWDOWNS["norms not fused"], tmp_path, 1)
    run.write_text(RUN + "llama3-8b,megatron-lm,h100-80gb,64,2,1,1,128,8192,2.2\n")
    words = ["explain", str(run), "--trace", str(trace), "--report", str(tmp_path / "report"), "--quiet"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "1. memory bound" in shown and "To settle it: state fused_norm" in shown
    assert (tmp_path / "report" / "parts.png").stat().st_size > 10_000
    assert main([*words[:4], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["causes"][0]["part"] == "memory_bound"
    assert sum(part["measured_s"] for part in document["parts"]) == pytest.approx(document["measured_s"])
    found = js.explain(run, [trace])
    assert max(map(len, parts_table(found).text(80).splitlines())) <= 80
    assert all(part.name.replace("_", " ") in parts_table(found).text(80) for part in found.parts if part.measured)


def test_a_log_with_its_launch_file_and_a_chip():
    found = js.explain(LOG, configs=[LOG.with_name("titan.toml")], stated={"gpu": "h100-80gb"})
    assert found.measured > 0.0 and found.lo < found.predicted < found.hi


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (DENSE, "nothing|no step is measured"),
        ({**DENSE, "n_gpus": None, "step_time_s": 2.0}, "no prediction"),
        ([DENSE, DENSE], "2 runs; expected one"),
    ],
)
def test_refusals(run, says: str):
    with pytest.raises(js.InputError, match=says):
        js.explain(run)


def test_a_slow_rank_of_two_is_told(tmp_path: Path):
    fast = planted_trace(Planted(DENSE, "matmul"), tmp_path, 1)
    (tmp_path / "slow").mkdir()
    slow = planted_trace(Planted(DENSE, "matmul", 1.3), tmp_path / "slow", 1)
    remarks = " ".join(js.explain(DENSE, [fast, slow]).remarks)
    assert f"ranks are unequal: {slow}" in remarks
    assert "unequal" not in " ".join(js.explain(DENSE, [fast, fast]).remarks)


ALONE = """
import sys
import jaxscale as js
js.predict({"model": "llama3-8b", "gpu": "h100-80gb", "n_gpus": 8, "seq_len": 8192})
js.best_plan("llama3-8b", "h100-80gb", 64, n_chips=8)
print([name for name in sys.modules if name.startswith("jaxscale.explaining.")])
"""


def test_predict_and_plan_do_without():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
