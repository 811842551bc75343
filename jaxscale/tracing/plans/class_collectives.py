r"""Collectives of a plan over dimension classes: what each moves, among how many chips, how often.

| class that is split | collective |
|---|---|
| data | all-reduce of gradients; with sharded weights a gather of each weight per use, a scatter of its gradient |
| tensor | all-reduce of each value that is a partial sum over it |
| turns of a loop | a send of what the loop carries between stages |
| tables | all-to-all of pooled look-ups both ways, or scatter and gather of them |
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.plans.class_plan import ClassPlan, local_sizes
from jaxscale.tracing.workload_tables import Terms


class Exchange(NamedTuple):
    """One kind of exchange of a step.

    Attributes:
        volume: bytes that all of its collectives move, as each counts them: the reduced or gathered size, or what a
            chip sends [byte].
        count: collectives of a step [1].
    """

    volume: Array
    count: Array


class ClassExchanges(NamedTuple):
    """Exchanges of one chip in one step, by what asks for them.

    Attributes:
        gradients: all-reduce of gradients over chips that hold the same weights; of shards between copies.
        scatters: scatters of gradients to the chips that share a copy.
        gathers: gathers of weights from them.
        statistics: all-reduce of sums over the batch that are no gradients.
        tensor_forward: all-reduce of partial sums of the forward pass, and of what it does again.
        tensor_backward: all-reduce of partial sums of the backward pass.
        look_ups: all-to-all of pooled look-ups, both ways.
        partial_look_ups: scatter of partial look-ups, and gather of their gradients.
    """

    gradients: Exchange
    scatters: Exchange
    gathers: Exchange
    statistics: Exchange
    tensor_forward: Exchange
    tensor_backward: Exchange
    look_ups: Exchange
    partial_look_ups: Exchange


def has_role(work: ClassedProgram, *roles: str) -> Bool[np.ndarray, " sum"]:
    """Which sums of a workload have one of some roles."""
    return np.array([role in roles for role in work.tables.sum_roles], bool)


def class_exchanges(work: ClassedProgram, plan: ClassPlan) -> ClassExchanges:
    """Exchanges of one chip in one step.

    Args:
        work: the workload, of the whole batch.
        plan: degrees.

    Returns:
        Volumes [byte] and counts [1]; without data parallelism those of the data are nothing, and so on.
    """
    tables, sizes = work.tables, local_sizes(work, plan)
    n_sums, n_weights = len(tables.sum_roles), len(tables.weight_names)
    volumes = per_row(tables.sums, sizes, n_sums)
    counts = per_row(tables.sum_counts, sizes, n_sums)
    members = np.zeros((len(tables.sum_classes), len(tables.class_names)))
    for row, classes in enumerate(tables.sum_classes):
        members[row, list(classes)] = 1.0
    over_batch = jnp.asarray(members[:, plan.data_class])
    over_tensor = jnp.minimum(jnp.asarray(members) @ jnp.asarray(plan.split), 1.0)
    backward = np.array([phase == "backward" for phase in tables.sum_phases], bool)
    m = plan.n_microbatches

    def of(mask: Array, times: Array | float = m) -> Exchange:
        return Exchange(jnp.sum(volumes * mask) * times, jnp.sum(counts * mask) * times)

    sharded = (plan.shard > 1.0) * 1.0
    whole = 1.0 - plan.tables_by_table - plan.tables_by_row
    once = has_role(work, "gradient") + whole * has_role(work, "table")
    gradients = of(over_batch * once, 1.0)
    copies = jnp.where(plan.shard > 1.0, (plan.data > plan.shard) / plan.shard, (plan.data > 1.0) * 1.0)
    each = of(over_batch * has_role(work, "gradient"), m)
    weights = local_weight_bytes(work, sizes, read=True) * tables.weight_gathers
    turns = per_row(tables.weight_turns, sizes, n_weights) * tables.weight_gathers
    split_data, split_tensor = (plan.data > 1.0) * 1.0, (plan.tensor > 1.0) * 1.0
    several = (is_table(work) & (plan.data > 1.0)) * 1.0
    pooled = per_row(tables.pooled, sizes, n_weights) * several
    products = ~is_table(work)
    return ClassExchanges(
        gradients=scaled(gradients, copies),
        scatters=scaled(each, sharded),
        gathers=Exchange(jnp.sum(weights * products) * m * sharded, jnp.sum(turns * products) * m * sharded),
        statistics=scaled(of(over_batch * has_role(work, "statistic")), split_data * plan.joint_statistics),
        tensor_forward=scaled(of(over_tensor * has_role(work, "activation", "statistic") * ~backward), split_tensor),
        tensor_backward=scaled(of(over_tensor * has_role(work, "activation", "statistic") * backward), split_tensor),
        look_ups=scaled(
            Exchange(2.0 * jnp.sum(pooled) * m, 2.0 * m + 0.0 * jnp.sum(pooled)), plan.tables_by_table * split_data
        ),
        partial_look_ups=scaled(
            Exchange(2.0 * jnp.sum(pooled) * plan.data * m, 2.0 * m * jnp.sum(several)), plan.tables_by_row
        ),
    )


def scaled(exchange: Exchange, share: Array | float) -> Exchange:
    """A share of the volume of an exchange, and its collectives where there is any."""
    return Exchange(exchange.volume * share, exchange.count * jnp.minimum(jnp.ceil(jnp.asarray(share)), 1.0))


def per_row(terms: Terms, sizes: Array, rows: int) -> Array:
    """Sum of the terms of each row, nothing where it has none."""
    return jnp.zeros(rows).at[terms.row].add(terms.values(sizes))


def is_table(work: ClassedProgram) -> Bool[np.ndarray, " weight"]:
    """Which weights are tables: read by look-ups alone, and updated where they were read."""
    mask = np.zeros(len(work.tables.weight_names), bool)
    mask[work.tables.pooled.row] = True
    return mask & bool(has_role(work, "table").any())


def local_weight_bytes(work: ClassedProgram, sizes: Array, read: bool = False) -> Array:
    """Bytes of each array of weights on one chip: as stored, or as products read it [byte]."""
    widths = work.tables.weight_widths if read else work.tables.weight_bytes
    return per_row(work.tables.weights, sizes, len(widths)) * widths
