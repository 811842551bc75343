"""Laws of the loss: closed forms, published values, inverses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.laws.loss import LossLaw, batch_law, compute_exponent, law_table, loss_law, shape_law


@pytest.mark.parametrize("name", ["hoffmann", "besiroglu", "besiroglu-joint"])
def test_optimum_is_the_minimum_of_the_loss(name):
    law = loss_law(name)
    for flop in (1e19, 1e23, 1e27):
        params, tokens = law.optimum(flop)
        assert float(6.0 * params * tokens) == pytest.approx(flop, rel=1e-9)
        slope = jax.grad(lambda x, f=flop, law=law: law.loss(jnp.exp(x), f / (6.0 * jnp.exp(x))))(jnp.log(params))
        assert abs(float(slope)) < 1e-10


def test_published_ratios():
    """Besiroglu: 16 tokens per parameter at 1e26 flop; Hoffmann's rounded law gives Chinchilla, 70B on 1.4T, 1.936."""
    params, tokens = loss_law("besiroglu").optimum(1e26)
    assert float(tokens / params) == pytest.approx(16.0, rel=0.1)
    rounded = LossLaw(1.69, 406.4, 410.7, 0.34, 0.28)
    assert float(rounded.loss(70e9, 1.4e12)) == pytest.approx(1.936, abs=0.001)
    assert float(loss_law("hoffmann").loss(70e9, 1.4e12)) == pytest.approx(1.936, abs=0.02)
    exponent = jnp.log(loss_law("besiroglu").optimum(1e25)[0] / loss_law("besiroglu").optimum(1e24)[0]) / jnp.log(10.0)
    assert float(exponent) == pytest.approx(0.513, abs=0.001)


def test_batch_laws_at_their_sources_points():
    """Kaplan 2.1e8 at a loss of one nat; Erdil 4e6 at 2e25 flop; Zhang 2,580 sequences of 512 at 24.6e9 tokens."""
    assert float(batch_law("kaplan").critical(1.0, 1.0, 1.0)) == pytest.approx(2.1e8)
    assert float(batch_law("erdil").critical(1e12, 2e25 / 6e12, 2.0)) == pytest.approx(4e6, rel=1e-4)
    zhang = 0.2 * batch_law("zhang").critical(3e8, 24.6e9, 3.0) / 512.0
    assert float(zhang) == pytest.approx(2640.0, rel=0.03)


@pytest.mark.parametrize("name", ["kaplan", "zhang", "bergsma", "deepseek", "step-law", "erdil"])
def test_batches_grow_with_training(name):
    law, loss = batch_law(name), loss_law()
    sizes = [float(law.critical(n, 20.0 * n, loss.loss(n, 20.0 * n))) for n in (1e9, 1e10, 1e11)]
    assert 1e4 < sizes[0] < sizes[1] < sizes[2] < 1e9


def test_shape_penalty_joins_kaplans_pair():
    """6 layers of 4288 and 48 of 1600: losses within 3 %, the middle lower than both."""
    law = shape_law("kaplan")
    ends = [float(law.penalty(4288.0, 6.0)), float(law.penalty(1600.0, 48.0))]
    assert abs(ends[0] - ends[1]) < 0.035
    assert float(law.penalty(64.0 * 24, 24.0)) == 0.0


def test_float32_and_float64_agree():
    law = loss_law()
    single = law.loss(jnp.asarray(1e11, jnp.float32), jnp.asarray(2e12, jnp.float32))
    assert single.dtype == jnp.float32
    assert float(single) == pytest.approx(float(law.loss(1e11, 2e12)), rel=1e-5)


def test_unknown_law_is_refused():
    with pytest.raises(InputError, match="expected one of hoffmann, besiroglu"):
        law_table("loss", "chinchilla")


def test_own_law():
    law = LossLaw(1.0, 100.0, 100.0, 0.5, 0.5)
    assert float(law.loss(1e4, 1e4)) == pytest.approx(3.0)
    assert 0.0 < compute_exponent() < 0.2


@pytest.mark.parametrize(
    ("a", "b", "u", "joint"), [(0.35, 0.37, 0.0, 1.0), (0.35, 0.37, 0.28, 1.0), (0.25, 0.3, 1 / 3, 0.45)]
)
def test_the_time_optimum_grows_by_the_closed_exponent(a, b, u, joint):
    """Tokens of a time fall as N^-(1 - u): N* ~ t^(b / (a + b (1 - u))), against the numerical minimum to 1 %."""
    law, sizes = LossLaw(1.8, 480.0, 2100.0, a, b, joint), np.geomspace(1e6, 1e15, 200_001)
    tokens = np.asarray([1e18, 1e21])
    best = [sizes[np.argmin(law.reducible(sizes, one * sizes ** -(1.0 - u)))] for one in tokens]
    numerical = np.log(best[1] / best[0]) / np.log(tokens[1] / tokens[0])
    assert b / (a + b * (1.0 - u)) == pytest.approx(numerical, rel=0.01)
    told, seen = law.optimum(6.0 * tokens, u)
    np.testing.assert_allclose(told, best, rtol=0.01)
    np.testing.assert_allclose(seen, tokens * told ** -(1.0 - u), rtol=1e-6)
    if u:
        assert b / (a + b) != pytest.approx(numerical, rel=0.01), "the compute optimum grows more slowly"


def test_a_third_of_elasticity_gives_the_measured_growth_on_one_card():
    """Liu 2026 measured N* ~ t^(0.60 +- 0.07); with equal exponents u = 1/3 gives 1 / (2 - u)."""
    small, large = (float(LossLaw(1.8, 480.0, 480.0, 0.35, 0.35).optimum(t, 1 / 3)[0]) for t in (1e19, 1e20))
    assert np.log10(large / small) == pytest.approx(0.60, abs=0.005)


def test_the_best_ratio_of_gemstones_grows_with_the_size():
    law = shape_law("gemstones")
    assert float(law.best_ratio(1e9)) == pytest.approx(40.0)
    assert float(law.best_ratio(1e10) / law.best_ratio(1e9)) == pytest.approx(10.0**law.drift)
    for n_params in (1e8, 1e9, 1e11):
        width = float(law.best_ratio(n_params)) * 32.0
        assert float(law.penalty(width, 32.0, n_params)) == pytest.approx(0.0, abs=1e-12)
    kaplan = shape_law("kaplan")
    assert float(kaplan.penalty(4096.0, 32.0, 1e8)) == float(kaplan.penalty(4096.0, 32.0, 1e12))


@pytest.mark.parametrize("joint", [1.0, 0.5, 0.1])
def test_tokens_to_a_loss_invert_the_law(joint):
    law = LossLaw(1.8172, 477.8, 2143.0, 0.3473, 0.3672, joint)
    tokens = jnp.geomspace(1e9, 1e15, 7)
    losses = law.loss(7e9, tokens)
    # Far out the summand of the tokens is a small part of the reducible loss, of which few digits are left.
    assert np.asarray(law.tokens(7e9, losses))[:4] == pytest.approx(np.asarray(tokens)[:4], rel=1e-6)
    slope = jax.grad(lambda loss: jnp.log(law.tokens(7e9, loss)))(2.3)
    ends = [float(jnp.log(law.tokens(7e9, 2.3 + step))) for step in (1e-4, -1e-4)]
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-3)


def test_no_tokens_reach_the_loss_of_endless_ones():
    law = loss_law()
    least = float(law.loss(7e9, jnp.inf))
    assert np.isnan(float(law.tokens(7e9, least - 1e-3))) and np.isnan(float(law.tokens(7e9, 1.0)))
    assert np.isfinite(float(law.tokens(7e9, least + 1e-3))), "negative control"
    assert float(jax.grad(lambda n: jnp.nan_to_num(law.tokens(n, 1.0)))(7e9)) == 0.0
