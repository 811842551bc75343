"""From a point of the unit cube to a model, a plan and a number of tokens.

Every coordinate is a share of the room that the earlier ones leave, in logarithms (stick-breaking): each point of the
cube then obeys all linear bounds, `dp * tp * pp * cp = n_chips`, `pp * vpp <= L`, `tp <= heads`, `b * m * dp = B`, and
the only constraints left are those on time, loss and memory.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import number, with_fields
from jaxscale._smooth import smooth_min
from jaxscale.designs.relaxed_shape import stretched
from jaxscale.designs.shape_search import TEMPERATURE
from jaxscale.plan.plan import Plan
from jaxscale.workload import Transformer

COORDINATES = ("d_model", "n_layers", "d_ff", "tokens", "tp", "cp", "pp", "batch", "micro_batch_size", "vpp", "ep")
"""What each coordinate decides, in order."""

N_COORDINATES = len(COORDINATES)

LOWEST = {"d_model": 256.0, "n_layers": 2.0, "d_ff": 0.25, "tokens": 1e7}
HIGHEST = {"d_model": 262144.0, "n_layers": 1024.0, "d_ff": 4.0, "tokens": 1e16}
"""Range of the coordinates that nothing else bounds; the MLP ratio relative to the template's [1] or [token]."""

LARGEST_BATCH = 1e12
"""Beyond every critical batch of the shipped laws [token]."""

INTERLEAVING = (1, 2, 3, 4, 6, 8)
"""Virtual stages per chip that are tried; the relaxed number goes up to the largest [1]."""


class Family(eqx.Module):
    """Choices that are not relaxed: one search for each.

    Attributes:
        zero_stage: of 0 to 3 [1].
        recompute_full: 1 where whole layers are recomputed [1].
        smallest_pp: stages at least, 1 or 2 [1].
        largest_pp: stages at most [1].
    """

    zero_stage: Float[ArrayLike, "*batch"]
    recompute_full: Float[ArrayLike, "*batch"]
    smallest_pp: Float[ArrayLike, "*batch"]
    largest_pp: Float[ArrayLike, "*batch"]


KINDS = ((1.0, 1.0, 1.0), (1.0, 2.0, 1e9), (3.0, 1.0, 1.0))
"""ZeRO stage, fewest and most stages: costs have a corner at two stages, so that no family reaches across it."""

FAMILIES = tuple(Family(stage, full, low, high) for full in (0.0, 1.0) for stage, low, high in KINDS)
"""ZeRO 1 without and with a pipeline, and ZeRO 3 without; each with and without recomputation."""


def families_for(n_chips: float) -> tuple[Family, ...]:
    """The families that a number of chips has room for."""
    return tuple(family for family in FAMILIES if number(family.smallest_pp) <= n_chips)


class Design(NamedTuple):
    """A model, how it is trained, and for how long.

    Attributes:
        model: the transformer.
        plan: degrees and batch.
        small_batch_tokens: tokens that the run would need with small batches [token].
    """

    model: Transformer
    plan: Plan
    small_batch_tokens: Array


def _between(share: Array, name: str) -> Array:
    low, high = jnp.log(LOWEST[name]), jnp.log(HIGHEST[name])
    return jnp.exp(low + share * (high - low))


def design_at(
    point: Float[Array, " coordinate"], template: Transformer, family: Family, n_chips: ArrayLike, head_dim: ArrayLike
) -> Design:
    """The design of a point of the unit cube.

    Args:
        point: shares of the room, in the order of `COORDINATES` [1].
        template: proportions that are kept: heads, experts, vocabulary, sequence length.
        family: sharding and recomputation.
        n_chips: all of which the plan uses [1].
        head_dim: width of a head [1].

    Returns:
        The continuous design.
    """
    share = {name: point[index] for index, name in enumerate(COORDINATES)}
    d_model, n_layers = _between(share["d_model"], "d_model"), _between(share["n_layers"], "n_layers")
    model = stretched(template, d_model, n_layers, head_dim)
    ratio = _between(share["d_ff"], "d_ff")
    model = with_fields(model, {"d_ff": model.d_ff * ratio, "d_ff_expert": model.d_ff_expert * ratio})
    room = jnp.log(n_chips)
    split = splits(share, family, model, jnp.log(d_model / head_dim), room)
    replica_batch = share["batch"] * (jnp.log(LARGEST_BATCH / model.seq_len) - split["dp"])
    plan = plan_with(share, split, replica_batch, family)
    return Design(model, plan, _between(share["tokens"], "tokens"))


def splits(
    share: dict[str, Array], family: Family, model: Transformer, log_heads: ArrayLike, room: Array
) -> dict[str, Array]:
    """Logs of the degrees tp, cp, pp, vpp and ep, each a share of the room that the earlier ones leave; and of dp."""
    fewest = jnp.log(family.smallest_pp)
    tp = share["tp"] * _least(room - fewest, log_heads)
    cp = share["cp"] * _least(room - fewest - tp, jnp.log(model.seq_len / 2.0))
    layers = jnp.log(model.n_layers) - fewest
    stages = _least(_least(room - fewest - tp - cp, layers), jnp.log(family.largest_pp) - fewest)
    pp = fewest + share["pp"] * stages
    vpp = share["vpp"] * _least(jnp.log(model.n_layers) - pp, jnp.log(INTERLEAVING[-1] * 1.0))
    ep = share["ep"] * _least(jnp.log(model.n_experts), room - pp)
    dp = room - tp - cp - pp
    return {"tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "ep": ep, "dp": dp, "shard_group": dp}


def plan_with(share: dict[str, Array], split: dict[str, Array], replica_batch: Array, family: Family) -> Plan:
    """The plan of logs: fused attention, 16-bit matmuls, sequence parallelism.

    Args:
        share: of which the microbatch's is read [1].
        split: as `splits` returned them [1].
        replica_batch: log of the sequences of a step and replica [1].
        family: sharding and recomputation.

    Returns:
        The plan, in numbers.
    """
    micro_batch = share["micro_batch_size"] * replica_batch
    logs = {**split, "micro_batch_size": micro_batch, "n_microbatches": replica_batch - micro_batch}
    changes = {name: jnp.exp(log) for name, log in logs.items()}
    changes |= {"zero_stage": family.zero_stage, "recompute_full": family.recompute_full}
    return with_fields(Plan(sequence_parallel=True), changes)


def _least(first: ArrayLike, second: ArrayLike) -> Array:
    return smooth_min(jnp.asarray(first), jnp.asarray(second), TEMPERATURE)
