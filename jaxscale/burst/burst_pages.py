"""Figures and report of a burst plan, from the document of `jaxscale.burst.burst_report`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.burst.burst_tables import burst_comparison, burst_layers
from jaxscale.burst.plots import plot_layer_chips
from jaxscale.report.document import Report
from jaxscale.report.figures.ranking import ranked_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def burst_ranking(document: Mapping[str, Any]) -> "Figure":
    """Iteration time of each plan, the fastest first, and throughput of the cluster over data parallelism.

    Args:
        document: of the plan.

    Returns:
        The figure.
    """
    shared, alone = document["multiplexing"], document["data_parallel"]
    times = {
        "one GPU": document["single_gpu_time_s"],
        "data parallel": alone["time_s"],
        "in bursts": document["burst"]["time_s"],
        "in bursts, with background jobs": shared["cluster"]["iteration_time"],
        "the same without interference": shared["ideal"]["iteration_time"],
    }
    if document["released_planner"] is not None:
        times["released planner"] = document["released_planner"]["time_s"]
    ranked = sorted(times, key=lambda name: times[name])
    gains = {
        "data parallel": 1.0,
        "in bursts, with background jobs": shared["cluster"]["ratio"],
        "the same without interference": shared["ideal"]["ratio"],
    }
    quantities = {
        "time of one iteration [ms]": {name: 1e3 * times[name] for name in ranked},
        "cluster throughput over data parallelism": {name: gains[name] for name in ranked if name in gains},
    }
    return ranked_bars(quantities, burst_title(document), "in bursts, with background jobs")


def burst_title(document: Mapping[str, Any]) -> str:
    """Network, samples and GPUs of a burst plan."""
    return f"{document['network']}, {document['batch']} samples on {document['gpus']} GPUs"


def burst_summary(document: Mapping[str, Any]) -> Report:
    """Report of a burst plan: ranking of plans, GPUs of each layer, tables.

    Args:
        document: of the plan.

    Returns:
        The report; `save` writes it.
    """
    report = Report(f"Bursts: {burst_title(document)}")
    report.add(burst_comparison(document))
    caption = "Time of one iteration, and samples of all jobs over those of data parallelism alone."
    report.figure("ranking", burst_ranking(document), caption)
    report.heading("GPUs of each layer")
    chips = {"in bursts": np.asarray([float(layer["gpus"]) for layer in document["plan"]])}
    report.figure("layers", plot_layer_chips(chips, "GPUs of each layer"), "The burst plan, layer by layer.")
    report.add(burst_layers(document))
    return report
