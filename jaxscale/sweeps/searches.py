"""Questions of a sweep answered by a search at each point: best plan, best design, engine, training across islands."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxscale.base.domains import Bound
from jaxscale.base.units import DAY, GB
from jaxscale.calibration.record import load_fit
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import BUDGETS, Budget
from jaxscale.hardware.cluster import Cluster
from jaxscale.islands import MODES, best_fleet_plan, read_fleet, stated_slow_loss
from jaxscale.models import model as named_model
from jaxscale.plans.best_plan import answered
from jaxscale.plans.plan import RECOMPUTE, SCHEDULES
from jaxscale.plans.plan_questions import plan_question
from jaxscale.runs.defaults import known_frameworks
from jaxscale.runs.schema import BY_NAME, stated_values
from jaxscale.serving import ServingSpace, best_serving_plan, load_serving_fit, stack_levels
from jaxscale.sweeps.question import (
    BATCH_INPUT,
    CHIP_INPUTS,
    COUNT_INPUT,
    FIT_INPUT,
    MEMORY_INPUT,
    MODEL_INPUTS,
    NAMED_MODEL,
    NETWORK_INPUTS,
    PLAN_RESULTS,
    POSITIVE,
    PRECISION_INPUT,
    Input,
    Point,
    Question,
    Result,
    Search,
    SweepSpec,
    among,
    chip_input,
    cluster_of_point,
    number_input,
    one_of,
    whole,
    word_input,
)

POINTS = 16
"""Maximum number of points of a region of searches: an interruption loses the points not yet written [1]."""

MACHINE = {**CHIP_INPUTS, **MEMORY_INPUT, **NETWORK_INPUTS}
RISK = {"oom_probability": number_input("accepted probability of running out of memory", Bound(1e-6, 1.0 - 1e-6))}
FRAMEWORK = {"framework": one_of("framework", known_frameworks())}
SERVING_FRAMEWORK = {"framework": word_input("serving framework", lambda name: None)}


def _of_model(point: Point) -> Any:
    """Model of a point."""
    return named_model(point["model"], **{name: whole(value) for name, value in among(point, MODEL_INPUTS).items()})


def _of_machine(spec: SweepSpec, point: Point) -> Cluster:
    """Cluster of a point."""
    return cluster_of_point(spec.catalogue[point["gpu"]], among(point, MACHINE), whole(point["n_gpus"]))


def _each_point(point: Callable[[SweepSpec, Point], Mapping[str, Any]]) -> Callable[[SweepSpec], Search]:
    """Evaluation of a sweep by a function of the sweep and of a point."""
    return lambda spec: Search(functools.partial(point, spec))


def _cell(value: Any) -> str:
    """Value in the notation of a cell of a table."""
    return str(whole(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()


def _software_inputs() -> dict[str, Input]:
    """Columns of a runs table that describe plan and software, without the columns covered by separate inputs."""
    stated = (*PLAN_RESULTS, "sequence_parallel", "shard_group", "etp", "attention_kernel", "recompute", "schedule")
    stated += ("execution", "tp_overlap", "moe_dispatcher", "optimizer")

    def check(name: str) -> Input:
        def value_of(where: str, value: Any) -> Any:
            stated_values(f"{where}:", {name: _cell(value)})
            return value if name in PLAN_RESULTS else _cell(value)

        return Input(f"column `{name}` of a runs table", "1" if name in PLAN_RESULTS else "", value_of)

    return {name: check(name) for name in stated if name in BY_NAME}


SOFTWARE = _software_inputs()


def _cells(spec: SweepSpec, point: Point) -> dict[str, Any]:
    """Plan and software stated at a point, by column of a runs table."""
    texts = {name: _cell(value) for name, value in among(point, SOFTWARE).items()}
    cells = stated_values("sweep:", {**texts, **among(point, FRAMEWORK)})
    return {"gpu": point["gpu"], "precision": "bf16", **among(point, ("precision",)), **cells}


def _best_plan(spec: SweepSpec, point: Point) -> dict[str, Any]:
    question = plan_question(
        _of_model(point), _of_machine(spec, point), whole(point["global_batch"]), _cells(spec, point)
    )
    risk = among(point, RISK)
    best = answered(question, load_fit(point.get("fit", "default")), top=1, **risk).best
    words = best.plan.words()
    return {
        "step_time": best.step_time, "mfu": best.mfu, "memory": best.memory, "oom_probability": best.oom_probability,
        **_plan_of(words),
    }  # fmt: skip


def _plan_of(words: Mapping[str, Any]) -> dict[str, Any]:
    """Results that describe a plan, from its words."""
    return {name: words[name] for name in (*PLAN_RESULTS, "recompute", "schedule")}


PLAN_FIGURES = {
    **PLAN_RESULTS,
    "recompute": Result("what is computed again", "", RECOMPUTE),
    "schedule": Result("order of the passes of a pipeline", "", SCHEDULES),
}

BEST_PLAN = Question(
    "the fastest plan that fits",
    lambda hardware: {
        **NAMED_MODEL, **chip_input(hardware), **COUNT_INPUT, **BATCH_INPUT, **MODEL_INPUTS, **MACHINE, **SOFTWARE,
        **FRAMEWORK, **PRECISION_INPUT, **FIT_INPUT, **RISK,
    },
    (("model",), ("gpu",), ("n_gpus",), ("global_batch",)),
    (),
    lambda spec: {
        "step_time": Result("time of one optimizer step", "s"),
        "mfu": Result("model flop over the 16-bit peak, attention counted in full"),
        "memory": Result("peak memory of the fullest chip, as a program prints it", "byte"),
        "oom_probability": Result("probability of running out of memory"),
        **PLAN_FIGURES,
    },
    _each_point(_best_plan),
    POINTS,
)  # fmt: skip

BUDGET_INPUTS = {
    "days": number_input("budget: time, for least loss", Bound(0.0, BUDGETS["days"], True), "day"),
    "loss": number_input("budget: final loss, for least time", Bound(0.0, BUDGETS["loss"], True), "nat"),
    "flop": number_input("budget: training compute", Bound(0.0, BUDGETS["flop"], True), "flop"),
    "params": number_input("budget: parameters", Bound(0.0, BUDGETS["params"], True)),
}

DESIGN_SIZES = {
    "n_layers": Result("depth"),
    "d_model": Result("width"),
    "d_ff": Result("width of the MLP"),
    "n_heads": Result("query heads"),
    "params": Result("parameters"),
    "active_params": Result("parameters that a token meets"),
    "tokens": Result("training tokens", "token"),
    "global_batch_tokens": Result("batch", "token"),
    "loss": Result("final loss", "nat"),
}


def _best_design(spec: SweepSpec, point: Point) -> dict[str, Any]:
    cluster, cells = _of_machine(spec, point), _cells(spec, point)
    question = plan_question(_of_model(point), cluster, None, cells)
    budget = Budget(**among(point, BUDGET_INPUTS))
    template, fit = question.model, point.get("fit", "default")
    choice = best_design(
        cluster, budget, template=template, fit=fit, levels=question.levels, space=question.space, **among(point, RISK)
    )
    document = choice.to_json()
    return {
        **{name: document[name] for name in DESIGN_SIZES},
        # Documents have days and GB.
        "training_time": document["training_days"] * DAY,
        "step_time": document["step_time_s"],
        "memory": document["memory_gb"] * GB,
        **_plan_of(document["plan"]),
    }


BEST_DESIGN = Question(
    "the best model, batch and plan for a budget",
    lambda hardware: {
        **NAMED_MODEL, **chip_input(hardware), **COUNT_INPUT, **BUDGET_INPUTS,
        **{name: asked for name, asked in MODEL_INPUTS.items() if name not in ("n_layers", "d_model", "n_heads")},
        **MACHINE, **SOFTWARE, **FRAMEWORK, **PRECISION_INPUT, **FIT_INPUT, **RISK,
    },
    (("model",), ("gpu",), ("n_gpus",), tuple(BUDGET_INPUTS)),
    (tuple(BUDGET_INPUTS),),
    lambda spec: {
        **DESIGN_SIZES,
        "training_time": Result("time of the run", "s"),
        "step_time": Result("time of one optimizer step", "s"),
        "memory": Result("peak memory of the fullest chip", "byte"),
        **PLAN_FIGURES,
    },
    _each_point(_best_design),
    POINTS,
)  # fmt: skip


def _serving(spec: SweepSpec, point: Point) -> dict[str, Any]:
    shape, cluster = _of_model(point), _of_machine(spec, point)
    framework = point.get("framework", "vllm")
    levels = stack_levels(framework, point["gpu"], shape, name=point["model"], hardware=spec.catalogue)
    best = best_serving_plan(
        shape,
        cluster,
        point["input_len"],
        point["output_len"],
        **among(point, LATENCY_LIMITS),
        fit=point.get("fit", "default"),
        levels=levels,
        space=ServingSpace(precisions=(point.get("precision", "bf16"),)),
        top=1,
    ).best
    document = best.to_json()
    return {
        **{name: document[name] for name in ENGINE_DEGREES},
        "throughput_per_chip": best.throughput_per_chip,
        "throughput": best.throughput,
        "ttft": best.ttft,
        "tpot": best.tpot,
        "memory": best.memory,
    }


LATENCY_LIMITS = {
    "tpot_limit": number_input("largest time per token", POSITIVE, "s"),
    "ttft_limit": number_input("largest time to the first token", POSITIVE, "s"),
}
LENGTHS = {
    "input_len": number_input("prompt of a request", Bound(1.0, 1e9), "token"),
    "output_len": number_input("answer of a request", Bound(1.0, 1e9), "token"),
}
ENGINE_DEGREES = {
    "tp": Result("tensor-parallel degree"),
    "pp": Result("pipeline stages"),
    "attention_dp": Result("ranks with the attention of their own sequences"),
    "copies": Result("decoding engines side by side"),
    "prefill_copies": Result("engines for prompts alone"),
    "concurrency": Result("requests in flight"),
}

SERVING = Question(
    "the engine that answers most per chip under limits of latency",
    lambda hardware: {
        **NAMED_MODEL, **chip_input(hardware), **COUNT_INPUT, **LENGTHS, **LATENCY_LIMITS, **MODEL_INPUTS, **MACHINE,
        **SERVING_FRAMEWORK, **PRECISION_INPUT, "fit": word_input("name or file of a fit of serving", load_serving_fit),
    },
    (("model",), ("gpu",), ("n_gpus",), ("input_len",), ("output_len",)),
    (),
    lambda spec: {
        "throughput_per_chip": Result("answer tokens per chip", "token/s"),
        "throughput": Result("answer tokens", "token/s"),
        "ttft": Result("time to the first token", "s"),
        "tpot": Result("time per token", "s"),
        "memory": Result("memory of a chip", "byte"),
        **ENGINE_DEGREES,
    },
    _each_point(_serving),
    POINTS,
)  # fmt: skip

LINKS = {
    "bandwidth": number_input("bandwidth of every link between islands", POSITIVE, "byte/s"),
    "latency": number_input("latency of every link between islands", Bound(0.0, 1e3), "s"),
}


def _islands(spec: SweepSpec, point: Point) -> dict[str, Any]:
    stated = read_fleet(point["fleet"], spec.catalogue, stated_slow_loss())
    fleet, links = stated.fleet, stated.fleet.links
    square = np.ones((fleet.n_islands, fleet.n_islands))
    # (islands, islands)
    links = dataclasses.replace(links, **{name: square * value for name, value in among(point, LINKS).items()})
    precision, framework = point.get("precision", "bf16"), point.get("framework")
    cells = [{"gpu": chip, "precision": precision, "framework": framework} for chip in stated.chips]
    best = best_fleet_plan(
        _of_model(point),
        dataclasses.replace(fleet, links=links),
        whole(point["global_batch"]),
        fit=point.get("fit", "default"),
        cells=cells,
        **among(point, ("loss",)),
    ).best
    return {
        "days": best.days,
        "tokens_per_s": best.tokens_per_s,
        "mode": best.mode,
        "n_islands": len(best.islands),
        "inner_steps": best.inner_steps,
        "utilisation": best.utilisation,
    }


ISLANDS = Question(
    "the best way to train on islands",
    lambda hardware: {
        "fleet": word_input("file of a fleet", lambda path: read_fleet(path, hardware) and None),
        **NAMED_MODEL, **MODEL_INPUTS, **BATCH_INPUT, **LINKS, **FRAMEWORK, **PRECISION_INPUT, **FIT_INPUT,
        "loss": number_input("target", Bound(0.0, 100.0, True), "nat"),
    },
    (("fleet",), ("model",), ("global_batch",)),
    (),
    lambda spec: {
        "days": Result("time to the loss", "day"),
        "tokens_per_s": Result("pace", "token/s"),
        "mode": Result("way in which islands work together", "", (*MODES, "alone")),
        "n_islands": Result("islands that take part"),
        "inner_steps": Result("steps between exchanges"),
        "utilisation": Result("share of a round in which the slowest island computes"),
    },
    _each_point(_islands),
    POINTS,
)  # fmt: skip
