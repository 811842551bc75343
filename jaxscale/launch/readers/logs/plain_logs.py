"""Logs of programs that print a short line of numbers per step."""

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
