"""Fit two powers to Fernandez et al.; writes fits/results/hardware_trends.toml (20 seconds).

Powers of kernels bound by memory and of exposed collectives: least squares of the three published powers, the level at
128 chips, its fall to 2,048 and what tensor parallelism adds there, with normal priors as wide as what is published of
such activities. Step times are those of the default calibration: to be run after `fits/calibrate.py`. No throughput and
no MFU is looked at.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import least_squares

from jaxscale.calibration.record import Fit, load_fit
from jaxscale.trends.deployment_library import table, unfitted_power
from jaxscale.trends.measured_series import published_values, reproduce

RESULT = Path(__file__).parent / "results" / "hardware_trends.toml"
POWER_FIGURES = ("power_level", "power_fall", "tensor_parallel_power")
POWERS = ("memory", "network")


def fit_power(start: Mapping[str, float], fit: Fit) -> dict[str, float]:
    """Two powers: least squares of the published figures of power, by their uncertainty, and of the priors."""
    wanted, entries = published_values(), table()["published"]
    prior = np.asarray([start[name] for name in POWERS])
    spread = np.asarray([table()["power"][name]["spread"] for name in POWERS])

    def power(shares: np.ndarray) -> dict[str, float]:
        return {**start, **dict(zip(POWERS, map(float, shares), strict=True))}

    def misfit(shares: np.ndarray) -> np.ndarray:
        answers = reproduce(power(shares), fit).values
        figures = [(answers[name] - wanted[name][0]) / entries[name]["uncertainty"] for name in POWER_FIGURES]
        return np.concatenate([figures, (shares - prior) / spread])

    return power(least_squares(misfit, prior, diff_step=1e-3).x)


def to_toml(power: Mapping[str, float], data_hash: str) -> str:
    """The result as TOML text."""
    lines = [
        "# Written by fits/hardware_trends.py: two powers fitted to arXiv 2411.13055.",
        "",
        "[power]",
        *(f"{name} = {power[name]:.4g}" for name in POWERS),
        "",
        "[provenance]",
        f'fit = "{data_hash}"',
        f"fitted_to = {list(POWER_FIGURES)}".replace("'", '"'),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit and write."""
    jax.config.update("jax_enable_x64", True)
    start, fit = unfitted_power(), load_fit()
    power = fit_power(start, fit)
    before, after = (reproduce(shares, fit) for shares in (start, power))
    RESULT.write_text(to_toml(power, dict(fit.provenance)["data_sha256"]), encoding="utf-8")
    print(f"{'':25s}{'published':>12s}{'before':>12s}{'after':>12s}")
    for name, (value, _) in published_values().items():
        print(f"{name:25s}{value:12.4g}{before.values[name]:12.4g}{after.values[name]:12.4g}")
    print("best tp", after.best_degree)


if __name__ == "__main__":
    main()
