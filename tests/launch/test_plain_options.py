"""An option of which the table of a framework says that it sets a column is understood where it stands alone."""

import re
from pathlib import Path

import pytest

from jaxscale.launch.options import SETS, Option, option_table
from jaxscale.launch.readers.launch_rules import FAMILIES, option_tables, takes_word, understood_cells
from jaxscale.launch.readers.read_run import run_of
from jaxscale.runs.schema import BY_NAME

PLAIN = re.compile(r"(\w+) = ([\w-]+)$")
PROGRAMS = [(family, name) for family in FAMILIES for name in option_tables(family, ("tables",))]
PROGRAMS += [("deepspeed", name) for name in option_tables("deepspeed", ("further",)) if name != "axolotl"]
ELSEWHERE = {
    # A quantizer or a component names the class, and the keys of the class are read beside the name.
    *("converter(MXFP8Linear).fqns", "converter(NVFP4Linear).fqns", "converter(Float8Linear).recipe_name"),
    *("quantize.linear.mx.recipe_name", "activation_checkpoint.force_recompute_mm_shapes_by_fqns"),
    # A backend by name and a recipe by class compile or quantize without a word for either.
    *("torch_compile_backend", "fp4_recipe", "model.fp4_recipe"),
}


def value_of(option: Option):
    """Value that differs from the default."""
    if option.choices:
        return next((word for word in option.choices if word != str(option.default)), option.choices[0])
    if re.search("flag|bool", option.kind):
        return option.default is not True
    return "x" if "str" in option.kind or "word" in option.kind else 2


@pytest.mark.parametrize(("family", "name"), PROGRAMS)
def test_a_plain_option_is_understood(family: str, name: str):
    n_known = 0
    for key, option in option_table(name).options.items():
        told = PLAIN.match(option.column)
        sets_value = SETS.match(option.column)
        column = (told or sets_value or [None, None])[1]
        is_word = told is not None and told[2] not in ("value", "True") and column in BY_NAME
        if column not in BY_NAME or key in ELSEWHERE or is_word and told and not takes_word(column, told[2]):
            continue
        program = {"program": name} if name in option_tables("deepspeed", ("further",)) else {}
        _, unread = understood_cells({key.lower(): value_of(option), **program}, family, name == "megatron-lm")
        assert not unread, option
        n_known += 1
    assert n_known or name == "peft"


OPTIONS = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16"


@pytest.mark.parametrize(
    ("option", "column", "word"),
    [
        ("--recompute-activations", "activation_recompute", "selective"),
        ("--recompute-activations --recompute-granularity full", "activation_recompute", "full"),
        ("", "activation_recompute", "none"),
        ("--moe-layer-recompute", "recompute_modules", "moe"),
        ("--num-experts 8 --moe-enable-deepep", "moe_dispatcher", "deepep"),
        ("--optimizer-cpu-offload", "offload", "optimizer"),
    ],
)
def test_switches_of_megatron(tmp_path: Path, option: str, column: str, word: str):
    path = tmp_path / "a.sh"
    path.write_text(f"{OPTIONS} {option}")
    row = run_of(path)
    assert (row.cells.get(column), row.unread) == (word, ())
