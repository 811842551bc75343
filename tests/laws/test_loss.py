"""Laws of the loss: closed forms, published values, inverses."""

import jax
import jax.numpy as jnp
import pytest

from jaxscale.errors import InputError
from jaxscale.laws.loss import LossLaw, batch_law, compute_exponent, law_table, loss_law, shape_law


@pytest.mark.parametrize("name", ["hoffmann", "besiroglu"])
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
    law = shape_law()
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
