"""Deployments of catalogue models and chips: by name, drawn at random, by chip generation, and with a single change."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import stacked
from jaxscale.base.documents import data_path, fit_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.base.units import KILOWATT_HOUR, YEAR
from jaxscale.calibration.coefficients import MEMORY_COEFFICIENTS, constrain_values, from_values, priors, unconstrain
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.costs.power import ChipPower
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan_questions import plan_question
from jaxscale.trends.layout import UNLIMITED, Deployment, ParallelLayout, Price
from jaxscale.trends.outcome import Batch, Outcome, peak_memory, scaling_outcomes

FITTED = "hardware_trends.toml"
"""Result of `fits/hardware_trends.py`: two powers fitted to published values."""


@functools.cache
def table() -> dict[str, Any]:
    """Content of `data/trends.toml`: published figures, powers, systems and prices."""
    return read_toml(data_path("trends.toml"))


@functools.cache
def fitted_table() -> dict[str, Any]:
    """Content of `fits/results/hardware_trends.toml`: fitted powers."""
    return read_toml(fit_path(FITTED))


def published_framework() -> str:
    """Framework of the published workload, arXiv 2411.13055."""
    return table()["workload"]["framework"]


def unfitted_power() -> dict[str, float]:
    """Share of the power range above idle in each activity, from publications outside the comparison [1]."""
    return {name: entry["value"] for name, entry in table()["power"].items()}


def fitted_power() -> dict[str, float]:
    """Share of the power range above idle in each activity; memory and exposed collectives are fitted [1]."""
    return {**unfitted_power(), **fitted_table()["power"]}


def systems() -> tuple[str, ...]:
    """Catalogue ids of the chips with known server power and price."""
    return tuple(table()["systems"])


def system_of(chip_id: str) -> Mapping[str, Any]:
    """Host power and purchase price of a chip's system.

    Raises:
        InputError: a chip without an entry in `data/trends.toml`.
    """
    systems_by_chip = table()["systems"]
    if chip_id not in systems_by_chip:
        raise InputError(
            f"gpu {chip_id!r} has no system power and price in data/trends.toml; expected {', '.join(systems_by_chip)}"
        )
    return systems_by_chip[chip_id]


def price_of(chip_id: str) -> Price:
    """Price of a chip with a share of server and network, and of electricity.

    Raises:
        InputError: a chip without an entry in `data/trends.toml`.
    """
    price = table()["price"]
    # From years and kWh to SI units.
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
    cells: Mapping[str, Any] | None = None,
    fit: AnyFit = "default",
    power: Mapping[str, float] | None = None,
    hardware: Hardware | None = None,
    power_cap: float | int = UNLIMITED,
    **changes: Any,
) -> Deployment:
    """Deployment of a catalogue model on catalogue chips, with fitted coefficients.

    Args:
        name_or_model: catalogue name, or a model.
        chip_id: catalogue id, or a name in any common spelling, of a chip with an entry in `systems`.
        framework: framework with defaults and fitted effects, as in the column of a runs table; the framework of the
            published workload where None.
        cells: further facts of the software, by column of a runs table, such as `precision` or `optimizer_bytes`.
        fit: a fit, or its name or file.
        power: share of the power range above idle by activity [1]; `fitted_power` where None.
        hardware: catalogue of chips; the shipped catalogue where None.
        power_cap: largest power of a chip [W].
        changes: fields of the catalogue model to replace, as `seq_len`.

    Raises:
        InputError: an unknown model or chip, or a cap that is not above idle power.
    """
    catalogue = hardware or load_hardware()
    chosen = model(name_or_model, **changes) if isinstance(name_or_model, str) else name_or_model
    # The number of chips is not read.
    chip_id = catalogue[chip_id].id
    system, chips = system_of(chip_id), cluster(chip_id, 1, hardware=catalogue)
    if not power_cap > float(chips.chip.idle_power):
        raise InputError(f"power cap = {power_cap:g} W is out of range; expected above {chips.chip.idle_power:g} W")
    stated = {**(cells or {}), "gpu": chip_id, "framework": framework or published_framework()}
    question = plan_question(chosen, chips, None, stated)
    return Deployment(
        model=chosen,
        cluster=chips,
        coefficients=fit_of(fit, hardware).coefficients(question.levels),
        software=question.space.software,
        power=ChipPower(**(power or fitted_power()), host_power=system["host_power_w"]["value"]),
        price=price_of(chip_id),
        power_cap=power_cap,
    )


def coefficient_spreads() -> np.ndarray:
    r"""Standard deviation of each unconstrained coefficient of a new software stack [coefficient].

    $\sqrt{s^2 + s_\mathrm{stack}^2}$ with the prior spreads of the mean and between stacks; zero for coefficients of
    memory.
    """
    # Variances of the centre and between stacks add up.
    spreads = {name: np.hypot(prior.spread, prior.levels.get("stack", 0.0)) for name, prior in priors().items()}
    # No trend of time reads coefficients of memory.
    return np.asarray([0.0 if name in MEMORY_COEFFICIENTS else spread for name, spread in spreads.items()])


def sample_deployments(deployment: Deployment, n_samples: int, seed: int = 0) -> Deployment:
    """Deployments with coefficients drawn from the uncertainty of a new software stack; the first is unchanged.

    Args:
        deployment: median of the draws.
        n_samples: number of deployments [1].
        seed: seed of the random numbers.

    Returns:
        Deployments; every leaf [sample].
    """
    random = np.random.default_rng(seed)
    centre, spread = unconstrain(deployment.coefficients), coefficient_spreads()
    # Coefficients vary as if independent: cancellation by correlation is not counted.
    draws = random.standard_normal((n_samples, centre.size))
    # The first sample is the deployment.
    draws[0] = 0.0
    coefficients = from_values(list(constrain_values(centre + spread * draws).T))
    stacked = jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf), (n_samples, *np.shape(leaf))),
        # The coefficients are replaced below.
        eqx.tree_at(lambda s: s.coefficients, deployment, None, is_leaf=lambda leaf: leaf is None),
    )
    return eqx.tree_at(lambda s: s.coefficients, stacked, coefficients, is_leaf=lambda leaf: leaf is None)


GENERATIONS = ("v100-32gb", "a100-80gb", "h100-80gb", "b200", "gb200", "gb300")
"""Chips in the order of their years."""

Change = Callable[[Deployment], Deployment]


def _scaled(path: Callable[[Deployment], object], factor: float | Sequence[float]) -> Change:
    return lambda s: eqx.tree_at(path, s, replace_fn=lambda leaf: np.asarray(leaf, float) * np.asarray(factor))


def with_domain(chips: float | int) -> Change:
    """Function that changes the scale-up domain of a deployment to a given number of chips."""
    return lambda s: eqx.tree_at(
        lambda t: t.cluster.network.domain_size,
        s,
        # A rail connects a domain at least.
        replace_fn=lambda sizes: np.asarray([chips, max(float(sizes[1]), chips), float(sizes[2])]),
    )


CHANGES: Mapping[str, Change] = {
    "as it is": lambda s: s,
    "arithmetic x 2": _scaled(lambda s: s.cluster.chip.peak_flops, 2.0),
    "memory bandwidth x 2": _scaled(lambda s: s.cluster.chip.hbm_bandwidth, 2.0),
    "link bandwidth x 2": _scaled(lambda s: s.cluster.network.bandwidth, (2.0, 1.0, 1.0)),
    "network bandwidth x 2": _scaled(lambda s: s.cluster.network.bandwidth, (1.0, 2.0, 2.0)),
    "latency inside / 2": _scaled(lambda s: s.cluster.network.latency, (0.5, 1.0, 1.0)),
    "latency between / 2": _scaled(lambda s: s.cluster.network.latency, (1.0, 0.5, 0.5)),
    "domain of 72": with_domain(72.0),
}
"""Single improvements of a cluster."""


def generations(
    model: str = "llama2-7b",
    chip_ids: Sequence[str] = GENERATIONS,
    **changes: Any,
) -> Deployment:
    """Deployments of a model on several chips with their catalogue networks, stacked; every leaf [chip]."""
    return stacked([deployment(model, chip_id, **changes) for chip_id in chip_ids])


def what_if(base: Deployment, changes: Mapping[str, Change] = CHANGES) -> Deployment:
    """Deployments with one improvement each, stacked; every leaf [change]."""
    return stacked([change(base) for change in changes.values()])


def side_by_side(
    deployments: Deployment,
    batch: Batch,
    n_chips: Sequence[float | int] | np.ndarray,
    layout: ParallelLayout | None = None,
) -> tuple[Outcome, np.ndarray]:
    """Outcomes of stacked deployments on given numbers of chips.

    Args:
        deployments: stacked deployments, every leaf [deployment].
        batch: global batch as a function of n.
        n_chips: n [point].
        layout: degrees; pure FSDP where None.

    Returns:
        Outcomes, every leaf [deployment, point], and whether peak memory stays within the chip's [deployment, point].
    """
    n = np.asarray(n_chips, float)
    chosen = layout or ParallelLayout()
    outcomes, fits = [], []
    for index in range(len(np.asarray(deployments.power_cap))):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], deployments)
        points = (one, chosen, n, np.asarray(batch.at(n)))
        outcomes.append(scaling_outcomes(*points))
        fits.append(peak_memory(*points).fits)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outcomes), np.stack(fits)
