"""Logs of transformers' Trainer and of axolotl: the bar of progress, and the dictionary at the end."""

import re

from jaxscale.launch.readers.logs.log_format import GIB, Gathered, LogFormat

_BAR = re.compile(r"(\d+)/\d+ \[[\d:]+<[\d:?]+, *([\d.]+)(s/it|it/s)\]")
_MEMORY = re.compile(
    r"'memory/(?:device_reserved|max_allocated|max_active|max_mem_active|device_mem_reserved)[^']*': '?([\d.]+)"
)
_RATE = re.compile(r"'train_steps_per_second': '?([\d.]+)")
_HEAD = {
    "micro_batch_size": re.compile(r"(?:Instantaneous batch size per device|Batch size per device) = (\d+)"),
    "n_microbatches": re.compile(r"Gradient [Aa]ccumulation steps = (\d+)"),
    "global_batch_size_seqs": re.compile(r"Total (?:train )?batch size \([^)]*\) = (\d+)"),
    "n_gpus": re.compile(r"Data Parallel GPUs = (\d+)"),
}
"""What the head of a log tells, by column."""
_UNSLOTH = re.compile(r"Unsloth \d|\s(NVIDIA [\w -]+)\. Num GPUs =")
UPPER_BOUND = "step time from train_steps_per_second, which counts start-up, evaluation and checkpoints: an upper bound"


def _take(line: str, gathered: Gathered) -> bool:
    is_mine = False
    if " = " in line or "Unsloth" in line:
        gathered.cells |= {name: int(told[1]) for name, form in _HEAD.items() if (told := form.search(line))}
        if unsloth := _UNSLOTH.search(line):
            gathered.cells |= {"framework": "unsloth", **({"gpu": unsloth[1]} if unsloth[1] else {})}
    if memory := _MEMORY.search(line):
        gathered.cells["peak_mem_gb"] = max(float(memory[1]) * GIB, gathered.cells.get("peak_mem_gb", 0.0))
        is_mine = True
    # One line may hold several states of the bar, parted by carriage returns; the last one is the latest.
    if "it]" in line or "it/s]" in line or "s/it]" in line:
        for step, pace, unit in _BAR.findall(line)[-1:]:
            if float(pace) > 0.0:
                # tqdm turns the rate round at a second per step.
                gathered.series.add(float(step), seconds=float(pace) if unit == "s/it" else 1.0 / float(pace))
                is_mine = True
    if (rate := _RATE.search(line)) and float(rate[1]) > 0.0:
        # The mean over the run counts start-up and evaluation, steps of the bar do not.
        if not len(gathered.series):
            gathered.series.add(1.0, seconds=1.0 / float(rate[1]))
            gathered.remarks.append(UPPER_BOUND)
        is_mine = True
    return is_mine


TRAINER = LogFormat("transformers.Trainer or axolotl", "deepspeed", "", _take)


def take_state(state: dict, gathered: Gathered) -> bool:
    """Read the content of a trainer_state.json; returns whether the document has its keys."""
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
