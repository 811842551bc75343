"""Tables of a burst plan, from the document of `jaxscale.burst.burst_report`."""

from collections.abc import Mapping
from typing import Any

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GB
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import rounded_text


def burst_layers(document: Mapping[str, Any]) -> Table:
    """GPUs, time and amplification of every layer."""
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
    """One iteration in bursts against one GPU and data parallelism, and the gain of background jobs."""
    alone, shared = document["data_parallel"], document["multiplexing"]
    one = document["single_gpu_time_s"]
    plans = {"in bursts": document["burst"], "released planner": document["released_planner"], "data parallel": alone}
    rows = [("one GPU", seconds(one), seconds(one), "1", "-")]
    for name, plan in plans.items():
        if plan is not None:
            gain = "1" if plan is alone else "-"
            rows.append(
                (name, seconds(plan["time_s"]), seconds(plan["gpu_seconds"]), rounded_text(plan["speedup"]), gain)
            )
    for name, key in (("in bursts, with background jobs", "cluster"), ("the same without interference", "ideal")):
        time = shared[key]["iteration_time"]
        rows.append((name, seconds(time), "-", rounded_text(one / time), rounded_text(shared[key]["ratio"])))
    columns = (
        text_column("one iteration", says="{}:"),
        TableColumn("time", stays=True),
        TableColumn("GPU time"),
        TableColumn("speedup", stays=True),
        TableColumn("cluster throughput", "throughput"),
    )
    return make_table("Against one GPU and data parallelism", columns, rows)
