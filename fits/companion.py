"""Efficiencies and latencies that kernels and collectives reach on their own; writes fits/companion.md.

Run from the repository: `python fits/companion.py` (seconds). The cost terms of the package are fitted to
data/companion/gemm_efficiency.csv and collectives.csv, one chip or system at a time. The values are behind the priors
of data/coefficients.toml, but for the latency of the network: here that of hops of a tree, which rings of FSDP do
not take. Whole training steps then move them, within the priors' spreads.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from markdown_text import markdown_table
from scipy.optimize import least_squares

from jaxscale.base.arrays import as_arrays, with_fields
from jaxscale.base.resources import data_path
from jaxscale.calibration.coefficients import Coefficients, prior_medians, priors
from jaxscale.costs.collectives import Collective, gather_time, reduce_time
from jaxscale.costs.machine import Link, effective_link, machine_of
from jaxscale.costs.matmul import matmul_rates, matmul_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.formats import mean_over_formats
from jaxscale.plans.plan import Plan

FOLDER = Path(__file__).parent
MATMUL = ("matmul_efficiency", "matmul_half_area", "matmul_exposed_bytes")
SCALE_UP = ("scale_up_efficiency", "collective_launch", "link_latency_scale")
SCALE_OUT = ("scale_up_efficiency", "scale_out_efficiency", "collective_launch", "network_latency_scale")
OUTLIER = 0.05
"""Log error from which a row counts linearly [1]."""

Row = Mapping[str, str]


class Fit(NamedTuple):
    """Outcome for one chip or system.

    Attributes:
        what: table and system.
        n: rows.
        values: fitted coefficients by name.
        error: root mean square of the log error [1].
    """

    what: str
    n: int
    values: dict[str, float]
    error: float


def read(table: str) -> list[Row]:
    """Rows of a companion table."""
    with data_path(f"companion/{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows: Sequence[Row], name: str) -> Array:
    """A column of numbers [row]."""
    return jnp.asarray([float(row[name]) for row in rows])


def fit_logs(what: str, names: Sequence[str], log_error: Callable[[Coefficients], Array]) -> Fit:
    """Coefficients that minimise a robust sum of squared log errors, from their prior medians."""
    start = prior_medians()

    def errors(logs: Array) -> Array:
        moved = {name: jnp.exp(value) for name, value in zip(names, logs, strict=True)}
        return log_error(with_fields(start, moved))

    compiled, jacobian = jax.jit(errors), jax.jit(jax.jacfwd(errors))
    first = np.log([priors()[name].median for name in names])
    found = least_squares(
        lambda x: np.asarray(compiled(x)), first, lambda x: np.asarray(jacobian(x)), loss="soft_l1", f_scale=OUTLIER
    )
    final = np.asarray(compiled(jnp.asarray(found.x)))
    values = {name: float(value) for name, value in zip(names, np.exp(found.x), strict=True)}
    return Fit(what, len(final), values, float(np.sqrt(np.mean(final**2))))


def fit_matmuls(gpu: str, catalogue_id: str) -> Fit:
    """Efficiency of matmuls by shape on one chip; the weight gradient (NT) sums over tokens."""
    rows = [row for row in read("gemm_efficiency") if row["op"] == "matmul" and row["gpu"] == gpu]
    m, k, n = (column(rows, name) for name in ("m", "k", "n"))
    is_gradient = jnp.asarray([row["layout"] == "NT" for row in rows])
    tokens, width = jnp.where(is_gradient, k, m), jnp.where(is_gradient, m, k)
    chips, plan = as_arrays((cluster(catalogue_id, 1), Plan()))
    peak = chips.chip.peak("bf16")

    def log_error(coefficients: Coefficients) -> Array:
        element_bytes = mean_over_formats(plan.precision, lambda entry: entry.element_bytes)
        rates = matmul_rates(plan.precision, element_bytes, machine_of(chips, coefficients), coefficients)

        def seconds(tokens: Array, inner: Array, outer: Array) -> Array:
            return matmul_time(tokens, inner * outer, outer + inner, rates)

        reached = 2.0 * m * n * k / (jax.vmap(seconds)(tokens, width, n) * peak)
        return jnp.log(reached / column(rows, "efficiency"))

    return fit_logs(f"matmuls, {gpu}", MATMUL, log_error)


def two_gathers(*arguments: ArrayLike | Link) -> Array:
    """An all-reduce by rings alone: a scatter and a gather [s]."""
    return 2.0 * gather_time(*arguments)


def fit_all_reduces(
    what: str, rows: Sequence[Row], catalogue_id: str, names: Sequence[str], collective: Collective = reduce_time
) -> Fit:
    """Latencies and bandwidths with which a collective takes the time that all-reduces took."""
    sizes, chips = column(rows, "size_bytes"), column(rows, "n_gpus")
    bandwidth = column(rows, "busbw_gb_per_s") * 1e9
    measured = 2.0 * (chips - 1.0) / chips * sizes / bandwidth
    network = as_arrays(cluster(catalogue_id, 8)).network

    def log_error(coefficients: Coefficients) -> Array:
        link = effective_link(network, coefficients)
        seconds = jax.vmap(lambda size, n: collective(size, n, 1.0, link))(sizes, chips)
        return jnp.log(seconds / measured)

    return fit_logs(what, names, log_error)


def all_reduces(source: str, gpu: str) -> list[Row]:
    """All-reduces of one source and chip that state their size and bandwidth."""
    rows = [row for row in read("collectives") if row["collective"] == "all_reduce" and row["gpu"] == gpu]
    return [row for row in rows if row["source"].startswith(source) and row["busbw_gb_per_s"] and row["size_bytes"]]


def fits() -> list[Fit]:
    """Every chip and system."""
    gtc, trends = all_reduces("NVIDIA GTC24", "H100"), all_reduces("arXiv 2411.13055", "H100")
    return [
        fit_matmuls("a100-80gb-pcie", "a100-80gb"),
        fit_matmuls("b200", "b200"),
        fit_all_reduces("all-reduce, 2 to 8 A100", all_reduces("vTrain", "A100"), "a100-80gb", SCALE_UP),
        fit_all_reduces("all-reduce, 32 to 8,192 H100", gtc, "h100-80gb", SCALE_OUT),
        fit_all_reduces("the same, rings alone", gtc, "h100-80gb", SCALE_OUT, two_gathers),
        fit_all_reduces("all-reduce, 32 to 4,096 H100", trends, "h100-80gb", SCALE_OUT),
        fit_all_reduces("the same, rings alone", trends, "h100-80gb", SCALE_OUT, two_gathers),
    ]


def main() -> None:
    """Fit every table and write the page."""
    jax.config.update("jax_enable_x64", True)
    lines = []
    for found in fits():
        for index, (name, value) in enumerate(found.values.items()):
            head = (found.what, f"{found.n}", f"{found.error:.3f}") if index == 0 else ("", "", "")
            lines.append((*head, name, f"{value:.3g}", f"{priors()[name].median:.3g}"))
    columns = ("measured", "rows", "RMS log error", "coefficient", "value", "prior median")
    text = "\n".join(["# Kernels and collectives on their own", "", *__doc__.strip().splitlines()[2:]])
    (FOLDER / "companion.md").write_text(f"{text}\n\n{markdown_table(columns, lines)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
