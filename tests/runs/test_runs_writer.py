"""Tables are written whole or not at all, and come back as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_tables import GOOD, read

from jaxscale.base.errors import InputError
from jaxscale.runs import write_table

text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=12)


@given(notes=st.lists(text, min_size=1, max_size=5), layers=st.integers(1, 1000), time=st.floats(1e-6, 1e6))
def test_round_trip(tmp_path_factory, notes, layers, time):
    path = tmp_path_factory.mktemp("round") / "runs.csv"
    columns = (*GOOD, "notes", "extra")
    changed = {**GOOD, "n_layers": str(layers), "step_time_s": repr(time)}
    rows = [(*changed.values(), note, note) for note in notes]
    write_table(path, columns, rows)
    runs = read(path)
    assert runs.columns == columns
    assert [row.cells for row in runs] == rows
    assert runs.column("n_layers") == [layers] * len(notes)
    assert runs.column("step_time_s") == [time] * len(notes)
    assert runs.column("notes") == [note.strip() or None for note in notes]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "out.csv"
    write_table(path, ["a"], [["old"]])

    def broken():
        yield ["new"]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_table(path, ["a"], broken())
    assert path.read_text() == "a\nold\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "expected"), [("none/out.csv", "does not exist"), (".", "is a folder")])
def test_bad_place_is_one_line(tmp_path, name, expected):
    with pytest.raises(InputError, match=expected) as caught:
        write_table(tmp_path / name, ["a"], [])
    assert "\n" not in str(caught.value)


def test_none_is_an_empty_cell(tmp_path):
    write_table(tmp_path / "out.csv", ["a", "b"], [[None, 1.5]])
    assert (tmp_path / "out.csv").read_text() == "a,b\n,1.5\n"
