"""Domain of a `Plan`: valid numbers of each field, from every source; rules on whole plans are in `rules`."""

from jaxscale.base.domains import Bound, Domain

FLAGS = (
    "flash_attention",
    "overlap_gradients",
    "overlap_gathers",
    "balanced_stages",
    "fused_glu",
    "fused_norm",
    "chunked_loss",
    "vocab_parallel_loss",
    "moe_overlap",
    "autocast",
    "wide_weights",
    "narrow_gate",
    "kept_gate",
    "copied_attention",
    "dropout",
    "kept_gradients",
    "cached_gradients",
    "gathered_stages",
    "queued_collectives",
)
"""Fields that are 1 where software has a feature, else 0."""

WORDS = ("gpipe", "zero_bubble", "dual_pipe", "compiled", "cuda_graphs", "tp_overlap_backward", "tp_overlap_full") + (
    *("dispatch_allgather", "deepep", "hybridep"),
)
"""Switches set by a word, see `plan.SWITCHES`."""

DEGREE = Bound(1.0, 1e12)
SWITCH = Bound(0.0, 1.0)
BYTES = Bound(0.0, 1e12)

PLAN = Domain(
    "Plan",
    {
        "dp": DEGREE._replace(meaning="data-parallel degree"),
        "tp": DEGREE._replace(meaning="tensor-parallel degree"),
        "pp": DEGREE._replace(meaning="pipeline stages"),
        "vpp": DEGREE._replace(meaning="virtual stages of a chip"),
        "cp": DEGREE._replace(meaning="context-parallel degree"),
        "ep": DEGREE._replace(meaning="expert-parallel degree"),
        "etp": Bound(0.0, 1e12, False, "ways in which an expert is split; 0 where they follow from tp and ep"),
        **{
            name: Bound(0.0, 1e12, False, "layers of an end of the pipeline; 0 for its share")
            for name in ("first_stage_layers", "last_stage_layers")
        },
        "zero_stage": Bound(0.0, 3.0, False, "ZeRO stage"),
        "shard_group": Bound(0.0, 1e12, False, "chips that share one sharded copy; 0 for all of dp"),
        "micro_batch_size": DEGREE._replace(meaning="sequences of a microbatch"),
        "n_microbatches": DEGREE._replace(meaning="microbatches of a step"),
        "gradient_bytes": Bound(0.0, 1e3, True, "bytes of a gradient"),
        "optimizer_bytes": Bound(0.0, 1e3, False, "bytes of the optimizer's state of a weight"),
        "weight_bytes": Bound(0.0, 1e3, True, "bytes of a weight"),
        "attention_rate": Bound(0.0, 1e3, True, "rate of the attention kernel over that of FlashAttention-2"),
        "recompute_cost": Bound(0.0, 1e3, False, "forward work done again over what is dropped"),
        "loss_bytes": BYTES._replace(meaning="bytes of a logit while the loss is taken"),
        "lora_rank": Bound(0.0, 1e6, False, "rank of the adapters; 0 for none"),
        "dequantised_bytes": BYTES._replace(meaning="traffic of widening a weight, each pass"),
        "host_time_layer": Bound(0.0, 1e3, False, "host time of a layer and microbatch beyond that of tuned software"),
        "adapter_bytes": BYTES._replace(meaning="bytes of an input that is kept for adapters"),
        "gradient_copy_bytes": BYTES._replace(meaning="bytes of a second copy of a gradient"),
        "held_bytes": Bound(0.0, 1e15, False, "bytes that software holds besides"),
        "cached_share": Bound(0.0, 1e3, False, "memory that the allocator keeps over activations and logits"),
        "sequence_parallel": SWITCH._replace(meaning="1 where norms are split over tp"),
        "recompute_full": SWITCH._replace(meaning="share of the activations that is dropped"),
        "recompute_selective": SWITCH._replace(meaning="1 where the core of attention is done again"),
        "offload_activations": SWITCH._replace(meaning="share of the activations in the host's memory"),
        "offload_optimizer": SWITCH._replace(meaning="share of the optimizer's state in the host's memory"),
        "expert_skew": Bound(0.0, 10.0, False, "exponent of the popularity of experts; 0 for equal ones"),
        "expert_load": Bound(0.0, 1e6, False, "load of the hottest rank of experts over the mean; 0 for the skew's"),
        "capacity_factor": Bound(0.0, 1e6, False, "copies that an expert takes over the mean; 0 for no limit"),
        "balanced_experts": SWITCH._replace(meaning="1 where experts are placed by their load"),
        **{name: SWITCH._replace(meaning="1 where software does so") for name in FLAGS},
        **{name: SWITCH._replace(meaning="1 where the word of this name is chosen") for name in WORDS},
    },
)
"""Valid numbers of a `Plan`."""
