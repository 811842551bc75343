"""Batch, depth and plan chosen together: never worse than fixed laws, and prices decide what is bought."""

import dataclasses

import numpy as np
import pytest

from jaxscale.limits.joint_optimum import TokenPrice, joint_optimum, published_price

SIZES = np.asarray([1e26, 1e29, 10.0**30.5, 10.0**32])


@pytest.fixture(scope="module")
def found(library):
    """The default scenario at four sizes."""
    return joint_optimum(SIZES, library["default"])


def test_joint_design_beats_fixed_laws_and_moves_the_wall(found, solved, row, library):
    assert (found.chip_time[:3] <= 1.0).all() and np.isnan(found.chip_time[3])
    # A small batch saves tokens, not flop per chip and second: no utilisation is above what kernels reach.
    most = library["default"].max_utilisation
    assert (found.utilisation <= most).all() and found.chip_time[0] < 0.6
    assert found.utilisation[0] / found.fixed[0] < 1.05
    wall = solved.limits.flop(row["default"])["wall"]
    assert SIZES[3] > wall and found.fixed[3] == 0.0 and found.utilisation[3] > 0.005
    # Small runs save tokens by small batches, runs at the wall save steps by large ones and layers.
    assert found.batch_factor[0] < 0.5 and found.batch_factor[3] > 2.0
    assert found.depth_factor[3] < found.depth_factor[0]


def test_prices_decide(found, library):
    published = published_price()
    # Batches that cost next to nothing are larger; where that is all there is to buy, depth stays with its law.
    cheap = joint_optimum(SIZES[1:2], library["default"], dataclasses.replace(published, overhead=0.01))
    assert cheap.batch_factor[0] > 2.0 * found.batch_factor[1] and cheap.chip_time[0] < 1.0 / 1.02
    dear = joint_optimum(SIZES[1:2], library["default"], TokenPrice(published.overhead, shape=1e4, aspect=128.0))
    assert dear.depth_factor[0] == pytest.approx(1.0, abs=0.05)
    free = joint_optimum(SIZES[1:2], library["default"], TokenPrice(published.overhead, shape=1e-4, aspect=128.0))
    assert free.depth_factor[0] < 0.8 and free.chip_time[0] < dear.chip_time[0]
