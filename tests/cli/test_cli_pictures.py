"""`--plot` and `--report` of every command that draws. What the pictures show is looked at by `figures_watched`."""

from typing import get_args, get_type_hints

import pytest

from jaxscale.base.lazy import loaded
from jaxscale.cli.registry import COMMANDS as HOMES

TINY = "n_layers=2 d_model=64 n_heads=4 n_kv_heads=4 d_ff=256 vocab_size=512"
STEP = ("jaxscale.examples:decoder", "--set", *TINY.split())
SWEEP = """
chunk = 64
[axes.network_latency]
values = [1e-6, 4e-6, 1e-5]
[axes.dp]
from = 16
to = 1024
n = 4
[axes.training_flop]
from = 1e25
to = 1e29
n = 5
[plan]
tp_ff = 64
pp = 8
"""

DRAWN = {
    "plan": (("plan", "--model", "gpt2", "--gpu", "h100-80gb", "--n-gpus", 8, "--global-batch", 16), "plans"),
    "predict": (("predict", "--model", "gpt2", "--gpu", "h100-80gb", "--n-gpus", 8, "--global-batch", 16), "terms"),
    "burst": (("burst", "--n-gpus", 4), "ranking"),
    "limits": (("limits", "--from", 1e26, "--to", 1e29), "utilisation"),
    "trends": (("trends", "--from", 64, "--to", 512), "trends"),
    "trace": (("trace", *STEP), "work"),
    "trace on chips": (("trace", *STEP, "--gpu", "h100-80gb"), "step"),
}
"""Command lines, and a figure of the report of each."""

COMMANDS = {
    *("demo", "fit", "predict", "explain", "plan", "shape", "burst", "islands", "limits", "sweep", "trends", "trace"),
    *("measure", "rollout"),
}
"""Commands that draw; those of `law` and `serving` beside them."""


def options(command: type) -> set[str]:
    """Options of a command."""
    return set(get_type_hints(command))


def test_every_command_that_draws_has_both_options():
    found = {name: options(loaded(home)) for name, home in HOMES.items()}
    assert all({"plot", "report"} <= found[name] for name in COMMANDS)
    assert {name for name, names in found.items() if names & {"plot", "report"}} == COMMANDS
    for group in ("law", "serving"):
        actions = get_args(get_type_hints(loaded(HOMES[group]))["action"])
        assert all(("plot" in options(one)) == ("report" in options(one)) for one in actions)
        assert any("plot" in options(one) for one in actions)


@pytest.mark.parametrize("name", DRAWN)
def test_figure_and_report_are_written_and_the_answer_stays_the_same(run, tmp_path, name):
    words, figure = DRAWN[name]
    plain = run(*words, "--json")
    plot, report = tmp_path / "figure.svg", tmp_path / "report"
    drawn = run(*words, "--json", "--plot", plot, "--report", report)
    assert drawn.code == plain.code == 0, drawn.err
    assert drawn.json == plain.json
    assert "<svg" in plot.read_text() and "wrote" in drawn.err
    assert (report / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{figure}.png" in (report / "report.md").read_text() and (report / "report.html").is_file()


def test_a_table_is_drawn_against_its_measurements(run, table, tmp_path):
    path = table(*({"step_time_s": str(2.0 * length / 1024), "seq_len": str(length)} for length in (1024, 2048, 4096)))
    done = run("predict", path, "--plot", tmp_path / "figure.pdf", "--report", tmp_path / "report")
    assert done.code == 0, done.err
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert {"predicted_against_measured.png", "terms.png"} <= {one.name for one in (tmp_path / "report").iterdir()}


def test_a_sweep_is_a_map_of_its_two_longest_axes(run, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(SWEEP)
    words = (
        "sweep",
        spec,
        "--out",
        tmp_path / "points",
        "--plot",
        tmp_path / "map.svg",
        "--report",
        tmp_path / "report",
    )
    assert run(*words).code == 0
    text = (tmp_path / "map.svg").read_text()
    assert "training compute [flop]" in text and "network latency 4e-06 s" in text, "the third axis is named"
    refused = run(*words, "--coordinator", "localhost:1", "--n-processes", 2)
    assert refused.code == 2 and "need all regions" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plot", "figure.jpg"), "expected .png, .svg, .pdf"),
        (("--plot", "figure"), "no suffix is no format"),
        (("--plot", "missing/figure.png"), "does not exist"),
        (("--report", "occupied"), "is a file"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(run, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "occupied").write_text("a file")
    for command, _ in DRAWN.values():
        refused = run(*command, *words)
        assert refused.code == 2 and said in refused.err and refused.err.count("\n") == 1
        assert not refused.out


def test_a_figure_does_not_overwrite_what_is_read(run, table):
    path = table({}, name="runs.png")
    assert "would be overwritten" in run("predict", path, "--plot", path).err


@pytest.mark.parametrize("command", [("demo",), ("islands", "fleet.toml", "--model", "llama2-7b", "--global-batch", 8)])
def test_the_earlier_name_of_the_report_is_refused_with_the_new_one(run, command):
    refused = run(*command, "--out", "folder")
    assert refused.code == 2 and "--out is unknown; did you mean --report?" in refused.err
