"""Measured steps of traced workloads: rows of tables, their chips, and their kernels as padded columns."""

import csv
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxscale as js
from jaxscale.examples import decoder_steps, other_steps, vision_steps
from jaxscale.hardware.cluster import Chip
from jaxscale.tracing.plan_time import TRAFFIC, KernelRows, kernel_rows
from jaxscale.tracing.traced_workload import Workload

DATA = Path(__file__).resolve().parents[1] / "data"

CHIPS = {
    "H100-SXM5-80GB": "h100-80gb",
    "H100-SXM-80GB": "h100-80gb",
    "H100-SXM5-96GB": "h100-96gb",
    "H100 80GB HBM3": "h100-80gb",
    "H200-SXM5-141GB": "h200-141gb",
    "H200-NVL-141GB": "h200-nvl-141gb",
    "A100-SXM-80GB CTS": "a100-80gb",
    "A100-SXM4-80GB": "a100-80gb",
    "A100-SXM-40GB": "a100-40gb",
    "A100-SXM4-40GB": "a100-40gb",
    "A100-PCIe-80GB": "a100-80gb-pcie",
    "H100-PCIe-80GB": "h100-80gb-pcie",
    "H100-PCIe": "h100-80gb-pcie",
    "H100 NVL Tensor Core GPU (PCIe)": "h100-94gb-nvl",
    "L40S": "l40s",
    "L40": "l40",
    "A40": "a40",
    "A30": "a30",
    "A30-PCIE-24GB": "a30",
    "Blackwell GPU (B200-SXM-180GB)": "b200",
    "Blackwell GPU (GB200)": "gb200",
    "Blackwell Ultra GPU (B300-SXM-270GB)": "b300",
}
"""Catalogue id of each accelerator of the tables; rows of others are left out."""


class MeasuredStep(NamedTuple):
    """One measured step.

    Attributes:
        group: rows of one group are left out together.
        chip_id: catalogue id.
        n_chips: chips [1].
        work: workload of one chip.
        seconds: time of the step [s].
        row: cells of the table.
        repeats: passes of the workload in one step, where gradients are accumulated [1].
        fused_norms: 1 where batch norms are fused kernels, by the software of the row [1].
    """

    group: str
    chip_id: str
    n_chips: int
    work: Workload
    seconds: float
    row: Mapping[str, str]
    repeats: float = 1.0
    fused_norms: float = 0.0


OTHER_STACKS = ("PyTorch", "TensorFlow", "tensorflow", "tinygrad")
"""Beginnings of the cell `framework` of submissions of ResNet-50 other than NVIDIA's program, which is in MXNet."""


def has_fused_norms(row: Mapping[str, str]) -> float:
    """Whether a submission runs fused batch norms: those of ResNet-50 by NVIDIA's benchmark.

    Its norms are fused with activation and addition (options `--fuse-bn-relu`, `--fuse-bn-add-relu` of NVIDIA's MXNet
    network). RetinaNet has frozen norms, UNet-3D norms of single images.
    """
    own = row["framework"].startswith(OTHER_STACKS)
    return float(row["benchmark"] == "resnet" and not own)


@functools.cache
def hardware() -> js.Hardware:
    """Chips of the catalogue and of MLPerf submissions."""
    return js.load_hardware(DATA / "workloads" / "chips.toml")


def table(name: str) -> list[dict[str, str]]:
    """Rows of a table of the data folder."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def decoder_steps_of(framework: str) -> list[MeasuredStep]:
    """Decoders measured on one H100 by a framework."""
    rows = [row for row in table("runs/h100_one_chip.csv") if row["framework"] == framework and row["status"] == "ok"]
    return [
        MeasuredStep(
            f"{row['n_layers']}x{row['d_model']}", "h100-80gb", 1, decoder_of(row), float(row["step_time_s"]), row
        )
        for row in rows
    ]


def decoder_of(row: Mapping[str, str]) -> Workload:
    """Traced step of the decoder of one row."""
    return _decoder(**decoder_setting(row))


def decoder_setting(row: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of the example of a decoder, from one row."""
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "seq_len")
    return {
        **{name: int(row[name]) for name in names},
        "micro_batch": int(row["micro_batch_size"]),
        "n_microbatches": int(row["n_microbatches"]),
        "gated_mlp": row["gated_mlp"] == "True",
        "recompute": row["activation_recompute"] == "full",
    }


@functools.cache
def _decoder(**setting: Any) -> Workload:
    return js.trace(*decoder_steps.decoder(**setting))


EXAMPLES = {
    "resnet50": vision_steps.resnet50,
    "resnet": vision_steps.resnet50,
    "unet3d": vision_steps.unet3d,
    "ssd": vision_steps.retinanet,
    "retinanet": vision_steps.retinanet,
    "dit-xl": other_steps.dit,
    "dit-xl rolled": functools.partial(other_steps.dit, unroll=False),
}
"""Example of each workload of the tables."""


@functools.cache
def example(name: str) -> Workload:
    """Trace of an example, at a batch that no other of its sizes equals."""
    return js.trace(*EXAMPLES[name](batch=37), names={"data0[0]": "batch"})


def jax_steps() -> list[MeasuredStep]:
    """Steps of other models measured in JAX on one H100."""
    return [
        MeasuredStep(row["workload"], "h100-80gb", 1, at_batch(row["workload"], float(row["batch"])), seconds(row), row)
        for row in table("workloads/h100_jax_workloads.csv")
    ]


def mlperf_steps(*benchmarks: str) -> list[MeasuredStep]:
    """Steps of MLPerf Training submissions, on chips whose numbers are known."""
    steps = []
    for row in table("workloads/mlperf_vision.csv"):
        chip_id = CHIPS.get(row["accelerator"].removeprefix("NVIDIA "))
        if chip_id is None or row["benchmark"] not in benchmarks:
            continue
        n_chips, repeats = int(row["n_accelerators"]), float(row["gradient_accumulation_steps"] or 1)
        work = at_batch(row["benchmark"], float(row["global_batch_size"]) / n_chips / repeats)
        steps.append(MeasuredStep(chip_id, chip_id, n_chips, work, seconds(row), row, repeats, has_fused_norms(row)))
    return steps


def at_batch(name: str, batch: float) -> Workload:
    """An example at a batch of one chip."""
    return example(name).with_sizes({"batch": batch})


def seconds(row: Mapping[str, str]) -> float:
    """Measured time of a row [s]."""
    return float(row["step_time_s"])


class StackedRows(NamedTuple):
    """Kernels of many steps, padded to the longest: a leading axis of steps in each column, and the chip of each."""

    rows: KernelRows
    chips: Chip


def stacked_rows(steps: list[MeasuredStep], eager: bool = False) -> StackedRows:
    """Kernels of measured steps for one compiled program."""
    found = [kernel_rows(step.work, eager=eager, fused_norms=step.fused_norms) for step in steps]
    length = max(len(rows.code) for rows in found)

    def padded(name: str) -> np.ndarray:
        fill = {"code": TRAFFIC, "area": 1.0}.get(name, 0)
        columns = [np.asarray(getattr(rows, name)) for rows in found]
        return np.stack([np.pad(one, (0, length - len(one)), constant_values=fill) for one in columns])

    rows = KernelRows(*(jnp.asarray(padded(name)) for name in KernelRows._fields))
    chips = [hardware()[step.chip_id].chip() for step in steps]
    return StackedRows(rows, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(one) for one in leaves]), *chips))
