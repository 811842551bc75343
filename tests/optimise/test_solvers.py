"""The solvers on problems whose optimum has a closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.errors import InputError
from jaxscale.optimise import barrier, interior_point
from jaxscale.optimise.barrier import better, minimise, work_on_rows
from jaxscale.optimise.interior_point import best_candidate, certify, polish, promising, rough_search, start_points
from jaxscale.optimise.orders import greedy_order, improved_order
from jaxscale.optimise.problems import UNBOUNDED, Goals, Optimum, Problems, goals

N = 40
"""Problems of each kind, solved at once [1]."""


class Bowl(eqx.Module):
    """Squared distance from a point of the unit cube, beyond a plane or outside of a ball."""

    wanted: jax.Array
    normal: jax.Array
    middle: jax.Array

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities."""
        return ("distance", "side", "radius")

    def log_quantities(self, point: jax.Array) -> jax.Array:
        """The quantities, as if they were logarithms."""
        return jnp.stack(
            [
                jnp.sum((point - self.wanted) ** 2),
                self.normal @ point,
                jnp.sqrt(jnp.sum((point - self.middle) ** 2) + 1e-12),
            ]
        )


@pytest.fixture(scope="module")
def bowls() -> list[Bowl]:
    """Problems whose optima lie well within the cube."""
    rng = np.random.default_rng(0)
    wanted, middle = rng.uniform(0.6, 0.8, (N, 3)), rng.uniform(0.3, 0.5, (N, 3))
    return [Bowl(*map(np.asarray, parts)) for parts in zip(wanted, rng.uniform(0.5, 1.0, (N, 3)), middle, strict=True)]


def bounded(bowls: list[Bowl], side: np.ndarray | float, radius: np.ndarray | float) -> Goals:
    """Least distance under bounds on the side of a plane and the radius of a ball."""
    upper = np.stack(np.broadcast_arrays(np.full(len(bowls), UNBOUNDED), side, radius), axis=1)
    return Goals(bowls[0].names, np.tile([1.0, 0.0, 0.0], (len(bowls), 1)), upper.astype(float))


def on_plane(bowls: list[Bowl], side: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Foot of the perpendicular on the plane, and its multiplier, 2 |u - c| / |w|."""
    wanted, normal = (np.stack([getattr(one, name) for one in bowls]) for name in ("wanted", "normal"))
    square = np.sum(normal**2, axis=1)
    beyond = np.sum(normal * wanted, axis=1) - side
    return wanted - (beyond / square)[:, None] * normal, 2.0 * beyond / square


def test_a_bound_by_a_plane_is_met_at_the_foot_of_the_perpendicular(bowls: list[Bowl]):
    """From starts on the wrong side too, in few steps; the multiplier is the price of the bound."""
    side = np.asarray([0.85 * float(one.normal @ one.wanted) for one in bowls])
    starts, problems = start_points(N, 3, seed=1), Problems.of(bowls)
    found = polish(starts, problems, bounded(bowls, side, UNBOUNDED), n_steps=9)
    foot, price = on_plane(bowls, side)
    np.testing.assert_allclose(found.point, foot, atol=1e-6)
    np.testing.assert_allclose(found.multipliers[:, 1], price, rtol=1e-5)
    np.testing.assert_allclose(found.objective, np.sum((foot - [one.wanted for one in bowls]) ** 2, axis=1), rtol=1e-5)
    assert found.residual.max() < 1e-8
    assert not found.multipliers[:, [0, 2]].any()


def test_a_bound_by_a_ball_is_met_in_few_steps(bowls: list[Bowl]):
    """Steps along the curved bound need their corrections."""
    apart = [one.wanted - one.middle for one in bowls]
    radius = np.asarray([0.5 * np.linalg.norm(way) for way in apart])
    found = polish(start_points(N, 3), Problems.of(bowls), bounded(bowls, UNBOUNDED, radius), n_steps=13)
    nearest = [one.middle + 0.5 * way for one, way in zip(bowls, apart, strict=True)]
    np.testing.assert_allclose(found.point, nearest, atol=1e-6)
    np.testing.assert_allclose(found.multipliers[:, 2], 2.0 * radius, rtol=1e-4)
    assert found.residual.max() < 1e-8


def test_a_bound_that_does_not_bind_has_no_price(bowls: list[Bowl]):
    found = polish(start_points(N, 3), Problems.of(bowls), bounded(bowls, 3.5, 2.0), n_steps=8)
    np.testing.assert_allclose(found.point, [one.wanted for one in bowls], atol=1e-6)
    assert found.multipliers.max() < 1e-7


def test_a_rough_search_ends_near_the_optimum(bowls: list[Bowl]):
    side = np.asarray([0.85 * float(one.normal @ one.wanted) for one in bowls])
    rough = rough_search(start_points(N, 3), Problems.of(bowls), bounded(bowls, side, UNBOUNDED), 150)
    np.testing.assert_allclose(rough.points, on_plane(bowls, side)[0], atol=0.03)
    assert rough.path.shape == (150, N, 3) and rough.trajectory.shape == (150, N)
    assert np.nanmin(rough.trajectory) >= 0.0


def test_an_optimum_that_did_not_converge_is_refined(bowls: list[Bowl]):
    problems, wanted = Problems.of(bowls), bounded(bowls, 3.5, 2.0)
    early = polish(start_points(N, 3), problems, wanted, n_steps=2)
    assert early.residual.min() > 1e-3
    rows = np.arange(0, N, 2)
    late = certify(early, rows, problems, wanted)
    assert late.residual[rows].max() < 1e-8
    np.testing.assert_array_equal(late.residual[1::2], early.residual[1::2])


def optimum(objective: float, residual: float) -> Optimum:
    return Optimum(*map(np.asarray, ([0.0], [objective], [0.0], objective, residual)))


@pytest.mark.parametrize(
    ("new", "old", "replaces"),
    [
        ((1.0, 1e-9), (2.0, 1e-9), True),
        ((2.0, 1e-9), (1.0, 1e-12), False),
        ((2.0, 1e-9), (1.0, 1e-3), True),
        ((1.0, 1e-3), (2.0, 1e-9), False),
        ((2.0, 1e-4), (1.0, 1e-3), True),
        ((1.0, 1e-3), (2.0, 1e-4), False),
    ],
)
def test_certified_iterates_go_first_then_objective_or_residual(new: tuple, old: tuple, replaces: bool):
    assert bool(better(optimum(*new), optimum(*old), 1e-7)) is replaces


def test_an_uncertified_candidate_needs_a_clear_advantage():
    """By more than the error of its objective; what breaks a bound is no candidate while another keeps it."""
    wanted = goals(("cost", "size"), {"cost": 1.0}, {"size": 1.0})

    def picked(*rows: tuple[float, float, float]) -> int:
        cost, size, residual = np.asarray(rows).T
        values = np.stack([cost, size], axis=1)
        return best_candidate(Optimum(values, values, values, cost, residual), wanted)

    assert picked((1.0, -1.0, 1e-9), (1.0 - 5e-4, -1.0, 1e-2)) == 0
    assert picked((1.0, -1.0, 1e-9), (1.0 - 2e-3, -1.0, 1e-2)) == 1
    assert picked((1.0, -1.0, 1e-9), (0.5, 0.1, 1e-9)) == 0
    assert picked((1.0, 0.2, 1e-2), (2.0, 0.1, 1e-4)) == 1


def test_the_best_start_of_each_group_is_refined_first():
    merits, groups = np.asarray([3.0, 1.0, 2.0, 5.0, 4.0]), np.asarray([0, 0, 0, 1, 1])
    assert promising(merits, groups).tolist() == [1, 4, 2, 3, 0]


class Valley(eqx.Module):
    """Curved quantity q = sum a (u - c)^2 / 2 in a box, with a slope g, at most b or at a price of its excess."""

    stiffness: jax.Array
    centre: jax.Array
    slope: jax.Array
    most: jax.Array

    PRICE = 50.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities."""
        return ("curved",)

    def log_quantities(self, point: jax.Array) -> jax.Array:
        """The quantities, as if they were logarithms."""
        return 0.5 * jnp.sum(self.stiffness * (point[:-1] - self.centre) ** 2)[None]

    def objective(self, point: jax.Array, values: jax.Array) -> jax.Array:
        """Minimised value."""
        return self.slope @ point[:-1] + values[0] + self.PRICE * point[-1]

    def slacks(self, point: jax.Array, values: jax.Array) -> jax.Array:
        """Room in every limit, the curved one last."""
        return jnp.concatenate([point, 1.0 - point[:-1], (self.most + point[-1] - values[0])[None]])

    def slopes(self, point: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Slopes of the objective and of every limit."""
        one = jnp.eye(len(point))
        gradient = slope.at[-1].add(self.PRICE) + jnp.append(self.slope, 0.0)
        return gradient, jnp.concatenate([-one, one[:-1], slope.at[-1].add(-1.0)[None]])

    def multiplier_scale(self, multipliers: jax.Array) -> jax.Array:
        """Largest multiplier but that of the excess."""
        return jnp.max(multipliers.at[2].set(0.0))


def valleys(most: float) -> Valley:
    rng = np.random.default_rng(2)
    return Valley(
        jnp.asarray(rng.uniform(1.0, 20.0, (N, 2))),
        jnp.asarray(rng.uniform(-0.5, 1.5, (N, 2))),
        jnp.asarray(rng.uniform(1.0, 3.0, (N, 2)) * rng.choice([-1.0, 1.0], (N, 2))),
        jnp.full(N, most),
    )


def start(problem: Valley) -> tuple[jax.Array, jax.Array]:
    point = jnp.asarray([0.5, 0.5, 0.0])
    values = problem.log_quantities(point)
    return point.at[-1].set(1.0 + jnp.maximum(values[0] - problem.most, 0.0)), values


def test_separable_valleys_in_a_box_have_their_clipped_minima():
    """Each coordinate minimises g u + a (u - c)^2 / 2 on its own: c - g / a, clipped to the box."""
    posed = valleys(1e3)
    found = jax.jit(lambda: minimise(start, posed, jnp.arange(N) != 7, 14))()
    expected = jnp.clip(posed.centre - posed.slope / posed.stiffness, 0.0, 1.0)
    solved = np.arange(N) != 7
    np.testing.assert_allclose(found.point[solved, :2], expected[solved], atol=2e-4)
    assert np.asarray(found.residual)[solved].max() < 1e-7
    assert np.isinf(found.residual[7]), "not asked for"


LEAST = 0.01
"""Bound on the curved quantity whose multipliers stay below the price of an excess [1]."""


def test_a_binding_limit_on_the_curved_quantity_shortens_the_way():
    """At q = b the way from the bottom is g / (a (1 + z)): its multiplier is z = sqrt(sum g^2 / (2 a b)) - 1."""
    posed = valleys(LEAST)
    posed = eqx.tree_at(lambda one: one.centre, posed, 0.3 + 0.2 * jnp.clip(posed.centre, 0.0, 2.0))
    found = jax.jit(lambda: minimise(start, posed, jnp.full(N, True), 200))()
    scale = jnp.sqrt(jnp.sum(posed.slope**2 / (2.0 * posed.stiffness), axis=1) / LEAST)
    assert float(scale.min()) > 2.0
    way = -posed.slope / (posed.stiffness * scale[:, None])
    np.testing.assert_allclose(found.point[:, :2], posed.centre + way, atol=1e-4)
    np.testing.assert_allclose(found.multipliers[:, -1], scale - 1.0, rtol=1e-3)
    np.testing.assert_allclose(found.values[:, 0], LEAST, rtol=1e-3)
    assert float(jnp.max(found.point[:, 2])) < 1e-6, "the limit can be kept, so nothing exceeds it"


POSITIVE = st.lists(st.tuples(st.floats(1e-3, 10.0), st.floats(-100.0, 100.0)), min_size=1, max_size=6)


@given(POSITIVE)
def test_the_longest_step_uses_up_a_share_of_the_first_number_that_vanishes(numbers: list[tuple[float, float]]):
    """Or is whole, where no number falls so far; both interior-point methods have the rule."""
    values, changes = np.asarray(numbers).T
    expected = min([1.0, *(0.99 * value / -change for value, change in numbers if change < 0.0)])
    assert float(barrier._longest(jnp.asarray(values), jnp.asarray(changes))) == pytest.approx(expected)
    assert float(interior_point._longest(values[None], changes[None], 0.99)[0]) == pytest.approx(expected)


def test_rows_that_are_not_asked_for_stay_as_they_are():
    wanted = jnp.arange(11) % 3 == 0
    doubled = work_on_rows(wanted, lambda state, given: state * given, jnp.arange(11.0), jnp.full(11, 2.0))
    np.testing.assert_array_equal(doubled, np.where(wanted, 2.0, 1.0) * np.arange(11.0))


def test_orders_of_points_on_a_line_are_found():
    """Islands along a coast: the shortest chain goes along it, from whatever order the search starts."""
    places = np.asarray([0.0, 5.0, 1.0, 4.0, 2.0, 3.0])
    hops = np.abs(places[:, None] - places)
    assert places[greedy_order(hops)].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    def length(order: np.ndarray) -> float:
        return float(hops[order[:-1], order[1:]].sum())

    for seed in range(5):
        order, cost = improved_order(length, np.random.default_rng(seed).permutation(6))
        assert cost == length(order) == 5.0
    assert improved_order(length, np.arange(6), most=0) == (pytest.approx(np.arange(6)), length(np.arange(6)))


def test_goals_are_logarithms_of_known_quantities():
    wanted = goals(("a", "b"), {"a": 2.0}, {"b": np.e**3})
    assert (wanted.weights.tolist(), wanted.upper.tolist()) == ([2.0, 0.0], [UNBOUNDED, pytest.approx(3.0)])
    assert wanted.with_bound("a", 1.0).bound("a") == 1.0 and wanted.bounded().tolist() == [1]
    assert float(wanted.objective(np.asarray([1.5, 7.0]))) == 3.0
    np.testing.assert_allclose(wanted.residuals(np.asarray([0.0, 4.0])), [-UNBOUNDED, 1.0])
    for bound in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="expected a number above 0"):
            goals(("a",), {}, {"a": bound})
