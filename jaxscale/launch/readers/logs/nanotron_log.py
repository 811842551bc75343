"""Logs of nanotron: numbers of three digits with K, M and G."""

import re

from jaxscale.launch.readers.logs.log_format import Gathered, LogFormat, scaled_number

_FIELD = re.compile(r"(\w+): ([\d.]+[KMGT]?)(?= |$|\|)")
_STEP = re.compile(r"iteration: (\d+) / \d+")


def _take(line: str, gathered: Gathered) -> bool:
    if "elapsed_time_per_iteration_ms" not in line or not (step := _STEP.search(line)):
        return False
    fields = {name: scaled_number(value) for name, value in _FIELD.findall(line)}
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


NANOTRON = LogFormat("nanotron", "nanotron", "nanotron", _take)
