"""The map from standardised parameters to coefficients: bijections, effects, levels."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale._arrays import as_arrays
from jaxscale.calibration.coefficients import Coefficients, names, prior_medians, priors
from jaxscale.calibration.coordinates import constrain, unconstrain
from jaxscale.calibration.effects import OTHER_SOURCES, LevelEffect
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.costs.machine import machine_of
from jaxscale.costs.matmul import matmul_rates, matmul_time
from jaxscale.fit.fit_record import kept_effects, other_sources_effects
from jaxscale.fit.parameters import Effect, find_effects, membership, parametrisation
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plan.plan import Plan

LEVELS = Levels.of_columns(
    {
        "source": ("a", "a", "b", "b"),
        "framework": ("f", "f", "g", "g"),
        "gpu": ("h100-80gb", "a100-80gb", "h100-80gb", "h100-80gb"),
        "precision": ("bf16",) * 4,
        "number_format": ("bf16",) * 4,
        "attention_kernel": ("", "", "", ""),
        "fused_norm": ("", "", "", ""),
        "release": ("", "1", "", "2"),
        "release_gpu": ("", "1/a100-80gb", "", "2/h100-80gb"),
        "mixture": ("", "", "", "z"),
        "architecture": ("x", "x", "y", "z"),
        "local_shape": ("x", "x", "y", "z"),
    },
    4,
)


H100 = as_arrays(cluster("h100-80gb", 8))
LLAMA, PLAN = as_arrays((model("llama3-8b"), Plan()))
EVERYWHERE = np.ones((4, len(names())), dtype=bool)


def test_constrain_inverts_unconstrain():
    medians = prior_medians()
    again = constrain(jnp.asarray(unconstrain(medians)))
    for name in names():
        np.testing.assert_allclose(getattr(again, name), getattr(medians, name), rtol=1e-12)


@given(st.lists(st.floats(-30.0, 30.0), min_size=len(names()), max_size=len(names())))
def test_no_coordinates_make_a_matmul_faster_than_the_datasheet(coordinates: list[float]):
    coefficients = constrain(jnp.asarray(coordinates))
    rates = matmul_rates(PLAN.precision, 2.0, machine_of(H100, coefficients), coefficients)
    time = matmul_time(4096.0, 1e8, 4096.0, LLAMA.d_model, rates)
    assert float(time) >= (1.0 - 1e-6) * 2.0 * 4096.0 * 1e8 / float(H100.chip.peak("bf16"))


def test_extreme_coordinates_stay_physical():
    for extreme in (-500.0, 500.0):
        values = constrain(jnp.full(len(names()), extreme))
        for name, prior in priors().items():
            value = float(getattr(values, name))
            assert np.isfinite(value) and value >= 0.0
            assert prior.kind != "fraction" or value <= 1.0


def test_effects_need_two_levels():
    effects = find_effects(LEVELS, EVERYWHERE)
    kinds = {effect.kind for effect in effects}
    assert "precision" not in kinds  # one level only: nothing to tell apart
    assert {"source", "gpu", "release"} <= kinds
    assert not any(effect.level == "" for effect in effects)
    assert "local_shape" not in kinds  # too few runs of each shape


def test_levels_with_the_same_rows_get_one_effect():
    """Release 1 has the rows of one chip: the data cannot tell them apart, and the chip comes first."""
    effects = find_effects(LEVELS, EVERYWHERE)
    chip, release = ([e.coefficient for e in effects if e.level == level] for level in ("a100-80gb", "1"))
    assert chip and release and not set(chip) & set(release)
    split = find_effects(LEVELS.with_columns({"release": ("1", "1", "", "2"), "release_gpu": ("",) * 4}), EVERYWHERE)
    assert "matmul_efficiency" in [e.coefficient for e in split if e.level == "2"]


def test_mixtures_differ_more_than_dense_models():
    effects = find_effects(LEVELS, EVERYWHERE)
    scale = dict(zip(effects, np.asarray(parametrisation(effects).scale)[: len(effects)].tolist(), strict=True))
    dense, mixture = (
        scale[Effect(kind, level, "layer_time_factor")] for kind, level in (("architecture", "y"), ("mixture", "z"))
    )
    assert mixture > 2.0 * dense > 0.0
    assert Effect("architecture", "z", "layer_time_factor") not in scale  # one effect for the same rows


def test_effects_need_a_row_that_they_can_move():
    scope = EVERYWHERE.copy()
    scope[:2, names().index("tp_overlap")] = False
    effects = find_effects(LEVELS, scope)
    assert not any(e.level == "a" and e.coefficient == "tp_overlap" for e in effects)
    assert any(e.level == "b" and e.coefficient == "tp_overlap" for e in effects)


def test_rows_move_only_with_their_levels():
    effects = find_effects(LEVELS, EVERYWHERE)
    mapping = parametrisation(effects)
    members = jnp.asarray(membership(LEVELS, effects))
    base = jnp.zeros((4, len(names())))
    index = next(i for i, e in enumerate(effects) if e.kind == "gpu" and e.level == "a100-80gb")
    parameters = jnp.zeros(mapping.n_parameters).at[len(names()) + index].set(1.0)
    rows = np.array(mapping.rows(parameters, base, members))
    column = names().index(effects[index].coefficient)
    assert rows[1, column] == pytest.approx(float(mapping.scale[index]))
    rows[1, column] = 0.0
    assert not rows.any()


def test_a_release_with_a_fault_pulls_the_pool_less_than_one_that_is_only_older():
    levels = ("ultrascale_playbook_h100/nanotron/before-pp-fix", "nvidia_nemo_perf_summary/nemo/old", "s/f")
    faulty, older, usual = parametrisation([Effect("source", level, "pp_slot_time") for level in levels]).scale[:3]
    assert float(faulty) == pytest.approx(4.0 * float(usual))
    assert float(older) == float(usual)


def test_levels_may_differ_more_than_the_pool_is_unsure_of():
    """What the host does for tensor-parallel ranks is a matter of frameworks; how fast a matmul runs is not."""
    for name, ratio in (("host_time_tp_network", 5.0), ("matmul_efficiency", 1.0)):
        mapping, prior = parametrisation([Effect("framework", "f", name)]), priors()[name]
        assert prior.spread_of_levels == pytest.approx(ratio * prior.spread)
        assert float(mapping.scale[0]) == pytest.approx(0.7 * prior.spread_of_levels)
        assert float(mapping.spread[names().index(name)]) == pytest.approx(prior.spread)


def test_hidden_terms_show_by_source_where_sources_differ():
    """One source may be bound by its host where another is not; where there is one only, the coefficient moves."""
    host, overlap, matmul = (names().index(n) for n in ("host_time_layer", "tp_overlap", "matmul_efficiency"))
    alone = np.asarray(parametrisation([]).towards_exposed)
    assert (alone[host], alone[overlap], alone[matmul]) == (1.0, -1.0, 0.0)
    effects = [Effect("source", "s/f", "host_time_layer"), Effect("framework", "f", "tp_overlap")]
    mapping = parametrisation(effects)
    change, n = np.asarray(mapping.towards_exposed), len(names())
    assert (change[host], change[overlap]) == (0.0, -1.0)
    # By as much as levels usually differ, however wide the prior of this one is.
    assert change[n] * float(mapping.scale[0]) == pytest.approx(priors()["host_time_layer"].spread_of_levels)
    assert not change[n + 1 :].any()


def test_a_release_with_a_fault_hardly_stands_for_its_framework():
    """Its effects are four times as wide, so that it counts a sixteenth of a usual release, and is pulled in by one."""
    faulty, older, usual = "ultrascale_playbook_h100/f/before-pp-fix", "s/f/old", "s/f"
    effects = [LevelEffect("source", level, (("pp_slot_time", 6.0),)) for level in (faulty, older, usual)]
    for members, expected in (([usual], 3.0), ([older], 3.0), ([older, usual], 4.0), ([faulty], 6.0 / 17.0)):
        (found,) = other_sources_effects(effects, [{"framework": "f", "source": member} for member in members])
        assert dict(found.shifts)["pp_slot_time"] == pytest.approx(expected)


def test_more_sources_of_a_framework_foretell_more_of_the_next_one():
    """The mean of a normal level, given n members that vary about it as much as levels do among themselves."""
    name = "matmul_efficiency"
    for n in (1, 2, 5):
        sources = [f"s{index}/f" for index in range(n)]
        effects = [LevelEffect("source", source, ((name, 0.6),)) for source in sources]
        (found,) = other_sources_effects(effects, [{"framework": "f", "source": source} for source in sources])
        covariance = np.ones((n, n)) + np.eye(n)  # of the members: what is the level's, and what is each one's
        expected = np.ones(n) @ np.linalg.solve(covariance, np.full(n, 0.6))
        assert dict(found.shifts)[name] == pytest.approx(expected)


def test_what_a_framework_was_found_to_differ_by_is_not_counted_twice():
    effects = [LevelEffect("source", "s/f", (("pp_slot_time", 0.4), ("tp_overlap", 0.2)))]
    effects.append(LevelEffect("framework", "f", (("tp_overlap", 0.5),)))
    (found,) = other_sources_effects(effects, [{"framework": "f", "source": "s/f"}])
    assert found.shifts == (("pp_slot_time", 0.2),)


def test_jacobian_is_the_derivative_of_rows():
    effects = find_effects(LEVELS, EVERYWHERE)
    mapping = parametrisation(effects)
    members = jnp.asarray(membership(LEVELS, effects))
    rng = np.random.default_rng(0)
    gradient = jnp.asarray(rng.normal(size=(4, len(names()))))
    step = jnp.asarray(rng.normal(size=mapping.n_parameters))
    base = jnp.zeros((4, len(names())))
    zero = jnp.zeros(mapping.n_parameters)
    change = mapping.rows(step, base, members) - mapping.rows(zero, base, members)
    np.testing.assert_allclose(mapping.row_jacobian(gradient, members) @ step, jnp.sum(gradient * change, axis=1))


def _calibrated() -> Fit:
    return Fit(
        name="test",
        pooled=prior_medians(),
        effects=(
            LevelEffect("source", "a", (("attention_efficiency", 0.1),)),
            LevelEffect(OTHER_SOURCES, "f", (("attention_efficiency", 0.3),)),
            LevelEffect("release_gpu", "1/h200", (("attention_efficiency", 0.02),)),
            LevelEffect("gpu", "h200", (("attention_efficiency", -0.05), ("fsdp_overlap", 1.0))),
        ),
        known=(("framework", "f"), ("gpu", "h200"), ("source", "a")),
    )


def test_a_new_source_of_a_known_framework_keeps_the_effect_it_began_with():
    before = _calibrated()
    new, known = ({"source": source, "framework": "f"} for source in ("new", "a"))
    fitted = dataclasses.replace(before, known=(*before.known, ("source", "new")))
    after = dataclasses.replace(fitted, effects=kept_effects(before, [new, known]))

    def shifted(fit: Fit, levels: dict) -> dict[str, float]:
        (row,) = fit.unconstrained(Levels.of_rows([levels])) - unconstrain(prior_medians())
        return {name: round(shift, 9) for name, shift in zip(names(), row, strict=True) if abs(shift) > 1e-9}

    assert shifted(after, new) == shifted(before, new) == {"attention_efficiency": 0.3}
    assert shifted(after, known) == shifted(before, known)
    assert shifted(fitted, new) == {}  # what it would lose
    assert not [effect for effect in kept_effects(before, [new]) if effect.kind == "source" and effect.level == "a"]


@pytest.mark.parametrize(
    ("levels", "shift"),
    [
        (
            {"source": "a", "framework": "f"},
            0.1,
            # The source's own effect takes the place of what its framework's sources foretell.
        ),
        ({"source": "new", "framework": "f"}, 0.3),
        ({"source": "new", "framework": "f", "gpu": "h200"}, 0.25),
        ({"source": "a", "gpu": "h200", "release_gpu": "1/h200"}, 0.07),
        ({"source": None, "framework": "unknown"}, 0.0),
    ],
)
def test_a_fit_adds_effects_of_levels(levels: dict, shift: float):
    fit = _calibrated()
    moved = fit.coefficients(levels)
    assert isinstance(moved, Coefficients)
    np.testing.assert_allclose(moved.attention_efficiency, fit.pooled.attention_efficiency * np.exp(shift), rtol=1e-9)


def test_effect_of_a_fraction_acts_on_its_odds():
    fit = _calibrated()
    before, after = fit.pooled.fsdp_overlap, fit.coefficients({"gpu": "h200"}).fsdp_overlap
    assert after / (1.0 - after) == pytest.approx(np.e * before / (1.0 - before))
    assert 0.0 < after < 1.0


def test_unseen_levels_are_named():
    record = _calibrated()
    assert record.notes({"framework": "f", "gpu": "b200"}) == "not in the fit, pooled values used: gpu 'b200'"
    assert record.notes({"framework": "f", "gpu": "h200"}) == ""
