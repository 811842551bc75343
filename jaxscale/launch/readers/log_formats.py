"""Formats of training logs: Megatron and related programs, torchtitan, Trainer, JSON lines, and a line per step."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxscale.base.arrays import number
from jaxscale.base.documents import parsed_json
from jaxscale.base.units import GB
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.launch.readers.settings_text import flat, plain_value
from jaxscale.launch.readers.step_series import StepSeries

GIB = 2.0**30 / 1e9
"""One GiB [1e9 byte]."""


@dataclass
class Gathered:
    """Content read from a log: quantities per step, settings and cells.

    Attributes:
        series: quantities of the steps.
        settings: settings of the run by key.
        cells: cells of the runs table stated directly in the log.
        remarks: warnings about the row.
    """

    series: StepSeries = field(default_factory=StepSeries)
    settings: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LogFormat:
    """Format of a training log.

    Attributes:
        name: program that writes the format.
        family: family of frameworks of the settings in the log; empty for logs without settings.
        framework: value of the column `framework`; empty if the settings decide.
        take: function that reads a line into `Gathered`, and returns whether the line has the format.
    """

    name: str
    family: str
    framework: str
    take: Callable[[str, Gathered], bool]


def scaled_number(text: str | None) -> float:
    """Number from text with thousands separators or a suffix K, M, G, B, T; nan for an invalid text."""
    if not text:
        return float("nan")
    text = text.replace(",", "").strip()
    # nanotron shortens numbers to three digits with K, M and G.
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1e9}.get(text[-1:], 1.0)
    try:
        return scale * float(text[:-1] if scale != 1.0 else text)
    except ValueError:
        return float("nan")


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(line: str) -> str:
    """Line without the escape codes of terminal colours."""
    return _COLOURS.sub("", line) if "\x1b" in line else line


_NANOGPT = re.compile(r"^iter (\d+): loss [\d.naninf]+, time ([\d.]+)ms")
_NANOCHAT = re.compile(r"step (\d+)/\d+ .*?dt: ([\d.]+)ms \| tok/sec: ([\d,]+)")
_KEMPNER = re.compile(r"\[step (\d+)\].*?tok/s=([\d,]+).*?mem=([\d.]+)/[\d.]+GB.*?step_time=([\d.]+)s")
_DEEPSPEED = re.compile(r"steps: (\d+) loss: .*?iter time \(s\): ([\d.]+)")
_DEEPSPEED_TIMER = re.compile(r"global_step=(\d+),.*? CurrSamplesPerSec=([\d.]+)(?:.*? MaxMemAllocated=([\d.]+)GB)?")
_DEEPSPEED_SETTING = re.compile(r"config\.py:\d+:print\] +([a-z0-9_]+) \.* *(\S.*)$")
_INTERNEVO = re.compile(r"tflops=([\d.]+) step=(\d+) .*?tgs \(tokens/gpu/second\)=([\d.]+)")

_TORCHTUNE = re.compile(r"^Step (\d+) \| .*?tokens_per_second_per_gpu:([\d.]+)(?:.*?peak_memory_reserved:([\d.]+))?")
_LITGPT = re.compile(r"iter (\d+) step (\d+) \|.*?iter time: ([\d.]+) ms \(step\)")


def _reader(mark: str, take: Callable[[str, Gathered], bool]) -> Callable[[str, Gathered], bool]:
    """A reader that looks closely at lines with a mark alone."""
    return lambda line, gathered: mark in line and take(line, gathered)


def _nanogpt(line: str, gathered: Gathered) -> bool:
    if step := _NANOGPT.search(line):
        gathered.series.add(float(step[1]), seconds=float(step[2]) / 1e3)
    return step is not None


def _nanochat(line: str, gathered: Gathered) -> bool:
    if step := _NANOCHAT.search(line):
        gathered.series.add(float(step[1]), seconds=float(step[2]) / 1e3)
        # Tokens per second times seconds of the step; dt is in milliseconds.
        gathered.cells["tokens_per_step"] = round(scaled_number(step[3]) * float(step[2]) / 1e3)
    return step is not None


def _kempner(line: str, gathered: Gathered) -> bool:
    if step := _KEMPNER.search(line):
        gathered.series.add(float(step[1]), seconds=float(step[4]), memory_gb=float(step[3]) * GIB)
    return step is not None


def _deepspeed(line: str, gathered: Gathered) -> bool:
    if "iter time (s)" in line and (step := _DEEPSPEED.search(line)):
        gathered.series.add(float(step[1]), seconds=float(step[2]))
        return True
    if ":print]" in line and (setting := _DEEPSPEED_SETTING.search(line)):
        gathered.settings[setting[1]] = plain_value(setting[2])
    if "CurrSamplesPerSec=" not in line or not (step := _DEEPSPEED_TIMER.search(line)):
        return False
    batch, found = gathered.settings.get("train_batch_size"), {"memory_gb": float(step[3] or "nan") * GIB}
    if isinstance(batch, int | float) and float(step[2]) > 0.0:
        # The timer tells samples per second; the batch is in the head of the log.
        found["seconds"] = batch / float(step[2])
    gathered.series.add(float(step[1]), **found)
    return True


def _internevo(line: str, gathered: Gathered) -> bool:
    if step := _INTERNEVO.search(line):
        rates = {"tflops_per_gpu": float(step[1]), "tokens_per_s_per_gpu": float(step[3])}
        gathered.series.add(float(step[2]), **rates)
    return step is not None


def _torchtune(line: str, gathered: Gathered) -> bool:
    if step := _TORCHTUNE.search(line):
        gathered.series.add(
            float(step[1]), tokens_per_s_per_gpu=float(step[2]), memory_gb=float(step[3] or "nan") * GIB
        )
    return step is not None


def _litgpt(line: str, gathered: Gathered) -> bool:
    if step := _LITGPT.search(line):
        # A step has as many passes as iterations of the count were needed for it.
        passes = round(float(step[1]) / float(step[2]))
        gathered.series.add(float(step[2]), seconds=passes * float(step[3]) / 1e3)
    return step is not None


PLAIN = (
    LogFormat("nanoGPT", "", "pytorch", _reader("iter ", _nanogpt)),
    LogFormat("nanochat", "", "pytorch", _reader("tok/sec:", _nanochat)),
    LogFormat("KempnerForge", "kempnerforge", "kempnerforge", _reader("step_time=", _kempner)),
    LogFormat("DeepSpeed", "deepspeed", "deepspeed", _deepspeed),
    LogFormat("torchtune", "", "torchtune", _reader("tokens_per_second_per_gpu:", _torchtune)),
    LogFormat("litgpt", "", "litgpt", _reader("iter time: ", _litgpt)),
    LogFormat("InternEvo", "", "internevo", _reader("tgs (tokens", _internevo)),
)


_MAXTEXT_STEP = re.compile(
    r"completed step: (\d+), seconds: ([\d.]+), TFLOP/s(?:/device)?: ([\d.]+)(?:, Tokens/s/device: ([\d.]+))?"
    r"(?:, total_weights: (\d+))?"
)
_MAXTEXT_SETTING = re.compile(r"Config param (\w+): (.*?)\s*$")
_MAXTEXT_DEVICES = re.compile(r"Num_devices: (\d+)", re.IGNORECASE)


def _take_maxtext(line: str, gathered: Gathered) -> bool:
    if "completed step" in line and (step := _MAXTEXT_STEP.search(line)):
        found = {"seconds": float(step[2]), "tflops_per_gpu": float(step[3])}
        if step[4]:  # since 2024
            found["tokens_per_s_per_gpu"] = float(step[4])
        gathered.series.add(float(step[1]), **found)
        if step[5] and step[4]:
            gathered.cells["tokens_per_step"] = float(step[5])
            # Tokens of a step / seconds / tokens per second of a device.
            gathered.cells["n_gpus"] = round(float(step[5]) / float(step[2]) / float(step[4]))
        return True
    if "Config param" in line and (setting := _MAXTEXT_SETTING.search(line)):
        gathered.settings[setting[1].lower()] = plain_value(setting[2])
    elif devices := _MAXTEXT_DEVICES.search(line):
        gathered.settings["num_devices"] = int(devices[1])
    return False


MAXTEXT = LogFormat("MaxText", "maxtext", "maxtext", _take_maxtext)


_NANOTRON_FIELD = re.compile(r"(\w+): ([\d.]+[KMGT]?)(?= |$|\|)")
_NANOTRON_STEP = re.compile(r"iteration: (\d+) / \d+")


def _take_nanotron(line: str, gathered: Gathered) -> bool:
    if "elapsed_time_per_iteration_ms" not in line or not (step := _NANOTRON_STEP.search(line)):
        return False
    fields = {name: scaled_number(value) for name, value in _NANOTRON_FIELD.findall(line)}
    found = {
        "seconds": fields.get("elapsed_time_per_iteration_ms", float("nan")) / 1e3,
        "tokens_per_s_per_gpu": fields.get("tokens_per_sec_per_gpu", float("nan")),
        "tflops_per_gpu": fields.get("model_tflops_per_gpu", float("nan")),
        "batch": fields.get("global_batch_size", float("nan")),
        "memory_gb": fields.get("cuda_max_memory_reserved", float("nan")) / 1e9,
    }
    gathered.series.add(float(step[1]), **found)
    total, own = fields.get("tokens_per_sec"), fields.get("tokens_per_sec_per_gpu")
    if total and own:
        # Figures of three digits: the ratio is whole but for rounding.
        gathered.cells.setdefault("n_gpus", max(1, round(total / own)))
    return True


NANOTRON = LogFormat("nanotron", "nanotron", "nanotron", _take_nanotron)


_MEGATRON_STEP = re.compile(r"iteration +(\d+)/ *\d+ \|.*?elapsed time per iteration \((m?s)\): *([\d.]+)(/[\d.]+)?")
_MEGATRON_RATE = re.compile(r"(?:throughput per GPU \(TFLOP/s/GPU\)|\| TFLOPs): *([\d.]+)")
_BATCH = re.compile(r"global batch size: *(\d+)")
_TOKENS = re.compile(r"tokens per GPU \(tokens/s/GPU\): *([\d.]+)")
_BRIDGE = re.compile(r"Step Time : *([\d.]+)s GPU utilization: *([\d.]+)")
_ARGUMENT = re.compile(r"^(?:\S*?: *| )?\s*([a-z][a-z0-9_]+) \.{3,} (.+?)\s*$")
_MEGATRON_MEMORY = re.compile(r"max (?:allocated|reserved): *([\d.]+)")
_GIB = re.compile(r"\| memory\(GiB\): *([\d.]+)")
MIB = 2.0**20 / 1e9
"""One MiB [1e9 byte]."""


def _take_megatron(line: str, gathered: Gathered) -> bool:
    if "elapsed time per iteration" in line and (step := _MEGATRON_STEP.search(line)):
        # Megatron-LM logs milliseconds, the fork of DeepSpeed seconds.
        found = {"seconds": float(step[3]) / (1e3 if step[2] == "ms" else 1.0)}
        if memory := _GIB.search(line):  # of ms-swift
            gathered.cells["framework"] = "ms-swift-megatron"
            peak = float(memory[1]) * 2.0**30 / 1e9
            # The log states the peak so far at every step: the largest counts.
            gathered.cells["peak_mem_gb"] = max(peak, gathered.cells.get("peak_mem_gb", 0.0))
        if step[4]:  # Primus tells the mean as well
            gathered.cells["framework"] = "primus"
        if step[2] == "s":
            gathered.settings["deepspeed"] = True  # the fork tells seconds
        for name, pattern in (("tflops_per_gpu", _MEGATRON_RATE), ("batch", _BATCH), ("tokens_per_s_per_gpu", _TOKENS)):
            if match := pattern.search(line):
                found[name] = float(match[1])
        gathered.series.add(float(step[1]), **found)
        return True
    if "Step Time :" in line and (step := _BRIDGE.search(line)):
        # The same step has a line of iteration as well, which counts.
        gathered.cells |= {"tflops_per_gpu": float(step[2]), "framework": "megatron-bridge"}
        gathered.cells["step_time_s"] = float(step[1])
        return True
    if " ....." in line and (argument := _ARGUMENT.search(line)):
        gathered.settings[argument[1]] = plain_value(argument[2])
        # The block of arguments alone proves no program: a step decides.
        return False
    if "max reserved" in line and "memory (MB)" in line and (peaks := _MEGATRON_MEMORY.findall(line)):
        # Reserved memory includes allocated memory: the larger figure is the chip's need.
        peak = max(map(float, peaks)) * MIB
        gathered.cells["peak_mem_gb"] = max(peak, gathered.cells.get("peak_mem_gb", 0.0))
    return False


MEGATRON = LogFormat("Megatron-LM or Megatron-Bridge", "megatron", "megatron-lm", _take_megatron)


_TITAN_STEP = re.compile(
    r"step: *(\d+) .*?memory: *([\d.]+)GiB.*?tps: *([\d,.]+)(?:.*?tflops: *([\d,.]+))?(?:.*?mfu: *([\d.]+)%)?"
)
_CARD = re.compile(r"capacity: (.+?) with ([\d.]+)GiB")
_MODEL = re.compile(r"Model (\S+) (\S+) size")
_RECOMPUTE = re.compile(r"Applied (\w+) activation checkpointing")
_START = re.compile(r"local batch size (\d+), global batch size (\d+).*?sequence length (\d+)")
_MESH = re.compile(r"Building \d-D device mesh with \[(.*?)\], \[(.*?)\]")
_MESH_COLUMNS = {"tp": "tp", "pp": "pp", "cp": "cp"}


def _take_titan(line: str, gathered: Gathered) -> bool:
    line = without_colours(line)
    if "tps:" in line and (step := _TITAN_STEP.search(line)):
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
    """Catalogue id of the chip with a given name and the nearest memory; the name itself if there is no single match.

    Args:
        name: name of the card, in any common spelling.
        memory: memory reported by the program [byte].
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


TORCHTITAN = LogFormat("torchtitan", "torchtitan", "torchtitan", _take_titan)


_BAR = re.compile(r"(\d+)/\d+ \[[\d:]+<[\d:?]+, *([\d.]+)(s/it|it/s)\]")
_TRAINER_MEMORY = re.compile(
    r"'memory/(?:device_reserved|max_allocated|max_active|max_mem_active|device_mem_reserved)[^']*': '?([\d.]+)"
)
_TRAINER_RATE = re.compile(r"'train_steps_per_second': '?([\d.]+)")
_HEAD = {
    "micro_batch_size": re.compile(r"(?:Instantaneous batch size per device|Batch size per device) = (\d+)"),
    "n_microbatches": re.compile(r"Gradient [Aa]ccumulation steps = (\d+)"),
    "global_batch_size_seqs": re.compile(r"Total (?:train )?batch size \([^)]*\) = (\d+)"),
    "n_gpus": re.compile(r"Data Parallel GPUs = (\d+)"),
}
"""What the head of a log tells, by column."""
_UNSLOTH = re.compile(r"Unsloth \d|\s(NVIDIA [\w -]+)\. Num GPUs =")
UPPER_BOUND = "step time from train_steps_per_second, which counts start-up, evaluation and checkpoints: an upper bound"


def _take_trainer(line: str, gathered: Gathered) -> bool:
    is_mine = False
    if " = " in line or "Unsloth" in line:
        gathered.cells |= {name: int(told[1]) for name, form in _HEAD.items() if (told := form.search(line))}
        if unsloth := _UNSLOTH.search(line):
            gathered.cells |= {"framework": "unsloth", **({"gpu": unsloth[1]} if unsloth[1] else {})}
    if memory := _TRAINER_MEMORY.search(line):
        gathered.cells["peak_mem_gb"] = max(float(memory[1]) * GIB, gathered.cells.get("peak_mem_gb", 0.0))
        is_mine = True
    # One line may hold several states of the bar, parted by carriage returns; the last one is the latest.
    if "it]" in line or "it/s]" in line or "s/it]" in line:
        for step, pace, unit in _BAR.findall(line)[-1:]:
            if float(pace) > 0.0:
                # tqdm turns the rate round at a second per step.
                gathered.series.add(float(step), seconds=float(pace) if unit == "s/it" else 1.0 / float(pace))
                is_mine = True
    if (rate := _TRAINER_RATE.search(line)) and float(rate[1]) > 0.0:
        # The mean over the run counts start-up and evaluation, steps of the bar do not.
        if not len(gathered.series):
            gathered.series.add(1.0, seconds=1.0 / float(rate[1]))
            gathered.remarks.append(UPPER_BOUND)
        is_mine = True
    return is_mine


TRAINER = LogFormat("transformers.Trainer or axolotl", "deepspeed", "", _take_trainer)


def take_state(state: dict, gathered: Gathered) -> bool:
    """Read the content of a trainer_state.json into `gathered`; returns whether the document has the expected keys."""
    history = state.get("log_history")
    if not isinstance(history, list):
        return False
    for entry in history:
        rate = entry.get("train_steps_per_second") if isinstance(entry, dict) else None
        if isinstance(rate, int | float) and rate > 0.0:
            gathered.series.add(float(entry.get("step") or 1), seconds=1.0 / float(rate))
    if len(gathered.series):
        gathered.remarks.append(UPPER_BOUND)
    if isinstance(size := state.get("train_batch_size"), int):
        gathered.settings["per_device_train_batch_size"] = size
    return True


def _object(text: str) -> dict[str, Any]:
    try:
        value = parsed_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    # In Python, True is an int.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def _take_dllogger(line: str, gathered: Gathered) -> bool:
    if not line.startswith("DLLL "):
        return False
    entry = _object(line[5:])
    data = entry.get("data")
    if not isinstance(data, dict):
        return True
    if entry.get("step") == "PARAMETER":
        gathered.settings |= {key.removeprefix("cfg/").replace("/", ".").lower(): value for key, value in data.items()}
        # Marks settings of NeMo: the keys alone are Megatron's.
        gathered.settings["cfg/"] = True
    elif "train_step_timing in s" in data:
        gathered.series.add(_number(entry.get("step")), seconds=_number(data["train_step_timing in s"]))
    return True


def _take_automodel(line: str, gathered: Gathered) -> bool:
    if not line.startswith("{") or '"tps_per_gpu"' not in line:
        return False
    entry = _object(line)
    # Throughputs [token/s] of the run and of a chip, and tokens of a step [token].
    tps, own, tokens = (_number(entry.get(name)) for name in ("tps", "tps_per_gpu", "num_tokens_per_step"))
    found = {
        "tokens_per_s_per_gpu": own,
        "memory_gb": _number(entry.get("mem")) * GIB,
        # The log states per cent.
        "mfu": _number(entry.get("mfu")) / 100,
    }
    if tps > 0.0:
        found["seconds"] = tokens / tps
        # Throughput of the run over the throughput of a chip.
        gathered.cells.setdefault("n_gpus", max(1, round(tps / own)))
    gathered.series.add(_number(entry.get("step")), **found)
    return True


_MLPERF_CELLS = {
    "global_batch_size": "global_batch_size_seqs",
    "max_sequence_length": "seq_len",
    "gradient_accumulation_steps": "n_microbatches",
    "micro_batch_size": "micro_batch_size",
    "tensor_parallelism": "tp",
    "pipeline_parallelism": "pp",
    "context_parallelism": "cp",
    "expert_parallelism": "ep",
}


def _take_mlperf(line: str, gathered: Gathered) -> bool:
    _, mark, text = line.partition(":::MLLOG ")
    if not mark:
        return False
    entry = _object(text)
    key, value = entry.get("key"), entry.get("value")
    if key in _MLPERF_CELLS and _number(value) > 0.0:
        gathered.cells[_MLPERF_CELLS[key]] = value
    elif key == "submission_benchmark":
        gathered.cells["model"] = str(value)
    elif key == "tracked_stats" and isinstance(value, dict):
        stats = flat(value)
        seconds = _number(stats.get("train_step_time", stats.get("step_time")))
        rate, batch = _number(stats.get("throughput")), _number(gathered.cells.get("global_batch_size_seqs"))
        if seconds > 0.0 or rate > 0.0:
            # Sequences of a step over sequences per second.
            gathered.series.add(len(gathered.series) + 1.0, seconds=seconds if seconds > 0.0 else batch / rate)
    return True


DLLOGGER = LogFormat("NeMo (DLLogger)", "megatron", "nemo", _take_dllogger)
AUTOMODEL = LogFormat("NeMo AutoModel", "automodel", "nemo-automodel", _take_automodel)
MLPERF = LogFormat("MLPerf", "", "mlperf", _take_mlperf)
