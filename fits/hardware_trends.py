"""Fit two hop latencies, and two powers, to Fernandez et al.; writes fits/results/hardware_trends.toml (20 seconds).

Hop latencies: least squares of the fall of throughput and of the gain by tensor parallelism, each in units of its
accepted deviation, with a log-normal prior at NCCL's own constants. Powers of kernels bound by memory and of exposed
collectives: least squares of the published level at 128 chips and of the difference that tensor parallelism makes at
2,048, with normal priors as wide as what is published of such activities. Neither the fall of power, nor any MFU, is
looked at.
"""

import dataclasses
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import least_squares

from jaxscale.calibration.record import Fit
from jaxscale.trends.deployment_library import Overlay, calibrated, table, unfitted_overlay
from jaxscale.trends.published_scaling import FIGURES, Reproduction, published_values, reproduce

RESULT = Path(__file__).parent / "results" / "hardware_trends.toml"
LATENCY_FIGURES = ("throughput_fall", "tensor_parallel_gain")
POWER_FIGURES = ("power_level", "tensor_parallel_power")
POWERS = ("memory", "network")


def at_latency(log_latency: np.ndarray, start: Overlay) -> Overlay:
    """The overlay with other hop latencies."""
    inside, between = np.exp(log_latency)
    return dataclasses.replace(start, hop_latency=(float(inside), float(between)))


def at_power(shares: np.ndarray, start: Overlay) -> Overlay:
    """The overlay with other shares of `POWERS`."""
    return dataclasses.replace(start, power={**start.power, **dict(zip(POWERS, map(float, shares), strict=True))})


def fit_latencies(start: Overlay, fit: Fit) -> tuple[Overlay, np.ndarray]:
    """Hop latencies, and the covariance of their logarithms."""
    wanted = published_values()
    prior, spread = np.log(start.hop_latency), np.asarray(start.spread)

    def residuals(log_latency: np.ndarray) -> np.ndarray:
        found = reproduce(at_latency(log_latency, start), fit).values
        misfit = [(found[name] - wanted[name][0]) / wanted[name][1] for name in LATENCY_FIGURES]
        return np.concatenate([misfit, (log_latency - prior) / spread])

    # Where short hops leave every collective hidden, the slope is zero: a second search begins at long ones.
    searches = [least_squares(residuals, begin, diff_step=1e-3) for begin in (prior, prior + spread)]
    best = min(searches, key=lambda search: search.cost)
    return at_latency(best.x, start), np.linalg.inv(best.jac.T @ best.jac)


def fit_power(start: Overlay, fit: Fit) -> Overlay:
    """Two powers: least squares of the published level and difference, by their uncertainty, and of the priors."""
    wanted, entries = published_values(), table()["published"]
    prior = np.asarray([start.power[name] for name in POWERS])
    spread = np.asarray([table()["power"][name]["spread"] for name in POWERS])

    def misfit(shares: np.ndarray) -> np.ndarray:
        found = reproduce(at_power(shares, start), fit).values
        figures = [(found[name] - wanted[name][0]) / entries[name]["uncertainty"] for name in POWER_FIGURES]
        return np.concatenate([figures, (shares - prior) / spread])

    return at_power(least_squares(misfit, prior, diff_step=1e-3).x, start)


def to_toml(overlay: Overlay, covariance: np.ndarray, data_hash: str, before: Reproduction, after: Reproduction) -> str:
    """The result as TOML text."""
    sigma = np.sqrt(np.diag(covariance))
    lines = [
        "# Written by fits/hardware_trends.py: two hop latencies and two powers fitted to arXiv 2411.13055.",
        "",
        "[hop_latency]",
        f"inside_us = {overlay.hop_latency[0] * 1e6:.4g}",
        f"between_us = {overlay.hop_latency[1] * 1e6:.4g}",
        f"inside_spread = {sigma[0]:.3g}",
        f"between_spread = {sigma[1]:.3g}",
        f"correlation = {covariance[0, 1] / (sigma[0] * sigma[1]):.3g}",
        f"fitted_to = {list(LATENCY_FIGURES)}".replace("'", '"'),
        "",
        "[power]",
        *(f"{name} = {overlay.power[name]:.4g}" for name in POWERS),
        "",
        "[provenance]",
        f'fit = "{data_hash}"',
        f"power_fitted_to = {list(POWER_FIGURES)}".replace("'", '"'),
        "",
        "# Answers with the latencies of NCCL's tables and powers of other publications, then with these.",
    ]
    for name in FIGURES:
        lines += [
            "",
            f"[answers.{name}]",
            f"unfitted = {before.values[name]:.4g}",
            f"fitted = {after.values[name]:.4g}",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit and write."""
    jax.config.update("jax_enable_x64", True)
    start, fit = unfitted_overlay(), calibrated(table()["workload"]["gpu"])
    latencies, covariance = fit_latencies(start, fit)
    overlay = fit_power(latencies, fit)
    before, after = (reproduce(found, fit) for found in (start, overlay))
    data_hash = dict(fit.provenance)["data_sha256"]
    RESULT.write_text(to_toml(overlay, covariance, data_hash, before, after), encoding="utf-8")
    for name, (value, _) in published_values().items():
        print(
            f"{name:25s} published {value:8.4g}  unfitted {before.values[name]:8.4g}  fitted {after.values[name]:8.4g}"
        )
    print("best tp", before.best_degree, after.best_degree)


if __name__ == "__main__":
    main()
