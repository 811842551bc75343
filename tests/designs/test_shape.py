"""Width against depth: the relaxed optimum is stationary, the integer one is the best of its lattice and valid."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget, budget_goals
from jaxscale.designs.integer_designs import HEAD_WIDTHS, whole_shapes, width_step
from jaxscale.designs.quantities import depth_of, stretched
from jaxscale.designs.shape_lattice import shape_lattice, shape_quantities
from jaxscale.designs.shape_problem import SHAPE_QUANTITIES
from jaxscale.designs.time_to_loss import default_laws
from jaxscale.hardware.catalogue import cluster
from jaxscale.laws.loss import ShapeLaw
from jaxscale.models import model
from jaxscale.models.transformer import n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import violations

LLAMA, H100S = model("llama3-8b"), cluster("h100-80gb", 32)
PLAN = Plan(dp=8, tp=2, pp=2, zero_stage=1, micro_batch_size=1, n_microbatches=16, sequence_parallel=True)


def best_shape(params=None, law=None, **options):
    """The best width and depth under the plan, with as many parameters as Llama 3 8B unless told."""
    laws = default_laws() if law is None else dataclasses.replace(default_laws(), shape=law)
    budget = Budget(params=float(n_params(LLAMA)) if params is None else params)
    return best_design(H100S, budget, plan=PLAN, template=LLAMA, fit="prior", laws=laws, **options)


def quantity(values, name):
    """One quantity out of the logarithms of all."""
    return math.exp(values[SHAPE_QUANTITIES.index(name)])


def widths_along(choice):
    """Widths of every start along the rough search [step, start]."""
    return np.asarray(
        jax.vmap(jax.vmap(lambda point: choice.relaxed.problem.design_at(point).model.d_model))(choice.path)
    )


@pytest.fixture(scope="module")
def choice():
    return best_shape()


def test_stretching_by_one_changes_nothing():
    same = stretched(LLAMA, LLAMA.d_model, LLAMA.n_layers)
    assert float(n_params(same)) == pytest.approx(float(n_params(LLAMA)), rel=1e-12)
    assert float(same.n_kv_heads) == LLAMA.n_kv_heads


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "mixtral-8x7b"])
def test_depth_keeps_the_parameters(name):
    template = model(name)
    for width in (1024.0, 3000.0, 9000.0):
        depth = depth_of(template, jnp.asarray(width), n_params(template))
        assert float(n_params(stretched(template, width, depth))) == pytest.approx(float(n_params(template)), rel=1e-9)


def test_relaxed_optimum_is_stationary_and_beats_a_grid(choice):
    assert choice.relaxed.residual < 1e-6
    assert choice.relaxed.objective <= np.nanmin(choice.trajectory) + 1e-12
    widths, best = widths_along(choice), float(choice.relaxed.design.model.d_model)
    assert widths.min() < 0.5 * best < 2.0 * best < widths.max()


def test_all_starts_agree(choice):
    np.testing.assert_allclose(widths_along(choice)[-1], float(choice.relaxed.design.model.d_model), rtol=0.02)


def test_more_steps_do_not_worsen(choice):
    longer = best_shape(n_steps=110)
    assert longer.relaxed.objective <= choice.relaxed.objective + 1e-9
    assert longer.rounded.objective == pytest.approx(choice.rounded.objective, abs=1e-9)


def test_integer_design_is_valid_and_exact(choice):
    shape, coefficients = choice.rounded.model, choice.relaxed.problem.coefficients
    assert violations(shape, PLAN, 32) == []
    assert shape.d_model % 128 == 0
    assert shape.n_layers % PLAN.pp == 0
    assert shape.n_heads * shape.head_dim == shape.d_model
    assert shape.n_heads % shape.n_kv_heads == 0
    assert bool(memory(shape, PLAN, H100S, coefficients).fits)
    assert float(n_params(shape)) == pytest.approx(float(n_params(LLAMA)), rel=0.03)
    seconds = float(step_time(shape, PLAN, H100S, coefficients).total)
    assert quantity(choice.rounded.values, "step_time") == pytest.approx(seconds, rel=1e-9)


def test_the_document_of_a_shape_tells_its_plan_and_its_figures(choice):
    document = choice.to_json()
    assert document["objective"] == ["time_to_loss"]
    assert document["plan"]["tp"] == 2 and document["d_model"] == choice.rounded.model.d_model
    assert document["step_time_s"] == pytest.approx(quantity(choice.rounded.values, "step_time"))
    assert document["shadow_prices"]["peak_flops"] < 0.0 and "failure_rate" not in document["shadow_prices"]
    assert "KKT residual" in choice.summary() and f"d_model {document['d_model']}" in choice.summary()


def test_designs_have_heads_that_somebody_would_build():
    """Whole tiles, heads by eights, the template's key/value heads: none of 34/34, 58/2 or 46/46."""
    for head_dim in HEAD_WIDTHS:
        for tp in (1, 4, 16):
            (step,) = width_step(LLAMA, np.full(1, head_dim), np.full(1, tp))
            widths = step * np.arange(1.0, 9.0)
            shapes = whole_shapes(LLAMA, widths, np.full(8, 40.0), np.full(8, head_dim), np.full(8, tp))
            assert not (widths % 128).any() and not (shapes.d_ff % 128).any()
            assert not (shapes.n_heads % math.lcm(8, tp)).any() and set(shapes.n_kv_heads) == {8.0}
            np.testing.assert_array_equal(shapes.n_heads * shapes.head_dim, widths)


def test_key_value_heads_suit_ranks_that_the_templates_do_not():
    """Eight heads on twelve ranks would be cut: four, with three copies of each, are not."""
    odd = whole_shapes(LLAMA, np.full(1, 6144.0), np.full(1, 32.0), np.full(1, 128), np.full(1, 12))
    assert odd.n_heads == [48.0] and odd.n_kv_heads == [4.0]


def test_latent_attention_keeps_its_heads():
    deepseek = model("deepseek-v3")
    same = whole_shapes(deepseek, np.full(1, 7168.0), np.full(1, 61.0), np.full(1, 192), np.full(1, 8))
    assert same.n_heads == [128.0] and same.v_head_dim == [128.0] and same.d_ff_expert == [2048.0]
    assert float(n_params(same)[0]) == pytest.approx(float(n_params(deepseek)), rel=1e-12)


def test_integer_design_is_the_best_of_its_lattice(choice):
    problem = choice.relaxed.problem
    lattice = shape_lattice(problem, float(choice.relaxed.design.model.d_model), choice.goals)
    assert lattice.admitted.sum() > 4
    times = lattice.values[:, SHAPE_QUANTITIES.index("time_to_loss")]
    assert times[lattice.best] == times[lattice.admitted].min()
    assert choice.rounded.objective == times[lattice.best]
    assert abs(np.expm1(choice.rounded.smooth_objective - choice.relaxed.objective)) < 0.02
    (template,) = shape_quantities(jax.tree.map(lambda leaf: np.asarray([leaf], float), LLAMA), problem)
    assert 1.0 - math.exp(choice.rounded.objective - template[0]) >= -0.01


@pytest.mark.parametrize(("factor", "is_admitted"), [(0.96, False), (0.98, True), (1.02, True), (1.04, False)])
def test_a_budget_of_parameters_admits_sizes_near_it_on_either_side(factor, is_admitted):
    wanted = budget_goals(Budget(params=8e9), default_laws(), 80e9)
    size = math.log(factor * 8e9)
    assert (size <= wanted.bound("params") and -size <= wanted.bound("inverse_params")) == is_admitted


def test_without_penalty_the_model_gets_wide():
    """The aspect penalty is what keeps the depth: without it shallow and wide is fastest."""
    free = best_shape(law=ShapeLaw(kappa=0.0, ratio=64.0))
    strict = best_shape(law=ShapeLaw(kappa=1.0, ratio=64.0))
    assert free.rounded.model.d_model > 1.5 * strict.rounded.model.d_model
    relaxed = strict.relaxed.design.model
    assert float(relaxed.d_model / relaxed.n_layers) == pytest.approx(64.0, rel=0.05)
    per_param = [quantity(c.rounded.values, "step_time") / quantity(c.rounded.values, "params") for c in (free, strict)]
    assert per_param[0] < per_param[1]


def test_another_size():
    small = best_shape(params=1e9)
    assert float(n_params(small.rounded.model)) == pytest.approx(1e9, rel=0.05)
    assert quantity(small.rounded.values, "step_time") > 0.0
    assert math.isfinite(small.gap)


def test_too_large_for_the_chips():
    with pytest.raises(InputError, match="no shape of 2e\\+12 parameters fits in \\d\\d.\\d GB with this plan"):
        best_shape(params=2e12)
    with pytest.raises(InputError, match="params"):
        best_shape(params=-1.0)


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        ({"days": 1.0}, {}, "a budget of days does not go with a plan; expected a budget of params"),
        ({"params": 1e9}, {"objective": "energy"}, "objective 'energy' does not go with a plan"),
        ({"params": 1e9}, {"bounds": {"tokens": 1e9}}, "expected one of time_to_loss, memory"),
    ],
)
def test_goals_that_a_plan_does_not_leave_open_are_refused(budget, options, message):
    with pytest.raises(InputError, match=message):
        best_design(H100S, Budget(**budget), plan=PLAN, fit="prior", **options)
