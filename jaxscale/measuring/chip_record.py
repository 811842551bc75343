r"""Record of a chip from its timed kernels: peaks, bandwidths, matmul efficiency, coefficients of traced steps.

A chip of the catalogue keeps the peaks and the memory bandwidth of its data sheet. For an unknown chip, the bandwidth
is the best attained rate of streams, and the peak is the best attained rate of matmuls divided by 0.9. Relative to the
peaks

- the anchor is the efficiency e of large matmuls in the terms of the training step (`costs/matmul.py`), fitted together
  with half area and exposed traffic;
- coefficients of traced steps are fitted to the terms of their prediction: each kernel is traced, and

$$ \min_c \sum_i \rho\left( \frac{\log t_i(c) - \log t_i}{\sigma} \right)
   + \sum_p \rho\left( \frac{\log c_p - \log c^0_p}{s_p} \right) $$

with the priors of `data/kernels.toml` and the soft-l1 loss;
- bandwidth and latency of the links are fitted to the times of the collectives by the ring model at its usual
  efficiencies.
"""

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import least_squares

from jaxscale.base.arrays import as_arrays, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.base.record_file import toml_text
from jaxscale.base.units import GB
from jaxscale.calibration.coefficients import Coefficients, prior_medians, priors
from jaxscale.calibration.kernel_coefficients import kernel_coefficients, kernel_priors
from jaxscale.costs.collectives import gather_time, reduce_time
from jaxscale.costs.machine import effective_link, machine_of
from jaxscale.costs.matmul import matmul_rates, matmul_time
from jaxscale.hardware.catalogue import ChipEntry, Hardware, cluster, load_hardware, parsed_chip
from jaxscale.hardware.cluster import Chip, Cluster, Network
from jaxscale.hardware.formats import mean_over_formats
from jaxscale.measuring.timed_kernels import program_of
from jaxscale.measuring.timing import UNKNOWN_DRIFT, CollectiveTiming, Drift, Timing
from jaxscale.plans.plan import Plan
from jaxscale.tracing import KernelRows, kernel_rows, trace, traced_kernel_times

OUTLIER = 0.05
"""Log error of a matmul above which the loss is linear [1]."""

NOISE = 0.1
"""Scatter of a timed kernel about the terms of traced steps [1]."""

MATMUL = ("matmul_efficiency", "matmul_half_area", "matmul_exposed_bytes")
"""Coefficients of training identified by single matmuls."""

BEST_SHARE = 0.9
"""Share of the peak attained by the best matmul, for the peak of a chip without data sheet: 0.95 on TPU v4 to v5p,
0.87 on A100, 0.80 on H100 (MAMF of stas00/ml-engineering, 2025-06) [1]."""

MOST_EFFICIENT = 0.99
"""Upper bound of efficiencies in a record [1]."""


def fitted_logs(
    names: Sequence[str], log_error: Callable[[Coefficients], Array]
) -> tuple[dict[str, float], Float[np.ndarray, " row"]]:
    """Coefficients of training that minimise a robust sum of squared log errors, from their prior medians.

    Args:
        names: names of the coefficients.
        log_error: function from the coefficients to the log error of each row [1].

    Returns:
        Values by name, and the log errors at the minimum [1], [row].
    """
    start = prior_medians()

    def errors(logs: Array) -> Array:
        return log_error(with_fields(start, {name: jnp.exp(log) for name, log in zip(names, logs, strict=True)}))

    found, left = _minimised(errors, np.log([priors()[name].median for name in names]), OUTLIER)
    return {name: float(value) for name, value in zip(names, np.exp(found), strict=True)}, left


def _minimised(residuals: Callable[[Array], Array], start: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Minimiser of a robust sum of squares, and the residuals at the minimum."""
    compiled, slopes = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    jacobian: Any = lambda x: np.asarray(slopes(x))  # noqa: E731
    found = least_squares(lambda x: np.asarray(compiled(x)), start, jacobian, loss="soft_l1", f_scale=scale)
    return found.x, np.asarray(compiled(jnp.asarray(found.x)))


def fitted_matmuls(
    sizes: Float[np.ndarray, "3 row"],
    is_gradient: np.ndarray,
    rates: Float[np.ndarray, " row"],
    chips: Cluster,
    precision: str = "bf16",
) -> tuple[dict[str, float], Float[np.ndarray, " row"]]:
    """Coefficients `MATMUL` of training from the rates of single matmuls.

    Args:
        sizes: m, k and n of each matmul [1].
        is_gradient: whether the matmul sums over tokens, as for gradients of weights [row].
        rates: attained rates [flop/s].
        chips: cluster with the relevant peak and memory bandwidth.
        precision: number format.

    Returns:
        Values by name, and log errors [row].
    """
    m, k, n = jnp.asarray(sizes)
    tokens, width = jnp.where(is_gradient, k, m), jnp.where(is_gradient, m, k)
    machine, plan = as_arrays((chips, Plan(precision=precision)))

    def log_error(coefficients: Coefficients) -> Array:
        element_bytes = mean_over_formats(plan.precision, lambda entry: entry.element_bytes)
        rated = matmul_rates(plan.precision, element_bytes, machine_of(machine, coefficients), coefficients)

        def seconds(tokens: Array, inner: Array, outer: Array) -> Array:
            return matmul_time(tokens, inner * outer, outer + inner, rated)

        return jnp.log(2.0 * m * n * k / (jax.vmap(seconds)(tokens, width, n) * rates))

    return fitted_logs(MATMUL, log_error)


def fitted_links(timings: Sequence[CollectiveTiming]) -> dict[str, float]:
    """Bandwidth [GB/s] and hop latency [us] of the links by name, fitted to collectives; empty without collectives."""
    told = [one for one in timings if one.collective != "all_to_all"]
    if not told:
        return {}
    size, n, measured = (
        jnp.asarray([float(getattr(one, name)) for one in told]) for name in ("size", "n_gpus", "seconds")
    )
    is_reduce = jnp.asarray([one.collective == "all_reduce" for one in told])
    start = np.log([max(one.bus_bandwidth for one in told), 2e-6])
    most, coefficients = float(max(one.n_gpus for one in told)), prior_medians()

    def residuals(logs: Array) -> Array:
        bandwidth, latency = jnp.exp(logs)
        domain = jnp.asarray([most, most, 1e12])
        link = effective_link(Network(domain, jnp.full(3, bandwidth), jnp.full(3, latency)), coefficients)
        rings = jax.vmap(lambda v, n: (reduce_time(v, n, 1.0, link), gather_time(v, n, 1.0, link)))(size, n)
        off = jnp.log(jnp.where(is_reduce, *rings) / measured) / NOISE
        return jnp.append(off, (logs[1] - start[1]) / 2.0)

    found, _ = _minimised(residuals, start, 1.0)
    return {"link_gb_per_s": float(np.exp(found[0])) / GB, "link_latency_us": float(np.exp(found[1])) * 1e6}


def fitted_kernels(
    timings: Sequence[Timing], chip: Chip, attention: str = "xla"
) -> tuple[dict[str, float], np.ndarray]:
    """Coefficients of traced steps from timed kernels.

    Args:
        timings: timings of kernels.
        chip: chip with the relevant peaks and memory bandwidth.
        attention: timed implementation of attention.

    Returns:
        Values by name, and log errors of predicted times [row].
    """
    works = []
    for one in timings:
        program = program_of(one.kernel, attention if one.kernel.dtype == "bf16" else "xla")
        works.append(kernel_rows(trace(program.function, *program.shapes)))
    longest = max(len(rows.code) for rows in works)
    # Padding takes no time: no flop, no bytes, no launches.
    columns = [[np.pad(np.asarray(leaf), (0, longest - len(leaf))) for leaf in rows] for rows in works]
    rows = KernelRows(*(jnp.asarray(np.stack(leaves)) for leaves in zip(*columns, strict=True)))
    rows = rows._replace(area=jnp.maximum(rows.area, 1.0))
    codes = {int(code) for one in works for code in one.code}
    names = ["matmul_efficiency", "half_area", "exposed_share", "traffic_efficiency", "kernel_launch"]
    names += [name for name, code in (("attention_efficiency", 10), ("gather_passes", 12)) if code in codes]
    table, base = kernel_priors()["coefficients"], kernel_coefficients("prior")
    start, spread = (np.asarray([float(table[name][key]) for name in names]) for key in ("median", "spread"))
    measured = jnp.asarray([one.seconds for one in timings])

    def log_errors(logs: Array) -> Array:
        c = with_fields(base, {name: jnp.exp(log) for name, log in zip(names, logs, strict=True)})
        times = jax.vmap(lambda one: traced_kernel_times(one, chip, c))(rows)
        return jnp.log((sum(times) - times.host_per_step) / measured)

    def residuals(logs: Array) -> Array:
        return jnp.concatenate([log_errors(logs) / NOISE, (logs - np.log(start)) / spread])

    found, left = _minimised(residuals, np.log(start), 1.0)
    values = dict(zip(names, np.exp(found).tolist(), strict=True))
    values["matmul_efficiency"] = min(values["matmul_efficiency"], MOST_EFFICIENT)
    return values, NOISE * left[: len(timings)]


@dataclass(frozen=True)
class ChipRecord:
    """Record of a chip from its timed kernels.

    Attributes:
        id: catalogue id.
        name: full name.
        is_known: whether the chip is in the catalogue, so that peaks and memory bandwidth are from the data sheet.
        numbers: properties of the chip by column of the table of chips, in its units.
        attained: best rate of matmuls by number format, and of streams as `memory` [flop/s], [byte/s].
        anchor: matmul efficiency of training [1].
        kernels: coefficients of traced steps.
        errors: log errors of predicted times of the timed kernels [1].
        drift: slowdown of the reference kernel during the measurement.
        source: method and software of the measurement.
    """

    id: str
    name: str
    is_known: bool
    numbers: Mapping[str, float]
    attained: Mapping[str, float]
    anchor: float
    kernels: Mapping[str, float]
    errors: np.ndarray = field(compare=False)
    drift: Drift
    source: str

    def entry(self) -> ChipEntry:
        """Chip as an entry of a catalogue."""
        return parsed_chip(self.source, self.id, self.numbers)

    def document(self) -> dict[str, Any]:
        """Tables of a hardware file: the chip, its matmul efficiency, its coefficients of traced steps."""
        date = datetime.date.today().isoformat()
        anchor = {"chips": [self.id], "matmul_efficiency": self.anchor, "source": self.source, "date": date}
        return {
            "chips": {self.id: {"name": self.name, "source": self.source, **self.numbers}},
            "anchors": [anchor],
            "kernels": {self.id: dict(self.kernels)},
        }

    def save(self, path: str | Path) -> None:
        """Write a hardware file for the option `--hardware`, atomically.

        Raises:
            InputError: the folder is missing or closed to writing.
        """
        write_whole(path, toml_text(self.document(), "jaxscale measure; use by --hardware"))


def best_rates(timings: Sequence[Timing]) -> dict[str, float]:
    """Best rate of matmuls by number format [flop/s], and of large streams as `memory` [byte/s].

    Only streams of at least a quarter of the largest size count: smaller arrays may stay in a cache.

    Raises:
        InputError: no timed matmul or no timed stream.
    """
    rates: dict[str, float] = {}
    for one in timings:
        if one.kernel.op == "matmul":
            rates[one.kernel.dtype] = max(rates.get(one.kernel.dtype, 0.0), one.rate)
    streams = [one for one in timings if one.kernel.op == "stream"]
    large = 0.25 * max((one.bytes for one in streams), default=0.0)
    if not rates or not streams:
        raise InputError("no matmul or no stream was timed; expected more --seconds")
    rates["memory"] = max(one.bytes / one.seconds for one in streams if one.bytes >= large)
    return rates


def chip_record(
    timings: Sequence[Timing],
    collectives: Sequence[CollectiveTiming] = (),
    *,
    chip_id: str,
    name: str = "",
    memory_bytes: float,
    n_devices: int = 1,
    launch: float,
    drift: Drift = UNKNOWN_DRIFT,
    source: str = "jaxscale measure",
    attention: str = "xla",
    hardware: Hardware | None = None,
) -> ChipRecord:
    """Record of a chip from timings; equal timings give an equal record.

    Args:
        timings: timings of kernels.
        collectives: timings of collectives on groups of devices of this chip.
        chip_id: catalogue id, or a new id.
        name: full name; the id where empty.
        memory_bytes: memory of a device [byte].
        n_devices: number of devices joined by links [1].
        launch: time of an empty program [s].
        drift: slowdown of the reference kernel during the measurement.
        source: method and software of the measurement.
        attention: timed implementation of attention.
        hardware: catalogue to search for the chip; the shipped catalogue where None.

    Raises:
        InputError: too few timings.
    """
    catalogue = hardware or load_hardware()
    attained = best_rates(timings)
    known = catalogue.chips.get(chip_id)
    if known is not None:
        numbers = {key: known.numbers[key] for key in known.stated}
    else:
        numbers = {"memory_gb": memory_bytes / GB, "memory_gb_per_s": attained["memory"] / GB}
        numbers |= {
            f"peak_tflops_{dtype}": rate / BEST_SHARE / 1e12 for dtype, rate in attained.items() if dtype != "memory"
        }
        numbers |= {"domain_size": float(n_devices)} if n_devices > 1 else {}
    numbers |= fitted_links(collectives)
    own = Hardware({chip_id: parsed_chip(source, chip_id, numbers)})
    (main, _), *_ = Counter(one.kernel.dtype for one in timings if one.kernel.op == "matmul").most_common(1)
    chips = cluster(chip_id, 1, hardware=own)
    matmuls = [one for one in timings if one.kernel.op == "matmul" and one.kernel.dtype == main]
    sizes = np.asarray([[getattr(one.kernel, axis) for one in matmuls] for axis in "mkn"], float)
    is_gradient = np.asarray([one.kernel.variant == "wgrad" for one in matmuls])
    trained, _ = fitted_matmuls(sizes, is_gradient, np.asarray([one.rate for one in matmuls]), chips, main)
    # The terms of traced steps run 32-bit products at the rate of tf32, and have no grouped matmuls.
    told = [
        one
        for one in timings
        if one.kernel.op != "grouped_matmul" and not (one.kernel.op == "matmul" and one.kernel.dtype != main)
    ]
    kernels, errors = fitted_kernels(told, chips.chip, attention)
    return ChipRecord(
        id=chip_id,
        name=name or chip_id,
        is_known=known is not None,
        numbers=numbers,
        attained=attained,
        anchor=min(trained["matmul_efficiency"], MOST_EFFICIENT),
        kernels={**kernels, "step_launch": launch},
        errors=errors,
        drift=drift,
        source=source,
    )
