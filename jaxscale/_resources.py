"""Where the shipped tables are: inside an installed wheel, or beside the package in an editable install."""

from importlib import resources
from pathlib import Path


def _root(shipped: str, source: str) -> Path:
    inside = Path(str(resources.files("jaxscale"))) / shipped
    return inside if inside.is_dir() else Path(__file__).resolve().parents[1] / source


def data_path(name: str) -> Path:
    """Path of a file of `data/`."""
    return _root("_data", "data") / name


def fit_path(name: str) -> Path:
    """Path of a file of `fits/results/`."""
    return _root("_fits", "fits/results") / name
