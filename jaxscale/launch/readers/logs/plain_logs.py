"""Logs of programs that print a line of numbers per step: MaxText, nanotron and smaller ones."""

import re
from collections.abc import Callable

from jaxscale.launch.readers.logs.log_format import GIB, Gathered, LogFormat, scaled_number
from jaxscale.launch.readers.settings_text import plain_value

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
