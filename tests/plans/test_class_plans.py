"""Plans of traced workloads: the search is exhaustive, ranks by time and respects memory."""

import itertools
from typing import Any

import equinox as eqx
import pytest

import jaxscale as js
from jaxscale.examples import decoder_steps, other_steps, recommendation_steps
from jaxscale.tracing.class_plans import ClassPlanChoice, factor_triples
from jaxscale.tracing.traced_workload import Workload

COEFFICIENTS = js.load_fit("prior").coefficients({})


def best(work: Workload, cluster: js.Cluster, batch: float) -> ClassPlanChoice:
    """Choice of the search."""
    found = js.best_plan(work, cluster, batch, fit="prior")
    assert isinstance(found, ClassPlanChoice)
    return found


DECODER: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 512,
    "n_heads": 4,
    "n_kv_heads": 4,
    "d_ff": 2048,
    "vocab_size": 8192,
}


@pytest.mark.parametrize(
    ("make", "batch", "splits", "tables"),
    [
        (
            lambda: decoder_steps.decoder(**DECODER),
            16,
            ("state.0.down[1]", "state.0.key[2].0", "state.0.head[1]"),
            ["replicated"],
        ),
        (lambda: recommendation_steps.dlrm(512), 4096, ("state.0.top0[1]",), ["table", "row"]),
        (lambda: other_steps.dit(batch=8, n_layers=2), 16, (), ["replicated"]),
    ],
    ids=["decoder", "dlrm", "dit"],
)
def test_no_plan_of_a_list_made_by_hand_is_faster(make: Any, batch: float, splits: tuple[str, ...], tables: list[Any]):
    work, cluster = js.trace(*make()), js.cluster("h100-80gb", 8)
    choice = best(work, cluster, batch)
    name = work.tables.class_names[choice.best.plan.data_class]
    work = work.with_sizes({name: batch})
    score = eqx.filter_jit(lambda plan: js.step_time(work, plan, cluster, COEFFICIENTS).total)
    fastest = float("inf")
    sets = [one for size in range(len(splits) + 1) for one in itertools.combinations(splits, size)]
    for (data, tensor, pipeline), split, mode in itertools.product(factor_triples(8), sets, tables):
        if pipeline > 2 or (pipeline > 1 and not splits[1:]) or (tensor > 1) != bool(split):
            continue
        for shard, m in itertools.product((1, data), (1, 2)):
            if batch % (data * m):
                continue
            degrees: dict[str, Any] = {"data": data, "shard": shard, "tensor": tensor, "pipeline": pipeline}
            plan = js.class_plan(work, **degrees, n_microbatches=m, split=split, tables=mode)
            fastest = min(fastest, float(score(plan)))
    assert choice.best.step_time <= fastest * (1 + 1e-6)
    assert choice.searched >= 10
    slowest = max(one.step_time for one in choice.top)
    assert slowest > choice.best.step_time


def test_what_does_not_fit_is_left_out():
    work = js.trace(
        *decoder_steps.decoder(n_layers=48, d_model=8192, n_heads=64, n_kv_heads=8, d_ff=28672, gated_mlp=True)
    )
    choice = best(work, js.cluster("h100-80gb", 64), 64)
    assert choice.infeasible > 0
    assert choice.best.memory < 80e9
    plan = choice.best.plan
    assert float(plan.shard) * float(plan.tensor) * float(plan.pipeline) > 1
    with pytest.raises(js.InputError, match="no plan fits: the leanest takes"):
        best(work, js.cluster("h100-80gb", 2), 64)
    assert "plans" in str(choice)


def test_chips_that_no_batch_fills():
    work = js.trace(*decoder_steps.decoder(**DECODER))
    with pytest.raises(js.InputError, match="no plan of the workload has 7 chips"):
        best(work, js.cluster("h100-80gb", 7), 16)
