"""Integer designs of `js.best_design` against brute force: some 0.5 million exact designs for each cluster and budget.

Run from the repository: `python fits/design_oracle.py [COUNT]` (some minutes). Around the answer and the continuous
optimum every plan is scored; the fastest few hundred are crossed with a wide lattice of widths, depths, MLP widths and
batches, and judged by the laws written out here in numpy. Writes fits/design_oracle.md.
"""

import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from markdown_text import markdown_table

import jaxscale as js
from jaxscale.base.arrays import number, stacked
from jaxscale.costs.evaluate import evaluate_runs
from jaxscale.designs.integer_designs import (
    FIELDS,
    HEAD_WIDTHS,
    SIZES,
    IntegerSpace,
    Rows,
    built,
    put_together,
    row_of,
    width_step,
)
from jaxscale.designs.time_to_loss import default_laws
from jaxscale.models.transformer import embedding_params, n_active_params, n_params
from jaxscale.plans.enumerate import PlanSpace, within_domains
from jaxscale.plans.plan_questions import every_plan
from jaxscale.plans.rules import BATCH_RULE, model_columns, obeys
from jaxscale.plans.score import PlanTask
from jaxscale.runs.arrays import RunBatch

PLANS = 60
"""Plans of each middle that are crossed with sizes [1]."""


class Case(NamedTuple):
    """A cluster and a budget of days."""

    gpu: str
    n_chips: int
    days: float
    template: str = "llama3-8b"
    bounds: tuple[tuple[str, float], ...] = ()


CASES = (
    *(Case("a100-80gb", 256, 30.0), Case("h100-80gb", 8, 10.0), Case("h800-80gb", 512, 20.0)),
    *(Case("b200", 128, 20.0), Case("h100-80gb", 1024, 30.0), Case("h100-80gb", 64, 3.0)),
    *(Case("h100-80gb", 512, 10.0), Case("a100-80gb", 64, 20.0), Case("h200-141gb", 96, 14.0)),
    *(Case("h100-80gb", 2048, 60.0), Case("tpu-v5p", 256, 20.0), Case("mi300x", 128, 30.0)),
    *(Case("a100-80gb", 16, 7.0), Case("h100-80gb", 4096, 30.0), Case("gb200", 72, 30.0)),
    Case("h100-80gb", 128, 20.0, "mixtral-8x7b"),
    Case("h800-80gb", 512, 30.0, "deepseek-v3"),
    Case("h100-80gb", 256, 20.0, "llama3-8b", (("batch", 5e5),)),
    Case("h100-80gb", 256, 20.0, "llama3-8b", (("step_time", 0.8),)),
    Case("h100-80gb", 256, 20.0, "llama3-8b", (("params", 1e10),)),
)


def excess(models: Any, batch: np.ndarray, step: np.ndarray, case: Case, template: Any) -> np.ndarray:
    """Loss above the irreducible one of runs of all the days of a case, by the laws in numpy [design]."""
    laws = default_laws()
    law, shape, failure = laws.loss, laws.shape, laws.failure
    active, params = np.asarray(n_active_params(models)), np.asarray(n_params(models))
    inner = params - np.asarray(embedding_params(models))
    ratio = np.log(models.d_model / models.n_layers / (shape.ratio * (inner / 1e9) ** shape.drift))
    is_mixture = number(template.n_experts) > 1.0
    mlp = models.d_ff_expert if is_mixture else models.d_ff
    own = number(template.d_ff_expert if is_mixture else template.d_ff) / number(template.d_model)
    rise = 1.0 + shape.kappa * ratio**2 + laws.mlp_kappa * np.log(mlp / models.d_model / own) ** 2
    rate = failure.failures_per_chip_second * case.n_chips
    writing = 14.0 * params / (failure.storage_bytes_per_second * case.n_chips)
    work = np.sqrt(2.0 * writing / rate)
    slow = np.exp(failure.restart_time * rate) * np.expm1((work + writing) * rate) / (work * rate)
    seen = case.days * 86400.0 / (step * slow) * batch
    # D (1 + B / (c D^p)) = tokens seen: by bisection of ln D.
    low, high = np.full(len(step), math.log(1e6)), np.full(len(step), math.log(1e17))
    for _ in range(70):
        middle = 0.5 * (low + high)
        tokens = np.exp(middle)
        critical = laws.batch.coefficient / laws.batch.overhead * tokens**laws.batch.tokens_exponent
        over = tokens * (1.0 + batch / critical) > seen
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    terms = (
        law.params_coefficient * active**-law.params_exponent,
        law.tokens_coefficient * np.exp(-law.tokens_exponent * low),
    )
    k = law.joint
    return (law.irreducible + (terms[0] ** (1 / k) + terms[1] ** (1 / k)) ** k) * rise - law.irreducible


def every_design(middles: list[dict[str, float]], where: IntegerSpace, wide: int) -> Rows:
    """Plans of all middles crossed with a lattice of sizes and batches around each [design]."""
    problem, found = where.problem, []
    space = within_domains(where.space, problem.cluster)
    for middle in middles:
        sizes = {name: np.full(1, middle[name]) for name in SIZES}
        model = row_of(built({**sizes, **{name: np.ones(1) for name in FIELDS}}, where)[0], 0)
        task = PlanTask(model, problem.cluster, round(middle["batch"]), problem.coefficients, where.memory_limit, space)
        (plans,) = every_plan([task])
        for row in np.argsort(plans.merits, kind="stable")[:PLANS].tolist():
            plan = {name: float(column[row]) for name, column in plans.table.columns.items()}
            found.append(_crossed(middle, plan, where, wide))
    rows = put_together(found)
    facts = {**model_columns(built(rows, where)[0]), **{name: rows[name] for name in FIELDS}}
    facts |= {"n_chips": where.n_chips, "domain_size": number(problem.cluster.network.level(0)[0])}
    valid = obeys(facts, rules=[rule for rule in where.space.rules if rule is not BATCH_RULE])
    return {name: column[valid] for name, column in rows.items()}


def _crossed(middle: dict[str, float], plan: dict[str, float], where: IntegerSpace, wide: int) -> Rows:
    """One plan with every size around a middle."""
    chunk, sequences = plan["pp"] * plan["vpp"], plan["micro_batch_size"] * plan["n_microbatches"]
    widths = set()
    for head_dim in where.head_dims:
        (step,) = width_step(where.problem.template, np.full(1, int(head_dim)), np.full(1, int(plan["tp"])))
        near = np.arange(-wide, wide + 1) + round(middle["d_model"] / step)
        widths |= {(float(count * step), head_dim) for count in near if count >= 1}
    depths = {chunk * max(round(middle["n_layers"] * factor / chunk), 1) for factor in np.linspace(0.8, 1.25, 6)}
    ratios = middle["mlp_ratio"] * np.geomspace(0.75, 1.33, 5)
    unit = plan["pp"] if plan["vpp"] > 1 else 1.0
    splits = {
        (micro, unit * max(round(sequences * factor / micro / unit), 1))
        for micro in (1.0, 2.0, plan["micro_batch_size"])
        for factor in (0.5, 0.75, 1.0, 1.33, 2.0)
    }
    table = np.asarray([(*w, d, r, *s) for w, d, r, s in itertools.product(widths, depths, ratios, splits)])
    names = ("d_model", "head_dim", "n_layers", "mlp_ratio", "micro_batch_size", "n_microbatches")
    columns = {name: np.full(len(table), value) for name, value in plan.items()}
    return {**columns, **dict(zip(names, table.T, strict=True))}


def brute_force(case: Case, choice: Any, wide: int = 1) -> tuple[float, int]:
    """Least excess loss of all designs within memory and bounds, and how many were judged."""
    problem = choice.relaxed.problem
    limits = dict(case.bounds)
    limit = math.exp(choice.goals.bound("memory"))
    latent = number(problem.template.kv_lora_rank) > 0.0
    heads = (number(problem.template.head_dim),) if latent else tuple(map(float, HEAD_WIDTHS))
    where = IntegerSpace(problem, PlanSpace(zero_stage=(0, 1, 2, 3), software=problem.software), heads, limit)
    rows = every_design(_middles(choice, where), where, wide)
    least, judged, chunk = math.inf, len(rows["tp"]), 100_000
    for start in range(0, judged, chunk):
        part = {name: column[start : start + chunk] for name, column in rows.items()}
        models, plans = built(part, where)
        count = len(part["tp"])
        cluster = jax.tree.map(lambda leaf, rows=count: np.repeat(leaf, rows, axis=0), stacked([problem.cluster]))
        runs = RunBatch(models, plans, cluster, np.ones(count))
        found = evaluate_runs(runs, stacked([problem.coefficients]), np.zeros(count, int), ("step_time", "memory"))
        batch = part["dp"] * part["micro_batch_size"] * part["n_microbatches"] * number(problem.template.seq_len)
        fits = found["memory"] <= limit
        fits &= batch <= limits.get("batch", math.inf)
        fits &= found["step_time"] <= limits.get("step_time", math.inf)
        fits &= np.asarray(n_params(models)) <= limits.get("params", math.inf)
        losses = excess(models, batch, found["step_time"].astype(float), case, problem.template)
        least = min(least, float(np.min(losses[fits], initial=math.inf)))
    return least, judged


def _middles(choice: Any, where: IntegerSpace) -> list[dict[str, float]]:
    """Sizes and batches near the answer and the continuous optimum, with depths and batches of many divisors."""
    middles = []
    template = where.problem.template
    for model, plan in (
        (choice.rounded.model, choice.rounded.plan),
        (choice.relaxed.design.model, choice.relaxed.design.plan),
    ):
        head_dim = where.head_dims[-1]
        (step,) = width_step(template, np.full(1, int(head_dim)), np.ones(1, int))
        width = float(step * max(round(number(model.d_model) / step), 1))
        ratio = number(model.d_ff / model.d_model) / number(template.d_ff / template.d_model)
        depth = 8.0 * max(round(number(model.n_layers) / 8.0), 1)
        batch = 2.0 ** round(math.log2(number(plan.global_batch_size_seqs)))
        odd = where.n_chips // (where.n_chips & -where.n_chips)
        for size in (batch, odd * max(round(1.5 * batch / odd), 1)):
            middles.append(dict(d_model=width, n_layers=depth, head_dim=head_dim, mlp_ratio=ratio, batch=size))
    return middles


def main() -> None:
    """Compare all cases and write how much the answers lose."""
    cases = CASES[: int(sys.argv[1])] if len(sys.argv) > 1 else CASES
    lines = []
    for case in cases:
        begin = time.process_time()
        levels = {"gpu": case.gpu, "precision": "bf16"}
        machine = js.cluster(case.gpu, case.n_chips)
        budget, bounds = js.Budget(days=case.days), dict(case.bounds)
        choice = js.best_design(machine, budget, template=case.template, levels=levels, bounds=bounds)
        taken = time.process_time() - begin
        ours = math.exp(choice.rounded.objective)
        least, judged = brute_force(case, choice)
        lost = ours / least - 1.0
        price = -choice.prices["bound_on_time"]
        bound = ", ".join(f"{name} {value:g}" for name, value in case.bounds)
        line = (f"{case.n_chips} {case.gpu}", f"{case.days:g}", case.template, bound, f"{judged:,}", f"{lost:+.2%}")
        lines.append((*line, f"{lost / price:+.1%}", f"{choice.gap:+.2%}", f"{taken:.1f}"))
        print(*lines[-1], flush=True)
        (Path(__file__).parent / "design_oracle.md").write_text(page(lines), encoding="utf-8")


def page(lines: list[tuple[str, ...]]) -> str:
    """The table of fits/design_oracle.md."""
    head = ("chips", "days", "template", "bound", "designs", "excess loss lost", "time lost", "integer gap", "CPU s")
    return (
        "Integer designs against brute force (`fits/design_oracle.py`): excess loss of the answer over the least of all"
        " designs, and what that is worth in time at the price of time; a minus: the answer is the better one. CPU time"
        f" of the search, first ones compile.\n\n{markdown_table(head, lines)}\n"
    )


if __name__ == "__main__":
    main()
