"""Shapes for a lifetime: the search against every point of the lattice, bounds, and what serving changes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serving_cases import H100, USUAL

import jaxscale as js
from jaxscale import InputError, serving
from jaxscale.costs.step import step_and_memory
from jaxscale.laws import LossLaw, shape_law
from jaxscale.models.transformer import n_params
from jaxscale.serving import lifetime_shapes
from jaxscale.serving.lifetime_shapes import LifetimeTask, score_shapes

LAW = LossLaw(1.69, 406.4, 410.7, 0.336, 0.283)
TEMPLATE = js.Transformer(32, 4096, 32, n_kv_heads=8, head_dim=128, d_ff=14336, gated_mlp=True, vocab_size=32000)
LOAD = serving.Requests(concurrency=1.0, input_len=1000.0, output_len=500.0)
LATTICE = serving.LifetimeLattice(
    n_layers=(16, 20, 24, 28, 32, 36, 40, 48),
    d_model=(2048, 2560, 3072, 3584, 4096, 4608, 5120, 6144),
    n_kv_heads=(4, 8, 16),
    tp=(1, 2, 4),
    batch=(4, 16, 64, 256),
)


def best(answers, loss=2.1, limit=0.03, lattice=LATTICE, **others):
    """Best shape of a lifetime."""
    return serving.best_lifetime_shape(
        TEMPLATE, H100, LOAD, USUAL, LAW, loss=loss, answer_tokens=answers, lattice=lattice, tpot_limit=limit,
        shape=shape_law("kaplan"), **others,
    )  # fmt: skip


def everything(answers, loss, limit):
    """Chip time of each point of the lattice, and its time per token."""
    points = np.asarray(list(itertools.product(*LATTICE.axes(TEMPLATE))))
    task = LifetimeTask(TEMPLATE, H100, LOAD, USUAL, LAW, loss, answers, limit, 0.4, shape_law("kaplan"), 0.0)
    scores = score_shapes(points, task)
    return points, scores[:, 0] + scores[:, 1], scores[:, 2]


@pytest.mark.parametrize(("answers", "loss", "limit"), [(1e11, 2.1, 0.03), (1e13, 2.1, 0.015), (1e12, 2.2, 0.01)])
def test_the_search_finds_the_best_of_all_points(answers, loss, limit):
    found = best(answers, loss, limit)
    points, times, tpot = everything(answers, loss, limit)
    assert found.total <= 1.01 * times.min()
    assert found.tpot <= limit and found.searched < 0.8 * len(points)
    assert np.all(tpot[np.isfinite(times)] <= limit)
    assert np.median(times[np.isfinite(times)]) > 1.2 * times.min(), "the choice matters"


def test_more_answers_make_the_model_smaller_and_cheaper_to_serve():
    few, many = best(1e10), best(1e14)
    assert n_params(many.model) < n_params(few.model)
    assert many.n_tokens > few.n_tokens
    assert many.serving / 1e14 < few.serving / 1e10
    assert many.sizes["n_kv_heads"] == min(LATTICE.n_kv_heads), "a smaller cache is cheaper to read"


def test_the_training_of_a_point_is_six_flop_per_parameter_and_token():
    found = best(1e12)
    flop = 6.0 * float(n_params(found.model)) * found.n_tokens
    assert found.training == pytest.approx(flop / (0.4 * float(H100.chip.peak("bf16"))), rel=1e-6)
    aspect_loss = 1.0 + float(
        shape_law("kaplan").penalty(found.sizes["d_model"], found.sizes["n_layers"], float(n_params(found.model)))
    )
    reached = float(LAW.loss(n_params(found.model), found.n_tokens)) * aspect_loss
    assert reached == pytest.approx(2.1, rel=1e-6)


def test_experts_are_chosen_where_they_are_worth_something():
    mixture = js.Transformer(
        32, 4096, 32, n_kv_heads=8, head_dim=128, d_ff=14336, gated_mlp=True, vocab_size=32000, n_experts=8,
        moe_top_k=2, d_ff_expert=4096,
    )  # fmt: skip
    lattice = serving.LifetimeLattice(
        (24, 32, 40), (3072, 4096, 5120), (8,), n_experts=(8, 16, 32), tp=(4,), batch=(64, 256)
    )

    def chosen(answers, worth):
        found = serving.best_lifetime_shape(
            mixture, H100, LOAD, USUAL, LAW, loss=2.15, answer_tokens=answers, lattice=lattice, experts_exponent=worth
        )
        return found.sizes["n_experts"]

    assert chosen(1e9, 0.0) == 8.0 < chosen(1e9, 0.3)
    assert chosen(1e13, 0.3) < chosen(1e9, 0.3), "their weights are read with every answer"


def test_what_no_shape_reaches_is_refused():
    with pytest.raises(InputError, match="no shape of the lattice reaches"):
        best(1e12, loss=1.7)
    with pytest.raises(InputError, match="d_model"):
        best(1e12, lattice=serving.LifetimeLattice(d_model=()))
    assert lifetime_shapes.AXES[0] == "n_layers" and jnp.ndim(best(1e12).model.n_layers) == 0


PLANS = (js.Plan(8, n_microbatches=16, zero_stage=3), js.Plan(4, 2, n_microbatches=32))
TRAINING = serving.training_plans(H100, PLANS)
STEP = jax.jit(step_and_memory)


def on_plans(answers, **others):
    """Best shape whose training takes the step time of its fastest plan."""
    return best(answers, training=TRAINING, **others)


def test_training_takes_the_step_time_of_the_fastest_plan_that_fits():
    found = on_plans(1e12)
    assert found.plan is not None
    steps = [STEP(found.model, plan, H100, TRAINING.coefficients) for plan in PLANS]
    times = [float(t.total) if float(peak.total) <= TRAINING.memory_limit else np.inf for t, peak in steps]
    assert np.isfinite(times).any() and times[0] != pytest.approx(times[1], rel=1e-3)
    tokens = float(PLANS[0].global_batch_size_seqs) * float(found.model.seq_len)
    assert found.training == pytest.approx(8 * min(times) / tokens * found.n_tokens, rel=1e-5)
    assert float(found.plan.tp) == float(PLANS[int(np.argmin(times))].tp)


def test_a_step_of_a_given_utilisation_is_that_utilisation():
    """Training by step time is training at the utilisation 6 N B S / (n C t) of that step."""
    found, twice = best(1e12), serving.training_plans(H100, [PLANS[0], PLANS[0]])
    seconds = float(STEP(found.model, PLANS[0], H100, twice.coefficients)[0].total)
    flop = 6.0 * float(n_params(found.model)) * float(PLANS[0].global_batch_size_seqs) * float(found.model.seq_len)
    utilisation = flop / (8 * float(H100.chip.peak("bf16")) * seconds)
    point = np.asarray([[found.sizes[name] for name in lifetime_shapes.AXES]])

    def cost(training):
        task = LifetimeTask(TEMPLATE, H100, LOAD, USUAL, LAW, 2.1, 1e12, 0.03, training, shape_law("kaplan"), 0.0)
        return score_shapes(point, task)[0, 0]

    assert 0.1 < utilisation < 0.7
    assert cost(twice) == pytest.approx(cost(utilisation), rel=1e-5)
    assert cost(twice) != pytest.approx(cost(0.9 * utilisation), rel=0.05)


@pytest.mark.slow
def test_without_answers_the_shape_trains_fastest_and_with_many_it_serves_cheapest():
    """Both limits of the lifetime against all points of the lattice."""
    points = np.asarray(list(itertools.product(*LATTICE.axes(TEMPLATE))))
    task = LifetimeTask(TEMPLATE, H100, LOAD, USUAL, LAW, 2.1, 1.0, 0.03, TRAINING, shape_law("kaplan"), 0.0)
    scores = score_shapes(points, task)
    few, many = on_plans(1.0), on_plans(1e18)
    assert few.training == pytest.approx(scores[:, 0].min(), rel=0.01)
    assert many.serving / 1e18 == pytest.approx(scores[:, 1].min(), rel=0.01)
    assert many.training > 1.1 * few.training


def test_a_shape_without_a_valid_plan_is_not_chosen():
    """Eight stages of four chunks need 32 layers, and plans that need more memory than there is never count."""
    lattice = serving.LifetimeLattice((20, 32), (2048, 3072, 4096), (8,), tp=(1, 2), batch=(16, 64))
    stages = js.Plan(1, 1, 8, vpp=4, n_microbatches=128)
    points = np.asarray(list(itertools.product(*lattice.axes(TEMPLATE))))
    task = LifetimeTask(TEMPLATE, H100, LOAD, USUAL, LAW, 2.3, 1e9, 0.03, TRAINING, shape_law("kaplan"), 0.0)
    alone = task._replace(training=serving.training_plans(H100, [stages, stages]))
    runs, others = (np.isfinite(score_shapes(points, each)[:, 0]) for each in (alone, task))
    assert not runs[points[:, 0] == 20].any() and runs[points[:, 0] == 32].any()
    assert others[points[:, 0] == 20].any()
    large = js.Plan(8, micro_batch_size=64)
    with pytest.raises(InputError, match="on any of the training plans"):
        best(1e9, training=serving.training_plans(H100, [large, large]), lattice=lattice)


def test_training_plans_that_do_not_fill_the_cluster_are_refused():
    with pytest.raises(InputError, match="plan of 4 chips on a cluster of 8"):
        serving.training_plans(H100, [js.Plan(4)])
    with pytest.raises(InputError, match="plans is empty"):
        serving.training_plans(H100, [])
