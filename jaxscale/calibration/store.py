"""Fits on disk: TOML with values, intervals, effects, scatter, limits of memory and provenance."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale._resources import fit_path, read_toml
from jaxscale.calibration.coefficients import Coefficients, from_values, names, prior_medians, priors, values_of
from jaxscale.calibration.coordinates import constrain_values, unconstrain
from jaxscale.calibration.record import Calibration, LevelEffect, MemoryLimit, Origin, Scatter
from jaxscale.errors import InputError

END = "end"
"""Last table of a file, without which it is not whole."""


def load_fit(name_or_path: str | Path = "default") -> Coefficients:
    """Coefficients of a shipped fit or of a file, `js.load_fit("default")`.

    Args:
        name_or_path: `default`, the name of another shipped fit (a source), `prior` for no fit at all, or a TOML file
            that `FitResult.save` wrote.

    Returns:
        Pooled coefficients with their calibration record.

    Raises:
        InputError: no such fit, or the file is not one.
    """
    if str(name_or_path) == "prior":
        return prior_medians()
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = fit_path(f"{name_or_path}.toml")
        if not path.is_file():
            shipped = sorted(file.stem for file in path.parent.glob("*.toml") if _is_fit(file))
            known = ", ".join([*shipped, "prior"])
            raise InputError(f"fit {str(name_or_path)!r} is not shipped; expected a .toml file or one of: {known}")
    table = read_toml(path)
    if "provenance" in table and END not in table:
        raise InputError(f"{path}: cut or of another version; expected a whole fit, up to its last table [{END}]")
    return _parse(path, table)


def _is_fit(path: Path) -> bool:
    return "[coefficients." in path.read_text(encoding="utf-8")


def _parse(path: Path, table: Mapping[str, Any]) -> Coefficients:
    entries = table.get("coefficients")
    if not isinstance(entries, dict):
        raise InputError(f"{path}: not a fit; expected a table [coefficients.NAME] with a value for each coefficient")
    unknown = sorted(set(entries) - set(names()))
    if unknown:
        raise InputError(
            f"{path}: coefficients.{unknown[0]} is not a coefficient; expected one of {', '.join(names())}"
        )
    missing = [name for name in names() if name not in entries]
    if missing and "provenance" in table:
        raise InputError(f"{path}: coefficients.{missing[0]} is missing; expected a whole fit of this version")
    values = {name: prior.median for name, prior in priors().items()}
    for name, entry in entries.items():
        values[name] = _value(f"{path}: coefficients.{name}", entry, priors()[name].kind)
    try:
        record = _record(path, table)
    except InputError:
        raise  # of the fit that it started from, which has said what is wrong
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise InputError(f"{path}: its record is cut or of another version ({what}); expected a whole fit") from None
    return from_values([values[name] for name in names()], record)


def _record(path: Path, table: Mapping[str, Any]) -> Calibration:
    known, fitted = (_places(table.get(name, {})) for name in ("known", "fitted"))
    return Calibration(
        name=str(table.get("name", path.stem)),
        effects=tuple(
            LevelEffect(e["kind"], e["level"], tuple(sorted(e["shifts"].items()))) for e in table.get("effects", [])
        ),
        scatter=tuple(Scatter(**entry) for entry in table.get("scatter", [])),
        known=known,
        largest=tuple((source, float(count)) for source, count in table.get("largest", {}).items()),
        provenance=tuple((key, str(value)) for key, value in table.get("provenance", {}).items()),
        limits=tuple(MemoryLimit(**entry) for entry in table.get("memory_limits", [])),
        own=tuple((kind, str(level)) for kind, level in table.get("own", {}).items()),
        fitted=fitted,
        origin=_origin(path, table["origin"]) if "origin" in table else None,
    )


def _places(levels_by_kind: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((kind, level) for kind, levels in levels_by_kind.items() for level in levels)


def _origin(path: Path, table: Mapping[str, Any]) -> Origin:
    start = _parse(path, table)
    return Origin(values_of(start), start.calibration or Calibration("none"))


def _value(where: str, entry: Any, kind: str) -> float:
    value = entry.get("value") if isinstance(entry, dict) else entry
    upper = 1.0 if kind == "fraction" else math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < upper:
        raise InputError(f"{where} = {value!r} is out of range; expected a number between 0 and {upper:g}")
    return float(value)


def resolve(coefficients: Coefficients, levels: Mapping[str, str | None]) -> Coefficients:
    """Coefficients of a run of the given levels: pooled values moved by the levels' effects.

    Args:
        coefficients: pooled coefficients, with or without a calibration record.
        levels: level of the run by kind: source, framework, gpu, precision, attention_kernel, release.

    Returns:
        Coefficients of the run, without the record.
    """
    values = constrain_values(unconstrained_rows(coefficients, [levels])[0])
    return from_values(values.tolist())


def resolve_rows(coefficients: Coefficients, levels: Sequence[Mapping[str, str | None]]) -> Coefficients:
    """Coefficients of several runs, stacked [row]."""
    values = constrain_values(unconstrained_rows(coefficients, levels))
    return from_values(list(values.T))


def unconstrained_rows(coefficients: Coefficients, levels: Sequence[Mapping[str, str | None]]) -> np.ndarray:
    """Unconstrained coefficients of several runs, effects of their levels included [row, coefficient].

    Runs that only the fit's start has seen the like of are answered by it.
    """
    record = coefficients.calibration or Calibration("none")
    rows = np.tile(unconstrain(coefficients), (len(levels), 1))
    column = {name: index for index, name in enumerate(names())}
    for row, level in zip(rows, levels, strict=True):
        for name, shift in record.shifts(level).items():
            row[column[name]] += shift
    others = [index for index, level in enumerate(levels) if record.origin_of(level)]
    if record.origin is not None and others:
        start = from_values(record.origin.values, record.origin.record)
        rows[others] = unconstrained_rows(start, [levels[index] for index in others])
    return rows


def to_toml(coefficients: Coefficients, parameters: Mapping[str, Mapping[str, Any]], comment: str) -> str:
    """A fit as TOML text.

    Args:
        coefficients: pooled coefficients with their record.
        parameters: value, interval, unit and identification of each, by name.
        comment: first line.

    Returns:
        The text.
    """
    return "\n".join([f"# {comment}", *_fit_lines(coefficients, parameters, ""), "", f"[{END}]"]) + "\n"


def _fit_lines(coefficients: Coefficients, parameters: Mapping[str, Mapping[str, Any]], within: str) -> list[str]:
    """Lines of a fit, and of the one it started from, in tables whose names begin with that of the table around."""
    record = coefficients.calibration or Calibration("fit")
    lines = [f"name = {_quoted(record.name)}", "", f"[{within}provenance]"]
    lines += [f"{key} = {_quoted(value)}" for key, value in record.provenance]
    for name in names():
        lines += ["", f"[{within}coefficients.{name}]", f"value = {_number(float(getattr(coefficients, name)))}"]
        entry = parameters.get(name)
        if entry:
            lines += [f"lo = {_number(entry['lo'])}", f"hi = {_number(entry['hi'])}", f'unit = "{entry["unit"]}"']
            lines += [f"identified = {str(entry['identified']).lower()}"]
    lines += ["", f"[{within}known]", *_levels_by_kind(record.known)]
    if record.fitted:
        lines += ["", f"[{within}fitted]", *_levels_by_kind(record.fitted)]
    if record.own:
        lines += ["", f"[{within}own]", *(f"{kind} = {_quoted(level)}" for kind, level in record.own)]
    lines += ["", f"[{within}largest]"]
    lines += [f"{_quoted(source)} = {count:g}" for source, count in record.largest]
    for effect in record.effects:
        shifts = ", ".join(f"{name} = {_number(shift)}" for name, shift in effect.shifts)
        lines += ["", f"[[{within}effects]]", f"kind = {_quoted(effect.kind)}", f"level = {_quoted(effect.level)}"]
        lines.append(f"shifts = {{ {shifts} }}")
    for scatter in record.scatter:
        lines += ["", f"[[{within}scatter]]", f"kind = {_quoted(scatter.kind)}", f"level = {_quoted(scatter.level)}"]
        lines += [f"time = {_number(scatter.time)}", f"memory = {_number(scatter.memory)}"]
    for limit in record.limits:
        lines += ["", f"[[{within}memory_limits]]", f"source = {_quoted(limit.source)}"]
        lines += [f"usable = {_number(limit.usable)}", f"scatter = {_number(limit.scatter)}"]
    if record.origin is not None:
        start = from_values(record.origin.values, record.origin.record)
        lines += ["", f"[{within}origin]", *_fit_lines(start, {}, f"{within}origin.")]
    return lines


def _levels_by_kind(places: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each kind of level, with the names of its levels."""
    by_kind: dict[str, list[str]] = {}
    for kind, level in sorted(places):
        by_kind.setdefault(kind, []).append(_quoted(level))
    return [f"{kind} = [{', '.join(levels)}]" for kind, levels in by_kind.items()]


def _quoted(text: str) -> str:
    # What JSON escapes TOML reads, and TOML forbids one character more.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _number(value: float) -> str:
    text = f"{value:.6g}"
    text = repr(float(value)) if float(text) == 1.0 else text  # a fraction that is nearly one must not become it
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def level_kinds(levels: Sequence[Mapping[str, str | None]]) -> tuple[tuple[str, str], ...]:
    """Every kind and name of level that occurs, sorted."""
    return tuple(sorted({(kind, level) for row in levels for kind, level in row.items() if level}))
