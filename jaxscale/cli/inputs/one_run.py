"""A run from options of the command line, as a runs table with a single row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.hardware.catalogue import Hardware
from jaxscale.models import catalogue_model, described_model
from jaxscale.runs import Runs, read_runs
from jaxscale.runs.batch_cells import sequences_in
from jaxscale.runs.schema import BY_NAME, stated_values


def one_run(options: Mapping[str, Any], stated: Mapping[str, str], hardware: Hardware) -> Runs:
    """Runs table with a single row.

    Args:
        options: cells by column, None for absent options; `model` may be a file.
        stated: further cells by column.
        hardware: catalogue of chips.

    Raises:
        InputError: an unknown model, chip or column, or an invalid cell; names the option.
    """
    cells = {name: value for name, value in options.items() if value is not None}
    description = described_model(cells["model"])
    if catalogue_model(cells["model"]) is None:
        # The table knows no names of files: the fields stand for the model.
        cells |= {name: value for name, value in description.fields.items() if name in BY_NAME}
        cells["model"] = Path(cells["model"]).stem
    cells.setdefault("seq_len", description.transformer(str(options["model"])).seq_len)
    for name, value in stated_values("--set", stated).items():
        if options.get(name) not in (None, value):
            raise InputError(f"--set {name} has an option of its own beside it; expected one of them")
        cells[name] = value
    cells["global_batch_size_seqs"] = _batch(cells)
    try:
        return read_runs(cells, hardware=hardware)
    except InputError as error:
        # A user of options knows no table, line or column.
        raise InputError(str(error).replace("table:1: ", "").replace("column ", "")) from None


def _batch(cells: Mapping[str, Any]) -> Any:
    """Batch in sequences from a number of sequences or tokens; None where absent."""
    text = cells.get("global_batch_size_seqs")
    if text is None:
        return None
    sequences = sequences_in(str(text), float(cells["seq_len"]))
    return text if sequences is None else sequences
