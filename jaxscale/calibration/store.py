"""Fits by name or file: shipped fits, fits of the user, and the priors."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxscale.base.errors import InputError
from jaxscale.base.resources import fit_path
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware


@runtime_checkable
class HasFit(Protocol):
    """Result of a fit, such as `FitResult`."""

    fit: Fit


AnyFit = Fit | HasFit | str | Path
"""A fit, the result of fitting, or the name or file of a fit."""


def fit_of(fit: AnyFit = "default", hardware: Hardware | None = None) -> Fit:
    """Fit from a fit, a result, a name or a file.

    Args:
        hardware: catalogue whose chip anchors precede those of the package.

    Raises:
        InputError: an unknown fit, or a file of a different type.
    """
    if isinstance(fit, str | Path):
        return load_fit(fit, hardware)
    found = fit if isinstance(fit, Fit) else fit.fit
    return found if hardware is None else found.with_anchors(hardware.anchors)


def load_fit(name_or_path: str | Path = "default", hardware: Hardware | None = None) -> Fit:
    """Load a shipped fit or a fit from a file: `js.load_fit("default")`.

    Args:
        name_or_path: `default`, the name of a further shipped fit (a source), `prior` for the priors alone, or a TOML
            file written by `Fit.save`. The priors supply coefficients absent from the file.
        hardware: catalogue whose chip anchors precede those of the package.

    Returns:
        The fit.

    Raises:
        InputError: an unknown fit, or a file of a different type.
    """
    if hardware is not None:
        return load_fit(name_or_path).with_anchors(hardware.anchors)
    if str(name_or_path) == "prior":
        return Fit("prior", prior_medians())
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = fit_path(f"{name_or_path}.toml")
        if not path.is_file():
            shipped = sorted(file.stem for file in path.parent.glob("*.toml") if Fit.file.is_one(file))
            known = ", ".join([*shipped, "prior"])
            raise InputError(f"fit {str(name_or_path)!r} is not shipped; expected a .toml file or one of: {known}")
    return Fit.load(path)
