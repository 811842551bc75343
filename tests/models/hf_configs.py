"""Configurations of released models, their keys that bear on the shape, with the published counts."""

from typing import Any, NamedTuple


class Released(NamedTuple):
    """A configuration, parameters in all and active [1e9], and the tolerances of the two [1]."""

    config: dict[str, Any]
    params: float
    active: float | None = None
    tolerance: float = 0.01
    active_tolerance: float = 0.03


def decoder(
    kind: str, layers: int, width: int, heads: int, key_heads: int, inner: int, words: int, **more: Any
) -> dict:
    """A configuration with the keys that most families have."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": inner,
        "vocab_size": words,
        **more,
    }


def latent(query_rank: int | None, unrotated: int = 128, value: int = 128, **more: Any) -> dict[str, Any]:
    """Keys of multi-head latent attention."""
    shapes = {"kv_lora_rank": 512, "qk_nope_head_dim": unrotated, "qk_rope_head_dim": 64, "v_head_dim": value}
    return {**shapes, "q_lora_rank": query_rank, **more}


def experts(count: int, chosen: int, width: int, key: str = "n_routed_experts", **more: Any) -> dict[str, Any]:
    """Keys of a mixture of experts."""
    return {key: count, "num_experts_per_tok": chosen, "moe_intermediate_size": width, **more}


EVERY_FOURTH = ["linear_attention"] * 3 + ["full_attention"]
EVERY_SIXTH = ["sliding_attention"] * 5 + ["full_attention"]
DELTA = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

RELEASED = {
    "Llama-3.1-8B": Released(decoder("llama", 32, 4096, 32, 8, 14336, 128256), 8.03),
    "Llama-2-70B": Released(decoder("llama", 80, 8192, 64, 8, 28672, 32000), 68.98),
    "Mistral-7B": Released(decoder("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096), 7.24),
    "Mixtral-8x7B": Released(
        decoder("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2), 46.7, 12.88
    ),
    "Qwen2.5-7B": Released(decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, use_sliding_window=False), 7.61),
    "Qwen1.5-MoE-A2.7B": Released(
        decoder(
            "qwen2_moe",
            24,
            2048,
            16,
            16,
            5632,
            151936,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
            **experts(60, 4, 1408, "num_experts"),
        ),
        14.3,
        2.7,
    ),
    "Qwen3-0.6B": Released(
        decoder("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True), 0.596
    ),
    "Qwen3-30B-A3B": Released(
        decoder("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, **experts(128, 8, 768, "num_experts")),
        30.53,
        3.35,
    ),
    "Qwen3-Next-80B-A3B": Released(
        decoder(
            "qwen3_next",
            48,
            2048,
            16,
            2,
            5120,
            151936,
            head_dim=256,
            full_attention_interval=4,
            **DELTA,
            linear_num_value_heads=32,
            shared_expert_intermediate_size=512,
            **experts(512, 10, 512, "num_experts"),
        ),
        79.7,
        3.88,
    ),
    "Qwen3.5-397B-A17B": Released(
        {
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": False,
            "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16},
            "text_config": decoder(
                "qwen3_5_moe_text",
                60,
                4096,
                32,
                2,
                0,
                248320,
                head_dim=256,
                attn_output_gate=True,
                layer_types=EVERY_FOURTH * 15,
                **DELTA,
                linear_num_value_heads=64,
                mtp_num_hidden_layers=1,
                shared_expert_intermediate_size=1024,
                **experts(512, 10, 1024, "num_experts"),
            ),
        },
        397.0,
        17.0,
    ),
    "DeepSeek-V2-Lite": Released(
        decoder(
            "deepseek_v2",
            27,
            2048,
            16,
            16,
            10944,
            102400,
            **latent(None),
            first_k_dense_replace=1,
            **experts(64, 6, 1408, n_shared_experts=2, moe_layer_freq=1),
        ),
        15.7,
        2.66,
    ),
    "DeepSeek-V3": Released(
        decoder(
            "deepseek_v3",
            61,
            7168,
            128,
            128,
            18432,
            129280,
            **latent(1536),
            first_k_dense_replace=3,
            num_nextn_predict_layers=1,
            **experts(256, 8, 2048, n_shared_experts=1, moe_layer_freq=1),
        ),
        671.0,
        37.0,
    ),
    "DeepSeek-V4-Flash": Released(
        {
            "model_type": "deepseek_v4",
            "num_hidden_layers": 43,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "vocab_size": 129280,
            "q_lora_rank": 1024,
            "o_lora_rank": 1024,
            "o_groups": 8,
            "sliding_window": 128,
            "index_topk": 512,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "hc_mult": 4,
            "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0],
            "num_nextn_predict_layers": 1,
            "tie_word_embeddings": False,
            **experts(256, 6, 2048, n_shared_experts=1),
        },
        284.0,
        13.0,
    ),
    "Kimi-K2": Released(
        decoder(
            "kimi_k2",
            61,
            7168,
            64,
            64,
            18432,
            163840,
            **latent(1536),
            first_k_dense_replace=1,
            **experts(384, 8, 2048, n_shared_experts=1, moe_layer_freq=1),
        ),
        1026.0,
        32.6,
    ),
    "Kimi-Linear-48B-A3B": Released(
        decoder(
            "kimi_linear",
            27,
            2304,
            32,
            32,
            9216,
            163840,
            **latent(None),
            first_k_dense_replace=1,
            linear_attn_config={"kda_layers": [n for n in range(1, 28) if n % 4], "head_dim": 128, "num_heads": 32},
            num_experts=256,
            num_experts_per_token=8,
            num_shared_experts=1,
            moe_intermediate_size=1024,
        ),
        49.1,
        3.5,
        0.01,
        0.05,
    ),
    "GLM-4.5": Released(
        decoder(
            "glm4_moe",
            92,
            5120,
            96,
            8,
            12288,
            151552,
            head_dim=128,
            first_k_dense_replace=3,
            num_nextn_predict_layers=1,
            **experts(160, 8, 1536, n_shared_experts=1),
        ),
        355.0,
        33.6,
    ),
    "gpt-oss-120b": Released(
        decoder(
            "gpt_oss",
            36,
            2880,
            64,
            8,
            2880,
            201088,
            head_dim=64,
            sliding_window=128,
            num_local_experts=128,
            num_experts_per_tok=4,
            layer_types=["sliding_attention", "full_attention"] * 18,
        ),
        116.83,
        5.71,
    ),
    "gemma-2-27b": Released(
        decoder("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128, sliding_window=4096), 27.2
    ),
    "gemma-3-27b": Released(
        {
            "model_type": "gemma3",
            "text_config": decoder("gemma3_text", 62, 5376, 32, 16, 21504, 262208, head_dim=128, sliding_window=1024),
            "vision_config": {
                "num_hidden_layers": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "patch_size": 14,
                "model_type": "siglip_vision_model",
            },
        },
        27.0,
    ),
    "gemma-4-26B-A4B": Released(
        {
            "model_type": "gemma4",
            "text_config": decoder(
                "gemma4_text",
                30,
                2816,
                16,
                8,
                2112,
                262144,
                head_dim=256,
                global_head_dim=512,
                sliding_window=1024,
                num_global_key_value_heads=2,
                attention_k_eq_v=True,
                enable_moe_block=True,
                num_experts=128,
                top_k_experts=8,
                moe_intermediate_size=704,
                layer_types=EVERY_SIXTH * 5,
                tie_word_embeddings=True,
            ),
        },
        25.2,
        3.8,
    ),
    "Phi-4": Released(decoder("phi3", 40, 5120, 40, 10, 17920, 100352, tie_word_embeddings=False), 14.66),
    "Phi-4-mini": Released(decoder("phi3", 32, 3072, 24, 8, 8192, 200064, tie_word_embeddings=True), 3.84),
    "Phi-3.5-MoE": Released(
        decoder("phimoe", 32, 4096, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2), 41.9, 6.6
    ),
    "OLMo-2-13B": Released(decoder("olmo2", 40, 5120, 40, 40, 13824, 100352), 13.72),
    "OLMoE-1B-7B": Released(
        decoder("olmoe", 16, 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8), 6.92, 1.28
    ),
    "Nemotron-H-8B": Released(
        decoder(
            "nemotron_h",
            52,
            4096,
            32,
            8,
            21504,
            131072,
            attention_head_dim=128,
            mamba_num_heads=128,
            mamba_head_dim=64,
            n_groups=8,
            ssm_state_size=128,
            mlp_hidden_act="relu2",
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        ),
        8.1,
    ),
    "Nemotron-3-Nano": Released(
        decoder(
            "nemotron_h",
            52,
            2688,
            32,
            2,
            1856,
            131072,
            head_dim=128,
            mamba_num_heads=64,
            mamba_head_dim=64,
            n_groups=8,
            ssm_state_size=128,
            moe_shared_expert_intermediate_size=3712,
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            **experts(128, 6, 1856, n_shared_experts=1),
        ),
        31.6,
        3.6,
    ),
    "granite-3.3-8b": Released(decoder("granite", 40, 4096, 32, 8, 12800, 49159, tie_word_embeddings=True), 8.17),
    "granite-4.0-h-small": Released(
        decoder(
            "granitemoehybrid",
            40,
            4096,
            32,
            8,
            768,
            100352,
            layer_types=(["mamba"] * 9 + ["attention"]) * 4,
            num_local_experts=72,
            num_experts_per_tok=10,
            shared_intermediate_size=1536,
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_n_groups=1,
            mamba_d_state=128,
            tie_word_embeddings=True,
        ),
        32.2,
        9.0,
    ),
    "MiniMax-Text-01": Released(
        decoder(
            "minimax_text_01",
            80,
            6144,
            64,
            8,
            9216,
            200064,
            head_dim=128,
            num_local_experts=32,
            num_experts_per_tok=2,
            attn_type_list=([0] * 7 + [1]) * 10,
        ),
        456.0,
        48.4,
    ),
    "MiniMax-M2.5": Released(
        decoder(
            "minimax_m2",
            62,
            3072,
            48,
            8,
            1536,
            200064,
            head_dim=128,
            num_local_experts=256,
            num_experts_per_tok=8,
            use_mtp=True,
            num_mtp_modules=3,
            mtp_transformer_layers=1,
        ),
        229.0,
        11.0,
    ),
    "MiMo-V2-Flash": Released(
        decoder(
            "mimo_v2_flash",
            48,
            4096,
            64,
            4,
            16384,
            152576,
            head_dim=192,
            v_head_dim=128,
            sliding_window=128,
            swa_num_key_value_heads=8,
            swa_head_dim=192,
            swa_v_head_dim=128,
            swa_num_attention_heads=64,
            hybrid_layer_pattern=[0] + ([1] * 4 + [0]) + ([1] * 5 + [0]) * 7,
            moe_layer_freq=[0] + [1] * 47,
            **experts(256, 8, 2048, n_shared_experts=None),
        ),
        309.0,
        15.4,
    ),
    "Step-3.7-Flash": Released(
        decoder(
            "step3p7",
            45,
            4096,
            64,
            8,
            11264,
            128896,
            head_dim=128,
            sliding_window=512,
            first_k_dense_replace=3,
            layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 11 + ["full_attention"],
            num_nextn_predict_layers=3,
            **experts(288, 8, 1280, "num_experts", share_expert_dim=1280),
        ),
        196.0,
        11.0,
    ),
    "Jamba-v0.1": Released(
        decoder(
            "jamba",
            32,
            4096,
            32,
            8,
            14336,
            65536,
            attn_layer_period=8,
            attn_layer_offset=4,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=16,
            num_experts_per_tok=2,
            mamba_expand=2,
            mamba_d_state=16,
            mamba_dt_rank=256,
        ),
        51.57,
        12.0,
    ),
    "falcon-40b": Released(
        {
            "model_type": "falcon",
            "num_hidden_layers": 60,
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41.3,
    ),
    "Falcon-H1-34B": Released(
        decoder(
            "falcon_h1",
            72,
            5120,
            20,
            4,
            21504,
            261120,
            head_dim=128,
            mamba_d_ssm=4096,
            mamba_n_heads=32,
            mamba_d_head=128,
            mamba_n_groups=2,
            mamba_d_state=256,
            tie_word_embeddings=False,
        ),
        33.6,
    ),
    "starcoder2-15b": Released(
        decoder("starcoder2", 40, 6144, 48, 4, 24576, 49152, sliding_window=4096, tie_word_embeddings=False), 15.96
    ),
    "gpt2-xl": Released(
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        1.558,
    ),
    "pythia-6.9b": Released(
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "intermediate_size": 16384,
            "vocab_size": 50432,
            "tie_word_embeddings": False,
        },
        6.86,
    ),
    "bert-large": Released(
        {
            "model_type": "bert",
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "vocab_size": 30522,
            "max_position_embeddings": 512,
        },
        0.334,
    ),
    "vit-base": Released(
        {
            "model_type": "vit",
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
        },
        0.0864,
    ),
    "Llama-4-Maverick": Released(
        {
            "model_type": "llama4",
            "text_config": decoder(
                "llama4_text",
                48,
                5120,
                40,
                8,
                8192,
                202048,
                head_dim=128,
                intermediate_size_mlp=16384,
                num_local_experts=128,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                attention_chunk_size=8192,
                no_rope_layers=[1, 1, 1, 0] * 12,
            ),
        },
        400.0,
        17.0,
    ),
    "Nemotron-Super-49B, of its kind": Released(
        decoder(
            "nemotron-nas",
            3,
            8192,
            64,
            8,
            0,
            128256,
            block_configs=[
                {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
                {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
                {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
            ],
        ),
        # Two embeddings, two attentions of 2 d^2 (1 + 1/8), MLPs of 28672 and 5632.
        (2 * 128256 * 8192 + 2 * 2.25 * 8192**2 + 3 * 8192 * (28672 + 5632)) / 1e9,
        None,
        0.001,
    ),
    "LFM2-1.2B": Released(
        decoder(
            "lfm2",
            16,
            2048,
            32,
            8,
            12288,
            65536,
            conv_L_cache=3,
            layer_types=["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
        ),
        1.17,
    ),
    "DeBERTa-v3-large": Released(decoder("deberta-v2", 24, 1024, 16, 16, 4096, 128100), 0.434),
    "Arcee-4.5B": Released(decoder("arcee", 36, 2560, 20, 4, 18432, 128004, head_dim=128), 4.62),
    "Apertus-70B": Released(decoder("apertus", 80, 8192, 64, 8, 43008, 131072), 70.6),
    "Qwen-72B": Released(
        {"model_type": "qwen", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
        | {"intermediate_size": 49152, "vocab_size": 152064},
        72.3,
    ),
    # Of 12 chosen experts 8 work on average; "about 27e9 on average" (arXiv 2509.01322).
    "LongCat-Flash": Released(
        {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64}
        | {"ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "moe_topk": 12, "zero_expert_num": 256}
        | {"n_routed_experts": 512, "vocab_size": 131072, **latent(1536)},
        560.0,
        27.0,
        active_tolerance=0.04,
    ),
    "Step-3": Released(
        {
            "text_config": decoder(
                "step3_text",
                61,
                7168,
                64,
                1,
                18432,
                128815,
                head_dim=256,
                share_q_dim=2048,
                moe_num_experts=48,
                moe_top_k=3,
                moe_intermediate_size=5120,
                share_expert_dim=5120,
                moe_layers_enum=",".join(str(layer) for layer in range(4, 60)),
            )
        },
        316.0,
        38.0,
    ),
    # The nested part leaves out what its class has by default: heads, their width and the vocabulary.
    "gemma-3-4b": Released(
        {
            "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560}
            | {"intermediate_size": 10240, "sliding_window": 1024},
        },
        3.88,
    ),
}
