"""Gradients with respect to every float leaf, against central differences over 1,000 random valid configurations."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry import Configuration, changed, draw_with, leaf_numbers, random_configurations, row, stack

from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.plans.plan import DECISIONS, FLAGS, SWITCHES
from jaxscale.plans.stages import head_in_layers

N = 1000
STEPS = (2e-7, 3e-9)
"""Relative steps of the differences: the larger is exact to rounding, the smaller stays clear of sharp bends."""
RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""Tolerances: of the slope itself, and of the total where a leaf hardly matters."""
RARE = 1e-4
"""Share of numbers at which several kinks of the exact form may meet, where an average of averages is no slope."""


STATE_NOTHING = ("first_stage_layers", "last_stage_layers", "lora_rank", "expert_load", "capacity_factor")
"""Numbers of a plan of which 0 states nothing, so that no slope leads to it; all configurations have it."""


WIDTHS = (".plan.weight_bytes", ".plan.precision")
"""Numbers that say how wide weights are stored and read."""


def seconds(configuration: Configuration, temperature: float) -> jax.Array:
    """Step time [s]."""
    return step_time(*configuration, temperature).total


def peak_bytes(configuration: Configuration, temperature: float) -> jax.Array:
    """Peak memory [byte]."""
    return memory(*configuration, temperature).total


@partial(jax.jit, static_argnames=("function", "temperature"))
def values(function: Any, batch: Configuration, temperature: float) -> jax.Array:
    """Value of each row."""
    return jax.vmap(lambda one: function(one, temperature))(batch)


# Half the time to compile; and no slope may hang on how often the compiler computes a number, and rounds it.
@partial(jax.jit, static_argnames=("function", "temperature"), compiler_options={"xla_backend_optimization_level": 0})
def gradients(function: Any, batch: Configuration, temperature: float) -> Configuration:
    """Gradient of each row by every leaf."""
    return jax.vmap(jax.grad(lambda one: function(one, temperature)))(batch)


class Slopes:
    """Slopes by every number of every row, per relative change and over the total: by autodiff and by differences.

    Arrays [number, row]; the difference arrays have a leading axis of steps.
    """

    def __init__(self, function: Any, batch: Configuration, temperature: float):
        total = np.asarray(values(function, batch, temperature))
        numbers = leaf_numbers(batch)
        autodiff = leaf_numbers(jax.tree.map(np.asarray, gradients(function, batch, temperature)))
        self.names = [name for name, _, _ in numbers]
        self.states_nothing = np.asarray([name.removeprefix(".plan.") in STATE_NOTHING for name in self.names])
        exact, left, right = [], [], []
        for (_, replace_number, value), (_, _, slope) in zip(numbers, autodiff, strict=True):
            scale = np.where(value == 0.0, 1.0, np.abs(value))
            exact.append(slope * scale / total)
            ends = [
                [values(function, replace_number(batch, value + sign * step * scale), temperature) for sign in (-1, 1)]
                for step in STEPS
            ]
            left.append([(total - np.asarray(low)) / step / total for step, (low, _) in zip(STEPS, ends, strict=True)])
            right.append(
                [(np.asarray(high) - total) / step / total for step, (_, high) in zip(STEPS, ends, strict=True)]
            )
        self.exact, self.left, self.right = np.asarray(exact), np.asarray(left), np.asarray(right)

    def mismatches(self) -> np.ndarray:
        """Where autodiff differs from the central difference at every step [number, row]."""
        central = 0.5 * (self.left + self.right)
        wrong = (np.abs(self.exact[:, None] - central) > RELATIVE * np.abs(central) + ABSOLUTE).all(axis=1)
        return wrong & ~self.states_nothing[:, None]

    def outside(self) -> np.ndarray:
        """Where autodiff lies outside the range of the one-sided slopes at every step [number, row]."""
        low, high = np.minimum(self.left, self.right), np.maximum(self.left, self.right)
        slack = RELATIVE * np.maximum(np.abs(low), np.abs(high)) + ABSOLUTE
        exact = self.exact[:, None]
        return ((exact < low - slack) | (exact > high + slack)).all(axis=1) & ~self.states_nothing[:, None]

    def kinked(self) -> np.ndarray:
        """Where the one-sided slopes differ at every step [number, row]."""
        gap = np.abs(self.right - self.left)
        return (gap > RELATIVE * np.maximum(np.abs(self.left), np.abs(self.right)) + ABSOLUTE).all(axis=1)

    def describe(self, where: np.ndarray) -> str:
        """Names and rows of the marked numbers."""
        found = [f"{self.names[number]} row {index}" for number, index in np.argwhere(where)]
        return f"{len(found)}: {', '.join(found[:20])}"


@pytest.fixture(scope="module")
def whole() -> Configuration:
    """Configurations of whole degrees."""
    return stack(random_configurations(N))


@pytest.fixture(scope="module")
def real(whole: Configuration) -> Configuration:
    """The same away from every kink: all numbers shifted by a few percent, in the domain's interior."""
    generator = np.random.default_rng(1)

    def shift(leaf: np.ndarray) -> np.ndarray:
        return leaf * (1.0 + 0.05 * generator.uniform(0.2, 1.0, leaf.shape))

    schedule = ("sequence_parallel", "recompute_selective", "recompute_full", "gpipe", "zero_bubble")
    switches = (switch for name in SWITCHES if name not in DECISIONS for switch in SWITCHES[name].values() if switch)
    offloaded = ("offload_activations", "offload_optimizer")
    shares = (*schedule, "dual_pipe", *FLAGS, *switches, *offloaded)
    blends = {f"plan__{name}": 0.02 + 0.9 * getattr(whole.plan, name) for name in shares}
    stage = 0.05 + 0.9 * whole.plan.zero_stage
    # Experts are split in ways of their own, or by ep; between lies no plan.
    split = np.where(whole.plan.etp > 0.0, 1.02, 0.5)
    return changed(jax.tree.map(shift, whole), plan__zero_stage=stage, plan__etp=split, **blends)


@pytest.fixture(scope="module")
def smooth_slopes(whole: Configuration) -> Slopes:
    """Slopes of the smooth step time at whole degrees."""
    return Slopes(seconds, whole, 0.02)


@pytest.fixture(scope="module")
def exact_slopes(whole: Configuration) -> Slopes:
    """Slopes of the exact step time at whole degrees, where it has kinks."""
    return Slopes(seconds, whole, 0.0)


@pytest.fixture(scope="module")
def memory_slopes(real: Configuration) -> Slopes:
    """Slopes of the exact peak memory between whole degrees."""
    return Slopes(peak_bytes, real, 0.0)


@pytest.mark.parametrize("slopes", ["smooth_slopes", "exact_slopes"])
def test_gradients_are_finite(slopes: str, request: pytest.FixtureRequest):
    assert np.isfinite(request.getfixturevalue(slopes).exact).all()


def test_smooth_step_time_matches_central_differences_everywhere(smooth_slopes: Slopes, whole: Configuration):
    wrong = smooth_slopes.mismatches()
    # The stage is a switch with a kink at every whole number, whatever the temperature; one replica shards nothing.
    stage = smooth_slopes.names.index(".plan.zero_stage")
    wrong[stage] = smooth_slopes.outside()[stage] & (whole.plan.dp > 1.0)
    # Where two levels of a ring are equally slow the bend is sharper than the step of the difference.
    assert wrong.mean() < 0.5 * RARE, smooth_slopes.describe(wrong)


def test_exact_step_time_matches_central_differences_between_whole_degrees(real: Configuration):
    slopes = Slopes(seconds, real, 0.0)
    wrong = slopes.mismatches()
    assert not wrong.any(), slopes.describe(wrong)


def test_exact_step_time_matches_central_differences_off_its_kinks(exact_slopes: Slopes):
    wrong = exact_slopes.mismatches() & ~exact_slopes.kinked()
    assert wrong.mean() < RARE, exact_slopes.describe(wrong)


def test_gradients_at_kinks_lie_between_the_one_sided_slopes(exact_slopes: Slopes, whole: Configuration):
    wrong = exact_slopes.outside()
    # A shard group of a single replica has no valid neighbour on either side.
    wrong[exact_slopes.names.index(".plan.shard_group"), whole.plan.dp == 1.0] = False
    # Where experts take all replicas, two kinks meet: the split of an expert, and its second replica.
    full = whole.plan.ep == whole.plan.dp * whole.plan.cp
    for name in (".plan.dp", ".plan.cp", ".plan.ep"):
        wrong[exact_slopes.names.index(name), full] = False
    # At two stages whole layers meet the switch of a pipeline; a head may push just all layers into the first one.
    stages, layers = whole.plan.pp, whole.model.n_layers
    wrong[exact_slopes.names.index(".plan.pp"), stages == 2.0] = False
    all_in_first = layers + np.asarray(head_in_layers(whole.model)) == layers * stages
    for name in (".plan.pp", ".plan.balanced_stages"):
        wrong[exact_slopes.names.index(name), all_in_first] = False
    # A ring that fills its domain begins to leave it, and may change its slowest level, at the same degree.
    filled = whole.plan.tp == whole.cluster.network.domain_size[:, 0]
    for name in (".plan.tp", ".cluster.network.domain_size[0]"):
        wrong[exact_slopes.names.index(name), filled] = False
    assert exact_slopes.kinked().sum() > 1000
    assert wrong.mean() < 2.0 * RARE, exact_slopes.describe(wrong)


def test_two_way_ties_give_the_average_of_the_one_sided_slopes(exact_slopes: Slopes):
    # A node that is exactly full: `max(nodes, 1)` in the straggler and congestion terms.
    kinks = exact_slopes.kinked()[exact_slopes.names.index(".cluster.n_chips")]
    averaged = ~exact_slopes.mismatches()[exact_slopes.names.index(".cluster.n_chips")]
    assert kinks.sum() >= 10
    assert averaged.all()


def test_memory_matches_central_differences(whole: Configuration, memory_slopes: Slopes):
    smooth = Slopes(peak_bytes, whole, 0.02)
    for slopes in (smooth, memory_slopes):
        assert np.isfinite(slopes.exact).all()
        wrong = slopes.mismatches()
        if slopes is smooth:
            # Weights as wide as matmuls read them are at the edge of those that must be widened first.
            wrong &= ~np.asarray([name.startswith(WIDTHS) for name in slopes.names])[:, None]
        assert not wrong.any(), slopes.describe(wrong)


def test_every_number_matters_somewhere(exact_slopes: Slopes, memory_slopes: Slopes):
    used = np.abs(exact_slopes.exact).max(axis=1) > 0.0
    used |= np.abs(memory_slopes.exact).max(axis=1) > 0.0
    unused = {name for name, matters in zip(exact_slopes.names, used, strict=True) if not matters}
    # Power belongs to the energy of a step; the last level of a network has no edge.
    expected = {".cluster.chip.idle_power", ".cluster.chip.max_power", ".cluster.network.domain_size[2]"}
    # Capacity decides whether a plan fits, not how much it takes.
    # Nothing is stated of adapters, of the ends of a pipeline and of the load of experts; no peak is a reserved one.
    nothing = (*STATE_NOTHING, "balanced_experts", "lora_targets", "cached_share")
    unstated = {name for name in unused if name.startswith(tuple(f".plan.{number}" for number in nothing))}
    assert unused - unstated == expected | {".cluster.chip.hbm_bytes"}


def test_the_comparison_can_fail(smooth_slopes: Slopes):
    width = smooth_slopes.names.index(".model.d_model")
    correct, right = smooth_slopes.exact.copy(), smooth_slopes.mismatches()
    smooth_slopes.exact[width] *= 1.01
    wrong, outside = smooth_slopes.mismatches(), smooth_slopes.outside()
    smooth_slopes.exact[:] = correct
    assert wrong[width].mean() > 0.9 and outside[width].mean() > 0.9
    assert not right[width].any()
    np.testing.assert_array_equal(np.delete(wrong, width, axis=0), np.delete(right, width, axis=0))


@given(st.data())
def test_gradients_are_finite_wherever_hypothesis_looks(data: st.DataObject):
    # As many copies as the other tests have rows: one compiled function serves all.
    batch = jax.tree.map(lambda leaf: np.repeat(leaf[None], N, axis=0), draw_with(data))
    slopes = row(gradients(seconds, batch, 0.0), 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
