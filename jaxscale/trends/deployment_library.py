"""Deployments of catalogue models and chips, with latencies, powers and prices of `data/trends.toml` and its fit."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from jaxscale._resources import data_path, fit_path, read_toml
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of, load_fit
from jaxscale.errors import InputError
from jaxscale.hardware.catalogue import Hardware, cluster
from jaxscale.models import model
from jaxscale.power import ChipPower
from jaxscale.trends.layout import UNLIMITED, Deployment
from jaxscale.trends.tariffs import Price
from jaxscale.units import KILOWATT_HOUR, YEAR
from jaxscale.workload import Transformer

FITTED = "hardware_trends.toml"
"""Result of `fits/hardware_trends.py`: two hop latencies and two powers fitted to the published figures."""


@functools.cache
def table() -> dict[str, Any]:
    """`data/trends.toml`."""
    return read_toml(data_path("trends.toml"))


@functools.cache
def fitted_table() -> dict[str, Any]:
    """`fits/results/hardware_trends.toml`."""
    return read_toml(fit_path(FITTED))


@dataclass(frozen=True)
class Overlay:
    """Hop latencies and powers that the trends add to a calibrated model.

    Attributes:
        hop_latency: of one hop of a ring, inside a domain and between domains [s].
        spread: standard deviation of the logarithm of each [1].
        power: share of each activity [1].
    """

    hop_latency: tuple[float, float]
    spread: tuple[float, float]
    power: Mapping[str, float]


def _hop_latency(hops: Mapping[str, Any]) -> tuple[float, float]:
    """Of one hop inside a domain and between domains, from a table in microseconds [s]."""
    return hops["inside_us"] * 1e-6, hops["between_us"] * 1e-6


def unfitted_overlay() -> Overlay:
    """Hop latencies of NCCL's own tables and powers of other publications: nothing of the figures compared with."""
    hops, power = table()["hop_latency"], {name: entry["value"] for name, entry in table()["power"].items()}
    return Overlay(_hop_latency(hops), (hops["spread"], hops["spread"]), power)


def fitted_overlay() -> Overlay:
    """The two hop latencies, and the powers of memory-bound kernels and collectives, of `fits/hardware_trends.py`."""
    hops = fitted_table()["hop_latency"]
    spread = (hops["inside_spread"], hops["between_spread"])
    return Overlay(_hop_latency(hops), spread, {**unfitted_overlay().power, **fitted_table()["power"]})


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


def calibrated(chip_id: str) -> Fit:
    """Fit of the paper's workload where that has runs on the chip, else the shipped default."""
    fit = load_fit(table()["workload"]["fit"])
    return fit if fit.seen.knows("gpu", chip_id) else load_fit()


def deployment(
    name_or_model: str | Transformer = "llama2-7b",
    chip_id: str = "h100-80gb",
    *,
    overlay: Overlay | None = None,
    fit: Fit | str | Path | None = None,
    levels: Mapping[str, str | None] | None = None,
    hardware: Hardware | None = None,
    power_cap: float | int = UNLIMITED,
    **changes: Any,
) -> Deployment:
    """A deployment of a catalogue model on catalogue chips, calibrated.

    Args:
        name_or_model: catalogue name, or a model.
        chip_id: catalogue id of a chip with an entry in `systems`.
        overlay: latencies and powers; the fitted ones where None.
        fit: a fit, or its name or file; that of `calibrated` where None.
        levels: framework, precision and so on whose fitted effects apply; those of the paper's workload, whose
            tensor-parallel collectives block, where None.
        hardware: catalogue of chips; the shipped one where None.
        power_cap: of each chip [W].
        changes: replace fields of a catalogue model, such as `seq_len`.

    Returns:
        The deployment.

    Raises:
        InputError: an unknown model or chip, or a cap that is not above idle power.
    """
    overlay = overlay or fitted_overlay()
    work = table()["workload"]
    chosen = model(name_or_model, **changes) if isinstance(name_or_model, str) else name_or_model
    system, chips = system_of(chip_id), cluster(chip_id, 1, hardware=hardware)
    if not power_cap > float(chips.chip.idle_power):
        raise InputError(f"power cap = {power_cap:g} W is out of range; expected above {chips.chip.idle_power:g} W")
    named_levels = {"framework": work["framework"], "precision": work["precision"]} if levels is None else levels
    record = calibrated(chip_id) if fit is None else fit_of(fit)
    resolved = record.coefficients({**named_levels, "gpu": chip_id})
    if levels is None:
        resolved = eqx.tree_at(lambda c: c.tp_overlap, resolved, work["tp_overlap"]["value"])
    return Deployment(
        model=chosen,
        cluster=chips,
        coefficients=resolved,
        hop_latency=np.asarray(overlay.hop_latency),
        power=ChipPower(**overlay.power, host_power=system["host_power_w"]["value"]),
        price=price_of(chip_id),
        power_cap=power_cap,
    )
