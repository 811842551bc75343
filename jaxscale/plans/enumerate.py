"""Every valid integer plan of a model on a cluster, as columns of numbers.

The columns grow one decision at a time, and each rule of `jaxscale.plan.rules` cuts once every field of the rule is
decided, so that the table never holds more than a few times the plans that survive. Plans that the cost model cannot
tell apart appear once: sequence parallelism needs tp > 1, a schedule needs pp > 1, sharding needs replicas, and
selective recomputation needs attention that stores scores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxscale._arrays import divisors, number, with_fields
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plan.plan import FLAGS, RECOMPUTE, SCHEDULES, SIZES, SOFTWARE_CHOICES, SWITCHES, Plan, switches_of
from jaxscale.plan.rules import divides, model_columns, obeys
from jaxscale.workload import Transformer

Columns = dict[str, np.ndarray]

FIXED = ("precision", "flash_attention", "overlap_gradients", "balanced_stages", "gradient_bytes", "fused_glu")
"""Fields of a plan that all plans of a space share."""

SOFTWARE = (
    *(switch for choice in SOFTWARE_CHOICES for switch in SWITCHES[choice].values() if switch),
    *(name for name in (*FLAGS, *SIZES) if name not in FIXED),
)
"""Further fields of a plan that all plans of a space share: facts about software."""

FIELDS = tuple(name for name in Plan.__dataclass_fields__ if name not in (*FIXED, *SOFTWARE))
"""Fields of a plan that differ between the rows of a table."""


@dataclass(frozen=True)
class PlanSpace:
    """Choices that a search for a plan has; a field of None admits every valid value.

    Zero-bubble schedules are left out unless asked for: the model gives them the memory of 1F1B, which is too little.

    Attributes:
        tp: tensor-parallel degrees [1].
        pp: pipeline stages [1].
        vpp: virtual stages per chip [1].
        cp: context-parallel degrees [1].
        ep: expert-parallel degrees [1].
        micro_batch_size: sequences per microbatch [1].
        zero_stage: ZeRO stages, of 0 to 3.
        hybrid_sharding: also shard groups smaller than dp (HSDP) at ZeRO stage 3.
        sequence_parallel: values admitted where tp > 1.
        recompute: of none, selective, full.
        schedule: of gpipe, 1f1b, interleaved, zero-bubble, dualpipe; without a pipeline every plan counts as 1f1b, and
            DualPipe needs experts that exchange tokens and an even number of stages.
        whole_chunks: interleave only chunks of equally many layers, as Megatron-LM demands.
        flash_attention: fused attention in all plans.
        overlap_gradients: gradients reduced while the last backward pass still runs, in all plans.
        balanced_stages: layers shared out by cost, the logits head included, in all plans.
        gradient_bytes: of a gradient while replicas reduce it, in all plans [byte].
        fused_glu: gated MLPs by one kernel, in all plans.
        precision: of the weight matmuls, in all plans.
        software: further arguments of `Plan` that all plans share, such as `tp_overlap` or `fused_norm`.
        domain_size: chips of a scale-up domain, which tp is to suit [1].
    """

    tp: Sequence[int] | None = None
    pp: Sequence[int] | None = None
    vpp: Sequence[int] | None = None
    cp: Sequence[int] | None = None
    ep: Sequence[int] | None = None
    micro_batch_size: Sequence[int] | None = None
    zero_stage: Sequence[int] = (0, 1, 2, 3)
    hybrid_sharding: bool = True
    sequence_parallel: Sequence[bool] = (False, True)
    recompute: Sequence[str] = RECOMPUTE
    schedule: Sequence[str] = ("gpipe", "1f1b", "interleaved")
    whole_chunks: bool = True
    flash_attention: bool = True
    overlap_gradients: bool = True
    balanced_stages: bool = False
    gradient_bytes: float = 4.0
    fused_glu: bool = False
    precision: str = "bf16"
    software: Mapping[str, Any] = field(default_factory=dict)
    domain_size: float = 1.0

    def __post_init__(self):
        """Refuse unknown words and empty choices."""
        for name, valid in (("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("zero_stage", (0, 1, 2, 3))):
            chosen = getattr(self, name)
            unknown = [value for value in chosen if value not in valid]
            if unknown or not chosen:
                expected = ", ".join(map(str, valid))
                raise InputError(f"PlanSpace.{name} = {tuple(chosen)!r}; expected one or more of {expected}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision = {self.precision!r}; expected one of {', '.join(PRECISIONS)}")


def within_domains(space: PlanSpace | None, cluster: Cluster) -> PlanSpace:
    """A space, or everything valid where None, whose tensor-parallel groups suit a cluster's scale-up domains."""
    return replace(space or PlanSpace(), domain_size=number(cluster.network.level(0)[0]))


@dataclass(frozen=True)
class PlanTable:
    """Plans as columns.

    Attributes:
        columns: the fields in `FIELDS`, each [plan].
        space: from which the plans come.
    """

    columns: Mapping[str, np.ndarray]
    space: PlanSpace

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.columns["dp"])

    def plan(self, row: int) -> Plan:
        """One plan of concrete numbers."""
        template = Plan(**{name: getattr(self.space, name) for name in FIXED}, **self.space.software)
        values = {name: float(column[row]) for name, column in self.columns.items()}
        return with_fields(template, values)

    def stacked(self, rows: np.ndarray | slice = slice(None), size: int | None = None) -> tuple[Plan, np.ndarray]:
        """Plans as one module of arrays, padded with copies of the first so that few shapes compile.

        Args:
            rows: which plans.
            size: length of the arrays; the next power of two where None.

        Returns:
            A plan whose fields are arrays [row], precision [row, precision], and the mask of rows that are not padding.
        """
        picked = {name: column[rows] for name, column in self.columns.items()}
        count = len(picked["dp"])
        size = 1 << max(count - 1, 0).bit_length() if size is None else size
        dtype = jnp.result_type(float)
        fields = {name: np.concatenate([c, np.repeat(c[:1], size - count)]).astype(dtype) for name, c in picked.items()}
        template = self.plan(0)
        for name in (*FIXED, *SOFTWARE):
            shared = np.asarray(getattr(template, name), dtype)
            fields[name] = np.broadcast_to(shared, (size, *shared.shape))
        return with_fields(template, fields), np.arange(size) < count


def enumerate_plans(
    model: Transformer, n_chips: float | int, global_batch_size_seqs: float | int, space: PlanSpace | None = None
) -> PlanTable:
    """Every valid plan that uses all chips and makes up the global batch exactly.

    Args:
        model: the transformer, concrete.
        n_chips: chips of the cluster [1].
        global_batch_size_seqs: B [sequence].
        space: choices that are open; everything valid where None.

    Returns:
        The plans; possibly none.
    """
    space = space or PlanSpace()
    facts = _facts(model, n_chips, global_batch_size_seqs, space)
    columns = _degrees(facts, space)
    columns = _sharding(facts, columns, space)
    columns = _schedules(facts, columns, space)
    columns = _activations(columns, space)
    columns["shard_group"] = columns["dp"] // columns.pop("copies")
    return PlanTable({name: columns[name] for name in FIELDS}, space)


def admissible(model: Transformer, n_chips: float | int, batch: float | int, space: PlanSpace) -> Columns:
    """Values of each degree by itself; combinations must still divide chips and batch.

    Args:
        model: the transformer, concrete.
        n_chips: chips of the cluster [1].
        batch: B [sequence].
        space: choices that are open.

    Returns:
        Values of tp, pp, cp, ep, micro_batch_size and vpp, ascending [1].
    """
    return _admissible(_facts(model, n_chips, batch, space), space)


def _facts(model: Transformer, n_chips: float | int, batch: float | int, space: PlanSpace) -> dict[str, float]:
    """Fields of model, cluster and batch that the rules read, by name."""
    sizes = {"n_chips": n_chips, "global_batch_size_seqs": batch, "domain_size": space.domain_size}
    return {**{name: float(column) for name, column in model_columns(model).items()}, **sizes}


def _admissible(facts: Mapping[str, float], space: PlanSpace) -> Columns:
    chips = divisors(facts["n_chips"])
    candidates = {
        "tp": chips,
        "pp": chips,
        "cp": chips,
        "ep": divisors(facts["n_experts"]),
        "micro_batch_size": divisors(facts["global_batch_size_seqs"]),
    }
    admitted: Columns = {}
    for name, values in candidates.items():
        valid = obeys({**facts, "vpp": 1, name: values}, about=name)
        admitted[name] = _admitted(values[np.broadcast_to(valid, values.shape)], getattr(space, name))
    return {**admitted, "vpp": _chunks(facts, space)}


def _chunks(facts: Mapping[str, float], space: PlanSpace) -> np.ndarray:
    """Virtual stages per chip that the layers and the space admit [1]."""
    layers = facts["n_layers"]
    chunks = divisors(layers) if space.whole_chunks else np.arange(1, math.floor(layers / 2) + 1)
    return _admitted(chunks, space.vpp)


def _degrees(facts: Mapping[str, float], space: PlanSpace) -> Columns:
    """Degrees tp, pp, cp, dp, ep and the batch split b, m."""
    options, n_chips, batch = _admissible(facts, space), facts["n_chips"], facts["global_batch_size_seqs"]
    columns: Columns = {"tp": options["tp"]}
    columns = _cross(columns, "pp", options["pp"])
    columns = _keep(columns, divides(columns["tp"] * columns["pp"], n_chips))
    columns = _cross(columns, "cp", options["cp"])
    columns["dp"] = np.maximum(round(n_chips) // (columns["tp"] * columns["pp"] * columns["cp"]), 1)
    columns = _keep(columns, obeys({**facts, **columns}, about="dp") & divides(columns["dp"], batch))
    columns = _cross(columns, "ep", options["ep"])
    columns = _keep(columns, obeys({**facts, **columns}, about="ep"))
    columns = _cross(columns, "micro_batch_size", options["micro_batch_size"])
    columns["n_microbatches"] = round(batch) // (columns["dp"] * columns["micro_batch_size"])
    return _keep(columns, obeys({**facts, **columns}, about="n_microbatches"))


def count_degrees(
    model: Transformer, n_chips: float | int, global_batch_size_seqs: float | int, space: PlanSpace | None = None
) -> int:
    """Combinations of tp, pp, cp, dp, ep and micro-batch: a fiftieth or so of the valid plans [1]."""
    space = space or PlanSpace()
    return len(_degrees(_facts(model, n_chips, global_batch_size_seqs, space), space)["dp"])


def _sharding(facts: Mapping[str, float], columns: Columns, space: PlanSpace) -> Columns:
    """ZeRO stages, and at stage 3 the copies of the sharded weights that HSDP keeps."""
    columns = _cross(columns, "zero_stage", np.unique(space.zero_stage))
    alone = columns["dp"] * columns["cp"] == 1
    differs = ~alone | (columns["zero_stage"] == min(space.zero_stage))
    columns = _keep(columns, obeys({**facts, **columns}, about="zero_stage") & differs)
    hybrid = (columns["zero_stage"] == 3) & space.hybrid_sharding
    single = {**_keep(columns, ~hybrid), "copies": np.ones(np.sum(~hybrid), np.int64)}
    several = _keep(columns, hybrid)
    copies = [divisors(float(dp)) for dp in np.unique(several["dp"])]
    several = _cross(several, "copies", np.unique(np.concatenate([np.ones(1, np.int64), *copies])))
    return _joined(single, _keep(several, divides(several["copies"], several["dp"])))


def _schedules(facts: Mapping[str, float], columns: Columns, space: PlanSpace) -> Columns:
    """Order of forward and backward passes, and interleaving."""
    piped = columns["pp"] > 1
    flat, chunked = _keep(columns, ~piped), _keep(columns, piped)
    simple = [SCHEDULES.index(word) for word in SCHEDULES if word in space.schedule and word != "interleaved"]
    plain = _cross(chunked, "schedule", np.asarray(simple, np.int64))
    plain["vpp"] = np.ones_like(plain["schedule"])
    is_dual = plain["schedule"] == SCHEDULES.index("dualpipe")
    plain = _keep(plain, obeys({**facts, **plain, "dual_pipe": is_dual}, about="dual_pipe"))
    one_stage = np.ones_like(flat["pp"])
    tables = [{**flat, "schedule": one_stage * SCHEDULES.index("1f1b"), "vpp": one_stage}, plain]
    if "interleaved" in space.schedule:
        # The rule about microbatches is the same for every vpp above one: it cuts before the columns grow.
        chunked = _keep(chunked, obeys({**facts, **chunked, "vpp": 2}, about="n_microbatches"))
        chunks = _chunks(facts, space)
        chunked = _cross(chunked, "vpp", chunks[chunks > 1])
        is_whole = divides(chunked["pp"] * chunked["vpp"], facts["n_layers"]) | (not space.whole_chunks)
        chunked = _keep(chunked, obeys({**facts, **chunked}, about="vpp") & is_whole)
        tables.append({**chunked, "schedule": np.full_like(chunked["pp"], SCHEDULES.index("interleaved"))})
    columns = _joined(*tables)
    schedule = columns.pop("schedule")
    return {**columns, **switches_of("schedule", schedule)}


def _activations(columns: Columns, space: PlanSpace) -> Columns:
    """Sequence parallelism and recomputation."""
    columns = _cross(columns, "sequence_parallel", np.unique(space.sequence_parallel).astype(np.int64))
    unsplit = int(min(space.sequence_parallel))
    columns = _keep(columns, (columns["tp"] > 1) | (columns["sequence_parallel"] == unsplit))
    words = [word for word in RECOMPUTE if word in space.recompute]
    if space.flash_attention and "none" in words:
        words = [word for word in words if word != "selective"]
    columns = _cross(columns, "recompute", np.asarray([RECOMPUTE.index(word) for word in words]))
    recompute = columns.pop("recompute")
    return {**columns, **switches_of("recompute", recompute)}


def _admitted(valid: np.ndarray, wanted: Sequence[int] | None) -> np.ndarray:
    return valid if wanted is None else valid[np.isin(valid, np.asarray(wanted))]


def _cross(columns: Columns, name: str, values: np.ndarray) -> Columns:
    """Every row with every value of a new column."""
    count = len(next(iter(columns.values())))
    crossed = {key: np.repeat(column, len(values)) for key, column in columns.items()}
    return {**crossed, name: np.tile(values, count)}


def _keep(columns: Columns, mask: np.ndarray) -> Columns:
    return {name: column[mask] for name, column in columns.items()}


def _joined(*tables: Columns) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
