"""Fits by name or file: shipped ones, the user's own, and the priors."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxscale.base.errors import InputError
from jaxscale.base.resources import fit_path, read_toml
from jaxscale.calibration.coefficients import RETIRED, Coefficients, from_values, names, prior_medians, priors
from jaxscale.calibration.effects import LevelEffect
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.memory_limit import MemoryLimit
from jaxscale.calibration.record import END, Fit
from jaxscale.calibration.seen import Place
from jaxscale.calibration.workload_paces import WorkloadPace


@runtime_checkable
class HasFit(Protocol):
    """The result of a fit, such as `FitResult`."""

    fit: Fit


AnyFit = Fit | HasFit | str | Path
"""A fit as people hold it: the fit, the result of fitting it, or its name or file."""


def fit_of(fit: AnyFit = "default") -> Fit:
    """A fit as it is, that of a result, or by its name or file.

    Raises:
        InputError: no such fit, or the file is not one.
    """
    if isinstance(fit, Fit):
        return fit
    return load_fit(fit) if isinstance(fit, str | Path) else fit.fit


def load_fit(name_or_path: str | Path = "default") -> Fit:
    """A shipped fit, or one from a file: `js.load_fit("default")`.

    Args:
        name_or_path: `default`, the name of another shipped fit (a source), `prior` for no fit at all, or a TOML file
            that `Fit.save` wrote. A coefficient that the file lacks is read from the priors.

    Returns:
        The fit.

    Raises:
        InputError: no such fit, or the file is not one.
    """
    if str(name_or_path) == "prior":
        return Fit("prior", prior_medians())
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = fit_path(f"{name_or_path}.toml")
        if not path.is_file():
            shipped = sorted(file.stem for file in path.parent.glob("*.toml") if _is_fit(file))
            known = ", ".join([*shipped, "prior"])
            raise InputError(f"fit {str(name_or_path)!r} is not shipped; expected a .toml file or one of: {known}")
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return _read(path, path.absolute(), state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=16)
def _read(path: Path, absolute: Path, modified: int, size: int) -> Fit:
    """A fit from its file in the state of a time, read once."""
    del absolute, modified, size
    table = read_toml(path)
    if "provenance" in table and END not in table:
        raise InputError(f"{path}: cut or of another version; expected a whole fit, up to its last table [{END}]")
    return _parse(path, table)


def _is_fit(path: Path) -> bool:
    return "[coefficients." in path.read_text(encoding="utf-8")


def _parse(path: Path, table: Mapping[str, Any]) -> Fit:
    entries = table.get("coefficients")
    if not isinstance(entries, dict):
        raise InputError(f"{path}: not a fit; expected a table [coefficients.NAME] with a value for each coefficient")
    entries = {name: entry for name, entry in entries.items() if name not in RETIRED}
    unknown = sorted(set(entries) - set(names()))
    if unknown:
        raise InputError(
            f"{path}: coefficients.{unknown[0]} is not a coefficient; expected one of {', '.join(names())}"
        )
    # A file of before a cost term was added lacks its coefficients: of these the priors tell.
    values = {name: prior.median for name, prior in priors().items()}
    for name, entry in entries.items():
        values[name] = _value(f"{path}: coefficients.{name}", entry, priors()[name].kind)
    try:
        return _record(path, table, from_values(list(values.values())))
    except InputError:
        raise  # of the parent, which has said what is wrong
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise InputError(f"{path}: its record is cut or of another version ({what}); expected a whole fit") from None


def _record(path: Path, table: Mapping[str, Any], pooled: Coefficients) -> Fit:
    return Fit(
        name=str(table.get("name", path.stem)),
        pooled=pooled,
        effects=tuple(
            LevelEffect(e["kind"], e["level"], tuple(sorted(_counted(e["shifts"])))) for e in table.get("effects", [])
        ),
        scatter=tuple(Scatter(**entry) for entry in table.get("scatter", [])),
        known=_places(table.get("known", {})),
        largest=tuple((source, float(count)) for source, count in table.get("largest", {}).items()),
        provenance=tuple((key, str(value)) for key, value in table.get("provenance", {}).items()),
        limits=tuple(MemoryLimit(**entry) for entry in table.get("memory_limits", [])),
        own=tuple((kind, str(level)) for kind, level in table.get("own", {}).items()),
        fitted=_places(table.get("fitted", {})),
        parent=_parse(path, table["parent"]) if "parent" in table else None,
        is_centre="centre" in table,
        paces=tuple(WorkloadPace(**entry) for entry in table.get("paces", [])),
    )


def _counted(shifts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Shifts by coefficient, without those that are no coefficients any more."""
    return [(name, shift) for name, shift in shifts.items() if name not in RETIRED]


def _places(names_by_kind: Mapping[str, Sequence[str]]) -> tuple[Place, ...]:
    return tuple((kind, name) for kind, names_of_kind in names_by_kind.items() for name in names_of_kind)


def _value(where: str, entry: Any, kind: str) -> float:
    value = entry.get("value") if isinstance(entry, dict) else entry
    upper = 1.0 if kind == "fraction" else math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < upper:
        raise InputError(f"{where} = {value!r} is out of range; expected a number between 0 and {upper:g}")
    return float(value)
