"""Bands, plans of whole numbers, slopes and single precision; each with a control."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from powers_of_two import integer_survey, merit

from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.limits.batch_time import ExactOverlap
from jaxscale.limits.frontier_problem import N_DEGREES, utilisation_problem
from jaxscale.limits.frontier_scenario import stack_scenarios
from jaxscale.limits.relaxed_plan import rate, survey
from jaxscale.limits.study import band, threshold_bands, uncertainties
from jaxscale.limits.thresholds import utilisation


def test_bands_hold_the_curve_and_the_thresholds(solved, library, row):
    middle = solved.utilisation[row["default"]]
    low, high = band(solved.training_flop, library["default"])
    assert (low <= middle).all() and (high >= middle).all()
    # Where latency decides, assumptions blur most; at the plateau they hardly do.
    assert np.argmax(high - low) > len(middle) // 2 and (high - low)[0] < 0.02
    found = threshold_bands(solved.limits, row["default"])
    for name, flop in solved.limits.flop(row["default"]).items():
        assert found[name][0] < flop < found[name][1]
    assert set(uncertainties()) <= {field.name for field in dataclasses.fields(library["default"])}


@pytest.mark.slow
def test_powers_of_two_against_all_of_them(solved, library):
    default, index = library["default"], 14
    flop = solved.training_flop[index]
    found = integer_survey(solved.training_flop, default)
    ours, plan = float(found.utilisation[index]), np.asarray(found.degrees[index])
    assert np.array_equal(2.0 ** np.round(np.log2(plan)), plan)
    problem = utilisation_problem(jnp.log(flop), jax.tree.map(jnp.asarray, default))
    reach = [range(max(0, int(centre) - 3), int(centre) + 4) for centre in np.log2(plan)]
    reach[2] = range(1)
    plans = jnp.asarray(2.0 ** np.asarray(list(itertools.product(*reach))))
    assert plans.shape[1] == N_DEGREES and len(plans) > 10_000

    def cost(degrees):
        return merit(rate(degrees, problem, ExactOverlap()))

    values = np.asarray(jax.jit(lambda table: jax.lax.map(cost, table, batch_size=4096))(plans))
    mine = float(cost(jnp.asarray(plan)))
    assert mine == pytest.approx(values.min(), abs=0.01)
    assert np.median(values) > mine + 1.0
    assert 0.4 < ours <= default.max_utilisation


def test_slopes_of_utilisation_are_differences_of_plans_chosen_anew(library):
    default, flop = library["default"], 1e30
    values_and_slopes = filter_jit(jax.value_and_grad(utilisation, argnums=(0, 1)))

    def sloped(size, scenario):
        return values_and_slopes(jnp.asarray(size), jax.tree.map(jnp.asarray, scenario))

    value, (along, fields) = sloped(flop, default)
    slower = dataclasses.replace(default, network_latency=default.network_latency * 1.001)
    difference = float(sloped(flop, slower)[0] - value) / 0.001
    assert difference == pytest.approx(float(fields.network_latency) * default.network_latency, rel=1e-2)
    assert difference < -0.01
    further = float(sloped(flop * 1.001, default)[0] - value) / 0.001
    assert further == pytest.approx(float(along) * flop, rel=1e-2)


def test_more_starts_or_steps_never_worsen(solved, library):
    names = ("default", "node-64", "global-nvlink", "no-overlap")
    several = stack_scenarios([library[name] for name in names])

    def found(**more: int):
        result = survey(solved.training_flop, several, **more)
        return np.asarray(result.utilisation), np.asarray(result.certified)

    # Each certifies what the one before did, and at no lower utilisation.
    ladder = [found(n_steps=15), found(n_steps=25), found(), found(n_steps=90), found(n_starts=2), found(n_starts=4)]
    for (low, sure), (high, sure_too) in itertools.pairwise(ladder):
        assert sure_too[sure].all()
        assert (high >= low * (1.0 - 1e-6))[sure].all()
    assert ladder[0][1].mean() < 0.9 < ladder[-1][1].mean()
    with pytest.raises(InputError, match="expected 1 to"):
        found(n_starts=9)


@pytest.mark.slow
def test_single_precision(solved, library, row):
    with jax.enable_x64(False):
        found = survey(solved.training_flop, stack_scenarios([library["default"]]))
        assert found.utilisation.dtype == jnp.float32
        low, certified = np.asarray(found.utilisation[0]), np.asarray(found.certified[0])
    # Next to the wall, feasible or not is a matter of rounding.
    away = np.arange(len(low)) < len(low) - 1
    np.testing.assert_allclose(low[away], solved.utilisation[row["default"]][away], atol=5e-3)
    assert certified.mean() >= 0.9
