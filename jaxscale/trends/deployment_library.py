"""Deployments of catalogue models and chips, with powers and prices of `data/trends.toml` and its fit."""

import functools
from collections.abc import Mapping
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.base.resources import data_path, fit_path, read_toml
from jaxscale.base.units import KILOWATT_HOUR, YEAR
from jaxscale.calibration.store import AnyFit, fit_of
from jaxscale.costs.power import ChipPower
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.runs.software import software_of
from jaxscale.trends.layout import UNLIMITED, Deployment
from jaxscale.trends.tariffs import Price

FITTED = "hardware_trends.toml"
"""Result of `fits/hardware_trends.py`: two powers fitted to published ones."""


@functools.cache
def table() -> dict[str, Any]:
    """`data/trends.toml`."""
    return read_toml(data_path("trends.toml"))


@functools.cache
def fitted_table() -> dict[str, Any]:
    """`fits/results/hardware_trends.toml`."""
    return read_toml(fit_path(FITTED))


def unfitted_power() -> dict[str, float]:
    """Power above idle of each activity, by publications other than the one compared with [1]."""
    return {name: entry["value"] for name, entry in table()["power"].items()}


def fitted_power() -> dict[str, float]:
    """The same, with those of memory-bound kernels and of exposed collectives by `fits/hardware_trends.py` [1]."""
    return {**unfitted_power(), **fitted_table()["power"]}


def systems() -> tuple[str, ...]:
    """Chips whose servers and prices are known."""
    return tuple(table()["systems"])


def system_of(chip_id: str) -> Mapping[str, Any]:
    """Host power and capital of a chip's system.

    Raises:
        InputError: not in the table.
    """
    systems_by_chip = table()["systems"]
    if chip_id not in systems_by_chip:
        raise InputError(
            f"gpu {chip_id!r} has no system power and price in data/trends.toml; expected {', '.join(systems_by_chip)}"
        )
    return systems_by_chip[chip_id]


def price_of(chip_id: str) -> Price:
    """Price of a chip with its share of the system."""
    price = table()["price"]
    return Price(
        system_of(chip_id)["capital_dollars"]["value"],
        price["lifetime_years"]["value"] * YEAR,
        price["electricity_dollars_per_kwh"]["value"] / KILOWATT_HOUR,
        price["overhead"]["value"],
    )


def deployment(
    name_or_model: str | Transformer = "llama2-7b",
    chip_id: str = "h100-80gb",
    *,
    framework: str | None = None,
    fit: AnyFit = "default",
    power: Mapping[str, float] | None = None,
    hardware: Hardware | None = None,
    power_cap: float | int = UNLIMITED,
    **changes: Any,
) -> Deployment:
    """A deployment of a catalogue model on catalogue chips, calibrated.

    Args:
        name_or_model: catalogue name, or a model.
        chip_id: catalogue id of a chip with an entry in `systems`.
        framework: whose defaults and fitted effects apply, as in the column of a runs table; that of the published
            workload where None.
        fit: a fit, or its name or file.
        power: share of each activity [1]; `fitted_power` where None.
        hardware: catalogue of chips; the shipped one where None.
        power_cap: of each chip [W].
        changes: replace fields of a catalogue model, such as `seq_len`.

    Returns:
        The deployment.

    Raises:
        InputError: an unknown model or chip, or a cap that is not above idle power.
    """
    catalogue = hardware or load_hardware()
    chosen = model(name_or_model, **changes) if isinstance(name_or_model, str) else name_or_model
    system, chips = system_of(chip_id), cluster(chip_id, 1, hardware=catalogue)
    if not power_cap > float(chips.chip.idle_power):
        raise InputError(f"power cap = {power_cap:g} W is out of range; expected above {chips.chip.idle_power:g} W")
    chip_id = catalogue[chip_id].id
    software = software_of({"gpu": chip_id, "framework": framework or table()["workload"]["framework"]})
    return Deployment(
        model=chosen,
        cluster=chips,
        coefficients=fit_of(fit).coefficients({**software.levels, "gpu": chip_id}),
        software=software.plan,
        power=ChipPower(**(power or fitted_power()), host_power=system["host_power_w"]["value"]),
        price=price_of(chip_id),
        power_cap=power_cap,
    )
