"""Kinds of rows whose work is no transformer: who checks, predicts and fits them.

A row belongs to a kind by a cell of the kind's column. `KINDS` names the class of each by text, so that a table of
transformers loads none of them.
"""

import abc
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.lazy import loaded
from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.table import Runs

KINDS = {"workload": "jaxscale.tracing.traced_kind:TracedKind"}
"""Class of each kind of row, by the column in which its rows have a cell."""


class RowAnswers(NamedTuple):
    """Predictions of rows of one kind.

    Attributes:
        numbers: step time with its interval and terms [s], memory [byte] and risk, by name; nan where there is no
            answer [row].
        assumed: what was completed, in words [row].
        notes: why there is no answer, or what the fit has not seen [row].
    """

    numbers: dict[str, np.ndarray]
    assumed: np.ndarray
    notes: np.ndarray


class AbstractRowKind(abc.ABC):
    """Rows of one kind: how a table of them is checked, predicted and fitted."""

    @abc.abstractmethod
    def problems(
        self, runs: Runs, is_kind: np.ndarray, is_catalogue_model: Callable[[str], bool], bad: Collection[int]
    ) -> dict[int, list[str]]:
        """What is wrong with rows of the kind, by row.

        Args:
            runs: a whole table.
            is_kind: which rows are of the kind [row].
            is_catalogue_model: whether a name is that of a model of the catalogue.
            bad: rows whose problems are told already.
        """

    @abc.abstractmethod
    def predict(self, runs: Runs, fit: Fit, hardware: Hardware) -> RowAnswers:
        """Predictions of rows that all are of the kind.

        Args:
            runs: the rows.
            fit: calibration.
            hardware: catalogue of chips.
        """

    @abc.abstractmethod
    def fit(
        self,
        runs: Runs,
        start: Fit,
        *,
        n_folds: int,
        name: str,
        hardware: Hardware | None,
        progress: Callable[[str], None] | None,
    ) -> Any:
        """Fit of what the kind adds to a calibration, from rows that all are of the kind.

        Args:
            runs: the rows.
            start: calibration of all else.
            n_folds: folds of the cross-validation [1].
            name: what the fit is called.
            hardware: catalogue of chips; the shipped one where None.
            progress: called with a line of text at each stage.

        Returns:
            A result with `fit`, `parts()` and `to_json()`.
        """


def of_a_kind(runs: Runs) -> np.ndarray:
    """Which rows of a table are of some kind other than the transformer [row]."""
    return np.any([runs.categories(column).matches(bool) for column in KINDS], axis=0)


def kinds_in(runs: Runs) -> Iterator[tuple[AbstractRowKind, np.ndarray]]:
    """Kinds that a table has rows of, each with its rows.

    Args:
        runs: the table.

    Yields:
        The kind, and which rows are of it [row].
    """
    for column, home in KINDS.items():
        is_kind = runs.categories(column).matches(bool)
        if is_kind.any():
            yield loaded(home)(), is_kind
