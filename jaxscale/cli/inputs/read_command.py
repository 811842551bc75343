"""`jaxscale read`: training logs and launch files as a runs table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxscale.cli.arguments import Json
from jaxscale.cli.console import emit_json, print_result, say
from jaxscale.errors import InputError

if TYPE_CHECKING:
    from jaxscale.readers.read_run import RunRow


@dataclass(frozen=True)
class ReadCommand:
    """Make a runs table of training logs, with the settings of their launch files, or of launch files alone.

    Logs of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, MaxText, nanotron, DeepSpeed, transformers, axolotl,
    AutoModel, MLPerf and others; launch files in TOML, YAML, JSON or as a command line. Warm-up and slow steps are cut,
    medians of the steady ones taken. Cells that no file tells are left open and listed.
    """

    logs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="LOG", help="logs or launch files, a row each")
    ]
    config: Annotated[
        tyro.conf.UseAppendAction[tuple[Path, ...]], tyro.conf.arg(metavar="FILE", help="launch file of the logs")
    ] = ()
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="COLUMN=VALUE", help="a cell of every row, as gpu=h100-80gb"),
    ] = ()
    column: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="COLUMN=NAME", help="column of a history in CSV, as step_time_s=perf/step"),
    ] = ()
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUNS.csv", help="table to write")] = None
    json: Json = False

    def run(self) -> None:
        """Run the command.

        Raises:
            InputError: a file that cannot be read or is of no known program, or an output that cannot be written.
        """
        from jaxscale.files import check_writable
        from jaxscale.readers.read_run import table_columns
        from jaxscale.runs.table import write_table

        if not self.logs:
            raise InputError("no file; expected at least one log or launch file")
        if self.out is not None:
            for read in (*self.logs, *self.config):
                check_writable(self.out, read)
        stated, columns = pairs("--set", self.set), pairs("--column", self.column)
        rows = [self._row(path, stated, columns) for path in self.logs]
        for path, row in zip(self.logs, rows, strict=True):
            if row.left_open:
                say(f"{path}: left open: {', '.join(row.left_open)}; --config FILE or --set COLUMN=VALUE may tell them")
            for remark in row.remarks:
                say(f"{path}: {remark}")
        header = table_columns(rows)
        if self.out is not None:
            write_table(self.out, header, [[row.cells.get(name) for name in header] for row in rows])
            say(f"wrote {self.out}")
        if self.json:
            emit_json({"rows": [{"cells": dict(row.cells), "left_open": list(row.left_open)} for row in rows]})
        elif self.out is None:
            print_result("\n\n".join("\n".join(f"{name} = {cell}" for name, cell in row.cells.items()) for row in rows))

    def _row(self, path: Path, stated: dict[str, str], columns: dict[str, str]) -> "RunRow":
        """Row of one file."""
        from jaxscale.readers.history_table import run_of_history
        from jaxscale.readers.read_run import run_of

        return run_of_history(path, columns, stated) if columns else run_of(path, self.config, stated)


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Names and values of options `NAME=VALUE`.

    Raises:
        InputError: a text without a name or a value; names the option.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not (name and mark and value):
            raise InputError(f"{option} = {text!r} is no assignment; expected NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
