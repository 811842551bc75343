"""Report on a burst plan of a network: a JSON-serialisable document, with tables and figures of the document."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.errors import InputError, check_known
from jaxscale.base.jit import filter_jit
from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GB
from jaxscale.burst.burst_plan import BurstPlan, plan_burst, plan_data_parallel, plan_released
from jaxscale.burst.layer_graph import LayerGraph, load_network, network_entry
from jaxscale.burst.layer_time import AbstractLayerTime, analytical_layer_time, measured_layer_time
from jaxscale.burst.multiplexing import (
    Interference,
    Throughput,
    multiplex,
    multiplexing_table,
    no_interference,
    stated_interference,
    static_partition,
)
from jaxscale.burst.soft_planner import prices
from jaxscale.burst.step_costs import BurstJob, options_for, step_costs
from jaxscale.report.document import Report
from jaxscale.report.figures.panels import ranked_bars
from jaxscale.report.style import (
    BLUE,
    MARKERS,
    PALETTE,
    entries_of,
    legend_below,
    new_figure,
    seconds,
    single_axes,
    style,
)
from jaxscale.report.terminal_tables import rounded_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FREE = "#E8EDF2"


def _powers_of_two(axis, values: np.ndarray) -> None:
    axis.set_ticks(values, [f"{v:,.0f}".replace(",", "\N{THIN SPACE}") for v in values])
    axis.set_ticks([], minor=True)


def plot_chips(graph: LayerGraph, plans: Mapping[str, BurstPlan], title: str) -> "Figure":
    """Figure of the number of GPUs of each layer, in the order of the layers, with one line per plan.

    Args:
        plans: plans of the graph by label.
    """
    return plot_layer_chips({label: np.asarray(plan.chips)[~graph.is_join] for label, plan in plans.items()}, title)


def plot_layer_chips(plans: Mapping[str, ArrayLike], title: str) -> "Figure":
    """Figure of the number of GPUs of each layer, in the order of the layers, with one line per plan.

    Args:
        plans: GPUs of the layers by label [1], [layer].
    """
    with single_axes(7.2, 3.4) as (figure, axes):
        most, count = 1.0, 1
        for index, (label, counts) in enumerate(plans.items()):
            chips = np.asarray(counts, float)
            most, count = max(most, chips.max()), len(chips)
            # Lines of equal counts would hide each other, so each line is shifted up by 3 %.
            lifted = chips * 1.03**index
            axes.step(np.arange(1, len(chips) + 1), lifted, where="mid", label=label, color=PALETTE[index])
        axes.set_yscale("log", base=2)
        _powers_of_two(axes.yaxis, 2.0 ** np.arange(np.log2(most) + 1))
        axes.set(xlabel="layer", ylabel="GPUs of the layer", title=title, xlim=(0.5, count + 0.5))
        if len(plans) > 1:
            legend_below(figure, entries_of(axes))
    return figure


def plot_time_line(plans: Mapping[str, BurstPlan], n_chips: int, title: str) -> "Figure":
    """Figure of an iteration of a chain over time under each plan: GPUs of the foreground job, and free GPUs.

    Args:
        plans: plans of a chain by label.
        n_chips: GPUs of the cluster [1].
    """
    with style():
        figure = new_figure(7.2, 1.3 + 1.5 * len(plans))
        rows = np.atleast_1d(figure.subplots(len(plans), 1, sharex=True))
        for axes, (label, plan) in zip(rows, plans.items(), strict=True):
            _draw_time_line(axes, plan, n_chips, label)
        rows[0].set_title(title)
        rows[-1].set_xlabel("time in the iteration [ms]")
        rows[-1].set_xlim(0.0, max(1e3 * float(plan.time) for plan in plans.values()))
        legend_below(figure, entries_of(rows[-1]))
    return figure


def _draw_time_line(axes: "Axes", plan: BurstPlan, n_chips: int, label: str) -> None:
    ends = 1e3 * np.cumsum(np.asarray(plan.step_time))
    starts = np.concatenate([[0.0], ends[:-1]])
    axes.bar(0.0, n_chips, ends[-1], align="edge", color=_FREE, label="free for background jobs")
    chips = np.asarray(plan.chips)
    axes.bar(starts, chips, ends - starts, align="edge", color=BLUE, ec="white", lw=0.3, label="foreground job")
    axes.set(ylim=(0, n_chips), yticks=[0, n_chips // 2, n_chips], ylabel=f"{label}\nGPUs")
    axes.grid(False)


def plot_gain(n_chips: np.ndarray, gains: Mapping[str, np.ndarray], band: tuple[float, float], title: str) -> "Figure":
    """Figure of cluster throughput relative to data parallelism with a single task, against cluster size.

    Args:
        n_chips: cluster sizes [1].
        gains: gain by label; labels that end in `ideal` are dashed [1].
        band: lowest and highest published gain [1].
    """
    with single_axes(7.2, 4.2) as (figure, axes):
        axes.axhspan(*band, color=_FREE, zorder=0, label="published band")
        solid = [label for label in gains if not label.endswith("ideal")]
        for label, gain in gains.items():
            index = next(i for i, name in enumerate(solid) if label.startswith(name))
            line = "--" if label not in solid else "-"
            axes.plot(n_chips, gain, line, label=label, color=PALETTE[index], marker=MARKERS[index], ms=4)
        axes.set_xscale("log", base=2)
        _powers_of_two(axes.xaxis, np.asarray(n_chips))
        axes.set(xlabel="GPUs of the cluster", ylabel="throughput over data parallelism", title=title)
        legend_below(figure, entries_of(axes))
    return figure


def burst_ranking(document: Mapping[str, Any]) -> "Figure":
    """Figure of iteration time and cluster throughput of each mode of running the job, in order of rank."""
    ways = document["ways"]
    quantities = {
        "time of one iteration [ms]": {way["way"]: 1e3 * way["time_s"] for way in ways},
        "cluster throughput over data parallelism": {way["way"]: way["ratio"] for way in ways},
    }
    return ranked_bars(quantities, burst_title(document), ways[0]["way"])


def burst_title(document: Mapping[str, Any]) -> str:
    """Title of a burst plan: network, samples and number of GPUs."""
    return f"{document['network']}, {document['batch']} samples on {document['gpus']} GPUs"


def burst_summary(document: Mapping[str, Any]) -> Report:
    """HTML report of a burst plan: ranking of the modes of running the job, GPUs of each layer, tables.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(f"Bursts: {burst_title(document)}")
    report.add(burst_comparison(document))
    report.text(burst_verdict(document))
    caption = "Time of one iteration, and samples of all jobs over those of data parallelism alone."
    report.figure("ranking", burst_ranking(document), caption)
    report.heading("GPUs of each layer")
    chips = {"in bursts": np.asarray([float(layer["gpus"]) for layer in document["plan"]])}
    report.figure("layers", plot_layer_chips(chips, "GPUs of each layer"), "The burst plan, layer by layer.")
    report.add(burst_layers(document))
    return report


LAYER_TIMES = ("auto", "measured", "analytical")
MAX_CHIPS = 65536
"""Largest cluster of the report, which limits the options of a layer to 17 [1]."""

_TEMPERATURE = 1e-3
"""Temperature of the reported prices, relative to the iteration time on one GPU [1]."""


def layer_time_of(network: str, source: str = "auto", per_shape: bool = True) -> tuple[AbstractLayerTime, str]:
    """Layer times of a network, measured or analytical, and the source of the times.

    Args:
        network: name or alias.
        source: `measured`, `analytical`, or `auto` (measured if the profiles contain the network).
        per_shape: see `measured_layer_time`.

    Returns:
        The layer time, and `measured` or `analytical`.

    Raises:
        InputError: an unknown network or source, or a network without measurements.
    """
    check_known("layer_times =", source, LAYER_TIMES)
    name = network_entry(network).name
    if source != "analytical":
        try:
            return measured_layer_time(name, per_shape), "measured"
        except InputError:
            if source == "measured":
                raise
    return analytical_layer_time(name), "analytical"


def _check(n_chips: int, batch: int, **positive: float) -> None:
    options_for(n_chips)
    if n_chips > MAX_CHIPS:
        raise InputError(f"n_chips = {n_chips} is out of range; expected a power of two up to {MAX_CHIPS}")
    if batch < 1:
        raise InputError(f"batch = {batch}: expected at least 1 sample")
    # A single GPU has amplification 1 and must stay below the limit.
    for name, value in positive.items():
        lowest = 1.0 if name == "amplification_limit" else 0.0
        if not (np.isfinite(value) and value > lowest) and not (name == "latency" and value == 0.0):
            raise InputError(f"{name} = {value}: expected a finite number above {lowest:g}")


class _Study(NamedTuple):
    """Results for the report, computed in a compiled function."""

    burst: BurstPlan
    data_parallel: BurstPlan
    released: BurstPlan | None
    shared: Throughput
    ideal: Throughput
    partition: tuple[Array, Array]
    chips: Array
    price: BurstJob


@filter_jit
def _study(graph, layer_time, job, side_batch, n_options: int, synchronisation: str) -> _Study:
    """Results of a job; one compilation per network and number of options serves all jobs."""
    problem = (graph, layer_time, job, n_options)
    burst, data_parallel = (plan(*problem, synchronisation) for plan in (plan_burst, plan_data_parallel))
    # The released rule is for chains.
    released = plan_released(*problem, synchronisation) if graph.widths == (1,) else None
    price = prices(*problem, _TEMPERATURE * burst.single_chip_time, synchronisation)
    costs = step_costs(*problem, synchronisation)
    # Samples per second of a background job on a dedicated GPU.
    rate = side_batch / layer_time(side_batch).sum()
    case = (burst, data_parallel.time, job.batch, job.n_chips, rate)
    shared, ideal = (multiplex(*case, interference) for interference in (stated_interference(), no_interference()))
    partition = static_partition(costs, job.batch, job.n_chips, rate)
    return _Study(burst, data_parallel, released, shared, ideal, partition, costs.chips, price)


def _summary(plan: BurstPlan, n_chips: int) -> dict[str, float]:
    time, used = float(plan.time), float(plan.chip_seconds)
    single = float(plan.single_chip_time)
    return {"time_s": time, "gpu_seconds": used, "busy_share": used / (n_chips * time), "speedup": single / time}


def _layers(graph: LayerGraph, plan: BurstPlan) -> list[dict[str, Any]]:
    rows = zip(
        graph.names,
        plan.chips.tolist(),
        plan.step_time.tolist(),
        plan.amplification.tolist(),
        plan.parallel.tolist(),
        graph.is_join.tolist(),
        strict=True,
    )
    return [
        {"layer": name, "gpus": int(g), "time_s": time, "amplification": amplification or None, "parallel": bool(side)}
        for name, g, time, amplification, side, join in rows
        if not join
    ]


def _cluster(result: Throughput) -> dict[str, float]:
    return {name: float(getattr(result, name)) for name in Throughput.__dataclass_fields__}


def _partitions(study: _Study, batch: int) -> dict[str, Any]:
    """Static partitions, and the best partition whose foreground job is at least as fast as in bursts."""
    # Seconds per sample of data parallelism: the unit of the ratio.
    alone = float(study.data_parallel.time) / batch
    rows = [
        {"foreground_gpus": int(g), "foreground_time_s": t, "ratio": rate * alone}
        for g, rate, t in zip(study.chips.tolist(), *(x.tolist() for x in study.partition), strict=True)
        if np.isfinite(t)
    ]
    as_fast = [row for row in rows if row["foreground_time_s"] <= float(study.shared.iteration_time)]
    return {"all": rows, "best_as_fast": max(as_fast, key=lambda row: row["ratio"], default=None)}


BURSTS = "in bursts, with background jobs"
"""Name of the mode of DeepPool."""


def _ways(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Modes of running the job: first those as fast as bursts, by throughput, then slower modes, by time."""
    alone, shared = document["data_parallel"]["time_s"], document["multiplexing"]["cluster"]
    n_chips, single = document["gpus"], document["single_gpu_time_s"]
    timed = {BURSTS: (shared["iteration_time"], shared["ratio"])}
    for name, key in (("in bursts alone", "burst"), ("released planner alone", "released_planner")):
        if document[key] is not None:
            timed[name] = (document[key]["time_s"], alone / document[key]["time_s"])
    for row in document["multiplexing"]["static_partition"]["all"]:
        g = row["foreground_gpus"]
        name = "data parallel" if g == n_chips else f"data parallel on {g}, background jobs on {n_chips - g}"
        timed[name] = (row["foreground_time_s"], row["ratio"])
    timed.setdefault("data parallel", (alone, 1.0))  # fewer samples than GPUs

    def rank(name: str) -> tuple[bool, float]:
        time, ratio = timed[name]
        slower = time > shared["iteration_time"]
        # Slower modes by time, modes as fast as bursts by throughput.
        return slower, time if slower else -ratio

    return [
        {"way": name, "time_s": timed[name][0], "speedup": single / timed[name][0], "ratio": timed[name][1]}
        for name in sorted(timed, key=rank)
    ]


def burst_verdict(document: Mapping[str, Any]) -> str:
    """Sentences on the best mode of running the job, and on whether bursts are as good."""
    best, alone = document["ways"][0], document["data_parallel"]["time_s"]
    burst = next(row for row in document["ways"] if row["way"] == BURSTS)
    line = f"best: {best['way']}, {seconds(best['time_s'])}, {rounded_text(best['ratio'])} times the throughput"
    if best is not burst:
        line += f"; bursts with background jobs are no faster and give {rounded_text(burst['ratio'])}"
    if alone < min(document["burst"]["time_s"], best["time_s"]):
        line += f"\nfastest: data parallel, {seconds(alone)}: the limit on the amplification keeps bursts slower"
    return line


def burst_report(
    network: str = "vgg16",
    n_chips: int = 8,
    batch: int = 32,
    bandwidth: float = 266e9,
    latency: float = 240e-6,
    amplification_limit: float = 2.0,
    synchronisation: str = "correct",
    layer_times: str = "auto",
    per_shape: bool = True,
    background_batch: float | None = None,
) -> dict[str, Any]:
    """Burst plan of a network, with background jobs of the network on the GPUs left free.

    Args:
        network: `vgg16`, `resnet50`, `wide_resnet101_2`, `inception_v3`, `vit`, `unet`, `cosmoflow` or an alias.
        n_chips: GPUs of the cluster, a power of two [1].
        batch: global batch of the job [sample].
        bandwidth: bandwidth per GPU and direction [byte/s].
        latency: latency of a redistribution of activations [s].
        amplification_limit: largest GPU-time of a layer over its time on one GPU [1]; above 1.
        synchronisation: `correct` or `released` (formula of the released planner).
        layer_times: `auto`, `measured` (A100 profiles) or `analytical`.
        per_shape: whether measured curves are per layer shape, as in the released planner; else per layer.
        background_batch: samples of a background job on one GPU; by default the stated assumption, else 16.

    Returns:
        Plan per layer, times [s], GPU-seconds, comparison with data parallelism, the released planner (chains), static
        partitioning and the ideal; ranking of all modes; prices (elasticities); all JSON-serialisable.

    Raises:
        InputError: a number out of range or an unknown name.
    """
    _check(n_chips, batch, bandwidth=bandwidth, latency=latency, amplification_limit=amplification_limit)
    name = network_entry(network).name
    graph = load_network(name)
    layer_time, source = layer_time_of(name, layer_times, per_shape)
    job = BurstJob(batch, n_chips, bandwidth, latency, amplification_limit)
    entry = multiplexing_table()["jobs"].get(name, {})
    side_batch = float(background_batch or entry.get("background_batch", 16.0))
    if side_batch <= 0:
        raise InputError(f"background_batch = {side_batch}: expected a positive number")
    # Arrays instead of Python numbers: a changed bandwidth or batch reuses the compiled function.
    traced, traced_batch = jax.tree.map(jnp.asarray, (job, side_batch))
    study = _study(graph, layer_time, traced, traced_batch, options_for(n_chips), synchronisation)
    burst, data_parallel = study.burst, study.data_parallel
    stated = stated_interference()
    document = {
        "network": name,
        "layer_times": source,
        "per_shape": per_shape,
        "synchronisation": synchronisation,
        "gpus": n_chips,
        "batch": batch,
        "bandwidth_byte_per_s": bandwidth,
        "latency_s": latency,
        "amplification_limit": amplification_limit,
        "single_gpu_time_s": float(burst.single_chip_time),
        "data_parallel": _summary(data_parallel, n_chips),
        "burst": _summary(burst, n_chips),
        "released_planner": None if study.released is None else _summary(study.released, n_chips),
        "plan": _layers(graph, burst),
        "multiplexing": {
            "background_batch": side_batch,
            "interference": {field: float(getattr(stated, field)) for field in Interference.__dataclass_fields__},
            "cluster": _cluster(study.shared),
            "ideal": _cluster(study.ideal),
            "static_partition": _partitions(study, batch),
        },
        "prices": {
            field: float(getattr(study.price, field))
            for field in ("batch", "bandwidth", "latency", "amplification_limit")
        },
    }
    return {**document, "ways": _ways(document)}


def burst_layers(document: Mapping[str, Any]) -> Table:
    """Table of the number of GPUs, time and amplification of every layer."""
    rows = [
        (
            layer["layer"],
            layer["gpus"],
            seconds(layer["time_s"]),
            rounded_text(layer["amplification"]),
            "beside other branches" if layer["parallel"] else "",
        )
        for layer in document["plan"]
    ]
    title = (
        f"{document['network']}: {document['batch']} samples on {document['gpus']} GPUs, "
        f"{document['bandwidth_byte_per_s'] / GB:g} GB/s, {document['latency_s'] * 1e6:g} us "
        f"({document['layer_times']} layer times)"
    )
    columns = (
        text_column("layer"),
        TableColumn("GPUs", says="{} GPUs", stays=True),
        TableColumn("time", stays=True),
        TableColumn("amplification", "ampl."),
        text_column("note"),
    )
    return make_table(title, columns, rows)


def burst_comparison(document: Mapping[str, Any]) -> Table:
    """Table of the modes of running the job: modes as fast as bursts, by throughput, then slower modes, by time."""
    used = {"data parallel": "data_parallel", "in bursts alone": "burst", "released planner alone": "released_planner"}
    ideal, one = document["multiplexing"]["ideal"], document["single_gpu_time_s"]
    rows = [
        (
            way["way"],
            seconds(way["time_s"]),
            seconds(document[used[way["way"]]]["gpu_seconds"]) if way["way"] in used else "-",
            rounded_text(way["speedup"]),
            rounded_text(way["ratio"]),
        )
        for way in document["ways"]
    ]
    time = ideal["iteration_time"]
    bound = ("bursts, if background jobs cost nothing", seconds(time), "-", rounded_text(one / time))
    rows.append((*bound, rounded_text(ideal["ratio"])))
    columns = (
        text_column("one iteration", says="{}:"),
        TableColumn("time", stays=True),
        TableColumn("GPU time"),
        TableColumn("speedup", stays=True),
        TableColumn("cluster throughput", "throughput"),
    )
    return make_table("Ways, the best first; throughput over that of data parallelism", columns, rows)
