"""Documents beyond the bounds of readers: one line each, in a moment."""

import json
import time
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.base.documents import DEEPEST, parsed_json, parsed_toml, parsed_yaml, read_toml
from jaxscale.base.errors import InputError
from jaxscale.launch.readers.settings_text import settings_of

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
BEYOND = {
    "deep.toml": ("x = " + 50_000 * "[" + 50_000 * "]", "deeper than 100"),
    "deep.json": (300_000 * "[" + 300_000 * "]", "deeper than 100"),
    "deep.yaml": ("x: " + 1_500 * "[" + 1_500 * "]", "deeper than 100"),
    "bomb.yaml": (BOMB, "more than 100000 values"),
    "dotted.toml": (".".join(20_000 * "a") + " = 1", "a key of more than 100 tables"),
    "spaced.toml": (" . ".join(20_000 * "a") + " = 1", "a key of more than 100 tables"),
    "whole.toml": ("n_layers = 1" + 4000 * "0", "a number beyond 1e"),
}
PARSERS = {".toml": parsed_toml, ".json": parsed_json, ".yaml": parsed_yaml}


@pytest.mark.parametrize("name", BEYOND)
def test_documents_beyond_the_bounds_are_one_line(name: str, tmp_path: Path):
    text, expected = BEYOND[name]
    (tmp_path / name).write_text(text)
    started = time.perf_counter()
    with pytest.raises(ValueError, match=expected):
        PARSERS[Path(name).suffix](text)
    readers = {".toml": (read_toml, js.model, settings_of), ".json": (js.model, settings_of)}
    for read in readers.get(Path(name).suffix, (settings_of,)):
        with pytest.raises(InputError) as error:
            read(tmp_path / name)
        assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)
        assert expected in str(error.value)
    assert time.perf_counter() - started < 20.0


def test_documents_within_the_bounds_are_read():
    """Negative control: as deep as may be, and aliases that repeat a little."""
    depth = DEEPEST - 1
    assert parsed_json(depth * "[" + "1" + depth * "]") and parsed_toml("x = " + depth * "[" + depth * "]")
    assert parsed_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert parsed_toml("a.b.c = 1.5") == {"a": {"b": {"c": 1.5}}}


def test_a_number_of_a_config_that_is_no_number_is_one_line(tmp_path: Path, llama_config: dict):
    text = json.dumps(llama_config | {"block_configs": [{"ffn": {"ffn_mult": 7.5}}]})
    (tmp_path / "config.json").write_text(text.replace("7.5", "1e400"))
    with pytest.raises(InputError, match=r"config.json: not valid JSON: a number beyond 1e\+300"):
        js.model(tmp_path / "config.json")


def test_a_toml_without_heads_is_one_line(tmp_path: Path):
    (tmp_path / "model.toml").write_text("n_layers = 2\nd_model = 64\nn_heads = 0\n")
    with pytest.raises(InputError, match="model.toml: Transformer.n_heads = 0 is out of range; expected"):
        js.model(tmp_path / "model.toml")
