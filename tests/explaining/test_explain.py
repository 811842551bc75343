"""Differences between measured and predicted steps are found where they were planted."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from made_traces import made_steps, write_jax, write_kineto, write_nsight

import jaxscale as js
from jaxscale.explaining.kernel_terms import NAMES
from jaxscale.explaining.predicted_parts import PredictedParts, predicted_parts
from jaxscale.runs.measured import describe_runs

DENSE = {
    "model": "llama3-8b",
    "framework": "megatron-lm",
    "gpu": "h100-80gb",
    "n_gpus": 64,
    "tp": 2,
    "pp": 1,
    "micro_batch_size": 1,
    "global_batch_size_seqs": 128,
    "seq_len": 8192,
    "activation_recompute": "none",
}
PIPELINED = DENSE | {"pp": 4, "model": "llama3-70b", "n_gpus": 256, "tp": 4}
MIXTURE = DENSE | {"model": "mixtral-8x7b", "n_gpus": 128, "ep": 8, "tp": 1, "seq_len": 4096}


class Planted(NamedTuple):
    """A slowdown: of a run, of which part, times by which exposed time and hidden time are multiplied."""

    run: dict
    part: str
    factor: float = 1.0
    overlap_off: bool = False
    seconds: float = 0.0
    skew: float = 0.0
    at_once: bool = False
    format: str = "kineto"


SLOWDOWNS = {
    "slow matmuls": Planted(DENSE, "matmul", 1.6),
    "slow matmuls of a mixture": Planted(MIXTURE, "matmul", 1.7, format="nsight"),
    "attention not fused": Planted(DENSE, "attention", 2.5, format="jax"),
    "norms not fused": Planted(DENSE, "memory_bound", 2.2, format="nsight"),
    "norms not fused, in JAX": Planted(PIPELINED, "memory_bound", 2.2, format="jax"),
    "optimizer not fused": Planted(DENSE, "optimizer", 5.0),
    "tensor parallelism without overlap": Planted(DENSE, "tensor_parallel", overlap_off=True),
    "gradients without overlap": Planted(DENSE, "data_parallel", overlap_off=True, factor=1.5),
    "slow network": Planted(DENSE, "data_parallel", 4.0, format="nsight"),
    "bubble": Planted(PIPELINED, "pipeline", 2.5, format="jax"),
    "host gaps": Planted(DENSE, "host", seconds=0.5, format="nsight"),
    "data loader": Planted(PIPELINED, "host", seconds=2.0, at_once=True),
    "skew of experts": Planted(MIXTURE, "expert_parallel", seconds=0.6, skew=0.8),
}
ENDINGS = {"kineto": "trace.json.gz", "jax": "vm.trace.json.gz", "nsight": "trace.sqlite"}


def parts_of_run(run: dict) -> PredictedParts:
    """Predicted parts of a run."""
    runs = js.read_runs(run)
    return predicted_parts(js.predict(runs), describe_runs(runs), js.load_fit("default"))


def planted_trace(planted: Planted, folder: Path, seed: int) -> Path:
    """Trace of a step in which each part is off by some percent, and the planted one by more."""
    predicted, random = parts_of_run(planted.run), np.random.default_rng(seed)
    scattered = predicted.middle * random.uniform(0.95, 1.05, len(NAMES))
    exposed = dict(zip(NAMES, scattered.tolist(), strict=True))
    hidden = dict(zip(NAMES, predicted.hidden.tolist(), strict=True))
    if planted.overlap_off:
        exposed[planted.part] += hidden.pop(planted.part)
    exposed[planted.part] = exposed[planted.part] * planted.factor + planted.seconds
    kernels, edges = made_steps(exposed, hidden, seed, planted.skew, planted.at_once)
    path = folder / ENDINGS[planted.format]
    if planted.format == "kineto":
        return write_kineto(path, kernels, edges, planted.run["tp"])
    return {"jax": write_jax, "nsight": write_nsight}[planted.format](path, kernels, edges)


@pytest.fixture(scope="module")
def explanations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, js.Explanation]:
    """Explanation of each planted slowdown."""
    found = {}
    for seed, (name, planted) in enumerate(SLOWDOWNS.items()):
        path = planted_trace(planted, tmp_path_factory.mktemp("trace"), seed)
        found[name] = js.explain(planted.run, [path])
    return found


def test_planted_slowdowns_are_named_first(explanations: dict[str, js.Explanation]):
    named = {name: found.causes[0].part for name, found in explanations.items()}
    missed = {name: part for name, part in named.items() if part != SLOWDOWNS[name].part}
    assert len(SLOWDOWNS) >= 12
    assert len(missed) <= 1, missed


def test_no_other_part_is_blamed(explanations: dict[str, js.Explanation]):
    """Collectives are told apart by their groups, or by their streams where a trace tells no groups."""
    outside = {name: {p.name for p in found.parts if p.verdict != "within"} for name, found in explanations.items()}
    assert not {name: parts for name, parts in outside.items() if parts - {SLOWDOWNS[name].part}}


def test_parts_add_up_to_the_step(explanations: dict[str, js.Explanation]):
    for found in explanations.values():
        assert sum(part.measured for part in found.parts) == pytest.approx(found.measured, rel=1e-9)
        assert sum(part.predicted for part in found.parts) == pytest.approx(found.predicted, rel=1e-5)
        assert all(part.lo <= part.predicted <= part.hi for part in found.parts)


def test_a_trace_as_predicted_has_no_part_outside(tmp_path: Path):
    """Control: without anything planted, nothing is found."""
    path = planted_trace(Planted(DENSE, "matmul"), tmp_path, 3)
    found = js.explain(DENSE, [path])
    assert {part.verdict for part in found.parts} == {"within"}
    assert found.measured == pytest.approx(found.predicted, rel=0.05)
