"""Figures of burst parallelism; axes in, axes out."""

from typing import TYPE_CHECKING

import numpy as np

from jaxscale.burst.networks import LayerGraph
from jaxscale.burst.planner import BurstPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BURST, _FREE = "#2b6cb0", "#e2e8f0"


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(7.0, 3.0), layout="constrained")[1]


def plot_gpus(graph: LayerGraph, plan: BurstPlan, ax: "Axes | None" = None, label: str | None = None) -> "Axes":
    """GPUs of each layer, in order.

    Args:
        graph: the network.
        plan: its plan.
        ax: axes to draw on.
        label: legend entry.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    keep = ~graph.is_join
    gpus = np.asarray(plan.gpus)[keep]
    ax.step(np.arange(1, len(gpus) + 1), gpus, where="mid", label=label)
    ax.set_yscale("log", base=2)
    ax.set_yticks(sorted(set(gpus.tolist())), labels=[f"{g:.0f}" for g in sorted(set(gpus.tolist()))])
    ax.set_xlabel("layer")
    ax.set_ylabel("GPUs of the layer")
    return ax


def plot_time_line(plan: BurstPlan, n_gpus: int, ax: "Axes | None" = None) -> "Axes":
    """One iteration of a chain: which GPUs the foreground job holds, and which are free, against time.

    Args:
        plan: plan of a chain.
        n_gpus: GPUs of the cluster [1].
        ax: axes to draw on.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    ends = np.cumsum(np.asarray(plan.step_time)) * 1e3
    starts = np.concatenate([[0.0], ends[:-1]])
    gpus = np.asarray(plan.gpus)
    ax.axhspan(0, n_gpus, color=_FREE, label="free for background jobs")
    ax.bar(starts, gpus, ends - starts, align="edge", color=_BURST, edgecolor="white", lw=0.3, label="foreground burst")
    ax.set_xlim(0, ends[-1])
    ax.set_ylim(0, n_gpus)
    ax.set_xlabel("time in the iteration [ms]")
    ax.set_ylabel("GPUs")
    ax.legend(loc="upper right", framealpha=0.9)
    return ax


def plot_gain(
    n_gpus: np.ndarray,
    gains: dict[str, np.ndarray],
    band: tuple[float, float],
    ax: "Axes | None" = None,
) -> "Axes":
    """Cluster throughput over data parallelism with a single task, against cluster size.

    Args:
        n_gpus: cluster sizes [1].
        gains: gain by curve label [1].
        band: lowest and highest published gain [1].
        ax: axes to draw on.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    ax.axhspan(*band, color=_FREE, zorder=0, label="published band")
    for label, gain in gains.items():
        ax.plot(n_gpus, gain, marker="o", ms=3, label=label)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(n_gpus), labels=[f"{int(n)}" for n in n_gpus])
    ax.set_xlabel("GPUs of the cluster")
    ax.set_ylabel("throughput over data parallelism")
    ax.legend(fontsize="small")
    return ax
