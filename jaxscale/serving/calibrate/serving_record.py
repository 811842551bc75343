"""Fit of serving stacks: coefficients by level, widths of intervals, and its file."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxscale.base.errors import InputError, one_like
from jaxscale.base.record_file import RecordFile
from jaxscale.base.resources import fit_path
from jaxscale.calibration.base_record import NUMBER, Record, tables_of_entries
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.spec import Spec
from jaxscale.serving.calibrate.level_names import model_level
from jaxscale.serving.calibrate.serving_coefficients import ServingCoefficients, serving_coefficients, serving_spec
from jaxscale.serving.calibrate.serving_widths import ServingWidth, ServingWidths


@dataclass(frozen=True)
class ServingFit(Record):
    """Coefficients of serving stacks that measured runs tell; shares of the centre are as before their bound of one.

    Attributes:
        n_rows: measured rows behind it [1].
    """

    n_rows: int = 0

    file = RecordFile(
        what="fit of serving stacks",
        head="coefficients",
        made_by="one of `serving fit`",
        comment="Fit of serving stacks; made by fits/serving.py or `serving fit`.",
        old_head="centre",
    )
    tables = {**Record.tables, "n_rows": ("n_rows", NUMBER), "widths": ("widths", tables_of_entries(ServingWidth))}

    @classmethod
    def spec(cls) -> Spec:
        """Coefficients of serving stacks."""
        return serving_spec()

    def coefficients(self, **levels: str) -> ServingCoefficients:
        """Coefficients of one stack: `fit.coefficients(framework="vllm", chip="h100-80gb", stack="vllm h100-80gb")`.

        Args:
            levels: names by kind of level, see `serving_rows.LEVEL_KINDS`; a kind that is left out adds nothing.

        Returns:
            The coefficients.

        Raises:
            InputError: an unknown kind of level.
        """
        if unknown := [kind for kind in levels if kind not in self.spec().kinds]:
            raise InputError(f"{unknown[0]!r} is no kind of level; {one_like(unknown[0], self.spec().kinds)}")
        logs = self.unconstrained(Levels.of_rows([levels]))
        return jax.tree.map(float, jax.device_get(serving_coefficients(logs[0])))

    @functools.cached_property
    def intervals(self) -> ServingWidths:
        """Widths of intervals, ready for look-up."""
        return ServingWidths(self.widths)

    @classmethod
    def of_tables(cls, path: Path, table: Mapping[str, Any]) -> "ServingFit":
        """The record of nested tables, models by the names that levels have today.

        Files of before name models as the tables of runs do.
        """
        renamed = {(entry["kind"], _model_of_today(entry)): entry for entry in reversed(table.get("effects", []))}
        effects = [{**entry, "level": level} for (_, level), entry in reversed(renamed.items())]
        return super().of_tables(path, {**table, "effects": effects})


def _model_of_today(entry: Mapping[str, str]) -> str:
    """Level of an effect, whose model is the catalogue's id."""
    if entry["kind"] == "model":
        return model_level(entry["level"])
    if entry["kind"] == "pair":
        framework, _, name = entry["level"].partition(" ")
        return f"{framework} {model_level(name)}"
    return entry["level"]


def load_serving_fit(fit: "ServingFit | str | Path" = "default") -> ServingFit:
    """A fit as it is, the shipped one (`default`), no fit at all (`prior`), or one from a TOML file.

    Raises:
        InputError: no such fit, or the file is not one.
    """
    if isinstance(fit, ServingFit):
        return fit
    if str(fit) == "prior":
        return ServingFit("prior", serving_spec().medians)
    path = fit_path("serving.toml") if str(fit) == "default" else Path(fit)
    if path.suffix != ".toml":
        raise InputError(f"fit {str(fit)!r} is not shipped; expected default, prior or a .toml file")
    return ServingFit.load(path)
