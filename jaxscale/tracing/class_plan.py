"""Parallel plans of traced workloads over dimension classes, with the collectives of each plan.

| split class | collective |
|---|---|
| data | all-reduce of gradients; with sharded weights an all-gather per use and a reduce-scatter of the gradient |
| tensor | all-reduce of each value that is a partial sum over the class |
| loop iterations | a send of the loop carry between stages |
| embedding tables | all-to-all of pooled look-ups in each direction, or scatter and gather of the look-ups |
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.errors import InputError
from jaxscale.tracing.classed_program import ClassedProgram, Terms

Tables = Literal["replicated", "table", "row"]

TABLE_MODES: tuple[Tables, ...] = ("replicated", "table", "row")
"""Placements of embedding tables: a copy on each chip, whole tables on single chips, or rows spread over chips."""


class ClassPlan(eqx.Module):
    """Parallel degrees of a traced workload over dimension classes (equal axes); chips = data * tensor * pipeline.

    Attributes:
        data: chips that split the data class, the dimension class of the batch [1].
        shard: replicas that share a copy of weights and optimiser state: 1 for a copy per replica, `data` for a single
            copy [1].
        tensor: chips that split the classes of `split` [1].
        pipeline: stages, each with a share of the iterations of loops over layers [1].
        n_microbatches: microbatches per step [1].
        split: 1 for each class split by `tensor`, else 0.
        data_class: index of the data class among the classes.
        tables_by_table: 1 where whole embedding tables lie on single chips of the data group [1].
        tables_by_row: 1 where the rows of each embedding table are spread over the data group [1].
        joint_statistics: 1 where sums over the batch, as in batch norms, run over all chips; 0 for per-chip sums [1].
    """

    data: Number = eqx.field(converter=as_float)
    shard: Number = eqx.field(converter=as_float)
    tensor: Number = eqx.field(converter=as_float)
    pipeline: Number = eqx.field(converter=as_float)
    n_microbatches: Number = eqx.field(converter=as_float)
    split: Float[ArrayLike, " class"]
    tables_by_table: Number = eqx.field(converter=as_float)
    tables_by_row: Number = eqx.field(converter=as_float)
    joint_statistics: Number = eqx.field(converter=as_float)
    data_class: int = eqx.field(static=True)

    @property
    def n_chips(self) -> Number:
        """Number of chips, data * tensor * pipeline [1]."""
        return self.data * self.tensor * self.pipeline


def class_plan(
    work: ClassedProgram,
    *,
    data: float | int = 1,
    shard: float | int = 1,
    tensor: float | int = 1,
    pipeline: float | int = 1,
    n_microbatches: float | int = 1,
    split: Iterable[str] = (),
    data_class: str | None = None,
    tables: Tables = "replicated",
    joint_statistics: bool = True,
) -> ClassPlan:
    """Plan of a traced workload from degrees and names of dimension classes.

    Args:
        work: workload of the whole batch.
        data: chips that split the data class [1].
        shard: replicas that share a copy of the weights [1].
        tensor: chips that split the classes of `split` [1].
        pipeline: stages [1].
        n_microbatches: microbatches per step [1].
        split: names of classes split by `tensor`; see `tensor_classes`.
        data_class: name of the batch class; chosen by `batch_class` where None.
        tables: placement of embedding tables over the data group.
        joint_statistics: whether norms over the batch include the batch of all chips, as in the traced program.

    Raises:
        InputError: an unknown class, a class that cannot be split, or contradictory degrees.
    """
    mask = np.zeros(len(work.tables.class_names))
    batch = work.place_of(data_class) if data_class is not None else batch_class(work)
    for name in split:
        place = work.place_of(name)
        if place in work.tables.conflicts or place == batch:
            raise InputError(
                f"class {name!r} cannot be split over tensor; expected one of {', '.join(tensor_classes(work))}"
            )
        mask[place] = 1.0
    # Two split classes in a product would need each chip twice.
    clash = meeting_classes(work, [place for place in range(len(mask)) if mask[place]])
    if clash is not None:
        both = " and ".join(repr(work.tables.class_names[place]) for place in clash)
        raise InputError(f"classes {both} meet in one product; expected a split of only one of them")
    if tables not in TABLE_MODES:
        raise InputError(f"tables {tables!r} are unknown; expected one of {', '.join(TABLE_MODES)}")
    if data % shard:
        raise InputError(f"shard = {shard:g} does not divide data = {data:g}")
    if tensor > 1 and not mask.any():
        raise InputError(
            f"tensor = {tensor:g} has no class to divide; expected split, such as {tensor_classes(work)[:1]}"
        )
    return ClassPlan(
        data=data,
        shard=shard,
        tensor=tensor,
        pipeline=pipeline,
        n_microbatches=n_microbatches,
        split=mask,
        tables_by_table=float(tables == "table"),
        tables_by_row=float(tables == "row"),
        joint_statistics=float(joint_statistics),
        data_class=batch,
    )


def meeting_classes(work: ClassedProgram, places: Sequence[int]) -> tuple[int, int] | None:
    """First two of the given dimension classes that share a product or weight array, so that only one can be split.

    None if no two such classes occur together.
    """
    for terms in (work.tables.terms["flop"], work.tables.weights):
        # (places, terms)
        has = np.stack([(terms.classes == place).any(axis=1) for place in places]) if len(places) else np.zeros((0, 1))
        for first in range(len(places)):
            for second in range(first + 1, len(places)):
                if np.any(has[first] & has[second]):
                    return places[first], places[second]
    return None


def class_plan_checked(plan: Any) -> ClassPlan:
    """Check that the argument is a plan of a traced workload and return it unchanged.

    Raises:
        TypeError: the argument has another class, such as a plan of a transformer.
    """
    if isinstance(plan, ClassPlan):
        return plan
    raise TypeError(f"a traced workload takes a ClassPlan, not a {type(plan).__name__}; js.class_plan makes one")


def batch_class(work: ClassedProgram) -> int:
    """Index of the dimension class of the batch: the data class whose split leaves the most gradients to reduce.

    Raises:
        InputError: no data class can be split.
    """
    tables = work.tables
    gradients = {}
    for classes, role in zip(tables.sum_classes, tables.sum_roles, strict=True):
        for place in classes:
            if role == "gradient" and tables.origins[place] == "data" and place not in tables.conflicts:
                gradients[place] = gradients.get(place, 0) + 1
    if not gradients:
        raise InputError(
            "the workload has no class of data whose split leaves gradients to add up; expected data_class"
        )
    # Ties go to the first class.
    return max(gradients, key=lambda place: (gradients[place], -place))


def tensor_classes(work: ClassedProgram) -> list[str]:
    """Names of the dimension classes of weights that can be split: in no value twice, and not iterations of a loop."""
    tables = work.tables
    products = ~np.isin(tables.weights.row, tables.pooled.row)  # tables have placements of their own
    # 0 is the class of the number 1.
    used = set(tables.weights.classes[products].ravel().tolist()) - {0}
    summed = {place for classes, role in zip(tables.sum_classes, tables.sum_roles, strict=True) for place in classes}
    # Turns of loops are split by stages, not by tensor.
    turned = set(np.asarray(tables.terms["launches"].classes).ravel().tolist())
    return [
        name
        for place, name in enumerate(tables.class_names)
        if place in used & summed and place not in turned and place not in tables.conflicts
    ]


def local_sizes(work: ClassedProgram, plan: ClassPlan) -> Array:
    """Sizes of the dimension classes on one chip and per microbatch under a plan [1], [class]."""
    sizes = jnp.asarray(work.sizes, float)
    batch = jnp.zeros(len(work.tables.class_names)).at[plan.data_class].set(1.0)
    # The batch class is split by replicas and by microbatches.
    parts = 1.0 + batch * (plan.data * plan.n_microbatches - 1.0) + plan.split * (plan.tensor - 1.0)
    return sizes / parts


class Exchange(NamedTuple):
    """Collectives of a step with a common cause.

    Attributes:
        volume: summed size of the collectives: reduced or gathered size, or bytes sent by a chip [byte].
        count: number of collectives per step [1].
    """

    volume: Array
    count: Array


class ClassExchanges(NamedTuple):
    """Collectives of a chip in a step, by cause.

    Attributes:
        gradients: all-reduce of gradients over chips with equal weights; of shards between copies if sharded.
        scatters: reduce-scatter of gradients to the chips that share a copy.
        gathers: all-gather of weights from the chips that share a copy.
        statistics: all-reduce of sums over the batch other than gradients.
        tensor_forward: all-reduce of partial sums of the forward pass and of recomputation.
        tensor_backward: all-reduce of partial sums of the backward pass.
        look_ups: all-to-all of pooled look-ups in embedding tables, forward and backward.
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
    """Mask of the values reduced among chips (`WorkloadTables.sums`) with one of the given roles."""
    return np.array([role in roles for role in work.tables.sum_roles], bool)


def class_exchanges(work: ClassedProgram, plan: ClassPlan) -> ClassExchanges:
    """Collectives of a chip in a step under a plan.

    Args:
        work: workload of the whole batch.
        plan: degrees over the classes.

    Returns:
        Volumes [byte] and counts [1]; zero for each form of parallelism absent from the plan.
    """
    tables, sizes = work.tables, local_sizes(work, plan)
    n_sums, n_weights = len(tables.sum_roles), len(tables.weight_names)
    volumes = per_row(tables.sums, sizes, n_sums)
    counts = per_row(tables.sum_counts, sizes, n_sums)
    # (sums, classes)
    members = np.zeros((len(tables.sum_classes), len(tables.class_names)))
    for row, classes in enumerate(tables.sum_classes):
        members[row, list(classes)] = 1.0
    over_batch = jnp.asarray(members[:, plan.data_class])
    # A sum over several split classes is a single reduction.
    over_tensor = jnp.minimum(jnp.asarray(members) @ jnp.asarray(plan.split), 1.0)
    backward = np.array([phase == "backward" for phase in tables.sum_phases], bool)
    m = plan.n_microbatches

    # Most collectives run for every microbatch.
    def of(mask: Array, times: Array | float = m) -> Exchange:
        return Exchange(jnp.sum(volumes * mask) * times, jnp.sum(counts * mask) * times)

    sharded = (plan.shard > 1.0) * 1.0
    whole = 1.0 - plan.tables_by_table - plan.tables_by_row
    # Gradients are reduced once per step, after the last microbatch.
    once = has_role(work, "gradient") + whole * has_role(work, "table")
    gradients = of(over_batch * once, 1.0)
    # With shards, the reduction between copies moves 1 / shard of each gradient.
    copies = jnp.where(plan.shard > 1.0, (plan.data > plan.shard) / plan.shard, (plan.data > 1.0) * 1.0)
    each = of(over_batch * has_role(work, "gradient"), m)
    # Gathers move weights in the format of the products.
    weights = local_weight_bytes(work, sizes, read=True) * tables.weight_gathers
    turns = per_row(tables.weight_turns, sizes, n_weights) * tables.weight_gathers
    split_data, split_tensor = (plan.data > 1.0) * 1.0, (plan.tensor > 1.0) * 1.0
    # Look-ups stay on the chip without a data group.
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
            # Pooled look-ups travel forward, gradients backward.
            Exchange(2.0 * jnp.sum(pooled) * m, 2.0 * m + 0.0 * jnp.sum(pooled)),
            plan.tables_by_table * split_data,
        ),
        partial_look_ups=scaled(
            # Each chip makes partial look-ups for the samples of all chips.
            Exchange(2.0 * jnp.sum(pooled) * plan.data * m, 2.0 * m * jnp.sum(several)),
            plan.tables_by_row,
        ),
    )


def scaled(exchange: Exchange, share: Array | float) -> Exchange:
    """Collectives with scaled volume; the count is unchanged, or zero for a zero share."""
    return Exchange(exchange.volume * share, exchange.count * jnp.minimum(jnp.ceil(jnp.asarray(share)), 1.0))


def per_row(terms: Terms, sizes: Array, rows: int) -> Array:
    """Sum of the products of class sizes in each row of a table [row]."""
    return jnp.zeros(rows).at[terms.row].add(terms.values(sizes))


def is_table(work: ClassedProgram) -> Bool[np.ndarray, " weight"]:
    """Mask of embedding tables: weights read only by look-ups, of which only the rows read are updated."""
    mask = np.zeros(len(work.tables.weight_names), bool)
    mask[work.tables.pooled.row] = True
    return mask & bool(has_role(work, "table").any())


def local_weight_bytes(work: ClassedProgram, sizes: Array, read: bool = False) -> Array:
    """Size of each weight array on one chip, in the stored number format or in that of the products [byte]."""
    widths = work.tables.weight_widths if read else work.tables.weight_bytes
    return per_row(work.tables.weights, sizes, len(widths)) * widths
