"""Plans on nodes with measured links: placement against the given order, bounds, and refusals."""

import itertools

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.calibration.record import load_fit
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.best_plan import best_plan, question_of_levels
from jaxscale.plans.enumerate import PlanTable, enumerate_plans
from jaxscale.plans.node_links import NodeLinks, candidate_orders, load_links, place_on_nodes, routes
from jaxscale.plans.score import score_plans

NAMES = tuple(f"n{node}" for node in range(8))


def drawn(spread: float = 0.2) -> np.ndarray:
    """Bandwidths around 20 GB/s that differ by direction [GB/s]."""
    return 20.0 * np.exp(spread * np.random.default_rng(3).standard_normal((8, 8)))


def table(folder, bandwidth, names=NAMES) -> str:
    rows = [",".join([name, *(f"{cell:.6g}" for cell in row)]) for name, row in zip(names, bandwidth, strict=True)]
    file = folder / "links.csv"
    file.write_text("\n".join([",".join(["node", *names]), *rows]))
    return str(file)


@pytest.fixture(scope="module")
def asked():
    """Question for a plan on eight nodes, and two plans of each shape."""
    question = question_of_levels(model("llama3-8b"), cluster("a100-80gb", 64), 128, {"gpu": "a100-80gb"})
    plans = enumerate_plans(question.model, 64, 128, question.space)
    shapes = np.stack([plans.columns["pp"], plans.columns["tp"]], axis=1)
    rows = np.unique(shapes, axis=0, return_index=True)[1]
    rows = np.unique([*rows, *(rows + 1)])[:-1]
    return question, PlanTable({name: column[rows] for name, column in plans.columns.items()}, plans.space)


def steps(asked, bandwidth) -> np.ndarray:
    """Step times on nodes with given links in GB/s [s], [plan]."""
    question, plans = asked
    placed = place_on_nodes(question, load_fit("prior"), NodeLinks(NAMES, 1e9 * bandwidth), plans)
    for one in placed:
        assert one.step_time <= one.given_time * (1.0 + 1e-12)
    return np.array([one.step_time for one in placed])


def test_equal_links_of_the_catalogue_change_nothing(asked):
    question, plans = asked
    plain = score_plans(question.model, plans, question.cluster, question.task(load_fit("prior")).coefficients)
    np.testing.assert_allclose(steps(asked, np.full((8, 8), 25.0)), plain.step_time, rtol=1e-6)


def test_no_slower_link_helps(asked):
    bandwidth = drawn()
    fast, slow = (steps(asked, np.full((8, 8), end)) for end in (bandwidth.max(), bandwidth.min()))
    before = steps(asked, bandwidth)
    # Far from the optimum the search may end at an order that is worse by a little.
    near = 1.0 + 1e-3
    assert (fast <= before * near).all()
    assert (before <= slow * near).all()
    assert before.sum() < slow.sum()
    for factor in (0.5, 0.1):
        bandwidth[2, :] *= factor
        bandwidth[:, 2] *= factor
        after = steps(asked, bandwidth)
        assert (before <= after * near).all()
        assert before.sum() < after.sum()
        before = after


def test_ranked_plans_carry_times_of_their_placements(tmp_path):
    choice = best_plan("llama3-8b", "a100-80gb", 128, links=table(tmp_path, drawn()), n_chips=64, fit="prior", top=3)
    assert choice.placement["gain"] >= 0.0
    assert sorted(choice.placement["nodes"]) == list(NAMES)
    assert choice.placement["step_time_s"] == pytest.approx(choice.best.step_time, rel=1e-12)
    assert sum(choice.best.terms.values()) == pytest.approx(choice.best.step_time, rel=1e-12)
    assert [one.step_time for one in choice.top] == sorted(one.step_time for one in choice.top)


def test_one_broken_link_between_two_nodes_is_left_out(tmp_path):
    """A ring of eight nodes has an order without the link of 1 GB/s, a ring of two nodes has none."""
    bandwidth = np.full((8, 8), 25.0)
    bandwidth[3, 4] = bandwidth[4, 3] = 1.0
    links = NodeLinks(NAMES, 1e9 * bandwidth)
    for shape, avoids in (((1, 64), True), ((8, 8), True), ((4, 16), True)):
        way = routes(*shape, 8)
        ends = [way.times(1.0 / links.bandwidth, order) for order in candidate_orders(links, way)]
        given, best = max(ends[0]), min(max(one) for one in ends)
        assert best < given or shape == (4, 16)
        assert (best == pytest.approx(1.0 / 25e9)) == avoids
    way = routes(1, 16, 8)
    two = NodeLinks(NAMES[:2], np.array([[25e9, 1e9], [1e9, 25e9]]))
    assert all(way.times(1.0 / two.bandwidth, order)[0] == 1e-9 for order in candidate_orders(two, way))


def test_the_slowest_link_of_a_ring_is_near_the_best_of_all_orders():
    links = NodeLinks(NAMES[:7], 1e9 * drawn()[:7, :7])
    way = routes(1, 56, 8)
    slowness = 1.0 / links.bandwidth
    every = [way.times(slowness, np.array([0, *order]))[0] for order in itertools.permutations(range(1, 7))]
    found = min(way.times(slowness, order)[0] for order in candidate_orders(links, way))
    assert found <= 1.02 * min(every)
    assert found < np.median(every)


@pytest.mark.parametrize(
    ("stages", "stage_chips", "rings", "hops", "boundaries"),
    [(1, 8, 0, 0, 0), (1, 64, 8, 0, 0), (8, 8, 0, 7, 7), (4, 16, 8, 6, 3), (16, 4, 0, 7, 7), (2, 12, 4, 3, 1)],
)
def test_routes(stages, stage_chips, rings, hops, boundaries):
    way = routes(stages, stage_chips, 8)
    assert (len(way.rings), len(way.hops), len(way.starts)) == (rings, hops, boundaries)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node,a\na,\n", "header of 1 nodes"),
        ("node,a,a\na,,1\na,1,\n", "header of 2 nodes"),
        ("node,a,b\nb,,1\na,1,\n", "expected a line for each, in order"),
        ("node,a,b\na,,1\n", "1 senders below 2 nodes"),
        ("node,a,b\na,,1\nb,1\n", "3: 2 cells; expected 3"),
        ("node,a,b\na,,fast\nb,1,\n", "2: b = 'fast' is no bandwidth; expected GB/s"),
        ("node,a,b\na,,0\nb,1,\n", "2: b = '0' is no bandwidth"),
        ("node,a,b\na,,nan\nb,1,\n", "2: b = 'nan' is no bandwidth"),
    ],
)
def test_refused_tables(tmp_path, text, expected):
    file = tmp_path / "links.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=expected.replace("(", r"\(")):
        load_links(file)


def test_links_of_another_cluster_are_refused(tmp_path):
    path = table(tmp_path, np.full((8, 8), 25.0))
    with pytest.raises(InputError, match="links of 8 nodes: 16 chips, 8 in a node, make 2 nodes"):
        best_plan(model("llama3-8b"), cluster("a100-80gb", 16), 32, fit="prior", links=path)
