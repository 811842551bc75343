"""Settings against the programs' own rules: what they accepted passes, what they refused is refused for its reason.

`accepted_settings.toml` and `refused_settings.csv` are settings that each program's own parser and checks were given on
CPU (Megatron-LM d98e8a64dd, Megatron-Bridge 067f987df, torchtitan b5bcd76c6, 0.3.0 and v0.2.2, MaxText e591f30cb,
DeepSpeed 0.19.8, nanotron 2411b022), collected on 28 November 2026: outcome, and the line that refuses.
"""

import csv
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jaxscale.base.errors import InputError
from jaxscale.launch.options import complaints, option_table, pattern_of, programs, stages_of

HERE = Path(__file__).parent
ACCEPTED: dict[str, Any] = tomllib.loads((HERE / "accepted_settings.toml").read_text(encoding="utf-8"))
with (HERE / "refused_settings.csv").open(encoding="utf-8", newline="") as file:
    CHANGES = [row for row in csv.DictReader(file) if not row["framework"].startswith("#")]


def plain(text: str) -> Any:
    """A value as a person writes it."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def added(framework: str, text: str) -> dict[str, Any]:
    """Settings of a change: options of a command line, or assignments."""
    if framework != "megatron-lm":
        return {part.split("=")[0]: plain(part.split("=", 1)[1]) for part in text.split()}
    found: dict[str, Any] = {}
    for word in text.split():
        if word.startswith("--"):
            found[word] = True
        else:
            last = list(found)[-1]
            found[last] = plain(word) if found[last] is True else f"{found[last]} {word}"
    return found


def changed(row: dict[str, str]) -> tuple[dict[str, Any], int]:
    """Settings of an accepted example with a change, and the chips of the run."""
    base = ACCEPTED[f"{row['framework']}/{row['base']}"]
    settings = {name: value for name, value in base["settings"].items() if name not in row["removed"].split()}
    settings |= added(row["framework"], row["added"])
    if row["max_connections"]:
        settings.pop("env.CUDA_DEVICE_MAX_CONNECTIONS")
    if row["max_connections"].isdigit():
        settings["env.CUDA_DEVICE_MAX_CONNECTIONS"] = int(row["max_connections"])
    return settings, int(row["n_chips"] or base["n_chips"])


@pytest.mark.parametrize("name", ACCEPTED)
def test_settings_that_a_program_took_pass(name: str):
    assert complaints(name.split("/")[0], ACCEPTED[name]["settings"], ACCEPTED[name]["n_chips"]) == ()


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: f"{row['framework']} {row['base']}: {row['change']}")
def test_changes_have_the_outcome_that_the_program_gave(row: dict[str, str]):
    settings, n_chips = changed(row)
    found = complaints(row["framework"], settings, n_chips)
    if row["outcome"] == "accepted":
        assert found == ()
    else:
        assert any(text.startswith(f"{row['option']}:") for text in found), found


def test_refusals_outnumber_what_is_taken():
    """Negative control: the list holds both outcomes."""
    outcomes = [row["outcome"] for row in CHANGES]
    assert (outcomes.count("refused"), outcomes.count("accepted")) == (85, 19)


@pytest.mark.parametrize("framework", programs())
def test_every_rule_of_a_table_can_be_read(framework: str):
    """A rule with a name that no option has would hold for ever."""
    table = option_table(framework)
    known = {*table.options, *table.derived, "n_chips", "env.CUDA_DEVICE_MAX_CONNECTIONS", "env.SLICES"}
    known |= {"model.n_heads", "model.n_kv_heads", "model.n_experts"}
    unlisted = set()
    for option in table.options.values():
        for rule in (*option.requires, *option.excludes):
            unlisted |= names_in(rule) - known
    for rule in table.derived.values():
        unlisted |= names_in(rule) - known
    # Options that are no decision about a run, and fields of newer releases, are named by rules alone.
    assert not unlisted - UNLISTED, sorted(unlisted - UNLISTED)
    assert all("jaxscale" not in option.column for option in table.options.values())
    assert table.columns()


UNLISTED = {
    "encoder_seq_length", "lr_decay_samples", "tensorboard_dir", "num_epochs", "scheduler.lr_warmup_fraction",
}  # fmt: skip


def names_in(rule: str) -> set[str]:
    """Names of a rule that are neither words of the language nor texts."""
    from jaxscale.launch import options as module

    functions = {"max", "min", "product", "layers", "stages", "segments", "stated"}
    found = {match[0] for match in module._NAME.finditer(rule) if not match[0].startswith("'")}
    return found - set(module._WORDS) - functions


def test_an_unknown_key_offers_what_is_near():
    (found,) = complaints("megatron-lm", {**ACCEPTED["megatron-lm/llama3_8b"]["settings"], "--num-layer": 1}, 64)
    assert re.match("num_layer: megatron-lm .* has no such option; did you mean num_layers", found)
    with pytest.raises(InputError, match="'pax' has no table of options"):
        complaints("pax", {}, 1)


def test_patterns_are_read_and_nothing_else_is_run():
    assert pattern_of("([0]*3+[1]*58)") == [0] * 3 + [1] * 58
    assert pattern_of("([1,0]*2)") == [1, 0, 1, 0]
    assert pattern_of("2") is None
    assert pattern_of("__import__('os')") is None
    assert stages_of("Et*3|(tt|)*29m|L") == 32
