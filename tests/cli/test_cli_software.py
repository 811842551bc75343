"""Software by `--set`: one reader for all commands, and what has no effect is refused."""

import pytest

FLEET = '[islands.only]\ngpu = "h100-80gb"\nn_gpus = 8\n'
COMMANDS = {
    "plan": ("plan", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 8, "--global-batch", 64),
    "limits": ("limits", "--model", "transformer", "--gpu", "h100-80gb", "--from", 1e24, "--to", 1e25),
    "trends": ("trends", "--from", 64, "--to", 128),
    "rollout": (
        *("rollout", "--model", "llama3.2-1b", "--gpu", "h100-80gb", "--n-gpus", 8),
        *("--prompts", 16, "--input-len", 64, "--output-len", 64),
    ),
    "islands": ("islands", "fleet.toml", "--model", "llama3-8b", "--global-batch", 64),
}


@pytest.fixture
def ask(run, tmp_path):
    """Runs a command of `COMMANDS` with more options."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET, encoding="utf-8")
    return lambda name, *more: run(*(fleet if part == "fleet.toml" else part for part in COMMANDS[name]), *more)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "options, said",
    [
        (("--set", "no_column=1"), "no_column: no such column"),
        (("--set", "tp"), "is no assignment; expected NAME=VALUE"),
        (("--set", "tp="), "is no assignment; expected NAME=VALUE"),
        (("--set", "=2"), "is no assignment; expected NAME=VALUE"),
        (("--set", "n_layers=4"), "--set n_layers says nothing of plan or software here"),
        (("--set", "step_time_s=4"), "--set step_time_s says nothing of plan or software here"),
        (("--set", "gpu=b200"), "--set gpu"),
        (("--set", "fused_norm=no", "--set", "fused_norm=yes"), "fused_norm=no; expected one of them"),
        (("--framework", "nemo", "--set", "framework=maxtext"), "beside --set framework=maxtext"),
        (("--framework", "nothing"), "--framework = 'nothing' is unknown"),
        (("--precision", "fp3"), "fp3"),
    ],
)
def test_what_has_no_effect_is_one_line(ask, name, options, said):
    outcome = ask(name, *options)
    assert outcome.code == 2 and said in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1 and not outcome.out


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("trends", ("--set", "tp=2"), "expected --tp"),
        ("trends", ("--set", "vpp=2"), "--set vpp says nothing"),
        ("limits", ("--model", "blocks", "--set", "fused_norm=no"), "takes no software; expected --model transformer"),
        ("limits", ("--set", "dp=2"), "--set dp says nothing"),
    ],
)
def test_choices_that_a_command_does_not_have_are_one_line(ask, name, options, said):
    outcome = ask(name, *options)
    assert outcome.code == 2 and said in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_state_of_the_optimizer_moves_memory_in_trends(ask):
    narrow, usual = (ask("trends", *more, "--json").json for more in (("--set", "optimizer_bytes=2"), ()))
    spared = [wide - lean for wide, lean in zip(usual["memory_bytes"], narrow["memory_bytes"], strict=True)]
    # Llama 2 7B, fully sharded: what a weight keeps less, over the chips.
    assert spared[0] == pytest.approx(2.0 * spared[1], rel=1e-6) and spared[0] > 6.7e9 * 4 / 64
    # With ZeRO-1 weights and gradients, at least 2 byte each, are whole on every chip.
    whole = ask("trends", "--set", "zero_stage=1", "--json").json["memory_bytes"][0]
    assert whole - usual["memory_bytes"][0] > 6.7e9 * 3


def test_a_degree_that_no_plan_of_an_island_has_is_the_reason(ask):
    outcome = ask("islands", "--set", "tp=3")
    assert outcome.code == 2 and "n_heads = 32" in outcome.err and "tp = 3" in outcome.err


@pytest.mark.parametrize("name", ["limits", "trends", "islands"])
def test_columns_of_mixtures_are_told_to_say_nothing_of_a_dense_model(ask, name):
    outcome = ask(name, "--set", "moe_dispatcher=deepep", "--json")
    assert outcome.code == 0 and "moe_dispatcher has no effect: no experts" in outcome.err
