"""Local quantities of a plan on one chip: bytes, shards, layers and weights for cost terms and memory, computed once.

References: Rajbhandari et al. 2020, arXiv 1910.02054, section 3 (ZeRO stages); Zhao et al. 2023, arXiv 2304.11277
(shard groups); Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2 (sequence parallelism).
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, PerPrecision, with_fields
from jaxscale.base.smooth import (
    Temperature,
    degree_within,
    is_exact,
    larger,
    positive_part,
    several,
    smaller,
    smooth_max,
)
from jaxscale.hardware.formats import mean_over_formats, wide_shares
from jaxscale.models.transformer import (
    Heads,
    Transformer,
    attention_layers,
    attention_params,
    dense_layer_params,
    embedding_params,
    expert_params,
    indicator,
    is_latent,
    key_value_numbers,
    mean_over_heads,
    moe_layers,
    total_layers,
)
from jaxscale.plans.adapters import adapter_widths, trained_by
from jaxscale.plans.expert_load import hottest_load
from jaxscale.plans.plan import ZERO_STAGES, Plan, shard_group
from jaxscale.plans.stages import StageLayers, stage_layers


class LocalParams(eqx.Module):
    """Number of weights on one chip of the busiest stage, before any ZeRO sharding.

    Attributes:
        layers: dense weights of the stage's layers [1].
        experts: routed experts of the stage's layers [1].
        embedding: embeddings, spread over the ends of the pipeline [1].
    """

    layers: Number
    experts: Number
    embedding: Number

    @property
    def dense(self) -> Number:
        """Dense weights: all weights except routed experts [1]."""
        return self.layers + self.embedding

    @property
    def total(self) -> Number:
        """Dense weights and routed experts [1]."""
        return self.layers + self.experts + self.embedding


class LocalPlan(eqx.Module):
    """Local quantities of a model under a plan on one chip; see `local_plan`.

    Attributes:
        model: the transformer; its trained share is zero under adapters.
        plan: degrees, sharding, schedule.
        tokens: t = b S / cp, tokens of one chip in one microbatch [token].
        element_bytes: stored size of a weight or activation [byte].
        gathered_bytes: size of a gathered activation that is input of matmuls [byte].
        matmul_bytes: stored size of an element that only matmuls read [byte].
        wide: share of each number format in computation outside the matmuls, with 8-bit formats counted as 16 bits [1].
        sequence_split: shards of the residual stream in a tensor-parallel group: tp with sequence parallelism, else
            1 [1].
        loss_split: shards of the logits in a tensor-parallel group: tp with a vocabulary-parallel loss, else 1 [1].
        key_value_width: numbers in the keys and values of a token on a tensor-parallel rank, see `key_value_width` [1].
        attention_params: weights of one attention layer on a rank, copied key/value heads included [1].
        optimizer_sharded: ZeRO switch: 1 where the optimizer state is sharded [1].
        gradients_sharded: ZeRO switch: 1 where gradients are sharded [1].
        weights_sharded: ZeRO switch: 1 where weights are sharded (FSDP) [1].
        replicas: ranks with equal weights: dp * cp, as context-parallel ranks hold equal weights too [1].
        shard_ranks: ranks of one sharded copy of the dense weights [1].
        expert_tensor_degree: etp, shards of the matrices of each expert, see `expert_tensor_degree` [1].
        expert_shard: chips of one copy of the routed experts of a stage: ep * etp [1].
        expert_replicas: copies of each routed expert in a stage [1].
        expert_shard_ranks: ranks of one sharded copy of each routed expert, see `expert_shard_ranks` [1].
        layers: layers of the stages of the pipeline [1].
        dense_params: dense weights of all layers on a rank of tp, without division into stages [1].
        routed_params: routed experts of all layers on a rank of ep * etp, without division into stages [1].
        params: weights of the busiest stage.
        adapter_width: input and output widths of the adapters of a token on a rank, over all layers [1].
        adapter_share: weights of adapters over weights of the layers [1].
        expert_load: copies of tokens on the hottest rank of experts over the mean [1].
    """

    model: Transformer
    plan: Plan
    tokens: Number
    element_bytes: Number
    gathered_bytes: Number
    matmul_bytes: Number
    wide: PerPrecision
    sequence_split: Number
    loss_split: Number
    key_value_width: Number
    attention_params: Number
    optimizer_sharded: Number
    gradients_sharded: Number
    weights_sharded: Number
    replicas: Number
    shard_ranks: Number
    expert_tensor_degree: Number
    expert_shard: Number
    expert_replicas: Number
    expert_shard_ranks: Number
    layers: StageLayers
    dense_params: Number
    routed_params: Number
    params: LocalParams
    adapter_width: Number
    adapter_share: Number
    expert_load: Number

    @property
    def trained_share(self) -> Number:
        """Trained weights, adapters included, over the weights of the model [1]."""
        return self.model.trainable_share + self.adapter_share

    def at_stage(self, layers: ArrayLike, ends: ArrayLike) -> "LocalPlan":
        """Local quantities with the weights of one given stage in place of the busiest stage.

        Args:
            layers: layers of the stage [1].
            ends: 1 for an end stage of the pipeline, which holds embeddings, else 0 [1].
        """
        stage = layers / total_layers(self.model)
        # Embeddings are on end stages alone.
        held = self.params.embedding * ends
        return replace(self, params=LocalParams(self.dense_params * stage, self.routed_params * stage, held))

    @property
    def fullest_layers(self) -> Array:
        """Layers of the stage with the most layers [1]."""
        return larger(self.layers.first, self.layers.middle)

    def held_params(self, sharded: Number) -> Number:
        """Weights per chip whose state, such as the optimizer state, stays on the chip after ZeRO sharding [1].

        Dense weights of the busiest stage over `shard_ranks`, experts over `expert_shard_ranks`.

        Args:
            sharded: ZeRO switch of the state, such as `optimizer_sharded` [1].
        """
        # Blend between no sharding and all ranks: smooth in the ZeRO switch.
        shards = 1.0 + sharded * (self.shard_ranks - 1.0)
        expert_shards = 1.0 + sharded * (self.expert_shard_ranks - 1.0)
        return self.params.dense / shards + self.params.experts / expert_shards

    def trained_params(self, sharded: Number) -> Number:
        """Trained weights per chip whose state stays on the chip after ZeRO sharding; embeddings have no adapters [1].

        Args:
            sharded: ZeRO switch of the state, such as `optimizer_sharded` [1].
        """
        embedding = self.params.embedding / (1.0 + sharded * (self.shard_ranks - 1.0))
        return self.trained_share * self.held_params(sharded) - self.adapter_share * embedding


def local_plan(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> LocalPlan:
    """Compute the local quantities of a plan on one chip.

    Args:
        model: the transformer.
        plan: degrees, sharding, schedule.
        temperature: smoothing of maxima [1].

    Returns:
        The plan with its derived quantities.
    """
    # Adapters freeze the model: no gradient, no optimizer state of base weights.
    model = with_fields(model, {"trainable_share": trained_by(model, plan.lora_rank)})
    # Ranks of cp hold equal weights and share the shards.
    shard_ranks = shard_group(plan) * plan.cp
    etp = expert_tensor_degree(plan, temperature)
    spread = plan.ep * etp
    # Ranks beyond the number of key/value heads hold copies of heads; latents are no heads.
    copies = mean_over_heads(
        model,
        lambda kind: (
            (_heads_on_rank(kind, plan, temperature) * plan.tp / kind.n_kv_heads - 1.0) * key_value_numbers(kind)
        ),
    )
    copied = copies / plan.tp * model.d_model * (1.0 - is_latent(model))
    dense = dense_layer_params(model) / plan.tp + attention_layers(model) * copied
    routed = moe_layers(model) * model.n_experts * expert_params(model) / spread
    layers = stage_layers(model, plan, temperature)
    # Layers of the fullest stage over all layers.
    stage = larger(layers.first, layers.middle) / total_layers(model)
    widths = adapter_widths(model, plan.lora_targets)
    adapters = plan.lora_rank * (widths.dense / plan.tp + widths.routed / spread)
    return LocalPlan(
        model=model,
        plan=plan,
        # t = b S / cp
        tokens=plan.micro_batch_size * model.seq_len / plan.cp,
        element_bytes=mean_over_formats(plan.precision, lambda entry: entry.element_bytes),
        gathered_bytes=mean_over_formats(plan.precision, lambda entry: entry.gathered_bytes),
        matmul_bytes=mean_over_formats(plan.precision, lambda entry: entry.matmul_bytes),
        wide=wide_shares(plan.precision),
        sequence_split=1.0 + plan.sequence_parallel * (plan.tp - 1.0),
        loss_split=1.0 + plan.vocab_parallel_loss * (plan.tp - 1.0),
        key_value_width=key_value_width(model, plan, temperature),
        attention_params=attention_params(model) / plan.tp + copied,
        optimizer_sharded=sharding(plan, 1),
        gradients_sharded=sharding(plan, 2),
        weights_sharded=sharding(plan, 3),
        replicas=plan.dp * plan.cp,
        shard_ranks=shard_ranks,
        expert_tensor_degree=etp,
        expert_shard=spread,
        # dp cp tp / (ep etp)
        expert_replicas=plan.dp * plan.cp * plan.tp / spread,
        expert_shard_ranks=expert_shard_ranks(shard_ranks * plan.tp, spread, temperature),
        layers=layers,
        dense_params=dense,
        routed_params=routed,
        params=LocalParams(dense * stage, routed * stage, end_share(model, plan) * embedding_params(model) / plan.tp),
        adapter_width=indicator(plan.lora_rank) * widths.of_token / plan.tp,
        adapter_share=adapters / (dense + routed),
        expert_load=hottest_load(model.n_experts, model.moe_top_k, plan),
    )


def sharding(plan: Plan, stage: int) -> Array:
    """ZeRO switch of a plan for a stage: 1 if the plan's ZeRO stage is at least as high, else 0; linear between [1]."""
    begun = jnp.subtract(plan.zero_stage, stage - 1.0)
    # Not clipped at the ends of the domain, stages 0 and 3: the slope is equal to the slope inside.
    begun = begun if stage == ZERO_STAGES[0] else larger(begun, 0.0)
    return begun if stage == ZERO_STAGES[-1] else smaller(begun, 1.0)


def end_share(model: Transformer, plan: Plan) -> Array:
    """Share of the embedding matrices on an end stage: 1 without a pipeline, else one of two untied matrices [1]."""
    # Tied embeddings are a single matrix, held by the first and the last stage.
    return 1.0 - several(plan.pp) * (1.0 - 1.0 / (2.0 - model.tied_embeddings))


def key_value_width(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Numbers in the keys and values of a token, per attention layer and tensor-parallel rank [1].

    The mean for layers with different heads.
    """
    return mean_over_heads(
        model, lambda kind: _heads_on_rank(kind, plan, temperature) * (kind.head_dim + kind.v_head_dim)
    )


def _heads_on_rank(kind: Heads, plan: Plan, temperature: Temperature) -> Array:
    """Key/value heads of a tensor-parallel rank: K / tp, or one copied head where tp exceeds K [1]."""
    return smooth_max(kind.n_kv_heads / plan.tp, 1.0, temperature)


def expert_tensor_degree(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Expert-tensor-parallel degree, shards of an expert: tp, or fewer where ep takes chips of tensor-parallel groups.

    The groups of ep * etp chips lie inside the dp * cp * tp chips of a stage (Megatron-Core's parallel folding,
    arXiv 2504.14960, section 3).

    Args:
        plan: degrees, `etp`.
        temperature: smoothing of the minimum [1].

    Returns:
        Degree; 1 where ep = dp * cp * tp; `etp` of the plan where `etp` is one or more [1].
    """
    room = plan.dp * plan.cp / plan.ep
    # ep = dp * cp is a common choice: the sharper bend here keeps one replica of each expert as one.
    usual = (
        plan.tp * smaller(room, 1.0)
        if is_exact(temperature)
        else degree_within(room * plan.tp, plan.tp, 0.3 * temperature)
    )
    # Not clipped below, so that the slope at 0 equals the slope inside.
    return usual + smaller(plan.etp, 1.0) * (plan.etp - usual)


def expert_shard_ranks(group_chips: Number, expert_shard: Number, temperature: Temperature = 0.0) -> Array:
    r"""Ranks of one sharded copy of each routed expert: replicas of the expert inside one shard group.

    The shard group's $s c\,tp$ chips hold $s c\,tp / (ep\,etp)$ replicas, but at least one (Zhao et al. 2023,
    arXiv 2304.11277, section 3.2.2; torchtitan, 2025, shards experts over an equal number of ranks).

    Args:
        group_chips: s cp tp, chips of a shard group [1].
        expert_shard: ep etp, chips of one copy of the experts [1].
        temperature: smoothing of the minimum at one [1].

    Returns:
        Ranks [1].
    """
    # max(s c tp / (ep etp), 1) in logarithms.
    return jnp.exp(positive_part(jnp.log(group_chips / expert_shard), temperature))
