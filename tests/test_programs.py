"""Compiled programs in a folder: a later process neither traces nor compiles, and nothing else changes."""

import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base import jit as _programs
from jaxscale.base.jit import ProgramStore, array_jit, call_of, drop_folders, filter_jit

TRACED: list[str] = []
"""One entry for each time that the function below is traced."""


class Scaled(eqx.Module):
    """A number with a unit that is no number."""

    value: jax.Array
    unit: str = eqx.field(static=True)


@filter_jit
def scaled(number: Scaled, power: float, extra: object = None) -> tuple[Scaled, str]:
    """A number to a power, and what else was given."""
    TRACED.append(number.unit)
    return Scaled(number.value**power, number.unit + "^p"), type(extra).__name__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which programs are kept; JAX's own cache, which the other tests use, is off."""
    cache = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(_programs, "_STORES", [ProgramStore(tmp_path)])
    TRACED.clear()
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", cache)


def in_a_new_process(folder: Path) -> None:
    """Forget what this process has loaded."""
    _programs._STORES[:] = [ProgramStore(folder)]


def files(folder: Path) -> list[Path]:
    """Programs of a folder."""
    return sorted(folder.rglob("*.xla"))


def test_a_kept_program_answers_without_being_traced(folder):
    first = scaled(Scaled(jnp.asarray([2.0, 3.0]), "m"), 2.0)
    in_a_new_process(folder)
    second = scaled(Scaled(np.asarray([2.0, 3.0]), "m"), 2.0)
    assert TRACED == ["m"]
    assert len(files(folder)) == 1
    for answer, name in (first, second):
        assert (answer.value.tolist(), answer.unit, name) == ([4.0, 9.0], "m^p", "NoneType")


@pytest.mark.parametrize(
    ("number", "power"),
    [
        (Scaled(jnp.asarray([2.0]), "m"), 2.0),
        (Scaled(jnp.asarray([2.0, 3.0], jnp.float32), "m"), 2.0),
        (Scaled(jnp.asarray([2.0, 3.0]), "s"), 2.0),
        (Scaled(jnp.asarray([2.0, 3.0]), "m"), 3.0),
    ],
    ids=("shape", "precision", "static field", "static argument"),
)
def test_another_call_has_another_program(folder, number: Scaled, power: float):
    scaled(Scaled(jnp.asarray([2.0, 3.0]), "m"), 2.0)
    in_a_new_process(folder)
    answer, _ = scaled(number, power)
    assert len(TRACED) == len(files(folder)) == 2
    np.testing.assert_allclose(answer.value, number.value**power, rtol=1e-6)


def test_another_precision_of_the_settings_has_another_program(folder):
    number = Scaled(np.asarray([2.0, 3.0]), "m")
    assert scaled(number, 2.0)[0].value.dtype == jnp.float64
    in_a_new_process(folder)
    with jax.enable_x64(False):
        assert scaled(number, 2.0)[0].value.dtype == jnp.float32
    assert len(TRACED) == len(files(folder)) == 2


def test_a_damaged_file_is_written_again(folder):
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    (program,) = files(folder)
    program.write_bytes(b"nothing")
    in_a_new_process(folder)
    assert scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)[0].value.tolist() == [4.0]
    in_a_new_process(folder)
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    assert TRACED == ["m", "m"]


class Planted:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        """Function that `pickle` calls, and its arguments."""
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "has_checksum", "runs"),
    [
        (0o600, 0o700, True, True),
        (0o660, 0o700, True, False),
        (0o600, 0o777, True, False),
        (0o600, 0o700, False, False),
    ],
    ids=("the user's own", "file open to the group", "folder open to all", "no checksum"),
)
def test_a_file_that_somebody_else_may_have_written_is_not_run(folder, file_mode, folder_mode, has_checksum, runs):
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    (program,) = files(folder)
    assert not (program.stat().st_mode | program.parent.stat().st_mode) & 0o077
    content = zlib.compress(pickle.dumps(Planted(folder / "mark")))
    program.write_bytes((_programs.checksum(program, content) if has_checksum else b"") + content)
    program.chmod(file_mode)
    program.parent.chmod(folder_mode)
    in_a_new_process(folder)
    assert scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)[0].value.tolist() == [4.0]
    assert (folder / "mark").exists() == runs


def test_a_flipped_bit_is_noticed(folder):
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    (program,) = files(folder)
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)
    assert _programs.read_program(program) is None


def test_a_program_under_the_name_of_another_is_not_believed(folder):
    number = Scaled(jnp.asarray([2.0]), "m")
    scaled(number, 2.0)
    scaled(number, 3.0)
    one, other = files(folder)
    assert _programs.read_program(one) is not None  # control
    one.write_bytes(other.read_bytes())
    assert _programs.read_program(one) is None
    in_a_new_process(folder)
    assert [scaled(number, power)[0].value.tolist() for power in (2.0, 3.0)] == [[4.0], [8.0]]


def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSCALE_CACHE", str(tmp_path))
    assert _programs.cache_folder() is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert _programs.cache_folder() is None


def test_another_state_of_the_package_has_other_programs(folder, monkeypatch):
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    in_a_new_process(folder)
    monkeypatch.setattr(_programs, "state_of_package", lambda: "another")
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)
    assert TRACED == ["m", "m"]


def test_what_has_no_lasting_text_is_compiled_and_not_kept(folder):
    thing = object()
    assert scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0, thing)[1] == "object"
    scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0, thing)
    assert TRACED == ["m"]
    assert not files(folder)


def test_programs_from_the_cache_of_jax_are_not_kept(folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of_jax"))
    assert scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)[0].value.tolist() == [4.0]
    assert not files(folder)


def test_programs_are_kept_in_the_folder_of_the_user_unless_switched_off(folder, tmp_path_factory, monkeypatch):
    for name, kept in ((str(tmp_path_factory.mktemp("mine")), 1), ("off", 0)):
        monkeypatch.setattr(_programs, "_STORES", [])
        monkeypatch.setenv("JAXSCALE_CACHE", name)
        assert scaled(Scaled(jnp.asarray([2.0]), "m"), 2.0)[0].value.tolist() == [4.0]
        assert len(files(Path(name))) == kept


def test_a_call_inside_a_transformation_is_none_to_keep():
    assert call_of(scaled, (1.0,), {}) is not None
    jax.make_jaxpr(lambda x: [jnp.sin(x)] if call_of(scaled, (x,), {}) is None else 1 / 0)(1.0)


def test_old_states_are_dropped(tmp_path):
    for age in range(6):
        state = tmp_path / f"state-{age}"
        state.mkdir()
        (state / "program.xla").touch()
        os.utime(state, (1e9 - age, 1e9 - age))
    drop_folders(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state-0", "state-1", "state-2", "state-3"]


@array_jit
def doubled(number: jax.Array) -> jax.Array:
    """Twice a number."""
    TRACED.append("array")
    return 2.0 * number


def test_functions_of_arrays_alone_keep_programs_too(folder):
    doubled(jnp.asarray([1.0]))
    in_a_new_process(folder)
    assert doubled(jnp.asarray([3.0])).tolist() == [6.0]
    assert TRACED == ["array"]
