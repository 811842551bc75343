"""A kind of table is a schema: what the reader, the table and the writer do for any of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from jaxscale.base.documents import check_keys, number_of
from jaxscale.base.errors import InputError
from jaxscale.laws.loss_reader import losses_of, read_losses
from jaxscale.serving.serving_table import read_serving
from jaxscale.tables.cells import Column, Names, Parsed, parse_cells
from jaxscale.tables.reader import read
from jaxscale.tables.schema import AbstractSchema, CellProblems, Check, ColumnHeading, Header
from jaxscale.tables.table import AbstractTable, csv_text, write_table


@dataclass(frozen=True, repr=False)
class Kettles(AbstractTable):
    """Kettles and what they boil."""

    shown = ("name", "litres")


class KettleSchema(AbstractSchema[Kettles]):
    """A kind of table that the package lacks."""

    row = "kettle"

    columns = {
        column.name: column
        for column in (
            Column("name", "text", "name"),
            Column("litres", "number", "volume", "litre", maximum=100.0),
            Column("cups", "integer", "cups that it fills", "1"),
            Column("lid", "name", "kind of lid", words={"glass": "glass", "steel": "steel", "metal": "steel"}),
            Column("chip", "chip", "what controls it"),
        )
    }

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """Millilitres are litres by another name."""
        plain = super().headings(header)
        return [ColumnHeading("litres", 1e-3, "ml") if one.column.lower() == "ml" else one for one in plain]

    def lacks(self, header: Header) -> str:
        """Every kettle has a volume."""
        return "" if "litres" in header.columns else "missing column 'litres'"

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Volumes in litres."""
        column = self.columns[heading.column]
        parsed = parse_cells(replace(column, maximum=column.maximum / heading.factor), texts, self.names)
        if heading.factor == 1.0:
            return parsed
        return Parsed([None if one is None else float(one) * heading.factor for one in parsed.values], parsed.problems)

    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Kettles:
        """The cells as they are."""
        return Kettles.of(table)

    def checks(self, table: Kettles) -> list[Check]:
        """A cup holds a quarter of a litre."""
        litres, cups = table.numbers("litres"), table.numbers("cups")
        return [Check(cups * 0.25 > litres, lambda row: f"column 'cups' = '{cups[row]:g}': too many")]


SCHEMA = KettleSchema(Names({"mcu": "mcu-1"}))


@pytest.fixture
def written(tmp_path):
    """Writer of a table of kettles."""

    def write(*lines: str):
        path = tmp_path / "kettles.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_headings_words_and_names_are_resolved(written):
    table = read(written("Name,ML,lid,chip,colour", "one,500,Metal,MCU,red", "two,60,,,"), SCHEMA)
    assert table.column("litres") == [0.5, 0.06] and table.column("lid") == ["steel", None]
    assert table.column("chip") == ["mcu-1", None] and table.column("colour") == ["red", ""]
    assert repr(table).startswith("Kettles: 2 rows of 5 columns")


def test_bad_rows_are_told_or_dropped(written):
    path = written("name,litres,cups,lid", "one,1,4,glass", "two,1,9,", "three,x,1,wood", "four,1,1", "five,2,1,")
    with pytest.raises(InputError) as refusal:
        read(path, SCHEMA)
    assert str(refusal.value).splitlines() == [
        f"{path}: 3 of 5 rows are bad",
        f"{path}:3: column 'cups' = '9': too many",
        f"{path}:4: column 'litres' = 'x': not a number; expected a number > 0 (and 1 more in this row)",
        f"{path}:5: 3 cells; expected 4, as in the header",
    ]
    kept = read(path, SCHEMA, skip_bad=True)
    assert kept.column("name") == ["one", "five"] and kept.lines.tolist() == [2, 6] and kept.n_skipped == 3


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("litres;cups", "1;2"), ":1: the header is separated by semicolons; expected commas"),
        (("name,cups", "one,2"), ":1: missing column 'litres'"),
        (("litres,ml", "1,2"), ":1: 'litres' and 'ml' both mean 'litres'; expected one of them, or 'litres' beside"),
        (("litres,Litres", "1,2"), ":1: column 'litres' appears twice; expected each column once"),
        (("litres",), ": no data rows; expected one row per kettle below the header"),
        (("ml,lid", "-5,"), ":2: column 'litres' (ml) = '-5': negative; expected a number > 0"),
    ],
)
def test_a_table_is_refused_in_one_line(written, lines, told):
    path = written(*lines)
    with pytest.raises(InputError) as refusal:
        read(path, SCHEMA)
    assert str(refusal.value).startswith(f"{path}{told}") and "\n" not in str(refusal.value)


def test_rows_that_are_not_asked_for_are_not_looked_at(written):
    path = written("name,litres", "one,1", "two,x")
    assert read(path, SCHEMA, where={"name": "one"}).lines.tolist() == [2]
    for where, told in (
        ({"name": "two"}, "'x': not a number"),
        ({"nam": "one"}, "is not there; expected one like name"),
    ):
        with pytest.raises(InputError, match=told):
            read(path, SCHEMA, where=where)


def test_tables_in_memory_are_read_as_files_are(tmp_path):
    losses = {"Params (M)": [100, 200], "D": [1e9, 2e9], "ppl": [20.0, 15.0]}
    write_table(tmp_path / "losses.csv", tuple(losses), zip(*losses.values(), strict=True))
    for name in ("n_params", "tokens", "loss"):
        assert read_losses(losses).column(name) == read_losses(tmp_path / "losses.csv").column(name)
    row = {"model": "llama3-8b", "gpu": "H100 SXM", "input_len": 1024, "output_len": 128, "precision": "W4A16"}
    served = read_serving([row, {**row, "gpu": "h200"}])
    assert served.column("gpu") == ["h100-80gb", "h200-141gb"] and served.column("precision") == ["int4", "int4"]
    with pytest.raises(InputError, match="table:2: column 'gpu' = 'h2000': not in the hardware catalogue"):
        read_serving([row, {**row, "gpu": "h2000"}])


def test_what_is_written_is_read(tmp_path):
    columns, rows = ("name", "litres", "lid"), [("a, b", 1.5, None), ('"c"', 0.1, "glass")]
    write_table(tmp_path / "out.csv", columns, rows)
    assert csv_text(columns, rows) == (tmp_path / "out.csv").read_text()
    table = read(tmp_path / "out.csv", SCHEMA)
    assert [tuple(row[name] for name in columns) for row in table] == rows


def test_losses_are_a_table_like_any_other():
    table = losses_of(
        {"n_params": [1e8, 2e8, 4e8], "tokens": [1e9, 2e9, 4e9], "loss": [3.0, 2.5, 2.0]}, run=["a", "a", "b"]
    )
    assert len(table + table.take(np.asarray([0]))) == 4
    assert table.where(run="a", loss=lambda loss: loss < 3.0).column("n_params") == [2e8]
    with pytest.raises(InputError, match="'los' is no column of table; expected one like loss"):
        table.where(los=2.0)


def test_keys_and_numbers_of_files():
    check_keys("f.toml", {"rate": 1}, ("rate", "size"))
    assert number_of("f.toml: rate", {"value": 2, "source": "here"}, "a number above 0", is_above=True) == 2.0
    assert number_of("f.toml: rate", 0, "a number of at least 0") == 0.0
    for value, told in ((0, "= 0 is out of range"), (True, "= True is not a number"), ("2", "= '2' is not a number")):
        with pytest.raises(InputError, match=f"{told}; expected a number above 0"):
            number_of("f.toml: rate", value, "a number above 0", is_above=True)
    with pytest.raises(InputError, match="'rat' is not a known key; did you mean rate"):
        check_keys("f.toml", {"rat": 1}, ("rate", "size"))
    with pytest.raises(InputError, match="= 3 is no table; expected one with rate, size"):
        check_keys("f.toml: a", 3, ("rate", "size"))
