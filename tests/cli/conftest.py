"""Run a command in the test's own process; tables to run it on."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_tables import GOOD, write_rows

from jaxscale.cli import main


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout, by the strict rules: no NaN, no Infinity."""

        def refuse(word: str) -> None:
            raise ValueError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process, with the settings of the tests left alone."""
    monkeypatch.setattr(main, "configure_jax", lambda **_: None)

    def call(*arguments: Any) -> Outcome:
        capsys.readouterr()
        code = main.main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a table whose rows are a valid one with changes."""

    def write(*changes: Mapping[str, str], without: Sequence[str] = (), name: str = "runs.csv") -> Path:
        rows = [{key: cell for key, cell in {**GOOD, **change}.items() if key not in without} for change in changes]
        return write_rows(tmp_path / name, rows)

    return write
