"""One run by options of the command line, as a runs table of one row."""

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
    """A table of one run.

    Args:
        options: cells by column, None where an option was not given; `model` may be a file.
        stated: further cells by column.
        hardware: chips that it may name.

    Raises:
        InputError: an unknown model, chip or column, or a cell that is not valid; names the option.
    """
    cells = {name: value for name, value in options.items() if value is not None}
    description = described_model(cells["model"])
    if catalogue_model(cells["model"]) is None:
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
        raise InputError(str(error).replace("table:1: ", "").replace("column ", "")) from None


def _batch(cells: Mapping[str, Any]) -> Any:
    """Sequences of a batch that may be given in tokens; None where it is not given."""
    text = cells.get("global_batch_size_seqs")
    if text is None:
        return None
    sequences = sequences_in(str(text), float(cells["seq_len"]))
    return text if sequences is None else sequences
