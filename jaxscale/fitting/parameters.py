r"""Linear map from standardised parameters to the coefficients of each run.

Each coefficient has a coordinate u (log for positive coefficients, logit for fractions). Run i, with
levels of several factors (source, chip, precision, ...), has

$$ u_{ip} = u^0_{ip} + s_p z_p + \sum_j M_{ij} \, [p = p_j] \, \tau_j e_j $$

with the coordinate $u^0$ before the fit, the prior's spread $s_p$, the pooled parameters $z_p$, the membership $M_{ij}$
of run i in the level of effect j, and the effect $e_j$ on coefficient $p_j$ with the prior scale $\tau_j$. z has a
standard normal prior, e a heavy-tailed Student's t prior (`objective`), for shrinkage towards the pooled value.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxscale.calibration.coefficients import CENTRE_KINDS, OFFSET_KINDS, names, priors
from jaxscale.calibration.levels import Levels, is_apart, table_of
from jaxscale.runs.defaults import default_for

OFFSET_SPREAD: Mapping[str, float] = {"source": 0.7, "mixture": 4.0, "local_shape": 5.0}
"""Scale of the effect of a level of a known stack, in units of the coefficient's `spread_of_levels`, by kind of level
[1].

Dense models share their kernels; each mixture has its own routing and its own recipes.
"""


@dataclass(frozen=True)
class Stage:
    """Stage of a calibration: factors with effects, and the prior of the effects.

    Attributes:
        kinds: factors in order of precedence; of two levels with equal rows, the first keeps the effect.
        is_centre: whether the effects form the centre, the prediction for unknown stacks. Effects of the centre are
            Gaussian, so that the centre is the mean of the stacks; offsets of known stacks have heavy tails, so that
            a few deviant stacks do not move the centre.
    """

    kinds: tuple[str, ...]
    is_centre: bool

    def spread(self, kind: str, level: str, coefficient: str) -> float:
        """Prior standard deviation (or scale) of an effect on log or logit of a coefficient; 0 if no effect [1]."""
        prior = priors()[coefficient]
        if self.is_centre:
            return prior.levels.get(kind, 0.0)
        return offset_spread(kind, level) * prior.spread_of_levels if kind in prior.effects else 0.0


CENTRE, OFFSETS = Stage(CENTRE_KINDS, True), Stage(OFFSET_KINDS, False)

MIN_RUNS_OF_SHAPE = 24
"""Minimum number of runs of a local shape for an effect [1]."""

MIN_RUNS_OF_LEVEL = 8
"""Minimum number of runs of a stack or chip for effects beyond its first coefficient [1]."""

PACE = "layer_time_factor"
"""Coefficient best identified by few runs of a new stack."""

FIRST = {"stack": PACE, "source": PACE, "gpu": "matmul_efficiency"}
"""First coefficient with an effect, by kind of level."""

FEW_RUNS = 60
"""Number of runs up to which the data alone cannot override a wrong tightness [1]."""

EFFECT_BUCKET = 64
"""Effects are padded to multiples of the bucket, so that few shapes of a solver's step are compiled [1]."""


@dataclass(frozen=True)
class Effect:
    """Deviation of a coefficient from the pooled value for the runs of a level.

    Attributes:
        kind: factor of the level: source, gpu, precision, ...
        level: name of the level, e.g. `h100-80gb`.
        coefficient: name of the coefficient.
    """

    kind: str
    level: str
    coefficient: str


def find_effects(levels: Levels, scope: np.ndarray, stage: Stage = OFFSETS) -> tuple[Effect, ...]:
    """Effects of levels that the runs can identify.

    A factor counts if at least two levels occur. A level gets effects on coefficients to which some of the level's
    rows are sensitive; of two factors with a level of equal rows, the first factor keeps the effect.

    Args:
        levels: level of every row by factor.
        scope: whether a row is sensitive to a coefficient [row, coefficient].
        stage: stage of the calibration.

    Returns:
        Effects in a fixed order.
    """
    found: list[Effect] = []
    taken: set[tuple[str, bytes]] = set()
    for kind in stage.kinds:
        least = MIN_RUNS_OF_SHAPE if kind == "local_shape" else 1
        column = levels.column(kind)
        present = sorted(level for level, count in Counter(column.tolist()).items() if count >= least)
        # A single level is no contrast: the pooled value has the effect.
        for level in present if len(present) > 1 else []:
            rows = column == level
            for index, name in enumerate(names()):
                place = (name, rows.tobytes())
                # Few rows of a level tell the first coefficient alone.
                is_few = FIRST.get(kind, name) != name and tells_little(kind, level, int(np.sum(rows)))
                moves = level and stage.spread(kind, level, name) > 0.0 and not is_few
                # Two kinds with equal rows cannot be told apart.
                if moves and scope[rows, index].any() and place not in taken:
                    taken.add(place)
                    found.append(Effect(kind, level, name))
    return tuple(found)


def tells_little(kind: str, level: str, n_runs: int) -> bool:
    """Whether a level has an effect only on the first coefficient, `FIRST`: few runs, or single runs of many users."""
    is_scattered = kind in ("stack", "source") and bool(default_for("pace_alone", None, table_of(level)))
    return is_scattered or n_runs < MIN_RUNS_OF_LEVEL


def membership(levels: Levels, effects: Sequence[Effect]) -> np.ndarray:
    """Membership matrix: 1 if the row has the level of the effect, else 0; zero columns as padding.

    Returns:
        Array [row, effect].
    """
    matrix = np.zeros((len(levels), padded_count(len(effects))))
    for index, effect in enumerate(effects):
        matrix[:, index] = levels.has(partial(eq, effect.level), effect.kind)
    return matrix


def padded_count(count: int) -> int:
    """Number of effects rounded up to a multiple of `EFFECT_BUCKET`, at least one bucket."""
    return max(-(-count // EFFECT_BUCKET), 1) * EFFECT_BUCKET


class Parametrisation(eqx.Module):
    """Linear map from standardised parameters to log or logit of the coefficients of each row.

    Attributes:
        spread: prior spread of each coefficient [coefficient].
        column: index of the coefficient of each effect [effect].
        scale: scale of the prior of each effect; 0 for padding [effect].
        towards_exposed: change of the parameters that makes cost terms hidden by overlap visible; 0 for all others
            [parameter].
    """

    spread: Float[Array, " coefficient"]
    column: Int[Array, " effect"]
    scale: Float[Array, " effect"]
    towards_exposed: Float[Array, " parameter"]

    @property
    def n_parameters(self) -> int:
        """Number of pooled parameters and effects, padding included [1]."""
        return self.spread.shape[0] + self.scale.shape[0]

    @property
    def _moves(self) -> Float[Array, "coefficient effect"]:
        """Scale of each effect at its coefficient, else 0 [coefficient, effect]."""
        return self.scale * jax.nn.one_hot(self.column, self.spread.shape[0], dtype=self.scale.dtype, axis=0)

    def rows(
        self,
        parameters: Float[Array, " parameter"],
        base: Float[Array, "row coefficient"],
        members: Float[Array, "row effect"],
    ) -> Array:
        """Log or logit of the coefficients of each row [row, coefficient]."""
        n = self.spread.shape[0]
        # Products with matrices of zeros and ones are many times faster on a CPU than scatters and gathers.
        return base + self.spread * parameters[:n] + members @ (self._moves * parameters[n:]).T

    def row_jacobian(self, gradient: Float[Array, "row coefficient"], members: Float[Array, "row effect"]) -> Array:
        """Derivative of a value of each row by each parameter, from `gradient` by the coefficients [row, parameter]."""
        # (row, effect)
        by_effect = (gradient @ self._moves) * members
        return jnp.concatenate([gradient * self.spread, by_effect], axis=1)


def offset_spread(kind: str, level: str) -> float:
    """Prior scale of the offsets of a level, in units of each coefficient's `spread_of_levels` [1].

    A source set apart from a software stack takes the scale stated for the table, if any.
    """
    usual = OFFSET_SPREAD[kind]
    if kind == "source" and is_apart(level):
        # Wide where the measurement is faulty: the runs do not pull the pool.
        return default_for("apart_spread", None, table_of(level)) or usual
    return usual


def parametrisation(effects: Sequence[Effect], stage: Stage = OFFSETS) -> Parametrisation:
    """Linear map of pooled coefficients and effects, with the prior scales.

    Args:
        effects: effects of levels.
        stage: stage of the calibration.

    Returns:
        The linear map.
    """
    table, order = priors(), list(names())
    padding = [0] * (padded_count(len(effects)) - len(effects))
    scale = [stage.spread(e.kind, e.level, e.coefficient) for e in effects]
    return Parametrisation(
        spread=jnp.asarray([prior.spread for prior in table.values()]),
        column=jnp.asarray([order.index(e.coefficient) for e in effects] + padding, dtype=int),
        scale=jnp.asarray(scale + [0.0] * len(padding)),
        towards_exposed=jnp.asarray(exposing_changes(effects, scale) + [0.0] * len(padding)),
    )


def exposing_changes(effects: Sequence[Effect], scale: Sequence[float]) -> list[float]:
    """Changes of the parameters that make cost terms hidden by overlap visible, standardised [parameter].

    Changes have the size of typical differences between levels, in the effect of each source, or in the pooled
    parameter for a coefficient without effects by source.
    """
    sign = {"": 0.0, "small": 1.0, "large": -1.0}
    change = {name: sign[prior.hides_where] * prior.spread_of_levels for name, prior in priors().items()}
    stacks = ("source", "stack")
    by_source = {effect.coefficient for effect in effects if effect.kind in stacks}
    pooled = [0.0 if name in by_source else change[name] / prior.spread for name, prior in priors().items()]
    # A term may stay hidden in a source and show in a second source.
    own = [change[e.coefficient] / s if e.kind in stacks else 0.0 for e, s in zip(effects, scale, strict=True)]
    return pooled + own
