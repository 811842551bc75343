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

from jaxscale.calibration.coefficients import constrain, names, priors, unconstrain
from jaxscale.trends.deployment_library import deployment, table
from jaxscale.trends.layout import Deployment
from jaxscale.trends.measured_series import published_values, weak_figures, weak_outcomes

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

MOST_FACTOR = 1e3
"""Largest factor on a coefficient, or on the odds of a fraction, and over one the least [1]."""


def with_factor(given: Deployment, name: str, log_factor: float) -> Deployment:
    """A deployment with a coefficient, or the odds of a fraction, times a factor of which the log is given."""
    coordinates = unconstrain(given.coefficients)
    coordinates[names().index(name)] += log_factor
    return eqx.tree_at(lambda one: one.coefficients, given, constrain(coordinates))


def needed_log_factor(given: Deployment, name: str, fall: float) -> float | None:
    """Log of the factor with which the throughput falls as measured; None where no factor does."""

    def miss(log_factor: float) -> float:
        return weak_figures(weak_outcomes(with_factor(given, name, log_factor)))[0]["throughput_fall"] - fall

    most = np.log(MOST_FACTOR)
    # Towards the end that makes large clusters slower.
    end = -most if miss(-most) < 0.0 else most
    return brentq(miss, 0.0, end, xtol=1e-4) if miss(0.0) * miss(end) < 0.0 else None


def row_of(given: Deployment, name: str, fall: float) -> tuple[str, ...]:
    """A cause with the value that it would have to have, and the figures that come with this value."""
    prior, now = priors()[name], float(getattr(given.coefficients, name))
    log_factor = needed_log_factor(given, name, fall)
    if log_factor is None:
        return CAUSES[name], f"{now:.3g}", "no value", *("-",) * 4
    moved = with_factor(given, name, log_factor)
    weak = weak_outcomes(moved)
    figures, _ = weak_figures(weak)
    shares = (figures["tensor_parallel_gain"], figures["h100_mfu"], float(weak.exposed_share[0]))
    percent = (f"{100.0 * share:.1f}" for share in shares)
    needed = f"{float(getattr(moved.coefficients, name)):.3g}"
    return CAUSES[name], f"{now:.3g}", needed, f"{log_factor / prior.spread_of_levels:+.1f}", *percent


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
