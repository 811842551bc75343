"""Shapes of rows from named model files: TOML, or a config.json of Hugging Face."""

from dataclasses import replace
from pathlib import Path

from jaxscale.base.errors import InputError
from jaxscale.models.model_file import model_file_fields
from jaxscale.runs.schema import MODEL_FIELDS
from jaxscale.runs.table import Runs
from jaxscale.tables.categorical import Categorical, together

COLUMN = "model_file"


def with_model_files(runs: Runs) -> tuple[Runs, dict[str, dict[int, str]]]:
    """Table with empty shape cells filled from model files, and errors of files.

    Args:
        runs: the table; paths are relative to the table's folder, or to the current folder.

    Returns:
        The table; problems by column and by the code of the file's name in it.
    """
    named = runs.categories(COLUMN)
    if not named.matches(bool).any():
        return runs, {}
    problems: dict[int, str] = {}
    fields = [_fields(name, runs.path.parent, code, problems) if name else {} for code, name in enumerate(named.values)]
    of_file = Categorical(named.codes, tuple(range(len(fields))))
    columns = {
        name: together(runs.categories(name), of_file).map(
            lambda pair, name=name: fields[pair[1]].get(name) if pair[0] is None else pair[0]
        )
        for name in MODEL_FIELDS
        if any(name in one for one in fields)
    }
    return replace(runs, values={**runs.values, **columns}), {COLUMN: problems}


def _fields(name: str, folder: Path, code: int, problems: dict[int, str]) -> dict[str, float]:
    """Shape columns of a file, none for a file with errors."""
    # Paths beside the table first, then in the current folder.
    path = next((path for path in (folder / name, Path(name)) if path.is_file()), folder / name)
    try:
        fields = model_file_fields(path)
    except InputError as error:
        problems[code] = str(error)
        return {}
    return {key: float(value) for key, value in fields.items() if key in MODEL_FIELDS}
