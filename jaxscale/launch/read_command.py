"""Command `jaxscale read`: runs table from training logs and launch files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxscale.base.errors import InputError
from jaxscale.cli.arguments import Json, Quiet, Texts, option, pairs
from jaxscale.cli.console import answer, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxscale.base.table import Table
    from jaxscale.launch.readers.read_run import RunRow


@dataclass(frozen=True)
class ReadCommand:
    """Make a runs table of training logs, with the settings of their launch files, or of launch files alone.

    Logs of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, MaxText, nanotron, DeepSpeed, transformers, axolotl,
    AutoModel, MLPerf and others; launch files in TOML, YAML, JSON or as a command line. The step time is the median of
    the steps after warm-up, without slow ones. Cells that the files leave open are listed.
    """

    logs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], option(metavar="LOG", help="logs or launch files, a row each")
    ]
    config: Annotated[
        tyro.conf.UseAppendAction[tuple[Path, ...]], option(metavar="FILE", help="launch file of the logs")
    ] = ()
    set: Annotated[
        Texts,
        option(metavar="COLUMN=VALUE", help="a cell of every row, as gpu=h100-80gb"),
    ] = ()
    column: Annotated[
        Texts,
        option(metavar="COLUMN=NAME", help="column of a history in CSV, as step_time_s=perf/step"),
    ] = ()
    out: Annotated[Path | None, option(metavar="RUNS.csv", help="table to write")] = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Read the files, write the table, and print the rows and the cells left open.

        Raises:
            InputError: an unreadable file, a file of no known program, or an output path that cannot be written.
        """
        from jaxscale.base.files import check_writable
        from jaxscale.launch.readers.read_run import table_columns
        from jaxscale.tables.table import write_table

        if not self.logs:
            raise InputError("no file; expected at least one log or launch file")
        if self.out is not None:
            # A table written over a log would destroy the input.
            for read in (*self.logs, *self.config):
                check_writable(self.out, read)
        stated, columns = pairs("--set", self.set), pairs("--column", self.column)
        rows = [self._row(path, stated, columns) for path in self.logs]
        for path, row in zip(self.logs, rows, strict=True):
            if row.left_open:
                say(f"{path}: left open: {', '.join(row.left_open)}; --config FILE or --set COLUMN=VALUE may tell them")
            if row.unread:
                say(f"{path}: not understood: {', '.join(row.unread)}")
            for remark in row.remarks:
                say(f"{path}: {remark}")
        header = table_columns(rows)
        if self.out is not None:
            write_table(self.out, header, [[row.cells.get(name) for name in header] for row in rows])
            say(f"wrote {self.out}")
        # With --out, the cells are in the file and not on the screen too.
        shown = zip(self.logs, rows, strict=True) if self.out is None else ()
        answer(
            self.json,
            lambda: {
                "rows": [
                    {"cells": dict(row.cells), "left_open": list(row.left_open), "unread": list(row.unread)}
                    for row in rows
                ]
            },
            lambda: [row_table(path, row.cells) for path, row in shown],
        )

    def _row(self, path: Path, stated: dict[str, str], columns: dict[str, str]) -> "RunRow":
        """Row of one file."""
        from jaxscale.launch.readers.read_run import run_of, run_of_history

        return run_of_history(path, columns, stated) if columns else run_of(path, self.config, stated)


def row_table(path: Path, cells: "Mapping[str, object]") -> "Table":
    """Table of the cells read from a file, a line per cell."""
    from jaxscale.base.table import TableColumn, make_table, text_column

    columns = (text_column("column"), TableColumn("cell", is_text=True, says="{}", stays=True))
    return make_table(str(path), columns, cells.items())
