"""Run a command in the test's own process; tables to run it on."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli_tables import GOOD, write_rows
from screens import Answer

from jaxscale.cli import console, main
from jaxscale.cli.main import every_command


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


@pytest.fixture
def ask(run, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Answer]:
    """Run a command line once, and keep both forms of its answer."""
    kept: list[Answer] = []

    def keep(is_json: bool, document: Callable[[], Any], parts: Callable[[], Any]) -> None:
        kept.append(Answer(json.loads(json.dumps(console.plain(document()))), tuple(parts())))

    every_command()  # else a command that is loaded later would keep what follows
    answered = console.answer

    def call(line: str) -> Answer:
        with monkeypatch.context() as patch:
            for name, module in list(sys.modules.items()):
                if name.startswith("jaxscale.") and vars(module).get("answer") is answered:
                    patch.setattr(module, "answer", keep)
            outcome = run(*line.split())
        assert outcome.code == 0, outcome.err
        return kept[-1]

    return call
