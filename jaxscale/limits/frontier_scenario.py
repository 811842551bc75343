r"""Assumptions of the data-movement model, named scenarios of `data/limits.toml`, and their scaling laws.

Tokens D and parameters N follow Hoffmann et al. 2022: $D = r N$ with $T = 6 N D$. The batch follows
$B = B_0 (T / T_0)^\beta$ (Erdil and Schneider-Joseph, arXiv 2411.01137), the depth
$L = L_0 (N / N_0)^\lambda + \kappa \ln(d / d_0)$: a power law, or the logarithm of Levine et al., arXiv 2006.12467.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float, host_arrays, stacked
from jaxscale.base.documents import check_keys, data_path, number_of, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.smooth import larger, smaller
from jaxscale.base.units import GB
from jaxscale.hardware.catalogue import ChipEntry, Hardware, load_hardware
from jaxscale.hardware.formats import FORMATS, PRECISIONS


class FrontierScenario(eqx.Module):
    """Hardware, number formats, scaling laws and longest duration of a run in the data-movement model.

    Attributes:
        peak_flops: peak of a chip, two flop for a multiply-add [flop/s].
        max_utilisation: largest share of the peak that a matmul sustains [1].
        memory_bandwidth: bandwidth of the chip's DRAM [byte/s].
        memory_bytes: size of the chip's DRAM [byte].
        domain_size: chips in a scale-up domain [1].
        link_bandwidth: bandwidth inside a domain, per chip and direction [byte/s].
        network_bandwidth: bandwidth between domains, per chip and direction [byte/s].
        link_latency: latency of a hop inside a domain [s].
        network_latency: latency of a hop between domains [s].
        kernel_latency: least time between the starts of consecutive matmuls [s].
        weight_bytes: size of a weight [byte].
        activation_bytes: size of an activation, in memory and on the wire [byte].
        gradient_bytes: size of a gradient on the wire [byte].
        optimizer_bytes: size of the optimizer's state, per parameter [byte].
        tokens_per_param: training tokens per active parameter, r [1].
        reference_batch: batch at `reference_flop`, B_0 [token].
        reference_flop: training compute at which the batch is known, T_0 [flop].
        batch_exponent: exponent of the batch in the training compute, beta [1].
        batch_multiplier: factor on the batch [1].
        batch_sparsity_exponent: exponent of the batch in the sparsity [1].
        sparsity: experts per active expert, E / k [1].
        active_experts: active experts of a token, k [1].
        reference_layers: depth at `reference_params`, L_0 [1].
        reference_params: active parameters at which the depth is known, N_0 [1].
        depth_exponent: exponent of the depth in the active parameters, lambda [1].
        log_depth: layers per e-fold of width, added to the power law of the depth, kappa; zero for none [1].
        log_depth_width: width at which the added layers are zero, d_0 [1].
        ff_ratio: MLP width over model width [1].
        training_time: longest duration of the run [s].
        overlap_exponent: exponent of the p-norm of overlapping times: 1 is their sum, infinity their maximum [1].
        pipeline_wait: share of the passage of a lone microbatch through the stages for which a rank waits: one in
            a real pipeline, zero with the bubble of many microbatches [1].
    """

    peak_flops: Number = eqx.field(converter=as_float)
    max_utilisation: Number = eqx.field(converter=as_float)
    memory_bandwidth: Number = eqx.field(converter=as_float)
    memory_bytes: Number = eqx.field(converter=as_float)
    domain_size: Number = eqx.field(converter=as_float)
    link_bandwidth: Number = eqx.field(converter=as_float)
    network_bandwidth: Number = eqx.field(converter=as_float)
    link_latency: Number = eqx.field(converter=as_float)
    network_latency: Number = eqx.field(converter=as_float)
    kernel_latency: Number = eqx.field(converter=as_float)
    weight_bytes: Number = eqx.field(converter=as_float)
    activation_bytes: Number = eqx.field(converter=as_float)
    gradient_bytes: Number = eqx.field(converter=as_float)
    optimizer_bytes: Number = eqx.field(converter=as_float)
    tokens_per_param: Number = eqx.field(converter=as_float)
    reference_batch: Number = eqx.field(converter=as_float)
    reference_flop: Number = eqx.field(converter=as_float)
    batch_exponent: Number = eqx.field(converter=as_float)
    batch_multiplier: Number = eqx.field(converter=as_float)
    batch_sparsity_exponent: Number = eqx.field(converter=as_float)
    sparsity: Number = eqx.field(converter=as_float)
    active_experts: Number = eqx.field(converter=as_float)
    reference_layers: Number = eqx.field(converter=as_float)
    reference_params: Number = eqx.field(converter=as_float)
    depth_exponent: Number = eqx.field(converter=as_float)
    log_depth: Number = eqx.field(converter=as_float)
    log_depth_width: Number = eqx.field(converter=as_float)
    ff_ratio: Number = eqx.field(converter=as_float)
    training_time: Number = eqx.field(converter=as_float)
    overlap_exponent: Number = eqx.field(converter=as_float)
    pipeline_wait: Number = eqx.field(converter=as_float)


def stack_scenarios(scenarios: Sequence[FrontierScenario]) -> FrontierScenario:
    """Scenarios stacked into one, every leaf an array [scenario]."""
    return host_arrays(stacked(scenarios))


def repeated(scenario: FrontierScenario, changes: Mapping[str, np.ndarray]) -> FrontierScenario:
    """Copies of a scenario with changed fields, every leaf an array [scenario].

    Args:
        scenario: the common fields.
        changes: values of the changed fields by name, all of equal length [scenario].
    """
    count = len(next(iter(changes.values())))
    return dataclasses.replace(jax.tree.map(lambda leaf: np.full(count, leaf), scenario), **changes)


FIELDS = tuple(field.name for field in dataclasses.fields(FrontierScenario))
TEXTS = ("description", "gpu", "optics", "years")

AT_LEAST_ZERO = {
    "link_latency",
    "network_latency",
    "kernel_latency",
    "optimizer_bytes",
    "batch_exponent",
    "batch_sparsity_exponent",
    "depth_exponent",
    "log_depth",
    "pipeline_wait",
}
AT_LEAST_ONE = {"domain_size", "sparsity", "active_experts", "overlap_exponent", "reference_layers"}
AT_MOST_ONE = {"max_utilisation", "batch_sparsity_exponent", "pipeline_wait"}
LARGEST = 1e30
"""Stands for infinity: rates and sizes of this order never bind, and slopes stay finite [1]."""

LOWEST, HIGHEST = 1e18, 1e42
"""Training computes that make sense [flop]."""

WORDS = ("fp8", "bf16", "fp32")
"""Number formats in the order of preference."""


def chip_fields(entry: ChipEntry) -> dict[str, float]:
    """Fields of a scenario from a catalogue chip and its network, in SI units.

    The number format is the narrowest that the catalogue states a peak for: fp8, else bf16, else fp32.
    """
    numbers = entry.numbers
    precision = next(name for name in WORDS if f"peak_tflops_{name}" in entry.stated)
    size = FORMATS[PRECISIONS.index(precision)].matmul_bytes
    # From Tflop/s, GB/s and us to SI units.
    return {
        "peak_flops": numbers[f"peak_tflops_{precision}"] * 1e12,
        "memory_bandwidth": numbers["memory_gb_per_s"] * GB,
        "memory_bytes": numbers["memory_gb"] * GB,
        "domain_size": numbers["domain_size"],
        "link_bandwidth": numbers["link_gb_per_s"] * GB,
        "network_bandwidth": numbers["network_gb_per_s"] * GB,
        "link_latency": numbers["link_latency_us"] * 1e-6,
        "network_latency": numbers["network_latency_us"] * 1e-6,
        "weight_bytes": size,
        "activation_bytes": size,
        "gradient_bytes": size,
    }


def checked_number(where: str, name: str, value: Any) -> float:
    """Checked value of a scenario's field, from a number or a table with a `value`; infinity becomes `LARGEST`.

    Args:
        where: place of the value for error messages.
        name: field of `FrontierScenario`.
        value: number, or table with a `value`.

    Raises:
        InputError: not a number, or out of range.
    """
    # Above 0: from the smallest positive number.
    low = 1.0 if name in AT_LEAST_ONE else 0.0 if name in AT_LEAST_ZERO else sys.float_info.min
    high = 1.0 if name in AT_MOST_ONE else math.inf
    # Infinity would spoil slopes.
    return min(number_of(f"{where}: {name}", value, _valid_range(name), low, high), LARGEST)


def _valid_range(name: str) -> str:
    """Valid values of a field, in words."""
    low = "a number of at least 1" if name in AT_LEAST_ONE else "a number above 0"
    low = "a number of at least 0" if name in AT_LEAST_ZERO else low
    return f"{low} and at most 1" if name in AT_MOST_ONE else low


def _fields(where: str, table: Mapping[str, Any], hardware: Hardware) -> dict[str, float]:
    """Fields that a table of the file states, itself or through its chip."""
    fields: dict[str, float] = {}
    if "gpu" in table:
        try:
            fields |= chip_fields(hardware[str(table["gpu"])])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    numbers = {name: value for name, value in table.items() if name not in TEXTS}
    check_keys(where, numbers, FIELDS, "a field of a scenario")
    return fields | {name: checked_number(where, name, value) for name, value in numbers.items()}


@functools.cache
def tables() -> dict[str, Any]:
    """Content of the shipped `data/limits.toml`."""
    return read_toml(data_path("limits.toml"))


def evolve(fields: Mapping[str, float], years: float) -> dict[str, float]:
    """Fields of a chip after some years of the growth factors per year in `data/limits.toml` [trends]."""
    growth = {name: entry["value"] for name, entry in tables()["trends"].items()}
    return {name: value * growth.get(name, 1.0) ** years for name, value in fields.items()}


def load_scenarios(path: str | Path | None = None, hardware: Hardware | None = None) -> dict[str, FrontierScenario]:
    """Scenarios by name: `default`, the other shipped scenarios, and those of a file.

    Args:
        path: a TOML file with further scenarios; None for the shipped scenarios alone.
        hardware: catalogue of chips; the shipped catalogue where None.

    Raises:
        InputError: a file that is missing or malformed, an unknown field or chip, a number out of range; one line.
    """
    hardware = hardware or load_hardware()
    shipped = tables()
    default = _fields("limits.toml: default", shipped["default"], hardware)
    library = {"default": FrontierScenario(**default)}
    sources = [("limits.toml", shipped["scenarios"])]
    if path is not None:
        own = read_toml(Path(path)).get("scenarios")
        if not isinstance(own, dict) or not own:
            raise InputError(f"{path}: no scenarios; expected at least one table such as [scenarios.my-cluster]")
        sources.append((str(path), own))
    for file, scenarios in sources:
        for name, table in scenarios.items():
            where = f"{file}: scenarios.{name}"
            if not isinstance(table, dict):
                raise InputError(f"{where} must be a table of fields")
            # A scenario states differences from the default.
            fields = {**default, **_fields(where, table, hardware)}
            years = number_of(f"{where}: years", table.get("years", 0.0), "a number from -50 to 50", -50.0, 50.0)
            library[name] = FrontierScenario(**evolve(fields, years))
    return library


def scenario_tables(path: str | Path | None = None) -> dict[str, Mapping[str, Any]]:
    """Tables of the scenarios as stated in their files, by name; a table without a chip gets the chip of `default`."""
    own = {} if path is None else read_toml(Path(path)).get("scenarios", {})
    default = tables()["default"]
    named = {"default": default, **tables()["scenarios"], **own}
    return {name: {"gpu": default["gpu"], **table} for name, table in named.items()}


def scenario_descriptions(path: str | Path | None = None) -> dict[str, str]:
    """Descriptions of the scenarios, by name."""
    return {name: str(table.get("description", name)) for name, table in scenario_tables(path).items()}


def scenario(name: str = "default", *, chip_id: str | None = None, **changes: float | int) -> FrontierScenario:
    """A shipped scenario, with changed fields: `scenario("batch-x10")`.

    Args:
        name: name of the scenario.
        chip_id: catalogue id of a chip that replaces the scenario's chip.
        changes: changed fields of `FrontierScenario`.

    Raises:
        InputError: unknown name, chip or field, or a number out of range.
    """
    named = scenario_named(name, load_scenarios())
    if chip_id is not None:
        named = on_chip(named, load_hardware()[chip_id])
    return dataclasses.replace(named, **_fields("scenario", changes, load_hardware()))


def on_chip(scenario: FrontierScenario, entry: ChipEntry) -> FrontierScenario:
    """Scenario with another chip and the network of the chip."""
    return dataclasses.replace(scenario, **chip_fields(entry))


def scenario_named(name: str, library: Mapping[str, FrontierScenario]) -> FrontierScenario:
    """Scenario of a name in a library of scenarios.

    Raises:
        InputError: unknown name.
    """
    if name not in library:
        raise InputError(f"scenario {name!r} is not known; {nearest(name, library)}")
    return library[name]


DEPTH_STEPS = 6
"""Newton steps for a depth that depends on the width; each at least squares the relative error [1]."""


class FrontierWork(NamedTuple):
    """Model, data and batch at a training compute, as natural logarithms.

    Attributes:
        log_params: active parameters N [1].
        log_tokens: training tokens D [token].
        log_batch: batch B [token].
        log_layers: depth L [1].
        log_width: model width d [1].
        log_ff: width f of an expert's MLP [1].
        log_experts: experts of a layer E [1].
        log_active: active experts of a token k [1].
    """

    log_params: Array
    log_tokens: Array
    log_batch: Array
    log_layers: Array
    log_width: Array
    log_ff: Array
    log_experts: Array
    log_active: Array


def depth_and_width(log_params: Array, scenario: FrontierScenario) -> tuple[Array, Array]:
    """Natural logarithms of depth L and width d of a stack of MLP blocks with N = 2 k L d f parameters [1]."""
    log_shape = log_params - jnp.log(2.0 * scenario.ff_ratio * scenario.active_experts)  # of L d^2
    power = jnp.log(scenario.reference_layers) + scenario.depth_exponent * (
        log_params - jnp.log(scenario.reference_params)
    )
    # Newton on L - exp(power) - kappa ln(d / d0), with d = sqrt(shape / L); exact at once where kappa is zero.
    offset = 0.5 * log_shape - jnp.log(scenario.log_depth_width)
    layers = jnp.exp(power) + larger(scenario.log_depth, 1.0)
    for _ in range(DEPTH_STEPS):
        excess = layers - jnp.exp(power) - scenario.log_depth * (offset - 0.5 * jnp.log(layers))
        # Slope 1 + kappa / (2 L); a layer at least.
        layers = larger(layers - excess / (1.0 + 0.5 * scenario.log_depth / layers), 1.0)
    log_layers = jnp.log(layers)
    # d = sqrt(shape / L)
    return log_layers, 0.5 * (log_shape - log_layers)


def workload(log_flop: Float[ArrayLike, ""], scenario: FrontierScenario) -> FrontierWork:
    """Model, data and batch at a training compute, by the scaling laws of a scenario.

    Args:
        log_flop: natural logarithm of the training compute [flop].
        scenario: assumptions with the scaling laws.
    """
    # T = 6 r N^2
    log_params = 0.5 * jnp.subtract(log_flop, jnp.log(6.0 * scenario.tokens_per_param))
    log_tokens = log_params + jnp.log(scenario.tokens_per_param)
    log_batch = (
        jnp.log(scenario.reference_batch)
        + scenario.batch_exponent * (log_flop - jnp.log(scenario.reference_flop))
        + jnp.log(scenario.batch_multiplier)
        + scenario.batch_sparsity_exponent * jnp.log(scenario.sparsity)
    )
    log_layers, log_width = depth_and_width(log_params, scenario)
    log_active = jnp.log(scenario.active_experts)
    return FrontierWork(
        log_params,
        log_tokens,
        # A batch is at most all data.
        smaller(log_batch, log_tokens),
        log_layers,
        log_width,
        log_width + jnp.log(scenario.ff_ratio),
        log_active + jnp.log(scenario.sparsity),
        log_active,
    )


def log_step_limit(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Natural logarithm of the longest time of a batch with which the run ends in time, t_train B / D [s]."""
    return jnp.log(scenario.training_time) + work.log_batch - work.log_tokens


def log_ideal_chip_seconds(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Natural logarithm of the chips times seconds of a batch at the chip's peak, 6 N B / C [chip s]."""
    return math.log(6.0) + work.log_params + work.log_batch - jnp.log(scenario.peak_flops)


SEQUENTIAL_MATMULS = 4.0
"""Matmuls of a layer that follow each other: two forward, two backward [1]."""


def wall_exponent(scenario: FrontierScenario) -> Array:
    r"""Exponent of the latency wall in run length and batch, $1 / (1/2 - \beta + \lambda/2)$ [1].

    The training compute of the wall is proportional to this power of (run length times batch) / (latency times depth).
    With an exponent of zero or less no wall exists: the number of steps falls faster with compute than depth rises.
    """
    return jnp.asarray(1.0 / (0.5 - scenario.batch_exponent + 0.5 * scenario.depth_exponent))


def log_latency_wall(scenario: FrontierScenario) -> Array:
    r"""Training compute beyond which latency alone takes longer than the run, natural logarithm [flop].

    Every batch takes at least $c\,\tau L$ with kernel latency $\tau$ and $c$ sequential matmuls per layer. The wall
    solves $(D / B)\, c\, \tau L = t_{train}$, in which every factor is a power of T.

    Args:
        scenario: assumptions; `log_depth` is ignored, the depth is its power law.

    Returns:
        Logarithm of the wall; infinite if there is none.
    """
    exponent = 0.5 - scenario.batch_exponent + 0.5 * scenario.depth_exponent
    log_start = jnp.log(scenario.reference_flop)
    log_params = 0.5 * (log_start - jnp.log(6.0 * scenario.tokens_per_param))
    log_batch = (
        jnp.log(scenario.reference_batch)
        + jnp.log(scenario.batch_multiplier)
        + scenario.batch_sparsity_exponent * jnp.log(scenario.sparsity)
    )
    # ln(D / B)
    log_steps = log_params + jnp.log(scenario.tokens_per_param) - log_batch
    log_layers = jnp.log(scenario.reference_layers) + scenario.depth_exponent * (
        log_params - jnp.log(scenario.reference_params)
    )
    # ln((D / B) c tau L)
    log_taken = log_steps + log_layers + jnp.log(SEQUENTIAL_MATMULS * scenario.kernel_latency)
    distance = jnp.log(scenario.training_time) - log_taken
    # The inner `where` keeps gradients finite.
    return jnp.where(exponent > 0.0, log_start + distance / jnp.where(exponent > 0.0, exponent, 1.0), jnp.inf)
