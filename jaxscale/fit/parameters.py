r"""From unconstrained parameters to the coefficients of each run.

Each coefficient $c_p$ lives in an unconstrained coordinate $u_p$ (log for positive ones, logit for fractions). A run of
levels $\ell$ (its source, chip, precision, ...) has

$$ u_{ip} = \bar u_p + s_p z_p + \sum_j M_{ij} \, [p = p_j] \, \tau_j e_j , $$

$\bar u_p, s_p$ the prior's median and spread, $z_p$ the pooled parameters, $e_j$ one effect of one level on one coefficient,
all with standard normal priors: this is the shrinkage towards the pooled value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.coefficients import Coefficients, names, priors

EFFECT_SPREAD: Mapping[str, float] = {
    "source": 0.7,
    "framework": 0.7,
    "gpu": 0.3,
    "precision": 0.3,
    "attention_kernel": 0.3,
    "fused_norm": 0.3,
    "release": 1.0,
}
"""Standard deviation of a level's effect, in units of the coefficient's own prior spread [1]."""


@dataclass(frozen=True)
class Effect:
    """One level's deviation of one coefficient from the pooled value.

    Attributes:
        kind: what the level is a level of: source, gpu, precision, ...
        level: its name, e.g. `h100-80gb`.
        coefficient: which coefficient it moves.
    """

    kind: str
    level: str
    coefficient: str


def find_effects(levels: Mapping[str, Sequence[str]], kinds: Sequence[str]) -> tuple[Effect, ...]:
    """Effects that rows can identify: levels of the given kinds, where a kind has at least two of them.

    Args:
        levels: level name of every row, by kind.
        kinds: kinds of level to give effects.

    Returns:
        Effects in a fixed order.
    """
    table = priors()
    found = []
    for kind in kinds:
        present = sorted({level for level in levels[kind] if level})
        if len(present) < 2:
            continue
        found += [Effect(kind, level, c) for level in present for c in names() if kind in table[c].effects]
    return tuple(found)


def membership(levels: Mapping[str, Sequence[str]], effects: Sequence[Effect]) -> np.ndarray:
    """Which effects apply to which rows: 1 where the row has the effect's level.

    Returns:
        Array [n_rows, n_effects].
    """
    columns = {kind: np.asarray(list(values), dtype=object) for kind, values in levels.items()}
    n_rows = len(next(iter(columns.values())))
    matrix = np.zeros((n_rows, len(effects)))
    for index, effect in enumerate(effects):
        matrix[:, index] = columns[effect.kind] == effect.level
    return matrix


class Parametrisation(eqx.Module):
    """Linear map from standardised parameters to the unconstrained coefficients of each row.

    Attributes:
        centre: prior medians, unconstrained [coefficient].
        spread: prior spreads [coefficient].
        column: coefficient that each effect moves [effect].
        scale: prior standard deviation of each effect [effect].
        is_fraction: 1 where the coefficient is a fraction [coefficient].
    """

    centre: Float[Array, " coefficient"]
    spread: Float[Array, " coefficient"]
    column: tuple[int, ...] = eqx.field(static=True)
    scale: Float[Array, " effect"]
    is_fraction: Float[Array, " coefficient"]

    @property
    def n_parameters(self) -> int:
        """Pooled parameters and effects [1]."""
        return self.centre.shape[0] + self.scale.shape[0]

    def rows(self, parameters: Float[Array, " parameter"], members: Float[Array, "row effect"]) -> Array:
        """Unconstrained coefficients of each row [row, coefficient]."""
        n = self.centre.shape[0]
        pooled = self.centre + self.spread * parameters[:n]
        moved = members * (self.scale * parameters[n:])
        return pooled + jnp.zeros((members.shape[0], n), moved.dtype).at[:, np.asarray(self.column, dtype=int)].add(
            moved
        )

    def row_jacobian(self, gradient: Float[Array, "row coefficient"], members: Float[Array, "row effect"]) -> Array:
        """Chain rule: derivative of a row's value by each parameter, given that by its coefficients [row, parameter]."""
        return jnp.concatenate(
            [gradient * self.spread, gradient[:, np.asarray(self.column, dtype=int)] * members * self.scale], axis=1
        )

    def constrain(self, unconstrained: Float[Array, "... coefficient"]) -> Coefficients:
        """Coefficients in their own units: exp, or the logistic function for fractions."""
        logistic = 1.0 / (1.0 + jnp.exp(-unconstrained))
        values = jnp.where(self.is_fraction > 0.5, logistic, jnp.exp(jnp.minimum(unconstrained, 60.0)))
        return Coefficients(*jnp.moveaxis(values, -1, 0))


def unconstrain(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Coordinates of coefficient values, in field order: log, or logit for fractions [coefficient]."""
    kinds = [prior.kind for prior in priors().values()]
    pairs = zip(np.asarray(values, dtype=float), kinds, strict=True)
    return np.asarray([np.log(v / (1.0 - v)) if kind == "fraction" else np.log(v) for v, kind in pairs])


def parametrisation(effects: Sequence[Effect], centre: np.ndarray | None = None) -> Parametrisation:
    """Parametrisation of the pooled coefficients and some effects.

    Args:
        effects: levels that deviate.
        centre: unconstrained centre of the prior; the table's medians where None [coefficient].

    Returns:
        The linear map with its prior scales.
    """
    table = priors()
    order = list(names())
    medians = unconstrain([prior.median for prior in table.values()])
    spread = np.asarray([prior.spread for prior in table.values()])
    column = tuple(order.index(effect.coefficient) for effect in effects)
    scale = np.asarray([EFFECT_SPREAD[e.kind] * table[e.coefficient].spread for e in effects], dtype=float)
    return Parametrisation(
        centre=jnp.asarray(medians if centre is None else centre),
        spread=jnp.asarray(spread),
        column=column,
        scale=jnp.asarray(scale),
        is_fraction=jnp.asarray([float(prior.kind == "fraction") for prior in table.values()]),
    )
