"""Spreads of the paces of traced workloads: variance components of measured steps, by workload and chip.

Log errors of pairs of workload and chip (median of their rows) are normal, with a variance of the workload, one of
the chip (none on the chip of the decoders to which kernels were fitted) and one of the pair; the three maximise the
likelihood. The scale of single settings (batch of a chip, chips) is that of a Student distribution about these medians.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from workload_rows import DATA, MeasuredStep

from jaxscale.calibration.kernel_coefficients import kernel_priors
from jaxscale.fitting.statistics.student import student_scale

LEAST = 0.01
"""Smallest spread that a handful of workloads can tell [1]."""


def pace_spreads(steps: Sequence[MeasuredStep], log_errors: np.ndarray) -> dict[str, float]:
    """Spreads of the log pace of workloads, of chips and of workloads on chips, and the scale of settings [1]."""
    by_setting = defaultdict(list)
    for step, error in zip(steps, log_errors, strict=True):
        workload = step.row.get("benchmark", "").replace("ssd", "retinanet") or step.group
        by_setting[(workload, step.chip_id, step.n_chips, float(step.work.classes()["batch"]))].append(-error)
    by_pair = defaultdict(list)
    for (workload, chip_id, *_), paces_of_setting in by_setting.items():
        by_pair[(workload, chip_id)].append(np.median(paces_of_setting))
    pairs = list(by_pair)
    paces = np.array([np.median(by_pair[pair]) for pair in pairs])
    same = [np.array([[a[side] == b[side] for b in pairs] for a in pairs], float) for side in (0, 1)]
    fitted_on = kernel_priors()["paces"]["chip"]["none_on"]
    same[1] *= np.array([[pair[1] != fitted_on] for pair in pairs], float)
    # Of k settings about their median k - 1 deviations are free.
    around = np.concatenate(
        [
            (np.array(values) - np.median(values)) * np.sqrt(len(values) / (len(values) - 1.0))
            for values in by_pair.values()
            if len(values) > 1
        ]
    )

    def cost(logs: np.ndarray) -> float:
        workload, chip, pair = np.exp(2.0 * logs)
        covariance = workload * same[0] + chip * same[1] + pair * np.eye(len(pairs))
        return -float(multivariate_normal(cov=covariance).logpdf(paces))

    start = np.log([0.05, 0.1, 0.1])
    best = minimize(cost, start, method="L-BFGS-B", bounds=[(np.log(LEAST), 0.0)] * 3)
    found = dict(zip(("workload", "chip", "workload_on_chip"), np.exp(best.x).tolist(), strict=True))
    return found | {"noise": student_scale(around, 0.05, (LEAST, 1.0))}


def write_spreads(spreads: Mapping[str, float]) -> None:
    """Write spreads into data/kernels.toml."""
    path = DATA / "kernels.toml"
    text = path.read_text()
    for name, spread in spreads.items():
        text = re.sub(rf"(\[paces\.{name}\]\nspread = )[\d.]+", rf"\g<1>{spread:.3f}", text)
    path.write_text(text)
