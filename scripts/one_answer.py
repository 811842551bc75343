"""Ask one question at every door that answers it: plan, time, memory and risk must be the same.

Doors: a row of a table with open cells (`js.predict`), `jaxscale predict --model`, `jaxscale plan`, `js.best_plan`, and
the page; and `jaxscale shape`, whose design is asked for its plan. With stated software also `shape --like`, `limits`,
`trends` and `islands`, whose runs are asked of `jaxscale predict` and of the ranking. Run: python scripts/one_answer.py
(some minutes)
"""

import contextlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import jaxscale as js
from jaxscale.cli import main as command_line
from jaxscale.explore.page_state import PageState, page_inputs
from jaxscale.explore.page_work import ranked_plans
from jaxscale.plans.plan_questions import every_plan
from jaxscale.plans.score import FoundPlans

MODELS = (
    *("llama3-8b", "llama3-70b", "llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b"),
    *("qwen2.5-7b", "llama2-13b", "olmo2-32b", "gemma2-9b", "qwen3-30b-a3b", "falcon-180b"),
)
CLUSTERS = (
    ("h100-80gb", 64, 512, None),
    ("a100-80gb", 512, 1024, "megatron-lm"),
    ("h100-80gb", 2048, 2048, "nemo"),
    ("tpu-v5p", 256, 1024, "maxtext"),
    ("b200", 128, 512, "torchtitan"),
)
"""Chip, count, sequences of a step, framework."""

TOLERANCE = 1e-6


class Question(NamedTuple):
    """One run that leaves its plan open."""

    model: str
    gpu: str
    n_gpus: int
    batch: int
    framework: str | None

    @property
    def row(self) -> dict[str, Any]:
        """As the row of a table."""
        cells = {"model": self.model, "gpu": self.gpu, "n_gpus": self.n_gpus, "global_batch_size_seqs": self.batch}
        return {**cells, "seq_len": 4096, "framework": self.framework}


class Answer(NamedTuple):
    """What a door says; nan where it refuses, or knows no plan that fits."""

    plan: str
    step_time: float
    memory: float
    oom_probability: float


NOTHING = Answer("", math.nan, math.nan, math.nan)


def by_table(question: Question) -> Answer:
    """A row with open cells."""
    found = js.predict(question.row)
    if not found.oom_probability[0] <= 0.1 + 1e-9:
        return NOTHING
    return Answer(found.plan_texts()[0], found.step_time[0], found.memory[0], found.oom_probability[0])


def document(*arguments: Any) -> dict[str, Any] | None:
    """JSON document of a command, None where it refuses."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.object(command_line, "configure_jax"),
    ):
        code = command_line.main([*map(str, arguments), "--json"])
    return json.loads(out.getvalue()) if code == 0 else None


def options(question: Question) -> list[Any]:
    """The question as options of a command."""
    what = ["--model", question.model, "--gpu", question.gpu, "--n-gpus", question.n_gpus]
    return [*what, "--global-batch", question.batch, "--seq-len", 4096]


def by_predict(question: Question) -> Answer:
    """`jaxscale predict --model`."""
    software = ["--set", f"framework={question.framework}"] if question.framework else []
    found = document("predict", *options(question), *software)
    row = found["predictions"][0] if found else None
    if row is None or not row["predicted_oom_probability"] <= 0.1 + 1e-9:
        return NOTHING
    figures = (row["predicted_step_time_s"], 1e9 * row["predicted_memory_gb"], row["predicted_oom_probability"])
    return Answer(row["predicted_plan"], *figures)


def by_plan(question: Question) -> Answer:
    """`jaxscale plan`."""
    software = ["--framework", question.framework] if question.framework else []
    found = document("plan", *options(question), *software)
    if found is None:
        return NOTHING
    best = found["best"]
    return Answer(words(best), best["step_time_s"], 1e9 * best["memory_gb"], best["oom_probability"])


def words(plan: dict[str, Any]) -> str:
    """A plan in a few words."""
    from jaxscale.plans.plan import in_short

    return in_short(plan)


def by_function(question: Question) -> Answer:
    """`js.best_plan`."""
    model, levels = js.model(question.model, seq_len=4096), {"framework": question.framework}
    try:
        best = js.best_plan(model, question.gpu, question.batch, n_chips=question.n_gpus, levels=levels).best
    except js.InputError:
        return NOTHING
    return Answer(words(best.plan.words()), best.step_time, best.memory, best.oom_probability)


def by_page(question: Question) -> Answer:
    """The interactive page."""
    state = PageState(question.model, question.gpu, question.n_gpus, question.batch, 4096, question.framework or "")
    try:
        best = ranked_plans(state, page_inputs()).best
    except js.InputError:
        return NOTHING
    return Answer(words(best.plan.words()), best.step_time, best.memory, best.oom_probability)


DOORS: dict[str, Callable[[Question], Answer]] = {
    "table": by_table,
    "predict --model": by_predict,
    "plan": by_plan,
    "best_plan": by_function,
    "page": by_page,
}


def differences(question: Question) -> list[str]:
    """Doors that answer otherwise than the first, and in what."""
    answers = {door: ask(question) for door, ask in DOORS.items()}
    first = answers["table"]
    return [
        f"{door}: {answer} instead of {first}"
        for door, answer in answers.items()
        if answer.plan != first.plan
        or not np.allclose(answer[1:], first[1:], rtol=TOLERANCE, atol=1e-12, equal_nan=True)
    ]


SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "seq_len")


def design_differences(gpu: str, n_gpus: int, framework: str | None) -> str:
    """Where the plan of a design of ten days takes other time or memory than `js.best_plan` says of its model."""
    software = ["--framework", framework] if framework else []
    what = ["--gpu", gpu, "--n-gpus", n_gpus, "--days", 10, "--seq-len", 4096]
    found = document("shape", *what, *software)
    if found is None:
        return "shape refuses"
    shape = js.Transformer(**{name: found[name] for name in SIZES}, gated_mlp=True)
    batch = round(found["global_batch_tokens"] / found["seq_len"])
    best = js.best_plan(shape, gpu, batch, n_chips=n_gpus, levels={"framework": framework}).best
    ours = (found["step_time_s"], 1e9 * found["memory_gb"])
    is_same = np.allclose(ours, (best.step_time, best.memory), rtol=TOLERANCE)
    return "" if is_same else f"shape: {ours} instead of {(best.step_time, best.memory)}"


Figures = tuple[float, float]
"""Time of a step [s] and memory [GB]."""

SOFTWARE: tuple[tuple[Question, Mapping[str, Any]], ...] = (
    (
        Question("llama3-8b", "h100-80gb", 64, 512, "torchtitan"),
        {"optimizer_bytes": 6, "execution": "compiled", "recompute_modules": "core_attn", "fused_norm": "no"},
    ),
    (
        Question("mixtral-8x7b", "h100-80gb", 128, 512, "nemo"),
        {"moe_dispatcher": "deepep", "moe_overlap": "yes", "tp_overlap": "none", "precision": "fp8"},
    ),
    (
        Question("qwen2.5-7b", "a100-80gb", 32, 256, "pytorch-fsdp"),
        {"optimizer": "adam8bit", "overlap_gradients": "no", "chunked_loss": "yes"},
    ),
)
"""Runs with stated software."""

PLAN_COLUMNS = (
    *("tp", "pp", "vpp", "cp", "ep", "dp", "zero_stage", "shard_group", "micro_batch_size", "n_microbatches"),
    *("sequence_parallel", "schedule", "first_stage_layers", "last_stage_layers"),
)
"""Columns of a runs table that state a plan."""


def settings(cells: Mapping[str, Any]) -> list[str]:
    """Cells as options of a command."""
    words = {True: "true", False: "false"}
    return [
        part
        for name, value in cells.items()
        for part in ("--set", f"{name}={words[value] if isinstance(value, bool) else value}")
    ]


def plan_cells(plan: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, Any]:
    """A plan in words as cells of a runs table, beside stated software."""
    cells = {name: plan[name] for name in PLAN_COLUMNS}
    recomputes = any(name in software for name in ("recompute_modules", "activation_recompute"))
    return cells if recomputes else {**cells, "activation_recompute": plan["recompute"]}


def stated_answers(question: Question, software: Mapping[str, Any]) -> dict[str, tuple[Figures, Figures]]:
    """What each door says of a run with stated software, beside what `jaxscale predict` says of the same run.

    Args:
        software: cells of a runs table.

    Returns:
        Both figures by door; nan where it refuses.
    """
    cells = {**software, **({"framework": question.framework} if question.framework else {})}
    stated, run = settings(cells), ["--seq-len", 4096]

    def predicted(batch: float, plan: Mapping[str, Any], n_gpus: int = question.n_gpus) -> Figures:
        what = ["--model", question.model, "--gpu", question.gpu, "--n-gpus", n_gpus, "--global-batch", round(batch)]
        found = document("predict", *what, *run, *stated, *settings(plan))
        row = found["predictions"][0] if found else {}
        return row.get("predicted_step_time_s", math.nan), row.get("predicted_memory_gb", math.nan)

    answers = {}
    best = (document("plan", *options(question), *stated) or {}).get("best")
    if best is None:
        return {"plan": ((math.nan, math.nan), predicted(question.batch, {}))}
    fastest = (best["step_time_s"], best["memory_gb"])
    answers["plan"] = fastest, predicted(question.batch, plan_cells(best, software))
    answers["open cells"] = fastest, predicted(question.batch, {})
    answers["islands"] = by_island(question, stated), fastest
    degrees = {"tp": 2, "ep": 2 if "moe_dispatcher" in software else 1}
    replicas = question.n_gpus // 2
    plan = {"pp": 1, "cp": 1, **degrees, "n_microbatches": 1, "micro_batch_size": question.batch // replicas}
    answers["trends"] = by_trend(question, degrees, stated), predicted(question.batch, {**plan, "zero_stage": 3})
    return answers


def by_island(question: Question, stated: Sequence[str]) -> Figures:
    """`jaxscale islands` on one island."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Path(folder) / "fleet.toml"
        fleet.write_text(f'[islands.only]\ngpu = "{question.gpu}"\nn_gpus = {question.n_gpus}\n', encoding="utf-8")
        what = ["--model", question.model, "--global-batch", question.batch, "--seq-len", 4096]
        found = document("islands", fleet, *what, *stated)
    if found is None:
        return math.nan, math.nan
    return question.batch * 4096 / found["tokens_per_s"], found["memory_gb"]["only"]


def by_trend(question: Question, degrees: Mapping[str, int], stated: Sequence[str]) -> Figures:
    """`jaxscale trends` on the chips of a question."""
    what = ["--model", question.model, "--gpu", question.gpu, "--seq-len", 4096, "--global-batch", question.batch]
    what += ["--from", question.n_gpus, "--to", 2 * question.n_gpus]
    found = document("trends", *what, *(part for name in degrees for part in (f"--{name}", degrees[name])), *stated)
    return (found["step_time_s"][0], found["memory_bytes"][0] / 1e9) if found else (math.nan, math.nan)


def limits_answers(gpu: str, software: Mapping[str, Any]) -> list[tuple[Figures, Figures]]:
    """Time and memory of the runs of `jaxscale limits` beside those that the ranking gives of the same model and plan.

    Widths of limits are no whole heads, so that no row of a table states them.
    """
    from jaxscale.limits.transformer_curve import transformer_curve
    from jaxscale.plans.best_plan import scored_plans
    from jaxscale.plans.plan_questions import plan_question
    from jaxscale.runs.schema import stated_values

    cells = stated_values("software", {name: str(value) for name, value in software.items()})
    fit, answers = js.load_fit(), []
    curve = transformer_curve(np.geomspace(1e24, 1e26, 4), gpu, cells=cells)
    for run in curve.best:
        if run is not None:
            machine = js.cluster(gpu, round(run.n_chips))
            question = plan_question(run.model, machine, run.batch, {"precision": "bf16", **cells, "gpu": gpu})
            (scored,) = scored_plans(question.task(fit), question.usable(fit), [run.plan])
            answers.append(((run.step_time, run.memory), (scored.step_time, scored.memory)))
    return answers or [((math.nan, math.nan), (math.nan, math.nan))]


def like_answers(question: Question, software: Mapping[str, Any], days: float = 10.0) -> tuple[Figures, Figures]:
    """Time and memory of a built model in the budget of a design, beside those that `jaxscale predict` gives."""
    cells = {**software, **({"framework": question.framework} if question.framework else {})}
    what = ["--gpu", question.gpu, "--n-gpus", question.n_gpus, "--seq-len", 4096]
    found = document("shape", *what, "--days", days, "--like", question.model, *settings(cells))
    if found is None:
        return (math.nan, math.nan), (0.0, 0.0)
    like = found["like"]
    batch = round(like["global_batch_tokens"] / like["seq_len"])
    what = ["--model", question.model, *what, "--global-batch", batch]
    row = document("predict", *what, *settings({**cells, **plan_cells(like["plan"], software)}))
    told = row["predictions"][0] if row else {}
    there = told.get("predicted_step_time_s", math.nan), told.get("predicted_memory_gb", math.nan)
    return (like["step_time_s"], like["memory_gb"]), there


def is_one(pair: tuple[Figures, Figures]) -> bool:
    """Whether time and memory are the same."""
    return bool(np.allclose(*pair, rtol=TOLERANCE, atol=0.0))


def software_differences(question: Question, software: Mapping[str, Any]) -> list[str]:
    """Doors whose time or memory of a run with stated software is another than that of `jaxscale predict`."""
    answers = stated_answers(question, software)
    return [
        f"{door}: {ours} instead of {theirs}" for door, (ours, theirs) in answers.items() if not is_one((ours, theirs))
    ]


def is_best(question: Question) -> bool:
    """Whether the plan is the fastest of all valid plans that fit, or none fits."""
    row = js.read_runs(question.row)
    asked = open_question(row)
    task = asked.task(js.load_fit())
    (every,) = every_plan([task])
    answer = by_table(question)
    return not answer.plan and not every.fits.any() or fastest(every) >= answer.step_time * (1.0 - TOLERANCE)


def fastest(every: FoundPlans) -> float:
    """Least step time of the plans that fit [s]."""
    return float(every.scores.step_time[every.fits].min())


def open_question(row: js.Runs) -> Any:
    """What a row asks."""
    from jaxscale.runs.completion import open_rows

    asked = open_rows(row, np.ones(1, dtype=bool))
    assert asked is not None
    return asked.questions[0]


def main(arguments: Sequence[str]) -> int:
    """Ask all questions, and say where doors differ and how many plans are the best of their space."""
    jax.config.update("jax_enable_x64", True)
    questions = [Question(model, *cluster) for cluster in CLUSTERS for model in MODELS]
    questions = questions[: int(arguments[0])] if arguments else questions
    different, best, answered = 0, 0, 0
    for question in questions:
        found = differences(question)
        different += bool(found)
        best += is_best(question)
        answered += bool(by_table(question).plan)
        print(f"{question}: {'; '.join(found) or 'one answer'}", flush=True)
    for gpu, n_gpus, _, framework in CLUSTERS:
        found = design_differences(gpu, n_gpus, framework)
        different += bool(found)
        print(f"a design of ten days, {n_gpus} {gpu}, {framework}: {found or 'one answer'}", flush=True)
    for question, software in SOFTWARE:
        found = software_differences(question, software)
        like = like_answers(question, software)
        found += [] if is_one(like) else [f"shape --like: {like[0]} instead of {like[1]}"]
        found += [
            f"limits: {a} instead of {b}" for a, b in limits_answers(question.gpu, software) if not is_one((a, b))
        ]
        different += bool(found)
        print(f"{question} with {dict(software)}: {'; '.join(found) or 'one answer'}", flush=True)
    count = len(questions)
    print(
        f"{count} questions, {answered} with a plan that fits: {different} with different answers; {best} best of all"
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
