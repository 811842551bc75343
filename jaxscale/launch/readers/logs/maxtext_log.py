"""Logs of MaxText: seconds, rates of a device, and tokens of a step; the settings are dumped above."""

import re

from jaxscale.launch.readers.logs.log_format import Gathered, LogFormat
from jaxscale.launch.readers.settings_text import plain_value

_STEP = re.compile(
    r"completed step: (\d+), seconds: ([\d.]+), TFLOP/s(?:/device)?: ([\d.]+)(?:, Tokens/s/device: ([\d.]+))?"
    r"(?:, total_weights: (\d+))?"
)
_SETTING = re.compile(r"Config param (\w+): (.*?)\s*$")
_DEVICES = re.compile(r"Num_devices: (\d+)", re.IGNORECASE)


def _take(line: str, gathered: Gathered) -> bool:
    if "completed step" in line and (step := _STEP.search(line)):
        found = {"seconds": float(step[2]), "tflops_per_gpu": float(step[3])}
        if step[4]:  # since 2024
            found["tokens_per_s_per_gpu"] = float(step[4])
        gathered.series.add(float(step[1]), **found)
        if step[5] and step[4]:
            gathered.cells["tokens_per_step"] = float(step[5])
            # Tokens of a step / seconds / tokens per second of a device.
            gathered.cells["n_gpus"] = round(float(step[5]) / float(step[2]) / float(step[4]))
        return True
    if "Config param" in line and (setting := _SETTING.search(line)):
        gathered.settings[setting[1].lower()] = plain_value(setting[2])
    elif devices := _DEVICES.search(line):
        gathered.settings["num_devices"] = int(devices[1])
    return False


MAXTEXT = LogFormat("MaxText", "maxtext", "maxtext", _take)
