"""Logs whose lines hold JSON: NeMo's DLLogger, NeMo AutoModel, MLPerf."""

from typing import Any

from jaxscale.base.documents import parsed_json
from jaxscale.launch.readers.logs.log_format import GIB, Gathered, LogFormat
from jaxscale.launch.readers.settings_text import flat


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
