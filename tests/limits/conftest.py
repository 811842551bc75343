"""Scenarios solved once for the whole folder: every test reads from the same survey."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxscale.limits.frontier_scenario import load_scenarios
from jaxscale.limits.study import Study, curve_sizes, study

# Plans of powers of two are searched by a script beside the package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

LATENCY_ONLY = {
    "peak_flops": 1e30,
    "memory_bandwidth": 1e30,
    "memory_bytes": 1e30,
    "link_bandwidth": 1e30,
    "network_bandwidth": 1e30,
    "link_latency": 0.0,
    "network_latency": 0.0,
    "pipeline_wait": 1.0,
}


SHIPPED = (
    "default",
    "v100",
    "gtx580",
    "infinite-network-bandwidth",
    "zero-network-latency",
    "global-nvlink",
    "node-64",
    "no-overlap",
    "causal-pipeline",
    "batch-cube-root",
)


@pytest.fixture(scope="session")
def library():
    """Shipped scenarios that tests read, and some in which one cause acts alone."""
    shipped = load_scenarios()
    known = {name: shipped[name] for name in SHIPPED}
    default = known["default"]
    known["latency-only"] = dataclasses.replace(default, **LATENCY_ONLY)
    known["latency-only-unhindered"] = dataclasses.replace(default, **{**LATENCY_ONLY, "pipeline_wait": 0.0})
    known["latency-only-levers"] = dataclasses.replace(default, **LATENCY_ONLY, batch_exponent=0.25, depth_exponent=0.2)
    known["latency-only-no-wall"] = dataclasses.replace(default, **LATENCY_ONLY, batch_exponent=0.5, depth_exponent=0.0)
    known["slower-network"] = dataclasses.replace(default, network_bandwidth=default.network_bandwidth * 0.999)
    known["half-units"] = dataclasses.replace(
        default,
        training_time=default.training_time * 2.0,
        **{name: getattr(default, name) * 2.0 for name in ("link_latency", "network_latency", "kernel_latency")},
        **{
            name: getattr(default, name) / 2.0
            for name in ("peak_flops", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
        },
    )
    return known


@pytest.fixture(scope="session")
def solved(library) -> Study:
    """All of them, over the range of the published figure."""
    return study(library, curve_sizes(1e25, 10.0**31.7))


@pytest.fixture(scope="session")
def row(solved):
    """Row of a scenario by name."""
    return {name: index for index, name in enumerate(solved.names)}


@pytest.fixture(scope="session")
def log10_thresholds(solved, row):
    """Decimal logarithms of a scenario's thresholds by name."""

    def of(name: str) -> dict[str, float]:
        return {key: float(np.log10(value)) for key, value in solved.limits.flop(row[name]).items()}

    return of
