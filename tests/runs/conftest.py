"""Fixture for tables of a few rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from run_tables import GOOD, write_rows


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a table whose rows are the valid one with changes."""

    def write(*changes: Mapping[str, str], without: Sequence[str] = ()) -> Path:
        rows = [{name: cell for name, cell in {**GOOD, **change}.items() if name not in without} for change in changes]
        return write_rows(tmp_path / "runs.csv", rows)

    return write
