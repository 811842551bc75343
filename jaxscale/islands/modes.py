"""Modes of joint training on islands, and the throughput of a fleet in each mode.

| mode | traffic over the links |
|---|---|
| `data-parallel` | gradients of every step, concurrent with the last backward pass |
| `pipeline` | activations and their gradients at each cut of the layers |
| `local-updates` | parameter differences every H steps (DiLoCo) |
| `streaming` | fragments of the differences, coarsely rounded, while steps continue (Streaming DiLoCo) |
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.base.smooth import larger, smaller
from jaxscale.islands.fleet import Links
from jaxscale.islands.island_plans import Pace, best_shares
from jaxscale.islands.pipeline_split import divided_at_will, pipeline_time
from jaxscale.islands.round_time import (
    Loose,
    fleet_round,
    local_updates,
    send_times,
    streaming,
    synchronous,
    tokens_per_second,
)

MODES = ("data-parallel", "pipeline", "local-updates", "streaming")
"""Names of the modes, in the order of the tables."""

LOOSE_MODES = ("local-updates", "streaming")
"""Modes in which islands train apart for H steps."""

WHOLE_MODES = ("data-parallel", *LOOSE_MODES)
"""Modes with all layers on each island."""

LOOSE_FIELDS = ("inner_steps", "fragments", "bits", "hidden_steps", "hidden_backward")
"""Fields of a loose plan that differ between modes."""

LAYERS_PER_FRAGMENT = 3.0
"""Layers per fragment of Streaming DiLoCo (arXiv 2501.18512, section 3) [1]."""

STREAMED_BITS = 4.0
"""Bits per parameter difference in Streaming DiLoCo (arXiv 2501.18512, section 2.3) [bit]."""

ACTIVATION_BYTES = 2.0
"""Bytes of an activation between stages, 16 bits [byte]."""


class IslandJob(eqx.Module):
    """Training job of a model on a fleet.

    Attributes:
        pace: step-time functions of the islands.
        links: links between islands, numbered in the order of the ring or chain.
        n_params: N, parameters of the model [1].
        n_layers: L, layers of the model [1].
        d_model: d, width of the model [1].
        sequences: B, batch of all islands together [sequence].
    """

    pace: Pace
    links: Links
    n_params: Number = eqx.field(converter=as_float)
    n_layers: Number = eqx.field(converter=as_float)
    d_model: Number = eqx.field(converter=as_float)
    sequences: Number = eqx.field(converter=as_float)

    @property
    def tokens(self) -> Array:
        """Tokens per step of all islands together [token]."""
        return jnp.asarray(self.sequences) * jnp.asarray(self.pace.seq_len)


def loose_plan(job: IslandJob, mode: str, inner_steps: ArrayLike) -> Loose:
    """Exchange plan of a mode with all layers on each island, with batch shares for an equal finish.

    Args:
        mode: one of `MODES` except `pipeline`.
        inner_steps: H, steps between two exchanges; unused by data parallelism [1].
    """
    shares = best_shares(job.pace, job.sequences)
    if mode == "data-parallel":
        return synchronous(shares)
    if mode == "local-updates":
        return local_updates(shares, inner_steps)
    # At most one fragment per step between two exchanges of a parameter.
    fragments = smaller(larger(job.n_layers / LAYERS_PER_FRAGMENT, 1.0), inner_steps)
    return streaming(shares, inner_steps, fragments, bits=STREAMED_BITS)


def pipeline_microbatch(job: IslandJob) -> Array:
    """Microbatch of a pipeline over islands: the largest of any island, at most the batch [sequence]."""
    return smaller(jnp.max(jnp.asarray(job.pace.microbatch), axis=-1), job.sequences)


def pipeline_step(job: IslandJob, layer_share: Float[ArrayLike, "*batch island"]) -> Array:
    """Step time of a pipeline over the islands, in the order of the links [s].

    Args:
        layer_share: layer share of each island, with sum 1 [1], [island].

    Returns:
        Time, with step offsets proportional to the layer share.
    """
    size, share = pipeline_microbatch(job), jnp.asarray(layer_share)
    stages = share * jnp.asarray(job.pace.seconds_per_sequence) * size
    hops = send_times(ACTIVATION_BYTES * job.d_model * size * job.pace.seq_len, job.links)
    # Stages work side by side: the largest offset counts.
    offset = jnp.max(share * job.pace.offset, axis=-1)
    return offset + pipeline_time(stages, hops.moving, job.sequences / size, hops.waiting)


def mode_speed(job: IslandJob, mode: str, inner_steps: ArrayLike = 1.0) -> Array:
    """Throughput of a fleet in a mode [token/s].

    Args:
        mode: one of `MODES`.
        inner_steps: H, steps between two exchanges, for the modes `LOOSE_MODES` [1].

    Returns:
        The throughput; for a pipeline with divisible layers.
    """
    if mode == "pipeline":
        whole = jnp.asarray(job.pace.seconds_per_sequence) * pipeline_microbatch(job)
        _, share = divided_at_will(whole, job.sequences / pipeline_microbatch(job))
        return job.tokens / pipeline_step(job, share)
    plan = loose_plan(job, mode, inner_steps)
    time = fleet_round(job.pace, job.links, plan, n_params=job.n_params, sequences=job.sequences)
    return tokens_per_second(job.pace, plan, time, job.sequences)


def speeds(job: IslandJob, inner_steps: Float[ArrayLike, " period"]) -> Float[Array, "mode period"]:
    """Throughput of a fleet in every mode, for several numbers of inner steps [token/s], [mode, period].

    Args:
        inner_steps: H, steps between two exchanges [1], [period].

    Returns:
        Throughput; constant in H for modes without inner steps.
    """
    periods = jnp.asarray(inner_steps)
    plans = {mode: loose_plan(job, mode, periods) for mode in WHOLE_MODES}
    fields = {name: [getattr(plan, name) for plan in plans.values()] for name in LOOSE_FIELDS}
    stacked = {
        name: jnp.stack([jnp.broadcast_to(value, periods.shape) for value in values]) for name, values in fields.items()
    }

    def speed(changes: dict[str, Array]) -> Array:
        plan = with_fields(plans[WHOLE_MODES[0]], changes)
        time = fleet_round(job.pace, job.links, plan, n_params=job.n_params, sequences=job.sequences)
        return tokens_per_second(job.pace, plan, time, job.sequences)

    # All modes share one trace of the round.
    table = jax.vmap(jax.vmap(speed))(stacked)
    rows: dict[str, Array] = dict(zip(WHOLE_MODES, table, strict=True))
    rows["pipeline"] = jnp.broadcast_to(mode_speed(job, "pipeline"), periods.shape)
    return jnp.stack([rows[mode] for mode in MODES])


@small_jit
def survey_fleets(jobs: IslandJob, inner_steps: Float[ArrayLike, " period"]) -> Float[Array, "fleet mode period"]:
    """Throughput of many fleets in every mode, in a single `vmap` [token/s], [fleet, mode, period].

    Args:
        jobs: models and fleets with equal numbers of islands; every leaf has the leading axis [fleet].
        inner_steps: H, steps between two exchanges [1], [period].
    """
    return jax.vmap(lambda job: speeds(job, inner_steps))(jobs)
