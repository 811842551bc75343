"""Logs of Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge and Primus, with their block of arguments."""

import re

from jaxscale.launch.readers.logs.log_format import Gathered, LogFormat
from jaxscale.launch.readers.settings_text import plain_value

_STEP = re.compile(r"iteration +(\d+)/ *\d+ \|.*?elapsed time per iteration \((m?s)\): *([\d.]+)(/[\d.]+)?")
_RATE = re.compile(r"(?:throughput per GPU \(TFLOP/s/GPU\)|\| TFLOPs): *([\d.]+)")
_BATCH = re.compile(r"global batch size: *(\d+)")
_TOKENS = re.compile(r"tokens per GPU \(tokens/s/GPU\): *([\d.]+)")
_BRIDGE = re.compile(r"Step Time : *([\d.]+)s GPU utilization: *([\d.]+)")
_ARGUMENT = re.compile(r"^(?:\S*?: *| )?\s*([a-z][a-z0-9_]+) \.{3,} (.+?)\s*$")
_MEMORY = re.compile(r"max (?:allocated|reserved): *([\d.]+)")
_GIB = re.compile(r"\| memory\(GiB\): *([\d.]+)")
MIB = 2.0**20 / 1e9
"""One MiB [1e9 byte]."""


def _take(line: str, gathered: Gathered) -> bool:
    if "elapsed time per iteration" in line and (step := _STEP.search(line)):
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
        for name, pattern in (("tflops_per_gpu", _RATE), ("batch", _BATCH), ("tokens_per_s_per_gpu", _TOKENS)):
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
    if "max reserved" in line and "memory (MB)" in line and (peaks := _MEMORY.findall(line)):
        # Reserved memory includes allocated memory: the larger figure is the chip's need.
        peak = max(map(float, peaks)) * MIB
        gathered.cells["peak_mem_gb"] = max(peak, gathered.cells.get("peak_mem_gb", 0.0))
    return False


MEGATRON = LogFormat("Megatron-LM or Megatron-Bridge", "megatron", "megatron-lm", _take)
