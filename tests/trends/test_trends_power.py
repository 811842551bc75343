"""Energy adds up term by term; a cap throttles arithmetic and nothing else; units scale."""

import equinox as eqx
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.costs.power import CLOCK_EXPONENT, ChipPower, energy_terms, mean_chip_power, throttle
from jaxscale.costs.step import TERM_NAMES, TERMS, StepTime, names_of_kind
from jaxscale.costs.terms import KINDS, cost_term, declared_terms
from jaxscale.trends.deployment_library import YEAR, deployment, price_of, table
from jaxscale.trends.layout import ParallelLayout, step_at
from jaxscale.trends.outcome import outcome_at


@pytest.fixture(scope="module")
def step(paper):
    return step_at(paper, ParallelLayout(), 1024.0, 2048.0)


def test_every_term_has_an_activity():
    assert TERM_NAMES == tuple(StepTime.__dataclass_fields__)
    assert {term.kind for term in TERMS} == set(KINDS)
    assert sum(len(names_of_kind(kind)) for kind in KINDS) == len(TERM_NAMES)


def test_a_field_that_is_no_cost_term_is_told():
    class Declared(eqx.Module):
        work: float = cost_term("compute", "blue")

    class Bare(Declared):
        pause: float

    (term,) = declared_terms(Declared)
    assert (term.name, term.kind, term.colour, term.hatch) == ("work", "compute", "blue", "")
    with pytest.raises(TypeError, match="Bare.pause"):
        declared_terms(Bare)


def test_chips_that_draw_the_same_whatever_they_do_draw_it_all_the_time(paper, step):
    """Half of the range at all times; with two powers, waiting weighs as much as it takes of the step."""
    chip = paper.cluster.chip
    idle, room = float(chip.idle_power), float(chip.max_power) - float(chip.idle_power)
    assert float(mean_chip_power(step, chip, ChipPower(0.5, 0.5, 0.5, 0.5))) == pytest.approx(idle + 0.5 * room)
    terms = step.terms()
    working = sum(float(terms[name]) for name in names_of_kind("compute", "memory")) / float(step.total)
    assert 0.1 < working < 0.95
    two = mean_chip_power(step, chip, ChipPower(1.0, 1.0, 0.3, 0.3))
    assert float(two) == pytest.approx(idle + room * (working + 0.3 * (1.0 - working)))


@pytest.mark.parametrize("cap", [1e9, 400.0])
def test_energy_adds_up_term_by_term(paper, step, cap):
    chip = paper.cluster.chip
    energy = {name: float(value) for name, value in energy_terms(step, chip, paper.power, cap).items()}
    assert set(energy) == {"idle", *TERM_NAMES}
    assert sum(energy.values()) == pytest.approx(
        float(mean_chip_power(step, chip, paper.power, cap) * step.total), rel=1e-12
    )
    assert energy["idle"] == pytest.approx(float(chip.idle_power * step.total))
    compute = (float(chip.max_power) - float(chip.idle_power)) * float(step.matmul)
    free = min(1.0, (cap - float(chip.idle_power)) / (float(chip.max_power) - float(chip.idle_power)))
    assert energy["matmul"] == pytest.approx(compute * free)


def test_power_lies_between_idle_and_the_limit(paper, step):
    chip = paper.cluster.chip
    assert float(chip.idle_power) < float(mean_chip_power(step, chip, paper.power, 1e9)) < float(chip.max_power)


def test_a_cap_slows_arithmetic_by_the_cube_root(paper):
    chip = paper.cluster.chip
    cap = float(chip.idle_power) + (float(chip.max_power) - float(chip.idle_power)) / 8.0
    slowed = throttle(chip, paper.power, cap)
    assert np.asarray(slowed.peak_flops) == pytest.approx(np.asarray(chip.peak_flops) * 0.5 ** (3.0 / CLOCK_EXPONENT))
    assert float(slowed.hbm_bandwidth) == float(chip.hbm_bandwidth)
    assert np.asarray(throttle(chip, paper.power, 1e9).peak_flops) == pytest.approx(np.asarray(chip.peak_flops))


def test_a_cap_costs_less_where_communication_is_exposed(paper):
    """A lower cap costs speed where chips compute, and next to none where they wait."""

    def loss(n):
        capped = eqx.tree_at(lambda s: s.power_cap, paper, 500.0)
        free = outcome_at(paper, ParallelLayout(), n, 2.0 * n)
        held = outcome_at(capped, ParallelLayout(), n, 2.0 * n)
        assert float(held.chip_power) <= 500.0
        assert float(held.tokens_per_joule) > float(free.tokens_per_joule)
        return 1.0 - float(held.tokens_per_s / free.tokens_per_s)

    assert 0.0 < loss(4096.0) < loss(64.0) < 0.2


def test_power_cap_agrees_with_a_measured_one():
    """McDonald et al.: 150 of 250 W cost BERT 6.8 % of time and saved 13.7 % of energy; the cube root says as much."""
    idle, demand, cap = 35.0, 186.0, 150.0  # 186 W is what both figures imply: (1 - 0.137) / 1.068 of it is the cap
    assert demand * (1.0 - 0.137) / 1.068 == pytest.approx(cap, rel=0.01)
    slower = ((demand - idle) / (cap - idle)) ** (1.0 / CLOCK_EXPONENT) - 1.0
    assert slower == pytest.approx(0.068, abs=0.03)


def test_money_is_capital_over_life_and_electricity():
    price = price_of("h100-80gb")
    capital = table()["systems"]["h100-80gb"]["capital_dollars"]["value"]
    assert float(price.rate(0.0)) == pytest.approx(capital / (4.0 * YEAR))
    assert float(price.rate(1000.0) - price.rate(0.0)) * 3600.0 == pytest.approx(0.081 * 1.3)
    assert 1.0 < float(price.rate(1275.0)) * 3600.0 < 4.0  # dollars for an hour of an H100


def test_tokens_per_joule_dollar_and_hour_follow_from_the_same_outcome(paper):
    found = outcome_at(paper, ParallelLayout(), 256.0, 512.0)
    assert float(found.tokens_per_joule * found.chip_power) * 256.0 == pytest.approx(float(found.tokens_per_s))
    assert float(found.tokens_per_dollar * found.dollars_per_s) == pytest.approx(float(found.tokens_per_s))
    assert float(found.tokens_per_chip_hour) == pytest.approx(3600.0 * float(found.tokens_per_s) / 256.0)


def test_an_unknown_chip_and_a_cap_below_idle_are_refused():
    with pytest.raises(InputError, match="no system power"):
        deployment(chip_id="l40s")
    with pytest.raises(InputError, match="power cap = 10 W"):
        deployment(power_cap=10.0)
