"""Efficiencies and latencies that kernels and collectives reach on their own; writes fits/companion.md.

Run from the repository: `python fits/companion.py` (seconds). The cost terms of the package are fitted to
data/companion/gemm_efficiency.csv and collectives.csv, one chip or system at a time. The values are behind the priors
of data/coefficients.toml, but for the latency of the network: here that of hops of a tree, which rings of FSDP do
not take. Whole training steps then move them, within the priors' spreads.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from markdown_text import markdown_table

from jaxscale.base.arrays import as_arrays
from jaxscale.base.documents import data_path
from jaxscale.calibration.coefficients import Coefficients, priors
from jaxscale.costs.collectives import Collective, gather_time, reduce_time
from jaxscale.costs.machine import Link, effective_link
from jaxscale.hardware.catalogue import cluster
from jaxscale.measuring.chip_record import fitted_logs, fitted_matmuls

FOLDER = Path(__file__).parent
SCALE_UP = ("scale_up_efficiency", "collective_launch", "link_latency_scale")
SCALE_OUT = ("scale_up_efficiency", "scale_out_efficiency", "collective_launch", "network_latency_scale")

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

    @classmethod
    def of(cls, what: str, values: dict[str, float], errors: np.ndarray) -> "Fit":
        """Outcome from values and log errors."""
        return cls(what, len(errors), values, float(np.sqrt(np.mean(errors**2))))


def read(table: str) -> list[Row]:
    """Rows of a companion table."""
    with data_path(f"companion/{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows: Sequence[Row], name: str) -> Array:
    """A column of numbers [row]."""
    return jnp.asarray([float(row[name]) for row in rows])


def fit_matmuls(gpu: str, catalogue_id: str) -> Fit:
    """Efficiency of matmuls by shape on one chip; the weight gradient (NT) sums over tokens."""
    rows = [row for row in read("gemm_efficiency") if row["op"] == "matmul" and row["gpu"] == gpu]
    sizes = np.asarray([column(rows, name) for name in ("m", "k", "n")])
    is_gradient = np.asarray([row["layout"] == "NT" for row in rows])
    chips = cluster(catalogue_id, 1)
    rates = float(chips.chip.peak("bf16")) * np.asarray(column(rows, "efficiency"))
    return Fit.of(f"matmuls, {gpu}", *fitted_matmuls(sizes, is_gradient, rates, chips))


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

    return Fit.of(what, *fitted_logs(names, log_error))


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
