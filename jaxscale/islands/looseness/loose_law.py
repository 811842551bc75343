r"""Law of looseness: rise of the loss when M replicas train apart for H steps at a time.

$$ L = L_\text{law}(N, D_0)\,(1 + \rho), \qquad
   \rho = c \left(\frac{N}{10^9}\right)^{-g} (M - 1)^p \left(\frac{H}{30}\right)^h - \mu + \sigma\,\frac{\tau}{H} $$

with a gain $\mu$ of the outer momentum, which a single replica has too, and a rise with the share of H that hides an
exchange. The critical batch grows by $r(M) = r_1 M^b$. Data parallelism has none of it. Numbers: `data/islands.toml`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, with_fields
from jaxscale.base.fields import number_field
from jaxscale.calibration.base_record import NUMBER, Record
from jaxscale.calibration.spec import Spec, spec_from

TINY_REPLICAS = 1e-9
"""Added to M - 1, so that slopes are finite at one replica [1]."""


class LooseLaw(eqx.Module):
    """Rise of the loss and growth of the critical batch with looseness.

    Attributes:
        coefficient: c, rise of two replicas of 1e9 parameters at H = 30 [1].
        params_exponent: g [1].
        replicas_exponent: p [1].
        steps_exponent: h [1].
        outer_gain: mu, gain of the outer momentum [1].
        hidden_rise: sigma, rise where a whole period hides an exchange [1].
        batch_ratio: r_1, critical batch of one replica over that of data parallelism [1].
        batch_exponent: b [1].
    """

    coefficient: Number = number_field()
    params_exponent: Number = number_field()
    replicas_exponent: Number = number_field()
    steps_exponent: Number = number_field()
    outer_gain: Number = number_field()
    hidden_rise: Number = number_field(0.0)
    batch_ratio: Number = number_field(1.0)
    batch_exponent: Number = number_field(0.0)

    def over_one_replica(self, n_params: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike) -> Array:
        """Relative rise of the loss over that of one replica with the same outer momentum [1]."""
        size = jnp.power(jnp.asarray(n_params) / 1e9, -jnp.asarray(self.params_exponent))
        apart = jnp.power(jnp.asarray(replicas) - 1.0 + TINY_REPLICAS, self.replicas_exponent)
        period = jnp.power(jnp.asarray(inner_steps) / 30.0, self.steps_exponent)
        return self.coefficient * size * apart * period

    def rise(
        self, n_params: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike, hidden_share: ArrayLike = 0.0
    ) -> Array:
        """Relative rise of the loss over data parallelism; negative where the outer momentum gains more [1].

        Args:
            n_params: N [1].
            replicas: M [1].
            inner_steps: H [1].
            hidden_share: share of H during which an exchange is under way [1].

        Returns:
            The rise.
        """
        apart = self.over_one_replica(n_params, replicas, inner_steps)
        return apart - self.outer_gain + self.hidden_rise * jnp.asarray(hidden_share)

    def looseness_alone(self) -> "LooseLaw":
        """The law without the outer momentum's own gain and batch, which a single replica has as well."""
        # Numbers of the host stay there: an eager operation of JAX would compile a program.
        zero, one = 0.0 * self.outer_gain, 1.0 + 0.0 * self.batch_ratio
        return with_fields(self, {"outer_gain": zero, "batch_ratio": one})

    def batch_growth(self, replicas: ArrayLike) -> Array:
        """Critical batch of M replicas together over that of data parallelism, r [1]."""
        return self.batch_ratio * jnp.power(jnp.asarray(replicas), self.batch_exponent)


@dataclass(frozen=True)
class LooseFit(Record):
    """A fitted law of looseness.

    Attributes:
        rms: root of the mean squared miss of the rise [1].
    """

    rms: float = 0.0

    tables = {**Record.tables, "rms": ("rms", NUMBER)}

    @classmethod
    @functools.cache
    def spec(cls) -> Spec:
        """Numbers of the law of looseness, as shipped, and how far they are uncertain."""
        return spec_from("islands.toml", LooseLaw.__dataclass_fields__, table="looseness")

    @property
    def law(self) -> LooseLaw:
        """The law at its best numbers."""
        return LooseLaw(**self.centre)

    @property
    def deviation(self) -> Mapping[str, float]:
        """Standard deviation of each fitted number, of the coefficient that of its logarithm; 0 where it was given."""
        return self.spreads["centre"]


def _shipped() -> LooseFit:
    """The law of looseness as published runs tell."""
    priors = LooseFit.spec().priors
    spreads = {name: prior.spread for name, prior in priors.items() if prior.spread > 0.0}
    return LooseFit("shipped", LooseFit.spec().medians, spreads={"centre": spreads})


def loose_law() -> LooseLaw:
    """The law of looseness as shipped."""
    return _shipped().law


def loose_law_samples(count: int = 200, seed: int = 0) -> LooseLaw:
    """Laws drawn from the uncertainty of the shipped one, every leaf [sample].

    Args:
        count: number of samples [1].
        seed: of the draws.

    Returns:
        The laws; numbers without a stated spread are the same in all of them.
    """
    return LooseLaw(**_shipped().draws(count, seed))
