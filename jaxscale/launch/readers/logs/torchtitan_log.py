"""Logs of torchtitan: throughput of a chip and reserved memory; the head names card, checkpointing and mesh."""

import re

from jaxscale.base.arrays import number
from jaxscale.base.units import GB
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.launch.readers.logs.log_format import GIB, Gathered, LogFormat, scaled_number, without_colours

_STEP = re.compile(
    r"step: *(\d+) .*?memory: *([\d.]+)GiB.*?tps: *([\d,.]+)(?:.*?tflops: *([\d,.]+))?(?:.*?mfu: *([\d.]+)%)?"
)
_CARD = re.compile(r"capacity: (.+?) with ([\d.]+)GiB")
_MODEL = re.compile(r"Model (\S+) (\S+) size")
_RECOMPUTE = re.compile(r"Applied (\w+) activation checkpointing")
_START = re.compile(r"local batch size (\d+), global batch size (\d+).*?sequence length (\d+)")
_MESH = re.compile(r"Building \d-D device mesh with \[(.*?)\], \[(.*?)\]")
_MESH_COLUMNS = {"tp": "tp", "pp": "pp", "cp": "cp"}


def _take(line: str, gathered: Gathered) -> bool:
    line = without_colours(line)
    if "tps:" in line and (step := _STEP.search(line)):
        gathered.series.add(
            float(step[1]),
            tokens_per_s_per_gpu=scaled_number(step[3]),
            tflops_per_gpu=scaled_number(step[4]),
            memory_gb=float(step[2]) * GIB,
            # The log states per cent.
            mfu=scaled_number(step[5]) / 100.0,
        )
        return True
    if "[titan]" in line or "- INFO -" in line:
        _take_head(line, gathered)
    return False


def _take_head(line: str, gathered: Gathered) -> None:
    cells = gathered.cells
    if card := _CARD.search(line):
        cells["gpu"] = chip_by_memory(card[1].strip(), float(card[2]) * GIB * GB)
    elif model := _MODEL.search(line):
        gathered.settings |= {"model.name": model[1], "model.flavor": model[2]}
    elif recompute := _RECOMPUTE.search(line):
        cells["activation_recompute"] = recompute[1].lower()
    elif "Applied FSDP" in line or "Applied fully_shard" in line or "Applied HSDP" in line:
        # FSDP shards weights as ZeRO 3 does, unless settings say otherwise.
        cells["zero_stage"] = 3
    elif start := _START.search(line):
        cells["global_batch_size_seqs"], cells["seq_len"] = int(start[2]), int(start[3])
        # With a pipeline, a local batch is no microbatch: the rules decide.
        gathered.settings["local_batch_size"] = int(start[1])
    elif mesh := _MESH.search(line):
        _take_mesh(mesh, cells)


MEMORY_MARGIN = 0.05
"""Relative difference up to which a reported memory is that of a chip of the catalogue [1]."""


def chip_by_memory(name: str, memory: float) -> str:
    """Catalogue id of the chip of a name whose memory is nearest; the name where none or several are.

    Args:
        name: name of the card.
        memory: that the program reports [byte].
    """
    hardware = load_hardware()
    meant = hardware.names.meant(name)
    # The driver names cards on a slot as such.
    boards = [chip for chip in meant if not chip.endswith("-pcie") or "pcie" in name.lower()]
    off = {chip: abs(number(hardware[chip].chip().hbm_bytes) / memory - 1.0) for chip in boards}
    nearest = [chip for chip, error in off.items() if error == min(off.values()) and error < MEMORY_MARGIN]
    return nearest[0] if len(meant) > 1 and len(nearest) == 1 else name


def _take_mesh(mesh: re.Match[str], cells: dict) -> None:
    names = [name.strip(" '\"") for name in mesh[1].split(",")]
    sizes = [int(size) for size in mesh[2].split(",") if size.strip().isdigit()]
    chips, replicas = 1, 1
    for name, size in zip(names, sizes, strict=False):
        # The mesh has an axis for each degree: the product is the number of chips.
        chips *= size
        if name in _MESH_COLUMNS:
            cells[_MESH_COLUMNS[name]] = size
        # Replicated and sharded axes (dp_replicate, dp_shard) are replicas alike.
        elif name.startswith("dp"):
            replicas *= size
    cells |= {"n_gpus": chips, "dp": replicas, "tp": cells.get("tp", 1), "pp": cells.get("pp", 1)}


TORCHTITAN = LogFormat("torchtitan", "torchtitan", "torchtitan", _take)
