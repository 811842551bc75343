"""The map from standardised parameters to coefficients: bijections, effects, levels."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.arrays import as_arrays
from jaxscale.calibration.base_record import LevelEffect
from jaxscale.calibration.coefficients import (
    Coefficients,
    chip_anchors,
    constrain,
    names,
    prior_medians,
    priors,
    unconstrain,
)
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.costs.machine import machine_of
from jaxscale.costs.matmul import matmul_rates, matmul_time
from jaxscale.fitting.fit_record import kept_effects
from jaxscale.fitting.parameters import (
    CENTRE,
    MIN_RUNS_OF_LEVEL,
    OFFSETS,
    PACE,
    Effect,
    find_effects,
    membership,
    parametrisation,
    tells_little,
)
from jaxscale.hardware.catalogue import chip, cluster
from jaxscale.models import model
from jaxscale.plans.plan import Plan

N = 4 * MIN_RUNS_OF_LEVEL
"""Runs, a quarter of each kind: each level has as many as it needs to tell more than one number [1]."""


def _quarters(*names: str) -> tuple[str, ...]:
    """A column of levels, one for each quarter of the runs."""
    return tuple(name for name in names for _ in range(MIN_RUNS_OF_LEVEL))


LEVELS = Levels.of_columns(
    {
        "source": _quarters("a", "a", "b", "b"),
        "stack": _quarters("a", "a", "b", "b"),
        "framework": _quarters("f", "f", "g", "g"),
        "gpu": _quarters("h100-80gb", "a100-80gb", "h100-80gb", "h100-80gb"),
        "precision": _quarters(*["bf16"] * 4),
        "number_format": _quarters("bf16", "bf16", "fp8", "mxfp8"),
        "recipe": _quarters("user", "vendor", "vendor", "vendor"),
        "mixture": _quarters("y", "y", "y", "z"),
        "local_shape": _quarters("x", "x", "y", "z"),
    },
    N,
)


H100 = as_arrays(cluster("h100-80gb", 8))
LLAMA, PLAN = as_arrays((model("llama3-8b"), Plan()))
EVERYWHERE = np.ones((N, len(names())), dtype=bool)


def test_constrain_inverts_unconstrain():
    medians = prior_medians()
    again = constrain(jnp.asarray(unconstrain(medians)))
    for name in names():
        np.testing.assert_allclose(getattr(again, name), getattr(medians, name), rtol=1e-12)


@given(st.lists(st.floats(-30.0, 30.0), min_size=len(names()), max_size=len(names())))
def test_no_coordinates_make_a_matmul_faster_than_the_datasheet(coordinates: list[float]):
    coefficients = constrain(jnp.asarray(coordinates))
    rates = matmul_rates(PLAN.precision, 2.0, machine_of(H100, coefficients), coefficients)
    time = matmul_time(4096.0, 1e8, 1e8 * (1 / 4096.0 + 1 / LLAMA.d_model), rates)
    assert float(time) >= (1.0 - 1e-6) * 2.0 * 4096.0 * 1e8 / float(H100.chip.peak("bf16"))


def test_extreme_coordinates_stay_physical():
    for extreme in (-500.0, 500.0):
        values = constrain(jnp.full(len(names()), extreme))
        for name, prior in priors().items():
            value = float(getattr(values, name))
            assert np.isfinite(value) and value >= 0.0
            assert prior.kind != "fraction" or value <= 1.0


def test_effects_need_two_levels():
    kinds = {effect.kind for stage in (CENTRE, OFFSETS) for effect in find_effects(LEVELS, EVERYWHERE, stage)}
    assert "company" not in kinds  # no run says it: nothing to tell apart
    assert {"source", "stack", "gpu", "number_format"} <= kinds
    assert "local_shape" not in kinds  # too few runs of each shape


def test_each_stage_has_its_own_kinds_and_spreads():
    """The centre differs by stack and chip as its table says, known stacks by offsets; neither by both."""
    assert CENTRE.spread("gpu", "h100-80gb", "matmul_efficiency") == priors()["matmul_efficiency"].levels["gpu"] > 0.0
    assert CENTRE.spread("stack", "a", "matmul_efficiency") == 0.0
    assert OFFSETS.spread("source", "a", "matmul_efficiency") > 0.0 == OFFSETS.spread("source", "a", "hbm_efficiency")
    centre, offsets = (find_effects(LEVELS, EVERYWHERE, stage) for stage in (CENTRE, OFFSETS))
    assert not {effect.kind for effect in centre} & {effect.kind for effect in offsets}
    assert len(centre) < len(offsets)


def test_levels_with_the_same_rows_get_one_effect():
    """Runs of a recipe are the only ones of a company: the data cannot tell them apart, and the recipe comes first."""
    same = LEVELS.with_columns({"company": _quarters("x", "y", "y", "y")})
    kinds = [effect.kind for effect in find_effects(same, EVERYWHERE, CENTRE)]
    assert "recipe" in kinds and "company" not in kinds
    split = LEVELS.with_columns({"company": _quarters("x", "y", "x", "y")})
    assert "company" in [effect.kind for effect in find_effects(split, EVERYWHERE, CENTRE)]


def test_few_runs_of_a_level_tell_the_first_of_its_numbers_alone():
    """So do reports of many people in one table, however many they are."""
    few = LEVELS.take(np.arange(0, N, 4))
    of_stacks = {
        e.coefficient for e in find_effects(few, EVERYWHERE[::4], CENTRE) if (e.kind, e.level) == ("stack", "a")
    }
    of_chips = {e.coefficient for e in find_effects(few, EVERYWHERE[::4], CENTRE) if e.level == "a100-80gb"}
    assert (of_stacks, of_chips) == ({PACE}, {"matmul_efficiency"})
    assert tells_little("stack", "public_reports/someone", 10 * MIN_RUNS_OF_LEVEL)
    assert not tells_little("stack", "mosaic_llm_foundry/llm-foundry", MIN_RUNS_OF_LEVEL)


def test_mixtures_differ_more_than_stacks():
    effects = find_effects(LEVELS, EVERYWHERE)
    scale = dict(zip(effects, np.asarray(parametrisation(effects).scale)[: len(effects)].tolist(), strict=True))
    stack, mixture = (scale[Effect(kind, level, PACE)] for kind, level in (("source", "a"), ("mixture", "z")))
    assert mixture > 2.0 * stack > 0.0


def test_effects_need_a_row_that_they_can_move():
    scope = EVERYWHERE.copy()
    scope[: N // 2, names().index("tp_overlap")] = False
    effects = find_effects(LEVELS, scope)
    assert not any(e.level == "a" and e.coefficient == "tp_overlap" for e in effects)
    assert any(e.level == "b" and e.coefficient == "tp_overlap" for e in effects)


def test_rows_move_only_with_their_levels():
    effects = find_effects(LEVELS, EVERYWHERE, CENTRE)
    mapping = parametrisation(effects, CENTRE)
    members = jnp.asarray(membership(LEVELS, effects))
    base = jnp.zeros((N, len(names())))
    index = next(i for i, e in enumerate(effects) if e.kind == "gpu" and e.level == "a100-80gb")
    parameters = jnp.zeros(mapping.n_parameters).at[len(names()) + index].set(1.0)
    rows = np.array(mapping.rows(parameters, base, members))
    column, theirs = names().index(effects[index].coefficient), slice(MIN_RUNS_OF_LEVEL, 2 * MIN_RUNS_OF_LEVEL)
    np.testing.assert_allclose(rows[theirs, column], float(mapping.scale[index]))
    rows[theirs, column] = 0.0
    assert not rows.any()


def test_a_release_with_a_fault_pulls_the_pool_less_than_one_that_is_only_older():
    levels = ("ultrascale_playbook_h100/nanotron/before-pp-fix", "nvidia_nemo_perf_summary/nemo/old", "s/f")
    faulty, older, usual = parametrisation([Effect("source", level, "pp_slot_time") for level in levels]).scale[:3]
    assert float(faulty) == pytest.approx(4.0 * float(usual))
    assert float(older) == float(usual)


def test_hidden_terms_show_by_source_where_sources_differ():
    """One source may be bound by its host where another is not; where there is one only, the coefficient moves."""
    table = priors()
    host, overlap, matmul = (names().index(n) for n in ("host_time_layer", "tp_overlap", "matmul_efficiency"))
    alone = np.asarray(parametrisation([]).towards_exposed)
    expected = [table[name].spread_of_levels / table[name].spread for name in ("host_time_layer", "tp_overlap")]
    np.testing.assert_allclose((alone[host], alone[overlap], alone[matmul]), (expected[0], -expected[1], 0.0))
    mapping = parametrisation([Effect("source", "s/f", "host_time_layer")])
    change, n = np.asarray(mapping.towards_exposed), len(names())
    np.testing.assert_allclose((change[host], change[overlap]), (0.0, -expected[1]))
    # By as much as levels usually differ, however wide the prior of this one is.
    assert change[n] * float(mapping.scale[0]) == pytest.approx(table["host_time_layer"].spread_of_levels)
    assert not change[n + 1 :].any()


def test_jacobian_is_the_derivative_of_rows():
    effects = find_effects(LEVELS, EVERYWHERE)
    mapping = parametrisation(effects)
    members = jnp.asarray(membership(LEVELS, effects))
    rng = np.random.default_rng(0)
    gradient = jnp.asarray(rng.normal(size=(N, len(names()))))
    step = jnp.asarray(rng.normal(size=mapping.n_parameters))
    base = jnp.zeros((N, len(names())))
    zero = jnp.zeros(mapping.n_parameters)
    change = mapping.rows(step, base, members) - mapping.rows(zero, base, members)
    np.testing.assert_allclose(mapping.row_jacobian(gradient, members) @ step, jnp.sum(gradient * change, axis=1))


def _calibrated() -> Fit:
    return Fit(
        name="test",
        centre=prior_medians(),
        effects=(
            LevelEffect("source", "a", (("attention_efficiency", 0.1),)),
            LevelEffect("gpu", "h200", (("attention_efficiency", -0.05), ("fsdp_overlap", 1.0))),
            LevelEffect("recipe", "vendor", (("attention_efficiency", 0.02),)),
        ),
        known=(("framework", "f"), ("gpu", "h200"), ("source", "a")),
    )


def test_a_fit_about_another_keeps_the_offsets_of_its_own_stacks_alone():
    kept = kept_effects(_calibrated(), [{"source": "new", "framework": "f"}])
    assert {effect.kind for effect in kept} == {"gpu", "recipe"}
    assert kept_effects(_calibrated(), [{"source": "a", "framework": "f"}]) == _calibrated().effects


@pytest.mark.parametrize(
    ("levels", "shift"),
    [
        ({"source": "a", "framework": "f"}, 0.1),
        ({"source": "new", "framework": "f"}, 0.0),
        ({"source": "new", "framework": "f", "gpu": "h200"}, -0.05),
        ({"source": "a", "gpu": "h200", "recipe": "vendor"}, 0.07),
        ({"source": None, "framework": "unknown"}, 0.0),
    ],
)
def test_a_fit_adds_effects_of_levels(levels: dict, shift: float):
    fit = _calibrated()
    moved = fit.coefficients(levels)
    assert isinstance(moved, Coefficients)
    np.testing.assert_allclose(moved.attention_efficiency, fit.pooled.attention_efficiency * np.exp(shift), rtol=1e-9)


def test_chips_are_anchored_by_their_kernels_before_any_run():
    """An A100 keeps more of its peak than an H100, and a chip without timed kernels less; other numbers are shared."""
    fit = Fit("test", prior_medians())
    old, new, unseen, none = (fit.coefficients({"gpu": chip}) for chip in ("a100-80gb", "h100-80gb", "mi300x", None))
    assert old.matmul_efficiency == pytest.approx(chip_anchors()["a100-80gb"])
    assert old.matmul_efficiency > none.matmul_efficiency > new.matmul_efficiency > unseen.matmul_efficiency
    assert old.hbm_efficiency == new.hbm_efficiency == unseen.hbm_efficiency == none.hbm_efficiency


def test_drivers_take_less_of_the_memory_that_tpus_report():
    """TPUs report memory that is left for programs, GPUs all of it: 31.25 of 32 GiB on v6e, 79.1 of 80 GiB on H100."""
    fit = Fit("test", prior_medians())
    gpu, tpu = (fit.coefficients({"gpu": chip}).framework_bytes for chip in ("h100-80gb", "tpu-v6e"))
    assert gpu == pytest.approx(fit.pooled.framework_bytes)
    assert tpu == pytest.approx(0.2 * gpu)
    for name, built in (("h100-80gb", 80.0), ("tpu-v6e", 32.0)):
        assert 0.97 < float(chip(name).hbm_bytes) / (built * 2.0**30) < 1.0


def test_effect_of_a_fraction_acts_on_its_odds():
    fit = _calibrated()
    before, after = fit.pooled.fsdp_overlap, fit.coefficients({"gpu": "h200"}).fsdp_overlap
    assert after / (1.0 - after) == pytest.approx(np.e * before / (1.0 - before))
    assert 0.0 < after < 1.0


def test_unseen_levels_are_named():
    record = _calibrated()
    assert record.notes({"framework": "f", "gpu": "b200"}) == "not in the fit, pooled values used: gpu 'b200'"
    assert record.notes({"framework": "f", "gpu": "h200"}) == ""
