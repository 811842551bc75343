"""Interface of rows with a traced workload, or a further workload that is no transformer: checks, prediction and fit.

The filled column of `KINDS` decides the kind of a row. `KINDS` names the classes as text, so that a table of
transformers does not import the classes.
"""

import abc
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.lazy import loaded
from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.schema import Runs

KINDS = {"workload": "jaxscale.tracing.traced_kind:TracedKind"}
"""Class of each kind of row, by the column in which its rows have a cell."""


class RowAnswers(NamedTuple):
    """Predictions of rows of a kind.

    Attributes:
        numbers: step time with interval and terms [s], memory [byte] and probability of running out of memory [1], by
            name; nan without an answer [row].
        assumed: completed values, as text [row].
        notes: reason of a missing answer, or levels new to the fit [row].
    """

    numbers: dict[str, np.ndarray]
    assumed: np.ndarray
    notes: np.ndarray


class AbstractRowKind(abc.ABC):
    """Checks, prediction and fit of the rows with a workload that is no transformer, such as a traced program."""

    @abc.abstractmethod
    def problems(
        self, runs: Runs, is_kind: np.ndarray, is_catalogue_model: Callable[[str], bool], bad: Collection[int]
    ) -> dict[int, list[str]]:
        """Problems of the rows of the kind, by row.

        Args:
            runs: a whole table.
            is_kind: whether each row is of the kind [row].
            is_catalogue_model: whether a name is that of a model of the catalogue.
            bad: rows with problems reported before.
        """

    @abc.abstractmethod
    def predict(self, runs: Runs, fit: Fit, hardware: Hardware) -> RowAnswers:
        """Predictions of a table with only rows of the kind.

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
        """Fit of the coefficients that the kind adds to a calibration, from a table with only rows of the kind.

        Args:
            runs: the rows.
            start: calibration of the remaining coefficients.
            n_folds: folds of the cross-validation [1].
            name: name of the fit.
            hardware: catalogue of chips; the shipped catalogue where None.
            progress: called with a line of text at each stage.

        Returns:
            A result with `fit`, `parts()` and `to_json()`.
        """


def of_a_kind(runs: Runs) -> np.ndarray:
    """Whether each row of a table has a workload of a registered kind, and so no transformer [row]."""
    return np.any([runs.categories(column).matches(bool) for column in KINDS], axis=0)


def kinds_in(runs: Runs) -> Iterator[tuple[AbstractRowKind, np.ndarray]]:
    """Registered kinds of rows in a table, each with a mask of its rows.

    Args:
        runs: the table.

    Yields:
        The kind, and whether each row is of the kind [row].
    """
    for column, home in KINDS.items():
        is_kind = runs.categories(column).matches(bool)
        if is_kind.any():
            yield loaded(home)(), is_kind
