"""Validity rules of plans: one table, evaluated on numbers or on columns of numbers.

A rule reads fields of model, plan and cluster by name, so that the rule can be checked once the fields are known:
`violations` checks one plan and returns sentences, an enumeration removes rows with `obeys`, and a prediction of many
rows gets sentences only for rows that break a rule.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxscale.base.units import plural
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.plans.plan import DEGREES, Plan
from jaxscale.tables.categorical import Categorical, together

Columns = Mapping[str, Any]
"""Fields by name: numbers, or arrays [row] of them."""

IDLE = 1.0 / 9.0
"""Share of a scale-up domain that may stay unused so that groups fit the domain: racks of 72 chips train like racks of
64 (NVIDIA NeMo performance summary, GB200 and GB300, 2025 and 2026) [1]."""


@dataclass(frozen=True)
class Rule:
    """Condition that every valid plan meets.

    Attributes:
        name: name of the rule.
        holds: function of the condition, whose parameters are the fields read, numbers or arrays [row].
        text: function that gives the sentence for a plan that breaks the rule, from fields as numbers.
    """

    name: str
    holds: Callable[..., Any]
    text: Callable[..., str]

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that the condition reads."""
        return tuple(inspect.signature(self.holds).parameters)

    def holds_for(self, columns: Columns) -> np.ndarray:
        """Whether the condition holds, for each row of the columns [row]."""
        return np.asarray(self.holds(**{name: columns[name] for name in self.fields}))

    def sentence(self, columns: Columns) -> str:
        """Sentence for one plan that breaks the rule."""
        # A sentence may read fewer fields than the condition.
        return self.text(**{name: float(columns[name]) for name in inspect.signature(self.text).parameters})


def divides(divisor: Any, number: Any) -> Any:
    """Whether a number is a whole multiple of a divisor, elementwise."""
    return np.mod(number, divisor) == 0


def suits_domain(tp: Any, domain_size: Any) -> Any:
    """Whether tensor-parallel groups of neighbours fill scale-up domains without straddling two domains.

    Args:
        tp: tensor-parallel degrees, a number or an array [1].
        domain_size: chips of a domain; single chips, 1, suit any whole degree [1].

    Returns:
        For each degree, whether tp divides the domain, except for a share of `IDLE`, or the domain divides tp.
    """
    # Unused chips of a domain: racks of 72 take groups of 64.
    left = np.mod(domain_size, tp)
    # A group on two nodes has a fraction of the links of each: slower than groups in whole nodes.
    return np.where(np.less_equal(tp, domain_size), left <= np.multiply(IDLE, domain_size), divides(domain_size, tp))


def shares_key_values(tp: Any, n_kv_heads: Any) -> Any:
    """Whether each tensor-parallel rank holds whole key/value heads, or several ranks copy one head.

    Args:
        tp: tensor-parallel degrees, a number or an array [1].
        n_kv_heads: K, a number or an array [1].

    Returns:
        The result for each pair; a fractional K, the mean of different layers, is always valid.
    """
    return divides(tp, n_kv_heads) | divides(n_kv_heads, tp) | np.greater(np.mod(n_kv_heads, 1), 0)


def _unstated(pp: Any, first_stage_layers: Any, last_stage_layers: Any) -> Any:
    """Number of stages without stated layers [1]."""
    return pp - np.greater(first_stage_layers, 0) - np.greater(last_stage_layers, 0)


CHIPS_RULE = Rule(
    "chips",
    lambda dp, tp, pp, cp, n_chips: dp * tp * pp * cp == n_chips,
    lambda dp, tp, pp, cp, n_chips: (
        f"dp * tp * pp * cp = {dp * tp * pp * cp:g} must equal the cluster's {n_chips:g} chips"
    ),
)

BATCH_RULE = Rule(
    "batch",
    lambda dp, micro_batch_size, n_microbatches, global_batch_size_seqs: (
        dp * micro_batch_size * n_microbatches == global_batch_size_seqs
    ),
    lambda dp, micro_batch_size, n_microbatches, global_batch_size_seqs: (
        f"micro_batch_size * n_microbatches * dp = {micro_batch_size * n_microbatches * dp:g} must equal the "
        f"global batch of {global_batch_size_seqs:g} sequences"
    ),
)

RULES = (
    CHIPS_RULE,
    Rule(
        "heads",
        lambda tp, n_heads: divides(tp, n_heads),
        lambda tp, n_heads: f"tp = {tp:g} must divide n_heads = {n_heads:g}",
    ),
    Rule(
        "key/value heads",
        shares_key_values,
        lambda tp, n_kv_heads: f"tp = {tp:g} must divide n_kv_heads = {n_kv_heads:g} or be a multiple of it",
    ),
    Rule(
        "heads of windows",
        lambda tp, window_heads, window_kv_heads: divides(tp, window_heads) & shares_key_values(tp, window_kv_heads),
        lambda tp, window_heads, window_kv_heads: (
            f"tp = {tp:g} must divide window_heads = {window_heads:g}, and window_kv_heads = {window_kv_heads:g} or be "
            "a multiple of those"
        ),
    ),
    Rule(
        "scale-up domain",
        suits_domain,
        lambda tp, domain_size: (
            f"tp = {tp:g} must divide the scale-up domain of {domain_size:g} chips or be a multiple of it"
        ),
    ),
    Rule("MLP width", lambda tp, d_ff: divides(tp, d_ff), lambda tp, d_ff: f"tp = {tp:g} must divide d_ff = {d_ff:g}"),
    Rule(
        "layers",  # an end of stated layers may have chunks that hold an embedding or the logits head alone
        lambda pp, vpp, n_layers, first_stage_layers, last_stage_layers: np.less_equal(
            _unstated(pp, first_stage_layers, last_stage_layers) * vpp,
            n_layers - first_stage_layers - last_stage_layers,
        ),
        lambda pp, vpp, n_layers, first_stage_layers, last_stage_layers: (
            f"pp * vpp = {pp * vpp:g} exceeds {n_layers:g} layers"
            if first_stage_layers + last_stage_layers == 0
            else f"first_stage_layers = {first_stage_layers:g} and last_stage_layers = {last_stage_layers:g} leave too "
            f"few of {n_layers:g} layers for the others of {pp:g} stages with {vpp:g} chunks each"
        ),
    ),
    Rule(
        "end stages",
        lambda pp, n_layers, first_stage_layers, last_stage_layers: (
            np.equal(first_stage_layers + last_stage_layers, 0)
            | np.greater(pp, 1)
            & (
                np.greater(_unstated(pp, first_stage_layers, last_stage_layers), 0)
                | np.equal(first_stage_layers + last_stage_layers, n_layers)
            )
        ),
        lambda pp, n_layers, first_stage_layers, last_stage_layers: (
            f"first_stage_layers = {first_stage_layers:g} and last_stage_layers = {last_stage_layers:g} need a "
            f"pipeline, and on {pp:g} stages to leave no layer of {n_layers:g} over"
        ),
    ),
    Rule(
        "sequence",  # a causal mask gives each context-parallel rank two chunks, for an even load
        lambda cp, seq_len: divides(2 * cp, seq_len) | (cp == 1),
        lambda cp: f"2 * cp = {2 * cp:g} must divide seq_len",
    ),
    Rule(
        "experts",
        lambda ep, n_experts: divides(ep, n_experts),
        lambda ep, n_experts: f"ep = {ep:g} must divide n_experts = {n_experts:g}",
    ),
    Rule(
        "expert chips",
        lambda ep, dp, cp, tp: divides(ep, dp * cp * tp),
        lambda ep: f"ep = {ep:g} must divide dp * cp * tp",
    ),
    Rule(
        # Each stage holds whole copies of the experts: dp * cp over ep copies, or one copy that takes chips of tp.
        "expert replicas",
        lambda ep, dp, cp: divides(np.minimum(ep, dp * cp), dp * cp),
        lambda ep, dp, cp: f"ep = {ep:g} must divide dp * cp = {dp * cp:g}, or be the larger",
    ),
    Rule(
        "shard group",
        lambda shard_group, dp: divides(shard_group, dp),
        lambda shard_group, dp: f"shard_group = {shard_group:g} must divide dp = {dp:g}",
    ),
    Rule(
        "interleaved stages",
        lambda vpp, pp: np.equal(vpp, 1) | np.greater(pp, 1),
        lambda vpp: f"vpp = {vpp:g} needs pp > 1",
    ),
    Rule(
        "interleaved microbatches",
        lambda vpp, pp, n_microbatches: np.equal(vpp, 1) | divides(pp, n_microbatches),
        lambda pp, n_microbatches: (
            f"interleaving needs n_microbatches = {n_microbatches:g} to be a multiple of pp = {pp:g}"
        ),
    ),
    Rule(
        "both directions",  # DualPipe feeds a pipeline from both ends, to hide exchanges of experts
        lambda dual_pipe, pp, ep: np.equal(dual_pipe, 0) | (divides(2, pp) & np.greater(ep, 1)),
        lambda pp, ep: f"schedule dualpipe needs an even pp and ep > 1; found pp = {pp:g} and ep = {ep:g}",
    ),
    Rule(
        "sharding of stages",
        lambda zero_stage, pp: np.less(zero_stage, 3) | np.equal(pp, 1),
        lambda: "ZeRO stage 3 shards what a pipeline reuses; it needs pp = 1",
    ),
    Rule(
        # With interleaved stages the gradients of a chunk are whole once pp microbatches have passed the chunk.
        "gradients of stages",
        lambda zero_stage, pp, vpp: np.not_equal(zero_stage, 2) | np.equal(pp, 1) | np.greater(vpp, 1),
        lambda: "ZeRO stage 2 shards gradients that a pipeline adds to; it needs pp = 1 or vpp > 1",
    ),
    BATCH_RULE,
)
"""Rules of whole plans, each decided by the fields named in the rule."""

CONTINUOUS_RULES = (
    Rule(
        "room",
        lambda tp, pp, cp, n_chips: np.less_equal(tp * pp * cp, n_chips),
        lambda tp, pp, cp, n_chips: (
            f"tp * pp * cp = {tp * pp * cp:g} exceeds the fewest chips, {n_chips:g}; expected at most that"
        ),
    ),
    Rule(
        "sequences",
        lambda n_microbatches, replica_batch: np.greater_equal(replica_batch, n_microbatches * (1.0 - 1e-9)),
        lambda n_microbatches, replica_batch: (
            f"a replica gets {replica_batch:.3g} sequences for {n_microbatches:g} "
            f"{plural(n_microbatches, 'microbatch')} on the most chips; "
            "expected at least one each: a larger batch, more of tp, pp or cp, or fewer chips"
        ),
    ),
)
"""Rules of layouts with a data-parallel degree, dp = n / (tp pp cp), that need not be whole; `replica_batch` is B /
dp."""


def decided(fields: Iterable[str], rules: Sequence[Rule] = RULES) -> tuple[Rule, ...]:
    """Rules whose fields are all among the given fields."""
    there = set(fields)
    return tuple(rule for rule in rules if there.issuperset(rule.fields))


def obeys(columns: Columns, *, about: str | None = None, rules: Sequence[Rule] = RULES) -> Any:
    """Whether each row obeys every rule whose fields are all columns.

    Args:
        columns: fields by name, numbers or arrays [row].
        about: if given, only rules that read this field are checked.
        rules: rules to check.

    Returns:
        The result of each row [row]; True without a rule to check.
    """
    kept: Any = np.True_
    for rule in decided(columns, rules):
        if about is None or about in rule.fields:
            kept = kept & rule.holds_for(columns)
    return kept


def broken_rules(columns: Columns, n_rows: int, rules: Sequence[Rule] = RULES) -> Categorical:
    """Sentences on the rules that each of many plans breaks.

    A sentence is written once for all rows that break a rule by equal numbers.

    Args:
        columns: fields by name, numbers or arrays [row].
        n_rows: number of rows [1].
        rules: rules to check, where the columns decide the rule.

    Returns:
        Sentences of each row, in the order of the rules; an empty tuple is a valid plan [row].
    """
    found = [Categorical.constant("", n_rows)]
    for rule in decided(columns, rules):
        broken = np.flatnonzero(~np.broadcast_to(rule.holds_for(columns), n_rows))
        if not len(broken):
            continue
        numbers = (np.broadcast_to(columns[name], n_rows)[broken] for name in rule.fields)
        # Equal numbers give equal sentences: written once.
        distinct = together(*(Categorical.of_numbers(np.asarray(column, float)) for column in numbers))
        texts = distinct.map(lambda values, rule=rule: rule.sentence(dict(zip(rule.fields, values, strict=True))))
        found.append(texts.spread(broken, n_rows, ""))
    return together(*found).map(lambda texts: tuple(filter(None, texts)))


MODEL_FIELDS = (
    *("n_heads", "n_kv_heads", "window_heads", "window_kv_heads"),
    *("d_ff", "seq_len", "n_experts", "tied_embeddings"),
)
PLAN_FIELDS = (*DEGREES, "dual_pipe")


def model_columns(model: Transformer) -> dict[str, Any]:
    """Fields of a concrete model that the rules read, by name."""
    columns = {name: np.asarray(getattr(model, name), float) for name in MODEL_FIELDS}
    # Window heads restrict nothing in a model without window layers, or with window heads equal to all heads.
    for name, nothing in (("heads", 0.0), ("kv_heads", 1.0)):
        ratio, share = (
            np.asarray(leaf, float) for leaf in (getattr(model, f"window_{name}_ratio"), model.window_share)
        )
        own = np.round(columns[f"window_{name}"], 6)
        columns[f"window_{name}"] = np.where((ratio != 1.0) & (share > 0.0), own, nothing)
    return {**columns, "n_layers": np.asarray(total_layers(model), float)}


def plan_columns(plan: Plan) -> dict[str, Any]:
    """Fields of a concrete plan that the rules read, by name."""
    columns = {name: np.asarray(getattr(plan, name), float) for name in PLAN_FIELDS}
    return {**columns, "shard_group": np.where(columns["shard_group"] > 0.0, columns["shard_group"], columns["dp"])}


def violations(model: Transformer, plan: Plan, n_chips: int | float, domain_size: int | float = 1) -> list[str]:
    """Sentences on the rules that a plan breaks, one per rule; an empty list is a valid plan.

    Args:
        model: the transformer.
        plan: concrete (not traced) plan.
        n_chips: chips of the cluster [1].
        domain_size: chips of a scale-up domain, which tensor-parallel groups must suit [1].

    Returns:
        Sentences with the field, the value and the valid values.
    """
    columns = {**model_columns(model), **plan_columns(plan), "n_chips": n_chips, "domain_size": domain_size}
    return list(broken_rules(columns, 1)[0])
