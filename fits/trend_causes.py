"""What each cause of the fall under full sharding would have to be: writes the table of docs/trends.md (1 minute).

One coefficient at a time moves from the calibration's value until throughput per chip falls from 128 to 2,048 H100 as
arXiv 2411.13055 measured. Beside the needed value stand its distance from the prior, in spreads, and the other
published figures with it. Nothing is fitted.
"""

import re
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from markdown_text import markdown_table
from scipy.optimize import brentq

from jaxscale.calibration.coefficients import priors
from jaxscale.trends.deployment_library import deployment, table
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import TENSOR_DEGREES, scaling_outcomes
from jaxscale.trends.published_scaling import published_values

PAGE = Path(__file__).parent.parent / "docs" / "trends.md"
HEAD = ("cause", "now", "needed", "spreads", "gain of tp [%]", "H100 MFU at 256 [%]", "exposed at 128 [%]")
CAUSES = {
    "network_latency_scale": "latency of a hop over the network",
    "link_latency_scale": "latency of a hop inside a node",
    "scale_out_efficiency": "bandwidth of the network",
    "dp_congestion": "loss of bandwidth per doubling of the nodes",
    "fsdp_overlap": "compute that hides gathers",
    "straggler": "wait for the slowest node",
    "collective_launch": "launch of a collective",
}
"""Coefficients that lower the throughput of many chips, and what each says."""

HIDDEN = {"sequence_parallel": True, "tp_overlap": "full"}
"""Software that splits norms over the ranks of tensor parallelism, and hides their collectives."""

FEWEST, MOST = 1e-3, 1e3
"""Range of a coefficient over its present value, of its odds where it is a fraction [1]."""


def with_factor(given: Deployment, name: str, factor: float) -> Deployment:
    """A deployment with a coefficient, or the odds of a fraction, times a factor."""
    value = float(getattr(given.coefficients, name))
    odds = value / (1.0 - value) * factor if priors()[name].kind == "fraction" else np.nan
    moved = value * factor if np.isnan(odds) else odds / (1.0 + odds)
    return eqx.tree_at(lambda one: getattr(one.coefficients, name), given, moved)


def figures_of(given: Deployment) -> dict[str, float]:
    """Fall of throughput per chip, gain of tensor parallelism, utilisation and exposed communication [1]."""
    work, published = table()["workload"], table()["published"]
    chips = (*published["throughput_fall"]["n_chips"], published["h100_mfu"]["n_chips"][0])
    n = np.repeat(chips, len(TENSOR_DEGREES)).astype(float)
    found = scaling_outcomes(given, ParallelLayout(tp=np.tile(TENSOR_DEGREES, 3)), n, work["sequences_per_chip"] * n)
    speed, mfu, exposed = (
        np.asarray(leaf).reshape(3, -1) for leaf in (found.tokens_per_s_per_chip, found.mfu, found.exposed_share)
    )
    return {
        "fall": speed[1, 0] / speed[0, 0] - 1.0,
        "gain": speed[1].max() / speed[1, 0] - 1.0,
        "mfu": mfu[2, 0],
        "exposed": exposed[0, 0],
    }


def needed_factor(given: Deployment, name: str, fall: float) -> float | None:
    """Factor of a coefficient with which the throughput falls as measured; None where no factor does."""

    def miss(log_factor: float) -> float:
        return figures_of(with_factor(given, name, float(np.exp(log_factor))))["fall"] - fall

    low, high = np.log(FEWEST), np.log(MOST)
    # Towards the end that makes large clusters slower.
    end = low if miss(low) < 0.0 else high
    return float(np.exp(brentq(miss, 0.0, end, xtol=1e-4))) if miss(0.0) * miss(end) < 0.0 else None


def row_of(given: Deployment, name: str, fall: float) -> tuple[str, ...]:
    """A cause with the value that it would have to have, and the figures that come with this value."""
    prior, now = priors()[name], float(getattr(given.coefficients, name))
    factor = needed_factor(given, name, fall)
    if factor is None:
        return CAUSES[name], f"{now:.3g}", "no value", *("-",) * 4
    moved = with_factor(given, name, factor)
    figures = figures_of(moved)
    percent = (f"{100.0 * figures[key]:.1f}" for key in ("gain", "mfu", "exposed"))
    needed = f"{float(getattr(moved.coefficients, name)):.3g}"
    return CAUSES[name], f"{now:.3g}", needed, f"{np.log(factor) / prior.spread_of_levels:+.1f}", *percent


def main() -> None:
    """Solve for every cause, write the table between its markers."""
    jax.config.update("jax_enable_x64", True)
    work, (fall, _) = table()["workload"], published_values()["throughput_fall"]
    given = deployment(work["model"], work["gpu"])
    rows = [row_of(given, name, fall) for name in CAUSES]
    hidden = deployment(work["model"], work["gpu"], cells=HIDDEN)
    for name in ("network_latency_scale", "link_latency_scale"):
        cause, *figures = row_of(hidden, name, fall)
        rows.append((f"{cause}, collectives of tp hidden", *figures))
    text = markdown_table(HEAD, rows)
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- causes -->\n", "\n<!-- end of causes -->"
    PAGE.write_text(re.sub(f"{begin}.*?{end}", f"{begin}{text}{end}", page, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
