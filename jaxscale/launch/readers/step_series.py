"""Quantities of the steps of a training run, and selection of the steady steps."""

from array import array
from dataclasses import dataclass, field

import numpy as np

QUANTITIES = ("seconds", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_gb", "mfu", "batch")
"""Quantities of a step: time [s], throughput of a chip [token/s], flop rate of a chip [1e12 flop/s], peak memory [GB],
utilisation [1], sequences [1]."""

SLOW = 1.5
"""Time over the median from which a step held a checkpoint, an evaluation or a compilation [1]."""

WARM = 1.1
"""Time over the median of the later steps until which the first steps are warm-up [1]."""

KEPT = 500_000
"""Steps that are kept; a longer log gives its first so many [1]."""


@dataclass
class StepSeries:
    """Quantities of each step of a run, in the order of the log; nan for a missing quantity.

    Attributes:
        steps: number of each step [1].
        values: quantities by name, from `QUANTITIES` [step].
    """

    steps: array = field(default_factory=lambda: array("d"))
    values: dict[str, array] = field(default_factory=lambda: {name: array("d") for name in QUANTITIES})

    def add(self, step: int | float, **quantities: float) -> None:
        """Add a step; quantities not given are nan. Steps beyond `KEPT` are dropped."""
        # Memory does not grow with the length of the log.
        if len(self.steps) < KEPT:
            self.steps.append(step)
            for name in QUANTITIES:
                self.values[name].append(quantities.get(name, float("nan")))

    def __len__(self) -> int:
        """Number of steps [1]."""
        return len(self.steps)

    def quantity(self, name: str) -> np.ndarray:
        """Quantity of each step by name; nan if unknown [step]."""
        return np.asarray(self.values[name], dtype=float)

    def is_steady(self) -> np.ndarray:
        """Whether a step is steady: neither warm-up nor slowed by a checkpoint or an evaluation [step].

        The criterion is the step time, or the throughput for a log without step times.
        """
        times, rates = self.quantity("seconds"), self.quantity("tokens_per_s_per_gpu")
        if not np.isfinite(times).any():
            # Time of a step is inverse to throughput; only ratios count below.
            times = 1.0 / np.where(rates > 0.0, rates, np.nan)
        if not np.isfinite(times).any():
            return np.ones(len(self), dtype=bool)
        # The second half holds no warm-up.
        later = times[len(times) // 2 :]
        usual = float(np.nanmedian(later if np.isfinite(later).any() else times))
        calm = np.flatnonzero(times <= WARM * usual)
        first = int(calm[0]) if len(calm) else 0
        steady = np.isfinite(times) & (times <= SLOW * usual)
        steady[:first] = False
        return steady

    def medians(self) -> dict[str, float]:
        """Median of each known quantity over the steady steps; maximum of the memory, and last value of the batch."""
        steady, told = self.is_steady(), {}
        for name in QUANTITIES:
            values = self.quantity(name)
            # Warm-up steps hold memory too: the peak is over all steps.
            values = values[np.isfinite(values) & (steady if name != "memory_gb" else True)]
            if len(values):
                # Megatron-LM may ramp the batch up: the last value counts.
                told[name] = float({"memory_gb": np.max, "batch": lambda all_: all_[-1]}.get(name, np.median)(values))
        return told
