"""Enumeration of every valid integer plan of a model on a cluster, as columns of numbers.

The columns grow by one decision at a time. Each rule of `jaxscale.plans.rules` removes rows once every field of the
rule is decided, so that the table never holds more than a few times the valid plans. Plans with equal cost appear once:
sequence parallelism needs tp > 1, a schedule needs pp > 1, sharding needs replicas, and selective recomputation needs
attention with stored scores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxscale.base.arrays import divisors, number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import DECIDED, END_STAGES, RECOMPUTE, SCHEDULES, SWITCHES, Plan, codes_of, switches_of
from jaxscale.plans.rules import BATCH_RULE, RULES, Rule, divides, model_columns, obeys
from jaxscale.plans.stages import shortened_ends

Columns = dict[str, np.ndarray]

DISPATCHERS = tuple(switch for switch in SWITCHES["moe_dispatcher"].values() if switch)
"""Switches of the token dispatcher, which a schedule may set."""

FIELDS = (*DECIDED, *DISPATCHERS)
"""Fields of a plan that differ between the rows of a table; all remaining fields belong to the software."""

OPEN_MICROBATCHES = (1, 2, 4, 8, 16)
"""Candidate sequences per microbatch without a stated batch [1]."""

MICROBATCHES_OF_A_STAGE = 4
"""Microbatches per pipeline stage without a stated batch [1]."""


@dataclass(frozen=True)
class PlanSpace:
    """Search space of plans; a field of None admits every valid value.

    Zero-bubble schedules are left out by default, because the model underestimates their memory as that of 1F1B.

    Attributes:
        tp: tensor-parallel degrees [1].
        pp: pipeline stages [1].
        vpp: virtual stages per chip [1].
        cp: context-parallel degrees [1].
        ep: expert-parallel degrees [1].
        dp: data-parallel degrees [1].
        micro_batch_size: sequences per microbatch [1].
        n_microbatches: microbatches per step and replica [1].
        first_stage_layers: layers of the first stage; None for the equal share, or one layer less on both ends [1].
        last_stage_layers: layers of the last stage; None as for `first_stage_layers` [1].
        zero_stage: ZeRO stages, from 0 to 3.
        shard_group: chips of one sharded copy; where None, all of dp, and at stage 3 also fewer (HSDP) [1].
        hybrid_sharding: whether HSDP is among the choices.
        sequence_parallel: admitted values for tp > 1.
        recompute: words from none, selective, full; None for the shares of `software`.
        schedule: words from gpipe, 1f1b, interleaved, zero-bubble, dualpipe; without a pipeline every plan counts as
            1f1b, and DualPipe needs expert parallelism and an even number of stages.
        whole_chunks: whether all interleaved chunks have equally many layers, as Megatron-LM demands.
        software: plan with the fixed fields of all plans: kernels, overlap, widths, number format.
        dispatchers: word of `moe_dispatcher` by schedule, for schedules that set the dispatcher.
        domain_size: chips of a scale-up domain, to be filled by whole tensor-parallel groups [1].
        rules: rules that every plan obeys.
    """

    tp: Sequence[int] | None = None
    pp: Sequence[int] | None = None
    vpp: Sequence[int] | None = None
    cp: Sequence[int] | None = None
    ep: Sequence[int] | None = None
    dp: Sequence[int] | None = None
    micro_batch_size: Sequence[int | float] | None = None
    n_microbatches: Sequence[int] | None = None
    first_stage_layers: Sequence[int] | None = None
    last_stage_layers: Sequence[int] | None = None
    zero_stage: Sequence[int] = (0, 1, 2, 3)
    shard_group: Sequence[int] | None = None
    hybrid_sharding: bool = True
    sequence_parallel: Sequence[bool] = (False, True)
    recompute: Sequence[str] | None = RECOMPUTE
    schedule: Sequence[str] = ("gpipe", "1f1b", "interleaved")
    whole_chunks: bool = True
    software: Plan = field(default_factory=Plan)
    dispatchers: Mapping[str, str] = field(default_factory=dict)
    domain_size: float = 1.0
    rules: tuple[Rule, ...] = RULES

    def __post_init__(self):
        """Refuse unknown words and empty choices."""
        choices: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "recompute": (RECOMPUTE if self.recompute is None else self.recompute, RECOMPUTE),
            "schedule": (self.schedule, SCHEDULES),
            "zero_stage": (self.zero_stage, (0, 1, 2, 3)),
        }
        for name, (chosen, valid) in choices.items():
            unknown = [value for value in chosen if value not in valid]
            if unknown or not chosen:
                expected = ", ".join(map(str, valid))
                raise InputError(f"PlanSpace.{name} = {tuple(chosen)!r}; expected one or more of {expected}")

    @property
    def base(self) -> Plan:
        """Plan with the fixed fields of all plans; if recomputation is searched, it recomputes whole forward passes."""
        return self.software if self.recompute is None else with_fields(self.software, {"recompute_cost": 1.0})


def within_domains(space: PlanSpace | None, cluster: Cluster) -> PlanSpace:
    """Search space whose tensor-parallel groups fill scale-up domains of a cluster; all valid plans for None."""
    return replace(space or PlanSpace(), domain_size=number(cluster.network.level(0)[0]))


@dataclass(frozen=True)
class PlanTable:
    """Plans of a search space, as columns of numbers.

    Attributes:
        columns: the fields in `FIELDS`, each [plan].
        space: search space of the plans.
    """

    columns: Mapping[str, np.ndarray]
    space: PlanSpace

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.columns["dp"])

    def plan(self, row: int) -> Plan:
        """Plan of one row, in concrete numbers."""
        # Whole numbers of the table as floats, as all fields of plans trace.
        return with_fields(self.space.base, {name: float(column[row]) for name, column in self.columns.items()})


def enumerate_plans(
    model: Transformer,
    n_chips: float | int,
    global_batch_size_seqs: float | int | None,
    space: PlanSpace | None = None,
) -> PlanTable:
    """Enumerate the valid plans that use all chips and make up the global batch exactly.

    Args:
        model: the transformer, concrete.
        n_chips: chips of the cluster [1].
        global_batch_size_seqs: B; where None, the batch follows from each plan [sequence].
        space: open choices; all valid plans where None.

    Returns:
        The plans; possibly none.
    """
    space = space or PlanSpace()
    facts = _facts(model, n_chips, global_batch_size_seqs, space)
    columns = _degrees(facts, space)
    columns = _sharding(facts, columns, space)
    columns = _schedules(facts, columns, space)
    columns = _activations(columns, space)
    return PlanTable({name: columns[name] for name in FIELDS}, space)


def admissible(model: Transformer, n_chips: float | int, batch: float | int | None, space: PlanSpace) -> Columns:
    """Admissible values of each degree alone; combinations must also divide chips and batch.

    Args:
        model: the transformer, concrete.
        n_chips: chips of the cluster [1].
        batch: B; None where the batch follows from each plan [sequence].
        space: open choices.

    Returns:
        Values of tp, pp, cp, ep, micro_batch_size and vpp, ascending [1].
    """
    return _admissible(_facts(model, n_chips, batch, space), space)


def _facts(model: Transformer, n_chips: float | int, batch: float | int | None, space: PlanSpace) -> dict[str, float]:
    """Fields of model, cluster and batch that the rules read, by name."""
    sizes = {"n_chips": n_chips, "domain_size": space.domain_size, **dict.fromkeys(END_STAGES, 0)}
    sizes |= {} if batch is None else {"global_batch_size_seqs": batch}
    return {**{name: float(column) for name, column in model_columns(model).items()}, **sizes}


def _admissible(facts: Mapping[str, float], space: PlanSpace) -> Columns:
    chips = divisors(facts["n_chips"])
    candidates = {
        "tp": chips,
        "pp": chips,
        "cp": chips,
        # A stated degree that divides no experts is left to the rules, which a row of a table may drop.
        "ep": np.union1d(divisors(facts["n_experts"]), np.asarray(space.ep or (), int)),
        "micro_batch_size": _microbatches(facts, space),
    }
    admitted: Columns = {}
    for name, values in candidates.items():
        # Rules on degrees alone: no interleaving.
        valid = obeys({**facts, "vpp": 1, name: values}, about=name, rules=space.rules)
        admitted[name] = _admitted(values[np.broadcast_to(valid, values.shape)], getattr(space, name))
    return {**admitted, "vpp": _chunks(facts, space)}


def _microbatches(facts: Mapping[str, float], space: PlanSpace) -> np.ndarray:
    """Candidate sequences per microbatch that can make up the batch [1]."""
    batch = facts.get("global_batch_size_seqs")
    if BATCH_RULE not in space.rules:
        return np.asarray(space.micro_batch_size or OPEN_MICROBATCHES)
    return np.asarray(OPEN_MICROBATCHES) if batch is None else divisors(batch)


def _chunks(facts: Mapping[str, float], space: PlanSpace) -> np.ndarray:
    """Virtual stages per chip that the layers and the space admit [1]."""
    layers = facts["n_layers"]
    if not space.whole_chunks:
        # At least two stages share the layers.
        return _admitted(np.arange(1, math.floor(layers / 2) + 1), space.vpp)
    ends = [0 if stated is None else stated[0] for stated in (space.first_stage_layers, space.last_stage_layers)]
    # Shortened ends leave L + 2 layers for equal chunks.
    others = layers - sum(ends) if any(ends) else layers + 2.0 * _may_shorten(space)
    return _admitted(np.union1d(divisors(layers), divisors(max(others, 1))), space.vpp)


def _may_shorten(space: PlanSpace) -> bool:
    """Whether both end stages may have one layer less: not in software that balances by cost or needs equal stages."""
    rules = (rule for rule in space.rules if rule not in RULES)
    return not number(space.software.balanced_stages) and not any(set(END_STAGES) & set(rule.fields) for rule in rules)


def _with_ends(facts: Mapping[str, float], columns: Columns, space: PlanSpace) -> Columns:
    """Layers of both end stages: the stated numbers, or one less where all remaining stages then have equally many."""
    less = shortened_ends(facts["n_layers"], columns["pp"]) * _may_shorten(space)
    stated = (space.first_stage_layers, space.last_stage_layers)
    less = less if stated == (None, None) else 0 * less
    ends = (less if one is None else np.full_like(columns["pp"], one[0]) for one in stated)
    return {**columns, **dict(zip(END_STAGES, ends, strict=True))}


def _is_whole(facts: Mapping[str, float], columns: Columns) -> np.ndarray:
    """Whether all chunks between stated end stages have equally many layers."""
    ends = [columns[name] for name in END_STAGES]
    stages = columns["pp"] - sum(count > 0 for count in ends)
    return divides(np.maximum(stages, 1) * columns["vpp"], facts["n_layers"] - sum(ends))


def _degrees(facts: Mapping[str, float], space: PlanSpace) -> Columns:
    """Degrees tp, pp, cp, dp, ep and the batch split b, m."""
    options, n_chips, batch = _admissible(facts, space), facts["n_chips"], facts.get("global_batch_size_seqs")
    columns: Columns = {"tp": options["tp"]}
    columns = _cross(columns, "pp", options["pp"])
    # Rows go as soon as a rule is decided: the table stays small.
    columns = _keep(columns, divides(columns["tp"] * columns["pp"], n_chips))
    columns = _cross(columns, "cp", options["cp"])
    # Beyond the chips integer division gives 0: removed by the rule of chips.
    columns["dp"] = np.maximum(round(n_chips) // (columns["tp"] * columns["pp"] * columns["cp"]), 1)
    columns = _keep(columns, _obey(facts, columns, space, "dp") & _among(columns["dp"], space.dp))
    if batch is not None and BATCH_RULE in space.rules:
        columns = _keep(columns, divides(columns["dp"], batch))
    columns = _cross(columns, "ep", options["ep"])
    columns = _keep(columns, _obey(facts, columns, space, "ep"))
    columns = _cross(columns, "micro_batch_size", options["micro_batch_size"])
    columns["n_microbatches"] = _counts(columns, batch, space)
    kept = _obey(facts, columns, space, "n_microbatches") & (columns["n_microbatches"] >= 1)
    return _keep(columns, kept & (_among(columns["n_microbatches"], space.n_microbatches) | (batch is None)))


def _counts(columns: Columns, batch: float | int | None, space: PlanSpace) -> np.ndarray:
    """Microbatches of a replica: the number that makes up the batch, or the default without a stated batch [1]."""
    replicas = columns["dp"] * columns["micro_batch_size"]
    if batch is not None:
        # Without the batch rule, the last microbatch of a step may be short.
        return round(batch) // replicas if BATCH_RULE in space.rules else batch / replicas
    if space.n_microbatches:
        return np.full_like(replicas, space.n_microbatches[0])
    return np.where(columns["pp"] > 1, MICROBATCHES_OF_A_STAGE * columns["pp"], 1)


def _obey(facts: Mapping[str, float], columns: Columns, space: PlanSpace, about: str) -> np.ndarray:
    """Whether each row obeys the rules of a space that read a field."""
    return np.broadcast_to(obeys({**facts, **columns}, about=about, rules=space.rules), len(columns["tp"]))


def _among(values: np.ndarray, wanted: Sequence[int] | None) -> np.ndarray:
    """Whether each value is admitted; true for all values where `wanted` is None."""
    return np.ones(len(values), bool) if wanted is None else np.isin(values, np.asarray(wanted))


def count_degrees(
    model: Transformer,
    n_chips: float | int,
    global_batch_size_seqs: float | int | None,
    space: PlanSpace | None = None,
) -> int:
    """Number of valid combinations of tp, pp, cp, dp, ep and microbatch size [1].

    About one fiftieth of the number of valid plans.
    """
    space = space or PlanSpace()
    return len(_degrees(_facts(model, n_chips, global_batch_size_seqs, space), space)["dp"])


def _sharding(facts: Mapping[str, float], columns: Columns, space: PlanSpace) -> Columns:
    """Add ZeRO stages and shard groups to the columns."""
    columns = _cross(columns, "zero_stage", np.unique(space.zero_stage))
    # A single replica shards nothing: the lowest stage stands for all.
    alone = columns["dp"] * columns["cp"] == 1
    differs = ~alone | (columns["zero_stage"] == min(space.zero_stage))
    columns = _keep(columns, _obey(facts, columns, space, "zero_stage") & differs)
    if space.shard_group is not None:
        columns = _cross(columns, "shard_group", np.asarray(space.shard_group))
        # A group beyond the replicas is all replicas.
        columns["shard_group"] = np.minimum(columns["shard_group"], columns["dp"])
        return _keep(columns, _obey(facts, columns, space, "shard_group"))
    hybrid = (columns["zero_stage"] == 3) & space.hybrid_sharding
    single, several = _keep(columns, ~hybrid), _keep(columns, hybrid)
    copies = [divisors(float(dp)) for dp in np.unique(several["dp"])]
    # Without FSDP plans there is no dp to divide.
    several = _cross(several, "copies", np.unique(np.concatenate([np.ones(1, np.int64), *copies])))
    several = _keep(several, divides(several["copies"], several["dp"]))
    # s = dp / copies
    several["shard_group"] = several["dp"] // several.pop("copies")
    return _joined({**single, "shard_group": single["dp"]}, several)


def _schedules(facts: Mapping[str, float], columns: Columns, space: PlanSpace) -> Columns:
    """Add schedules and interleaving to the columns."""
    piped = columns["pp"] > 1
    flat, chunked = _keep(columns, ~piped), _keep(columns, piped)
    simple = [SCHEDULES.index(word) for word in SCHEDULES if word in space.schedule and word != "interleaved"]
    plain = _cross(chunked, "schedule", np.asarray(simple, np.int64))
    plain = _with_ends(facts, {**plain, "vpp": np.ones_like(plain["schedule"])}, space)
    plain = _keep(plain, _obey(facts, plain, space, "first_stage_layers") & _obey(facts, plain, space, "vpp"))
    is_dual = plain["schedule"] == SCHEDULES.index("dualpipe")
    plain = _keep(plain, _obey(facts, {**plain, "dual_pipe": is_dual}, space, "dual_pipe"))
    one_stage = np.ones_like(flat["pp"])
    ends = dict.fromkeys(END_STAGES, 0 * one_stage)
    # Without a pipeline all schedules are equal.
    tables = [{**flat, **ends, "schedule": one_stage * SCHEDULES.index("1f1b"), "vpp": one_stage}, plain]
    if "interleaved" in space.schedule:
        # The rule on microbatches is equal for every vpp above one, so rows are removed before the columns grow.
        chunked = _keep(
            chunked, _obey(facts, {**chunked, "vpp": np.full_like(chunked["pp"], 2)}, space, "n_microbatches")
        )
        chunks = _chunks(facts, space)
        chunked = _with_ends(facts, _cross(chunked, "vpp", chunks[chunks > 1]), space)
        kept = _obey(facts, chunked, space, "vpp") & _obey(facts, chunked, space, "first_stage_layers")
        chunked = _keep(chunked, kept & (_is_whole(facts, chunked) | (not space.whole_chunks)))
        tables.append({**chunked, "schedule": np.full_like(chunked["pp"], SCHEDULES.index("interleaved"))})
    columns = _joined(*tables)
    schedule = columns.pop("schedule")
    return {**columns, **switches_of("schedule", schedule), **_dispatchers(schedule, space)}


def _dispatchers(schedule: np.ndarray, space: PlanSpace) -> Columns:
    """Switches of the token dispatcher: from the software, or from the schedule of a plan."""
    words, own = tuple(SWITCHES["moe_dispatcher"]), space.software
    usual = codes_of("moe_dispatcher", {switch: getattr(own, switch) for switch in DISPATCHERS})
    codes = np.full(len(schedule), usual)
    for word, dispatcher in space.dispatchers.items():
        codes = np.where(schedule == SCHEDULES.index(word), words.index(dispatcher), codes)
    return switches_of("moe_dispatcher", codes)


def _activations(columns: Columns, space: PlanSpace) -> Columns:
    """Add sequence parallelism and recomputation to the columns."""
    columns = _cross(columns, "sequence_parallel", np.unique(space.sequence_parallel).astype(np.int64))
    # Without a tensor group, no norm is split: a single value is enough.
    unsplit = int(min(space.sequence_parallel))
    columns = _keep(columns, (columns["tp"] > 1) | (columns["sequence_parallel"] == unsplit))
    if space.recompute is None:
        shares = {switch: getattr(space.software, switch) for switch in SWITCHES["recompute"].values() if switch}
        return {**columns, **{name: np.full(len(columns["tp"]), number(share)) for name, share in shares.items()}}
    words = [word for word in RECOMPUTE if word in space.recompute]
    if number(space.software.flash_attention) and "none" in words:
        # Fused attention stores no scores: selective recomputation equals none.
        words = [word for word in words if word != "selective"]
    columns = _cross(columns, "recompute", np.asarray([RECOMPUTE.index(word) for word in words]))
    recompute = columns.pop("recompute")
    return {**columns, **switches_of("recompute", recompute)}


def _admitted(valid: np.ndarray, wanted: Sequence[int | float] | None) -> np.ndarray:
    """Valid values that the space admits."""
    return valid if wanted is None else valid[np.isin(valid, np.asarray(wanted))]


def _cross(columns: Columns, name: str, values: np.ndarray) -> Columns:
    """Cross product of all rows with the values of a new column."""
    count = len(next(iter(columns.values())))
    crossed = {key: np.repeat(column, len(values)) for key, column in columns.items()}
    return {**crossed, name: np.tile(values, count)}


def _keep(columns: Columns, mask: np.ndarray) -> Columns:
    return {name: column[mask] for name, column in columns.items()}


def _joined(*tables: Columns) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
