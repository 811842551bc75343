"""Paths of the shipped tables: inside an installed wheel, or in the repository of an editable install."""

from importlib import resources
from pathlib import Path
from typing import Any

from jaxscale.base.documents import parsed_toml, read_text
from jaxscale.base.errors import InputError


def _root(shipped: str, source: str) -> Path:
    inside = Path(str(resources.files("jaxscale"))) / shipped
    return inside if inside.is_dir() else Path(__file__).resolve().parents[2] / source


def data_path(name: str) -> Path:
    """Path of a file of `data/`."""
    return _root("_data", "data") / name


def fit_path(name: str) -> Path:
    """Path of a file of `fits/results/`."""
    return _root("_fits", "fits/results") / name


def run_tables() -> dict[str, Path]:
    """Files of the tables of measured runs by name: in a wheel the shipped tables, in the repository all tables."""
    paths = [path for folder in ("runs", "restricted/runs") for path in data_path(folder).glob("*.csv")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        InputError: the file is missing, too large, not text, or not TOML within the bounds of documents; one line.
    """
    try:
        return parsed_toml(read_text(path, what="a TOML file"))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
