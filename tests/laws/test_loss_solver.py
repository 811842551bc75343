"""The search for a law of loss and its forms: global optimum, cases, traits, optimum of compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.laws.loss import LossLaw
from jaxscale.laws.loss_fit import problem_of
from jaxscale.laws.loss_forms import form_of, law_of, log_loss, prior_of, traits
from jaxscale.laws.loss_reader import loss_table
from jaxscale.laws.loss_solver import grid_points, objective, optimum_of, searches, starts_of

TABLES = ("gadre-redpajama", "gadre-refinedweb", "muennighoff", "olmo", "gemstones-cooldown")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gadre-c4", "joint"),
        *(pytest.param(name, "joint", marks=pytest.mark.slow) for name in TABLES),
        *(pytest.param("olmo", form, marks=pytest.mark.slow) for form in ("additive", "tied", "kaplan")),
    ],
)
def test_no_start_of_a_thousand_ends_lower(name, form):
    table, held = loss_table(name), prior_of(None, form)
    condition = form_of(form)
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        problem = problem_of(table, condition, (), held, "huber")
        _, value = optimum_of(condition, problem, ())
        starts = generator.uniform(
            (-1.0, -2.0, -2.0, -2.5, -2.5, -1.5, 0.0), (1.0, 2.0, 2.0, 0.2, 0.2, 0.2, 0.0), (1000, 7)
        )
        starts[:, :-1] = np.where(condition.is_free, starts[:, :-1], 0.0)
        _, others = searches(starts, problem)
        begun = [float(objective(jnp.asarray(start), problem, ())) for start in starts_of(condition, problem, ())[:3]]
    best = np.nanmin(others)
    assert value <= best + 1e-6 * abs(best)
    assert min(begun) > value + 1e-3 * abs(value), "the grid alone does not end there"


def test_forms_are_cases_of_the_joint_law():
    numbers = jnp.log(jnp.asarray([1.7, 60.0, 300.0, 0.22, 0.26, 1.0]))
    law = law_of(numbers)
    additive = 1.7 + 60.0 * 1e9**-0.22 + 300.0 * 2e10**-0.26
    assert float(law.loss(1e9, 2e10)) == pytest.approx(additive, rel=1e-10)
    assert float(np.exp(log_loss(numbers, np.log(1e9), np.log(2e10)))) == pytest.approx(additive, rel=1e-10)
    # Kaplan et al. 2020, equation 1.5: [(N_c / N)^(a / b) + D_c / D]^b.
    kaplan = np.asarray([-60.0, 1.3, 2.1, np.log(0.076), np.log(0.095), np.log(0.095)])
    bracket = (np.exp(1.3 / 0.095) * 1e9 ** (-0.076 / 0.095) + np.exp(2.1 / 0.095) / 2e10) ** 0.095
    assert float(law_of(kaplan).loss(1e9, 2e10)) == pytest.approx(bracket, rel=1e-9)
    scarce = law_of(np.log([1.7, 60.0, 300.0, 0.22, 0.26, 0.01]))
    assert float(scarce.reducible(1e9, 2e10)) == pytest.approx(max(60.0 * 1e9**-0.22, 300.0 * 2e10**-0.26), rel=1e-2)


def test_traits_do_not_depend_on_the_unit_of_the_loss():
    numbers = jnp.log(jnp.asarray([1.7, 60.0, 300.0, 0.22, 0.26, 0.45]))
    bits = numbers + jnp.asarray([np.log(1.0 / np.log(2.0))] * 3 + [0.0] * 3)
    np.testing.assert_allclose(traits(bits), traits(numbers), rtol=1e-12)
    other = numbers + jnp.asarray([0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert abs(float(traits(other)[3] - traits(numbers)[3])) > 0.01


@pytest.mark.parametrize("joint", [1.0, 0.4])
def test_the_optimum_is_the_least_loss_at_its_compute(joint):
    law = LossLaw(1.7, 200.0, 800.0, 0.3, 0.28, joint)
    n, d = (float(value) for value in law.optimum(1e23))
    assert 6.0 * n * d == pytest.approx(1e23, rel=1e-9)
    for factor in (0.98, 1.02):
        assert float(law.loss(n * factor, d / factor)) > float(law.loss(n, d))


def test_grids_of_all_forms_share_one_size():
    sizes = {form: grid_points(form).shape for form in ("joint", "additive", "tied", "kaplan")}
    assert len(set(sizes.values())) == 1
    points = grid_points("kaplan")
    np.testing.assert_array_equal(points[:, 2], points[:, 1])
    with pytest.raises(InputError, match="expected one of joint"):
        form_of("power")
